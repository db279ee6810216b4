//! What the rest of pmof asks of a transport: a row for each, so that a further one is known wherever it matters.

use crate::{FabricProvider, Transport};

/// How two sides of a transport find each other, and what is opened on this machine for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalEnd {
    /// A socket's path; both sides are on this machine.
    Path,
    /// One end reaches all addresses.
    Any,
    /// One end, whose sockets are bound to an address of this machine: one may be chosen.
    Bound,
    /// A domain of libfabric for each address of this machine.
    Domain,
    /// An RDMA device, which the address of this machine or the way to the other one chooses.
    Device,
}

impl LocalEnd {
    /// Whether an address of this machine may be chosen to come from: `?source=IP` in URLs.
    pub fn takes_source(self) -> bool {
        matches!(self, Self::Bound | Self::Domain | Self::Device)
    }
}

/// What a transport is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TransportDescriptor {
    /// The scheme of its addresses, and its name in options of commands.
    pub scheme: &'static str,
    /// What people call it.
    pub name: &'static str,
    /// What carries its bytes, in a few words.
    pub summary: &'static str,
    /// Whether it is offered: what is not has addresses, and is refused with the reason when it is opened.
    pub is_offered: bool,
    /// The cargo feature that it is built with; `None`: it is always there.
    pub feature: Option<&'static str>,
    /// What is opened for it.
    pub local_end: LocalEnd,
    /// How the greeting of a side begins that speaks first over a TCP connection, where this transport meets over one.
    pub greeting_magic: Option<[u8; 4]>,
    /// What a target holds in memory for a connection, in bytes.
    pub connection_bytes: u64,
}

/// How greetings over libfabric and RDS begin.
pub(crate) const FABRIC_MAGIC: [u8; 4] = *b"pmoF";
pub(crate) const RDS_MAGIC: [u8; 4] = *b"pmoR";

/// What a target holds for a connection over any transport: the staging buffer of 16 KiB, its next request, one that waits, and the reply to
/// one, of 4 KiB each, the guarantee for its reads of 8 KiB, and what describes it.
const CONNECTION_BYTES: u64 = 48 << 10;

/// The same where a device has registered memory for staging (256 KiB) and for receives (128 KiB), and queues of its own.
const DEVICE_CONNECTION_BYTES: u64 = 512 << 10;

/// The same over datagrams of libfabric: what `tcp;ofi_rxm` of libfabric 1.17 takes for a connection (about 85 MiB), beside 256 KiB of buffers of ours.
const FABRIC_CONNECTION_BYTES: u64 = 96 << 20;

/// The same over RDS: 12 datagrams of 8 KiB each way, as many in the kernel, and the rest of every connection.
const RDS_CONNECTION_BYTES: u64 = 512 << 10;

const TCP: TransportDescriptor = TransportDescriptor {
    scheme: "tcp",
    name: "tcp",
    summary: "A TCP connection",
    is_offered: true,
    feature: None,
    local_end: LocalEnd::Any,
    greeting_magic: None,
    connection_bytes: CONNECTION_BYTES,
};

const SHM: TransportDescriptor = TransportDescriptor {
    scheme: "shm",
    name: "shm",
    summary: "Memory shared by processes of this machine",
    local_end: LocalEnd::Path,
    ..TCP
};

const VERBS: TransportDescriptor = TransportDescriptor {
    scheme: "verbs",
    name: "verbs",
    summary: "RDMA",
    is_offered: true,
    feature: Some("verbs"),
    local_end: LocalEnd::Device,
    greeting_magic: None,
    connection_bytes: DEVICE_CONNECTION_BYTES,
};

const RDS: TransportDescriptor = TransportDescriptor {
    scheme: "rds",
    name: "RDS",
    summary: "RDS, reliable datagrams of the kernel",
    is_offered: true,
    feature: Some("rds"),
    local_end: LocalEnd::Bound,
    greeting_magic: Some(RDS_MAGIC),
    connection_bytes: RDS_CONNECTION_BYTES,
};

