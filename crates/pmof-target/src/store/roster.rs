//! The roster in a pool's file: which members the pool has, as the file says.

use pmof_control::{Header, HeaderError, OpenFor, PoolFormat, ROSTER_BYTES, ROSTER_OFFSET, Roster};
use pmof_mem::{Medium, MemError, Memory};

/// The roster of an open pool.
#[derive(Debug)]
pub(super) struct KeptRoster {
    pub(super) roster: Roster,
    /// Of the newest slot; 0 where there is none.
    pub(super) sequence: u64,
    /// Parts of one that is being set.
    pub(super) parts: Vec<u8>,
}

impl KeptRoster {
    /// Of a pool that was made with so many replicas.
    pub(super) fn made(replica_count: u16) -> Self {
        Self { roster: Roster::made(replica_count), sequence: 0, parts: Vec::new() }
    }
}

/// The roster behind the state, of formats that have one. Before a writer depends on it, it is in both slots: a crash, a damaged slot or an earlier program may
/// have left it in one.
pub(super) fn read_roster(
    memory: &Memory,
    header: &Header,
    access: OpenFor,
) -> Result<Result<KeptRoster, HeaderError>, MemError> {
    let mut bytes = vec![0; ROSTER_BYTES];
    if header.format == PoolFormat::Three {
        memory.read(ROSTER_OFFSET, &mut bytes)?;
    }
    let (roster, mut sequence) = match Roster::read(header.replica_count, &bytes) {
        Ok(read) => read,
        Err(error) => return Ok(Err(error)),
    };
    if access == OpenFor::Write && sequence > 0 && !Roster::is_in_both_slots(&bytes) {
        // What was read can be written.
        if let Ok(slots) = roster.slots(sequence + 1) {
            write_roster(memory, &slots)?;
            sequence += 2;
        }
    }
    Ok(Ok(KeptRoster { roster, sequence, parts: Vec::new() }))
}

/// Puts a roster into both slots, one after the other, as durably as the medium can. Makes nothing else durable.
pub(super) fn write_roster(medium: &dyn Medium, slots: &[(usize, Vec<u8>)]) -> Result<(), MemError> {
    for (offset, slot) in slots {
        let offset = ROSTER_OFFSET + *offset as u64;
        medium.store(offset, slot)?;
        medium.sync_range(offset, slot.len() as u64)?;
    }
    Ok(())
}
