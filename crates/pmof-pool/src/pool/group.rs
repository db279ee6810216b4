//! Group commit: persists of several threads that meet share a flush.
//!
//! One flush is in flight at a time. Whoever comes meanwhile has posted its writes and joins the batch that gathers. When the flush is
//! done, the batch is closed, and the next flush is posted for all of it: behind the writes of everyone in it, since each
//! joined after posting. A single thread finds no flush in flight and posts its own at once. `tests/shuttle` explores the interleavings.

use std::sync::Arc;

use crate::{
    member::Flush,
    sync::{Condvar, Mutex},
};

/// Shares flushes. `F` is a flush in flight, `R` its outcome.
#[derive(Debug)]
pub(super) struct Group<F, R>(Mutex<State<F, R>>);

#[derive(Debug)]
struct State<F, R> {
    is_in_flight: bool,
    /// Those who have come since the flush in flight was posted, and what theirs is to cover.
    gathering: Option<(Arc<Batch<F, R>>, Flush)>,
}

/// Those who share one flush.
#[derive(Debug)]
struct Batch<F, R> {
    step: Mutex<Step<F, R>>,
    changed: Condvar,
}

#[derive(Debug)]
enum Step<F, R> {
    Gathering,
    /// For the first of the batch that finds it: that one waits for the targets.
    Posted(F),
    InFlight,
    /// `None`: the thread that waited for the targets panicked.
    Done(Option<R>),
}

/// What a member of a batch is to do.
enum Turn<F, R> {
    Finish(F),
    Done(Option<R>),
}

impl<F, R> Default for Group<F, R> {
    fn default() -> Self {
        Self(Mutex::new(State { is_in_flight: false, gathering: None }))
    }
}

impl<F, R: Clone> Group<F, R> {
    /// Makes durable what the caller has posted: by a flush of its own, or by one with others.
    ///
    /// `post` posts a flush, and may be called for a batch that the caller does not belong to; `finish` waits for one.
    pub(super) fn persist(&self, flush: Flush, post: impl Fn(Flush) -> F, finish: impl Fn(F) -> R) -> R {
        let Some(batch) = self.join(flush) else {
            let mut lead = Lead { group: self, batch: None, post: &post, outcome: None };
            return lead.finish(post(flush), finish);
        };
        match batch.wait() {
            Turn::Finish(posted) => {
                let mut lead = Lead { group: self, batch: Some(batch), post: &post, outcome: None };
                lead.finish(posted, finish)
            }
            Turn::Done(Some(outcome)) => outcome,
            Turn::Done(None) => finish(post(flush)),
        }
    }

    /// Whether a flush is in flight, and how many have come since it was posted.
    #[cfg(test)]
    pub(super) fn standing(&self) -> (bool, usize) {
        let state = self.0.lock();
        (state.is_in_flight, state.gathering.as_ref().map_or(0, |(batch, _)| Arc::strong_count(batch) - 1))
    }

    /// Joins the batch that gathers. `None` where no flush is in flight: the caller's is from now on.
    fn join(&self, flush: Flush) -> Option<Arc<Batch<F, R>>> {
        let mut state = self.0.lock();
        if !state.is_in_flight {
            state.is_in_flight = true;
            return None;
        }
        let (batch, all) = state.gathering.get_or_insert_with(|| (Arc::default(), flush));
        *all = all.with(flush);
        Some(Arc::clone(batch))
    }

    /// The batch that has gathered, and what its flush covers. `None`: nobody came, and no flush is in flight any more.
    fn close(&self) -> Option<(Arc<Batch<F, R>>, Flush)> {
        let mut state = self.0.lock();
        state.is_in_flight = state.gathering.is_some();
        state.gathering.take()
    }

    /// Has those who have gathered flush for themselves.
    fn abandon(&self) {
        let mut state = self.0.lock();
        state.is_in_flight = false;
        if let Some((batch, _)) = state.gathering.take() {
            batch.tell(None);
        }
    }
}

impl<F, R> Default for Batch<F, R> {
    fn default() -> Self {
        Self { step: Mutex::new(Step::Gathering), changed: Condvar::new() }
    }
}

impl<F, R: Clone> Batch<F, R> {
    fn wait(&self) -> Turn<F, R> {
        let mut step = self.step.lock();
        loop {
            match &mut *step {
                Step::Gathering | Step::InFlight => self.changed.wait(&mut step),
                Step::Done(outcome) => return Turn::Done(outcome.clone()),
                Step::Posted(_) => {
                    if let Step::Posted(flushing) = std::mem::replace(&mut *step, Step::InFlight) {
                        return Turn::Finish(flushing);
                    }
                }
            }
        }
    }

    /// One of those who wait takes over.
    fn hand(&self, flushing: F) {
        *self.step.lock() = Step::Posted(flushing);
        self.changed.notify_one();
    }

    fn tell(&self, outcome: Option<R>) {
        *self.step.lock() = Step::Done(outcome);
        self.changed.notify_all();
    }
}

/// Whoever waits for the flush in flight. Its end, a panic's too, posts the next flush and tells the batch.
struct Lead<'g, F, R: Clone, P: Fn(Flush) -> F> {
    group: &'g Group<F, R>,
    /// Those who wait for this flush; `None` of one that has no others.
    batch: Option<Arc<Batch<F, R>>>,
    post: &'g P,
    outcome: Option<R>,
}

impl<F, R: Clone, P: Fn(Flush) -> F> Lead<'_, F, R, P> {
    fn finish(&mut self, flushing: F, finish: impl Fn(F) -> R) -> R {
        let outcome = finish(flushing);
        self.outcome = Some(outcome.clone());
        outcome
    }
}

impl<F, R: Clone, P: Fn(Flush) -> F> Drop for Lead<'_, F, R, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.group.abandon();
        } else if let Some((next, flush)) = self.group.close() {
            // First the next flush, which takes longest.
            next.hand((self.post)(flush));
        }
        if let Some(batch) = self.batch.take() {
            batch.tell(self.outcome.take());
        }
    }
}
