//! What can go wrong before a connection is established.

use std::{io, net::SocketAddr};

use pmof_mem::{MemError, causes};
use pmof_proto::{ConnectionError, Refusal};

use crate::{
    address::{Location, Transport},
    local_user::NotTrusted,
    spoken::{self, OtherTransport},
};

/// Why a peer, queue or listener could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; {}", listen_mend(address))]
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
        "will not listen on {address}: it can be reached from other machines and connections are not authenticated; use a loopback address and a tunnel such as ssh -L, or, where everybody who reaches this address may read and write its memory, say so (`pmof serve --trust-network`, or the option `trust_network`)"
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
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] pmof_verbs::VerbsError),
    /// libfabric, or the provider, is not to be had.
    #[cfg(feature = "fabric")]
    #[error(transparent)]
    Fabric(#[from] pmof_fabric::FabricError),
    /// RDS is not to be had, or not at the address.
    #[cfg(feature = "rds")]
    #[error(transparent)]
    Rds(#[from] pmof_rds::RdsError),
    /// The transport was left out of this program.
    #[error("this program was built without the transport {transport}: build it with the feature {feature:?} of pmof")]
    NotBuilt {
        /// The transport.
        transport: Transport,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The caller's process was forked from the one that made this.
    #[error(
        "it was made before fork(): only the process that made it may use it; a child opens peers, queues and listeners of its own"
    )]
    Forked,
    /// The operating system refused a resource.
    #[error("{call} failed; see the limits of open files and memory (ulimit -a)")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Each error with its causes: none of them is the source of the whole.
fn tried(errors: &[ConnectError]) -> String {
    errors.iter().map(|error| causes(error).to_string()).collect::<Vec<_>>().join("; ")
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host name has no address.
    #[error("cannot resolve {host:?}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's answer.
        source: io::Error,
    },
    /// Nobody listens there, or there is no way there.
    #[error("cannot reach {address}: {why}{}", unreachable_mend(*kind))]
    Unreachable {
        /// The address.
        address: String,
        /// What the network said.
        why: String,
        /// Its kind: `ConnectionRefused` or `NotFound` where nobody listens.
        kind: io::ErrorKind,
    },
    /// A target is there, and speaks pmof over another transport.
    #[error("{address} speaks pmof over {}, not {}: use {}://{address}", spoken::word(*theirs, *ours), spoken::word(*ours, *theirs), spoken::scheme(*theirs))]
    OtherTransport {
        /// The address.
        address: String,
        /// The target's transport; of libfabric [`Any`](crate::FabricProvider::Any) where the provider is not known.
        theirs: Transport,
        /// That of the address that was given.
        ours: Transport,
    },
    /// On a loopback address, a process of another user answers, or the kernel does not say whose it is.
    #[error(
        "{address} is not trusted: {why}; --trust-host (`ConnectOptions::trust_host`) accepts any user's target there"
    )]
    NotTrusted {
        /// The address.
        address: String,
        /// Whose process answers; `None` where the kernel does not say.
        user: Option<u32>,
        /// The same in words.
        why: String,
    },
    /// None of the addresses that a name stands for was reached.
    #[error("no address of {host} was reached: {}", tried(errors))]
    NoneReached {
        /// The name.
        host: String,
        /// What became of each, in the order in which they were tried.
        errors: Vec<ConnectError>,
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
    #[error("{address} refused the connection: {refusal}{}", advice(*refusal))]
    Refused {
        /// The address.
        address: String,
        /// The rule.
        refusal: Refusal,
        /// What the target's application sent along.
        private_data: Vec<u8>,
    },
    /// The connection ended during the handshake.
    #[error("the connection to {address} ended during the handshake; is it a pmof target, and was it not killed?")]
    Ended {
        /// The address.
        address: String,
        /// Why.
        #[source]
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

/// Why a ring takes no connection. The number is what goes over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[repr(u32)]
pub enum RingRefusal {
    /// No ring of the target has the key.
    #[error("the target has no ring of that descriptor: ask for the descriptor of today")]
    Unknown = 1,
    /// Another connection appends to it.
    #[error("another connection appends to the ring: one at a time does, so end that one first")]
    InUse = 2,
    /// It holds records of an earlier connection.
    #[error("the target has not consumed the records of the connection before: try again when it has")]
    NotConsumed = 3,
    /// The medium refused a store or a flush.
    #[error("the medium of the ring failed: see the log of the target, check its device")]
    MediumFailed = 4,
}

const REFUSAL_MAGIC: &[u8; 4] = b"pmof";

impl RingRefusal {
    /// The private data of a rejection.
    pub(crate) fn encode(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(REFUSAL_MAGIC);
        bytes[4..].copy_from_slice(&(self as u32).to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 8] = bytes.get(..8)?.try_into().ok()?;
        let number = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let all = [Self::Unknown, Self::InUse, Self::NotConsumed, Self::MediumFailed];
        all.into_iter().find(|refusal| bytes[..4] == *REFUSAL_MAGIC && *refusal as u32 == number)
    }
}

/// Why a region was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Memory could not be had, or the range does not lie in it.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The operating system gave no random bytes for the key.
    #[error("no random key for the region")]
    Random {
        /// The system's answer.
        source: io::Error,
    },
    /// The caller's process was forked from the one that opened the peer, or registered the region.
    #[error(
        "the peer or region was made before fork(): only the process that made it may use it; a child opens a peer of its own, and registers there"
    )]
    Forked,
    /// A short descriptor has 48 bits for the length.
    #[error(
        "a region of {len_bytes} bytes is too long for a short descriptor: register parts of it, each less than 2^48 bytes"
    )]
    TooLong {
        /// Length of the region.
        len_bytes: u64,
    },
    /// The device cannot reach the memory, for a reason that can be mended.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Device(#[from] pmof_verbs::RegisterError),
}

