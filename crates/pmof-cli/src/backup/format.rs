//! What an export consists of: a header, records, and an end. Byte tables are in docs/design.md.

use std::{io, time::Duration};

use pmof::ConsistencyPoint;
use pmof_control::CONSISTENCY_POINT_BYTES;
use pmof_pool_set::Digest;
use uuid::Uuid;

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"PMOFEXPT";
const DIGESTS_MAGIC: [u8; 8] = *b"PMOFDGST";

pub(crate) const HEADER_BYTES: usize = HEADER_CRC + 4 + CONSISTENCY_POINT_BYTES;
/// Bytes that say what it is, and of which version.
pub(crate) const BEGIN_BYTES: usize = 12;
const HEADER_CRC: usize = 508;
pub(crate) const RECORD_BYTES: usize = 64;
const RECORD_CRC: usize = 60;

/// Bytes of a pool that have one digest, and are stored together or not at all.
pub(crate) const CHUNK_BYTES: u32 = 128 << 10;
/// What is read of other writers: memory is limited by it.
const CHUNK_BYTES_MIN: u32 = 4 << 10;
const CHUNK_BYTES_MAX: u32 = 4 << 20;

const CLOSED: u32 = 1;
const NOT_CLOSED: u32 = 2;
const POINT: u32 = 3;

const DATA: u32 = 1;
const ZEROES: u32 = 2;
const DIGESTS: u32 = 3;
const END: u32 = 4;

/// Why a stream is no export that can be used. Nothing of it has been kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FormatError {
    /// It begins otherwise.
    #[error("it is no export of a pool: it does not begin as one")]
    NotAnExport,
    /// It is of another pmof.
    #[error(
        "it is an export of format version {found}, and this pmof reads version {VERSION}: import it with the pmof that wrote it, or a later one"
    )]
    Version { found: u32 },
    /// The digests of an export are no export.
    #[error("it has only the digests of an export (`pmof pool export --digests`): import the export")]
    DigestsOnly,
    /// The stream ends too early.
    #[error("it is cut short: it ends at byte {at}, before its end record; copy it again, or use another export")]
    Cut { at: u64 },
    /// The header is damaged.
    #[error("its header is damaged; use another export")]
    Header,
    /// A record does not have its checksum, or is not where it belongs.
    #[error("it is damaged at byte {at}: no record is there that belongs there; use another export")]
    Record { at: u64 },
    /// Bytes do not have their digest.
    #[error("it is damaged: the bytes at offset {offset} of the pool do not have their digest; use another export")]
    Chunk { offset: u64 },
    /// It lacks bytes, and the exports that it is based on lack them, too.
    #[error(
        "it lacks the bytes at offset {offset} of the pool, and they are not in an export that it is based on; use another export"
    )]
    Missing { offset: u64 },
    /// All parts are sound, and not of the same export.
    #[error("its identifier is not that of its contents: it is put together from several exports; use another export")]
    Id,
    /// Something follows.
    #[error("something follows its end, at byte {at}: two exports in one file are not one; split them")]
    Trailing { at: u64 },
    /// An increment without what it is based on.
    #[error("it is an increment of export {base}: name that with --base")]
    NoBase { base: String },
    /// An increment of something else.
    #[error(
        "it is an increment of export {base}, and not of {found}, which comes before it: name the exports in the order in which they were made"
    )]
    WrongBase { base: String, found: String },
    /// A full export behind another export.
    #[error("it is a full export, and needs no export before it: leave --base out")]
    NoIncrement,
    /// Of another pool, or another size.
    #[error(
        "it is of pool {found} with {found_bytes} bytes, not of pool {pool} with {size_bytes} bytes: name exports of one pool"
    )]
    OtherPool { pool: Uuid, size_bytes: u64, found: Uuid, found_bytes: u64 },
    /// The table of digests does not fit.
    #[error("the digests of its pool of {size_bytes} bytes do not fit in memory")]
    Memory { size_bytes: u64 },
    /// It cannot be read.
    #[error("reading it failed at byte {at}")]
    Read { at: u64, source: io::Error },
}

