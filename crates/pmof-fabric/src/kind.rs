//! Kinds of endpoints, and how long their names are.

use std::fmt;

use pmof_fabric_sys as sys;

/// Bytes of the longest address of an endpoint that is known (`sockaddr_storage` has 128).
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// What kind of endpoints carry a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// Reliable datagram endpoints (`FI_EP_RDM`): the provider, or a layer over it, keeps connections.
    #[default]
    Datagram,
    /// Connected endpoints (`FI_EP_MSG`): one at each side of each connection.
    Connected,
}

impl EndpointKind {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Datagram => sys::FI_EP_RDM,
            Self::Connected => sys::FI_EP_MSG,
        }
    }
}

impl fmt::Display for EndpointKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Datagram => "reliable datagram",
            Self::Connected => "connected",
        })
    }
}
