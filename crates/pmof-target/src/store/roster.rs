//! The roster in a pool's file, as those see it who do not open the pool.

use pmof_control::{Header, HeaderError, PoolFormat, ROSTER_BYTES, ROSTER_OFFSET, Roster};
use pmof_mem::{Medium as _, MemError, Memory};

/// The roster behind the state, of formats that have one.
pub(super) fn read_roster(memory: &Memory, header: &Header) -> Result<Result<Roster, HeaderError>, MemError> {
    let mut bytes = vec![0; ROSTER_BYTES];
    if header.format == PoolFormat::Three {
        memory.read(ROSTER_OFFSET, &mut bytes)?;
    }
    Ok(Roster::read(header.replica_count, &bytes).map(|(roster, _)| roster))
}
