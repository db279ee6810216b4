//! What the file of a pool begins with.

use alloc::vec::Vec;
use core::ops::Range;

use pmof_terms::NATIVE_MAGIC;
use uuid::Uuid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{
    CopySteps, DIGEST_WORD_BYTES, INTENT_OFFSET, PAGE_BYTES, PoolState, ROSTER_BYTES, ROSTER_OFFSET, Roster,
    STATE_BYTES,
    checksum::{crc32c, crc32c_append, is_all_zero},
    page_count,
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

/// Bytes before the digest area of a file of format 4: its header, state, roster and map of write intent, and room for what [extensions](Extension) keep.
pub const HEAD_4_BYTES: u64 = 256 << 10;

/// Extensions that a header has room for.
pub const EXTENSIONS_MAX: usize = 16;

/// Bytes of a pool that belong to whoever made it: as many as librpmem's pool attributes have.
pub const USER_FLAGS_BYTES: usize = 16;

/// Replicas of a pool, at most: the members of an epoch are the bits of one word.
pub const REPLICAS_MAX: u16 = 64;

/// Where the generation of format 1 lies in the header, in bytes; its checksum leaves these 8 bytes out.
const GENERATION_OFFSET: usize = 88;
const _: () = assert!(core::mem::offset_of!(RawHeader, generation) == GENERATION_OFFSET);

const NEWEST_MAJOR: u16 = 4;
const MINOR: u16 = 0;
const CHECKSUM_OFFSET: usize = HEADER_BYTES - 4;
/// Where the copies of the header lie in format 4, in bytes.
const HEADER_PLACES_4: [u64; 4] = [0, 3 * PAGE_BYTES, 32 * PAGE_BYTES, 35 * PAGE_BYTES];
const STATE_PLACES_4: [u64; 4] = [PAGE_BYTES, 2 * PAGE_BYTES, 33 * PAGE_BYTES, 34 * PAGE_BYTES];
const ROSTER_PLACES_4: [u64; 4] = [4 * PAGE_BYTES, 8 * PAGE_BYTES, 36 * PAGE_BYTES, 40 * PAGE_BYTES];
const INTENT_OFFSET_4: u64 = 12 * PAGE_BYTES;
const RESERVED_BYTES: usize = CHECKSUM_OFFSET - 136 - EXTENSIONS_MAX * size_of::<RawExtension>();

/// Most user data a file can hold: its length, a signed 64-bit number, is a whole number of pages, those before the data among them.
pub const MAX_SIZE_BYTES: u64 = (1 << 63) - PAGE_BYTES - DATA_OFFSET;

/// The header of one replica of a pool: the first [`HEADER_BYTES`] bytes of its file. Peers never get rights to it.
///
/// Version 4.0, all numbers little-endian:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | magic `PMOFPOOL` |
/// | 8 | 2 | major version: 4; a reader refuses a higher one |
/// | 10 | 2 | minor version: 0; a reader accepts any |
/// | 12 | 4 | reserved, zero |
/// | 16 | 8 | incompatible features: a reader refuses a bit that it does not know; none is defined |
/// | 24 | 8 | compatible features: a reader ignores bits that it does not know; none is defined |
/// | 32 | 16 | UUID of the pool, the same on every replica |
/// | 48 | 16 | UUID of this replica |
/// | 64 | 8 | size of user data in bytes, at least 1 |
/// | 72 | 8 | offset of user data in the file, in whole pages: behind [`HEAD_4_BYTES`] and all extensions |
/// | 80 | 8 | time of creation, seconds since 1970-01-01 UTC |
/// | 88 | 8 | zero |
/// | 96 | 2 | number of replicas when created, 1 to 64 |
/// | 98 | 2 | index of this replica, less than their number |
/// | 100 | 16 | user flags: whatever the pool's maker says of its contents; not looked at |
/// | 116 | 8 | size in bytes that the pool can grow to, at least its size |
/// | 124 | 8 | sequence number of this header, from 1: one more with each change of the size |
/// | 132 | 2 | extensions that follow, at most 16 |
/// | 134 | 2 | zero |
/// | 136 | 24 n | [extensions](Extension), in ascending order of their offsets |
/// | | | reserved, zero; with a higher minor version, ignored |
/// | 4092 | 4 | CRC32C of bytes 0..4092 with 88..96 taken as zero; lies here in every version |
///
/// It lies in four blocks of the file, at bytes 0, 12,288, 131,072 and 143,360: the one with the highest sequence number counts among the whole ones.
///
/// In versions before 4 the header lies at byte 0 only and never changes, and bytes 116 to 4091 are zero. In version 3.0 the data begins at byte 65,536; in version 2.0
/// at byte 8192, right behind the page of the [state](crate::PoolState). Version 1.0 had no such page: its data begins at byte 4096, and bytes 88 to 95 are a generation, whose
/// low half is the number and whose high half that number's CRC32C.
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
    /// Where what format 4 keeps lies; of former formats empty.
    pub layout: FileLayout,
}

