//! Carries out the flushes that wait for a device, on [`BackgroundThreads`], and answers them.
//!
//! All who wait for one medium share a fence that begins after they came: their writes were written back before.
//!
//! A thread that serves a single connection carries its flushes out inline, which saves two changes of threads: nobody else waits for it
//! meanwhile. Not all threads do so at once, since whoever connects next is to find one that has time.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use pmof_mem::{Medium, MemError};
use pmof_proto::{DeferredFlush, FlushTicket};

use super::{BackgroundThreads, shared_fences::SharedFences};
use crate::{
    durations::{DurationCounters, DurationCounts},
    link::{FlushService, Link, LinkCore},
};

/// The driver of connections whose flushes are carried out here.
pub(crate) trait FlushOwner: fmt::Debug + Send + Sync {
    /// One more flush is in flight.
    fn flush_begins(&self);

    /// One of those was answered. `is_done`: nothing is left to be seen to on its connection.
    fn flush_ends(&self, link: &Arc<Link>, is_done: bool);

    /// Whoever drives has this connection alone.
    fn serves_one_connection(&self) -> bool;

    /// Has whoever drives carry out a flush as soon as it holds no lock. Gives it back where another one waits for that.
    fn flush_inline(&self, flush: InlineFlush) -> Result<(), InlineFlush>;

    /// Has those who sleep on a connection's sockets sleep on them anew, where these are to be waited for otherwise.
    fn tell_interest(&self, core: &mut LinkCore);
}

/// One for all connections whose flushes may be shared. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Flusher {
    background: BackgroundThreads,
    /// By the address of the medium.
    fences: Arc<SharedFences<usize, Waiter>>,
    /// How many more threads may carry out flushes inline.
    inline_permits: Arc<AtomicUsize>,
    waits: Arc<DurationCounters>,
}

/// Who is answered.
#[derive(Debug)]
pub(crate) struct Waiter {
    link: Arc<Link>,
    driver: Weak<dyn FlushOwner>,
    ticket: FlushTicket,
}

/// Where the flushes of one connection go.
#[derive(Debug)]
pub(crate) struct FlushRoute {
    flusher: Flusher,
    link: Weak<Link>,
    driver: Weak<dyn FlushOwner>,
}

impl FlushRoute {
    pub(crate) fn new(flusher: Flusher, link: &Arc<Link>, driver: Weak<dyn FlushOwner>) -> Self {
        Self { flusher, link: Arc::downgrade(link), driver }
    }
}

impl FlushService for FlushRoute {
    fn flush(&self, flush: DeferredFlush) {
        let DeferredFlush { ticket, memory, device } = flush;
        let Some(link) = self.link.upgrade() else { return };
        let driver = self.driver.upgrade();
        let waiter = Waiter { link, driver: self.driver.clone(), ticket };
        driver.as_ref().inspect(|driver| driver.flush_begins());
        let single = driver.filter(|driver| driver.serves_one_connection());
        let permit = single.as_ref().and_then(|_| self.flusher.inline_permit());
        let (Some(driver), Some(permit)) = (single, permit) else {
            return self.flusher.flush(memory, device, waiter);
        };
        if let Err(flush) =
            driver.flush_inline(InlineFlush { memory, waiter, waits: Arc::clone(&self.flusher.waits), _permit: permit })
        {
            self.flusher.flush(flush.memory, device, flush.waiter);
        }
    }
}

/// A flush for the thread that serves its connection.
#[derive(Debug)]
pub(crate) struct InlineFlush {
    memory: Arc<dyn Medium>,
    waiter: Waiter,
    waits: Arc<DurationCounters>,
    _permit: InlinePermit,
}

impl InlineFlush {
    /// Waits for the device, and answers.
    pub(crate) fn carry_out(self) {
        let outcome = fence(&*self.memory, &self.waits);
        self.waiter.answer(outcome.as_ref().copied());
    }
}

/// One more thread may carry out a flush inline while this is there.
#[derive(Debug)]
struct InlinePermit(Arc<AtomicUsize>);

impl Drop for InlinePermit {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Flusher {
    /// `inline_max`: how many threads may carry out flushes inline at once.
    pub(crate) fn new(background: BackgroundThreads, inline_max: usize) -> Self {
        let inline_permits = Arc::new(AtomicUsize::new(inline_max));
        Self { background, fences: Arc::default(), inline_permits, waits: Arc::default() }
    }

    /// How long fences took.
    pub(crate) fn waits(&self) -> DurationCounts {
        self.waits.counts()
    }

    fn inline_permit(&self) -> Option<InlinePermit> {
        let taken = self.inline_permits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        taken.ok().map(|_| InlinePermit(Arc::clone(&self.inline_permits)))
    }

    fn flush(&self, memory: Arc<dyn Medium>, device: u64, waiter: Waiter) {
        if self.fences.join(address(&memory), waiter) {
            let here = self.clone();
            self.background.run(device, move || here.fence(memory, device));
        }
    }

    /// One fence, for all who have come until now.
    fn fence(self, memory: Arc<dyn Medium>, device: u64) {
        let waiters = self.fences.begin(address(&memory));
        let outcome = fence(&*memory, &self.waits);
        for waiter in waiters {
            waiter.answer(outcome.as_ref().copied());
        }
        if self.fences.end(address(&memory)) {
            // Behind others of the device, which have waited longer.
            let here = self.clone();
            self.background.run_next(device, move || here.fence(memory, device));
        }
    }
}

impl Waiter {
    fn answer(self, outcome: Result<(), &MemError>) {
        let mut answering = self.link.lock_to_answer();
        let is_done = answering.core().flush_done(self.ticket, outcome);
        let driver = self.driver.upgrade();
        driver.as_ref().inspect(|driver| driver.tell_interest(answering.core()));
        drop(answering);
        driver.inspect(|driver| driver.flush_ends(&self.link, is_done));
    }
}

/// Waits for a medium, and counts how long that took.
fn fence(memory: &dyn Medium, waits: &DurationCounters) -> Result<(), MemError> {
    let start = Instant::now();
    let outcome = memory.fence();
    waits.add(start.elapsed(), outcome.is_ok());
    outcome
}

/// Names a medium while somebody holds it.
fn address(memory: &Arc<dyn Medium>) -> usize {
    Arc::as_ptr(memory).cast::<()>().addr()
}
