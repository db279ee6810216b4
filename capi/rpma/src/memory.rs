//! Memory registrations of this side, and those of the other side as their descriptors tell.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pmof_access::{
    Access, Connection, Lent, Memory, Region, RegionPart, RegionSlice, RemoteRegion, SHORT_DESCRIPTOR_BYTES,
    ShortDescriptor,
};

use crate::{
    call::{call, need},
    connection::LOSS_TIMEOUT,
    context::{Peer, PeerShared},
    error::{Code, Failure, put},
    handle::{Handle, kind},
};

const USAGE_READ_SRC: c_int = 1;
const USAGE_WRITE_DST: c_int = 1 << 3;
const USAGE_FLUSH_VISIBILITY: c_int = 1 << 4;
const USAGE_FLUSH_PERSISTENT: c_int = 1 << 5;
const USAGE_ALL: c_int = (1 << 8) - 1;

/// Longer than a dead peer goes unnoticed: the connection is lost before this ends.
const RESOLVE_TIMEOUT: Duration = LOSS_TIMEOUT.saturating_mul(2);

/// `rpma_mr_local`.
#[derive(Debug)]
pub struct MrLocal {
    region: Region,
    address: usize,
    usage: u8,
    /// Made when first asked for.
    descriptor: OnceLock<[u8; SHORT_DESCRIPTOR_BYTES]>,
    peer: Arc<PeerShared>,
}
kind!(MrLocal, 5, "rpma_mr_local");

/// What the other side may do with memory of this usage. A flush is granted on its own: it does not need the right to read.
fn access_of(usage: c_int) -> Access {
    let mut access = Access::empty();
    access.set(Access::READ, usage & USAGE_READ_SRC != 0);
    access.set(Access::WRITE, usage & USAGE_WRITE_DST != 0);
    access.set(Access::FLUSH_VISIBLE, usage & USAGE_FLUSH_VISIBILITY != 0);
    access.set(Access::FLUSH_PERSISTENT, usage & USAGE_FLUSH_PERSISTENT != 0);
    access
}

impl MrLocal {
    /// A part of it; lengths and offsets are checked in 64 bits.
    #[inline]
    pub(crate) fn part(&self, offset: usize, len_bytes: usize) -> Result<RegionPart<'_>, Failure> {
        let (offset, len_bytes) = (offset as u64, len_bytes as u64);
        let end = offset.checked_add(len_bytes).ok_or_else(|| Failure::invalid("offset + len overflows"))?;
        Ok(self.region.part(offset..end)?)
    }

    /// The same with a handle of its own.
    pub(crate) fn slice(&self, offset: usize, len_bytes: usize) -> Result<RegionSlice, Failure> {
        self.part(offset, len_bytes).map(RegionSlice::from)
    }
}

/// A part of a registration of this side; no bytes where there is none, for which offset and length must be 0.
///
/// # Safety
///
/// `mr` is null or a registration.
#[inline]
pub(crate) unsafe fn slice(
    peer: &PeerShared,
    mr: *const Handle<MrLocal>,
    offset: usize,
    len_bytes: usize,
) -> Result<RegionSlice, Failure> {
    // SAFETY: the same contract.
    match unsafe { Handle::get_if_any(mr) }? {
        Some(mr) => mr.slice(offset, len_bytes),
        None if offset == 0 && len_bytes == 0 => peer.nothing(),
        None => Err(Failure::invalid("without a memory registration, offset and length must be 0")),
    }
}

/// `rpma_mr_remote`.
#[derive(Debug)]
pub struct MrRemote {
    short: ShortDescriptor,
    region: OnceLock<RemoteRegion>,
    /// It was logged that the platform cannot do what the application claims.
    pub(crate) has_warned: AtomicBool,
}
kind!(MrRemote, 6, "rpma_mr_remote");

impl MrRemote {
    /// The region. Where a device reaches it its owner is asked, once, and the answer waited for.
    #[inline]
    pub(crate) fn region(&self, connection: &Connection) -> Result<&RemoteRegion, Failure> {
        match self.region.get() {
            Some(region) => Ok(region),
            None => self.ask(connection),
        }
    }

    #[cold]
    fn ask(&self, connection: &Connection) -> Result<&RemoteRegion, Failure> {
        let found = connection.resolve(&self.short, access_of(self.short.note().into()), RESOLVE_TIMEOUT);
        let found = found.map_err(|error| Failure::provider(error.to_string()))?;
        Ok(self.region.get_or_init(|| found))
    }

