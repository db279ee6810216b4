//! Domains, and memory registered in them.

use std::{
    collections::BTreeSet,
    fmt,
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    sync::Arc,
};

use bitflags::bitflags;
use pmof_fabric_sys as sys;
use pmof_fabric_sys::Fabric;
use pmof_locks::Mutex;
use pmof_mem::{HeldAddresses, Medium, Memory};

use crate::{FabricError, Info, MrMode, RegisterError, error::Failure};

bitflags! {
    /// What peers may do with registered memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MrAccess: u64 {
        /// Peers read.
        const REMOTE_READ = sys::FI_REMOTE_READ;
        /// Peers write.
        const REMOTE_WRITE = sys::FI_REMOTE_WRITE;
    }
}

/// Bytes of what is registered to see how a provider does that.
const PAGE_BYTES: u64 = 4096;

/// A domain of a provider: memory and endpoints of one domain reach each other's peers. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct Domain(pub(crate) Arc<Opened>);

/// An opened domain. Its regions and endpoints keep it open.
pub(crate) struct Opened {
    pub(crate) info: Info,
    fabric: NonNull<sys::fid_fabric>,
    domain: NonNull<sys::fid_domain>,
    retired: Mutex<Retired>,
}

// SAFETY: the domain was opened with FI_THREAD_SAFE: libfabric allows calls from several threads at once.
unsafe impl Send for Opened {}
// SAFETY: the domain was opened with FI_THREAD_SAFE: libfabric allows calls from several threads at once.
unsafe impl Sync for Opened {}

/// Memory that is registered no more, and that an endpoint may still be receiving into: a provider that is software checks a key
/// when a write begins.
#[derive(Default)]
struct Retired {
    /// The number of the next endpoint.
    next: u64,
    endpoints: BTreeSet<u64>,
    /// With the number of the first endpoint that came after it.
    memory: Vec<(u64, Kept)>,
}

/// What stays of the memory: all of it where its addresses are another's.
enum Kept {
    Addresses(#[expect(dead_code, reason = "it is there to be dropped")] HeldAddresses),
    Memory(#[expect(dead_code, reason = "it is there to be dropped")] Arc<dyn Medium>),
}

impl Domain {
    /// Opens the domain of an offer.
    ///
    /// # Errors
    /// [`FabricError::CachesRegistrations`]: the provider would leave memory to peers that was taken away from them.
    pub fn open(info: Info) -> Result<Self, FabricError> {
        let library = info.fabric();
        let failed = |call, status: i32| FabricError::call(library, call, info.provider(), status.into());
        let (mut fabric, mut domain) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the info has all its parts.
        let status = unsafe { (library.fi_fabric)((*info.raw()).fabric_attr, &raw mut fabric, ptr::null_mut()) };
        let Some(fabric) = NonNull::new(fabric).filter(|_| status == 0) else {
            return Err(failed("fi_fabric", status));
        };
        // SAFETY: the fabric is open, and closed behind the domain.
        let status = unsafe { sys::fi_domain(fabric.as_ptr(), info.raw(), &mut domain) };
        let Some(domain) = NonNull::new(domain).filter(|_| status == 0) else {
            // SAFETY: nothing uses the fabric.
            unsafe { sys::fi_close(&raw mut (*fabric.as_ptr()).fid) };
            return Err(failed("fi_domain", status));
        };
        let opened = Self(Arc::new(Opened { info, fabric, domain, retired: Mutex::default() }));
        if opened.caches_registrations() {
            return Err(FabricError::CachesRegistrations { provider: opened.info().provider() });
        }
        Ok(opened)
    }

    /// Whether a provider that chooses keys gives the same one for two registrations of the same bytes: it keeps what was registered, with
    /// all rights, and hands it out again.
    fn caches_registrations(&self) -> bool {
        if !self.info().mr_mode().contains(MrMode::PROVIDER_KEY) {
            return false;
        }
        let Ok(page) = Memory::anonymous(PAGE_BYTES) else { return false };
        let page: Arc<dyn Medium> = Arc::new(page);
        let register = || self.register(Arc::clone(&page), (0, PAGE_BYTES), MrAccess::REMOTE_READ, 0);
        // What cannot be registered here is told of when it is wanted.
        matches!((register(), register()), (Ok(first), Ok(second)) if first.key() == second.key())
    }

    /// What the provider offers.
    pub fn info(&self) -> &Info {
        &self.0.info
    }

    /// Lets peers reach `len_bytes` (at least 1) of a medium from `offset` on, until the region is dropped. The key is taken where
    /// the provider does not choose one.
    ///
    /// # Errors
    /// [`RegisterError::NoRoom`]: a limit is reached. What was registered before stays so.
    pub fn register(
        &self,
        memory: Arc<dyn Medium>,
        (offset, len_bytes): (u64, u64),
        access: MrAccess,
        key: u64,
    ) -> Result<MemoryRegion, RegisterError> {
        let kind = memory.kind();
        let mapped = memory.memory().ok_or(RegisterError::NotMapped { kind })?;
        if memory.lent().is_some() {
            return Err(RegisterError::Lent { kind });
        }
        let size_bytes = mapped.len_bytes();
        if len_bytes == 0 || offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            return Err(RegisterError::OutOfBounds { offset, len_bytes, size_bytes });
        }
        if access.contains(MrAccess::REMOTE_WRITE) && !mapped.is_writable() {
            return Err(RegisterError::ReadOnly { kind });
        }
        let address = mapped.address() + offset;
        let start = ptr::with_exposed_provenance(address as usize);
        // SAFETY: `Memory` says where it is mapped, and stays mapped while somebody has the `Arc`, the region until it is closed; then the
        // domain holds its addresses, as long as there are endpoints that may have part of a write under way. `Memory` forms no
        // references to its bytes.
        let registered = unsafe { self.0.register((start, len_bytes as usize), access.bits(), key) };
        let raw = registered.map_err(|status| {
            let error = Failure::of(self.0.library(), status.into());
            let provider = self.0.info.provider();
            match error.errno {
                sys::FI_ENOKEY => RegisterError::KeyInUse { key },
                libc::ENOMEM | libc::ENOSPC => RegisterError::NoRoom { provider, kind, len_bytes, error },
                _ => RegisterError::Provider { provider, kind, len_bytes, error },
            }
        })?;
        let base = if self.0.info.mr_mode().contains(MrMode::VIRTUAL_ADDRESS) { address } else { 0 };
        // SAFETY: the region is open.
        let key = unsafe { (*raw.as_ptr()).key };
        Ok(MemoryRegion { raw, key, base, len_bytes, domain: self.clone(), memory: ManuallyDrop::new(memory) })
    }
}

impl Opened {
    pub(crate) fn library(&self) -> &'static Fabric {
        self.info.fabric()
    }

