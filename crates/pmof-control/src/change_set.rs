//! Change sets, as they are staged at an asynchronous member, and the consistency points that they lead to. Numbers are little-endian.

use alloc::{borrow::ToOwned as _, string::String};

use crate::checksum::crc32c;

#[cfg(test)]
mod tests;

/// Bytes of a change set before its body.
pub const CHANGE_SET_HEADER_BYTES: usize = 32;

/// Bytes before those of each write.
pub const CHANGE_HEADER_BYTES: usize = 16;

/// Bytes that a consistency point takes.
pub const CONSISTENCY_POINT_BYTES: usize = 512;

/// Longest name of a consistency point, in bytes.
pub const MAX_POINT_NAME_BYTES: usize = 255;

const MAGIC: [u8; 8] = *b"pmofchgs";
const POINT_MAGIC: [u8; 8] = *b"pmofcpnt";
const POINT_HEAD_BYTES: usize = 42;
const POINT_CHECKSUM: usize = CONSISTENCY_POINT_BYTES - 4;

/// What a change set says before its body.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `pmofchgs` |
/// | 8 | 8 | number of the change set; the first is 1 |
/// | 16 | 8 | bytes of the body |
/// | 24 | 4 | CRC32C of the body |
/// | 28 | 4 | CRC32C of the bytes before |
/// | 32 | | body: writes in their order, each a [`ChangeHeader`] and its bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeSetHeader {
    /// Which change set of its member it is; the first is 1.
    pub number: u64,
    /// Bytes of its body.
    pub body_bytes: u64,
    /// CRC32C of its body.
    pub body_crc: u32,
}

/// What stands before the bytes of one write: where in the pool they go, and how many there are, 8 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeHeader {
    /// Where in the pool.
    pub offset: u64,
    /// How many bytes.
    pub len_bytes: u64,
}

/// A moment in a pool's writes that an asynchronous member can be at.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `pmofcpnt` |
/// | 8 | 8 | number |
/// | 16 | 8 | opening of the writer |
/// | 24 | 8 | bytes that this writer had written since it opened the pool |
/// | 32 | 8 | milliseconds since 1970, by the writer's clock |
/// | 40 | 2 | bytes of the name |
/// | 42 | | name, at most 255 bytes of UTF-8; zeros behind it |
/// | 508 | 4 | CRC32C of the bytes before |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsistencyPoint {
    /// The change set that leads to it.
    pub number: u64,
    /// The opening for writing that it was made in.
    pub opening: u64,
    /// Bytes that were written in that opening before it.
    pub written_bytes: u64,
    /// When it was made, in milliseconds since 1970 by the writer's clock.
    pub unix_ms: u64,
    /// As the program named it; empty of one that was made by itself. At most [`MAX_POINT_NAME_BYTES`].
    pub name: String,
}

impl ChangeSetHeader {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; CHANGE_SET_HEADER_BYTES] {
        let mut bytes = [0; CHANGE_SET_HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header. `None`: it is none, or damaged.
    pub fn parse(bytes: &[u8; CHANGE_SET_HEADER_BYTES]) -> Option<Self> {
        let crc = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        let header = Self { number: word(bytes, 8)?, body_bytes: word(bytes, 16)?, body_crc: crc(24)? };
        let is_sound = bytes[..8] == MAGIC && crc(28)? == crc32c(&bytes[..28]) && header.number != 0;
        is_sound.then_some(header)
    }
}

impl ChangeHeader {
    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; CHANGE_HEADER_BYTES] {
        let mut bytes = [0; CHANGE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header. Any bytes are one: the change set's checksum says whether it is sound.
    pub fn parse(bytes: [u8; CHANGE_HEADER_BYTES]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self { offset: number as u64, len_bytes: (number >> 64) as u64 }
    }
}

impl ConsistencyPoint {
    /// The point's bytes. A longer name than there may be is cut.
    pub fn to_bytes(&self) -> [u8; CONSISTENCY_POINT_BYTES] {
        let mut bytes = [0; CONSISTENCY_POINT_BYTES];
        bytes[..8].copy_from_slice(&POINT_MAGIC);
        let words = [self.number, self.opening, self.written_bytes, self.unix_ms];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        let end = (0..=self.name.len().min(MAX_POINT_NAME_BYTES)).rev().find(|end| self.name.is_char_boundary(*end));
        let name = &self.name.as_bytes()[..end.unwrap_or(0)];
        bytes[40..42].copy_from_slice(&(name.len() as u16).to_le_bytes());
        bytes[POINT_HEAD_BYTES..POINT_HEAD_BYTES + name.len()].copy_from_slice(name);
        let crc = crc32c(&bytes[..POINT_CHECKSUM]);
        bytes[POINT_CHECKSUM..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a point. `None`: there is none, or it is damaged.
    pub fn parse(bytes: &[u8; CONSISTENCY_POINT_BYTES]) -> Option<Self> {
        let crc = u32::from_le_bytes(bytes[POINT_CHECKSUM..].try_into().ok()?);
        if bytes[..8] != POINT_MAGIC || crc != crc32c(&bytes[..POINT_CHECKSUM]) {
            return None;
        }
        let name_bytes = usize::from(u16::from_le_bytes([bytes[40], bytes[41]]));
        let name = bytes[POINT_HEAD_BYTES..POINT_CHECKSUM].get(..name_bytes)?;
        Some(Self {
            number: word(bytes, 8)?,
            opening: word(bytes, 16)?,
            written_bytes: word(bytes, 24)?,
            unix_ms: word(bytes, 32)?,
            name: core::str::from_utf8(name).ok()?.to_owned(),
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
