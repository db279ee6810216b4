//! Who is to be looked at by a thread that sleeps for many.

use crate::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::SeqCst},
};

/// Numbers of those who call. As everywhere here: whoever calls says so, then looks for a sleeper; whoever is about to sleep says so, then looks
/// for calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    waiting: Mutex<Vec<u64>>,
    has_some: AtomicBool,
    sleeps: AtomicBool,
}

impl Calls {
    /// Calls; `wake` ends a sleep, the present one or the next.
    pub(crate) fn call(&self, number: u64, wake: impl FnOnce()) {
        self.waiting.lock().push(number);
        self.has_some.store(true, SeqCst);
        if self.sleeps.load(SeqCst) {
            wake();
        }
    }

    /// Takes all who have called.
    pub(crate) fn take(&self) -> Vec<u64> {
        if !self.has_some.load(SeqCst) {
            return Vec::new();
        }
        // Before they are taken: whoever calls from here on says so after this.
        self.has_some.store(false, SeqCst);
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Sleeps, unless somebody has called.
    pub(crate) fn sleep(&self, sleep: impl FnOnce()) {
        self.sleeps.store(true, SeqCst);
        if !self.has_some.load(SeqCst) {
            sleep();
        }
        self.sleeps.store(false, SeqCst);
    }
}