    pub(crate) fn may_flush(&self, is_persistent: bool) -> bool {
        let bit = if is_persistent { USAGE_FLUSH_PERSISTENT } else { USAGE_FLUSH_VISIBILITY };
        c_int::from(self.short.note()) & bit != 0
    }

    /// True the first time.
    pub(crate) fn warns(&self) -> bool {
        !self.has_warned.swap(true, Ordering::Relaxed)
    }
}

/// Registers memory of the application; it stays where it is until it is deregistered.
///
/// # Safety
///
/// `peer` is null or a peer; `address` is null or that of `size` bytes that stay mapped, in the same way, until the registration is
/// deleted; `made` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_reg(
    peer: *mut Handle<Peer>,
    address: *mut c_void,
    size: usize,
    usage: c_int,
    made: *mut *mut Handle<MrLocal>,
) -> c_int {
    call(c"rpma_mr_reg", || {
        // SAFETY: the same contract.
        let peer = unsafe { Handle::get(peer) }?;
        need(address, "ptr")?;
        need(made, "mr_ptr")?;
        if size == 0 || usage == 0 || usage & !USAGE_ALL != 0 {
            return Err(Failure::invalid(format!(
                "size {size}, usage {usage:#x}: neither may be 0, and usages are 8 bits"
            )));
        }
        let begin = address.expose_provenance();
        // SAFETY: the same contract.
        let memory = unsafe { Memory::borrow(begin as u64, size as u64, None) };
        let memory = memory.map_err(|error| Failure::provider(error.to_string()))?;
        let region = peer.shared.peer.register(Arc::new(Lent::new(memory)), 0, size as u64, access_of(usage))?;
        let mr = MrLocal {
            region,
            address: begin,
            usage: usage.to_le_bytes()[0],
            descriptor: OnceLock::new(),
            peer: Arc::clone(&peer.shared),
        };
        peer.shared.registrations.fetch_add(1, Ordering::Relaxed);
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(made, Handle::create(mr)) };
        Ok(())
    })
}

/// Deletes a registration: on return neither the library nor a device touches the memory any more. Operations that still need
/// it fail, and their connections end.
///
/// # Safety
///
/// `mr` is null or points at null or at a registration that nobody else uses now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_dereg(mr: *mut *mut Handle<MrLocal>) -> c_int {
    call(c"rpma_mr_dereg", || {
        // SAFETY: the same contract.
        if let Some(mr) = unsafe { Handle::delete(mr) }? {
            mr.region.deregister();
            mr.peer.registrations.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// Writes what the other side needs to use the memory: as many bytes as the next function says.
///
/// # Safety
///
/// `mr` is null or a registration; `descriptor` is null or valid for a write of so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_get_descriptor(mr: *const Handle<MrLocal>, descriptor: *mut c_void) -> c_int {
    call(c"rpma_mr_get_descriptor", || {
        // SAFETY: the same contract.
        let mr = unsafe { Handle::get(mr) }?;
        need(descriptor, "desc")?;
        let bytes = if let Some(bytes) = mr.descriptor.get() {
            bytes
        } else {
            let made = mr.region.short_descriptor(mr.usage)?.encode();
            mr.descriptor.get_or_init(|| made)
        };
        // SAFETY: valid for so many bytes, which are not those of the registration itself.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), descriptor.cast(), bytes.len()) };
        Ok(())
    })
}

/// Tells the size of a descriptor, in bytes.
///
/// # Safety
///
/// `mr` is null or a registration; `size` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_get_descriptor_size(mr: *const Handle<MrLocal>, size: *mut usize) -> c_int {
    call(c"rpma_mr_get_descriptor_size", || {
        // SAFETY: the same contract.
        unsafe { Handle::get(mr) }?;
        need(size, "desc_size")?;
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(size, SHORT_DESCRIPTOR_BYTES) };
        Ok(())
    })
}

/// Tells where the memory begins.
///
/// # Safety
///
/// `mr` is null or a registration; `address` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_get_ptr(mr: *const Handle<MrLocal>, address: *mut *mut c_void) -> c_int {
    call(c"rpma_mr_get_ptr", || {
        // SAFETY: the same contract.
        let mr = unsafe { Handle::get(mr) }?;
        need(address, "ptr")?;
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(address, ptr::with_exposed_provenance_mut(mr.address)) };
        Ok(())
    })
}

