//! What both sides say first, over TCP.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::transport::RDS_MAGIC as MAGIC;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = size_of::<Raw>();

const VERSION: u16 = 1;

/// Least datagrams, and least bytes of each, that make a connection.
const DATAGRAMS_MIN: u16 = 4;
const DATAGRAM_BYTES_MIN: u32 = 64;

/// The greeting as it goes over the network.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    version: U16,
    datagrams: U16,
    datagram_bytes: U32,
    address: [u8; 4],
    port: U16,
    zero: [u8; 2],
}

/// What one side says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Datagrams that its socket holds, and bytes of each.
    pub(super) datagrams: u16,
    pub(super) datagram_bytes: u32,
    /// Where its RDS socket is bound.
    pub(super) at: SocketAddrV4,
}

impl Greeting {
    pub(super) fn encode(&self) -> [u8; GREETING_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            datagrams: self.datagrams.into(),
            datagram_bytes: self.datagram_bytes.into(),
            address: self.at.ip().octets(),
            port: self.at.port().into(),
            zero: [0; 2],
        };
        zerocopy::transmute!(raw)
    }

    /// None where it is not one of pmof, or of another version.
    pub(super) fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Self> {
        let raw = Raw::read_from_bytes(bytes).ok()?;
        let (datagrams, datagram_bytes) = (raw.datagrams.get(), raw.datagram_bytes.get());
        let at = SocketAddrV4::new(Ipv4Addr::from(raw.address), raw.port.get());
        let is_sane = raw.magic == MAGIC
            && raw.version.get() == VERSION
            && raw.zero == [0; 2]
            && datagrams >= DATAGRAMS_MIN
            && datagram_bytes >= DATAGRAM_BYTES_MIN
            && at.port() != 0
            && !at.ip().is_unspecified();
        is_sane.then_some(Self { datagrams, datagram_bytes, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_round_trip_and_others_are_refused() {
        let at = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 0x0102);
        let greeting = Greeting { datagrams: 12, datagram_bytes: 8192, at };
        let bytes = greeting.encode();
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
        // Magic, version, datagrams, their length, and what is zero.
        for (at, byte) in [(0, b'q'), (4, 2), (6, 3), (9, 0), (18, 1), (19, 1)] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(Greeting::decode(&wrong), None, "byte {at}");
        }
        // Neither port nor address.
        for range in [16..18, 12..16] {
            let mut wrong = bytes;
            wrong[range.clone()].fill(0);
            assert_eq!(Greeting::decode(&wrong), None, "{range:?}");
        }
    }
}
