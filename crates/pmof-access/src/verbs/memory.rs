//! Memory of this side as the device reaches it.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use pmof_locks::Mutex;
use pmof_mem::{Durability, Mechanism, Medium, causes};
use pmof_proto::{Access, DirectAccess, LocalSlice};
use pmof_verbs::{MemoryRegion, MrAccess, ProtectionDomain, Sge, Transport};

use super::opened::Opened;
use crate::{RegisterError, region::DeviceReach};

/// Bytes of one piece of advice, whose length has 32 bits.
const PREFETCH_BYTES: u64 = 1 << 30;

/// One range of memory, registered once for the other sides and, when first needed, once for this side's own operations:
/// revoking the former must not break the latter.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    domain: ProtectionDomain,
    memory: Arc<dyn Medium>,
    offset: u64,
    len_bytes: u64,
    local: OnceLock<Result<LocalRegion, String>>,
    remote: Mutex<Option<MemoryRegion>>,
    direct: DirectAccess,
    /// Why the other sides cannot reach it directly, if they cannot.
    refusal: Option<pmof_verbs::RegisterError>,
    is_closed: AtomicBool,
}

/// A range as this side's own operations use it.
#[derive(Debug)]
struct LocalRegion {
    region: MemoryRegion,
    /// Else the device only takes bytes from there.
    is_writable: bool,
}

impl DeviceMemory {
    pub(super) fn register(
        opened: &Opened,
        memory: &Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let mut device_memory = Self {
            domain: opened.domain.clone(),
            memory: Arc::clone(memory),
            offset,
            len_bytes,
            local: OnceLock::new(),
            remote: Mutex::new(None),
            direct: DirectAccess::None,
            refusal: None,
            is_closed: AtomicBool::new(false),
        };
        // The device takes no empty range; there is nothing to reach in it either.
        if access.is_empty() || len_bytes == 0 {
            return Ok(device_memory);
        }
        match device_memory.register_remote(opened, access) {
            Ok((region, direct)) => {
                *device_memory.remote.get_mut() = Some(region);
                device_memory.direct = direct;
            }
            // The target's CPU can still serve it.
            Err(refusal) if refusal.is_of_the_memory() => device_memory.refusal = Some(refusal),
            Err(refusal) => return Err(refusal.into()),
        }
        Ok(device_memory)
    }

    fn register_remote(
        &self,
        opened: &Opened,
        access: Access,
    ) -> Result<(MemoryRegion, DirectAccess), pmof_verbs::RegisterError> {
        let capabilities = opened.device.capabilities();
        let mut wanted = MrAccess::empty();
        wanted.set(MrAccess::REMOTE_READ, access.contains(Access::READ));
        wanted.set(MrAccess::REMOTE_WRITE, access.contains(Access::WRITE));
        wanted.set(MrAccess::REMOTE_ATOMIC, access.contains(Access::ATOMIC));
        wanted.set(MrAccess::LOCAL_WRITE, access.intersects(Access::WRITE | Access::ATOMIC));
        wanted.set(MrAccess::ON_DEMAND, capabilities.on_demand_paging.serves_writes());
        let has_flush =
            opened.options.native_flush && access.intersects(Access::FLUSH_VISIBLE | Access::FLUSH_PERSISTENT);
        let flush_visible = has_flush && capabilities.native_flush_global;
        wanted.set(MrAccess::FLUSH_GLOBAL, flush_visible);
        // Asked for where write-back is what makes the memory durable: elsewhere the flush would promise what the medium
        // does not hold, or what needs no flush.
        let is_flushed_by_lines = self
            .memory
            .promise(Durability::PowerFailure)
            .is_some_and(|promise| matches!(promise.mechanism, Mechanism::CacheLineWriteBack | Mechanism::Fence));
        let flush_persistent = has_flush
            && access.contains(Access::FLUSH_PERSISTENT)
            && capabilities.native_flush_persistent
            && is_flushed_by_lines;
        let register = |wanted| self.domain.register(Arc::clone(&self.memory), self.offset, self.len_bytes, wanted);
        let (region, flush_persistent) = match flush_persistent.then(|| register(wanted | MrAccess::FLUSH_PERSISTENT)) {
            Some(Ok(region)) => (region, true),
            // The kernel does not know the memory as persistent; the device's plain operations still reach it.
            Some(Err(refusal)) if !refusal.is_of_persistence() => return Err(refusal),
            _ => (register(wanted)?, false),
        };
        if wanted.contains(MrAccess::ON_DEMAND) {
            prefetch(&region, 0, region.len_bytes(), wanted.contains(MrAccess::LOCAL_WRITE));
        }
        let direct = DirectAccess::Rdma {
            address: region.address(),
            remote_key: region.rkey(),
            features: opened.features(flush_visible, flush_persistent),
        };
        Ok((region, direct))
    }

