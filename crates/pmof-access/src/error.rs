//! What can go wrong before a connection stands.

use std::{io, net::SocketAddr};

use pmof_mem::MemError;
use pmof_proto::{ConnectionError, Refusal};
use pmof_verbs::VerbsError;

use crate::{Location, RingRefusal, Transport};

/// Why an address was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text has no `scheme://`.
    #[error("{text:?} is no address: write tcp://HOST:PORT, verbs://HOST:PORT or shm:///PATH")]
    NoScheme {
        /// What was given.
        text: String,
    },
    /// No such transport, or not in this version.
    #[error("there is no transport {scheme:?}; there are tcp, shm and verbs")]
    UnknownTransport {
        /// What was given.
        scheme: String,
    },
    /// Host or port is missing or wrong.
    #[error("{text:?} lacks a host or a port between 0 and 65535: write tcp://HOST:PORT or verbs://HOST:PORT")]
    BadHostPort {
        /// What was given.
        text: String,
    },
    /// The path of a shared-memory address is missing or relative.
    #[error("{text:?} lacks the absolute path of a socket: write shm:///run/pmof.sock")]
    BadPath {
        /// What was given.
        text: String,
    },
}

/// Why a peer, queue or listener could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {}", listen_mend(address))]
    Listen {
        /// The address.
        address: Location,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This transport has addresses of another kind.
    #[error("{address} is no address of the transport {transport}")]
    WrongAddress {
        /// The address.
        address: Location,
        /// The transport.
        transport: Transport,
    },
    /// There is no authentication, so only this machine may connect unless the operator trusts the network.
    #[error(
        "will not listen on {address}: it can be reached from other machines and connections are not authenticated; use a loopback address and a tunnel such as ssh -L, or, where everybody who reaches this address may read and write its memory, say so (trust the network)"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// A declaration that the device itself contradicts.
    #[error(
        "the declaration that inbound writes reach the persistence domain is wrong for {device}: it is a software device, whose inbound writes are copies made by the CPU and stay in its caches; leave it out"
    )]
    InboundContradicted {
        /// The device.
        device: String,
    },
    /// RDMA is not to be had, or not as asked.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
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
        /// Its kind: `ConnectionRefused` or `NotFound` where nobody listens.
        kind: io::ErrorKind,
    },
    /// No answer in time.
    #[error(
        "{address} did not answer within {timeout_ms} ms; is it a pmof target, and is it alive, not stopped? A longer connect timeout (--connect-timeout) waits longer"
    )]
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
    /// The target offers the ring to nobody now.
    #[error("{address} refused the connection: {refusal}")]
    RingRefused {
        /// The address.
        address: String,
        /// Why.
        refusal: RingRefusal,
    },
    /// A ring was named, and the transport has none.
    #[error("there are no rings over this transport: append over verbs (InfiniBand or RoCE), or write and flush")]
    NoRings,
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
    /// A short descriptor has 48 bits for the length.
    #[error(
        "a region of {len_bytes} bytes is too long for a short descriptor: register parts of it, each less than 2^48 bytes"
    )]
    TooLong {
        /// Length of the region.
        len_bytes: u64,
    },
    /// The device cannot reach the memory, for a reason that can be mended.
    #[error(transparent)]
    Device(#[from] pmof_verbs::RegisterError),
}

fn listen_mend(address: &Location) -> &'static str {
    match address {
        Location::Ip(_) => "choose another port, or 0 for a free one",
        Location::Path(_) => "name a socket in a directory that exists and is this user's own",
    }
}

pub(crate) fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> SetupError {
    move |errno| SetupError::System { call, source: errno.into() }
}
