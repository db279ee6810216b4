//! Questions in flight and the engine's clock: the only things that tasks wait for.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    action::{Action, Answer, CallId, Question, SiteId},
    cause::{Cause, Failure, Reason},
    limits::{GRACE, GRACE_TIMES, START_GRACE},
};

pub(crate) type Answered<F> = Result<Answer, Cause<F>>;

/// A task, until it is done or dropped.
pub(crate) type Task<'t, T> = Pin<Box<dyn Future<Output = T> + 't>>;

/// How long a group of tasks is awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Once so many have counted, the others have the grace.
    pub(crate) enough: usize,
    pub(crate) grace: Duration,
    /// All of them end after this time, however few have counted.
    pub(crate) limit: Option<Duration>,
}

impl Patience {
    /// All are awaited.
    pub(crate) const ENDLESS: Self = Self { enough: usize::MAX, grace: Duration::ZERO, limit: None };

    /// The others are awaited for a grace once `enough` have counted.
    pub(crate) fn once(enough: usize, starts_target: bool) -> Self {
        Self { enough, grace: if starts_target { START_GRACE } else { GRACE }, limit: None }
    }

    pub(crate) fn within(limit: Duration) -> Self {
        Self { limit: Some(limit), ..Self::ENDLESS }
    }
}

/// What the driver and the tasks exchange.
#[derive(Debug)]
pub(crate) struct Exchange<P, F> {
    now: Cell<Duration>,
    /// When a task wants to look at the clock next.
    wakes_at: Cell<Option<Duration>>,
    /// The longest that enough answers have taken.
    took: Cell<Duration>,
    last_call: Cell<u32>,
    last_site: Cell<u32>,
    questions: RefCell<VecDeque<Question<P>>>,
    /// Questions in flight, and their answers.
    calls: RefCell<BTreeMap<CallId, Option<Answered<F>>>>,
}

impl<P, F> Default for Exchange<P, F> {
    fn default() -> Self {
        Self {
            now: Cell::default(),
            wakes_at: Cell::default(),
            took: Cell::default(),
            last_call: Cell::default(),
            last_site: Cell::default(),
            questions: RefCell::default(),
            calls: RefCell::default(),
        }
    }
}

impl<P, F: Failure> Exchange<P, F> {
    /// The clock of a driver never goes back.
    pub(crate) fn advance(&self, now: Duration) {
        assert!(now >= self.now.get(), "the clock went back from {:?} to {now:?}", self.now.get());
        self.now.set(now);
        self.wakes_at.set(None);
    }

    pub(crate) fn now(&self) -> Duration {
        self.now.get()
    }

    /// The time that has passed since an earlier `now`.
    pub(crate) fn since(&self, earlier: Duration) -> Duration {
        self.now().saturating_sub(earlier)
    }

    /// Runs a task whose answers say nothing of how long others may take.
    pub(crate) async fn timed_apart<T>(&self, task: impl Future<Output = T>) -> T {
        let took = self.took.take();
        let outcome = task.await;
        self.took.set(took);
        outcome
    }

    fn note_time(&self, began: Duration) {
        self.took.set(self.took.get().max(self.since(began)));
    }

    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        self.wakes_at.get()
    }

    /// Takes an answer. One that comes twice, or that nothing awaits, changes nothing.
    pub(crate) fn deliver(&self, call: CallId, answer: Result<Answer, F>) {
        if let Some(slot @ None) = self.calls.borrow_mut().get_mut(&call) {
            *slot = Some(answer.map_err(Cause::failed));
        }
    }

    pub(crate) fn next_question(&self) -> Option<Question<P>> {
        self.questions.borrow_mut().pop_front()
    }

    pub(crate) fn fresh_site(&self) -> SiteId {
        self.last_site.set(self.last_site.get() + 1);
        SiteId(self.last_site.get())
    }

    /// Tells the driver something that is not answered.
    pub(crate) fn tell(&self, action: Action<P>) {
        self.put(action);
    }

    /// Asks the driver, and waits for the answer. Nothing is asked before this is awaited.
    pub(crate) async fn ask(&self, action: Action<P>) -> Answered<F> {
        let call = InFlight { call: self.put(action), exchange: self };
        self.calls.borrow_mut().insert(call.call, None);
        poll_fn(|_| {
            let mut calls = self.calls.borrow_mut();
            match calls.get_mut(&call.call).and_then(Option::take) {
                Some(answer) => Poll::Ready(answer),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn put(&self, action: Action<P>) -> CallId {
        let call = CallId(self.last_call.get() + 1);
        self.last_call.set(call.0);
        self.questions.borrow_mut().push_back(Question { call, action });
        call
    }

    pub(crate) async fn sleep(&self, pause: Duration) {
        let until = self.now() + pause;
        poll_fn(|_| self.poll_time(until)).await;
    }

    fn poll_time(&self, until: Duration) -> Poll<()> {
        if self.now() >= until {
            return Poll::Ready(());
        }
        self.wakes_at.set(Some(self.wakes_at.get().map_or(until, |at| at.min(until))));
        Poll::Pending
    }

    /// Runs tasks side by side. `None`: it had not answered when the others were enough, and is dropped.
    pub(crate) async fn together<T>(
        &self,
        tasks: Vec<Task<'_, T>>,
        patience: Patience,
        counts: impl Fn(&T) -> bool,
    ) -> Vec<Option<T>> {
        let began = self.now();
        let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
        let mut answers: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
        let mut until = patience.limit.map(|limit| began + limit);
        let mut is_enough = false;
        poll_fn(|context: &mut Context<'_>| {
            for (task, answer) in tasks.iter_mut().zip(&mut answers) {
                if let Some(Poll::Ready(found)) = task.as_mut().map(|task| task.as_mut().poll(context)) {
                    (*answer, *task) = (Some(found), None);
                }
            }
            if answers.iter().all(Option::is_some) {
                self.note_time(began);
                return Poll::Ready(());
            }
            if !is_enough && answers.iter().flatten().filter(|answer| counts(answer)).count() >= patience.enough {
                is_enough = true;
                self.note_time(began);
                let grace = self.now() + patience.grace.max(self.took.get() * GRACE_TIMES);
                until = Some(until.map_or(grace, |limit| limit.min(grace)));
            }
            until.map_or(Poll::Pending, |until| self.poll_time(until))
        })
        .await;
        answers
    }

    /// The same of answers: one that did not come is an error that says how long it was awaited.
    pub(crate) async fn answers<T>(
        &self,
        tasks: Vec<Task<'_, Result<T, Cause<F>>>>,
        patience: Patience,
        counts: impl Fn(&Result<T, Cause<F>>) -> bool,
    ) -> Vec<Result<T, Cause<F>>> {
        let began = self.now();
        let answers = self.together(tasks, patience, counts).await;
        let silent = || Cause::Reason(Reason::Silent { waited: self.since(began) });
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(silent()))).collect()
    }
}

/// A question that is answered or not awaited any more.
struct InFlight<'e, P, F> {
    call: CallId,
    exchange: &'e Exchange<P, F>,
}

impl<P, F> Drop for InFlight<'_, P, F> {
    fn drop(&mut self) {
        self.exchange.calls.borrow_mut().remove(&self.call);
    }
}
