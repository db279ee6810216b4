//! What both sides say first, over TCP.

use std::io;

use crate::transport::FABRIC_MAGIC as MAGIC;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = size_of::<Raw>();

/// Of the longest endpoint name and provider name.
const NAME_BYTES: usize = 256;
const PROVIDER_BYTES: usize = 32;

const VERSION: u16 = 1;

/// Least receives, and least bytes of each, that make a connection.
const RECEIVES_MIN: u16 = 4;
const RECEIVE_BYTES_MIN: u32 = 64;

/// The greeting as it goes over the network.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    version: U16,
    receives: U16,
    receive_bytes: U32,
    name_len: U16,
    zero: [u8; 2],
    provider: [u8; PROVIDER_BYTES],
    name: [u8; NAME_BYTES],
}

/// What one side says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Receives that it has posted, and bytes of each.
    pub(super) receives: u16,
    pub(super) receive_bytes: u32,
    /// The provider's name, at most so long as there is room for.
    pub(super) provider: String,
    /// The name of its endpoint.
    pub(super) name: Vec<u8>,
}

impl Greeting {
    pub(super) fn encode(&self) -> io::Result<[u8; GREETING_BYTES]> {
        let too_long = || io::Error::other("the provider's name or that of its endpoint is too long for a greeting");
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            receives: self.receives.into(),
            receive_bytes: self.receive_bytes.into(),
            name_len: u16::try_from(self.name.len()).map_err(|_| too_long())?.into(),
            zero: [0; 2],
            provider: [0; PROVIDER_BYTES],
            name: [0; NAME_BYTES],
        };
        let provider = raw.provider.get_mut(..self.provider.len()).ok_or_else(too_long)?;
        provider.copy_from_slice(self.provider.as_bytes());
        raw.name.get_mut(..self.name.len()).ok_or_else(too_long)?.copy_from_slice(&self.name);
        let mut bytes = [0; GREETING_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        Ok(bytes)
    }

    /// None where it is not one of pmof, or of another version.
    pub(super) fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Self> {
        let raw = Raw::read_from_bytes(bytes).ok()?;
        let (receives, receive_bytes) = (raw.receives.get(), raw.receive_bytes.get());
        let name = raw.name.get(..usize::from(raw.name_len.get()))?;
        let provider = std::str::from_utf8(&raw.provider).ok()?.trim_end_matches('\0');
        let is_sane = raw.magic == MAGIC
            && raw.version.get() == VERSION
            && raw.zero == [0; 2]
            && receives >= RECEIVES_MIN
            && receive_bytes >= RECEIVE_BYTES_MIN
            && !name.is_empty();
        is_sane.then(|| Self { receives, receive_bytes, provider: provider.to_owned(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_round_trip_and_others_are_refused() {
        let greeting =
            Greeting { receives: 16, receive_bytes: 8192, provider: "tcp;ofi_rxm".to_owned(), name: vec![7; 16] };
        let bytes = greeting.encode().unwrap();
        assert_eq!(Greeting::decode(&bytes), Some(greeting.clone()));
        // Magic, version, receives, their length, the name's length, and what is zero.
        for (at, byte) in [(0, b'q'), (4, 2), (6, 3), (9, 0), (12, 0), (13, 2), (14, 1)] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(Greeting::decode(&wrong), None, "byte {at}");
        }
        let long = Greeting { name: vec![0; 257], ..greeting };
        assert!(long.encode().is_err());
    }
}
