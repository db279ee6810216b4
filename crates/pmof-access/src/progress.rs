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
//! - Flushes that wait for a device leave these threads ([`Flusher`]) for [`BackgroundThreads`]; all who wait for one medium share a fence
//!   ([`SharedFences`](shared_fences::SharedFences)).
//!
//! Two rules keep every sleeper from missing what it waits for. Whoever is about to sleep first says so, then looks for the last time; whoever changes
//! something first changes it, then looks for sleepers. And a thread that stops leading wakes a follower, so that somebody leads while anybody waits.
//! `tests/shuttle` explores the interleavings of [`Sleepers`], [`Calls`], [`BackgroundThreads`] and the shared fences.

mod assistant;
mod assisted;
mod background;
#[cfg(test)]
mod background_tests;
mod backoff;
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
pub use background::BackgroundThreads;
pub(crate) use backoff::Backoff;
pub use backoff::{DEFAULT_SPIN, Waiting};
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
