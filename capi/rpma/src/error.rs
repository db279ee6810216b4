//! The error codes of librpma, and what they stand for here.

use std::{borrow::Cow, ffi::c_int};

use libc::c_char;
use pmof_access::{ConnectError, MemError, PostError, RegisterError, SetupError};
use pmof_mem::causes;

use crate::log::Level;

/// A code, as librpma numbers them: -100000 - n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Unknown = -100_000,
    NotSupported = -100_001,
    Provider = -100_002,
    NoMemory = -100_003,
    Invalid = -100_004,
    NoCompletion = -100_005,
    NoEvent = -100_006,
    SharedChannel = -100_008,
    NotSharedChannel = -100_009,
}

/// Why a call failed; without a message if that is part of normal operation. Boxed, so that success is cheap.
#[derive(Debug)]
pub(crate) struct Failure(Box<Reason>);

#[derive(Debug)]
struct Reason {
    code: Code,
    level: Level,
    why: Cow<'static, str>,
}

impl Failure {
    #[cold]
    pub(crate) fn new(code: Code, why: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Reason { code, level: Level::Error, why: why.into() }))
    }

    /// The same, logged at this level.
    fn on(mut self, level: Level) -> Self {
        self.0.level = level;
        self
    }

    pub(crate) fn code(&self) -> Code {
        self.0.code
    }

    pub(crate) fn why(&self) -> &str {
        &self.0.why
    }

    pub(crate) fn level(&self) -> Level {
        self.0.level
    }

    /// An invalid argument.
    pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Invalid, why)
    }

    pub(crate) fn provider(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::Provider, why)
    }
}

/// A code of normal operation.
impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::new(code, "")
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        let code = match error {
            PostError::OutOfBounds { .. }
            | PostError::Misaligned { .. }
            | PostError::NoRight { .. }
            | PostError::SharedReceives => Code::Invalid,
            PostError::NotDurable { .. } | PostError::MethodRefused { .. } => Code::NotSupported,
            _ => Code::Provider,
        };
        // Programs post until the queue is full, and retry.
        let is_full = matches!(error, PostError::QueueFull { .. } | PostError::ReceiveQueueFull { .. });
        Self::new(code, causes(&error).to_string()).on(if is_full { Level::Debug } else { Level::Error })
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let is_full = matches!(error, RegisterError::Memory(MemError::NoSpace { .. }));
        Self::new(if is_full { Code::NoMemory } else { Code::Provider }, causes(&error).to_string())
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        Self::provider(causes(&error).to_string())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::provider(causes(&error).to_string())
    }
}

/// What an error code means, in English; for every number, and never `NULL`.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_err_2str(ret: c_int) -> *const c_char {
    let text = match ret {
        0 => c"Success",
        -100_001 => c"Not supported",
        -100_002 => c"Provider error occurred",
        -100_003 => c"Out of memory",
        -100_004 => c"Invalid argument",
        -100_005 => c"No next completion available",
        -100_006 => c"No next event available",
        -100_007 => c"Temporary error, try again",
        -100_008 => c"Completion channel is shared",
        -100_009 => c"Completion channel is not shared",
        _ => c"Unknown error",
    };
    text.as_ptr()
}

/// What a connection event means, in English; for every number, and never `NULL`.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_utils_conn_event_2str(event: c_int) -> *const c_char {
    let text = match event {
        -1 => c"Undefined connection event",
        0 => c"Connection established",
        1 => c"Connection closed",
        2 => c"Connection lost",
        3 => c"Connection rejected",
        4 => c"Connection unreachable",
        _ => c"Unsupported connection event",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_no_error_to_be_logged() {
        for full in [PostError::QueueFull { limit: 4 }, PostError::ReceiveQueueFull { limit: 4 }] {
            let failure = Failure::from(full);
            assert_eq!((failure.code(), failure.level()), (Code::Provider, Level::Debug));
        }
        assert_eq!(Failure::from(PostError::SharedReceives).level(), Level::Error);
    }
}
