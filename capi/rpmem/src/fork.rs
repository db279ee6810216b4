//! Identifies the process without a system call, whose cost would show in every persist.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

/// Number of forks of this process and its ancestors since the first pool was opened.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Identifies one of the processes that share this memory by forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

extern "C" fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Process {
    /// The current process: forks are counted from the first call on.
    pub(crate) fn watched() -> Self {
        static WATCH: Once = Once::new();
        // SAFETY: the function only counts, which is allowed after a fork.
        WATCH.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(note_fork));
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is the caller's process.
    pub(crate) fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
