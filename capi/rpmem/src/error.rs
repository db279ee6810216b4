//! Failures as a C program sees them: errno, and a message per thread.

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CStr, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

use libc::c_char;
use pmof_bootstrap::{SshError, SshHostError, StartFailure};
use pmof_control::NameError;
use pmof_mem::causes;
use pmof_pool::{PoolError, ReplicaError};

use crate::log::failed;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    why: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }

    /// An invalid argument.
    pub(crate) fn invalid(why: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, why)
    }
}

impl From<SshHostError> for Failure {
    fn from(error: SshHostError) -> Self {
        Self::invalid(causes(&error).to_string())
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        Self::invalid(causes(&error).to_string())
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        let errno = error.replica_error().map_or(libc::EINVAL, errno_of);
        match &error {
            // There is only one replica.
            PoolError::Persist(failure) => match &failure.failed[..] {
                [(replica, why), ..] => Self::new(errno, format!("{replica:#} failed: {}", causes(why))),
                [] => Self::new(libc::EIO, causes(&error).to_string()),
            },
            _ => Self::new(errno, causes(&error).to_string()),
        }
    }
}

/// The original's errno for the same failure, if it has one; docs/librpmem.md has the table.
fn errno_of(error: &ReplicaError) -> c_int {
    match error {
        ReplicaError::Ssh(error) => errno_of_ssh(error),
        ReplicaError::Refused { refusal, .. } => refusal.errno(),
        ReplicaError::Connect(_) | ReplicaError::NoDataPath { .. } => libc::ECONNREFUSED,
        ReplicaError::Impostor => libc::ECONNABORTED,
        ReplicaError::TimedOut { .. } => libc::ETIMEDOUT,
        ReplicaError::Control(_) | ReplicaError::Unexpected | ReplicaError::Descriptor(_) => libc::EPROTO,
        ReplicaError::NotDurable { .. } => libc::ENOTSUP,
        ReplicaError::Register(_) => libc::ENOMEM,
        _ => libc::ECONNRESET,
    }
}

fn errno_of_ssh(error: &SshError) -> c_int {
    match error {
        SshError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        SshError::TimedOut { .. } => libc::ETIMEDOUT,
        SshError::NotATarget { .. } | SshError::OtherVersion { .. } => libc::EPROTONOSUPPORT,
        SshError::Target { why, .. } => match why {
            StartFailure::Configuration => libc::EINVAL,
            StartFailure::NotFound => libc::ENOENT,
            StartFailure::NotPermitted => libc::EACCES,
            _ => libc::EREMOTEIO,
        },
        // No ssh, or it ended before the target answered. Not ENOENT, which says that there is no such set.
        _ => libc::ECONNRESET,
    }
}

/// Bytes of a message with its end, at most.
const MESSAGE_BYTES: usize = 8192;

/// A C string at a fixed address: programs keep the pointer across failed calls.
#[derive(Debug)]
struct Message(Box<[u8; MESSAGE_BYTES]>);

impl Message {
    fn set(&mut self, text: &str) {
        let mut len = text.len().min(MESSAGE_BYTES - 1);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        for (to, from) in self.0.iter_mut().zip(&text.as_bytes()[..len]) {
            *to = if *from == 0 { b'?' } else { *from };
        }
        self.0[len] = 0;
    }
}

thread_local! {
    static MESSAGE: RefCell<Message> = RefCell::new(Message(Box::new([0; MESSAGE_BYTES])));
}

/// Runs the body of a function of the interface. An error sets errno and this thread's message. A panic, which is a
/// defect of pmof, is caught here.
pub(crate) fn call<T>(function: &'static str, body: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(libc::EIO, panic_text(panic.as_ref())),
    };
    tell(function, failure);
    None
}

#[cold]
fn tell(function: &'static str, Failure { errno, why }: Failure) {
    failed(function, &why);
    // A thread that is ending cannot read it.
    let _ = MESSAGE.try_with(|message| message.borrow_mut().set(&why));
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a defect of pmof, please report it: {}", text.unwrap_or("no message"))
}

/// The text of a C string.
///
/// # Safety
///
/// `text` is null or a C string that stays as it is during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &'static str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    // SAFETY: not null, so a C string by the contract of this function.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}

/// The error message of this thread's last failed call; empty before. The pointer is valid until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn rpmem_errormsg() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().0.as_ptr().cast()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_to_their_place() {
        let mut message = Message(Box::new([1; MESSAGE_BYTES]));
        let text = |message: &Message| CStr::from_bytes_until_nul(&message.0[..]).unwrap().to_str().unwrap().to_owned();
        message.set("a\0b");
        assert_eq!(text(&message), "a?b");
        message.set(&"\u{e4}".repeat(MESSAGE_BYTES));
        assert_eq!(text(&message).len(), MESSAGE_BYTES - 2);
        message.set("");
        assert_eq!(text(&message), "");
    }
}
