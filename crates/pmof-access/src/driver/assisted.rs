//! What a thread goes by that drives while nobody else does.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use crate::queue::YIELD_AFTER;

/// What the thread of an assisted queue goes by.
#[derive(Debug, Default)]
pub(crate) struct Assisted {
    /// Counts what callers did; a lost count only keeps the thread asleep for a moment more.
    turns: AtomicU64,
    /// Callers that wait, and so drive.
    waiting: AtomicUsize,
    /// Since when polls have found nothing without a break, and when the last one was, in nanoseconds of the clock.
    idle_since: AtomicU64,
    polled_at: AtomicU64,
}

/// A longer time between two polls is one in which the caller does something else.
const BREAK: Duration = Duration::from_micros(20);

impl Assisted {
    /// What changes when a caller drives. `None` while one waits.
    pub(crate) fn seen(&self) -> Option<u64> {
        (self.waiting.load(Ordering::SeqCst) == 0).then(|| self.turns.load(Ordering::Relaxed))
    }

    /// Until it is dropped a caller waits.
    pub(crate) fn wait(&self) -> impl Drop {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        WaitingCaller(self)
    }

    /// Notes a poll. True if it and those before it have found nothing for so long that others are to have the processor.
    pub(crate) fn has_polled_idle(&self, now: Duration, found: bool) -> bool {
        let now = now.as_nanos() as u64;
        let has_paused = now.saturating_sub(self.polled_at.swap(now, Ordering::Relaxed)) > BREAK.as_nanos() as u64;
        if found || has_paused {
            self.idle_since.store(now, Ordering::Relaxed);
            return false;
        }
        now.saturating_sub(self.idle_since.load(Ordering::Relaxed)) >= YIELD_AFTER.as_nanos() as u64
    }

    pub(crate) fn note_turn(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

struct WaitingCaller<'a>(&'a Assisted);

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.note_turn();
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_polls_are_those_without_a_break_and_without_an_outcome() {
        let assisted = Assisted::default();
        let poll = |micros, found| assisted.has_polled_idle(Duration::from_micros(micros), found);
        let idle = |micros| poll(micros, false);
        assert!(!idle(1000) && !idle(1005) && !idle(1009));
        assert!(idle(1010) && idle(1015));
        // What is found begins it anew, and so does a break.
        assert!(!poll(1016, true) && !idle(1020) && idle(1026));
        assert!(!idle(1050) && !idle(1059) && idle(1060));
    }
}
