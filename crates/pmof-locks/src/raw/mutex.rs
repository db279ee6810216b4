use std::time::Instant;

use super::{is_past, wait};
use crate::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, Ordering},
};

const FREE: u32 = 0;
const LOCKED: u32 = 1;
/// The same, and a thread may wait for it.
const WANTED: u32 = 2;

/// A lock for one.
#[derive(Debug)]
pub(crate) struct RawMutex {
    word: AtomicU32,
    waiting: Mutex<()>,
    may: Condvar,
}

impl RawMutex {
    pub(crate) const fn new() -> Self {
        Self { word: AtomicU32::new(FREE), waiting: Mutex::new(()), may: Condvar::new() }
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        self.word.compare_exchange(FREE, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn lock(&self) {
        if !self.try_lock() {
            self.lock_until(None);
        }
    }

    /// Until `deadline`, or as long as it takes. False: the time was up.
    #[cold]
    pub(crate) fn lock_until(&self, deadline: Option<Instant>) -> bool {
        let mut waiting = self.waiting.lock();
        loop {
            // Where it was free, it is said to be wanted, since others may still wait. One that gives up leaves that, too: a notification more.
            if self.word.swap(WANTED, Ordering::Acquire) == FREE {
                return true;
            }
            if is_past(deadline) {
                return false;
            }
            wait(&self.may, &mut waiting, deadline);
        }
    }

    #[inline]
    pub(crate) fn unlock(&self) {
        if self.word.swap(FREE, Ordering::Release) == WANTED {
            self.wake_one();
        }
    }

    #[cold]
    fn wake_one(&self) {
        // A thread that has seen it locked sleeps when this is locked.
        drop(self.waiting.lock());
        self.may.notify_one();
    }
}
