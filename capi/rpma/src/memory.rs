//! Memory registrations of this side, and descriptors of the other side's registrations.

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
use pmof_mem::causes;

use crate::{
    argument::{Object, Out, Slot},
    call::{call, need},
    context::{Peer, PeerShared},
    error::{Code, Failure},
    handle::{Handle, kind},
    limits::LOSS_TIMEOUT,
    on::On,
    verbs::{self, Usage},
};

/// Longer than the loss timeout: a connection to a dead peer is lost before this ends.
const RESOLVE_TIMEOUT: Duration = LOSS_TIMEOUT.saturating_mul(2);

/// `rpma_mr_local`.
#[derive(Debug)]
pub struct MrLocal(On<AccessMrLocal, verbs::MrLocal>);
kind!(MrLocal, 5, "rpma_mr_local");

/// A registration for connections of pmof.
#[derive(Debug)]
pub(crate) struct AccessMrLocal {
    region: Region,
    address: usize,
    usage: Usage,
    /// Made when first asked for.
    descriptor: OnceLock<[u8; SHORT_DESCRIPTOR_BYTES]>,
    peer: Arc<PeerShared>,
}

/// The rights of the other side on memory of this usage. A flush does not need the right to read.
fn access_of(usage: Usage) -> Access {
    let mut access = Access::empty();
    access.set(Access::READ, usage.contains(Usage::READ_SRC));
    access.set(Access::WRITE, usage.contains(Usage::WRITE_DST));
    access.set(Access::FLUSH_VISIBLE, usage.contains(Usage::FLUSH_VISIBILITY));
    access.set(Access::FLUSH_PERSISTENT, usage.contains(Usage::FLUSH_PERSISTENT));
    access
}

impl MrLocal {
    #[inline]
    pub(crate) fn access(&self) -> Result<&AccessMrLocal, Failure> {
        self.0.access()
    }

    #[inline]
    pub(crate) fn verbs(&self) -> Result<&verbs::MrLocal, Failure> {
        self.0.verbs()
    }
}

impl AccessMrLocal {
    fn descriptor(&self) -> Result<[u8; SHORT_DESCRIPTOR_BYTES], Failure> {
        if let Some(bytes) = self.descriptor.get() {
            return Ok(*bytes);
        }
        let made = self.region.short_descriptor(self.usage.bits())?.encode();
        Ok(*self.descriptor.get_or_init(|| made))
    }

    /// For an operation on a connection of `peer`. A device refuses memory that was registered elsewhere.
    #[inline]
    pub(crate) fn for_peer(&self, peer: &PeerShared) -> Result<&Self, Failure> {
        if ptr::eq(&raw const *self.peer, peer) { Ok(self) } else { Err(of_another_peer()) }
    }

    /// A part of it; lengths and offsets are checked in 64 bits.
    #[inline]
    pub(crate) fn part(&self, offset: usize, len_bytes: usize) -> Result<RegionPart<'_>, Failure> {
        let (offset, len_bytes) = (offset as u64, len_bytes as u64);
        let end = offset.checked_add(len_bytes).ok_or_else(|| Failure::invalid("offset + len overflows"))?;
        Ok(self.region.part(offset..end)?)
    }

    /// The same, with a new handle.
    pub(crate) fn slice(&self, offset: usize, len_bytes: usize) -> Result<RegionSlice, Failure> {
        self.part(offset, len_bytes).map(RegionSlice::from)
    }
}

#[cold]
fn of_another_peer() -> Failure {
    Failure::invalid(
        "the memory was registered with another peer: register it with the peer of the connection, or of the shared receives",
    )
}

/// A part of a registration of this side; no bytes where there is none, for which offset and length must be 0.
#[inline]
pub(crate) fn slice(
    peer: &PeerShared,
    mr: Object<MrLocal>,
    offset: usize,
    len_bytes: usize,
) -> Result<RegionSlice, Failure> {
    match mr.uncounted_if_any()? {
        Some(mr) => mr.access()?.for_peer(peer)?.slice(offset, len_bytes),
        None if offset == 0 && len_bytes == 0 => peer.nothing(),
        None => Err(Failure::invalid("without a memory registration, offset and length must be 0")),
    }
}

/// `rpma_mr_remote`. The kind of descriptor is decided at its use: pmof's has a checksum where librpma's has its
/// key, and the two coincide once in four billion.
#[derive(Debug)]
pub struct MrRemote {
    access: Option<AccessMrRemote>,
    verbs: verbs::MrRemote,
}
kind!(MrRemote, 6, "rpma_mr_remote");

/// Memory that a connection of pmof reaches.
#[derive(Debug)]
pub(crate) struct AccessMrRemote {
    short: ShortDescriptor,
    region: OnceLock<RemoteRegion>,
    /// Whether the log already says that the platform contradicts the application's claim.
    has_warned: AtomicBool,
}

