//! Addresses of the access layer.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::transport::{LocalEnd, schemes};

/// How two peers reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// A TCP connection; the target's CPU serves it.
    Tcp,
    /// Memory shared by processes of one host, found through a Unix socket.
    Shm,
    /// RDMA verbs: `InfiniBand`, `RoCE`, iWARP.
    Verbs,
    /// A provider of libfabric.
    Fabric(FabricProvider),
    /// RDS: reliable datagrams between the hosts of RDMA devices, of the kernel.
    Rds,
}

/// A provider of libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FabricProvider {
    /// The first one that the library offers.
    Any,
    /// TCP, of the library itself.
    Tcp,
    /// TCP with datagram endpoints of its own, without the layer `ofi_rxm`: in libfabric 1.17. Later versions have it as tcp.
    Net,
    /// Memory shared by processes of one host, of the library itself.
    Shm,
    /// UDP, made reliable by the library.
    Udp,
    /// TCP, with connected endpoints.
    TcpConnected,
    /// RDMA verbs, by way of the library and its layer `ofi_rxm`.
    Verbs,
    /// RDMA verbs, with connected endpoints.
    VerbsConnected,
    /// Elastic Fabric Adapter.
    Efa,
    /// Omni-Path and others.
    Psm3,
    /// Slingshot.
    Cxi,
    /// TCP with a progress thread that sleeps: refused.
    Sockets,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.scheme())
    }
}

/// Where a target listens, once names are resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An IP address and a port; 0 picks a free one when listening.
    Ip(SocketAddr),
    /// The path of a Unix socket.
    Path(PathBuf),
}

impl Location {
    /// The IP address and port, where there is one.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Path(_) => None,
        }
    }

    /// The port; 0 where there is none.
    pub fn port(&self) -> u16 {
        self.socket_address().map_or(0, |address| address.port())
    }
}

impl From<SocketAddr> for Location {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Self {
        location.clone()
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::Path(path.to_owned())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// The port of an address that names none, and the one that `pmof serve` listens on.
pub const DEFAULT_PORT: u16 = 7204;

/// A transport and where to find the target: `tcp://HOST[:PORT]`, `verbs://HOST[:PORT]`, `fabric+PROVIDER://HOST[:PORT]`, `fabric://HOST[:PORT]`,
/// `rds://HOST[:PORT]` or `shm://PATH`. Without a port it is [`DEFAULT_PORT`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The transport.
    pub transport: Transport,
    /// Where the target is.
    pub place: Place,
}

/// Where a target is, as people write it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A host name or numeric address (IPv6 without brackets) and a port; 0 picks a free one when listening.
    Host {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// The path of a Unix socket, absolute.
    Path(PathBuf),
}

impl Place {
    /// What has to be resolved: the host's name, or the path.
    pub(crate) fn host(&self) -> String {
        match self {
            Self::Host { host, .. } => host.clone(),
            Self::Path(path) => path.display().to_string(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Host { host, port } => write!(f, "{host}:{port}"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl Address {
    /// The addresses that the name stands for: at least one.
    pub fn resolve(&self) -> io::Result<Vec<Location>> {
        match &self.place {
            Place::Path(path) => Ok(vec![Location::Path(path.clone())]),
            Place::Host { host, port } => {
                let found: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.map(without_mapping).collect();
                if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
            }
        }
    }
}

/// An address of IPv4 within IPv6 means one of IPv4, which is what goes over the wire.
fn without_mapping(address: SocketAddr) -> Location {
    Location::Ip(match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    })
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| AddressError::NoScheme { text: text.to_owned() })?;
        let unknown = || AddressError::UnknownTransport { scheme: scheme.to_owned() };
        let transport = Transport::of_scheme(scheme).ok_or_else(unknown)?;
        if transport.descriptor().local_end == LocalEnd::Path {
            let path = PathBuf::from(rest);
            if !path.is_absolute() || rest.ends_with('/') {
                return Err(AddressError::BadPath { text: text.to_owned() });
            }
            return Ok(Self { transport, place: Place::Path(path) });
        }
        let bad = || AddressError::BadHostPort { text: text.to_owned(), transport };
        // As URLs are completed by many a program: the root of the host.
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(bad)?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().map_err(|_| bad())?
            }
            None if port.is_empty() => DEFAULT_PORT,
            _ => return Err(bad()),
        };
        if host.is_empty() || host.contains('/') {
            return Err(bad());
        }
        let place = Place::Host { host: host.to_owned(), port };
        Ok(Self { transport, place })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.transport, self.place)
    }
}

