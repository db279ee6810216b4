//! Locks of a whole process that outlive `fork()`.
//!
//! The child has only the thread that forked. A lock that another thread had at that moment is locked in the child for ever, and what
//! it protects half changed. So the thread that forks takes these locks before, and both processes give them back behind.

use std::{
    cell::UnsafeCell,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A lock that is to be [held](Holdable::hold) over forks. What is done under it is short, and does not fork.
#[derive(Debug, Default)]
pub struct Kept<T: 'static> {
    mutex: Mutex<T>,
    /// The lock, while it is held for a fork: of whoever has it.
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: `held` is looked at only by the thread that has the lock: by `hold` once it has it, and by `release`, whose caller does.
unsafe impl<T: Send> Sync for Kept<T> {}

impl<T> Kept<T> {
    /// With a value.
    pub const fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), held: UnsafeCell::new(None) }
    }

    /// Locks it. A panic of another thread under the lock changes nothing.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock of this crate.
pub fn kept() -> &'static dyn Holdable {
    crate::bus_error::kept()
}

/// A lock of any type.
pub trait Holdable: Sync {
    /// Takes the lock for a fork.
    fn hold(&'static self);

    /// Gives it back.
    ///
    /// # Safety
    ///
    /// The calling thread, or in a child the one that it was made from, has called [`hold`](Self::hold) last, and nobody has called
    /// this since.
    unsafe fn release(&'static self);
}

impl<T: Send> Holdable for Kept<T> {
    fn hold(&'static self) {
        let guard = self.lock();
        // SAFETY: this thread has the lock, and so the place.
        unsafe { *self.held.get() = Some(guard) };
    }

    unsafe fn release(&'static self) {
        // SAFETY: this thread has the lock by the contract of this function.
        let guard = unsafe { (*self.held.get()).take() };
        drop(guard);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn nobody_gets_a_lock_that_is_held_until_it_is_released() {
        static LOCK: Kept<u32> = Kept::new(1);
        LOCK.hold();
        let (tell, told) = mpsc::channel();
        let other = std::thread::spawn(move || {
            *LOCK.lock() += 1;
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        // SAFETY: this thread held it just now.
        unsafe { LOCK.release() };
        told.recv().unwrap();
        other.join().unwrap();
        assert_eq!(*LOCK.lock(), 2);
    }
}
