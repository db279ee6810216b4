//! Short descriptors, for programs that have no room for whole ones, and the region that lies nowhere.

use std::sync::{Arc, OnceLock};

use pmof_mem::{Evidence, Mechanism, Medium, MediumKind, Memory, Promise};
use pmof_proto::{
    Access, DESCRIPTOR_BYTES, Descriptor, DescriptorError, DirectAccess, LocalSlice, OperationError, PostError,
    RegionKey, RegionTable, RegisteredRegion,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::{RegionSlice, RegisterError, RemoteRegion, region::random};

/// Bytes of a short descriptor: what programs written for librpma keep free for one of its descriptors.
pub const SHORT_DESCRIPTOR_BYTES: usize = 24;

const VERSION: u8 = 1;

/// The second half of the key of a region that holds a descriptor; the first is the name.
const KEY_TAIL: [u8; 8] = *b"pmof.dsc";

/// What a program hands over in place of a [descriptor](crate::Region::descriptor) where it has room for 24 bytes only: the
/// size of a region and a name under which its owner tells the descriptor, once there is a
/// [connection](crate::Connection::resolve).
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 1 | version, 1 |
/// | 1 | 1 | note: any number of the application |
/// | 2 | 2 | zero |
/// | 4 | 4 | CRC32C over bytes 0..4 and 8..24 |
/// | 8 | 8 | length of the region in bytes |
/// | 16 | 8 | name: 64 random bits |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortDescriptor {
    note: u8,
    len_bytes: u64,
    name: [u8; 8],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    version: u8,
    note: u8,
    zero: [u8; 2],
    crc: U32,
    len_bytes: U64,
    name: [u8; 8],
}

const _: () = assert!(size_of::<Raw>() == SHORT_DESCRIPTOR_BYTES);

impl Raw {
    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), &bytes[8..])
    }
}

impl ShortDescriptor {
    /// The bytes to hand to the other side.
    pub fn encode(&self) -> [u8; SHORT_DESCRIPTOR_BYTES] {
        let Self { note, len_bytes, name } = *self;
        let mut raw = Raw { version: VERSION, note, zero: [0; 2], crc: 0.into(), len_bytes: len_bytes.into(), name };
        raw.crc = raw.checksum().into();
        zerocopy::transmute!(raw)
    }

    /// Reads one; any bytes give one or a typed error. What follows the first [`SHORT_DESCRIPTOR_BYTES`] is ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let Some((bytes, _)) = bytes.split_first_chunk::<SHORT_DESCRIPTOR_BYTES>() else {
            return Err(DescriptorError::Length { len_bytes: bytes.len() });
        };
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.crc.get() != raw.checksum() {
            return Err(DescriptorError::Checksum);
        }
        if raw.version != VERSION {
            return Err(DescriptorError::Version { found: raw.version });
        }
        if raw.zero != [0; 2] {
            return Err(DescriptorError::Field { field: "a reserved byte is not zero" });
        }
        Ok(Self { note: raw.note, len_bytes: raw.len_bytes.get(), name: raw.name })
    }

    /// Size of the region in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// What the application noted.
    pub fn note(&self) -> u8 {
        self.note
    }

    /// The region in which the owner keeps the descriptor.
    pub(crate) fn place(&self) -> RemoteRegion {
        RemoteRegion::of(Descriptor {
            key: key_of(self.name),
            len_bytes: DESCRIPTOR_BYTES as u64,
            access: Access::READ,
            kind: MediumKind::Anonymous,
            promises: [None; 3],
            direct: DirectAccess::None,
        })
    }
}

