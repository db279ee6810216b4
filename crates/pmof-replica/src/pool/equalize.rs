//! Making the replicas of a pool equal after an opening that was not closed in order.

use std::{ops::Range, sync::Arc};

use super::{
    Equalized, Flushings, Open,
    compare::{BLOCK_BYTES, WINDOW_BYTES, digests_of, lost},
};
use crate::{
    PoolError,
    member::{Atomicity, Flush, FlushLevel, Member, Written},
};

/// Ranges that are flushed one by one, at most.
const FLUSHED_RANGES_MAX: usize = 64;

impl Open {
    /// Copies what differs in these ranges from the replica at position `source` to the others, and makes all of them durable.
    pub(super) fn equalize(&self, source: usize, ranges: &[Range<u64>]) -> Result<Equalized, PoolError> {
        let mut copied_bytes = 0;
        let windows = |range: &Range<u64>| {
            let end = range.end;
            (range.start..end).step_by(WINDOW_BYTES as usize).map(move |at| at..(at + WINDOW_BYTES).min(end))
        };
        for window in ranges.iter().flat_map(windows) {
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
        }
        // Also where nothing was copied: what is the same on all may be durable on some.
        self.flush_ranges(ranges);
        // Not before: which one was the source must be known as long as they differ.
        if let Some(epochs) = &self.epochs {
            epochs.tell_mark();
        }
        let (uuid, replicas) = (self.facts.uuid, self.in_use().count());
        let compared_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        log::info!(
            "pool {uuid} was not closed in order: its {replicas} replicas are equal after comparing {compared_bytes} and copying {copied_bytes} bytes"
        );
        Ok(Equalized { compared_bytes, copied_bytes })
    }

    /// Makes these ranges as durable as each replica can, whoever wrote them.
    fn flush_ranges(&self, ranges: &[Range<u64>]) {
        if ranges.len() > FLUSHED_RANGES_MAX {
            return self.flush_everything(false);
        }
        let in_use: Vec<_> = self.in_use().collect();
        for range in ranges {
            let mut written = Written::default();
            written.add(Atomicity::Relaxed, (range.start, range.end));
            let start = |member: &&Arc<dyn Member>| member.start_flush(Flush::Written(written), FlushLevel::Strongest);
            let mut flushing: Flushings = in_use.iter().map(start).collect();
            for (member, flushing) in in_use.iter().zip(&mut flushing) {
                // A failure is kept by the member.
                let _ = member.finish_flush(flushing);
            }
        }
    }
}