    /// The memory that is reached so, where a device of verbs does.
    #[inline]
    pub(super) fn of(reach: &dyn DeviceReach) -> Option<&Self> {
        reach.as_any().downcast_ref()
    }

    /// Memory only for this side's own operations.
    pub(super) fn scratch(domain: &ProtectionDomain, memory: Arc<dyn Medium>) -> Result<Arc<Self>, String> {
        let len_bytes = memory.len_bytes();
        let scratch = Self {
            domain: domain.clone(),
            memory,
            offset: 0,
            len_bytes,
            local: OnceLock::new(),
            remote: Mutex::new(None),
            direct: DirectAccess::None,
            refusal: None,
            is_closed: AtomicBool::new(false),
        };
        match scratch.local() {
            Ok(_) => Ok(Arc::new(scratch)),
            Err(why) => Err(why.to_owned()),
        }
    }

    pub(super) fn memory(&self) -> &Arc<dyn Medium> {
        &self.memory
    }

    /// Where it begins in its memory.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// What names a range to the device in an operation of this side. `offset` counts from the beginning of the range.
    #[inline]
    pub(super) fn sge(&self, offset: u64, len_bytes: u64) -> Result<Sge, &str> {
        let outside = "the range lies outside the registered memory";
        self.local()?.region.sge(offset, len_bytes).ok_or(outside)
    }

    /// The same for a slice of the memory that this range is of.
    pub(super) fn sge_of(&self, slice: &LocalSlice, domain: &ProtectionDomain) -> Option<Sge> {
        self.sge_at(slice.offset.checked_sub(self.offset)?, slice.len_bytes, domain)
    }

    /// The same for bytes at an offset of this range.
    #[inline]
    pub(super) fn sge_at(&self, offset: u64, len_bytes: u64, domain: &ProtectionDomain) -> Option<Sge> {
        if !self.domain.is_same(domain) || self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        self.sge(offset, len_bytes).ok()
    }

    /// The same for a slice that the device is to write to.
    pub(super) fn sge_into(&self, slice: &LocalSlice, domain: &ProtectionDomain) -> Option<Sge> {
        let sge = self.sge_of(slice, domain)?;
        self.local().is_ok_and(|local| local.is_writable).then_some(sge)
    }

    #[inline]
    fn local(&self) -> Result<&LocalRegion, &str> {
        let registered = self.local.get_or_init(|| {
            let register = |access| self.domain.register(Arc::clone(&self.memory), self.offset, self.len_bytes, access);
            let mut access = MrAccess::LOCAL_WRITE;
            // Over iWARP the answer to a read is written by the other side's device.
            access.set(MrAccess::REMOTE_WRITE, self.domain.device().capabilities().transport == Transport::IWarp);
            // What cannot be registered for writing may still be a source.
            let (registered, is_writable) = match register(access) {
                Ok(region) => (Ok(region), true),
                Err(_) => (register(MrAccess::empty()), false),
            };
            registered.map(|region| LocalRegion { region, is_writable }).map_err(|error| causes(&error).to_string())
        });
        registered.as_ref().map_err(String::as_str)
    }
}

impl DeviceReach for DeviceMemory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn prefetch(&self, offset: u64, len_bytes: u64, for_writing: bool) -> bool {
        let remote = self.remote.lock();
        remote.as_ref().is_some_and(|region| prefetch(region, offset, len_bytes, for_writing))
    }

    fn direct(&self) -> DirectAccess {
        self.direct
    }

    fn refusal(&self) -> Option<&dyn fmt::Display> {
        self.refusal.as_ref().map(|refusal| refusal as &dyn fmt::Display)
    }

    fn revoke(&self) {
        drop(self.remote.lock().take());
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn release(&self) {
        if let Some(Ok(local)) = self.local.get() {
            local.region.release();
        }
    }

    fn prepare_receives(&self) -> Result<(), String> {
        let register = || {
            let memory = Arc::clone(&self.memory);
            self.domain.register(memory, self.offset, self.len_bytes, MrAccess::LOCAL_WRITE)
        };
        let writable = |region| LocalRegion { region, is_writable: true };
        let registered =
            self.local.get_or_init(|| register().map(writable).map_err(|error| causes(&error).to_string()));
        registered.as_ref().map(drop).map_err(Clone::clone)
    }
}

/// Has the pages of a range that is paged on demand brought in, so that the first operations do not wait for that one by one.
/// It is advice: where it fails, they wait, and the answer is false.
fn prefetch(region: &MemoryRegion, offset: u64, len_bytes: u64, for_writing: bool) -> bool {
    let end = offset + len_bytes;
    (offset..end).step_by(PREFETCH_BYTES as usize).all(|at| {
        let len_bytes = PREFETCH_BYTES.min(end - at);
        region.advise_prefetch(at, len_bytes, for_writing).is_ok()
    })
}
