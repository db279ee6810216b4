//! Registered regions: what a peer may do with them, their descriptors, and the table that a target looks them up in.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pmof_locks::RwLock;
use pmof_mem::{Durability, Evidence, Mechanism, Medium, MediumKind, Promise, check_bounds};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

bitflags::bitflags! {
    /// What remote peers may do with a region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u16 {
        /// Remote reads.
        const READ = 1;
        /// Remote writes, atomic writes included.
        const WRITE = 2;
        /// Remote compare-and-swap and fetch-and-add.
        const ATOMIC = 4;
        /// Flushes to [`Durability::Visible`].
        const FLUSH_VISIBLE = 8;
        /// Flushes to any level that the medium can give.
        const FLUSH_PERSISTENT = 16;
    }
}

/// The unguessable name of a region: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionKey(pub [u8; 16]);

impl fmt::Debug for RegionKey {
    /// Keys are secrets: logs show that there is one, not which.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegionKey(..)")
    }
}

/// How an initiator reaches a region past the target's CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectAccess {
    /// It does not: every operation is a message that the target's CPU carries out.
    #[default]
    None,
    /// Through the target's RDMA device.
    Rdma {
        /// Virtual address of the region's first byte at the target.
        address: u64,
        /// The device's key of the region.
        remote_key: u32,
        /// What the device does there.
        features: RdmaFeatures,
    },
    /// By mapping it, which the target allows to processes of its own host.
    Mapped,
}

bitflags::bitflags! {
    /// What an RDMA device does with a region, beyond reads and writes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RdmaFeatures: u8 {
        /// FLUSH with placement type global visibility.
        const FLUSH_VISIBLE = 1;
        /// FLUSH with placement type persistence.
        const FLUSH_PERSISTENT = 2;
        /// ATOMIC WRITE.
        const ATOMIC_WRITE = 4;
        /// The operator declares that inbound writes reach the persistence domain by themselves, past the CPU caches.
        const INBOUND_DECLARED = 8;
    }
}

/// Which connections may use a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Every connection of the peer that registered it: whoever learns the key over one of them, may use it on all.
    #[default]
    Peer,
    /// The connection with this [number](crate::Endpoint::set_number) only; on every other the key is unknown.
    Connection(u64),
}

/// A registered range of a medium.
#[derive(Debug)]
pub struct RegisteredRegion {
    key: RegionKey,
    scope: Scope,
    memory: Arc<dyn Medium>,
    offset: u64,
    len_bytes: u64,
    access: Access,
    direct: DirectAccess,
    revoked: AtomicBool,
}

impl RegisteredRegion {
    /// Names `len_bytes` bytes at `offset` of `memory`. Atomic operations need `offset` to be divisible by 8.
    ///
    /// # Panics
    ///
    /// If the range does not lie inside the memory: every later check of a peer's request rests on it.
    pub fn new(key: RegionKey, memory: Arc<dyn Medium>, offset: u64, len_bytes: u64, access: Access) -> Self {
        let is_inside = check_bounds(offset, len_bytes, memory.len_bytes()).is_ok();
        assert!(is_inside, "a region lies inside its memory");
        let direct = DirectAccess::None;
        let (scope, revoked) = (Scope::Peer, AtomicBool::new(false));
        Self { key, scope, memory, offset, len_bytes, access, direct, revoked }
    }

    /// The same region, which initiators may also reach past this CPU.
    #[must_use]
    pub fn with_direct(self, direct: DirectAccess) -> Self {
        Self { direct, ..self }
    }

    /// The same region for these connections only.
    #[must_use]
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Which connections may use it.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Whether the connection with this number may use it.
    pub fn is_open_to(&self, connection: u64) -> bool {
        match self.scope {
            Scope::Peer => true,
            Scope::Connection(number) => number == connection,
        }
    }

    /// The medium that the region is a range of.
    pub fn memory(&self) -> &Arc<dyn Medium> {
        &self.memory
    }

    /// Where the region begins in its medium.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// What peers may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The region's name.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// What the other side needs to use the region.
    pub fn descriptor(&self) -> Descriptor {
        let promise = |level| self.memory.promise(level);
        Descriptor {
            key: self.key,
            len_bytes: self.len_bytes,
            access: self.access,
            kind: self.memory.kind(),
            promises: Durability::ALL.map(promise),
            direct: self.direct,
        }
    }
}

