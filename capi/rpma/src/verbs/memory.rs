//! Memory registrations of this side, and descriptors of the other side's registrations.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bitflags::bitflags;
use pmof_mem::{Lent, Medium as _, Memory};
use pmof_verbs::{MemoryRegion, MrAccess, RegisterError, RemoteAddress, Sge};

use super::Peer;
use crate::{
    error::{Code, Failure},
    log::{Level, log},
};

bitflags! {
    /// What memory is registered for: librpma's `RPMA_MR_USAGE_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Usage: u8 {
        const READ_SRC = 1;
        const READ_DST = 1 << 1;
        const WRITE_SRC = 1 << 2;
        const WRITE_DST = 1 << 3;
        const FLUSH_VISIBILITY = 1 << 4;
        const FLUSH_PERSISTENT = 1 << 5;
        const SEND = 1 << 6;
        const RECV = 1 << 7;
    }
}

/// Bytes of a descriptor, packed, numbers in little endian:
///
/// | offset | bytes | what |
/// |---|---|---|
/// | 0 | 8 | virtual address |
/// | 8 | 8 | length, in bytes |
/// | 16 | 4 | remote key |
/// | 20 | 1 | usage |
pub(crate) const DESCRIPTOR_BYTES: usize = 21;

/// `rpma_mr_local`.
#[derive(Debug)]
pub(crate) struct MrLocal {
    region: MemoryRegion,
    usage: Usage,
    is_on_demand: bool,
    peer: Arc<Peer>,
}

impl MrLocal {
    /// Registers memory of the application, pinned where the device can, else on demand.
    ///
    /// Where the device flushes to persistence itself and does not take the memory for persistent, that usage is left out, so
    /// that the other side is refused such a flush by name; librpma refuses the registration.
    pub(crate) fn register(peer: &Arc<Peer>, memory: Memory, mut usage: Usage) -> Result<Self, Failure> {
        let len_bytes = memory.len_bytes();
        let memory = Arc::new(Lent::new(memory));
        let access = access_of(usage, peer.has_native_flush(), peer.is_iwarp());
        let mut register = |access| match peer.domain.register(Arc::clone(&memory) as _, 0, len_bytes, access) {
            Err(refusal) if refusal.is_of_persistence() => {
                log(Level::Notice, c"rpma_mr_reg", &format!("{refusal}: it is registered without persistent flushes"));
                usage.remove(Usage::FLUSH_PERSISTENT);
                peer.domain.register(Arc::clone(&memory) as _, 0, len_bytes, access - MrAccess::FLUSH_PERSISTENT)
            }
            registered => registered,
        };
        let (region, is_on_demand) = match register(access) {
            Err(RegisterError::CannotPin { .. }) if peer.pages_on_demand() => {
                (register(access | MrAccess::ON_DEMAND)?, true)
            }
            registered => (registered?, false),
        };
        peer.registrations.fetch_add(1, Ordering::Relaxed);
        Ok(Self { region, usage, is_on_demand, peer: Arc::clone(peer) })
    }

    /// Takes the memory away from the device.
    pub(crate) fn deregister(self) -> Result<(), Failure> {
        self.peer.registrations.fetch_sub(1, Ordering::Relaxed);
        if self.region.release() { Ok(()) } else { Err(Failure::provider("the device does not let go of the memory")) }
    }

    pub(crate) fn descriptor(&self) -> [u8; DESCRIPTOR_BYTES] {
        encode(self.region.address(), self.region.len_bytes(), self.region.rkey(), self.usage)
    }

    pub(crate) fn address(&self) -> u64 {
        self.region.address()
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }

    /// A part of it.
    #[inline]
    pub(super) fn sge(&self, offset: usize, len_bytes: usize) -> Result<Sge, Failure> {
        let part = self.region.sge(offset as u64, len_bytes as u64);
        part.ok_or_else(|| outside("the memory registration", offset, len_bytes, self.len_bytes()))
    }

    /// Brings the pages of a range in, where the device pages on demand.
    pub(crate) fn advise(&self, offset: usize, len_bytes: usize, for_writing: bool) -> Result<(), Failure> {
        self.sge(offset, len_bytes)?;
        if self.is_on_demand {
            self.region.advise_prefetch(offset as u64, len_bytes as u64, for_writing)?;
        }
        Ok(())
    }
}

#[cold]
fn outside(what: &str, offset: usize, len_bytes: usize, has_bytes: u64) -> Failure {
    if len_bytes > u32::MAX as usize {
        return Failure::invalid(format!("{len_bytes} bytes: an operation carries less than 4 GiB, post several"));
    }
    Failure::invalid(format!("{len_bytes} bytes at {offset} do not lie in {what}, which has {has_bytes}"))
}

fn encode(address: u64, len_bytes: u64, rkey: u32, usage: Usage) -> [u8; DESCRIPTOR_BYTES] {
    let mut bytes = [0; DESCRIPTOR_BYTES];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..16].copy_from_slice(&len_bytes.to_le_bytes());
    bytes[16..20].copy_from_slice(&rkey.to_le_bytes());
    bytes[20] = usage.bits();
    bytes
}

