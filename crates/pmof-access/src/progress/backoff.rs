//! How a thread waits that has nothing to move: it spins, then yields the processor in each turn, then parks.

use std::time::Duration;

use crate::clock::Clock;

/// Spinning before parking, by default: about what a persist over loopback takes, so that a single operation is seldom
/// slowed by going to sleep, and an idle queue costs nothing.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// Spinning before the processor is yielded to others in each turn: what an exchange over loopback takes, which they must not delay.
pub(super) const YIELD_AFTER: Duration = Duration::from_micros(10);

/// How long a wait spins before it parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Spins so long after the last byte moved, then sleeps until the kernel reports something.
    Adaptive {
        /// Time without any progress before sleeping.
        spin: Duration,
    },
    /// Never sleeps: the lowest latency for a core of its own.
    BusyPoll,
}

/// What a thread does next when a turn has moved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Another turn at once.
    Spin,
    /// Another turn as soon as others have had the processor.
    Yield,
    /// A sleep until something may have changed.
    Park,
}

/// How long a waiting thread has seen nothing move, and what it does then.
#[derive(Debug)]
pub(crate) struct Backoff {
    waiting: Waiting,
    moved_at: Duration,
}

impl Backoff {
    /// For a thread that has seen nothing move since `moved_at`, by the clock of its driver.
    pub(crate) fn since(moved_at: Duration, waiting: Waiting) -> Self {
        Self { waiting, moved_at }
    }

    /// Begins anew: something moved `now`.
    pub(crate) fn reset(&mut self, now: Duration) {
        self.moved_at = now;
    }

    /// What to do `now`. `is_flushing`: flushes of this driver are in flight on other threads.
    pub(crate) fn next(&self, now: Duration, clock: &Clock, is_flushing: bool) -> Pause {
        let idle = now.saturating_sub(self.moved_at);
        match (clock, self.waiting) {
            // Virtual time goes on only while all sleep.
            (Clock::Virtual(_), _) => Pause::Park,
            (_, Waiting::Adaptive { spin }) if idle >= spin => Pause::Park,
            // A device takes longer than a spin, and the thread that waits for it may need this very processor.
            (_, Waiting::Adaptive { .. }) if is_flushing => Pause::Park,
            _ if is_flushing => Pause::Yield,
            // Two that share a processor would each wait until the other goes to sleep.
            (_, Waiting::Adaptive { .. }) if idle >= YIELD_AFTER => Pause::Yield,
            _ => Pause::Spin,
        }
    }
}

impl Pause {
    /// Spins or yields. True if the thread is to park instead.
    pub(crate) fn is_park(self) -> bool {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
            Self::Park => return true,
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimNetwork;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn pauses(backoff: &Backoff, at: &[u64], is_flushing: bool) -> Vec<Pause> {
        at.iter().map(|at| backoff.next(us(*at), &Clock::real(), is_flushing)).collect()
    }

    #[test]
    fn a_wait_spins_then_yields_then_parks() {
        use Pause::{Park, Spin, Yield};
        let mut backoff = Backoff::since(us(100), Waiting::Adaptive { spin: us(50) });
        assert_eq!(pauses(&backoff, &[100, 109, 110, 149, 150], false), [Spin, Spin, Yield, Yield, Park]);
        // A flush elsewhere may need the processor, and takes longer than the spin.
        assert_eq!(pauses(&backoff, &[100, 149, 150], true), [Park; 3]);
        backoff.reset(us(150));
        assert_eq!(pauses(&backoff, &[150, 160, 200], false), [Spin, Yield, Park]);
        // The clock of another processor may be a little behind.
        assert_eq!(pauses(&backoff, &[149], false), [Spin]);
    }

    #[test]
    fn busy_polling_never_parks_but_in_virtual_time() {
        let busy = Backoff::since(us(0), Waiting::BusyPoll);
        assert_eq!(pauses(&busy, &[0, 10, 1_000_000], false), [Pause::Spin; 3]);
        assert_eq!(pauses(&busy, &[0, 10], true), [Pause::Yield; 2]);
        let virtual_clock = Clock::Virtual(SimNetwork::new());
        assert_eq!(busy.next(us(0), &virtual_clock, false), Pause::Park);
        let no_spin = Backoff::since(us(5), Waiting::Adaptive { spin: Duration::ZERO });
        assert_eq!(pauses(&no_spin, &[5, 6], true), [Pause::Park; 2]);
    }
}