/// What a header of format 4 says besides: how far the pool can grow, and what lies before its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLayout {
    /// Which header of this file it is, from 1.
    pub sequence: u64,
    /// Bytes of user data that the pool can grow to.
    pub max_size_bytes: u64,
    /// Where user data begins in the file, in bytes.
    pub data_offset: u64,
    /// What else lies before the data, in the order of the offsets.
    pub extensions: Vec<Extension>,
}

/// Something that a file of format 4 keeps before its data, of 24 bytes in the header:
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 2 | kind: 1 the [page digests](crate::PageDigests) |
/// | 2 | 2 | version of that kind |
/// | 4 | 4 | bit 0: a program that does not know it must not read the pool; bit 1: it must not write it |
/// | 8 | 8 | offset in the file, at least 32,768 |
/// | 16 | 8 | length in bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// What it is.
    pub kind: u16,
    /// Which version of that.
    pub version: u16,
    /// What a program must not do that does not know it.
    pub flags: u32,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len_bytes: u64,
}

impl Extension {
    /// The kind of the page digests.
    pub const PAGE_DIGESTS: u16 = 1;
    /// Flag of an extension that a reader must know.
    pub const NEEDED_TO_READ: u32 = 1;
    /// Flag of an extension that a writer must know.
    pub const NEEDED_TO_WRITE: u32 = 2;

    fn is_known(&self) -> bool {
        self.kind == Self::PAGE_DIGESTS && self.version <= 1
    }
}

impl FileLayout {
    /// That of a new file of a pool that can grow to so many bytes, with digests of its pages. `None` above what a file can have.
    pub fn with_digests(max_size_bytes: u64) -> Option<Self> {
        // Whole pages of any kernel, of which other processes map the data.
        let len_bytes = (page_count(max_size_bytes) * DIGEST_WORD_BYTES).next_multiple_of(DATA_OFFSET);
        let data_offset = HEAD_4_BYTES + len_bytes;
        (max_size_bytes <= (1 << 63) - PAGE_BYTES - data_offset).then(|| Self {
            sequence: 1,
            max_size_bytes,
            data_offset,
            extensions: Vec::from([Extension {
                kind: Extension::PAGE_DIGESTS,
                version: 1,
                flags: Extension::NEEDED_TO_WRITE,
                offset: HEAD_4_BYTES,
                len_bytes,
            }]),
        })
    }

    /// Where the words of the [page digests](crate::PageDigests) lie in the file, if it has any.
    pub fn digests(&self) -> Option<Range<u64>> {
        let digests = self.extensions.iter().find(|extension| extension.kind == Extension::PAGE_DIGESTS)?;
        Some(digests.offset..digests.offset + digests.len_bytes)
    }

    /// What this program does not know and would have to know to write the pool.
    pub fn unknown_to_writers(&self) -> Option<Extension> {
        let unknown =
            |extension: &&Extension| !extension.is_known() && extension.flags & Extension::NEEDED_TO_WRITE != 0;
        self.extensions.iter().find(unknown).copied()
    }
}

/// The formats of pool files that this version reads. The two newest are made and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolFormat {
    /// Version 1.0: a generation in place of the state page.
    One {
        /// Grew when another replica was left behind; 0 at creation.
        generation: u32,
    },
    /// Version 2.0: data right behind the state page.
    Two,
    /// Version 3.0: no digests, and two copies of what must not be lost.
    Three,
    /// Version 4.0.
    Four,
}

impl PoolFormat {
    /// The major version.
    pub fn major(self) -> u16 {
        match self {
            Self::One { .. } => 1,
            Self::Two => 2,
            Self::Three => 3,
            Self::Four => 4,
        }
    }