/// The regions that the connections of one peer may use.
#[derive(Debug, Default)]
pub struct RegionTable {
    regions: RwLock<HashMap<RegionKey, Arc<RegisteredRegion>>>,
}

impl RegionTable {
    /// Makes a region known, in place of one with the same key.
    pub fn insert(&self, region: Arc<RegisteredRegion>) {
        let replaced = self.regions.write().insert(region.key, region);
        if let Some(replaced) = replaced {
            replaced.revoked.store(true, Ordering::Release);
        }
    }

    /// Forgets a region: from now on its key is unknown, also to connections that used it before.
    pub fn remove(&self, key: RegionKey) {
        let removed = self.regions.write().remove(&key);
        if let Some(region) = removed {
            region.revoked.store(true, Ordering::Release);
        }
    }

    /// The region with this key, if the connection with this number may use it.
    pub fn find_for(&self, connection: u64, key: RegionKey) -> Option<Arc<RegisteredRegion>> {
        let regions = self.regions.read();
        regions.get(&key).filter(|region| region.is_open_to(connection)).cloned()
    }

    #[cfg(test)]
    pub(crate) fn find(&self, key: RegionKey) -> Option<Arc<RegisteredRegion>> {
        self.find_for(0, key)
    }
}

/// Bytes of an encoded [`Descriptor`]: fits into the private data of a connection request.
pub const DESCRIPTOR_BYTES: usize = 56;

const DESCRIPTOR_VERSION: u8 = 1;

const DIRECT_NONE: u8 = 0;
const DIRECT_RDMA: u8 = 1;
const DIRECT_MAPPED: u8 = 2;

/// What an initiator needs to address a region: its key, bounds, rights, medium, and what the medium promises.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 1 | version, 1 |
/// | 1 | 1 | kind of medium |
/// | 2 | 2 | access bits |
/// | 4 | 3 | promise for Visible, `ProcessCrash`, `PowerFailure`: low 4 bits mechanism, high 4 bits evidence; 0 none |
/// | 7 | 1 | zero |
/// | 8 | 8 | length in bytes |
/// | 16 | 16 | key |
/// | 32 | 1 | direct access: 0 none, 1 RDMA, 2 mapped |
/// | 33 | 1 | RDMA: bits of [`RdmaFeatures`], else 0 |
/// | 34 | 2 | zero |
/// | 36 | 4 | RDMA: the device's remote key, else 0 |
/// | 40 | 8 | RDMA: virtual address of the first byte, else 0 |
/// | 48 | 4 | zero |
/// | 52 | 4 | CRC32C over bytes 0..52 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The region's unguessable name.
    pub key: RegionKey,
    /// Size in bytes.
    pub len_bytes: u64,
    /// What peers may do.
    pub access: Access,
    /// What the bytes lie on.
    pub kind: MediumKind,
    /// What the medium promises, per level in the order of [`Durability::ALL`].
    pub promises: [Option<Promise>; 3],
    /// How to reach it past the target's CPU.
    pub direct: DirectAccess,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawDescriptor {
    version: u8,
    kind: u8,
    access: U16,
    promises: [u8; 3],
    zero: u8,
    len_bytes: U64,
    key: [u8; 16],
    direct: u8,
    features: u8,
    zero_2: U16,
    remote_key: U32,
    address: U64,
    zero_3: U32,
    crc: U32,
}

const _: () = assert!(size_of::<RawDescriptor>() == DESCRIPTOR_BYTES);
const DESCRIPTOR_CRC_AT: usize = DESCRIPTOR_BYTES - 4;

/// Why bytes are not a usable descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// Not [`DESCRIPTOR_BYTES`] long.
    #[error("a region descriptor has {DESCRIPTOR_BYTES} bytes, not {len_bytes}")]
    Length {
        /// Bytes given.
        len_bytes: usize,
    },
    /// The checksum does not match.
    #[error("the region descriptor is corrupt: its checksum is wrong")]
    Checksum,
    /// Made by a version that this one does not know.
    #[error("the region descriptor has version {found}, this library knows {DESCRIPTOR_VERSION}: upgrade it")]
    Version {
        /// Version found.
        found: u8,
    },
    /// A field has a value that no writer makes.
    #[error("the region descriptor is inconsistent: {field}")]
    Field {
        /// The field.
        field: &'static str,
    },
}

