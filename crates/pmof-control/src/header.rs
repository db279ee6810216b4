//! What the file of a pool begins with.

use pmof_terms::NATIVE_MAGIC;
use uuid::Uuid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    PoolState, ROSTER_BYTES, ROSTER_OFFSET, Roster,
    checksum::{crc32c, crc32c_append, is_all_zero},
};

#[cfg(test)]
mod tests;

/// Size of the header: one page, which never changes once the pool has its name.
pub const HEADER_BYTES: usize = 4096;

/// Where the page with the pool's [state](crate::PoolState) begins in the file, in bytes.
pub const STATE_OFFSET: u64 = HEADER_BYTES as u64;

/// Where user data begins in the file, in bytes. Offset 0 of the user is this offset of the file. Between the state page and it there is room for
/// what a pool keeps of its members and of writes under way.
pub const DATA_OFFSET: u64 = 64 << 10;

/// Where user data begins in a file of format 1, which has no state page.
const DATA_OFFSET_1: u64 = PAGE_BYTES;

/// Where user data begins in a file of format 2: right behind the state page.
const DATA_OFFSET_2: u64 = STATE_OFFSET + PAGE_BYTES;

/// The unit of a file's length.
const PAGE_BYTES: u64 = 4096;

/// Bytes of a pool that belong to whoever made it: as many as librpmem's pool attributes have.
pub const USER_FLAGS_BYTES: usize = 16;

/// Replicas of a pool, at most: the members of an epoch are the bits of one word.
pub const REPLICAS_MAX: u16 = 64;

/// Where the generation of format 1 lies in the header, in bytes; its checksum leaves these 8 bytes out.
const GENERATION_OFFSET: usize = 88;
const _: () = assert!(core::mem::offset_of!(RawHeader, generation) == GENERATION_OFFSET);

const MAJOR: u16 = 3;
const MINOR: u16 = 0;
const CHECKSUM_OFFSET: usize = HEADER_BYTES - 4;
const RESERVED_BYTES: usize = CHECKSUM_OFFSET - 100 - USER_FLAGS_BYTES;

/// Most user data a file can hold: its length, a signed 64-bit number, is a whole number of pages, those before the data among them.
pub const MAX_SIZE_BYTES: u64 = (1 << 63) - PAGE_BYTES - DATA_OFFSET;

/// The header of one replica of a pool: the first [`HEADER_BYTES`] bytes of its file. Peers never get rights to it.
///
/// Version 3.0, all numbers little-endian:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | magic `PMOFPOOL` |
/// | 8 | 2 | major version: 3; a reader refuses a higher one |
/// | 10 | 2 | minor version: 0; a reader accepts any |
/// | 12 | 4 | reserved, zero |
/// | 16 | 8 | incompatible features: a reader refuses a bit that it does not know; none is defined |
/// | 24 | 8 | compatible features: a reader ignores bits that it does not know; none is defined |
/// | 32 | 16 | UUID of the pool, the same on every replica |
/// | 48 | 16 | UUID of this replica |
/// | 64 | 8 | size of user data in bytes, at least 1 |
/// | 72 | 8 | offset of user data in the file: 65,536 |
/// | 80 | 8 | time of creation, seconds since 1970-01-01 UTC |
/// | 88 | 8 | zero |
/// | 96 | 2 | number of replicas when created, 1 to 64 |
/// | 98 | 2 | index of this replica, less than their number |
/// | 100 | 16 | user flags: whatever the pool's maker says of its contents; not looked at |
/// | 116 | 3976 | reserved, zero; with a higher minor version, ignored |
/// | 4092 | 4 | CRC32C of bytes 0..4092 with 88..96 taken as zero; lies here in every version |
///
/// The header never changes. What does is the [state](crate::PoolState), on the page behind it. In version 2.0 the data follows that page at once, at byte
/// 8192. Version 1.0 had no such page: its data begins at byte 4096, and bytes 88 to 95 are a generation, whose low half is the number and whose high half
/// that number's CRC32C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The format of the file.
    pub format: PoolFormat,
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
    /// Replicas of the pool when this one was created, 1 to [`REPLICAS_MAX`].
    pub replica_count: u16,
    /// Which of them this one is, from 0.
    pub replica_index: u16,
    /// What the pool's maker says of its contents, such as their format; not looked at.
    pub user_flags: [u8; USER_FLAGS_BYTES],
}