    /// Whether pools of this format are opened for writing.
    pub fn is_writable(self) -> bool {
        matches!(self, Self::Three | Self::Four)
    }

    /// Where the copies of the header lie, in bytes.
    pub fn header_places(self) -> &'static [u64] {
        if self == Self::Four { &HEADER_PLACES_4 } else { &[0] }
    }

    /// Where the copies of the [state](PoolState) lie, in bytes; those of former formats as one page.
    pub fn state_places(self) -> &'static [u64] {
        if self == Self::Four { &STATE_PLACES_4 } else { &[STATE_OFFSET] }
    }

    /// Where the copies of the [roster](Roster) lie, in bytes; those of format 3 as one piece.
    pub fn roster_places(self) -> &'static [u64] {
        if self == Self::Four { &ROSTER_PLACES_4 } else { &[ROSTER_OFFSET] }
    }

    /// Bytes that lie at each place of the state.
    pub fn state_bytes(self) -> usize {
        if self == Self::Four { PAGE_BYTES as usize } else { STATE_BYTES }
    }

    /// Bytes that lie at each place of the roster.
    pub fn roster_bytes(self) -> usize {
        if self == Self::Four { ROSTER_BYTES / 2 } else { ROSTER_BYTES }
    }

    /// Where the [map of write intent](crate::IntentLayout) begins, in bytes.
    pub fn intent_offset(self) -> u64 {
        if self == Self::Four { INTENT_OFFSET_4 } else { INTENT_OFFSET }
    }
}

impl Header {
    /// Where user data begins in the file, in bytes.
    pub fn data_offset(&self) -> u64 {
        match self.format {
            PoolFormat::One { .. } => DATA_OFFSET_1,
            PoolFormat::Two => DATA_OFFSET_2,
            PoolFormat::Three => DATA_OFFSET,
            PoolFormat::Four => self.layout.data_offset,
        }
    }

    /// Length of the file in bytes. `None` above what a file can have, as no decoded header says.
    pub fn file_len_bytes(&self) -> Option<u64> {
        let len_bytes = self.data_offset().checked_add(self.size_bytes.checked_next_multiple_of(PAGE_BYTES)?)?;
        (len_bytes < 1 << 63).then_some(len_bytes)
    }

    /// Bytes before the data and the digests, which say what the pool is and are made durable before they are believed.
    pub fn head_bytes(&self) -> u64 {
        self.data_offset().min(HEAD_4_BYTES)
    }

    /// How the header replaces the copies in its file.
    pub fn steps(&self) -> CopySteps {
        let bytes = self.encode();
        let pairs = self.format.header_places().chunks(2);
        pairs.map(|pair| pair.iter().map(|place| (*place, bytes.to_vec())).collect()).collect()
    }