/// Of the first provider that the library offers.
const FABRIC: TransportDescriptor = TransportDescriptor {
    scheme: "fabric",
    name: "libfabric",
    summary: "The first provider that libfabric offers",
    is_offered: true,
    feature: Some("fabric"),
    local_end: LocalEnd::Domain,
    greeting_magic: Some(FABRIC_MAGIC),
    connection_bytes: FABRIC_CONNECTION_BYTES,
};

/// A provider of libfabric: its transport, what the library calls it, and whether it has connected endpoints.
struct Provider {
    transport: TransportDescriptor,
    library_name: Option<&'static str>,
    is_connected: bool,
}

impl Provider {
    const fn new(scheme: &'static str, summary: &'static str, library_name: &'static str) -> Self {
        let transport = TransportDescriptor { scheme, summary, ..FABRIC };
        Self { transport, library_name: Some(library_name), is_connected: false }
    }

    /// The same with connected endpoints: no layer over the provider takes memory of its own.
    const fn connected(scheme: &'static str, summary: &'static str, library_name: &'static str) -> Self {
        Self { is_connected: true, ..Self::new(scheme, summary, library_name).without_layer() }
    }

    const fn refused(self) -> Self {
        Self { transport: TransportDescriptor { is_offered: false, ..self.transport }, ..self }
    }

    const fn without_layer(self) -> Self {
        let transport = TransportDescriptor { connection_bytes: DEVICE_CONNECTION_BYTES, ..self.transport };
        Self { transport, ..self }
    }
}

impl FabricProvider {
    /// Every one.
    pub const ALL: [Self; 12] = [
        Self::Any,
        Self::Tcp,
        Self::TcpConnected,
        Self::Net,
        Self::Shm,
        Self::Udp,
        Self::Verbs,
        Self::VerbsConnected,
        Self::Efa,
        Self::Psm3,
        Self::Cxi,
        Self::Sockets,
    ];

    const fn row(self) -> &'static Provider {
        match self {
            Self::Any => &const { Provider { transport: FABRIC, library_name: None, is_connected: false } },
            Self::Tcp => &const { Provider::new("fabric+tcp", "libfabric's provider tcp", "tcp") },
            Self::TcpConnected => {
                &const { Provider::connected("fabric+tcp-msg", "libfabric's provider tcp, with connected endpoints", "tcp") }
            }
            Self::Net => {
                const SUMMARY: &str = "libfabric's provider net, which became tcp in libfabric 1.18";
                &const { Provider::new("fabric+net", SUMMARY, "net").without_layer() }
            }
            Self::Shm => {
                &const { Provider::new("fabric+shm", "libfabric's provider shm, of this machine", "shm").refused() }
            }
            Self::Udp => &const { Provider::new("fabric+udp", "libfabric's provider udp", "udp;ofi_rxd") },
            Self::Verbs => {
                const SUMMARY: &str = "libfabric's provider verbs, with datagram endpoints";
                &const { Provider::new("fabric+verbs", SUMMARY, "verbs;ofi_rxm") }
            }
            Self::VerbsConnected => {
                const SUMMARY: &str = "libfabric's provider verbs, with connected endpoints";
                &const { Provider::connected("fabric+verbs-msg", SUMMARY, "verbs") }
            }
            Self::Efa => {
                &const { Provider::new("fabric+efa", "libfabric's provider efa, the Elastic Fabric Adapter", "efa") }
            }
            Self::Psm3 => {
                &const { Provider::new("fabric+psm3", "libfabric's provider psm3: Omni-Path and others", "psm3") }
            }
            Self::Cxi => &const { Provider::new("fabric+cxi", "libfabric's provider cxi: Slingshot", "cxi") },
            Self::Sockets => {
                &const { Provider::new("fabric+sockets", "libfabric's provider sockets", "sockets").refused() }
            }
        }
    }

    /// The scheme of its addresses.
    pub fn scheme(self) -> &'static str {
        self.row().transport.scheme
    }

    /// What the library calls it; `None` leaves the choice to the library.
    pub fn library_name(self) -> Option<&'static str> {
        self.row().library_name
    }

    /// Whether it has connected endpoints (`FI_EP_MSG`), one at each side of each connection; the others have reliable datagram endpoints.
    pub fn is_connected(self) -> bool {
        self.row().is_connected
    }

    /// The one with connected or datagram endpoints that the library calls so, with what it puts over it; `None` where addresses have no word
    /// for it.
    pub fn of_library_name(name: &str, is_connected: bool) -> Option<Self> {
        let named = |provider: &Self| {
            provider
                .library_name()
                .is_some_and(|own| name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with(';')))
        };
        Self::ALL.into_iter().filter(|provider| provider.is_connected() == is_connected).find(named)
    }
}

