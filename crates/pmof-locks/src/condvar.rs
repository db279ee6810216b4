use std::time::{Duration, Instant};

use lock_api::RawMutex as _;

use crate::{MutexGuard, deadline_in, raw::RawCondvar};

/// A condition variable. What it stands for is changed under the one mutex that all of its threads wait with; it may be notified of behind that.
/// A notification that no thread waits for costs one load.
#[derive(Debug)]
pub struct Condvar(RawCondvar);

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

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// One that no thread waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self(RawCondvar::new())
    }

    /// Wakes one of the threads that wait.
    #[inline]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    #[inline]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Unlocks the mutex, waits for a notification, and locks it again. It may also return without one.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_to(guard, None);
    }

    /// The same, for so long at most.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        self.wait_to(guard, deadline_in(limit))
    }

    /// The same, until then at most.
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        self.wait_to(guard, Some(deadline))
    }

    /// Waits as long as `condition` says so of the value.
    pub fn wait_while<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// The same, for so long at most. The time was up if `condition` says at the end that there is still something to wait for.
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        let deadline = deadline_in(limit);
        let mut is_late = false;
        while condition(guard) {
            if is_late {
                return WaitTimeoutResult(true);
            }
            is_late = self.wait_to(guard, deadline).timed_out();
        }
        WaitTimeoutResult(false)
    }

    fn wait_to<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, deadline: Option<Instant>) -> WaitTimeoutResult {
        // SAFETY: the guard stands for the locked mutex, and nothing reaches the value through it until the mutex is locked again below.
        let mutex = unsafe { MutexGuard::mutex(guard).raw() };
        // SAFETY: this thread has locked it.
        let is_in_time = self.0.wait(|| unsafe { mutex.unlock() }, deadline);
        mutex.lock();
        WaitTimeoutResult(!is_in_time)
    }
}
