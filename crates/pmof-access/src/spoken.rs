//! What the first bytes of a TCP connection say of the transport that the other side speaks: a target may listen over another one than it is called
//! by. Over libfabric and RDS the target speaks first, over TCP the initiator; so an initiator says at once the magic that its greeting begins with.

use std::{fmt, io, mem};

use pmof_mem::forks::Uninherited;
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::{FabricProvider, Transport};

/// How a welcome over TCP begins: its opcode, what is zero where it was accepted, and the magic.
const WELCOME: [u8; 8] = *b"\xf1\0\0\0PMOF";
/// The opcode of a hello.
const HELLO_OPCODE: u8 = 0xf0;

/// Where a greeting over libfabric has the name of the provider.
const PROVIDER_AT: usize = 16;

/// As much of what comes first as says all: a greeting over libfabric up to the end of its provider's name.
const BEGINNING_BYTES: usize = 48;

/// Nobody greets with more.
const GREETING_MAX_BYTES: usize = 512;

/// The other side speaks pmof over another transport than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherTransport {
    pub(crate) theirs: Transport,
    pub(crate) ours: Transport,
    /// This side called.
    pub(crate) is_initiator: bool,
}

impl fmt::Display for OtherTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { theirs, ours, is_initiator } = *self;
        write!(f, "it speaks pmof over {}, not {}: ", word(theirs, ours), word(ours, theirs))?;
        if is_initiator {
            write!(f, "use {}://", scheme(theirs))
        } else {
            write!(f, "it has to use {}://", scheme(ours))
        }
    }
}

impl std::error::Error for OtherTransport {}

impl From<OtherTransport> for io::Error {
    fn from(other: OtherTransport) -> Self {
        Self::new(io::ErrorKind::InvalidData, other)
    }
}

/// What people call a transport, beside another one: of two providers of libfabric, which.
pub(crate) fn word(transport: Transport, other: Transport) -> &'static str {
    let name = transport.descriptor().name;
    let is_of_two = name == other.descriptor().name && transport != Transport::Fabric(FabricProvider::Any);
    if is_of_two { transport.scheme() } else { name }
}

/// The scheme of its addresses; of libfabric where the provider is not known, how they are written.
pub(crate) fn scheme(transport: Transport) -> &'static str {
    match transport {
        Transport::Fabric(FabricProvider::Any) => "fabric+PROVIDER",
        transport => transport.scheme(),
    }
}

/// The provider that the sides of a connection call so between themselves.
pub(crate) fn provider(spoken: &str) -> Option<FabricProvider> {
    match spoken.strip_suffix("/msg") {
        Some(name) => FabricProvider::of_library_name(name, true),
        None => FabricProvider::of_library_name(spoken, false),
    }
}

/// Which transport speaks so.
fn transport_of(beginning: &[u8]) -> Option<Transport> {
    let begins = |transport: &Transport| {
        transport.descriptor().greeting_magic.is_some_and(|magic| beginning.starts_with(&magic))
    };
    match Transport::ALL.into_iter().find(begins) {
        Some(Transport::Fabric(any)) => {
            let name = beginning.get(PROVIDER_AT..BEGINNING_BYTES).and_then(|name| std::str::from_utf8(name).ok());
            let named = name.and_then(|name| provider(name.trim_end_matches('\0')));
            return Some(Transport::Fabric(named.unwrap_or(any)));
        }
        Some(other) => return Some(other),
        None => {}
    }
    let is_frame = matches!(beginning.first(), Some(&opcode) if opcode == HELLO_OPCODE || opcode == WELCOME[0]);
    (is_frame && beginning.get(4..8) == Some(&WELCOME[4..])).then_some(Transport::Tcp)
}