impl FormatError {
    /// Whether the export was looked at and is not sound, as opposed to one that is not what was asked for, or cannot be read here.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::NotAnExport
            | Self::Cut { .. }
            | Self::Header
            | Self::Record { .. }
            | Self::Chunk { .. }
            | Self::Missing { .. }
            | Self::Id
            | Self::Trailing { .. } => true,
            Self::Version { .. }
            | Self::DigestsOnly
            | Self::NoBase { .. }
            | Self::WrongBase { .. }
            | Self::NoIncrement
            | Self::OtherPool { .. }
            | Self::Memory { .. }
            | Self::Read { .. } => false,
        }
    }
}

/// What an export begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportHeader {
    pub(crate) pool_uuid: Uuid,
    pub(crate) size_bytes: u64,
    pub(crate) user_flags: [u8; 16],
    pub(crate) chunk_bytes: u32,
    pub(crate) moment: Moment,
    /// The pool's openings for writing so far.
    pub(crate) opening: u64,
    /// When the export was made, in milliseconds since 1970.
    pub(crate) unix_ms: u64,
    /// The export that this one is an increment of.
    pub(crate) base: Option<Digest>,
}

/// Which moment of a pool an export has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Its writer had closed it.
    Closed,
    /// Its last writer died: what that one left, as a crash leaves it.
    NotClosed,
    /// What it was at a point that an asynchronous member kept.
    Point(ConsistencyPoint),
}

/// What a header is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Export,
    /// The digests of one, without its data.
    Digests,
}

/// What stands before each part of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// One chunk follows.
    Data { offset: u64, len_bytes: u32, digest: Digest },
    /// Chunks that are zeroes, and were not in the base.
    Zeroes { offset: u64, len_bytes: u64 },
    /// Digests of chunks follow, from the chunk `first` on.
    Digests { first: u64, len_bytes: u32, digest: Digest },
    /// The last one. `digests_at`: where in the stream the first record of digests is.
    End { digests_at: u64, id: Digest },
}

impl ExportHeader {
    pub(crate) fn to_bytes(&self, kind: Kind) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let moment = match &self.moment {
            Moment::Closed => CLOSED,
            Moment::NotClosed => NOT_CLOSED,
            Moment::Point(point) => {
                bytes[HEADER_CRC + 4..].copy_from_slice(&point.to_bytes());
                POINT
            }
        };
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, if kind == Kind::Export { &MAGIC } else { &DIGESTS_MAGIC });
        put(8, &VERSION.to_le_bytes());
        put(12, &moment.to_le_bytes());
        put(16, self.pool_uuid.as_bytes());
        put(32, &self.size_bytes.to_le_bytes());
        put(40, &self.user_flags);
        put(56, &self.chunk_bytes.to_le_bytes());
        put(60, &u32::from(self.base.is_some()).to_le_bytes());
        put(64, &self.opening.to_le_bytes());
        put(72, &self.unix_ms.to_le_bytes());
        put(80, &self.base.unwrap_or_default());
        let crc = crc32c::crc32c(&bytes[..HEADER_CRC]);
        bytes[HEADER_CRC..HEADER_CRC + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Which kind it is, by its first [`BEGIN_BYTES`], if it is of this version: all else may lie elsewhere in another.
    pub(crate) fn check_begin(bytes: &[u8]) -> Result<Kind, FormatError> {
        let kind = match array::<8>(bytes, 0) {
            MAGIC => Kind::Export,
            DIGESTS_MAGIC => Kind::Digests,
            _ => return Err(FormatError::NotAnExport),
        };
        let found = number(bytes, 8);
        if found == VERSION { Ok(kind) } else { Err(FormatError::Version { found }) }
    }

    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, Kind), FormatError> {
        let kind = Self::check_begin(bytes)?;
        let (moment, point) = (number(bytes, 12), &bytes[HEADER_CRC + 4..]);
        let is_plain = point.iter().all(|byte| *byte == 0);
        let moment = match moment {
            CLOSED if is_plain => Some(Moment::Closed),
            NOT_CLOSED if is_plain => Some(Moment::NotClosed),
            POINT => ConsistencyPoint::parse(&array(bytes, HEADER_CRC + 4)).map(Moment::Point),
            _ => None,
        };
        let header = Self {
            pool_uuid: Uuid::from_bytes(array(bytes, 16)),
            size_bytes: u64::from_le_bytes(array(bytes, 32)),
            user_flags: array(bytes, 40),
            chunk_bytes: number(bytes, 56),
            moment: moment.ok_or(FormatError::Header)?,
            opening: u64::from_le_bytes(array(bytes, 64)),
            unix_ms: u64::from_le_bytes(array(bytes, 72)),
            base: (number(bytes, 60) == 1).then(|| array(bytes, 80)),
        };
        let is_sound = number(bytes, HEADER_CRC) == crc32c::crc32c(&bytes[..HEADER_CRC])
            && header.size_bytes > 0
            && header.chunk_bytes.is_power_of_two()
            && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&header.chunk_bytes);
        if is_sound { Ok((header, kind)) } else { Err(FormatError::Header) }
    }

    /// The chunks of the pool.
    pub(crate) fn chunks(&self) -> u64 {
        self.size_bytes.div_ceil(self.chunk_bytes.into())
    }

    /// Bytes of the chunk at an offset: the last may be shorter.
    pub(crate) fn chunk_len(&self, offset: u64) -> u64 {
        u64::from(self.chunk_bytes).min(self.size_bytes.saturating_sub(offset))
    }

    /// When the pool was what the export has, since 1970.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(match &self.moment {
            Moment::Point(point) => point.unix_ms,
            Moment::Closed | Moment::NotClosed => self.unix_ms,
        })
    }

    /// The export's identifier: the digest of the header, without what it is of, and of the digests of all chunks.
    pub(crate) fn id(&self, digests: &[Digest]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let bytes = self.to_bytes(Kind::Export);
        hasher.update(&bytes[8..HEADER_CRC]).update(&bytes[HEADER_CRC + 4..]);
        hasher.update(digests.as_flattened());
        *hasher.finalize().as_bytes()
    }

    /// Fails unless both are of one pool.
    pub(crate) fn check_same_pool(&self, found: &Self) -> Result<(), FormatError> {
        let is_same = (self.pool_uuid, self.size_bytes, self.chunk_bytes)
            == (found.pool_uuid, found.size_bytes, found.chunk_bytes);
        if is_same {
            return Ok(());
        }
        Err(FormatError::OtherPool {
            pool: self.pool_uuid,
            size_bytes: self.size_bytes,
            found: found.pool_uuid,
            found_bytes: found.size_bytes,
        })
    }
}

