//! Locks and condition variables of the standard library, without poisoning, and with condition variables that wait on a borrowed guard.
//!
//! **Over `fork()`**: all that the standard library knows of a lock on Linux is the lock's own word, so that a child can make locks and use them,
//! whatever threads of its parent were waiting for at that moment. Locks that keep those who wait in a table of the process (`pmof_locks`'s) leave
//! entries there that point into stacks of threads that the child does not have. A lock that was locked at the fork stays locked in the
//! child: a child makes its own.
//!
//! **Panics**: a thread that panics leaves the lock, and the next one finds the value as it was left.
//!
//! **Notifications without waiting threads** cost one load, not a call of the system.

#![expect(
    clippy::disallowed_types,
    reason = "the locks that the rest of the workspace takes from here are made of these"
)]

mod condvar;
mod mutex;
mod raw_rw_lock;
mod rw_lock;
mod sync;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
pub use rw_lock::{MappedRwLockReadGuard, RawRwLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(test)]
mod tests;