/// Why a short descriptor did not lead to a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The question could not be asked.
    #[error("the owner of the region could not be asked for its descriptor: {0}")]
    Post(#[from] PostError),
    /// The owner does not know it (any more); the connection has ended.
    #[error(
        "the other side did not tell the region's descriptor: {0}; is the region registered, and that side its owner?"
    )]
    Operation(#[from] OperationError),
    /// No answer in time.
    #[error("the other side did not tell the region's descriptor within {timeout_ms} ms")]
    TimedOut {
        /// The limit in milliseconds.
        timeout_ms: u64,
    },
    /// What the owner told is no descriptor, or is one of another region.
    #[error("the other side told a wrong descriptor: {0}")]
    Descriptor(#[from] DescriptorError),
    /// This side had no memory for the answer.
    #[error("no memory for the answer: {why}")]
    Memory {
        /// What the system said.
        why: String,
    },
}

/// Where an answer goes.
pub(crate) fn answer_slice() -> Result<RegionSlice, ResolveError> {
    let memory = Memory::anonymous(DESCRIPTOR_BYTES as u64);
    let memory = Arc::new(memory.map_err(|error| ResolveError::Memory { why: error.to_string() })?);
    Ok(RegionSlice { local: LocalSlice { memory, offset: 0, len_bytes: DESCRIPTOR_BYTES as u64 }, device: None })
}

/// Reads the answer.
pub(crate) fn read_answer(short: &ShortDescriptor, answer: &RegionSlice) -> Result<RemoteRegion, ResolveError> {
    let mut bytes = [0; DESCRIPTOR_BYTES];
    answer.local.memory.read(0, &mut bytes).map_err(|error| ResolveError::Memory { why: error.to_string() })?;
    let region = RemoteRegion::from_descriptor(&bytes)?;
    if region.len_bytes() == short.len_bytes {
        Ok(region)
    } else {
        Err(DescriptorError::Field { field: "the region has another length than its short descriptor says" }.into())
    }
}

fn key_of(name: [u8; 8]) -> RegionKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&name);
    key[8..].copy_from_slice(&KEY_TAIL);
    RegionKey(key)
}

/// Makes the descriptor of a region known under a new name, until [`unpublish`] takes it back.
pub(crate) fn publish(
    table: &RegionTable,
    region: &RegisteredRegion,
    note: u8,
) -> Result<ShortDescriptor, RegisterError> {
    let name = random()?;
    let memory = Memory::anonymous(DESCRIPTOR_BYTES as u64)?;
    memory.store(0, &region.descriptor().encode())?;
    let holder = RegisteredRegion::new(key_of(name), Arc::new(memory), 0, DESCRIPTOR_BYTES as u64, Access::READ);
    table.insert(Arc::new(holder.with_scope(region.scope())));
    Ok(ShortDescriptor { note, len_bytes: region.len_bytes(), name })
}

pub(crate) fn unpublish(table: &RegionTable, short: &ShortDescriptor) {
    table.remove(key_of(short.name));
}

/// The key of the region that lies nowhere. No other has it: keys are random.
const NOWHERE: RegionKey = RegionKey([0; 16]);

impl RemoteRegion {
    /// A region of no bytes that every peer has: for operations that move none.
    pub fn nowhere() -> Self {
        let promise = Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed };
        Self::of(Descriptor {
            key: NOWHERE,
            len_bytes: 0,
            access: NOWHERE_ACCESS,
            kind: MediumKind::Anonymous,
            promises: [Some(promise), None, None],
            direct: DirectAccess::None,
        })
    }
}

const NOWHERE_ACCESS: Access = Access::READ.union(Access::WRITE).union(Access::FLUSH_VISIBLE);

/// Gives a peer the region that lies nowhere.
pub(crate) fn add_nowhere(table: &RegionTable) {
    static MEMORY: OnceLock<Option<Arc<Memory>>> = OnceLock::new();
    // Where there is no memory at all, operations on it are refused.
    if let Some(memory) = MEMORY.get_or_init(|| Memory::anonymous(1).ok().map(Arc::new)) {
        let memory: Arc<dyn Medium> = Arc::<Memory>::clone(memory);
        table.insert(Arc::new(RegisteredRegion::new(NOWHERE, memory, 0, 0, NOWHERE_ACCESS)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_short_descriptor_is_noticed() {
        let whole = ShortDescriptor { note: 0x5A, len_bytes: 1 << 33, name: [3; 8] };
        let bytes = whole.encode();
        assert_eq!(ShortDescriptor::decode(&bytes), Ok(whole));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ShortDescriptor::decode(&damaged), Err(DescriptorError::Checksum), "bit {bit}");
        }
        assert_eq!(ShortDescriptor::decode(&bytes[..23]), Err(DescriptorError::Length { len_bytes: 23 }));
    }
}
