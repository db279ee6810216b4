//! Group commit: persists of several threads that meet share a flush.
//!
//! One flush is in flight at a time. Whoever comes meanwhile has posted its writes and joins the batch that gathers. When the flush is
//! done, its threads return, and then one of the batch posts the next flush for all who have joined by then: behind the writes of everyone,
//! since each joined after posting. First it yields the CPU as long as that lets others join, so threads that persist
//! again at once share the next flush instead of the one after it. A single thread finds no flush in flight and posts its own
//! at once. `tests/shuttle` explores the interleavings.

use std::sync::Arc;

use crate::{
    member::Flush,
    sync::{Condvar, Mutex, yield_now},
};

/// Shares flushes. `R` is the outcome of one.
#[derive(Debug)]
pub(super) struct Group<R>(Mutex<State<R>>);

#[derive(Debug)]
struct State<R> {
    /// Or about to be posted by one of those who gather.
    is_in_flight: bool,
    /// Those who have come since the flush in flight was posted, and what theirs is to cover.
    gathering: Option<(Arc<Batch<R>>, Flush)>,
}

/// Those who share one flush.
#[derive(Debug)]
struct Batch<R> {
    step: Mutex<Step<R>>,
    changed: Condvar,
}

#[derive(Debug)]
enum Step<R> {
    Gathering,
    /// For the first of the batch that finds it: that one posts the flush, and waits for the targets.
    Due,
    InFlight,
    /// `None`: the thread that waited for the targets panicked.
    Done(Option<R>),
}

/// What a member of a batch is to do.
enum Turn<R> {
    Lead,
    Done(Option<R>),
}

impl<R> Default for Group<R> {
    fn default() -> Self {
        Self(Mutex::new(State { is_in_flight: false, gathering: None }))
    }
}

impl<R: Clone> Group<R> {
    /// Makes durable what the caller has posted: by a flush of its own, or by one with others.
    ///
    /// `post` posts a flush, and `finish` waits for it.
    pub(super) fn persist<F>(&self, flush: Flush, post: impl Fn(Flush) -> F, finish: impl Fn(F) -> R) -> R {
        let Some(batch) = self.join(flush) else {
            let lead = Lead { group: self, batch: None, outcome: None };
            return lead.persist(flush, post, finish);
        };
        match batch.wait() {
            Turn::Lead => {
                gather(&batch);
                let lead = Lead { group: self, batch: Some(batch), outcome: None };
                lead.persist(self.close(flush), post, finish)
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
    fn join(&self, flush: Flush) -> Option<Arc<Batch<R>>> {
        let mut state = self.0.lock();
        if !state.is_in_flight {
            state.is_in_flight = true;
            return None;
        }
        let (batch, all) = state.gathering.get_or_insert_with(|| (Arc::default(), flush));
        *all = all.with(flush);
        Some(Arc::clone(batch))
    }

    /// Of the one that leads the batch that gathers: nobody joins it any more. What its flush covers, with the leader's own.
    fn close(&self, own: Flush) -> Flush {
        self.0.lock().gathering.take().map_or(own, |(_, all)| all.with(own))
    }

    /// The batch that has gathered, whose flush is due. `None`: nobody came, and no flush is in flight any more.
    fn next(&self) -> Option<Arc<Batch<R>>> {
        let mut state = self.0.lock();
        state.is_in_flight = state.gathering.is_some();
        state.gathering.as_ref().map(|(batch, _)| Arc::clone(batch))
    }

    /// After a panic: has those who have gathered flush for themselves, so that no flush is due.
    fn abandon(&self) -> Option<Arc<Batch<R>>> {
        let mut state = self.0.lock();
        state.is_in_flight = false;
        if let Some((batch, _)) = state.gathering.take() {
            batch.tell(None);
        }
        None
    }
}

/// Lets those join who are about to: as long as others run instead of this thread, and do.
fn gather<R>(batch: &Arc<Batch<R>>) {
    let mut joined = Arc::strong_count(batch);
    loop {
        yield_now();
        let joined_now = Arc::strong_count(batch);
        if joined_now <= joined {
            return;
        }
        joined = joined_now;
    }
}

impl<R> Default for Batch<R> {
    fn default() -> Self {
        Self { step: Mutex::new(Step::Gathering), changed: Condvar::new() }
    }
}

impl<R: Clone> Batch<R> {
    fn wait(&self) -> Turn<R> {
        let mut step = self.step.lock();
        loop {
            match &*step {
                Step::Gathering | Step::InFlight => self.changed.wait(&mut step),
                Step::Done(outcome) => return Turn::Done(outcome.clone()),
                Step::Due => {
                    *step = Step::InFlight;
                    return Turn::Lead;
                }
            }
        }
    }

    /// One of those who wait takes over.
    fn hand(&self) {
        *self.step.lock() = Step::Due;
        self.changed.notify_one();
    }

    fn tell(&self, outcome: Option<R>) {
        *self.step.lock() = Step::Done(outcome);
        self.changed.notify_all();
    }
}

/// Whoever posts a flush and waits for it. Its end, a panic's too, tells the batch, and has the next flush posted.
struct Lead<'g, R: Clone> {
    group: &'g Group<R>,
    /// Those who wait for this flush; `None` of one that has no others.
    batch: Option<Arc<Batch<R>>>,
    outcome: Option<R>,
}

impl<R: Clone> Lead<'_, R> {
    fn persist<F>(mut self, flush: Flush, post: impl Fn(Flush) -> F, finish: impl Fn(F) -> R) -> R {
        let outcome = finish(post(flush));
        self.outcome = Some(outcome.clone());
        outcome
    }
}

impl<R: Clone> Drop for Lead<'_, R> {
    fn drop(&mut self) {
        let next = if self.outcome.is_some() { self.group.next() } else { self.group.abandon() };
        if let Some(batch) = &self.batch {
            batch.tell(self.outcome.clone());
        }
        // Behind them: who persists again at once joins it.
        if let Some(next) = next {
            next.hand();
        }
    }
}