/// Tells the size of the memory, in bytes.
///
/// # Safety
///
/// `mr` is null or a registration; `size` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_get_size(mr: *const Handle<MrLocal>, size: *mut usize) -> c_int {
    call(c"rpma_mr_get_size", || {
        // SAFETY: the same contract.
        let mr = unsafe { Handle::get(mr) }?;
        need(size, "size")?;
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(size, mr.region.len_bytes() as usize) };
        Ok(())
    })
}

/// Advises the kernel about a range: 0 and 1 bring its pages in for reading or for writing, where the device pages on demand.
///
/// # Safety
///
/// `mr` is null or a registration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_advise(
    mr: *mut Handle<MrLocal>,
    offset: usize,
    len: usize,
    advice: c_int,
    flags: u32,
) -> c_int {
    const FLAG_FLUSH: u32 = 1;
    call(c"rpma_mr_advise", || {
        // SAFETY: the same contract.
        let mr = unsafe { Handle::get(mr) }?;
        mr.slice(offset, len)?;
        let for_writing = match advice {
            0 | 2 => false,
            1 => true,
            _ => return Err(Failure::invalid(format!("there is no advice {advice}"))),
        };
        if flags & !FLAG_FLUSH != 0 {
            return Err(Failure::invalid(format!("there are no flags {flags:#x} of advice")));
        }
        // Where nothing is paged on demand there is nothing to bring in: fio takes a refusal for a failure of its run.
        mr.region.prefetch(offset as u64, len as u64, for_writing)?;
        Ok(())
    })
}

/// Reads a descriptor of the other side's memory.
///
/// # Safety
///
/// `descriptor` is null or valid for a read of `size` bytes; `made` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_remote_from_descriptor(
    descriptor: *const c_void,
    size: usize,
    made: *mut *mut Handle<MrRemote>,
) -> c_int {
    call(c"rpma_mr_remote_from_descriptor", || {
        need(descriptor, "desc")?;
        need(made, "mr_ptr")?;
        if size < SHORT_DESCRIPTOR_BYTES {
            let why =
                format!("a descriptor has {SHORT_DESCRIPTOR_BYTES} bytes, not {size}; both sides must run on pmof");
            return Err(Failure::invalid(why));
        }
        let mut bytes = [0; SHORT_DESCRIPTOR_BYTES];
        // SAFETY: valid for so many bytes.
        unsafe { ptr::copy_nonoverlapping(descriptor.cast(), bytes.as_mut_ptr(), bytes.len()) };
        let short = ShortDescriptor::decode(&bytes)
            .map_err(|error| Failure::new(Code::NotSupported, format!("{error}; both sides must run on pmof")))?;
        if short.note() == 0 {
            return Err(Failure::new(Code::NotSupported, "the descriptor grants no usage"));
        }
        let region = short.region(access_of(short.note().into())).map(OnceLock::from).unwrap_or_default();
        let mr = MrRemote { short, region, has_warned: AtomicBool::new(false) };
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(made, Handle::create(mr)) };
        Ok(())
    })
}

/// Tells the size of the other side's memory, in bytes.
///
/// # Safety
///
/// `mr` is null or such memory; `size` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_remote_get_size(mr: *const Handle<MrRemote>, size: *mut usize) -> c_int {
    call(c"rpma_mr_remote_get_size", || {
        // SAFETY: the same contract.
        let mr = unsafe { Handle::get(mr) }?;
        need(size, "size")?;
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(size, mr.short.len_bytes() as usize) };
        Ok(())
    })
}

/// Tells which flushes the other side's memory was registered for: bits 16 (visibility) and 32 (persistent).
///
/// # Safety
///
/// `mr` is null or such memory; `flush_type` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_remote_get_flush_type(mr: *const Handle<MrRemote>, flush_type: *mut c_int) -> c_int {
    call(c"rpma_mr_remote_get_flush_type", || {
        // SAFETY: the same contract.
        let mr = unsafe { Handle::get(mr) }?;
        need(flush_type, "flush_type")?;
        let types = c_int::from(mr.short.note()) & (USAGE_FLUSH_VISIBILITY | USAGE_FLUSH_PERSISTENT);
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { put(flush_type, types) };
        Ok(())
    })
}

/// Forgets the other side's memory.
///
/// # Safety
///
/// `mr` is null or points at null or at such memory that nobody else uses now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_remote_delete(mr: *mut *mut Handle<MrRemote>) -> c_int {
    // SAFETY: the same contract.
    call(c"rpma_mr_remote_delete", || unsafe { Handle::delete(mr) }.map(drop))
}
