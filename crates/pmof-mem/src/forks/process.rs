//! Which process made an object, known without a system call: by a page that the kernel clears in every child.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

/// The word that a fork clears in the child; null before it is needed.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// The word where the kernel clears none.
static ORDINARY: AtomicU64 = AtomicU64::new(0);

/// The last number that this process or an ancestor was given.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A process, as an object remembers the one that made it. To compare it with the caller's takes a few instructions.
///
/// Every child with memory of its own is another process, whatever made it: `fork()`, or `clone` as a bare system call. A child of `vfork()`
/// shares the memory of its parent, and counts as the same.
#[derive(Clone, Copy)]
pub struct Process {
    word: &'static AtomicU64,
    number: u64,
}

impl Process {
    /// The caller's.
    pub fn current() -> Self {
        let word = word();
        let known = word.load(Ordering::Relaxed);
        if known != 0 {
            return Self { word, number: known };
        }
        // A child has a copy of the counter: no ancestor has the number.
        let new = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
        let number = match word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new,
            Err(of_another_thread) => of_another_thread,
        };
        Self { word, number }
    }

    /// Whether it is the caller's. False in every child that was forked since.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("number", &self.number).finish_non_exhaustive()
    }
}

fn word() -> &'static AtomicU64 {
    // SAFETY: what is stored here is never freed.
    if let Some(word) = unsafe { WORD.load(Ordering::Acquire).as_ref() } {
        return word;
    }
    let made = cleared_by_kernel().unwrap_or(&ORDINARY);
    clear_in_children();
    match WORD.compare_exchange(ptr::null_mut(), ptr::from_ref(made).cast_mut(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // SAFETY: `WORD` holds only words that are never freed; another thread stored its own first, and this one's page stays mapped, unused.
        Err(of_another_thread) => unsafe { of_another_thread.as_ref() }.unwrap_or(made),
    }
}

/// A word on a page of its own, which reads as zero in every child. `None` before Linux 4.14, and in sandboxes that do not know the advice.
fn cleared_by_kernel() -> Option<&'static AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    if cfg!(miri) {
        return None;
    }
    let len_bytes = rustix::param::page_size();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?
    };
    // SAFETY: the page was mapped above, and nothing refers to it.
    unsafe {
        if madvise(page, len_bytes, Advice::LinuxWipeOnFork).is_err() {
            let _ = munmap(page, len_bytes);
            return None;
        }
    }
    // SAFETY: the page is aligned, readable, writable, zero, and never unmapped from here on.
    unsafe { page.cast::<AtomicU64>().as_ref() }
}

/// Has a handler of the C library's `fork()` clear the word, too: where the kernel does not, and where it only says so, as user-mode emulators have
/// done. A bare system call is not noticed there.
fn clear_in_children() {
    extern "C" fn clear() {
        // SAFETY: what is stored here is never freed.
        if let Some(word) = unsafe { WORD.load(Ordering::Relaxed).as_ref() } {
            word.store(0, Ordering::Relaxed);
        }
    }
    #[cfg(not(miri))]
    // SAFETY: the handler only loads a pointer and stores a number, which is allowed after a fork. Registered twice it does so twice.
    unsafe {
        libc::pthread_atfork(None, None, Some(clear));
    }
    #[cfg(miri)]
    let _ = clear as extern "C" fn();
}

/// A value of the process that made it. A child has a copy of it, which is never dropped there: what dropping would do, to threads that the
/// child does not have or to what it shares with its parent, is the parent's to do.
pub struct Own<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> Own<T> {
    /// Of the caller's process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: Process::current() }
    }

    /// Whether this is the process that made it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_current()
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Own<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped once, here, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In a child another thread of the parent may have left its locks locked.
        if self.is_here() { T::fmt(self, f) } else { f.write_str("<made before fork()>") }
    }
}

/// A value that every process makes for itself, and never drops. A child does not see its parent's.
#[derive(Debug)]
pub struct PerProcess<T: 'static>(AtomicPtr<(Process, T)>);

