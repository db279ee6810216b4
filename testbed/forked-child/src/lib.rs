//! Runs a part of a test in a child of `fork()`, as a program does that forks without `exec`: with all the memory of the parent, its descriptors, and
//! of its threads only the one that forked.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// After so long the kernel ends a child that hangs.
const HANGS_AFTER_S: u32 = 60;

/// A child that has not been waited for.
#[derive(Debug)]
#[must_use = "a child that is never waited for may fail unseen"]
pub struct Child(libc::pid_t);

/// Does `act` in a child, which ends behind it: with a failure if it panics, by a signal if it hangs. What `act` owns is dropped there; nothing
/// else of the test is.
///
/// # Panics
/// If the system has no process to spare.
pub fn fork(act: impl FnOnce()) -> Child {
    // SAFETY: the child goes on with a copy of this thread. What it meets that other threads had locked is what the test is about; one that hangs
    // is ended by its alarm.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", io::Error::last_os_error());
    if child != 0 {
        return Child(child);
    }
    // SAFETY: the default action of the signal ends the process.
    unsafe { libc::alarm(HANGS_AFTER_S) };
    let code = i32::from(catch_unwind(AssertUnwindSafe(act)).is_err());
    // SAFETY: nothing of the test is done here any more, the handlers of `exit` neither.
    unsafe { libc::_exit(code) }
}

impl Child {
    /// Waits for its end.
    ///
    /// # Panics
    /// If it panicked or hung.
    #[track_caller]
    pub fn succeed(self) {
        let mut status = 0;
        // SAFETY: the place can be written; the child is this process's own, and not waited for yet.
        let ended = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(ended, self.0, "waitpid: {}", io::Error::last_os_error());
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            assert_ne!(signal, libc::SIGALRM, "the child hung");
            panic!("the child died of signal {signal}");
        }
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed: see above");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_acts_on_its_own_copy() {
        let mut here = 1;
        fork(|| {
            here += 1;
            assert_eq!(here, 2);
        })
        .succeed();
        assert_eq!(here, 1);
    }

    #[test]
    #[should_panic(expected = "the child failed")]
    fn failure_in_child_is_seen() {
        fork(|| panic!("as it should")).succeed();
    }

    #[test]
    #[should_panic(expected = "died of signal 9")]
    fn death_of_child_is_seen() {
        // SAFETY: the child ends itself.
        fork(|| assert_eq!(unsafe { libc::raise(libc::SIGKILL) }, 0)).succeed();
    }
}
