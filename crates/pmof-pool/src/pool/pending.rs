//! A flush in flight.

use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, OnceLock, mpsc},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_replication::posting::{
    Persist as _,
    patience::{self, Patience},
};

use super::{Flushings, Open, Pool, epochs::done};
use crate::{PoolError, Receipt};

/// A flush in flight, of all replicas of a pool. It is waited for by [`wait`](Self::wait), by [`poll`](Self::poll), or as a future on any
/// runtime. Dropped, the flush goes on, and nobody is told how it ended.
///
/// As a future it needs no runtime of its own: the pool starts one thread at the first, which waits for all of them.
#[must_use = "nothing is known to be durable before it was waited for"]
#[derive(Debug)]
pub struct Pending {
    pool: Pool,
    stage: Stage,
    /// The lane had written something.
    has_written: bool,
    /// How long it waits for replicas that are slower than others.
    patience: Option<Patience>,
}

#[derive(Debug)]
enum Stage {
    Posted(Arc<Open>, Flushings),
    Failed(PoolError),
    /// The pool's thread waits for it.
    Handed(Arc<Slot>),
    Done,
}

/// Where the pool's thread leaves the outcome of a future.
#[derive(Debug, Default)]
struct Slot(Mutex<Outcome>);

#[derive(Debug, Default)]
struct Outcome {
    receipt: Option<Result<Receipt, PoolError>>,
    /// Who is told of it.
    waker: Option<Waker>,
}

/// The thread that waits for futures; it is started when it is needed, and ends with the pool.
#[derive(Debug, Default)]
pub(super) struct Waiter(OnceLock<mpsc::Sender<(Pending, Arc<Slot>)>>);

impl Waiter {
    fn hand(&self, pending: Pending, slot: &Arc<Slot>) {
        let sender = self.0.get_or_init(|| {
            let (sender, handed) = mpsc::channel::<(Pending, Arc<Slot>)>();
            let wait = move || {
                for (pending, slot) in handed {
                    slot.fill(pending.wait());
                }
            };
            let started = thread::Builder::new().name("pmof-pool-wait".to_owned()).spawn(wait);
            if let Err(error) = started {
                // Whoever hands something over is told below, since nobody receives.
                log::error!("no thread to wait for flushes could be started: {error}");
            }
            sender
        });
        if let Err(mpsc::SendError((pending, slot))) = sender.send((pending, Arc::clone(slot))) {
            slot.fill(pending.wait());
        }
    }
}

impl Slot {
    fn fill(&self, outcome: Result<Receipt, PoolError>) {
        let waker = {
            let mut slot = self.0.lock();
            slot.receipt = Some(outcome);
            slot.waker.take()
        };
        // The next ones wait for this thread too.
        if let Some(waker) = waker {
            if panic::catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                log::error!("the waker of a flush's future panicked");
            }
        }
    }
}

impl Pending {
    pub(super) fn posted(pool: Pool, open: Arc<Open>, flushing: Flushings, has_written: bool) -> Self {
        let patience = Patience::of(&open.terms);
        Self { pool, stage: Stage::Posted(open, flushing), has_written, patience }
    }

    pub(super) fn failed(pool: Pool, error: PoolError) -> Self {
        Self { pool, stage: Stage::Failed(error), has_written: false, patience: None }
    }

    /// Returns when everything that the flush covers is durable on every replica in sync.
    ///
    /// # Errors
    /// [`PoolError::Persist`] names the replicas that failed and holds the receipt of the others, which keep the data and
    /// go on being written. [`PoolError::ReadOnly`], [`PoolError::Closed`], [`PoolError::Forked`].
    ///
    /// # Panics
    /// After [`poll`](Self::poll), or the future, has given the outcome.
    pub fn wait(mut self) -> Result<Receipt, PoolError> {
        self.check_process()?;
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Posted(open, flushing) => self.finish(&open, flushing),
            Stage::Failed(error) => Err(error),
            Stage::Handed(slot) => wait_for(&slot),
            Stage::Done => panic!("the outcome of a flush was taken already"),
        }
    }

    /// The outcome, if the flush is done; else `None`, without waiting for a target. Replicas on this machine are flushed by this call.
    ///
    /// # Panics
    /// After it has given the outcome.
    pub fn poll(&mut self) -> Option<Result<Receipt, PoolError>> {
        if let Err(error) = self.check_process() {
            return Some(Err(error));
        }
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Posted(open, mut flushing) => {
                let mut flushes = open.waiting(&mut flushing);
                if done(patience::look(&mut flushes, Duration::ZERO, self.patience.as_mut())).is_some() {
                    return Some(self.finish(&open, flushing));
                }
                self.stage = Stage::Posted(open, flushing);
                None
            }
            Stage::Failed(error) => Some(Err(error)),
            Stage::Handed(slot) => {
                let outcome = slot.0.lock().receipt.take();
                if outcome.is_none() {
                    self.stage = Stage::Handed(slot);
                }
                outcome
            }
            Stage::Done => panic!("the outcome of a flush was taken already"),
        }
    }

    /// A flush that was posted before a fork is the parent's. Here it is forgotten, without dropping what it holds.
    fn check_process(&mut self) -> Result<(), PoolError> {
        let checked = self.pool.0.check_process();
        if checked.is_err() {
            std::mem::forget(std::mem::replace(&mut self.stage, Stage::Failed(PoolError::Forked)));
        }
        checked
    }

    fn finish(&self, open: &Open, flushing: Flushings) -> Result<Receipt, PoolError> {
        let receipt = open.finish_flush(flushing).map_err(PoolError::Persist);
        if self.has_written {
            self.pool.0.note_end(receipt.is_ok());
        }
        receipt
    }
}

/// Waits for the pool's thread.
fn wait_for(slot: &Arc<Slot>) -> Result<Receipt, PoolError> {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    loop {
        {
            let mut slot = slot.0.lock();
            if let Some(outcome) = slot.receipt.take() {
                return outcome;
            }
            slot.waker = Some(Waker::from(Arc::new(Unpark(thread::current()))));
        }
        thread::park();
    }
}

impl Future for Pending {
    type Output = Result<Receipt, PoolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = Self::poll(&mut self) {
            return Poll::Ready(outcome);
        }
        if let Stage::Posted(open, flushing) = &mut self.stage {
            let (open, flushing) = (Arc::clone(open), std::mem::take(flushing));
            let slot = Arc::new(Slot::default());
            slot.0.lock().waker = Some(context.waker().clone());
            let has_written = std::mem::take(&mut self.has_written);
            self.pool.0.waiter.hand(Self::posted(self.pool.clone(), open, flushing, has_written), &slot);
            self.stage = Stage::Handed(slot);
            return Poll::Pending;
        }
        let Stage::Handed(slot) = &self.stage else { return Poll::Pending };
        let mut slot = slot.0.lock();
        // It may have been done since.
        if let Some(outcome) = slot.receipt.take() {
            drop(slot);
            self.stage = Stage::Done;
            Poll::Ready(outcome)
        } else {
            slot.waker = Some(context.waker().clone());
            Poll::Pending
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        if let Stage::Posted(open, flushing) = &mut self.stage {
            open.abandon(std::mem::take(flushing));
        }
    }
}
