use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{self, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

/// A mutual exclusion lock.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

/// A mutex that is locked, until this is dropped.
#[must_use = "the mutex is unlocked when this is dropped"]
pub struct MutexGuard<'m, T: ?Sized> {
    /// `None` only while a condition variable has it.
    pub(crate) guard: Option<sync::MutexGuard<'m, T>>,
}

/// The pauses between two looks of [`Mutex::try_lock_for`].
const LOOK_MIN: Duration = Duration::from_micros(10);
const LOOK_MAX: Duration = Duration::from_millis(1);

impl<T> Mutex<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until it is unlocked, and locks it. A thread that has locked it already waits for ever, or panics.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Locks it, if it is unlocked.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { guard: Some(guard) })
    }

    /// The same, and waits for so long. It looks again and again, up to 1 ms apart, so a thread that waits by [`lock`](Self::lock) comes first.
    pub fn try_lock_for(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        let (began, mut pause) = (Instant::now(), LOOK_MIN);
        loop {
            let guard = self.try_lock();
            let left = limit.saturating_sub(began.elapsed());
            if guard.is_some() || left.is_zero() {
                return guard;
            }
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    /// The value of a lock that no other thread knows.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("Mutex").field(&&*guard).finish(),
            None => f.write_str("Mutex(<locked>)"),
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.guard.as_deref().expect("it is locked")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_deref_mut().expect("it is locked")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
