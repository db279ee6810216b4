//! How fast a replica that comes back is copied to: those who write meanwhile have their share.

use std::time::{Duration, Instant};

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

/// The pace of one copy.
pub(super) struct Pace<'c> {
    bytes_per_second: Option<u64>,
    catch_up: &'c CatchUp,
    began: Instant,
    /// The end of the last pause.
    rested: Instant,
    /// Others wrote between the last two windows.
    is_written: bool,
}

impl<'c> Pace<'c> {
    pub(super) fn new(bytes_per_second: Option<u64>, catch_up: &'c CatchUp) -> Self {
        let now = Instant::now();
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
    pub(super) fn pause(&mut self, copied_bytes: u64) -> Duration {
        self.is_written = self.catch_up.was_written();
        match self.bytes_per_second {
            Some(limit) => {
                let due = Duration::from_secs_f64(copied_bytes as f64 / limit.max(1) as f64);
                due.saturating_sub(self.began.elapsed())
            }
            None if self.is_written => self.rested.elapsed().min(LONGEST_PAUSE),
            None => Duration::ZERO,
        }
    }

    /// The pause is over.
    pub(super) fn go_on(&mut self) {
        self.rested = Instant::now();
    }
}
