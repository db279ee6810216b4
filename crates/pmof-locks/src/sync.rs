//! What threads wait with that do not get a lock at once: the standard library's locks, without poisoning. `tests/shuttle` puts shuttle's in their
//! place.

#![expect(
    clippy::disallowed_types,
    reason = "the locks that the rest of the workspace takes from this crate wait with these"
)]

pub(crate) use std::sync::atomic;
use std::{
    ops::{Deref, DerefMut},
    sync::{self, PoisonError, WaitTimeoutResult},
    time::Instant,
};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// `None` only while a condition variable has it.
pub(crate) struct MutexGuard<'m, T>(Option<sync::MutexGuard<'m, T>>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("it is locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("it is locked")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0 = guard.0.take().map(|locked| self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, deadline: Instant) -> WaitTimeoutResult {
        let limit = deadline.saturating_duration_since(Instant::now());
        let locked = guard.0.take().expect("it is locked");
        let (locked, result) = self.0.wait_timeout(locked, limit).unwrap_or_else(PoisonError::into_inner);
        guard.0 = Some(locked);
        result
    }
}
