use std::time::{Duration, Instant};

use crate::{deadline_in, raw};

/// A lock that has many readers, or one writer. A writer that waits comes before readers that come later: a thread that reads must not lock
/// it once more.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;

/// A lock that is locked for reading, until this is dropped.
pub type RwLockReadGuard<'l, T> = lock_api::RwLockReadGuard<'l, RawRwLock, T>;

/// The same, of a part of the value.
pub type MappedRwLockReadGuard<'l, T> = lock_api::MappedRwLockReadGuard<'l, RawRwLock, T>;

/// A lock that is locked for writing, until this is dropped.
pub type RwLockWriteGuard<'l, T> = lock_api::RwLockWriteGuard<'l, RawRwLock, T>;

/// What is locked of a [`RwLock`].
#[derive(Debug)]
pub struct RawRwLock(raw::RawRwLock);

// SAFETY: the word of `raw` counts readers only while no writer has it, and a writer takes it only at a count of 0.
unsafe impl lock_api::RawRwLock for RawRwLock {
    const INIT: Self = Self(raw::RawRwLock::new());

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock_shared(&self) {
        self.0.read();
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.0.try_read()
    }

    #[inline]
    // SAFETY: the caller is one of the readers.
    unsafe fn unlock_shared(&self) {
        self.0.end_read();
    }

    fn lock_exclusive(&self) {
        self.0.write(None);
    }

    fn try_lock_exclusive(&self) -> bool {
        self.0.try_write()
    }

    // SAFETY: the caller is the writer.
    unsafe fn unlock_exclusive(&self) {
        self.0.end_write();
    }
}

// SAFETY: a lock with a limit is taken by the same exchanges, and is not taken where the time was up.
unsafe impl lock_api::RawRwLockTimed for RawRwLock {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_shared_for(&self, timeout: Duration) -> bool {
        self.0.read_until(deadline_in(timeout))
    }

    fn try_lock_shared_until(&self, timeout: Instant) -> bool {
        self.0.read_until(Some(timeout))
    }

    fn try_lock_exclusive_for(&self, timeout: Duration) -> bool {
        self.0.write(deadline_in(timeout))
    }

    fn try_lock_exclusive_until(&self, timeout: Instant) -> bool {
        self.0.write(Some(timeout))
    }
}