/// Why an address was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text has no `scheme://`.
    #[error(
        "{text:?} is no address: write tcp://HOST[:PORT], verbs://HOST[:PORT], fabric+PROVIDER://HOST[:PORT], rds://HOST[:PORT] or shm:///PATH"
    )]
    NoScheme {
        /// What was given.
        text: String,
    },
    /// No such transport, or not in this version.
    #[error("there is no transport {scheme:?}; there are {}", schemes())]
    UnknownTransport {
        /// What was given.
        scheme: String,
    },
    /// The host is missing, or the port is wrong.
    #[error("{text:?} lacks a host, or its port is not between 0 and 65535: write {transport}://HOST[:PORT]")]
    BadHostPort {
        /// What was given.
        text: String,
        /// Its transport.
        transport: Transport,
    },
    /// The path of a shared-memory address is missing or relative.
    #[error("{text:?} lacks the absolute path of a socket: write shm:///run/pmof.sock")]
    BadPath {
        /// What was given.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in [
            "tcp://127.0.0.1:7204",
            "tcp://localhost:0",
            "tcp://[::1]:65535",
            "verbs://10.0.0.1:1",
            "fabric://10.0.0.1:1",
            "fabric+tcp://[::1]:0",
            "fabric+shm://127.0.0.1:1",
            "rds://10.0.0.1:1",
            "shm:///run/a.sock",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_address_without_a_port_has_the_usual_one() {
        for (text, full) in [("tcp://db1", "tcp://db1:7204"), ("verbs://[::1]", "verbs://[::1]:7204")] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), full);
        }
    }

    #[test]
    fn providers_are_found_by_what_the_library_calls_them() {
        for (name, is_connected, scheme) in [
            ("tcp", false, Some("fabric+tcp")),
            ("tcp;ofi_rxm", false, Some("fabric+tcp")),
            ("tcp", true, Some("fabric+tcp-msg")),
            ("verbs", true, Some("fabric+verbs-msg")),
            ("net", true, None),
            ("udp;ofi_rxd", false, Some("fabric+udp")),
            ("udp", false, None),
            ("tcpx", false, None),
            ("", false, None),
        ] {
            let found = FabricProvider::of_library_name(name, is_connected);
            assert_eq!(found.map(FabricProvider::scheme), scheme, "{name}");
        }
    }

    #[test]
    fn a_slash_at_the_end_is_the_hosts_root() {
        for text in ["tcp://h:7204/", "verbs://[::1]:7204/", "tcp://h/"] {
            assert_eq!(text.parse::<Address>(), text[..text.len() - 1].parse(), "{text}");
        }
        assert!("tcp://h:7204//".parse::<Address>().is_err() && "tcp:///".parse::<Address>().is_err());
    }

    #[test]
    fn wrong_addresses_say_which_rule() {
        let parse = |text: &str| text.parse::<Address>().unwrap_err();
        assert!(matches!(parse("127.0.0.1:1"), AddressError::NoScheme { .. }));
        for text in ["rdma://a:1", "fabric+nowhere://a:1"] {
            assert!(matches!(parse(text), AddressError::UnknownTransport { .. }), "{text}");
        }
        for text in ["shm://", "shm://run/a.sock", "shm:///run/"] {
            assert!(matches!(parse(text), AddressError::BadPath { .. }), "{text}");
        }
        for text in
            ["tcp://:1", "tcp://a:", "tcp://a:65536", "tcp://a:+1", "tcp://::1:1", "tcp://[::1:1", "tcp://a/b:1"]
        {
            assert!(matches!(parse(text), AddressError::BadHostPort { .. }), "{text}");
        }
        let error = parse("fabric+net://a:99999").to_string();
        assert!(error.ends_with("write fabric+net://HOST[:PORT]"), "{error}");
    }
}
