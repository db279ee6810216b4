//! Carries out the flushes that wait for a device, on [background](Background) threads, and answers them.
//!
//! All who wait for one medium share a fence that begins after they came: their writes were written back before.
//!
//! A thread that serves one connection alone carries its flushes out itself, which saves two changes of threads: nobody else waits for it
//! meanwhile. Not all threads do so at once, since whoever connects next is to find one that has time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pmof_mem::{Medium, MemError};
use pmof_proto::{DeferredFlush, FlushTicket};

use crate::{Background, driver::Driver, link::Link};

/// One for all connections whose flushes may be shared. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Flusher {
    background: Background,
    /// By the address of the medium: those who wait for the next fence of each that has work under way.
    waiting: Arc<Mutex<HashMap<usize, Vec<Waiter>>>>,
    /// How many more threads may carry out flushes of their own connection.
    free_here: Arc<AtomicUsize>,
}

/// Who is answered.
#[derive(Debug)]
pub(crate) struct Waiter {
    link: Arc<Link>,
    driver: Weak<Driver>,
    ticket: FlushTicket,
}

/// Where the flushes of one connection go.
#[derive(Debug)]
pub(crate) struct FlushRoute {
    flusher: Flusher,
    link: Weak<Link>,
    driver: Weak<Driver>,
}

impl FlushRoute {
    pub(crate) fn new(flusher: Flusher, link: &Arc<Link>, driver: &Arc<Driver>) -> Self {
        Self { flusher, link: Arc::downgrade(link), driver: Arc::downgrade(driver) }
    }

    /// Never waits. The connection may be locked.
    pub(crate) fn flush(&self, flush: DeferredFlush) {
        let DeferredFlush { ticket, memory, device } = flush;
        let Some(link) = self.link.upgrade() else { return };
        let driver = self.driver.upgrade();
        let waiter = Waiter { link, driver: self.driver.clone(), ticket };
        driver.as_ref().inspect(|driver| driver.flush_begins());
        match driver.filter(|driver| driver.has_one_connection() && self.flusher.begin_here()) {
            Some(driver) => driver.flush_here(FlushHere { memory, waiter, flusher: self.flusher.clone() }),
            None => self.flusher.flush(memory, device, waiter),
        }
    }
}

/// A flush of a lone connection, for the thread that serves it.
#[derive(Debug)]
pub(crate) struct FlushHere {
    memory: Arc<dyn Medium>,
    waiter: Waiter,
    flusher: Flusher,
}

/// Where that thread finds it.
#[derive(Debug, Default)]
pub(crate) struct OwnFlush {
    flush: Mutex<Option<FlushHere>>,
    is_there: AtomicBool,
    /// Since when it is carried out, in nanoseconds of the clock, from 1; 0 for none.
    since: AtomicU64,
}

impl OwnFlush {
    pub(crate) fn put(&self, flush: FlushHere) {
        *self.flush.lock() = Some(flush);
        self.is_there.store(true, Ordering::Release);
    }

    /// Carries it out, `now`. False where there is none. No lock is held meanwhile.
    #[inline]
    pub(crate) fn carry_out(&self, now: Duration) -> bool {
        self.is_there.load(Ordering::Acquire) && self.carry_out_now(now)
    }

    fn carry_out_now(&self, now: Duration) -> bool {
        let taken = self.flush.lock().take();
        self.is_there.store(false, Ordering::Release);
        let Some(FlushHere { memory, waiter, flusher }) = taken else { return false };
        self.since.store((now.as_nanos() as u64).max(1), Ordering::Relaxed);
        let outcome = memory.fence();
        self.since.store(0, Ordering::Relaxed);
        flusher.free_here.fetch_add(1, Ordering::Relaxed);
        waiter.answer(outcome.as_ref().copied());
        true
    }

    /// Since when one is carried out.
    pub(crate) fn since(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed);
        (since > 0).then(|| Duration::from_nanos(since))
    }
}

impl Flusher {
    /// `here_max`: how many threads may carry out flushes of their own connection at once.
    pub(crate) fn new(background: Background, here_max: usize) -> Self {
        Self { background, waiting: Arc::default(), free_here: Arc::new(AtomicUsize::new(here_max)) }
    }

    /// Whether one more thread may.
    fn begin_here(&self) -> bool {
        self.free_here.try_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1)).is_ok()
    }

    fn flush(&self, memory: Arc<dyn Medium>, device: u64, waiter: Waiter) {
        let mut waiting = self.waiting.lock();
        if let Some(waiters) = waiting.get_mut(&address(&memory)) {
            return waiters.push(waiter);
        }
        waiting.insert(address(&memory), vec![waiter]);
        drop(waiting);
        let here = self.clone();
        self.background.run(device, move || here.fence(memory, device));
    }

    /// One fence, for all who have come until now.
    fn fence(self, memory: Arc<dyn Medium>, device: u64) {
        let waiters = self.waiting.lock().get_mut(&address(&memory)).map(std::mem::take).unwrap_or_default();
        let outcome = memory.fence();
        for waiter in waiters {
            waiter.answer(outcome.as_ref().copied());
        }
        let mut waiting = self.waiting.lock();
        if waiting.get(&address(&memory)).is_some_and(|waiters| !waiters.is_empty()) {
            drop(waiting);
            // Behind others of the device, which have waited longer.
            let here = self.clone();
            return self.background.run_next(device, move || here.fence(memory, device));
        }
        waiting.remove(&address(&memory));
    }
}

impl Waiter {
    fn answer(self, outcome: Result<(), &MemError>) {
        let mut core = self.link.lock();
        let is_done = core.flush_done(self.ticket, outcome);
        drop(core);
        let Some(driver) = self.driver.upgrade() else { return };
        driver.flush_ends();
        if !is_done {
            driver.see_to(&self.link);
        }
    }
}

/// Names a medium while somebody holds it.
fn address(memory: &Arc<dyn Medium>) -> usize {
    Arc::as_ptr(memory).cast::<()>().addr()
}
