//! What vouches for work requests on a network that completes them early.
//!
//! Over iWARP a write or a message completes when TCP has taken its bytes. A read completes when the answer is there, which
//! the other side's device gives after all that was posted before the read has arrived. So each batch that reaches the other
//! side's memory ends in a read, of no bytes where the caller posted none, and nothing counts as done before the next read
//! under way is.

use std::collections::VecDeque;

/// Bookkeeping of reads, by the numbers of their work requests.
#[derive(Debug, Default)]
pub(super) struct Confirming {
    /// Of each batch under way that ends in one.
    reads: VecDeque<u64>,
    /// The last work request that this side's device has handed over, as far as it said.
    handed_over: u64,
}

impl Confirming {
    /// A batch was handed over whose last request is a read.
    pub(super) fn posted(&mut self, read: u64) {
        self.reads.push_back(read);
    }

    /// A work request is complete: the one through which all are done, 0 for none.
    pub(super) fn completed(&mut self, id: u64, is_read: bool) -> u64 {
        if is_read {
            while self.reads.front().is_some_and(|read| *read <= id) {
                self.reads.pop_front();
            }
        }
        self.handed_over = self.handed_over.max(id);
        match (self.reads.is_empty(), is_read) {
            (true, _) => self.handed_over,
            (false, true) => id,
            (false, false) => 0,
        }
    }

    /// Forgets everything: the device has stopped.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_read_under_way_what_was_handed_over_is_done() {
        let mut confirming = Confirming::default();
        assert_eq!(confirming.completed(3, false), 3);
        assert_eq!(confirming.completed(4, false), 4);
    }

    #[test]
    fn nothing_overtakes_a_read() {
        let mut confirming = Confirming::default();
        confirming.posted(3);
        confirming.posted(7);
        // Handed over, both of them, before the first answer came.
        assert_eq!(confirming.completed(5, false), 0);
        assert_eq!(confirming.completed(9, false), 0);
        // The first answer vouches for what was posted before it, not for what came after.
        assert_eq!(confirming.completed(3, true), 3);
        assert_eq!(confirming.completed(10, false), 0);
        assert_eq!(confirming.completed(7, true), 10);
        assert_eq!(confirming.completed(11, false), 11);
    }

    #[test]
    fn what_stopped_is_forgotten() {
        let mut confirming = Confirming::default();
        confirming.posted(3);
        confirming.clear();
        assert_eq!(confirming.completed(5, false), 5);
    }
}
