//! What can go wrong before a connection stands.

use std::{io, net::SocketAddr};

use pmof_mem::MemError;
use pmof_proto::{ConnectionError, Refusal};

/// Why an address was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text has no `scheme://`.
    #[error("{text:?} is no address: write tcp://HOST:PORT")]
    NoScheme {
        /// What was given.
        text: String,
    },
    /// No such transport, or not in this version.
    #[error("transport {scheme:?} is not available in this build; there is: tcp")]
    UnknownTransport {
        /// What was given.
        scheme: String,
    },
    /// Host or port is missing or wrong.
    #[error("{text:?} lacks a host or a port between 0 and 65535: write tcp://HOST:PORT")]
    BadHostPort {
        /// What was given.
        text: String,
    },
}

/// Why a peer, queue or listener could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another port, or 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no authentication, so only this machine may connect.
    #[error(
        "will not listen on {address}: it can be reached from other machines and connections are not authenticated; use a loopback address and a tunnel such as ssh -L"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The operating system refused a resource.
    #[error("{call} failed: {source}; see the limits of open files and memory (ulimit -a)")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host name has no address.
    #[error("cannot resolve {host:?}: {source}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's answer.
        source: io::Error,
    },
    /// Nobody listens there, or there is no way there.
    #[error("cannot reach {address}: {why}; is the target running there?")]
    Unreachable {
        /// The address.
        address: String,
        /// What the network said.
        why: String,
    },
    /// No answer in time.
    #[error("{address} did not answer within {timeout_ms} ms; is it a pmof target, and is it alive?")]
    TimedOut {
        /// The address.
        address: String,
        /// The limit in milliseconds.
        timeout_ms: u64,
    },
    /// The target said no.
    #[error("{address} refused the connection: {refusal}")]
    Refused {
        /// The address.
        address: String,
        /// The rule.
        refusal: Refusal,
        /// What the target's application sent along.
        private_data: Vec<u8>,
    },
    /// The connection ended during the handshake.
    #[error("the connection to {address} ended during the handshake: {why}")]
    Ended {
        /// The address.
        address: String,
        /// Why.
        why: ConnectionError,
    },
    /// Private data too long.
    #[error("{len_bytes} bytes of private data are more than {limit_bytes}")]
    PrivateData {
        /// Bytes given.
        len_bytes: usize,
        /// Bytes allowed.
        limit_bytes: usize,
    },
    /// A resource is missing.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// Why a region was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Memory could not be had, or the range does not lie in it.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The operating system gave no random bytes for the key.
    #[error("no random key for the region: {source}")]
    Random {
        /// The system's answer.
        source: io::Error,
    },
}

pub(crate) fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> SetupError {
    move |errno| SetupError::System { call, source: errno.into() }
}
