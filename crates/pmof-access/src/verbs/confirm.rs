//! What vouches for work requests on a network that completes them early.
//!
//! Over iWARP a write or a message completes when TCP has taken its bytes. A read completes when the answer is there, which
//! the other side's device gives after all that was posted before the read has arrived. So each batch that reaches the other
//! side's memory ends in a read, and nothing counts as done before the read behind it is. Where the caller posted none, it is
//! one of 8 bytes that the other side keeps for that, and names in its greeting. (A read of no bytes would do by RFC 5040;
//! soft-iWARP of Linux 6.12 answers one that it has to queue with as many bytes as it sent last.)

use std::collections::VecDeque;

use pmof_verbs::RemoteAddress;

/// How many bytes are read.
pub(super) const ANSWER_BYTES: u64 = 8;

/// Bookkeeping of reads, by the numbers of their work requests.
#[derive(Debug, Default)]
pub(super) struct Confirming {
    /// Of each batch under way that ends in one.
    reads: VecDeque<u64>,
    /// The last work request that this side's device has handed over, as far as it said.
    handed_over: u64,
    /// Messages were posted after the last read.
    pub(super) has_unconfirmed: bool,
    /// What the other side has for reading, once it is known.
    pub(super) place: Option<RemoteAddress>,
}

impl Confirming {
    /// A batch was handed over with this last request.
    pub(super) fn posted(&mut self, last: u64, is_read: bool) {
        self.has_unconfirmed = !is_read;
        if is_read {
            self.reads.push_back(last);
        }
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
        confirming.posted(3, true);
        confirming.posted(7, true);
        assert!(!confirming.has_unconfirmed);
        confirming.posted(9, false);
        assert!(confirming.has_unconfirmed);
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
        confirming.posted(3, true);
        confirming.clear();
        assert_eq!(confirming.completed(5, false), 5);
    }
}
