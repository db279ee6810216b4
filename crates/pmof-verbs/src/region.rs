//! Protection domains, and memory registered in them.

use std::{
    fmt, fs, io,
    mem::ManuallyDrop,
    ptr,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use bitflags::bitflags;
use pmof_mem::{Medium, MediumKind};
use pmof_verbs_sys as sys;
use rustix::process::{Resource, getrlimit};

use crate::{Device, RegisterError, VerbsError};

/// The number of `CAP_IPC_LOCK`, which lifts the limit on locked memory.
const CAP_IPC_LOCK: u32 = 14;

bitflags! {
    /// What a registration allows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MrAccess: u32 {
        /// The device writes here for this side: receives, results of reads and atomics.
        const LOCAL_WRITE = sys::IBV_ACCESS_LOCAL_WRITE;
        /// Peers write. Implies `LOCAL_WRITE`.
        const REMOTE_WRITE = sys::IBV_ACCESS_REMOTE_WRITE;
        /// Peers read.
        const REMOTE_READ = sys::IBV_ACCESS_REMOTE_READ;
        /// Peers compare and swap, and add. Implies `LOCAL_WRITE`.
        const REMOTE_ATOMIC = sys::IBV_ACCESS_REMOTE_ATOMIC;
        /// Peers flush to visibility.
        const FLUSH_GLOBAL = sys::IBV_ACCESS_FLUSH_GLOBAL;
        /// Peers flush to persistence.
        const FLUSH_PERSISTENT = sys::IBV_ACCESS_FLUSH_PERSISTENT;
        /// The device brings pages in when they are touched, instead of pinning all of them now.
        const ON_DEMAND = sys::IBV_ACCESS_ON_DEMAND;
    }
}

/// A protection domain: regions, shared receive queues and queue pairs of one domain reach each other. Clones are the
/// same domain.
#[derive(Clone)]
pub struct ProtectionDomain(Arc<Domain>);

struct Domain {
    raw: NonNull<sys::ibv_pd>,
    device: Device,
}

// SAFETY: libibverbs allows calls on one protection domain from several threads at once.
unsafe impl Send for Domain {}
// SAFETY: libibverbs allows calls on one protection domain from several threads at once.
unsafe impl Sync for Domain {}

