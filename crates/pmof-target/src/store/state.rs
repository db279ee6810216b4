//! The header of a new pool, and its first state.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{Header, NewPool, PoolFormat, PoolState};
use pmof_mem::{Medium, MemError};
use uuid::Uuid;

use super::outputs::perform;
use crate::engine::state_written;

/// Puts a state into both slots, one after the other, as durably as the medium can. `sequence`: of the first slot.
pub(super) fn write_state(medium: &dyn Medium, state: &PoolState, sequence: u64) -> Result<(), MemError> {
    let slots = state.slots(sequence).into_iter().map(|(offset, slot)| (offset, slot.to_vec())).collect();
    state_written(slots).try_for_each(|output| perform(medium, &output).map(drop))
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
