//! Keeps locks usable across `fork()`, and descriptors out of the child.
//!
//! The child has only the thread that forked. A lock that another thread held at that moment would stay locked in the child forever, with
//! its data half changed. So the forking thread takes these locks before the fork, and both processes release them after it.
//!
//! The child has copies of all descriptors too. A socket stays open as long as one process has it, so that the other side of a
//! connection would not notice the parent's death while a child lives: [`Uninherited`] sockets are taken away from the child.
//!
//! Objects that only the process that made them may use remember it as a [`Process`].

#![expect(clippy::disallowed_types, reason = "a lock of std is one word, which the child can release")]

use std::{
    cell::UnsafeCell,
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

mod process;

pub use process::{Own, PerProcess, Process};

/// A lock that is [held](Holdable::hold) across forks. Critical sections are short and do not fork.
#[derive(Debug, Default)]
pub struct Kept<T: 'static> {
    mutex: Mutex<T>,
    /// The guard, while the lock is held for a fork; owned by the lock's holder.
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: `held` is looked at only by the thread that has the mutex: `hold` has locked it, and `release` runs in the thread that called `hold`.
unsafe impl<T: Send> Sync for Kept<T> {}

impl<T> Kept<T> {
    /// With a value.
    pub const fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), held: UnsafeCell::new(None) }
    }

    /// Locks it. Poisoning is ignored.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The locks of this crate. None of this program's is taken under them.
fn kept() -> [&'static dyn Holdable; 2] {
    [crate::bus_error::kept(), &UNINHERITED]
}

/// Has the C library's `fork()` keep the locks of this crate usable in children and take [`Uninherited`] sockets away from them, from the first
/// call on. Handlers of locks under which those of this crate are taken are registered after this, so that they run before.
pub fn watch() {
    static REGISTERED: Once = Once::new();
    extern "C" fn before() {
        kept().into_iter().for_each(Holdable::hold);
    }
    extern "C" fn behind() {
        // SAFETY: the C library calls this behind `before`, in the thread that forks.
        kept().into_iter().for_each(|lock| unsafe { lock.release() });
    }
    extern "C" fn behind_in_child() {
        // SAFETY: the C library calls this behind `before`, in the child's only thread; objects of the parent are refused there.
        unsafe { take_from_child() };
        behind();
    }
    #[cfg(not(miri))]
    // SAFETY: the handlers lock, unlock and replace descriptors, all of which may be done around a fork.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(behind), Some(behind_in_child));
    });
    #[cfg(miri)]
    let _ = (&REGISTERED, before as extern "C" fn(), behind_in_child as extern "C" fn());
}

/// Device and inode of what is open: every socket has its own.
type File = (u64, u64);

/// Descriptors that children must not keep, by number, with the identity of their files.
static UNINHERITED: Kept<BTreeMap<RawFd, File>> = Kept::new(BTreeMap::new());

/// A descriptor that a child does not keep.
#[derive(Debug)]
pub struct Uninherited {
    fd: OwnedFd,
    /// Dropped behind the descriptor: the number may be another one's by then, which what is noted of it tells.
    _noted: Noted,
}

#[derive(Debug)]
struct Noted {
    number: RawFd,
    file: File,
}

impl Uninherited {
    /// The descriptor that `open` opens. It must not take long: forks wait for it.
    ///
    /// # Errors
    /// Those of `open`, and of `fstat`.
    pub fn open<E: From<rustix::io::Errno>>(open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        watch();
        let mut all = UNINHERITED.lock();
        let fd = open()?;
        let (number, file) = (fd.as_raw_fd(), file_of(fd.as_fd())?);
        all.insert(number, file);
        Ok(Self { fd, _noted: Noted { number, file } })
    }
}

impl AsFd for Uninherited {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut all = UNINHERITED.lock();
        if all.get(&self.number) == Some(&self.file) {
            all.remove(&self.number);
        }
    }
}

