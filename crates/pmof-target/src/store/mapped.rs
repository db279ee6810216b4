//! Processes that still have a pool's memory mapped for writing, although the target that let them has ended or was killed.
//!
//! Their stores cannot be kept out of the file that they map. So who opens that file next takes its place with a copy, as a takeover does
//! ([`handover`](super::handover)). A device has no copy: it is refused until they end. Their mapping holds a lock that outlives the
//! target ([`HandOut::Marked`](pmof_mem::HandOut::Marked)).

use std::sync::Arc;

use pmof_control::PoolName;
use pmof_mem::{Medium as _, Memory};

use super::{
    OpenPool, PoolStore, StoreError,
    former::{is_mapped, stays_mapped},
    handover::Replacement,
};
use crate::{events, holder::processes_that_map};

impl PoolStore {
    /// Leaves the file of a pool that this store has just locked to the processes that still map it, and goes on with a copy; the same memory where there
    /// are none. `end_readers` runs before the file is cut.
    pub(super) fn leave_to_orphans(
        &self,
        name: &PoolName,
        memory: Arc<Memory>,
        end_readers: &dyn Fn(),
    ) -> Result<Arc<Memory>, StoreError> {
        let file = self.file_of(name, &memory)?;
        if !stays_mapped(file).map_err(|error| self.root.io("fcntl", name.as_str(), error))? {
            return Ok(memory);
        }
        let holder = processes_that_map(file);
        let moved =
            self.room_for_copy(name, &memory, memory.len_bytes()).and_then(|Replacement { file, memory: copy }| {
                end_readers();
                self.move_to_copy(name, &memory, file, copy).map_err(|(_, error)| error)
            });
        match &moved {
            Ok(_) => events::orphan_left(name.as_str(), &holder),
            Err(error) => events::orphan_not_left(name.as_str(), &holder, &pmof_mem::causes(error)),
        }
        moved
    }
}

impl OpenPool {
    /// Says that the initiator stores nothing any more, though it may have the memory mapped: it has closed the pool.
    pub(crate) fn end_writers(&self) {
        self.memory.take_back();
    }

    /// Whether another process still has the memory mapped for writing, or can map it. No process may be given it meanwhile. `otherwise` decides where the kernel does
    /// not say.
    pub(crate) fn is_mapped_elsewhere(&self, otherwise: impl FnOnce() -> bool) -> bool {
        self.memory.close_handed_out();
        match self.memory.file().map(is_mapped) {
            Some(Ok(is_mapped)) => is_mapped,
            Some(Err(_)) | None => otherwise(),
        }
    }
}
