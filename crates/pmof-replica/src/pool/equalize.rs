//! Making the replicas of a pool equal after an opening that was not closed in order.

use super::{
    Open,
    compare::{BLOCK_BYTES, WINDOW_BYTES, digests_of, lost},
};
use crate::PoolError;

impl Open {
    /// Copies what differs from the replica at position `source` to the others, and makes all of each durable. Returns the bytes copied.
    pub(super) fn equalize(&self, source: usize) -> Result<u64, PoolError> {
        let (mut at, mut copied_bytes) = (0, 0);
        while at < self.facts.size_bytes {
            let window = at..(at + WINDOW_BYTES).min(self.facts.size_bytes);
            let in_use = self.natives_in_use();
            let digests = digests_of(&in_use, &window, BLOCK_BYTES);
            let from = &*self.members[source];
            let right = in_use.iter().zip(&digests).find(|((position, _), _)| *position == source);
            // Another may be the source of the next opening.
            let right = right.and_then(|(_, digests)| digests.as_ref()).ok_or_else(|| lost(from))?;
            for (block, digest) in right.iter().enumerate() {
                let differs = |digests: &Option<Vec<_>>| digests.as_ref().is_some_and(|of| of[block] != *digest);
                let differing = in_use.iter().zip(&digests).filter(|(_, digests)| differs(digests));
                let differing: Vec<_> = differing.map(|((_, member), _)| *member).collect();
                let begin = window.start + block as u64 * BLOCK_BYTES;
                let range = begin..(begin + BLOCK_BYTES).min(window.end);
                copied_bytes += self.copy_range(from, &range, &differing)?;
            }
            at = window.end;
        }
        // Also where nothing was copied: what is the same on all may be durable on some.
        self.flush_everything(false);
        // Not before: which one was the source must be known as long as they differ.
        if let Some(epochs) = &self.epochs {
            epochs.tell_mark();
        }
        let (uuid, replicas) = (self.facts.uuid, self.in_use().count());
        log::info!(
            "pool {uuid} was not closed in order: its {replicas} replicas are equal after copying {copied_bytes} bytes"
        );
        Ok(copied_bytes)
    }
}
