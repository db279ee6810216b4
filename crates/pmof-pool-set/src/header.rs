//! The header of a pool's parts, byte for byte as PMDK 1.12.1 has it (`struct pool_hdr`), all numbers little-endian.
//!
//! | offset | length | field |
//! |---|---|---|
//! | 0 | 8 | signature: `PMEMOBJ`, `PMEMLOG`, `PMEMBLK`, or what a user of librpmem chose |
//! | 8 | 4 | major version of the format behind the header: obj 6, log 1, blk 1 |
//! | 12 | 4 + 4 + 4 | features: compatible, incompatible, read-only compatible |
//! | 24 | 16 | UUID of the pool set |
//! | 40 | 16 | UUID of this part |
//! | 56 | 16 + 16 | UUIDs of the previous and the next part of the replica, a ring |
//! | 88 | 16 + 16 | UUIDs of the first parts of the previous and the next replica, a ring |
//! | 120 | 8 | time of creation, seconds since 1970 |
//! | 128 | 16 | architecture, see [`Arch`] |
//! | 144 | 1904 | zero |
//! | 2048 | 1976 | zero |
//! | 4024 | 64 | shutdown state, see [`ShutdownState`] |
//! | 4088 | 8 | checksum |
//!
//! The checksum covers bytes 0 to 2047 with the feature `CKSUM_2K`, which is on unless somebody cleared it, and bytes 0
//! to 4087 without it. What it does not cover is checked otherwise: bytes 2048 to 4023 must be zero, the shutdown state has
//! a checksum of its own. So no changed byte of the 4096 goes unnoticed.

mod arch;
mod attributes;
mod checksum;
mod features;
mod shutdown;
#[cfg(test)]
mod tests;

pub use arch::Arch;
pub use attributes::{ATTRIBUTES_LEN_BYTES, Attributes};
pub(crate) use checksum::{Checksummed, checksum};
pub use features::{Feature, Features};
pub use shutdown::{SHUTDOWN_STATE_LEN_BYTES, ShutdownState};

use uuid::Uuid;

/// Length of the header in bytes.
pub const HEADER_LEN_BYTES: usize = 4096;

/// The signature of a part whose pool is being made.
const CREATION: &[u8; 8] = b"PMOFNEW\0";

const MAJOR: usize = 8;
const POOLSET_UUID: usize = 24;
const UUID: usize = 40;
const PREVIOUS_PART: usize = 56;
const NEXT_PART: usize = 72;
const PREVIOUS_REPLICA: usize = 88;
const NEXT_REPLICA: usize = 104;
const CREATED_AT: usize = 120;
const ARCH: usize = 128;
const UNUSED: usize = 144;
const UNUSED_2: usize = 2048;
/// Where the shutdown state lies.
pub(crate) const SHUTDOWN_STATE: usize = 4024;
const CHECKSUM: usize = 4088;

/// What kind of pool begins with a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoolKind {
    /// `PMEMOBJ`: objects and transactions (libpmemobj).
    Obj,
    /// `PMEMLOG`: an append-only log (libpmemlog).
    Log,
    /// `PMEMBLK`: an array of blocks (libpmemblk).
    Blk,
}

impl PoolKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Obj, Self::Log, Self::Blk];

    /// The 8 bytes that begin its header.
    pub fn signature(self) -> [u8; 8] {
        match self {
            Self::Obj => *b"PMEMOBJ\0",
            Self::Log => *b"PMEMLOG\0",
            Self::Blk => *b"PMEMBLK\0",
        }
    }

    /// The major version of its format, as PMDK 1.12.1 writes and expects it.
    pub fn major(self) -> u32 {
        match self {
            Self::Obj => 6,
            Self::Log | Self::Blk => 1,
        }
    }

    /// The kind with this signature; `None` for those that PMDK has no library for.
    pub fn of_signature(signature: &[u8; 8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.signature() == *signature)
    }

    /// As commands call it: `obj`, `log`, `blk`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Obj => "obj",
            Self::Log => "log",
            Self::Blk => "blk",
        }
    }
}

/// The header of one part. UUIDs are the 16 bytes as they are stored; [`uuid_text`] writes them as PMDK does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolHeader {
    /// What follows the header.
    pub signature: [u8; 8],
    /// Version of what follows.
    pub major: u32,
    /// Features that a program must or should know to open the pool.
    pub features: Features,
    /// Of the pool set; the same in all parts of all replicas.
    pub poolset_uuid: [u8; 16],
    /// Of this part.
    pub uuid: [u8; 16],
    /// Of the part before, in a ring; with `SINGLEHDR` of this part.
    pub prev_part_uuid: [u8; 16],
    /// Of the part behind, in a ring; with `SINGLEHDR` of this part.
    pub next_part_uuid: [u8; 16],
    /// Of the first part of the replica before, in a ring.
    pub prev_replica_uuid: [u8; 16],
    /// Of the first part of the replica behind, in a ring.
    pub next_replica_uuid: [u8; 16],
    /// When the part was made, in seconds since 1970.
    pub created_at_unix_s: u64,
    /// The machine that made the pool.
    pub arch: Arch,
    /// Whether the machine lost what it had not yet written; in the first part of a replica. It has a checksum of its own.
    pub shutdown_state: ShutdownState,
}

