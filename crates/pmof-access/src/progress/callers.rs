//! What callers do on an assisted queue, and when its thread steps in.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use super::backoff::YIELD_AFTER;

/// Time without a caller's turn after which the thread of an assisted queue drives.
const ASSIST_AFTER: Duration = Duration::from_millis(1);

/// How soon the thread looks again while callers drive, where that may go on for long or nobody else waits for it, and how soon
/// at last when they go on driving: each look costs them a change of threads, if there is no other processor.
const LOOK_AFTER: Duration = Duration::from_millis(5);
const LOOK_AFTER_AT_LAST: Duration = Duration::from_millis(40);

/// What callers did, for the queue's thread to see.
#[derive(Debug, Default)]
pub(crate) struct Callers {
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

impl Callers {
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

struct WaitingCaller<'a>(&'a Callers);

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.note_turn();
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The looks of the thread of an assisted queue.
#[derive(Debug)]
pub(crate) struct Watch {
    seen: Option<u64>,
    of_devices: bool,
    /// How soon it looks next.
    pub(crate) look_after: Duration,
}

impl Watch {
    /// Begins with what callers have done so far.
    pub(crate) fn new(callers: &Callers) -> Self {
        Self { seen: callers.seen(), of_devices: false, look_after: ASSIST_AFTER }
    }

    /// Looks at what callers have done. True if none has driven since the last look, and none waits.
    ///
    /// `has_only_devices`: whether every connection is a device's, if that is known just now.
    pub(crate) fn look(&mut self, callers: &Callers, has_only_devices: Option<bool>) -> bool {
        let (seen, last) = (callers.seen(), self.look_after);
        let is_idle = seen.is_some() && seen == self.seen;
        self.seen = seen;
        // A caller who waits drives, often for long. What the other side does through devices needs no driving.
        self.of_devices = has_only_devices.unwrap_or(self.of_devices);
        let may_be_late = seen.is_none() || (!is_idle && self.of_devices);
        self.look_after = ASSIST_AFTER;
        if may_be_late {
            self.look_after = (2 * last).clamp(LOOK_AFTER, LOOK_AFTER_AT_LAST);
        }
        is_idle
    }

    /// True if a caller has driven since the last look, or waits.
    pub(crate) fn is_back(&self, callers: &Callers) -> bool {
        callers.seen() != self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_polls_are_those_without_a_break_and_without_an_outcome() {
        let callers = Callers::default();
        let poll = |micros, found| callers.has_polled_idle(Duration::from_micros(micros), found);
        let idle = |micros| poll(micros, false);
        assert!(!idle(1000) && !idle(1005) && !idle(1009));
        assert!(idle(1010) && idle(1015));
        // What is found begins it anew, and so does a break.
        assert!(!poll(1016, true) && !idle(1020) && idle(1026));
        assert!(!idle(1050) && !idle(1059) && idle(1060));
    }
    #[test]
    fn the_thread_steps_in_where_nobody_drives_and_looks_seldom_where_callers_wait() {
        let callers = Callers::default();
        let mut watch = Watch::new(&callers);
        assert!(watch.look(&callers, Some(false)), "nobody drove");
        callers.note_turn();
        assert!(watch.is_back(&callers));
        assert!(!watch.look(&callers, Some(false)) && !watch.is_back(&callers));
        assert_eq!(watch.look_after, ASSIST_AFTER, "who polls over sockets may stop at any time");
        let waiting = callers.wait();
        for look_ms in [5, 10, 20, 40, 40] {
            assert!(!watch.look(&callers, None));
            assert_eq!(watch.look_after, Duration::from_millis(look_ms));
        }
        drop(waiting);
        assert!(!watch.look(&callers, Some(true)), "it drove until now");
        assert_eq!(watch.look_after, LOOK_AFTER_AT_LAST, "devices need no driving");
        assert!(watch.look(&callers, None));
        assert_eq!(watch.look_after, ASSIST_AFTER);
    }
}
