//! Which process this is, without asking the kernel: a system call would be felt in every persist.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

/// How often this process, and those that it comes from, forked since the first pool was opened.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Which of the processes that have this memory, each after a fork of the one before, the caller is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

extern "C" fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Process {
    /// This one, to be known again: forks are counted from the first call on.
    pub(crate) fn watched() -> Self {
        static WATCH: Once = Once::new();
        // SAFETY: the function only counts, which is allowed after a fork.
        WATCH.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(note_fork));
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is the caller's.
    pub(crate) fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
