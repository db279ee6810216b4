//! Opening and making a pool: every target is asked at once, and the answers decide which replicas belong together.
//!
//! A driver runs an [`Opening`]: it carries out each [`Question`], and hands every answer, and the time, to [`step`](Opening::step). The tasks inside wait for
//! nothing else, so that the same answers at the same times lead to the same questions and the same outcome.

use alloc::{boxed::Box, rc::Rc, sync::Arc, vec::Vec};
use core::{
    fmt,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pmof_control::{OpenFor, USER_FLAGS_BYTES};
use pmof_terms::Durability;
use uuid::Uuid;

use crate::{keeper::KeptBy, place::Place};

mod action;
mod ask;
mod create;
mod exchange;
mod heard;
mod judge;
pub mod limits;
mod others;
mod outcome;
mod outsiders;
mod rules;
#[cfg(test)]
mod tests;

pub use action::{Action, Answer, CallId, Question, SiteId};
pub use heard::{is_promoted, was_promoted};
pub use judge::one_twice;
pub use outcome::{
    Cause, Failure, FoundPool, Identity, Left, MadePool, OpenedReplica, OpenedReply, Outcome, Reason, Refusal,
    UnreadReplica,
};
pub use rules::{Rules, ShippedRules};

use ask::Run;
use exchange::{Exchange, Task};

/// What an opening asks of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The level that each replica must give.
    pub require: Durability,
    /// Go on with so many replicas in sync, even where these are fewer than is safe.
    pub min_replicas: Option<usize>,
    /// Take the pool from a writer that has been silent for so long. For writing only.
    pub take_over: Option<Duration>,
    /// Replicas that must have what is acknowledged.
    pub least_replicas: usize,
    /// Failure domains that these must be in.
    pub least_domains: usize,
    /// Await each replica, also when enough others have answered.
    pub is_patient: bool,
    /// What decides which epoch is in force.
    pub keeper: KeptBy,
}

/// A pool to be made.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// Its identity.
    pub uuid: Uuid,
    /// A name for its first epoch.
    pub epoch: Uuid,
    /// Bytes of user data.
    pub size_bytes: u64,
    /// What its maker says of its contents.
    pub user_flags: [u8; USER_FLAGS_BYTES],
    /// It gets its name when it is closed.
    pub publish_on_close: bool,
}

/// The opening or the creation of a pool, on its way to an [`Outcome`].
pub struct Opening<P, F, T> {
    exchange: Rc<Exchange<P, F>>,
    /// `None` once it has ended.
    task: Option<Task<'static, Outcome<P, F, T>>>,
}

impl<P: Place + 'static, F: Failure + 'static> Opening<P, F, FoundPool> {
    /// Opens the replicas at `places` that belong together, or releases all of them.
    pub fn open(terms: Terms, access: OpenFor, places: Vec<Arc<P>>, rules: impl Rules + 'static) -> Self {
        let terms = Terms { take_over: terms.take_over.filter(|_| access == OpenFor::Write), ..terms };
        Self::run(move |exchange| Box::pin(Run::new(exchange, terms, access, places, rules).open()))
    }
}

impl<P: Place + 'static, F: Failure + 'static> Opening<P, F, MadePool> {
    /// Makes a replica at each of `places`, or none.
    pub fn create(terms: Terms, creation: Creation, places: Vec<Arc<P>>) -> Self {
        let terms = Terms { take_over: None, min_replicas: None, is_patient: true, ..terms };
        Self::run(move |exchange| {
            Box::pin(Run::new(exchange, terms, OpenFor::Write, places, ShippedRules).create(creation))
        })
    }
}

impl<P, F: Failure, T> Opening<P, F, T> {
    fn run(task: impl FnOnce(Rc<Exchange<P, F>>) -> Task<'static, Outcome<P, F, T>>) -> Self {
        let exchange = Rc::default();
        Self { task: Some(task(Rc::clone(&exchange))), exchange }
    }

    /// Goes on at the time `now`, since any fixed moment, with an answer if one has come. Returns the outcome when there is one; then the questions that are left
    /// are to be carried out, and no further step is to follow.
    ///
    /// An answer that comes twice or late changes nothing, nor does a step before [`wakes_at`](Self::wakes_at).
    ///
    /// # Panics
    /// The clock went back, or the outcome was returned before.
    pub fn step(&mut self, now: Duration, answer: Option<(CallId, Result<Answer, F>)>) -> Option<Outcome<P, F, T>> {
        self.exchange.advance(now);
        if let Some((call, answer)) = answer {
            self.exchange.deliver(call, answer);
        }
        let task = self.task.as_mut().expect("an opening takes no step behind its outcome");
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

impl<P, F, T> fmt::Debug for Opening<P, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("has_ended", &self.task.is_none()).finish_non_exhaustive()
    }
}