/// What is wrong with the bytes of a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// All bytes are zero: the part was never finished, or its header was cleared.
    #[error("it is all zeros: no pool was made here, or its header was cleared")]
    Blank,
    /// The checksum is wrong.
    #[error(
        "its checksum is {stored:#018x} and should be {computed:#018x}: the part is damaged, or was never part of a pool"
    )]
    BadChecksum {
        /// What it says.
        stored: u64,
        /// What its bytes give.
        computed: u64,
    },
    /// Bytes that must be zero are not.
    #[error("byte {offset} must be zero: the header is damaged, or of a format that pmof does not know")]
    NotZero {
        /// The first such byte.
        offset: usize,
    },
}

impl PoolHeader {
    /// Bytes that the checksum covers, beginning with the first: 2048 with `CKSUM_2K`, else 4088.
    pub fn checksummed_len_bytes(features: Features) -> usize {
        if features.has(Feature::Checksum2k) { UNUSED_2 } else { CHECKSUM }
    }

    /// The header in bytes, with its checksum.
    pub fn encode(&self) -> [u8; HEADER_LEN_BYTES] {
        let mut bytes = [0; HEADER_LEN_BYTES];
        let mut put = |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
        put(0, &self.signature);
        put(MAJOR, &self.major.to_le_bytes());
        put(features::OFFSET, &self.features.to_bytes());
        put(POOLSET_UUID, &self.poolset_uuid);
        put(UUID, &self.uuid);
        put(PREVIOUS_PART, &self.prev_part_uuid);
        put(NEXT_PART, &self.next_part_uuid);
        put(PREVIOUS_REPLICA, &self.prev_replica_uuid);
        put(NEXT_REPLICA, &self.next_replica_uuid);
        put(CREATED_AT, &self.created_at_unix_s.to_le_bytes());
        put(ARCH, &self.arch.to_bytes());
        put(SHUTDOWN_STATE, &self.shutdown_state.to_bytes());
        let sum = header_checksum(&bytes, self.features);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header and checks every byte of it but those of the shutdown state, whose
    /// [`is_intact`](ShutdownState::is_intact) tells.
    pub fn decode(bytes: &[u8; HEADER_LEN_BYTES]) -> Result<Self, HeaderError> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(HeaderError::Blank);
        }
        let features = Features::from_bytes(array(bytes, features::OFFSET));
        let stored = u64::from_le_bytes(array(bytes, CHECKSUM));
        let computed = header_checksum(bytes, features);
        if stored != computed {
            return Err(HeaderError::BadChecksum { stored, computed });
        }
        if let Some(index) = bytes[UNUSED..SHUTDOWN_STATE].iter().position(|byte| *byte != 0) {
            return Err(HeaderError::NotZero { offset: UNUSED + index });
        }
        Ok(Self {
            signature: array(bytes, 0),
            major: u32::from_le_bytes(array(bytes, MAJOR)),
            features,
            poolset_uuid: array(bytes, POOLSET_UUID),
            uuid: array(bytes, UUID),
            prev_part_uuid: array(bytes, PREVIOUS_PART),
            next_part_uuid: array(bytes, NEXT_PART),
            prev_replica_uuid: array(bytes, PREVIOUS_REPLICA),
            next_replica_uuid: array(bytes, NEXT_REPLICA),
            created_at_unix_s: u64::from_le_bytes(array(bytes, CREATED_AT)),
            arch: Arch::from_bytes(array(bytes, ARCH)),
            shutdown_state: ShutdownState::from_bytes(array(bytes, SHUTDOWN_STATE)),
        })
    }

    /// What of the header goes over the wire, if it is that of a replica's first part.
    pub fn attributes(&self) -> Attributes {
        Attributes {
            signature: self.signature,
            major: self.major,
            compat: self.features.compat,
            incompat: self.features.incompat,
            ro_compat: self.features.ro_compat,
            poolset_uuid: self.poolset_uuid,
            uuid: self.uuid,
            next_uuid: self.next_replica_uuid,
            prev_uuid: self.prev_replica_uuid,
            user_flags: self.arch.to_bytes(),
        }
    }

    /// Takes over what all parts of a replica have in common: all but the UUIDs of the part itself and of its neighbours.
    pub fn set_attributes(&mut self, attributes: &Attributes) {
        self.signature = attributes.signature;
        self.major = attributes.major;
        self.features = attributes.features();
        self.poolset_uuid = attributes.poolset_uuid;
        self.next_replica_uuid = attributes.next_uuid;
        self.prev_replica_uuid = attributes.prev_uuid;
        self.arch = Arch::from_bytes(attributes.user_flags);
    }

    /// What kind of pool this is; `None` for signatures that PMDK has no library for.
    pub fn kind(&self) -> Option<PoolKind> {
        PoolKind::of_signature(&self.signature)
    }
}