    /// The bytes of this header, in its format: 3 for formats before that.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let is_four = self.format == PoolFormat::Four;
        let mut extensions = [RawExtension::default(); EXTENSIONS_MAX];
        extensions.iter_mut().zip(&self.layout.extensions).for_each(|(raw, extension)| *raw = extension.into());
        let mut raw = RawHeader {
            magic: NATIVE_MAGIC,
            major: if is_four { 4.into() } else { 3.into() },
            minor: MINOR.into(),
            reserved_low: 0.into(),
            incompatible_features: 0.into(),
            compatible_features: self.compatible_features.into(),
            pool_uuid: *self.pool_uuid.as_bytes(),
            replica_uuid: *self.replica_uuid.as_bytes(),
            size_bytes: self.size_bytes.into(),
            data_offset: if is_four { self.layout.data_offset.into() } else { DATA_OFFSET.into() },
            created_at_unix_s: self.created_at_unix_s.into(),
            generation: 0.into(),
            replica_count: self.replica_count.into(),
            replica_index: self.replica_index.into(),
            user_flags: self.user_flags,
            max_size_bytes: self.layout.max_size_bytes.into(),
            sequence: self.layout.sequence.into(),
            extension_count: (self.layout.extensions.len().min(EXTENSIONS_MAX) as u16).into(),
            reserved_middle: 0.into(),
            extensions,
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
        if raw.major.get() > NEWEST_MAJOR {
            return Err(HeaderError::NewerVersion { found: raw.major.get(), found_minor: raw.minor.get() });
        }
        if raw.incompatible_features.get() != 0 {
            return Err(HeaderError::UnknownFeature { flags: raw.incompatible_features.get() });
        }
        let format = raw.format()?;
        raw.check(format)?;
        let layout = raw.layout(format)?;
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
            layout,
        })
    }

    /// The header of a file that may be of format 4: the newest of its copies that are whole, and whether all of them are the same. `begin`: the first [`HEAD_4_BYTES`] of the
    /// file, as many as there are.
    ///
    /// Where the file does not begin with the magic, all other copies have to be whole and the same: one damaged block hides no pool, and what has been overwritten by
    /// something else is not taken for one.
    ///
    /// # Errors
    /// Those of [`decode`](Self::decode), of what the file begins with.
    pub fn of_file(begin: &[u8]) -> Result<(Self, bool), HeaderError> {
        let first = match Self::decode(begin) {
            Ok(header) if header.format != PoolFormat::Four => return Ok((header, true)),
            Err(error @ (HeaderError::NewerVersion { .. } | HeaderError::UnknownFeature { .. })) => return Err(error),
            first => first,
        };
        let at = |place: &u64| begin.get(*place as usize..).and_then(|bytes| bytes.get(..HEADER_BYTES));
        let others = HEADER_PLACES_4[1..].iter().map(|place| at(place).and_then(|bytes| Self::decode(bytes).ok()));
        let others: Vec<_> = others.flatten().filter(|header| header.format == PoolFormat::Four).collect();
        let are_same = others.len() + 1 == HEADER_PLACES_4.len() && others.iter().all(|header| *header == others[0]);
        let is_replaced = matches!(first, Err(HeaderError::NotAPool));
        match (first, others.iter().max_by_key(|header| header.layout.sequence)) {
            (Ok(first), None) => Ok((first, false)),
            (Ok(first), Some(other)) if first.layout.sequence >= other.layout.sequence => {
                let is_kept = are_same && first == *other;
                Ok((first, is_kept))
            }
            (Ok(_), Some(other)) => Ok((other.clone(), false)),
            (Err(_), Some(other)) if are_same || !is_replaced => Ok((other.clone(), false)),
            (Err(error), _) => Err(error),
        }
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
    #[error(
        "its format is version {found}.{found_minor}, and this program knows up to {NEWEST_MAJOR}.x; use a newer pmof"
    )]
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
    /// It keeps something that this program does not know and that a program has to know to read or write it.
    #[error("it has an extension of kind {kind}, version {version}, that this program does not know; use a newer pmof")]
    UnknownExtension {
        /// What it is.
        kind: u16,
        /// Which version of that.
        version: u16,
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
    max_size_bytes: U64,
    sequence: U64,
    extension_count: U16,
    reserved_middle: U16,
    extensions: [RawExtension; EXTENSIONS_MAX],
    reserved: [u8; RESERVED_BYTES],
    checksum: U32,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtension {
    kind: U16,
    version: U16,
    flags: U32,
    offset: U64,
    len_bytes: U64,
}

impl From<&Extension> for RawExtension {
    fn from(extension: &Extension) -> Self {
        Self {
            kind: extension.kind.into(),
            version: extension.version.into(),
            flags: extension.flags.into(),
            offset: extension.offset.into(),
            len_bytes: extension.len_bytes.into(),
        }
    }
}

impl From<&RawExtension> for Extension {
    fn from(raw: &RawExtension) -> Self {
        Self {
            kind: raw.kind.get(),
            version: raw.version.get(),
            flags: raw.flags.get(),
            offset: raw.offset.get(),
            len_bytes: raw.len_bytes.get(),
        }
    }
}

impl RawHeader {
    fn format(&self) -> Result<PoolFormat, HeaderError> {
        match self.major.get() {
            1 => {}
            2 => return Ok(PoolFormat::Two),
            3 => return Ok(PoolFormat::Three),
            _ => return Ok(PoolFormat::Four),
        }
        let generation = self.generation.get() as u32;
        if self.generation.get() != generation_word(generation) {
            let stored = (self.generation.get() >> 32) as u32;
            return Err(HeaderError::BadChecksum { stored, computed: (generation_word(generation) >> 32) as u32 });
        }
        Ok(PoolFormat::One { generation })
    }

    fn check(&self, format: PoolFormat) -> Result<(), HeaderError> {
        let unused = self.extensions.iter().skip(self.extension_count.get().into());
        let reserved_is_zero = self.reserved_low.get() == 0
            && self.reserved_middle.get() == 0
            && is_all_zero(&self.reserved)
            && unused.clone().all(|raw| is_all_zero(raw.as_bytes()));
        let is_former = !matches!(format, PoolFormat::Four);
        let has_layout = self.max_size_bytes.get() != 0 || self.sequence.get() != 0 || self.extension_count.get() != 0;
        let (data_offset, has_generation) = match format {
            PoolFormat::One { .. } => (DATA_OFFSET_1, true),
            PoolFormat::Two => (DATA_OFFSET_2, false),
            PoolFormat::Three => (DATA_OFFSET, false),
            PoolFormat::Four => (self.data_offset.get(), false),
        };
        let end = |size_bytes: u64| size_bytes.checked_next_multiple_of(PAGE_BYTES)?.checked_add(data_offset);
        let fits = |size_bytes: U64| end(size_bytes.get()).is_some_and(|end| end < 1 << 63);
        let rules = [
            (self.major.get() != 0, "the major version is 0"),
            (self.data_offset.get() == data_offset, "user data does not begin where the version says"),
            (self.size_bytes.get() != 0, "the size of user data is 0"),
            (fits(self.size_bytes) && fits(self.max_size_bytes), "the size is more than a file can have"),
            (
                is_former || self.size_bytes.get() <= self.max_size_bytes.get(),
                "the size is more than the pool can grow to",
            ),
            (is_former || self.sequence.get() != 0, "its sequence number is 0"),
            (
                is_former || data_offset >= HEAD_4_BYTES && data_offset % PAGE_BYTES == 0,
                "user data begins before what the format keeps there, or within a page",
            ),
            (self.replica_index.get() < self.replica_count.get(), "the replica's index is not below their number"),
            (has_generation || self.replica_count.get() <= REPLICAS_MAX, "there are more than 64 replicas"),
            (has_generation || self.generation.get() == 0, "bytes 88 to 95 are not zero"),
            (self.minor.get() > MINOR || reserved_is_zero && !(is_former && has_layout), "reserved bytes are not zero"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(HeaderError::Inconsistent { what }),
            None => Ok(()),
        }
    }

    fn layout(&self, format: PoolFormat) -> Result<FileLayout, HeaderError> {
        if format != PoolFormat::Four {
            return Ok(FileLayout::default());
        }
        let inconsistent = |what| HeaderError::Inconsistent { what };
        let listed = self.extensions.get(..self.extension_count.get().into());
        let listed = listed.ok_or_else(|| inconsistent("it has more extensions than there is room for"))?;
        let extensions: Vec<Extension> = listed.iter().map(Extension::from).collect();
        let mut free_from = PAGE_BYTES * 8;
        for extension in &extensions {
            if !extension.is_known() && extension.flags & Extension::NEEDED_TO_READ != 0 {
                let (kind, version) = (extension.kind, extension.version);
                return Err(HeaderError::UnknownExtension { kind, version });
            }
            if extension.offset < free_from {
                return Err(inconsistent("its extensions overlap, or are not in order"));
            }
            free_from = extension.offset.saturating_add(extension.len_bytes);
        }
        if free_from > self.data_offset.get() {
            return Err(inconsistent("an extension reaches into the data"));
        }
        let layout = FileLayout {
            sequence: self.sequence.get(),
            max_size_bytes: self.max_size_bytes.get(),
            data_offset: self.data_offset.get(),
            extensions,
        };
        let needed = page_count(layout.max_size_bytes) * DIGEST_WORD_BYTES;
        if layout
            .digests()
            .is_some_and(|digests| digests.start % PAGE_BYTES != 0 || digests.end - digests.start < needed)
        {
            return Err(inconsistent("its digests have no room for all pages"));
        }
        Ok(layout)
    }
}

/// Length of the file of format 3 that holds `size_bytes` of user data: header, state and data, in whole pages. `None` above
/// [`MAX_SIZE_BYTES`].
pub fn file_len_bytes(size_bytes: u64) -> Option<u64> {
    (size_bytes <= MAX_SIZE_BYTES).then(|| DATA_OFFSET + size_bytes.next_multiple_of(PAGE_BYTES))
}