/// What file a descriptor's number is of now, as device and inode: `None` where it is of none. All event descriptors of the system are one
/// file, and two descriptors of a device file are not told apart.
pub fn file_of_number(number: RawFd) -> Option<(u64, u64)> {
    if number < 0 {
        return None;
    }
    // SAFETY: the number is borrowed for the call only, which fails where it is none.
    file_of(unsafe { BorrowedFd::borrow_raw(number) }).ok()
}

fn file_of(fd: BorrowedFd<'_>) -> Result<File, rustix::io::Errno> {
    let found = rustix::fs::fstat(fd)?;
    Ok((found.st_dev, found.st_ino))
}

/// Replaces this process's copies of its parent's [`Uninherited`] descriptors with `/dev/null`, so that their numbers stay taken: the
/// objects that own them exist here too. A number that the program has reused is not changed. Everything done here is allowed
/// between `fork()` and `exec()`.
///
/// # Safety
///
/// The calling thread is the only one of a process that was just forked and holds [`kept`], and the descriptors' files are not
/// used any more.
unsafe fn take_from_child() {
    // SAFETY: this thread holds the lock by the contract of this function, so nobody else looks at its place.
    let Some(all) = (unsafe { (*UNINHERITED.held.get()).as_deref() }) else { return };
    // SAFETY: the path is a C string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    for (&number, &file) in all {
        if file_of_number(number) != Some(file) {
            continue;
        }
        // SAFETY: the number is of a descriptor that this crate opened, and that nobody uses here, by the contract of this function.
        unsafe {
            if null < 0 || libc::dup3(null, number, libc::O_CLOEXEC) < 0 {
                libc::close(number);
            }
        }
    }
    if null >= 0 {
        // SAFETY: opened above, and nobody else's.
        unsafe { libc::close(null) };
    }
}

/// A lock of any type.
pub trait Holdable: Sync {
    /// Takes the lock before a fork.
    fn hold(&'static self);

    /// Releases it after the fork.
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

    /// In a child, which ends at once, whether what it finds is right.
    fn in_child(is_right: impl FnOnce() -> bool) -> bool {
        use super::process::tests::{fork, holds_in_child};
        holds_in_child(fork, is_right)
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        (one.into(), other.into())
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri does not fork")]
    fn a_child_has_no_copy_and_the_number_stays_taken() {
        let (one, other) = pair();
        let inherited = other.as_raw_fd();
        let kept = Uninherited::open(|| Ok::<_, rustix::io::Errno>(one)).unwrap();
        let number = kept.as_fd().as_raw_fd();
        let (before, others) = (file_of_number(number), file_of_number(inherited));
        assert!(in_child(|| file_of_number(number).is_some()
            && file_of_number(number) != before
            && file_of_number(inherited) == others));
        assert_eq!(file_of_number(number), before, "the parent has its own");
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri does not fork")]
    fn what_the_program_put_at_the_number_stays_in_the_child() {
        let ((one, _), (other, _)) = (pair(), pair());
        let noted = Uninherited::open(|| Ok::<_, rustix::io::Errno>(one)).unwrap();
        let number = noted.as_fd().as_raw_fd();
        // SAFETY: the number is taken in one step, and owned by `noted` as before.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        let there = file_of_number(number);
        assert!(in_child(|| file_of_number(number) == there));
    }

    #[test]
    fn what_is_closed_is_forgotten_and_nothing_else() {
        let (one, other) = pair();
        let first = Uninherited::open(|| Ok::<_, rustix::io::Errno>(one)).unwrap();
        let number = first.as_fd().as_raw_fd();
        assert!(UNINHERITED.lock().contains_key(&number));
        // Another one has taken the number since.
        let Uninherited { fd, _noted: noted } = first;
        let file = file_of_number(other.as_raw_fd()).unwrap();
        UNINHERITED.lock().insert(number, file);
        drop(noted);
        assert_eq!(UNINHERITED.lock().remove(&number), Some(file));
        drop(fd);
    }
}
