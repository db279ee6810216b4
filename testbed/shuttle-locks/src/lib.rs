//! The `Mutex` and `Condvar` of `pmof-locks` over [shuttle](https://docs.rs/shuttle), which runs a test under many schedules of its threads.
//!
//! A test takes a source file into its own crate by `#[path]` and puts these in the place of the real ones:
//!
//! ```
//! mod sync {
//!     pub(crate) use shuttle_locks::{Condvar, Mutex, MutexGuard, atomic, thread};
//! }
//! # fn main() {}
//! ```
//!
//! Waits with a time limit never run out: a wake-up that is missed is a deadlock, which shuttle reports with the schedule that led there.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::{Duration, Instant},
};

pub use shuttle::{check_pct, check_random, sync::atomic, thread};

/// A lock that a panic does not poison.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// One that nobody has locked.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Waits until it is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { guard: Some(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)) }
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

/// A locked mutex.
#[derive(Debug)]
pub struct MutexGuard<'m, T> {
    /// `None` only while a condition variable has it.
    guard: Option<shuttle::sync::MutexGuard<'m, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("it is locked while it can be reached")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("it is locked while it can be reached")
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// How a wait with a time limit ended.
#[derive(Clone, Copy, Debug)]
pub struct WaitTimeoutResult(());

impl WaitTimeoutResult {
    /// Never: time does not pass.
    pub fn timed_out(self) -> bool {
        false
    }
}

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    /// Waits for a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let woken = guard.guard.take().map(|taken| self.0.wait(taken));
        guard.guard = woken.map(|relocked| relocked.unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// The same: time does not pass.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult(())
    }

    /// The same: time does not pass.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult(())
    }

    /// Waits until a notification finds that the condition has ended.
    pub fn wait_while<T>(&self, guard: &mut MutexGuard<'_, T>, mut condition: impl FnMut(&mut T) -> bool) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// The same: time does not pass.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        _timeout: Duration,
    ) -> WaitTimeoutResult {
        self.wait_while(guard, condition);
        WaitTimeoutResult(())
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
