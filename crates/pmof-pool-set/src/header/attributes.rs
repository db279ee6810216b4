//! What of a pool's header a client of librpmem sees and sets (`struct rpmem_pool_attr`).

use super::{Features, array, features};

/// Length in bytes.
pub const ATTRIBUTES_LEN_BYTES: usize = 104;

const MAJOR: usize = 8;
const POOLSET_UUID: usize = 24;
const UUID: usize = 40;
const NEXT_UUID: usize = 56;
const PREVIOUS_UUID: usize = 72;
const USER_FLAGS: usize = 88;

/// The attributes of a replica, 104 bytes; numbers little-endian.
///
/// | offset | length | field |
/// |---|---|---|
/// | 0 | 8 | signature |
/// | 8 | 4 | major version |
/// | 12 | 4 + 4 + 4 | features: compatible, incompatible, read-only compatible |
/// | 24 | 16 | UUID of the pool set |
/// | 40 | 16 | UUID of the replica's first part |
/// | 56 | 16 | UUID of the next replica |
/// | 72 | 16 | UUID of the previous replica: the header has these two the other way round |
/// | 88 | 16 | the user's; libpmemobj keeps its architecture there, and the header has it in the architecture's place |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// What kind of pool it is.
    pub signature: [u8; 8],
    /// Version of its format.
    pub major: u32,
    /// Features that may be ignored, see [`Features`].
    pub compat: u32,
    /// Features that must be known.
    pub incompat: u32,
    /// Features that a program must know to change the pool.
    pub ro_compat: u32,
    /// Of the pool set.
    pub poolset_uuid: [u8; 16],
    /// Of the replica's first part.
    pub uuid: [u8; 16],
    /// Of the first part of the next replica.
    pub next_uuid: [u8; 16],
    /// Of the first part of the previous replica.
    pub prev_uuid: [u8; 16],
    /// The user's.
    pub user_flags: [u8; 16],
}

/// The UUID that is nobody's (RFC 9562, "Max UUID"): the neighbours of a replica that is being made.
const NOBODY: [u8; 16] = [0xff; 16];

impl Attributes {
    /// The same of a replica that does not hold all yet: its neighbours are nobody, which those of no whole replica are. Targets of
    /// every release store it, and PMDK takes such a replica for inconsistent.
    #[must_use]
    pub fn unfinished(self) -> Self {
        Self { next_uuid: NOBODY, prev_uuid: NOBODY, ..self }
    }

    /// Whether they are those of a replica that does not hold all yet.
    pub fn is_unfinished(&self) -> bool {
        self.next_uuid == NOBODY || self.prev_uuid == NOBODY
    }

    /// As they are stored and sent.
    pub fn to_bytes(&self) -> [u8; ATTRIBUTES_LEN_BYTES] {
        let mut bytes = [0; ATTRIBUTES_LEN_BYTES];
        let mut put = |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
        put(0, &self.signature);
        put(MAJOR, &self.major.to_le_bytes());
        put(features::OFFSET, &self.features().to_bytes());
        put(POOLSET_UUID, &self.poolset_uuid);
        put(UUID, &self.uuid);
        put(NEXT_UUID, &self.next_uuid);
        put(PREVIOUS_UUID, &self.prev_uuid);
        put(USER_FLAGS, &self.user_flags);
        bytes
    }

    /// From the stored bytes, whatever they are.
    pub fn from_bytes(bytes: &[u8; ATTRIBUTES_LEN_BYTES]) -> Self {
        let Features { compat, incompat, ro_compat } = Features::from_bytes(array(bytes, features::OFFSET));
        Self {
            signature: array(bytes, 0),
            major: u32::from_le_bytes(array(bytes, MAJOR)),
            compat,
            incompat,
            ro_compat,
            poolset_uuid: array(bytes, POOLSET_UUID),
            uuid: array(bytes, UUID),
            next_uuid: array(bytes, NEXT_UUID),
            prev_uuid: array(bytes, PREVIOUS_UUID),
            user_flags: array(bytes, USER_FLAGS),
        }
    }

    /// The features that a program must or should know to open the pool.
    pub fn features(&self) -> Features {
        Features { compat: self.compat, incompat: self.incompat, ro_compat: self.ro_compat }
    }

    /// Whether all are zero, which means a replica without headers.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}