impl MrRemote {
    fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let bytes = bytes.first_chunk::<{ verbs::DESCRIPTOR_BYTES }>().ok_or_else(|| {
            Failure::invalid(format!("a descriptor has {} bytes, not {}", verbs::DESCRIPTOR_BYTES, bytes.len()))
        })?;
        let verbs = verbs::MrRemote::decode(bytes)?;
        let access = ShortDescriptor::decode(bytes).map(|short| {
            let region = short.region(access_of(verbs.usage())).map(OnceLock::from).unwrap_or_default();
            AccessMrRemote { short, region, has_warned: AtomicBool::new(false) }
        });
        Ok(Self { access: access.ok(), verbs })
    }

    fn len_bytes(&self) -> u64 {
        self.access.as_ref().map_or(self.verbs.len_bytes(), |access| access.short.len_bytes())
    }

    #[inline]
    pub(crate) fn access(&self) -> Result<&AccessMrRemote, Failure> {
        self.access.as_ref().ok_or_else(|| {
            let why = "the descriptor is damaged, or of another transport: both ends must use the same";
            Failure::new(Code::NotSupported, why)
        })
    }

    #[inline]
    pub(crate) fn verbs(&self) -> &verbs::MrRemote {
        &self.verbs
    }
}

impl AccessMrRemote {
    /// The region. If a device reaches it, its owner is asked once, and this waits for the answer.
    #[inline]
    pub(crate) fn region(&self, connection: &Connection) -> Result<&RemoteRegion, Failure> {
        match self.region.get() {
            Some(region) => Ok(region),
            None => self.ask(connection),
        }
    }

    #[cold]
    fn ask(&self, connection: &Connection) -> Result<&RemoteRegion, Failure> {
        let found = connection.resolve(&self.short, access_of(self.usage()), RESOLVE_TIMEOUT);
        let found = found.map_err(|error| Failure::provider(causes(&error).to_string()))?;
        Ok(self.region.get_or_init(|| found))
    }

    pub(crate) fn may_flush(&self, is_persistent: bool) -> bool {
        let bit = if is_persistent { Usage::FLUSH_PERSISTENT } else { Usage::FLUSH_VISIBILITY };
        self.usage().contains(bit)
    }

    fn usage(&self) -> Usage {
        Usage::from_bits_retain(self.short.note())
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
    peer: Object<Peer>,
    address: *mut c_void,
    size: usize,
    usage: c_int,
    made: Out<*mut Handle<MrLocal>>,
) -> c_int {
    call(c"rpma_mr_reg", || {
        let peer = peer.get()?;
        need(address, "ptr")?;
        made.need("mr_ptr")?;
        let usage = u8::try_from(usage)
            .ok()
            .map(Usage::from_bits_retain)
            .filter(|usage| size > 0 && !usage.is_empty())
            .ok_or_else(|| {
                Failure::invalid(format!("size {size}, usage {usage:#x}: neither may be 0, and usages are 8 bits"))
            })?;
        let begin = address.expose_provenance();
        // SAFETY: the bytes stay mapped until the application deletes the registration, by the contract of this function.
        let memory = unsafe { Memory::borrow(begin as u64, size as u64, None) };
        let memory = memory.map_err(|error| Failure::provider(causes(&error).to_string()))?;
        let mr = match &peer.0 {
            On::Access(peer) => {
                let region = peer.peer.register(Arc::new(Lent::new(memory)), 0, size as u64, access_of(usage))?;
                peer.registrations.fetch_add(1, Ordering::Relaxed);
                let (descriptor, peer) = (OnceLock::new(), Arc::clone(peer));
                On::Access(AccessMrLocal { region, address: begin, usage, descriptor, peer })
            }
            On::Verbs(peer) => On::Verbs(verbs::MrLocal::register(peer, memory, usage)?),
        };
        let mr = MrLocal(mr);
        made.put(Handle::create(mr));
        Ok(())
    })
}

/// Deletes a registration: on return neither the library nor a device touches the memory any more. Operations that still need
/// it fail, and their connections end.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_dereg(mr: Slot<MrLocal>) -> c_int {
    call(c"rpma_mr_dereg", || {
        match mr.take()? {
            Some(MrLocal(On::Access(mr))) => {
                mr.region.deregister();
                mr.peer.registrations.fetch_sub(1, Ordering::Relaxed);
            }
            Some(MrLocal(On::Verbs(mr))) => mr.deregister()?,
            None => {}
        }
        Ok(())
    })
}

