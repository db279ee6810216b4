//! The words of the command line for transports, methods of flush and levels of durability.

use std::{error::Error, str::FromStr};

use clap::ValueEnum;
use pmof::{Durability, Method, PoolOptions, access::Transport, causes};

/// A value parser that says all of why an argument is refused: clap prints the outermost error alone.
///
/// # Errors
/// The error of `T`, with its causes.
pub fn parsed<T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| causes(&*error.into()).to_string())
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    /// A TCP connection
    Tcp,
    /// Memory shared by processes of this machine
    Shm,
    /// RDMA
    Verbs,
}

impl TransportName {
    /// The transport of this name.
    pub fn transport(self) -> Transport {
        match self {
            Self::Tcp => Transport::Tcp,
            Self::Shm => Transport::Shm,
            Self::Verbs => Transport::Verbs,
        }
    }

    /// Its name, which is the scheme of its addresses.
    pub fn name(self) -> &'static str {
        self.transport().scheme()
    }
}

/// Methods of flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MethodName {
    /// The FLUSH operation of the devices at both ends
    NativeFlush,
    /// This side's CPU writes back shared memory
    LocalWriteBack,
    /// A read pushes the writes out of the target's device; durable only where inbound writes reach its persistence domain
    ReadAfterWrite,
    /// A message has the target's CPU flush
    SendAfterWrite,
}

impl MethodName {
    /// The method of this name.
    pub fn method(self) -> Method {
        match self {
            Self::NativeFlush => Method::NativeFlush,
            Self::LocalWriteBack => Method::LocalWriteBack,
            Self::ReadAfterWrite => Method::ReadAfterWrite,
            Self::SendAfterWrite => Method::SendAfterWrite,
        }
    }

    /// Options with the method, where one was asked for.
    pub fn force(name: Option<Self>, options: PoolOptions) -> PoolOptions {
        match name {
            None => options,
            Some(name) => options.method(name.method()),
        }
    }
}

/// Levels of durability.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Level {
    /// Others read the new bytes; no failure is survived
    Visible,
    /// The bytes survive the death of the target process
    ProcessCrash,
    /// The bytes survive loss of power
    PowerFailure,
}

impl Level {
    /// The level of this name.
    pub fn durability(self) -> Durability {
        match self {
            Self::Visible => Durability::Visible,
            Self::ProcessCrash => Durability::ProcessCrash,
            Self::PowerFailure => Durability::PowerFailure,
        }
    }
}
