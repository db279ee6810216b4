//! A descriptor that is readable while there is something to collect.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{SetupError, error::system};

/// What shows an application whether there is something to collect.
pub trait ReadyFlag: fmt::Debug + Send + Sync {
    /// There is. Called again while it is set, and under locks: it waits for nothing.
    fn set(&self);

    /// There is nothing any more. In the same way.
    fn clear(&self);
}

/// Set and cleared under the lock of what it announces, so that the flag below says what the kernel shows.
#[derive(Debug)]
pub(crate) struct ReadySignal {
    fd: OwnedFd,
    is_set: AtomicBool,
}

impl ReadySignal {
    pub(crate) fn new() -> Result<Self, SetupError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { fd: eventfd(0, flags).map_err(system("eventfd"))?, is_set: AtomicBool::new(false) })
    }
}

impl ReadyFlag for ReadySignal {
    fn set(&self) {
        if !self.is_set.load(Ordering::Relaxed) {
            self.is_set.store(true, Ordering::Relaxed);
            let _ = rustix::io::write(&self.fd, &[1; 8]);
        }
    }

    fn clear(&self) {
        if self.is_set.load(Ordering::Relaxed) {
            self.is_set.store(false, Ordering::Relaxed);
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}

impl AsFd for ReadySignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