/// Writes the memory's descriptor for the other side; the next function returns its size.
///
/// # Safety
///
/// `mr` is null or a registration; `descriptor` is null or valid for a write of that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_mr_get_descriptor(mr: Object<MrLocal>, descriptor: *mut c_void) -> c_int {
    call(c"rpma_mr_get_descriptor", || {
        let mr = mr.get()?;
        need(descriptor, "desc")?;
        let (short, raw);
        let bytes = match &mr.0 {
            On::Access(mr) => {
                short = mr.descriptor()?;
                &short[..]
            }
            On::Verbs(mr) => {
                raw = mr.descriptor();
                &raw[..]
            }
        };
        // SAFETY: valid for a descriptor's bytes, by the contract of this function, and not the memory of the registration itself.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), descriptor.cast(), bytes.len()) };
        Ok(())
    })
}

/// Returns the size of a descriptor, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_get_descriptor_size(mr: Object<MrLocal>, size: Out<usize>) -> c_int {
    call(c"rpma_mr_get_descriptor_size", || {
        let mr = mr.get()?;
        size.need("desc_size")?;
        let bytes = match &mr.0 {
            On::Access(_) => SHORT_DESCRIPTOR_BYTES,
            On::Verbs(_) => verbs::DESCRIPTOR_BYTES,
        };
        size.put(bytes);
        Ok(())
    })
}

/// Returns the start address of the memory.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_get_ptr(mr: Object<MrLocal>, address: Out<*mut c_void>) -> c_int {
    call(c"rpma_mr_get_ptr", || {
        let mr = mr.get()?;
        address.need("ptr")?;
        let begin = match &mr.0 {
            On::Access(mr) => mr.address,
            On::Verbs(mr) => mr.address() as usize,
        };
        address.put(ptr::with_exposed_provenance_mut(begin));
        Ok(())
    })
}

/// Returns the size of the memory, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_get_size(mr: Object<MrLocal>, size: Out<usize>) -> c_int {
    call(c"rpma_mr_get_size", || {
        let mr = mr.get()?;
        size.need("size")?;
        let len_bytes = match &mr.0 {
            On::Access(mr) => mr.region.len_bytes(),
            On::Verbs(mr) => mr.len_bytes(),
        };
        size.put(len_bytes as usize);
        Ok(())
    })
}

/// Advises the kernel about a range: 0 and 1 bring its pages in for reading or for writing, where the device pages on demand.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_advise(mr: Object<MrLocal>, offset: usize, len: usize, advice: c_int, flags: u32) -> c_int {
    const FLAG_FLUSH: u32 = 1;
    call(c"rpma_mr_advise", || {
        let mr = mr.get()?;
        let for_writing = match advice {
            0 | 2 => false,
            1 => true,
            _ => return Err(Failure::invalid(format!("there is no advice {advice}"))),
        };
        if flags & !FLAG_FLUSH != 0 {
            return Err(Failure::invalid(format!("there are no flags {flags:#x} of advice")));
        }
        // Where nothing is paged on demand there is nothing to bring in: fio takes a refusal for a failure of its run.
        match &mr.0 {
            On::Access(mr) => {
                mr.slice(offset, len)?;
                mr.region.prefetch(offset as u64, len as u64, for_writing)?;
                Ok(())
            }
            On::Verbs(mr) => mr.advise(offset, len, for_writing),
        }
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
    made: Out<*mut Handle<MrRemote>>,
) -> c_int {
    call(c"rpma_mr_remote_from_descriptor", || {
        need(descriptor, "desc")?;
        made.need("mr_ptr")?;
        // SAFETY: valid for a read of `size` bytes, by the contract of this function.
        let bytes = unsafe { std::slice::from_raw_parts(descriptor.cast::<u8>(), size) };
        let mr = MrRemote::decode(bytes)?;
        made.put(Handle::create(mr));
        Ok(())
    })
}

/// Returns the size of the other side's memory, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_remote_get_size(mr: Object<MrRemote>, size: Out<usize>) -> c_int {
    call(c"rpma_mr_remote_get_size", || {
        let mr = mr.get()?;
        size.need("size")?;
        let len_bytes = mr.len_bytes();
        size.put(len_bytes as usize);
        Ok(())
    })
}

/// Tells which flushes the other side's memory was registered for: bits 16 (visibility) and 32 (persistent).
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_remote_get_flush_type(mr: Object<MrRemote>, flush_type: Out<c_int>) -> c_int {
    call(c"rpma_mr_remote_get_flush_type", || {
        let mr = mr.get()?;
        flush_type.need("flush_type")?;
        let usage = mr.verbs.usage();
        let types = c_int::from((usage & (Usage::FLUSH_VISIBILITY | Usage::FLUSH_PERSISTENT)).bits());
        flush_type.put(types);
        Ok(())
    })
}

/// Deletes the description of the other side's memory.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_mr_remote_delete(mr: Slot<MrRemote>) -> c_int {
    call(c"rpma_mr_remote_delete", || mr.delete())
}
