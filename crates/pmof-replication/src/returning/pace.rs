//! How fast a replica that returns is copied to: writers have their share meanwhile.

use core::time::Duration;

use crate::catch_up::{CatchUp, Limit};

#[cfg(test)]
mod tests;

/// How a limit of bytes a second is kept: so many windows a second, unless they would be smaller than [`LEAST_BURST_BYTES`]. What is copied at once
/// is followed by no long pause, in which nothing would notice that the replica is lost.
const BURSTS_A_SECOND: u64 = 8;
const LEAST_BURST_BYTES: u64 = 64 << 10;

/// By how much a window is smaller while others write: their writes and reads wait behind one on the same connections.
const YIELDING: u64 = 4;

/// The longest pause after a window, where no limit asks for one.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The pace of one copy.
pub(super) struct Pace<'c> {
    bytes_per_second: Option<u64>,
    catch_up: &'c CatchUp,
    began: Duration,
    /// The end of the last pause.
    rested: Duration,
    /// Others wrote between the last two windows.
    is_written: bool,
}

impl<'c> Pace<'c> {
    pub(super) fn new(bytes_per_second: Option<u64>, catch_up: &'c CatchUp, now: Duration) -> Self {
        Self { bytes_per_second, catch_up, began: now, rested: now, is_written: catch_up.was_written() }
    }

    /// The limit of the next window.
    pub(super) fn window(&self, limit: Limit) -> Limit {
        let bytes = match self.bytes_per_second {
            Some(bytes) => limit.bytes.min((bytes / BURSTS_A_SECOND).max(LEAST_BURST_BYTES)),
            None if self.is_written => limit.bytes / YIELDING,
            None => limit.bytes,
        };
        Limit { bytes, ..limit }
    }

    /// The pause after a window: what a limit of bytes a second asks for; without one, as long as the window took if others wrote meanwhile.
    pub(super) fn pause(&mut self, copied_bytes: u64, now: Duration) -> Duration {
        self.is_written = self.catch_up.was_written();
        match self.bytes_per_second {
            Some(limit) => {
                let due = u128::from(copied_bytes) * NANOS_PER_SECOND / u128::from(limit.max(1));
                let due = Duration::from_nanos(u64::try_from(due).unwrap_or(u64::MAX));
                due.saturating_sub(now.saturating_sub(self.began))
            }
            None if self.is_written => now.saturating_sub(self.rested).min(LONGEST_PAUSE),
            None => Duration::ZERO,
        }
    }

    /// The pause is over.
    pub(super) fn go_on(&mut self, now: Duration) {
        self.rested = now;
    }
}
