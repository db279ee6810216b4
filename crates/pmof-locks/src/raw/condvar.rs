use std::time::Instant;

use super::wait;
use crate::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, Ordering},
};

/// A condition variable for locks of any kind.
#[derive(Debug)]
pub(crate) struct RawCondvar {
    /// Threads that wait. A thread counts itself under the lock, so that one that has changed the condition under it and finds 0 here has none to wake.
    count: AtomicU32,
    /// Held until a thread sleeps.
    waiting: Mutex<()>,
    notified: Condvar,
}

impl RawCondvar {
    pub(crate) const fn new() -> Self {
        Self { count: AtomicU32::new(0), waiting: Mutex::new(()), notified: Condvar::new() }
    }

    /// Waits for a notification behind `unlock`, until `deadline` at most; it may also return earlier. False: the time was up.
    pub(crate) fn wait(&self, unlock: impl FnOnce(), deadline: Option<Instant>) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        unlock();
        let is_in_time = wait(&self.notified, &mut waiting, deadline);
        drop(waiting);
        self.count.fetch_sub(1, Ordering::Relaxed);
        is_in_time
    }

    #[inline]
    pub(crate) fn notify_one(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.notify(Condvar::notify_one);
        }
    }

    #[inline]
    pub(crate) fn notify_all(&self) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.notify(Condvar::notify_all);
        }
    }

    #[cold]
    fn notify(&self, notify: impl FnOnce(&Condvar)) {
        // A thread that has unlocked its lock sleeps when this is locked.
        drop(self.waiting.lock());
        notify(&self.notified);
    }
}