/// What the device must allow. Memory to flush can be read too, also where the device has a flush of its own: the other side's
/// may have none.
fn access_of(usage: Usage, has_native_flush: bool, is_iwarp: bool) -> MrAccess {
    let flushes = Usage::FLUSH_VISIBILITY | Usage::FLUSH_PERSISTENT;
    let mut access = MrAccess::empty();
    access.set(MrAccess::REMOTE_READ, usage.intersects(Usage::READ_SRC | flushes));
    access.set(
        MrAccess::LOCAL_WRITE,
        usage.intersects(Usage::READ_DST | Usage::WRITE_SRC | Usage::WRITE_DST | Usage::RECV),
    );
    // An iWARP device has the other side write what it reads.
    access
        .set(MrAccess::REMOTE_WRITE, usage.contains(Usage::WRITE_DST) || (is_iwarp && usage.contains(Usage::READ_DST)));
    access.set(MrAccess::FLUSH_GLOBAL, has_native_flush && usage.contains(Usage::FLUSH_VISIBILITY));
    access.set(MrAccess::FLUSH_PERSISTENT, has_native_flush && usage.contains(Usage::FLUSH_PERSISTENT));
    access
}

/// `rpma_mr_remote`.
#[derive(Debug)]
pub(crate) struct MrRemote {
    address: u64,
    len_bytes: u64,
    rkey: u32,
    usage: Usage,
    has_warned: AtomicBool,
}

impl MrRemote {
    pub(crate) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Result<Self, Failure> {
        let number = |begin: usize| u64::from_le_bytes(std::array::from_fn(|at| bytes[begin + at]));
        let usage = Usage::from_bits_retain(bytes[20]);
        if usage.is_empty() {
            return Err(Failure::new(Code::NotSupported, "the descriptor grants no usage"));
        }
        let rkey = u32::from_le_bytes(std::array::from_fn(|at| bytes[16 + at]));
        Ok(Self { address: number(0), len_bytes: number(8), rkey, usage, has_warned: AtomicBool::new(false) })
    }

    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The place of a range that lies inside.
    #[inline]
    pub(super) fn place(&self, offset: usize, len_bytes: usize) -> Result<RemoteAddress, Failure> {
        match offset.checked_add(len_bytes) {
            Some(end) if end as u64 <= self.len_bytes => {
                Ok(RemoteAddress { address: self.address.wrapping_add(offset as u64), rkey: self.rkey })
            }
            _ => Err(outside("the other side's memory", offset, len_bytes, self.len_bytes)),
        }
    }

    /// A place to read for a flush of what lies at `offset`, and how many bytes: as many as are wanted, or all there are.
    pub(super) fn place_to_read(&self, offset: usize, wanted_bytes: u64) -> (RemoteAddress, u64) {
        let len_bytes = wanted_bytes.min(self.len_bytes);
        let begin = (offset as u64).min(self.len_bytes - len_bytes);
        (RemoteAddress { address: self.address.wrapping_add(begin), rkey: self.rkey }, len_bytes)
    }

    /// True the first time.
    pub(super) fn warns(&self) -> bool {
        !self.has_warned.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_the_bytes_of_librpma() {
        let bytes = encode(0x0102_0304_0506_0708, 0x1122, 0xA1B2_C3D4, Usage::WRITE_DST | Usage::FLUSH_PERSISTENT);
        let expected = [8, 7, 6, 5, 4, 3, 2, 1, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 0xD4, 0xC3, 0xB2, 0xA1, 0b10_1000];
        assert_eq!(bytes, expected);
        let read = MrRemote::decode(&bytes).unwrap();
        assert_eq!((read.address, read.len_bytes, read.rkey), (0x0102_0304_0506_0708, 0x1122, 0xA1B2_C3D4));
        assert_eq!(read.usage, Usage::WRITE_DST | Usage::FLUSH_PERSISTENT);
        assert_eq!(MrRemote::decode(&encode(1, 2, 3, Usage::empty())).unwrap_err().code(), Code::NotSupported);
    }

    #[test]
    fn what_is_flushed_can_be_read_whatever_device_the_other_side_has() {
        for has_native_flush in [false, true] {
            for usage in [Usage::FLUSH_PERSISTENT, Usage::FLUSH_VISIBILITY] {
                let access = access_of(usage, has_native_flush, false);
                assert!(access.contains(MrAccess::REMOTE_READ));
                assert_eq!(
                    access.intersects(MrAccess::FLUSH_GLOBAL | MrAccess::FLUSH_PERSISTENT),
                    has_native_flush,
                    "{usage:?}"
                );
            }
        }
        assert_eq!(access_of(Usage::READ_DST, true, false), MrAccess::LOCAL_WRITE);
        assert_eq!(access_of(Usage::READ_DST, true, true), MrAccess::LOCAL_WRITE | MrAccess::REMOTE_WRITE);
        assert_eq!(access_of(Usage::SEND, true, false), MrAccess::empty());
    }

    #[test]
    fn the_last_bytes_of_a_region_can_be_flushed() {
        let memory = |len_bytes| MrRemote::decode(&encode(4096, len_bytes, 1, Usage::FLUSH_VISIBILITY)).unwrap();
        for (len_bytes, offset, address, read_bytes) in
            [(64, 0, 4096, 8), (64, 56, 4152, 8), (64, 60, 4152, 8), (64, 64, 4152, 8), (5, 3, 4096, 5)]
        {
            let (place, len) = memory(len_bytes).place_to_read(offset, 8);
            assert_eq!((place.address, len), (address, read_bytes), "{offset} of {len_bytes}");
        }
    }

    #[test]
    fn ranges_are_checked_in_64_bits() {
        let memory = MrRemote::decode(&encode(4096, 1 << 33, 1, Usage::WRITE_DST)).unwrap();
        assert!(memory.place(1 << 32, 1 << 31).is_ok());
        for (offset, len_bytes) in [(usize::MAX, 2), (1 << 33, 1), ((1 << 33) - 7, 8)] {
            assert_eq!(memory.place(offset, len_bytes).unwrap_err().code(), Code::Invalid);
        }
    }
}