    pub(crate) fn raw(&self) -> *mut sys::fid_domain {
        self.domain.as_ptr()
    }

    pub(crate) fn fabric(&self) -> *mut sys::fid_fabric {
        self.fabric.as_ptr()
    }

    /// Registers memory, or says the status of the call.
    ///
    /// # Safety
    ///
    /// As of [`sys::fi_mr_reg`].
    pub(crate) unsafe fn register(
        &self,
        range: (*const std::ffi::c_void, usize),
        access: u64,
        key: u64,
    ) -> Result<NonNull<sys::fid_mr>, i32> {
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open, and whoever has a region of it keeps it so; the caller says the rest.
        let status = unsafe { sys::fi_mr_reg(self.raw(), range, access, key, &mut raw) };
        NonNull::new(raw).filter(|_| status == 0).ok_or(status)
    }

    /// Notes an endpoint, which is told by its number when it is closed.
    pub(crate) fn endpoint_opened(&self) -> u64 {
        let mut retired = self.retired.lock();
        let number = retired.next;
        retired.next += 1;
        retired.endpoints.insert(number);
        number
    }

    /// Lets go of the memory that only this endpoint may have been receiving into.
    pub(crate) fn endpoint_closed(&self, number: u64) {
        let mut retired = self.retired.lock();
        retired.endpoints.remove(&number);
        let first = retired.endpoints.first().copied().unwrap_or(u64::MAX);
        retired.memory.retain(|(after, _)| *after > first);
    }

    fn retire(&self, memory: Arc<dyn Medium>) {
        let kept = match memory.memory().and_then(Memory::hold_addresses) {
            Some(held) => Kept::Addresses(held),
            None => Kept::Memory(memory),
        };
        let mut retired = self.retired.lock();
        if !retired.endpoints.is_empty() {
            let after = retired.next;
            retired.memory.push((after, kept));
        }
    }

    #[cfg(test)]
    fn retired_count(&self) -> usize {
        self.retired.lock().memory.len()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: this was the last handle, and what was made in the domain has one. Where a call fails all the same, the object is
        // left open, which nothing refers to.
        unsafe {
            sys::fi_close(&raw mut (*self.domain.as_ptr()).fid);
            sys::fi_close(&raw mut (*self.fabric.as_ptr()).fid);
        }
    }
}

/// Memory that peers reach. Dropping it takes the memory away: later operations of peers are refused. What a peer's write had
/// begun before may still arrive, so its addresses are kept until the endpoints that were there are closed: what arrives when the memory is dropped
/// reaches nobody.
pub struct MemoryRegion {
    raw: NonNull<sys::fid_mr>,
    key: u64,
    base: u64,
    len_bytes: u64,
    domain: Domain,
    memory: ManuallyDrop<Arc<dyn Medium>>,
}

// SAFETY: the domain was opened with FI_THREAD_SAFE: libfabric allows calls from several threads at once.
unsafe impl Send for MemoryRegion {}
// SAFETY: the domain was opened with FI_THREAD_SAFE: libfabric allows calls from several threads at once.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The key for peers.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// What peers add an offset to: the first byte's virtual address, or 0.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len_bytes", &self.len_bytes)
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the region is open, and this is its only handle.
        let status = unsafe { sys::fi_close(&raw mut (*self.raw.as_ptr()).fid) };
        if status == 0 {
            // SAFETY: dropped here only. Where the provider would not close the region, the memory stays mapped for ever.
            self.domain.0.retire(unsafe { ManuallyDrop::take(&mut self.memory) });
        }
    }
}

#[cfg(test)]
#[path = "domain_tests.rs"]
mod tests;