impl<T: Send + Sync> PerProcess<T> {
    /// Without a value.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// This process's value, which is made where there is none.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: what is stored here is never freed.
        if let Some((_, value)) = unsafe { found.as_ref() }.filter(|(process, _)| process.is_current()) {
            return value;
        }
        let own: &'static (Process, T) = Box::leak(Box::new((Process::current(), make())));
        let new = ptr::from_ref(own).cast_mut();
        match self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => &own.1,
            // SAFETY: the pointer holds only leaked values, which are never freed; another thread of this process stored its own first.
            Err(other) => unsafe { other.as_ref() }.map_or(&own.1, |(_, value)| value),
        }
    }
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::rc::Rc;

    use super::*;

    /// Whether `is_right` holds in a child, which ends at once. `fork` makes the child.
    pub(in crate::forks) fn holds_in_child(
        fork: impl FnOnce() -> libc::pid_t,
        is_right: impl FnOnce() -> bool,
    ) -> bool {
        let child = fork();
        assert!(child >= 0);
        if child == 0 {
            let code = i32::from(!is_right());
            // SAFETY: nothing of this process is to be done any more.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the place can be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    pub(in crate::forks) fn fork() -> libc::pid_t {
        // SAFETY: the child calls what a forked process may, and ends.
        unsafe { libc::fork() }
    }

    /// Past the C library and its handlers.
    fn bare_fork() -> libc::pid_t {
        // SAFETY: as for `fork`; without flags and a stack of its own the call is the same.
        (unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }) as libc::pid_t
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri does not fork")]
    fn child_is_another_process() {
        let here = Process::current();
        for fork in [fork, bare_fork] {
            assert!(here.is_current());
            let in_child = || {
                let is_known = !here.is_current();
                let child = Process::current();
                let in_grandchild = || !here.is_current() && !child.is_current() && Process::current().is_current();
                is_known
                    && child.is_current()
                    && !here.is_current()
                    && holds_in_child(fork, in_grandchild)
                    && child.is_current()
            };
            assert!(holds_in_child(fork, in_child));
        }
        assert!(here.is_current() && Process::current().is_current());
    }

    /// As an emulator that accepts the advice and does nothing.
    #[test]
    #[cfg_attr(miri, ignore = "miri does not fork")]
    fn handler_clears_where_kernel_does_not() {
        use rustix::mm::{Advice, madvise};
        let here = Process::current();
        // In a child, so that other tests of this process keep their page.
        assert!(holds_in_child(fork, move || {
            let child = Process::current();
            let page = WORD.load(Ordering::Relaxed).cast();
            // SAFETY: the page is never unmapped; the advice changes no byte of it.
            let is_kept = unsafe { madvise(page, rustix::param::page_size(), Advice::LinuxKeepOnFork) }.is_ok();
            let in_grandchild = || !child.is_current() && !here.is_current() && Process::current().is_current();
            is_kept && child.is_current() && holds_in_child(fork, in_grandchild) && child.is_current()
        }));
        assert!(here.is_current());
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri does not fork")]
    fn child_does_not_drop_what_is_its_parents() {
        let counted = Rc::new(());
        let own = Own::new(Rc::clone(&counted));
        assert!(holds_in_child(fork, move || {
            let is_theirs = !own.is_here() && format!("{own:?}") == "<made before fork()>";
            drop(own);
            let kept = Rc::strong_count(&counted);
            drop(Own::new(Rc::clone(&counted)));
            is_theirs && kept == 2 && Rc::strong_count(&counted) == 2
        }));
        let counted = Rc::new(());
        drop(Own::new(Rc::clone(&counted)));
        assert_eq!(Rc::strong_count(&counted), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri does not fork")]
    fn each_process_makes_its_own_value() {
        static MADE: PerProcess<u32> = PerProcess::new();
        assert_eq!(*MADE.get_or_make(|| 1), 1);
        assert!(holds_in_child(fork, || *MADE.get_or_make(|| 2) == 2 && *MADE.get_or_make(|| 3) == 2));
        assert_eq!(*MADE.get_or_make(|| 4), 1);
    }
}