impl Descriptor {
    /// The bytes to hand to the other side.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let (direct, features, remote_key, address) = match self.direct {
            DirectAccess::None => (DIRECT_NONE, RdmaFeatures::empty(), 0, 0),
            DirectAccess::Rdma { address, remote_key, features } => (DIRECT_RDMA, features, remote_key, address),
            DirectAccess::Mapped => (DIRECT_MAPPED, RdmaFeatures::empty(), 0, 0),
        };
        let raw = RawDescriptor {
            version: DESCRIPTOR_VERSION,
            kind: self.kind as u8,
            access: self.access.bits().into(),
            promises: self
                .promises
                .map(|promise| promise.map_or(0, |promise| promise.mechanism as u8 | (promise.evidence as u8) << 4)),
            zero: 0,
            len_bytes: self.len_bytes.into(),
            key: self.key.0,
            direct,
            features: features.bits(),
            zero_2: 0.into(),
            remote_key: remote_key.into(),
            address: address.into(),
            zero_3: 0.into(),
            crc: 0.into(),
        };
        let mut bytes: [u8; DESCRIPTOR_BYTES] = zerocopy::transmute!(raw);
        let crc = crc32c::crc32c(&bytes[..DESCRIPTOR_CRC_AT]);
        bytes[DESCRIPTOR_CRC_AT..].copy_from_slice(U32::new(crc).as_bytes());
        bytes
    }

    /// Reads a descriptor; any bytes give one or a typed error.
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let bytes: &[u8; DESCRIPTOR_BYTES] =
            bytes.try_into().map_err(|_| DescriptorError::Length { len_bytes: bytes.len() })?;
        let crc = crc32c::crc32c(&bytes[..DESCRIPTOR_CRC_AT]);
        let raw: RawDescriptor = zerocopy::transmute!(*bytes);
        if raw.crc.get() != crc {
            return Err(DescriptorError::Checksum);
        }
        if raw.version != DESCRIPTOR_VERSION {
            return Err(DescriptorError::Version { found: raw.version });
        }
        let field = |field| DescriptorError::Field { field };
        if raw.zero != 0 || raw.zero_2.get() != 0 || raw.zero_3.get() != 0 {
            return Err(field("a reserved byte is not zero"));
        }
        let mut promises = [None; 3];
        for (promise, byte) in promises.iter_mut().zip(raw.promises).filter(|(_, byte)| *byte != 0) {
            *promise = Some(decode_promise(byte).ok_or(field("promise"))?);
        }
        Ok(Self {
            key: RegionKey(raw.key),
            len_bytes: raw.len_bytes.get(),
            access: Access::from_bits(raw.access.get()).ok_or(field("access"))?,
            kind: MediumKind::from_wire(raw.kind).ok_or(field("medium kind"))?,
            promises,
            direct: decode_direct(&raw).ok_or(field("direct access"))?,
        })
    }

    /// How the region keeps `level`, or `None` where it cannot.
    pub fn promise(&self, level: Durability) -> Option<Promise> {
        self.promises[level as usize - 1]
    }

    /// The strongest level that the region can give.
    pub fn strongest(&self) -> Durability {
        Durability::ALL.into_iter().rev().find(|level| self.promise(*level).is_some()).unwrap_or(Durability::Visible)
    }
}

fn decode_direct(raw: &RawDescriptor) -> Option<DirectAccess> {
    let (address, remote_key) = (raw.address.get(), raw.remote_key.get());
    let is_bare = raw.features == 0 && address == 0 && remote_key == 0;
    match raw.direct {
        DIRECT_NONE if is_bare => Some(DirectAccess::None),
        DIRECT_MAPPED if is_bare => Some(DirectAccess::Mapped),
        // An address range that wraps around belongs to no memory.
        DIRECT_RDMA if address.checked_add(raw.len_bytes.get()).is_some() => {
            let features = RdmaFeatures::from_bits(raw.features)?;
            Some(DirectAccess::Rdma { address, remote_key, features })
        }
        _ => None,
    }
}

fn decode_promise(byte: u8) -> Option<Promise> {
    Some(Promise { mechanism: Mechanism::from_wire(byte & 0xF)?, evidence: Evidence::from_wire(byte >> 4)? })
}

#[cfg(test)]
mod tests;
