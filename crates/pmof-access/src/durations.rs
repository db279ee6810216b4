//! How long something took, counted in classes.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The shortest class ends at 1 us, each further one at twice the one before it, and the last but one at 16.8 s.
const CLASSES: usize = 25;

/// Counts durations from any thread.
#[derive(Debug, Default)]
pub struct DurationCounters {
    /// One more, for what took longer than any class.
    counts: [AtomicU64; CLASSES + 1],
    total_ns: AtomicU64,
    failures: AtomicU64,
}

/// Durations that were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurationCounts {
    /// How many took at most so long, and longer than the class before; those that took longer than all come last, with no limit.
    pub classes: Vec<(Option<Duration>, u64)>,
    /// All of them together.
    pub total: Duration,
    /// How many there were.
    pub count: u64,
    /// How many of them failed.
    pub failures: u64,
}

impl DurationCounters {
    /// Something took so long, and went well or not.
    pub fn add(&self, took: Duration, is_success: bool) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let class = (0..CLASSES).find(|class| ns <= limit_ns(*class)).unwrap_or(CLASSES);
        self.counts[class].fetch_add(1, Relaxed);
        self.total_ns.fetch_add(ns, Relaxed);
        self.failures.fetch_add(u64::from(!is_success), Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> DurationCounts {
        let limit = |class| (class < CLASSES).then(|| Duration::from_nanos(limit_ns(class)));
        let classes: Vec<_> =
            self.counts.iter().enumerate().map(|(class, count)| (limit(class), count.load(Relaxed))).collect();
        DurationCounts {
            count: classes.iter().map(|(_, count)| count).sum(),
            classes,
            total: Duration::from_nanos(self.total_ns.load(Relaxed)),
            failures: self.failures.load(Relaxed),
        }
    }
}

fn limit_ns(class: usize) -> u64 {
    1000 << class
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_class_that_it_does_not_exceed() {
        let counters = DurationCounters::default();
        for us in [0, 1, 2, 3, 16_777_216, 16_777_217] {
            counters.add(Duration::from_micros(us), us != 3);
        }
        let counts = counters.counts();
        let filled: Vec<_> = counts.classes.iter().filter(|(_, count)| *count > 0).copied().collect();
        let us = |us| Some(Duration::from_micros(us));
        assert_eq!(filled, [(us(1), 2), (us(2), 1), (us(4), 1), (us(16_777_216), 1), (None, 1)]);
        assert_eq!((counts.count, counts.failures), (6, 1));
        assert_eq!(counts.total, Duration::from_micros(2 * 16_777_216 + 7));
    }
}
