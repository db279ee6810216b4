//! The state page of a pool's file and the header of a new one, as they are read and written.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{Header, HeaderError, NewPool, PoolFormat, PoolState, STATE_BYTES, STATE_OFFSET};
use pmof_mem::{Medium, MemError, Memory};
use uuid::Uuid;

/// Number of the first slot of a new pool's state, and of the newest one.
pub(super) const FIRST_SEQUENCE: u64 = 1;
pub(super) const MADE_SEQUENCE: u64 = FIRST_SEQUENCE + 1;

/// The state behind the header, its sequence number, and whether it may be an older one.
pub(super) fn read_state(
    memory: &Memory,
    header: &Header,
) -> Result<Result<(PoolState, u64, bool), HeaderError>, MemError> {
    let mut page = [0; STATE_BYTES];
    if !matches!(header.format, PoolFormat::One { .. }) {
        memory.read(STATE_OFFSET, &mut page)?;
    }
    Ok(PoolState::read_uncertain(header.format, header.replica_count, &page))
}

/// Puts the state into both slots, one after the other, as durably as the medium can. A crash leaves it or the one before; once it is answered for, one
/// damaged slot takes nothing back. Makes nothing else durable: a change of the epoch, which a writer waits for, does not wait for what the page
/// cache has of the pool.
pub(super) fn write_state(medium: &dyn Medium, state: &PoolState, sequence: u64) -> Result<(), MemError> {
    for (offset, slot) in state.slots(sequence) {
        let offset = STATE_OFFSET + offset as u64;
        medium.store(offset, &slot)?;
        medium.sync_range(offset, slot.len() as u64)?;
    }
    Ok(())
}

/// Before a writer depends on a state that was read: puts it into both slots, if a crash, a damaged slot or an earlier program left it in one. Returns the
/// number of the newest slot.
pub(super) fn keep_in_both_slots(medium: &dyn Medium, state: &PoolState, sequence: u64) -> Result<u64, MemError> {
    let mut page = [0; STATE_BYTES];
    medium.read(STATE_OFFSET, &mut page)?;
    if PoolState::is_in_both_slots(&page) {
        return Ok(sequence);
    }
    write_state(medium, state, sequence + 1)?;
    Ok(sequence + 2)
}

pub(super) fn new_header(new: &NewPool) -> Header {
    Header {
        format: PoolFormat::Three,
        compatible_features: 0,
        pool_uuid: new.pool_uuid,
        replica_uuid: Uuid::new_v4(),
        size_bytes: new.size_bytes,
        // A clock before 1970 is no reason to refuse a pool.
        created_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        replica_count: new.replica_count,
        replica_index: new.replica_index,
        user_flags: new.user_flags,
    }
}
