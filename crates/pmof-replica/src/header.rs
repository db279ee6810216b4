//! What the file of a pool begins with.

use uuid::Uuid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

#[cfg(test)]
mod tests;

/// Size of the header: one page, so that user data begins on a page of its own and can be registered without it.
pub const HEADER_BYTES: usize = 4096;

/// Where user data begins in the file, in bytes. Offset 0 of the user is this offset of the file.
pub const DATA_OFFSET: u64 = HEADER_BYTES as u64;

/// Bytes of a pool that belong to whoever made it: as many as librpmem's pool attributes have.
pub const USER_FLAGS_BYTES: usize = 16;

/// Where the generation lies in the header, in bytes: divisible by 8.
pub(crate) const GENERATION_OFFSET: u64 = 88;
const _: () = assert!(std::mem::offset_of!(RawHeader, generation) == GENERATION_OFFSET as usize);

const MAGIC: [u8; 8] = *b"PMOFPOOL";
const MAJOR: u16 = 1;
const MINOR: u16 = 0;
const CHECKSUM_OFFSET: usize = HEADER_BYTES - 4;
const RESERVED_BYTES: usize = CHECKSUM_OFFSET - 100 - USER_FLAGS_BYTES;

/// Most user data a file can hold: its length, a signed 64-bit number, is a whole number of pages, one of them the header.
pub(crate) const MAX_SIZE_BYTES: u64 = (1 << 63) - 2 * DATA_OFFSET;

/// The header of one replica of a pool: the first [`HEADER_BYTES`] bytes of its file. Peers never get rights to it.
///
/// Version 1.0, all numbers little-endian:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | magic `PMOFPOOL` |
/// | 8 | 2 | major version: 1; a reader refuses a higher one |
/// | 10 | 2 | minor version: 0; a reader accepts any |
/// | 12 | 4 | reserved, zero |
/// | 16 | 8 | incompatible features: a reader refuses a bit that it does not know; none is defined |
/// | 24 | 8 | compatible features: a reader ignores bits that it does not know; none is defined |
/// | 32 | 16 | UUID of the pool, the same on every replica |
/// | 48 | 16 | UUID of this replica |
/// | 64 | 8 | size of user data in bytes, at least 1 |
/// | 72 | 8 | offset of user data in the file: 4096 |
/// | 80 | 8 | time of creation, seconds since 1970-01-01 UTC |
/// | 88 | 8 | generation: low 32 bits the number, 0 at creation; high 32 bits the CRC32C of these 4 bytes |
/// | 96 | 2 | number of replicas when created, at least 1 |
/// | 98 | 2 | index of this replica, less than their number |
/// | 100 | 16 | user flags: whatever the pool's maker says of its contents; not looked at |
/// | 116 | 3976 | reserved, zero; with a higher minor version, ignored |
/// | 4092 | 4 | CRC32C of bytes 0..4092 with the generation (88..96) taken as zero; lies here in every version |
///
/// The generation grows on the replicas in use when another one is left behind. It is one aligned word with a check of its
/// own, so that it can be changed in place by a store that a crash cannot tear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Compatible features, one a bit; unknown ones are ignored.
    pub compatible_features: u64,
    /// The pool, the same on every replica.
    pub pool_uuid: Uuid,
    /// This replica.
    pub replica_uuid: Uuid,
    /// Bytes of user data, at least 1.
    pub size_bytes: u64,
    /// When the replica was created, in seconds since 1970-01-01 UTC.
    pub created_at_unix_s: u64,
    /// Grows when another replica is left behind; 0 at creation.
    pub generation: u32,
    /// Replicas of the pool when this one was created, at least 1; for information.
    pub replica_count: u16,
    /// Which of them this one is, from 0; for information.
    pub replica_index: u16,
    /// What the pool's maker says of its contents, such as their format; not looked at.
    pub user_flags: [u8; USER_FLAGS_BYTES],
}

