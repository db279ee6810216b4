//! librpma over RDMA with the original's wire protocol: a reliable queue pair, the private data as given, and nothing else, so that
//! either end may be the original. No thread, and two descriptors per connection.

mod connection;
mod listen;
mod memory;
mod peer;
mod queue;
mod request;
mod shared;

use std::{
    ffi::c_int,
    os::fd::{AsFd, AsRawFd as _},
    sync::atomic::{AtomicBool, Ordering},
};

use pmof_mem::causes;
use pmof_verbs::{PostFailure, ReceiveFailure, RegisterError, VerbsError};

pub(crate) use self::{
    connection::{Conn, Posting},
    listen::Ep,
    memory::{DESCRIPTOR_BYTES, MrLocal, MrRemote, Usage},
    peer::Peer,
    queue::{Channel, Cq},
    request::{ConnReq, Wants},
    shared::Srq,
};
use crate::{
    error::{Code, Failure},
    handle::{is_non_blocking, set_blocking},
};

/// The blocking mode of a descriptor: it blocks until it was given out and the application set it to non-blocking.
#[derive(Debug, Default)]
struct Blocking {
    was_given: AtomicBool,
}

/// How long a wait sleeps before it checks whether its object was deleted.
const LOOK_MS: c_int = 200;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// There may be something.
    Ready,
    /// A signal came.
    Interrupted,
}

impl Blocking {
    /// The descriptor, which blocks from now on.
    fn give(&self, fd: &impl AsFd) -> c_int {
        let number = fd.as_fd().as_raw_fd();
        if !self.was_given.swap(true, Ordering::Relaxed) {
            set_blocking(number);
        }
        number
    }

    fn blocks(&self, fd: &impl AsFd) -> bool {
        !(self.was_given.load(Ordering::Relaxed) && is_non_blocking(fd.as_fd().as_raw_fd()))
    }

    /// Waits until the descriptor is readable, at most `timeout_ms` (-1: forever). Also returns `Ready` at the timeout.
    fn wait(fd: &impl AsFd, timeout_ms: c_int) -> Waited {
        let mut waited = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which can be written.
        let found = unsafe { libc::poll(&raw mut waited, 1, timeout_ms) };
        let is_signal = found < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
        if is_signal { Waited::Interrupted } else { Waited::Ready }
    }

    /// Whether the descriptor is readable now.
    fn is_readable(fd: &impl AsFd) -> bool {
        let mut looked = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one `pollfd` of this frame, which the call may write.
        unsafe { libc::poll(&raw mut looked, 1, 0) == 1 }
    }
}

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Self {
        Self::provider(causes(&error).to_string())
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let code = if matches!(error, RegisterError::NoMemory { .. }) { Code::NoMemory } else { Code::Provider };
        Self::new(code, causes(&error).to_string())
    }
}

impl From<PostFailure> for Failure {
    fn from(failure: PostFailure) -> Self {
        let is_missing = matches!(failure, PostFailure::Unsupported { .. });
        Self::new(if is_missing { Code::NotSupported } else { Code::Provider }, causes(&failure).to_string())
    }
}

impl From<ReceiveFailure> for Failure {
    fn from(failure: ReceiveFailure) -> Self {
        Self::provider(causes(&failure).to_string())
    }
}