/// Whether a header, which may be damaged, says that its part is of the pool set `poolset_uuid`, or said so before its UUID was damaged:
/// then its checksum fits with that one.
pub(crate) fn names(bytes: &[u8; HEADER_LEN_BYTES], poolset_uuid: &[u8; 16]) -> bool {
    let features = Features::from_bytes(array(bytes, features::OFFSET));
    let mut mended = *bytes;
    mended[POOLSET_UUID..UUID].copy_from_slice(poolset_uuid);
    mended == *bytes || header_checksum(&mended, features) == u64::from_le_bytes(array(bytes, CHECKSUM))
}

/// What a part begins with while a new pool's contents are written, until it gets its header.
pub(crate) fn left_by_creation() -> [u8; HEADER_LEN_BYTES] {
    let mut bytes = [0; HEADER_LEN_BYTES];
    bytes[..CREATION.len()].copy_from_slice(CREATION);
    bytes
}

/// What a part begins with while its replica is restored: no header, and yet it says whose the part is, so that it vouches for those without.
pub(crate) fn begun(attributes: &Attributes) -> [u8; HEADER_LEN_BYTES] {
    let mut bytes = [0; HEADER_LEN_BYTES];
    bytes[..attributes.signature.len()].copy_from_slice(&attributes.signature);
    bytes[POOLSET_UUID..UUID].copy_from_slice(&attributes.poolset_uuid);
    bytes[UUID..PREVIOUS_PART].copy_from_slice(&attributes.uuid);
    bytes
}

/// Whether it is that of the pool set `poolset_uuid`.
pub(crate) fn is_begun(bytes: &[u8; HEADER_LEN_BYTES], poolset_uuid: &[u8; 16]) -> bool {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    bytes[POOLSET_UUID..UUID] == *poolset_uuid
        && is_zero(&bytes[MAJOR..POOLSET_UUID])
        && is_zero(&bytes[PREVIOUS_PART..])
}

/// The UUID of the pool set in a header that may be damaged.
pub(crate) fn poolset_uuid_named(bytes: &[u8; HEADER_LEN_BYTES]) -> [u8; 16] {
    array(bytes, POOLSET_UUID)
}

/// The same if it was not truncated: data follows it. `None` if there is no UUID.
pub(crate) fn whole_poolset_uuid_named(bytes: &[u8; HEADER_LEN_BYTES]) -> Option<[u8; 16]> {
    let set = poolset_uuid_named(bytes);
    (set != [0; 16] && array(bytes, UUID) != [0; 16]).then_some(set)
}

/// The kind of pool that a header names, which may be damaged.
pub(crate) fn kind_named(bytes: &[u8; HEADER_LEN_BYTES]) -> Option<PoolKind> {
    PoolKind::of_signature(&array(bytes, 0))
}

/// Whether bytes have something in all fields that every header has, and nothing where a header has nothing.
pub(crate) fn is_laid_out(bytes: &[u8; HEADER_LEN_BYTES]) -> bool {
    let fields = [POOLSET_UUID, UUID, PREVIOUS_PART, NEXT_PART, PREVIOUS_REPLICA, NEXT_REPLICA];
    let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    fields.into_iter().all(|field| !is_blank(&bytes[field..field + 16])) && is_blank(&bytes[UNUSED..SHUTDOWN_STATE])
}

/// A UUID as PMDK writes it: its first three groups are stored as little-endian numbers.
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    Uuid::from_bytes_le(*bytes).to_string()
}

/// A new random UUID, as it is stored.
pub fn new_uuid() -> [u8; 16] {
    Uuid::new_v4().to_bytes_le()
}

fn header_checksum(bytes: &[u8; HEADER_LEN_BYTES], features: Features) -> u64 {
    let end = PoolHeader::checksummed_len_bytes(features);
    checksum(bytes, &Checksummed { field: CHECKSUM, end })
}

/// The bytes of a field.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}
