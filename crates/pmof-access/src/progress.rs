//! Progress: who moves the bytes of a queue's connections, and how a thread waits when there is nothing to move.
//!
//! What is driven is a [`Driver`](crate::driver::Driver): one turn of it moves what can be moved without waiting. Here is what goes on
//! between the turns. Assistants and flushers know a driver by what they ask of it, [`Assisted`] and [`FlushOwner`].
//!
//! - A thread that waits backs off ([`Backoff`]): it spins, then yields the processor in each turn, then parks.
//! - Threads that park on one driver share it ([`Sleepers`]): one of them, the leader, sleeps in the kernel ([`Poller`]) until bytes may move;
//!   the others sleep until there is news.
//! - A queue may have a thread of its own ([`ProgressThread`]), which drives always; or be assisted by a thread that queues of its peer share
//!   ([`Assistants`]), which drives only while no caller does, as it learns from [`Callers`].
//! - Whoever waits for a descriptor instead sees a [`ReadySignal`].
//! - Flushes that wait for a device leave these threads ([`Flusher`]) for [`Background`] threads; all who wait for one medium share a fence
//!   ([`SharedFences`](shared_fences::SharedFences)).
//!
//! Two rules keep every sleeper from missing what it waits for. Whoever is about to sleep first says so, then looks for the last time; whoever changes
//! something first changes it, then looks for sleepers. And a thread that stops leading wakes a follower, so that somebody leads while anybody waits.
//! `tests/shuttle` explores the interleavings of [`Sleepers`], [`Calls`], [`Background`] and the shared fences.

use std::time::Duration;

use crate::clock::Clock;

mod assistant;
mod assisted;
mod background;
#[cfg(test)]
mod background_tests;
mod callers;
mod calls;
mod flusher;
mod leader;
mod poller;
mod rounds;
mod shared_fences;
mod signal;
mod sleepers;
mod thread;
mod waker;

pub(crate) use assistant::{Assistance, Assistants};
pub(crate) use assisted::{Assisted, Registration};
pub use background::Background;
pub(crate) use callers::Callers;
use calls::Calls;
pub(crate) use flusher::{FlushOwner, FlushRoute, Flusher, InlineFlush};
pub(crate) use leader::Leader;
pub(crate) use poller::{Interest, Poller};
pub use signal::ReadyFlag;
pub(crate) use signal::ReadySignal;
pub(crate) use sleepers::Sleepers;
pub(crate) use thread::ProgressThread;
pub(crate) use waker::{SleepSocket, Waker, Wakers, sleep_without_waker};

/// Spinning before parking, by default: about what a persist over loopback takes, so that a single operation is seldom
/// slowed by going to sleep, and an idle queue costs nothing.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// Spinning before the processor is yielded to others in each turn: what an exchange over loopback takes, which they must not delay.
const YIELD_AFTER: Duration = Duration::from_micros(10);

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

/// Who moves the bytes of a queue's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Whoever polls or waits on the queue. Remote operations on this side's regions are served only then.
    Caller,
    /// A thread of the queue: remote operations are served whatever the application does.
    Thread,
    /// Whoever polls or waits on the queue; and, after a millisecond in which nobody did, a thread that the peer's queues share. Where callers
    /// waited, or all connections are devices', that thread comes as late as after twice the time that they were at it, from 10 to
    /// 80 milliseconds. Polls that find nothing for ten microseconds without a break yield the processor, except where all
    /// connections are devices'. That thread alone once the queue's descriptor was asked for. As
    /// quick as [`Caller`](Self::Caller) for a caller who polls, and as reliable as [`Thread`](Self::Thread) for the other side.
    Assisted,
    /// For a queue of receives alone: whoever polls or waits on it, and, once its descriptor was asked for, the threads of the queues
    /// that its connections' operations come to, which are to have one. So the descriptor shows receives and nothing else, where
    /// that of a queue that its caller drives shows whatever arrives.
    OfOperations,
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