/// The formats of pool files that this version reads. Only the newest is made and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolFormat {
    /// Version 1.0: a generation in place of the state page.
    One {
        /// Grew when another replica was left behind; 0 at creation.
        generation: u32,
    },
    /// Version 2.0: data right behind the state page.
    Two,
    /// Version 3.0.
    Three,
}

impl PoolFormat {
    /// The major version.
    pub fn major(self) -> u16 {
        match self {
            Self::One { .. } => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

impl Header {
    /// Where user data begins in the file, in bytes.
    pub fn data_offset(&self) -> u64 {
        match self.format {
            PoolFormat::One { .. } => DATA_OFFSET_1,
            PoolFormat::Two => DATA_OFFSET_2,
            PoolFormat::Three => DATA_OFFSET,
        }
    }

    /// Length of the file in bytes. `None` above what a file can have, as no decoded header says.
    pub fn file_len_bytes(&self) -> Option<u64> {
        file_len_bytes(self.size_bytes).map(|len_bytes| len_bytes - (DATA_OFFSET - self.data_offset()))
    }

    /// The bytes of this header, in version 3.0.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut raw = RawHeader {
            magic: NATIVE_MAGIC,
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
        raw.checksum = crc32c(&raw.as_bytes()[..CHECKSUM_OFFSET]).into();
        zerocopy::transmute!(raw)
    }

    /// The header that `bytes` begin with. More than [`HEADER_BYTES`] may be given; the rest is not looked at.
    ///
    /// The checksum is judged before the version, so a newer version is reported only where the bytes are whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let probe = &bytes[..bytes.len().min(NATIVE_MAGIC.len())];
        if probe.is_empty() || *probe != NATIVE_MAGIC[..probe.len()] {
            return Err(HeaderError::NotAPool);
        }
        let Ok((raw, _)) = RawHeader::read_from_prefix(bytes) else {
            return Err(HeaderError::Truncated { len_bytes: bytes.len() });
        };
        let computed = checksum(&bytes[..CHECKSUM_OFFSET]);
        if raw.checksum.get() != computed {
            return Err(HeaderError::BadChecksum { stored: raw.checksum.get(), computed });
        }
        if raw.major.get() > MAJOR {
            return Err(HeaderError::NewerVersion { found: raw.major.get(), found_minor: raw.minor.get() });
        }
        if raw.incompatible_features.get() != 0 {
            return Err(HeaderError::UnknownFeature { flags: raw.incompatible_features.get() });
        }
        let format = raw.format()?;
        raw.check(format)?;
        Ok(Self {
            format,
            compatible_features: raw.compatible_features.get(),
            pool_uuid: Uuid::from_bytes(raw.pool_uuid),
            replica_uuid: Uuid::from_bytes(raw.replica_uuid),
            size_bytes: raw.size_bytes.get(),
            created_at_unix_s: raw.created_at_unix_s.get(),
            replica_count: raw.replica_count.get(),
            replica_index: raw.replica_index.get(),
            user_flags: raw.user_flags,
        })
    }
}

/// What bytes are that [`Header::decode`] finds to be no pool's, by all that is kept of a pool before its data. `bytes`: the first [`DATA_OFFSET`] of
/// the file, as far as there are any. The header alone may be lost: one that was overwritten is [`HeaderError::Overwritten`] where the state or
/// the roster of a pool is whole behind it, and [`HeaderError::Zeroed`] where nothing tells; all else is [`HeaderError::NotAPool`].
pub fn without_magic(bytes: &[u8]) -> HeaderError {
    let behind = |offset: u64| bytes.get(offset as usize..).unwrap_or_default();
    let has_state = behind(STATE_OFFSET)
        .get(..PAGE_BYTES as usize)
        .is_some_and(|page| !matches!(PoolState::read(PoolFormat::Three, 1, page), Err(HeaderError::BadState)));
    let has_roster = || {
        let slots = behind(ROSTER_OFFSET).get(..ROSTER_BYTES);
        slots.is_some_and(|slots| Roster::read(1, slots).is_ok_and(|(_, sequence)| sequence > 0))
    };
    match bytes.get(..HEADER_BYTES) {
        _ if has_state || has_roster() => HeaderError::Overwritten,
        Some(head) if is_all_zero(head) => HeaderError::Zeroed,
        _ => HeaderError::NotAPool,
    }
}

/// The number with its check, as it lies in a header of format 1.
fn generation_word(generation: u32) -> u64 {
    u64::from(generation) | u64::from(crc32c(&generation.to_le_bytes())) << 32
}

/// The checksum of a header's bytes, with those of format 1's generation taken as zero.
fn checksum(bytes: &[u8]) -> u32 {
    let (before, rest) = bytes.split_at(GENERATION_OFFSET);
    let sum = crc32c_append(crc32c(before), &[0; 8]);
    crc32c_append(sum, &rest[8..])
}

/// Why bytes are not the header of a pool that this version can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The magic is missing: these bytes are something else's.
    #[error("it is not a pool: it does not begin with PMOFPOOL")]
    NotAPool,
    /// The magic is missing, and what lies behind the header is a pool's.
    #[error(
        "its header was overwritten, and what lies behind it is a pool's; check the device and restore it from another replica"
    )]
    Overwritten,
    /// The magic is missing, and all of the header is zero: a pool that lost it, or a file that never was one.
    #[error(
        "it begins with zeroes: it is a pool whose header was lost, or never was a pool; check the device and restore it from \
         another replica"
    )]
    Zeroed,
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
    /// Neither copy of the state behind the header is whole.
    #[error("its state is damaged in both copies; check the device and restore it from another replica")]
    BadState,
    /// One slot of the state is damaged, and the program that wrote the other one kept its newest state in one slot only.
    #[error(
        "its newest state may be damaged, and the copy that is whole may be an older one, by which other replicas count that lack what was \
         acknowledged since: an earlier version of pmof wrote it; check the device. Where the others open without it, replace it (pmof pool replace); where none opens, \
         read what each has (pmof cp --min-replicas 1 MEMBER FILE), decide which has everything, and make the pool anew of that \
         (pmof pool rm --force, pmof cp FILE POOL)"
    )]
    UncertainState,
    /// Neither copy of the roster behind the state is whole.
    #[error("the list of its members is damaged in both copies; check the device and restore it from another replica")]
    BadRoster,
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
    fn format(&self) -> Result<PoolFormat, HeaderError> {
        match self.major.get() {
            1 => {}
            2 => return Ok(PoolFormat::Two),
            _ => return Ok(PoolFormat::Three),
        }
        let generation = self.generation.get() as u32;
        if self.generation.get() != generation_word(generation) {
            let stored = (self.generation.get() >> 32) as u32;
            return Err(HeaderError::BadChecksum { stored, computed: (generation_word(generation) >> 32) as u32 });
        }
        Ok(PoolFormat::One { generation })
    }

    fn check(&self, format: PoolFormat) -> Result<(), HeaderError> {
        let reserved_is_zero = self.reserved_low.get() == 0 && is_all_zero(&self.reserved);
        let (data_offset, has_generation) = match format {
            PoolFormat::One { .. } => (DATA_OFFSET_1, true),
            PoolFormat::Two => (DATA_OFFSET_2, false),
            PoolFormat::Three => (DATA_OFFSET, false),
        };
        let rules = [
            (self.major.get() != 0, "the major version is 0"),
            (self.data_offset.get() == data_offset, "user data does not begin where the version says"),
            (self.size_bytes.get() != 0, "the size of user data is 0"),
            (file_len_bytes(self.size_bytes.get()).is_some(), "the size is more than a file can have"),
            (self.replica_index.get() < self.replica_count.get(), "the replica's index is not below their number"),
            (has_generation || self.replica_count.get() <= REPLICAS_MAX, "there are more than 64 replicas"),
            (has_generation || self.generation.get() == 0, "bytes 88 to 95 are not zero"),
            (self.minor.get() > MINOR || reserved_is_zero, "reserved bytes are not zero"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(HeaderError::Inconsistent { what }),
            None => Ok(()),
        }
    }
}

/// Length of the file that holds `size_bytes` of user data: header, state and data, in whole pages. `None` above
/// [`MAX_SIZE_BYTES`].
pub fn file_len_bytes(size_bytes: u64) -> Option<u64> {
    (size_bytes <= MAX_SIZE_BYTES).then(|| DATA_OFFSET + size_bytes.next_multiple_of(PAGE_BYTES))
}