impl Header {
    /// The bytes of this header, in version 1.0.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = RawHeader {
            magic: MAGIC,
            major: MAJOR.into(),
            minor: MINOR.into(),
            reserved_low: 0.into(),
            incompatible_features: 0.into(),
            compatible_features: self.compatible_features.into(),
            pool_uuid: *self.pool_uuid.as_bytes(),
            replica_uuid: *self.replica_uuid.as_bytes(),
            size_bytes: self.size_bytes.into(),
            data_offset: DATA_OFFSET.into(),
            created_at_unix_s: self.created_at_unix_s.into(),
            generation: 0.into(),
            replica_count: self.replica_count.into(),
            replica_index: self.replica_index.into(),
            user_flags: self.user_flags,
            reserved: [0; RESERVED_BYTES],
            checksum: 0.into(),
        };
        raw.checksum = crc32c::crc32c(&raw.as_bytes()[..CHECKSUM_OFFSET]).into();
        raw.generation = generation_word(self.generation).into();
        zerocopy::transmute!(raw)
    }

    /// The header that `bytes` begin with. More than [`HEADER_BYTES`] may be given; the rest is not looked at.
    ///
    /// The checksum is judged before the version, so a newer version is reported only where the bytes are whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let probe = &bytes[..bytes.len().min(MAGIC.len())];
        if probe.is_empty() || *probe != MAGIC[..probe.len()] {
            return Err(HeaderError::NotAPool);
        }
        let Ok((raw, _)) = RawHeader::read_from_prefix(bytes) else {
            return Err(HeaderError::Truncated { len_bytes: bytes.len() });
        };
        let computed = checksum(&bytes[..CHECKSUM_OFFSET]);
        if raw.checksum.get() != computed {
            return Err(HeaderError::BadChecksum { stored: raw.checksum.get(), computed });
        }
        let generation = raw.generation.get() as u32;
        if raw.generation.get() != generation_word(generation) {
            let stored = (raw.generation.get() >> 32) as u32;
            return Err(HeaderError::BadChecksum { stored, computed: (generation_word(generation) >> 32) as u32 });
        }
        if raw.major.get() > MAJOR {
            return Err(HeaderError::NewerVersion { found: raw.major.get(), found_minor: raw.minor.get() });
        }
        if raw.incompatible_features.get() != 0 {
            return Err(HeaderError::UnknownFeature { flags: raw.incompatible_features.get() });
        }
        raw.check()?;
        Ok(Self {
            compatible_features: raw.compatible_features.get(),
            pool_uuid: Uuid::from_bytes(raw.pool_uuid),
            replica_uuid: Uuid::from_bytes(raw.replica_uuid),
            size_bytes: raw.size_bytes.get(),
            created_at_unix_s: raw.created_at_unix_s.get(),
            generation,
            replica_count: raw.replica_count.get(),
            replica_index: raw.replica_index.get(),
            user_flags: raw.user_flags,
        })
    }
}

/// The number with its check, as it lies at [`GENERATION_OFFSET`].
pub(crate) fn generation_word(generation: u32) -> u64 {
    u64::from(generation) | u64::from(crc32c::crc32c(&generation.to_le_bytes())) << 32
}

/// The checksum of a header's bytes, with the generation taken as zero.
fn checksum(bytes: &[u8]) -> u32 {
    let (before, rest) = bytes.split_at(GENERATION_OFFSET as usize);
    let sum = crc32c::crc32c_append(crc32c::crc32c(before), &[0; 8]);
    crc32c::crc32c_append(sum, &rest[8..])
}

/// Why bytes are not the header of a pool that this version can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The magic is missing: these bytes are something else's.
    #[error("it is not a pool: it does not begin with PMOFPOOL")]
    NotAPool,
    /// The magic is there, but not all of the header.
    #[error("only {len_bytes} of the header's {HEADER_BYTES} bytes are there; restore it from another replica")]
    Truncated {
        /// Bytes there are.
        len_bytes: usize,
    },
    /// Made by a newer program, in a way that this one cannot read.
    #[error("its format is version {found}.{found_minor}, and this program knows up to {MAJOR}.x; use a newer pmof")]
    NewerVersion {
        /// Its major version.
        found: u16,
        /// Its minor version.
        found_minor: u16,
    },
    /// It needs features that this program does not have.
    #[error("it needs features {flags:#x} that this program does not have; use a newer pmof")]
    UnknownFeature {
        /// The unknown features, one a bit.
        flags: u64,
    },
    /// The bytes changed since they were written.
    #[error(
        "its header is damaged: checksum {computed:#010x}, stored {stored:#010x}; check the device and restore it \
         from another replica"
    )]
    BadChecksum {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// Whole, but its fields contradict each other or the format.
    #[error("its header contradicts itself: {what}; restore it from another replica")]
    Inconsistent {
        /// The rule that it breaks.
        what: &'static str,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    major: U16,
    minor: U16,
    reserved_low: U32,
    incompatible_features: U64,
    compatible_features: U64,
    pool_uuid: [u8; 16],
    replica_uuid: [u8; 16],
    size_bytes: U64,
    data_offset: U64,
    created_at_unix_s: U64,
    generation: U64,
    replica_count: U16,
    replica_index: U16,
    user_flags: [u8; USER_FLAGS_BYTES],
    reserved: [u8; RESERVED_BYTES],
    checksum: U32,
}

impl RawHeader {
    fn check(&self) -> Result<(), HeaderError> {
        let reserved_is_zero = self.reserved_low.get() == 0 && self.reserved.iter().all(|byte| *byte == 0);
        let rules = [
            (self.major.get() == MAJOR, "the major version is 0"),
            (self.data_offset.get() == DATA_OFFSET, "user data does not begin at byte 4096"),
            (self.size_bytes.get() != 0, "the size of user data is 0"),
            (file_len_bytes(self.size_bytes.get()).is_some(), "the size is more than a file can have"),
            (self.replica_index.get() < self.replica_count.get(), "the replica's index is not below their number"),
            (self.minor.get() > MINOR || reserved_is_zero, "reserved bytes are not zero"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(HeaderError::Inconsistent { what }),
            None => Ok(()),
        }
    }
}

/// Length of the file that holds `size_bytes` of user data: header and data, in whole pages. `None` above
/// [`MAX_SIZE_BYTES`].
pub(crate) fn file_len_bytes(size_bytes: u64) -> Option<u64> {
    (size_bytes <= MAX_SIZE_BYTES).then(|| DATA_OFFSET + size_bytes.next_multiple_of(DATA_OFFSET))
}