/// What to look at where nobody is reached, after a semicolon; nothing where somebody answers.
fn unreachable_mend(kind: io::ErrorKind) -> &'static str {
    use io::ErrorKind as Kind;
    match kind {
        Kind::ConnectionRefused
        | Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::NotFound
        | Kind::TimedOut
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::UnexpectedEof
        | Kind::BrokenPipe => "; is the target running there? One that was told to stop takes no new connections",
        Kind::AddrNotAvailable => "; is what ?source names an address of this machine (`ip address` lists them)?",
        _ => "",
    }
}

fn listen_mend(address: &Location) -> &'static str {
    match address {
        Location::Ip(_) => {
            "name an address of this machine (`ip address` lists them) and a port that is free, or port 0 for any"
        }
        Location::Path(_) => "name a socket in a directory that exists and is this user's own",
    }
}

pub(crate) fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> SetupError {
    move |errno| SetupError::System { call, source: errno.into() }
}

pub(crate) fn unreachable(address: &Location, error: &io::Error) -> ConnectError {
    unmade(address.to_string(), error)
}

/// The error of a connection that its wire ended before it was established.
pub(crate) fn unmade(address: String, error: &io::Error) -> ConnectError {
    if let Some(refusal) = inner::<RingRefusal>(error) {
        ConnectError::RingRefused { address, refusal: *refusal }
    } else if let Some(OtherTransport { theirs, ours, .. }) = inner(error) {
        ConnectError::OtherTransport { address, theirs: *theirs, ours: *ours }
    } else if let Some(why) = inner::<NotTrusted>(error) {
        let user = if let NotTrusted::OtherUser(user) = why { Some(*user) } else { None };
        ConnectError::NotTrusted { address, user, why: why.to_string() }
    } else {
        ConnectError::Unreachable { address, why: causes(&error).to_string(), kind: error.kind() }
    }
}

/// What a layer below said, if it is of that kind.
fn inner<E: std::error::Error + 'static>(error: &io::Error) -> Option<&E> {
    error.get_ref()?.downcast_ref()
}

/// What to do at the target about a connection that it refused.
fn advice(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::TooManyConnections => "; pmof serve allows more with --max-connections",
        Refusal::NoMemory => {
            ", which takes 48 KiB over tcp and shm, 96 MiB over libfabric's datagram providers but net, and 512 KiB over all else; pmof serve has more with --memory-budget"
        }
        Refusal::ForeignUser => {
            "; pmof serve serves all users with --trust-host (see the target's log if you are one of them)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_round_trip() {
        for number in 0..6_u32 {
            let mut bytes = [0; 148];
            bytes[..4].copy_from_slice(REFUSAL_MAGIC);
            bytes[4] = number as u8;
            let refusal = RingRefusal::decode(&bytes);
            assert_eq!(refusal.map(RingRefusal::encode).as_ref().map(|bytes| &bytes[..]), refusal.map(|_| &bytes[..8]));
            assert_eq!(refusal.is_some(), (1..=4).contains(&number));
        }
        assert_eq!(RingRefusal::decode(b"pmox\x01\0\0\0"), None);
        assert_eq!(RingRefusal::decode(b"pmof\x01\0\0"), None);
    }
}
