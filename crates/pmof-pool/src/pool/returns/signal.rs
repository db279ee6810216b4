//! What tells the thread that looks for losses that there is one.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use pmof_locks::{Condvar, Mutex};

/// Told of losses.
#[derive(Debug, Default)]
pub(in crate::pool) struct Signal {
    is_raised: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    pub(in crate::pool) fn raise(&self) {
        if !self.is_raised.swap(true, Ordering::AcqRel) {
            let _lock = self.lock.lock();
            self.changed.notify_all();
        }
    }

    pub(super) fn wait(&self, limit: Duration) {
        let mut lock = self.lock.lock();
        if !self.is_raised.load(Ordering::Acquire) {
            self.changed.wait_for(&mut lock, limit);
        }
        self.is_raised.store(false, Ordering::Release);
    }
}