impl ProtectionDomain {
    pub(crate) fn new(device: &Device) -> Result<Self, VerbsError> {
        // SAFETY: the device keeps its context open.
        let raw = unsafe { (device.verbs().ibv_alloc_pd)(device.context()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self(Arc::new(Domain { raw, device: device.clone() }))),
            None => Err(VerbsError::last("ibv_alloc_pd", device.name())),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// True if both handles are of one domain.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Lets the device reach `len_bytes` (at least 1) of a medium from `offset` on, until the region is dropped.
    ///
    /// Without `ON_DEMAND` all pages are brought in and pinned now, which takes time in proportion and counts against
    /// the limit on locked memory.
    pub fn register(
        &self,
        memory: Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        mut access: MrAccess,
    ) -> Result<MemoryRegion, RegisterError> {
        if access.intersects(MrAccess::REMOTE_WRITE | MrAccess::REMOTE_ATOMIC) {
            access |= MrAccess::LOCAL_WRITE;
        }
        let kind = memory.kind();
        let mapped = memory.memory().ok_or(RegisterError::NotMapped { kind })?;
        let size_bytes = mapped.len_bytes();
        if len_bytes == 0 || offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
            return Err(RegisterError::OutOfBounds { offset, len_bytes, size_bytes });
        }
        if access.contains(MrAccess::LOCAL_WRITE) && !mapped.is_writable() {
            return Err(RegisterError::ReadOnly { kind });
        }
        self.check_supported(access)?;
        let address = mapped.address() + offset;
        let start = ptr::with_exposed_provenance_mut(address as usize);
        let device = &self.0.device;
        // SAFETY: the domain is alive. `Memory` says where it is mapped, and stays mapped while the region keeps its
        // `Arc`, which it does until the device has let go. `Memory` forms no references to its bytes.
        let raw = unsafe { device.verbs().reg_mr(self.raw(), start, len_bytes as usize, access.bits()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(MemoryRegion {
                raw,
                // SAFETY: the library made the region.
                keys: unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) },
                address,
                len_bytes,
                domain: self.clone(),
                released: OnceLock::new(),
                memory: ManuallyDrop::new(memory),
            }),
            None => Err(refusal(io::Error::last_os_error(), device.name(), kind, len_bytes, access, lock_limit)),
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.0.raw.as_ptr()
    }

    fn check_supported(&self, access: MrAccess) -> Result<(), RegisterError> {
        let capabilities = self.device().capabilities();
        let lacks = [
            (MrAccess::FLUSH_GLOBAL, capabilities.native_flush_global, "native flush to visibility"),
            (MrAccess::FLUSH_PERSISTENT, capabilities.native_flush_persistent, "native flush to persistence"),
            (MrAccess::ON_DEMAND, !capabilities.on_demand_paging.is_empty(), "on-demand paging"),
        ];
        match lacks.into_iter().find(|(flag, has, _)| access.contains(*flag) && !has) {
            Some((_, _, what)) => Err(RegisterError::Unsupported { device: self.device().name().into(), what }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("device", self.device()).finish_non_exhaustive()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: this was the last handle, and what was made in the domain keeps a handle. Where the call fails all the
        // same, the kernel frees the domain with the process.
        unsafe { (self.device.verbs().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A range of a gather or scatter list: part of a [`MemoryRegion`], the only one who makes them. It may outlive its
/// region; the device then refuses the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) lkey: u32,
}

impl Sge {
    /// The length in bytes.
    pub fn len_bytes(self) -> u32 {
        self.len_bytes
    }
}

/// Memory that the device reaches. Dropping it takes the memory away from the device: requests that still use it fail,
/// here and at peers.
pub struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    /// The local and the remote key.
    keys: (u32, u32),
    address: u64,
    len_bytes: u64,
    domain: ProtectionDomain,
    /// The device has let go of it, or was told to.
    released: OnceLock<bool>,
    /// Kept until the device has let go of it.
    memory: ManuallyDrop<Arc<dyn Medium>>,
}

// SAFETY: libibverbs allows calls on one region from several threads at once.
unsafe impl Send for MemoryRegion {}
// SAFETY: libibverbs allows calls on one region from several threads at once.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The key for requests of this side.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.keys.0
    }

    /// The key for requests of peers.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.keys.1
    }

    /// The virtual address of the first byte, by which peers name it too.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The length in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// The medium that the region is of.
    pub fn memory(&self) -> &Arc<dyn Medium> {
        &self.memory
    }

    /// A range of the region, `offset` counted from its beginning. `None` where it does not lie inside, or is longer
    /// than 4 GiB - 1.
    #[inline]
    pub fn sge(&self, offset: u64, len_bytes: u64) -> Option<Sge> {
        let end = offset.checked_add(len_bytes)?;
        if end > self.len_bytes {
            return None;
        }
        Some(Sge { address: self.address + offset, len_bytes: u32::try_from(len_bytes).ok()?, lkey: self.lkey() })
    }

    /// Takes the memory away from the device now, as the drop does. False where the device would not let go of it.
    ///
    /// Ranges of it may be made still: the device refuses requests that name them, unless it has given their key to another
    /// region meanwhile.
    pub fn release(&self) -> bool {
        *self.released.get_or_init(|| {
            // SAFETY: the library made the region, and this is its only release: it is done once.
            unsafe { (self.domain.device().verbs().ibv_dereg_mr)(self.raw.as_ptr()) == 0 }
        })
    }

    /// Has the kernel bring the pages of a range in, for writing or for reading, so that the first touch by the device
    /// does not wait. Returns at once. Only for regions registered `ON_DEMAND`.
    pub fn advise_prefetch(&self, offset: u64, len_bytes: u64, for_writing: bool) -> Result<(), VerbsError> {
        let size = self.len_bytes;
        let sge = self.sge(offset, len_bytes).ok_or(VerbsError::OutOfRange {
            what: "the end of the range to prefetch",
            value: offset.saturating_add(len_bytes),
            least: 0,
            most: size.min(u64::from(u32::MAX)),
        })?;
        let advice = if for_writing {
            sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE
        } else {
            sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH
        };
        let mut range = [sys::ibv_sge { addr: sge.address, length: sge.len_bytes, lkey: sge.lkey }];
        // SAFETY: the domain is alive; the advice changes no bytes.
        match unsafe { sys::ibv_advise_mr(self.domain.raw(), advice, 0, &mut range) } {
            0 => Ok(()),
            errno => {
                Err(VerbsError::call("ibv_advise_mr", self.domain.device().name(), io::Error::from_raw_os_error(errno)))
            }
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("address", &self.address)
            .field("len_bytes", &self.len_bytes)
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.release() {
            // SAFETY: dropped here only. The device has let go of the memory. Where it has not, the memory stays mapped
            // for ever.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// What the kernel means by refusing. `limit` says how many bytes the process may lock, `None` for any number.
fn refusal(
    error: io::Error,
    device: &str,
    kind: MediumKind,
    len_bytes: u64,
    access: MrAccess,
    limit: impl FnOnce() -> Option<u64>,
) -> RegisterError {
    let device = device.to_owned();
    match error.raw_os_error() {
        Some(libc::ENOMEM) => match limit() {
            Some(limit_bytes) => {
                RegisterError::LockLimit { len_bytes, limit: format!("{} KiB in all", limit_bytes >> 10) }
            }
            None => RegisterError::NoMemory { len_bytes, device },
        },
        Some(libc::EOPNOTSUPP) if matches!(kind, MediumKind::FsDax | MediumKind::VirtioPmem) => {
            RegisterError::CannotPin { kind, device }
        }
        Some(libc::EFAULT) if matches!(kind, MediumKind::PageCache | MediumKind::VirtioPmem) => {
            RegisterError::PageCached { kind, device }
        }
        Some(libc::EOPNOTSUPP) if access.contains(MrAccess::ON_DEMAND) => {
            RegisterError::Unsupported { device, what: "on-demand paging for this" }
        }
        Some(libc::EINVAL) if access.contains(MrAccess::FLUSH_PERSISTENT) => {
            RegisterError::NotPersistent { kind, device }
        }
        _ => RegisterError::Other { len_bytes, kind, device, error },
    }
}

/// How many bytes this thread may lock; `None` where nothing limits it.
fn lock_limit() -> Option<u64> {
    // Rights are those of a thread.
    let may_lock_all =
        fs::read_to_string("/proc/thread-self/status").is_ok_and(|status| has_capability(&status, CAP_IPC_LOCK));
    if may_lock_all { None } else { getrlimit(Resource::Memlock).current }
}

/// Whether the text of `/proc/PID/status` lists an effective capability.
fn has_capability(status: &str, number: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: i32, kind: MediumKind, access: MrAccess) -> RegisterError {
        refusal(io::Error::from_raw_os_error(errno), "rxe0", kind, 4096, access, || Some(1 << 20))
    }

    #[test]
    fn a_refusal_names_its_reason() {
        use MediumKind::{Anonymous, DevDax, FsDax, PageCache, Tmpfs, VirtioPmem};
        let (write, persistent) = (MrAccess::REMOTE_WRITE, MrAccess::FLUSH_PERSISTENT);
        for kind in [FsDax, VirtioPmem] {
            let error = refused(libc::EOPNOTSUPP, kind, write);
            assert!(matches!(error, RegisterError::CannotPin { .. }) && error.is_of_the_memory(), "{error:?}");
        }
        for kind in [PageCache, VirtioPmem] {
            let error = refused(libc::EFAULT, kind, write);
            assert!(matches!(error, RegisterError::PageCached { .. }) && error.is_of_the_memory(), "{error:?}");
        }
        for kind in [Anonymous, Tmpfs, DevDax] {
            let error = refused(libc::EINVAL, kind, persistent);
            assert!(matches!(error, RegisterError::NotPersistent { .. }) && error.is_of_persistence(), "{error:?}");
            let error = refused(libc::EINVAL, kind, write);
            assert!(matches!(error, RegisterError::Other { .. }) && !error.is_of_the_memory(), "{error:?}");
        }
        let error = refused(libc::EOPNOTSUPP, Anonymous, MrAccess::ON_DEMAND);
        assert!(matches!(error, RegisterError::Unsupported { .. }), "{error:?}");
        let error = refused(libc::ENOMEM, Anonymous, write);
        assert!(error.to_string().contains("(1024 KiB in all)") && !error.is_of_the_memory(), "{error}");
        let no_limit = io::Error::from_raw_os_error(libc::ENOMEM);
        let error = refusal(no_limit, "rxe0", Anonymous, 4096, write, || None);
        assert!(matches!(error, RegisterError::NoMemory { len_bytes: 4096, .. }), "{error:?}");
    }

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let status = "Name:\tx\nCapInh:\t000001ffffffffff\nCapEff:\t0000000000004000\nCapBnd:\t0\n";
        assert!(has_capability(status, CAP_IPC_LOCK));
        assert!(!has_capability(status, 13) && !has_capability(status, 15));
        assert!(!has_capability("CapInh:\t000001ffffffffff\n", CAP_IPC_LOCK));
        assert!(!has_capability("CapEff:\tnonsense\n", CAP_IPC_LOCK));
    }
}