impl Record {
    pub(crate) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let (kind, len_bytes, place, more, digest) = match self {
            Self::Data { offset, len_bytes, digest } => (DATA, len_bytes, offset, 0, digest),
            Self::Zeroes { offset, len_bytes } => (ZEROES, 0, offset, len_bytes, Digest::default()),
            Self::Digests { first, len_bytes, digest } => (DIGESTS, len_bytes, first, 0, digest),
            Self::End { digests_at, id } => (END, 0, digests_at, 0, id),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&len_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&place.to_le_bytes());
        bytes[16..24].copy_from_slice(&more.to_le_bytes());
        bytes[24..56].copy_from_slice(&digest);
        let crc = crc32c::crc32c(&bytes[..RECORD_CRC]);
        bytes[RECORD_CRC..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a record. `None`: it is none, or damaged.
    pub(crate) fn parse(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        if number(bytes, RECORD_CRC) != crc32c::crc32c(&bytes[..RECORD_CRC]) {
            return None;
        }
        let (len_bytes, digest) = (number(bytes, 4), array(bytes, 24));
        let [place, more] = [8, 16].map(|at| u64::from_le_bytes(array(bytes, at)));
        match number(bytes, 0) {
            DATA => Some(Self::Data { offset: place, len_bytes, digest }),
            ZEROES => Some(Self::Zeroes { offset: place, len_bytes: more }),
            DIGESTS => Some(Self::Digests { first: place, len_bytes, digest }),
            END => Some(Self::End { digests_at: place, id: digest }),
            _ => None,
        }
    }
}

/// The digest of some bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}

/// A digest, as people read it.
pub(crate) fn hex(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn array<const LEN: usize>(bytes: &[u8], at: usize) -> [u8; LEN] {
    let mut array = [0; LEN];
    array.copy_from_slice(&bytes[at..at + LEN]);
    array
}
