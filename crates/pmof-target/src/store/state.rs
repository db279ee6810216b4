//! Outputs of the engine on any medium, the header of a new pool, and its first state.

use std::time::{SystemTime, UNIX_EPOCH};

use pmof_control::{Header, NewPool, PoolFormat, PoolState};
use pmof_mem::{Medium, MemError};
use uuid::Uuid;

use crate::engine::{Output, state_written};

/// Performs those of the outputs that are of any medium.
pub(super) fn perform(medium: &dyn Medium, output: &Output) -> Result<Vec<u8>, MemError> {
    match output {
        Output::Read { offset, len_bytes } => {
            let mut bytes = vec![0; *len_bytes];
            medium.read(*offset, &mut bytes)?;
            return Ok(bytes);
        }
        Output::Store { offset, bytes } => medium.store(*offset, bytes)?,
        Output::StoreWord { offset, word } => medium.atomic_store(*offset, *word)?,
        Output::WriteBack(range) => medium.write_back(range.start, range.end - range.start)?,
        Output::Sync(range) => medium.sync_range(range.start, range.end - range.start)?,
        Output::Flush => medium.fence()?,
        Output::CheckName
        | Output::Publish
        | Output::CheckLevel
        | Output::LeaveToFormerWriters
        | Output::SyncName
        | Output::SettleHead
        | Output::SettleData(_)
        | Output::SettleForReader => {}
    }
    Ok(Vec::new())
}

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
