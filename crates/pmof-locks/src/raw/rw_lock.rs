use std::time::Instant;

use super::{is_past, wait};
use crate::sync::{
    Condvar, Mutex,
    atomic::{AtomicUsize, Ordering},
};

/// A writer has it.
const LOCKED: usize = 1;
/// At least one writer waits. Changed under `writers` only.
const WANTED: usize = 2;
/// One of the readers that have it, in the bits above.
const READER: usize = 4;

/// A lock for many readers or one writer. A writer that waits keeps further readers out, so that it comes to its turn however many there are, and
/// lets them in again when its time is up.
#[derive(Debug)]
pub(crate) struct RawRwLock {
    word: AtomicUsize,
    /// The writers that wait.
    writers: Mutex<usize>,
    readers_may: Condvar,
    writers_may: Condvar,
}

impl RawRwLock {
    pub(crate) const fn new() -> Self {
        Self {
            word: AtomicUsize::new(0),
            writers: Mutex::new(0),
            readers_may: Condvar::new(),
            writers_may: Condvar::new(),
        }
    }

    #[inline]
    pub(crate) fn read(&self) {
        if !self.try_read() {
            self.read_until(None);
        }
    }

    #[inline]
    pub(crate) fn try_read(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & (LOCKED | WANTED) == 0 {
            match self.word.compare_exchange_weak(word, word + READER, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(changed) => word = changed,
            }
        }
        false
    }

    /// Until `deadline`, or as long as it takes. False: the time was up.
    #[cold]
    pub(crate) fn read_until(&self, deadline: Option<Instant>) -> bool {
        let mut writers = self.writers.lock();
        loop {
            let is_read = self.try_read();
            if is_read || is_past(deadline) {
                return is_read;
            }
            wait(&self.readers_may, &mut writers, deadline);
        }
    }

    /// One of the readers gives it back.
    #[inline]
    pub(crate) fn end_read(&self) {
        let before = self.word.fetch_sub(READER, Ordering::Release);
        if before & WANTED != 0 && before / READER == 1 {
            self.wake_a_writer();
        }
    }

    #[cold]
    fn wake_a_writer(&self) {
        // A writer that has seen the last reader sleeps when this is locked.
        drop(self.writers.lock());
        self.writers_may.notify_one();
    }

    pub(crate) fn try_write(&self) -> bool {
        self.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Until `deadline`, or as long as it takes. False: the time was up.
    pub(crate) fn write(&self, deadline: Option<Instant>) -> bool {
        if self.try_write() {
            return true;
        }
        let mut writers = self.writers.lock();
        *writers += 1;
        self.word.fetch_or(WANTED, Ordering::Relaxed);
        loop {
            let is_locked =
                self.word.compare_exchange(WANTED, WANTED | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if is_locked || is_past(deadline) {
                *writers -= 1;
                if *writers == 0 {
                    self.word.fetch_and(!WANTED, Ordering::Relaxed);
                    self.readers_may.notify_all();
                }
                return is_locked;
            }
            wait(&self.writers_may, &mut writers, deadline);
        }
    }

    /// The writer gives it back.
    pub(crate) fn end_write(&self) {
        let writers = self.writers.lock();
        self.word.fetch_and(!LOCKED, Ordering::Release);
        if *writers > 0 {
            self.writers_may.notify_one();
        } else {
            self.readers_may.notify_all();
        }
    }
}
