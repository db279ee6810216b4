//! The words of the locks, and how threads wait for them. `tests/shuttle` explores the interleavings.
//!
//! A thread that meets no other changes one word. All others wait under a mutex of the standard library, which is the lock's own: nothing is
//! shared between locks.

use std::time::Instant;

use crate::sync::{Condvar, MutexGuard};

mod condvar;
mod mutex;
mod rw_lock;

pub(crate) use self::{condvar::RawCondvar, mutex::RawMutex, rw_lock::RawRwLock};

/// `None`: never.
fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Waits for a notification, until `deadline` at most; it may also return earlier. False: the time was up.
fn wait<T>(condvar: &Condvar, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> bool {
    let Some(deadline) = deadline else {
        condvar.wait(guard);
        return true;
    };
    !condvar.wait_until(guard, deadline).timed_out()
}
