use std::time::{Duration, Instant};

use crate::{deadline_in, raw};

/// A mutual exclusion lock.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// A mutex that is locked, until this is dropped.
pub type MutexGuard<'m, T> = lock_api::MutexGuard<'m, RawMutex, T>;

/// What is locked of a [`Mutex`].
#[derive(Debug)]
pub struct RawMutex(raw::RawMutex);

// SAFETY: the word of `raw` leaves its free state by one exchange, which one thread wins, and returns to it by `unlock` only.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = Self(raw::RawMutex::new());

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.0.lock();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    #[inline]
    // SAFETY: the caller has the lock.
    unsafe fn unlock(&self) {
        self.0.unlock();
    }
}

// SAFETY: a lock with a limit is taken by the same exchange, and is not taken where the time was up.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, timeout: Duration) -> bool {
        self.0.lock_until(deadline_in(timeout))
    }

    fn try_lock_until(&self, timeout: Instant) -> bool {
        self.0.lock_until(Some(timeout))
    }
}
