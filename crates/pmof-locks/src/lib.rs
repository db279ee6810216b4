//! Locks and condition variables with the interface of [`lock_api`], for all threads of pmof.
//!
//! **Over `fork()`**: a child can make locks and use them, whatever threads of its parent waited for at that moment. All that is known of a lock
//! is in the lock itself. Locks that keep the threads that wait in a table of the process (`parking_lot`'s) leave entries there that point into stacks of
//! threads that the child does not have. A lock that was locked at the fork stays locked in the child: a child makes its own.
//!
//! **Panics**: a thread that panics leaves the lock, and the next one finds the value as it was left.
//!
//! **Cost**: an atomic operation to lock and one to unlock where threads do not meet, one load for a notification that no thread waits for.

mod condvar;
mod mutex;
mod raw;
mod rw_lock;
mod sync;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard, RawMutex};
pub use rw_lock::{MappedRwLockReadGuard, RawRwLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// `None`: further away than the clock goes.
fn deadline_in(limit: std::time::Duration) -> Option<std::time::Instant> {
    std::time::Instant::now().checked_add(limit)
}

#[cfg(test)]
mod tests;
