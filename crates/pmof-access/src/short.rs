//! Short descriptors, for programs that have no room for whole ones, and the region that lies nowhere.

use std::sync::{Arc, OnceLock};

use pmof_mem::{Evidence, Mechanism, Medium, MediumKind, Memory, Promise, causes};
use pmof_proto::{
    Access, DESCRIPTOR_BYTES, Descriptor, DescriptorError, DirectAccess, LocalSlice, OperationError, PostError,
    RegionKey, RegionTable, RegisteredRegion,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::{RegionSlice, RegisterError, RemoteRegion, region::random};

/// Bytes of a short descriptor: those of a descriptor of librpma, which programs keep little more than that free for.
pub const SHORT_DESCRIPTOR_BYTES: usize = 21;

/// The checksum begins with it.
const VERSION: u8 = 2;

/// The second half of the key under which a region is told; the first is the name.
const REGION_TAIL: [u8; 8] = *b"pmof.mem";

/// The same for the region that holds a descriptor.
const HOLDER_TAIL: [u8; 8] = *b"pmof.dsc";

/// Where the length ends, in bits.
const LEN_BITS: u32 = 48;
const KIND_AT: u32 = LEN_BITS;
const KIND_MASK: u64 = 7;
const IS_ASKED_FOR: u64 = 1 << 51;
const PROMISES_AT: u32 = 52;
const PROMISE_BITS: u32 = 4;
const MECHANISM_MASK: u64 = 7;
const DECLARED: u64 = 8;

/// What a program hands over in place of a [descriptor](crate::Region::descriptor) where it has no room for that. It names the region,
/// and says all but its rights; or, where the region is reached past its owner's CPU, its descriptor, which its owner tells once
/// there is a [connection](crate::Connection::resolve).
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | name: 64 random bits |
/// | 8 | 6 | length of the region in bytes |
/// | 14 | 2 | bits 0..3 the medium, 3 set where the owner is to be asked, 4..8, 8..12, 12..16 the promises for Visible, ProcessCrash and PowerFailure: 3 bits mechanism (0 none), 1 bit set where it is declared |
/// | 16 | 4 | CRC32C over the version (the byte 2), then bytes 0..16 and 20 |
/// | 20 | 1 | note: any number of the application |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortDescriptor {
    note: u8,
    name: [u8; 8],
    len_bytes: u64,
    kind: MediumKind,
    promises: [Option<Promise>; 3],
    is_asked_for: bool,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    name: [u8; 8],
    len_and_medium: U64,
    crc: U32,
    note: u8,
}

const _: () = assert!(size_of::<Raw>() == SHORT_DESCRIPTOR_BYTES);

impl Raw {
    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&[VERSION]), &bytes[..16]), &bytes[20..])
    }
}

fn promise_bits(promise: Promise) -> u64 {
    let declared = if promise.evidence == Evidence::Declared { DECLARED } else { 0 };
    promise.mechanism as u64 | declared
}

fn promise_of(bits: u64) -> Result<Option<Promise>, DescriptorError> {
    if bits == 0 {
        return Ok(None);
    }
    let mechanism = Mechanism::from_wire((bits & MECHANISM_MASK) as u8);
    let mechanism = mechanism.ok_or(DescriptorError::Field { field: "a promise" })?;
    let evidence = if bits & DECLARED == 0 { Evidence::Probed } else { Evidence::Declared };
    Ok(Some(Promise { mechanism, evidence }))
}

impl ShortDescriptor {
    /// The bytes to hand to the other side.
    pub fn encode(&self) -> [u8; SHORT_DESCRIPTOR_BYTES] {
        let Self { note, name, len_bytes, kind, promises, is_asked_for } = *self;
        let mut bits = len_bytes | (kind as u64) << KIND_AT | if is_asked_for { IS_ASKED_FOR } else { 0 };
        for (promise, at) in promises.into_iter().zip((PROMISES_AT..).step_by(PROMISE_BITS as usize)) {
            bits |= promise.map_or(0, promise_bits) << at;
        }
        let mut raw = Raw { name, len_and_medium: bits.into(), crc: 0.into(), note };
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
        let bits = raw.len_and_medium.get();
        let kind = (bits >> KIND_AT & KIND_MASK) as u8;
        let kind = MediumKind::ALL
            .into_iter()
            .find(|known| *known as u8 == kind)
            .ok_or(DescriptorError::Field { field: "the medium" })?;
        let mut promises = [None; 3];
        for (promise, at) in promises.iter_mut().zip((PROMISES_AT..).step_by(PROMISE_BITS as usize)) {
            *promise = promise_of(bits >> at & (MECHANISM_MASK | DECLARED))?;
        }
        let (len_bytes, is_asked_for) = (bits & ((1 << LEN_BITS) - 1), bits & IS_ASKED_FOR != 0);
        Ok(Self { note: raw.note, name: raw.name, len_bytes, kind, promises, is_asked_for })
    }

    /// Size of the region in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// What the application noted.
    pub fn note(&self) -> u8 {
        self.note
    }

    /// The region, with the rights that the application knows of: the owner checks them again. `None` where it has to be asked.
    pub fn region(&self, access: Access) -> Option<RemoteRegion> {
        let Self { name, len_bytes, kind, promises, .. } = *self;
        let key = key_of(name, REGION_TAIL);
        let descriptor = Descriptor { key, len_bytes, access, kind, promises, direct: DirectAccess::None };
        (!self.is_asked_for).then(|| RemoteRegion::of(descriptor))
    }

