use std::{
    sync::{
        self, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::MutexGuard;

/// A condition variable. What it stands for is changed under the one mutex that all of its threads wait with; it may be notified of behind that.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: sync::Condvar,
    /// Threads that wait. A thread counts itself under the mutex, so that one that changes the condition under it and finds 0 has no one to wake.
    waiting: AtomicUsize,
}

/// How a wait with a limit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the time was up.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// One that no thread waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: sync::Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Wakes one of the threads that wait.
    #[inline]
    pub fn notify_one(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.inner.notify_one();
        }
    }

    /// Wakes all threads that wait.
    #[inline]
    pub fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.inner.notify_all();
        }
    }

    /// Unlocks the mutex, waits for a notification, and locks it again. It may also return without one.
    ///
    /// # Panics
    /// If threads wait with different mutexes at once, on systems where that cannot work.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.with(guard, |condvar, guard| (condvar.wait(guard).unwrap_or_else(PoisonError::into_inner), ()));
    }

    /// The same, for so long at most.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        self.with(guard, |condvar, guard| {
            let (guard, result) = condvar.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner);
            (guard, WaitTimeoutResult(result.timed_out()))
        })
    }

    /// The same, until then at most.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits as long as `condition` says so of the value.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// The same, for so long at most. The time was up if `condition` says at the end that there is still something to wait for.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        let began = Instant::now();
        while condition(guard) {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return WaitTimeoutResult(true);
            }
            self.wait_for(guard, left);
        }
        WaitTimeoutResult(false)
    }

    fn with<'m, T, R>(
        &self,
        guard: &mut MutexGuard<'m, T>,
        wait: impl FnOnce(&sync::Condvar, sync::MutexGuard<'m, T>) -> (sync::MutexGuard<'m, T>, R),
    ) -> R {
        let locked = guard.guard.take().expect("it is locked");
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let (locked, result) = wait(&self.inner, locked);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard.guard = Some(locked);
        result
    }
}