/// Looks at what the other side says first, and leaves it to be read. False: it has said nothing yet. What comes in pieces is not recognized.
///
/// # Errors
/// Of [`OtherTransport`], which the other side then can tell, too; and what the socket says.
pub(crate) fn listen_to(socket: &Uninherited, ours: Transport, is_initiator: bool) -> io::Result<bool> {
    let mut bytes = [0; BEGINNING_BYTES];
    let len = match recv(socket, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((len, _)) => len,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    let theirs = match transport_of(&bytes[..len]) {
        Some(theirs) if mem::discriminant(&theirs) != mem::discriminant(&ours) => theirs,
        _ => return Ok(true),
    };
    if !is_initiator {
        // What was not read would have the kernel throw away what was said.
        let _ = recv(socket, &mut [0; GREETING_MAX_BYTES], RecvFlags::DONTWAIT);
        if ours == Transport::Tcp {
            // It has said nothing yet. Failure means that the connection is gone.
            let _ = send(socket, &WELCOME, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
    Err(OtherTransport { theirs, ours, is_initiator }.into())
}

/// Whether what the other side says first over TCP is a welcome that refuses the connection. It is left to be read.
pub(crate) fn refuses(socket: &Uninherited) -> bool {
    /// The byte is zero where the connection was accepted.
    const REFUSAL_AT: usize = 2;
    let mut bytes = [0; WELCOME.len()];
    let heard = recv(socket, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    heard.is_ok_and(|(len, _)| len == WELCOME.len() && bytes[0] == WELCOME[0] && bytes[REFUSAL_AT] != 0)
}

/// Says the magic that this side's greeting begins with, before it is its turn. True: it is said.
#[cfg(any(feature = "fabric", feature = "rds"))]
pub(crate) fn announce(socket: &Uninherited, magic: [u8; 4]) -> io::Result<bool> {
    match send(socket, &magic, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        // The buffer of a new connection has room for it.
        Ok(count) if count == magic.len() => Ok(true),
        Ok(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::NOTCONN) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_is_known_by_its_first_bytes() {
        let mut greeting = [0; 64];
        greeting[..4].copy_from_slice(b"pmoF");
        for (name, provider) in [
            ("net", FabricProvider::Net),
            ("tcp;ofi_rxm", FabricProvider::Tcp),
            ("verbs/msg", FabricProvider::VerbsConnected),
            ("new", FabricProvider::Any),
        ] {
            greeting[16..48].fill(0);
            greeting[16..16 + name.len()].copy_from_slice(name.as_bytes());
            assert_eq!(transport_of(&greeting), Some(Transport::Fabric(provider)), "{name}");
        }
        assert_eq!(transport_of(b"pmoF"), Some(Transport::Fabric(FabricProvider::Any)));
        assert_eq!(transport_of(b"pmoR\x01"), Some(Transport::Rds));
        assert_eq!(transport_of(&WELCOME), Some(Transport::Tcp));
        assert_eq!(transport_of(b"\xf0\0\0\0PMOF\x01"), Some(Transport::Tcp));
        for other in [&b""[..], b"pmo", b"PMOF", b"\xf1\0\0\0PMO", b"\x01\0\0\0PMOF", b"GET / HTTP/1.1"] {
            assert_eq!(transport_of(other), None, "{other:?}");
        }
    }

    #[test]
    fn it_is_told_what_to_use() {
        let text = |theirs, ours, is_initiator| OtherTransport { theirs, ours, is_initiator }.to_string();
        let (any, net) = (Transport::Fabric(FabricProvider::Any), Transport::Fabric(FabricProvider::Net));
        let (tcp, rds) = (Transport::Tcp, Transport::Rds);
        assert_eq!(text(tcp, net, true), "it speaks pmof over tcp, not libfabric: use tcp://");
        assert_eq!(text(net, tcp, true), "it speaks pmof over libfabric, not tcp: use fabric+net://");
        assert_eq!(text(any, rds, true), "it speaks pmof over libfabric, not RDS: use fabric+PROVIDER://");
        assert_eq!(text(any, tcp, false), "it speaks pmof over libfabric, not tcp: it has to use tcp://");
        let of_tcp = Transport::Fabric(FabricProvider::Tcp);
        assert_eq!(text(net, of_tcp, true), "it speaks pmof over fabric+net, not fabric+tcp: use fabric+net://");
    }
}
