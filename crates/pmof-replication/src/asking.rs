//! Questions to several targets at once, on their way to an outcome: openings, creations and looks at pools.
//!
//! A driver runs an [`Asking`]: it carries out each [`Question`], and hands every answer, and the time, to [`step`](Asking::step). The tasks inside wait for
//! nothing else, so that the same answers at the same times lead to the same questions and the same outcome.

use alloc::{boxed::Box, rc::Rc};
use core::{
    fmt,
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

mod action;
mod cause;
mod exchange;
pub mod limits;
mod look;
#[cfg(test)]
pub(crate) mod net;
mod requests;

pub use action::{Action, Answer, CallId, Question, SiteId};
pub use cause::{Cause, Failure, Reason};
pub(crate) use exchange::{Exchange, Patience, Task};
pub(crate) use look::{Looked, look, look_at_promoted, promoted, read_info};
pub use look::{is_promoted, was_promoted};
pub(crate) use requests::{Replied, at_each, done, failure_domain, kept_roster, reply, reply_when_free};

/// Questions to targets, on their way to an outcome `T`.
pub struct Asking<P, F, T> {
    exchange: Rc<Exchange<P, F>>,
    /// `None` once it has ended.
    task: Option<Task<'static, T>>,
}

impl<P, F: Failure, T> Asking<P, F, T> {
    pub(crate) fn new<A: Future<Output = T> + 'static>(task: impl FnOnce(Rc<Exchange<P, F>>) -> A) -> Self {
        let exchange = Rc::default();
        Self { task: Some(Box::pin(task(Rc::clone(&exchange)))), exchange }
    }

    /// Goes on at the time `now`, since any fixed moment, with an answer if one has come. Returns the outcome when there is one; then the questions that are left
    /// are to be carried out, and no further step is to follow.
    ///
    /// An answer that comes twice or late changes nothing, nor does a step before [`wakes_at`](Self::wakes_at).
    ///
    /// # Panics
    /// The clock went back, or the outcome was returned before.
    pub fn step(&mut self, now: Duration, answer: Option<(CallId, Result<Answer, F>)>) -> Option<T> {
        self.exchange.advance(now);
        if let Some((call, answer)) = answer {
            self.exchange.deliver(call, answer);
        }
        let task = self.task.as_mut().expect("no step follows the outcome");
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                self.task = None;
                Some(outcome)
            }
            Poll::Pending => None,
        }
    }

    /// What the driver is to do next.
    pub fn next_question(&mut self) -> Option<Question<P>> {
        self.exchange.next_question()
    }

    /// When the next step is due, if no answer comes before.
    pub fn wakes_at(&self) -> Option<Duration> {
        self.exchange.wakes_at()
    }
}

impl<P, F, T> fmt::Debug for Asking<P, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").field("has_ended", &self.task.is_none()).finish_non_exhaustive()
    }
}