    /// The region in which the owner keeps the descriptor.
    pub(crate) fn place(&self) -> RemoteRegion {
        RemoteRegion::of(Descriptor {
            key: key_of(self.name, HOLDER_TAIL),
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
    #[error("the owner of the region could not be asked for its descriptor")]
    Post(#[from] PostError),
    /// The owner does not know it (any more); the connection has ended.
    #[error("the other side did not tell the region's descriptor; is the region registered, and that side its owner?")]
    Operation(#[from] OperationError),
    /// No answer in time.
    #[error("the other side did not tell the region's descriptor within {timeout_ms} ms")]
    TimedOut {
        /// The limit in milliseconds.
        timeout_ms: u64,
    },
    /// What the owner told is no descriptor, or is one of another region.
    #[error("the other side told a wrong descriptor")]
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
    let memory = Arc::new(memory.map_err(|error| ResolveError::Memory { why: causes(&error).to_string() })?);
    Ok(RegionSlice { local: LocalSlice { memory, offset: 0, len_bytes: DESCRIPTOR_BYTES as u64 }, device: None })
}

/// Reads the answer.
pub(crate) fn read_answer(short: &ShortDescriptor, answer: &RegionSlice) -> Result<RemoteRegion, ResolveError> {
    let mut bytes = [0; DESCRIPTOR_BYTES];
    answer
        .local
        .memory
        .read(0, &mut bytes)
        .map_err(|error| ResolveError::Memory { why: causes(&error).to_string() })?;
    let region = RemoteRegion::from_descriptor(&bytes)?;
    if region.len_bytes() == short.len_bytes {
        Ok(region)
    } else {
        Err(DescriptorError::Field { field: "the region has another length than its short descriptor says" }.into())
    }
}

fn key_of(name: [u8; 8], tail: [u8; 8]) -> RegionKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&name);
    key[8..].copy_from_slice(&tail);
    RegionKey(key)
}

/// Makes a region known under a new name, or its descriptor where that says more than a short one, until [`unpublish`] takes it back.
pub(crate) fn publish(
    table: &RegionTable,
    region: &RegisteredRegion,
    note: u8,
) -> Result<ShortDescriptor, RegisterError> {
    let (name, descriptor) = (random()?, region.descriptor());
    let Descriptor { len_bytes, kind, promises, direct, .. } = descriptor;
    if len_bytes >> LEN_BITS != 0 {
        return Err(RegisterError::TooLong { len_bytes });
    }
    let is_asked_for = direct != DirectAccess::None;
    let told = if is_asked_for {
        let memory = Memory::anonymous(DESCRIPTOR_BYTES as u64)?;
        memory.store(0, &descriptor.encode())?;
        let key = key_of(name, HOLDER_TAIL);
        RegisteredRegion::new(key, Arc::new(memory), 0, DESCRIPTOR_BYTES as u64, Access::READ)
    } else {
        let memory = Arc::clone(region.memory());
        RegisteredRegion::new(key_of(name, REGION_TAIL), memory, region.offset(), len_bytes, descriptor.access)
    };
    table.insert(Arc::new(told.with_scope(region.scope())));
    Ok(ShortDescriptor { note, name, len_bytes, kind, promises, is_asked_for })
}

pub(crate) fn unpublish(table: &RegionTable, short: &ShortDescriptor) {
    for tail in [REGION_TAIL, HOLDER_TAIL] {
        table.remove(key_of(short.name, tail));
    }
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
    use pmof_mem::Durability;

    use super::*;

    fn whole() -> ShortDescriptor {
        let promise = |mechanism, evidence| Some(Promise { mechanism, evidence });
        ShortDescriptor {
            note: 0x5A,
            name: [3; 8],
            len_bytes: (1 << LEN_BITS) - 1,
            kind: MediumKind::VirtioPmem,
            promises: [
                promise(Mechanism::Store, Evidence::Probed),
                None,
                promise(Mechanism::FileSync, Evidence::Declared),
            ],
            is_asked_for: false,
        }
    }

    #[test]
    fn every_flipped_bit_of_a_short_descriptor_is_noticed() {
        let bytes = whole().encode();
        assert_eq!(ShortDescriptor::decode(&bytes), Ok(whole()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ShortDescriptor::decode(&damaged), Err(DescriptorError::Checksum), "bit {bit}");
        }
        assert_eq!(ShortDescriptor::decode(&bytes[..20]), Err(DescriptorError::Length { len_bytes: 20 }));
    }

    #[test]
    fn a_short_descriptor_says_all_of_a_region_but_its_rights() {
        for kind in MediumKind::ALL {
            let short = ShortDescriptor { kind, ..whole() };
            let region = ShortDescriptor::decode(&short.encode()).unwrap().region(Access::READ).unwrap();
            assert_eq!((region.kind(), region.len_bytes(), region.access()), (kind, short.len_bytes, Access::READ));
            let promises = Durability::ALL.map(|level| region.promise(level));
            assert_eq!(promises, short.promises);
        }
        assert!(ShortDescriptor { is_asked_for: true, ..whole() }.region(Access::all()).is_none());
        // What no writer makes.
        let strange = |bits: u64| {
            let mut raw = Raw { name: [0; 8], len_and_medium: bits.into(), crc: 0.into(), note: 0 };
            raw.crc = raw.checksum().into();
            ShortDescriptor::decode(raw.as_bytes())
        };
        assert_eq!(strange(0), Err(DescriptorError::Field { field: "the medium" }));
        assert_eq!(strange(1 << KIND_AT | 7 << PROMISES_AT), Err(DescriptorError::Field { field: "a promise" }));
    }
}