impl Transport {
    /// Every transport.
    pub const ALL: [Self; 16] = [
        Self::Tcp,
        Self::Shm,
        Self::Verbs,
        Self::Fabric(FabricProvider::Any),
        Self::Fabric(FabricProvider::Tcp),
        Self::Fabric(FabricProvider::TcpConnected),
        Self::Fabric(FabricProvider::Net),
        Self::Fabric(FabricProvider::Shm),
        Self::Fabric(FabricProvider::Udp),
        Self::Fabric(FabricProvider::Verbs),
        Self::Fabric(FabricProvider::VerbsConnected),
        Self::Fabric(FabricProvider::Efa),
        Self::Fabric(FabricProvider::Psm3),
        Self::Fabric(FabricProvider::Cxi),
        Self::Fabric(FabricProvider::Sockets),
        Self::Rds,
    ];

    /// What it is.
    pub const fn descriptor(self) -> &'static TransportDescriptor {
        match self {
            Self::Tcp => &TCP,
            Self::Shm => &SHM,
            Self::Verbs => &VERBS,
            Self::Fabric(provider) => &provider.row().transport,
            Self::Rds => &RDS,
        }
    }

    /// The scheme of its addresses.
    pub const fn scheme(self) -> &'static str {
        self.descriptor().scheme
    }

    /// The transport whose addresses have this scheme.
    pub fn of_scheme(scheme: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.scheme() == scheme)
    }
}

/// The schemes of the transports that this build offers, as an error lists them.
pub(crate) fn schemes() -> String {
    let is_built = |transport: &Transport| match transport.descriptor().feature {
        None => true,
        Some("verbs") => cfg!(feature = "verbs"),
        Some("fabric") => cfg!(feature = "fabric"),
        Some("rds") => cfg!(feature = "rds"),
        Some(_) => false,
    };
    let is_offered = |transport: &Transport| transport.descriptor().is_offered && is_built(transport);
    let schemes: Vec<_> = Transport::ALL.into_iter().filter(is_offered).map(Transport::scheme).collect();
    schemes.join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_transport_has_a_scheme_of_its_own() {
        let schemes: BTreeSet<_> = Transport::ALL.iter().map(|transport| transport.scheme()).collect();
        assert_eq!(schemes.len(), Transport::ALL.len());
        for transport in Transport::ALL {
            assert_eq!(Transport::of_scheme(transport.scheme()), Some(transport));
        }
        assert_eq!(Transport::of_scheme("tcpp"), None);
    }

    #[test]
    fn every_provider_is_a_transport() {
        let providers = Transport::ALL.iter().filter(|transport| matches!(transport, Transport::Fabric(_))).count();
        assert_eq!(providers, FabricProvider::ALL.len());
        for provider in FabricProvider::ALL.into_iter().filter(|provider| provider.library_name().is_some()) {
            let name = provider.library_name().unwrap();
            assert_eq!(FabricProvider::of_library_name(name, provider.is_connected()), Some(provider));
        }
    }

    #[test]
    fn a_greeting_tells_which_transport_it_is_of() {
        let magics: BTreeSet<_> =
            [TCP, SHM, VERBS, FABRIC, RDS].into_iter().filter_map(|descriptor| descriptor.greeting_magic).collect();
        assert_eq!(magics.len(), 2);
    }
}
