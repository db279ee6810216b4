//! Registered memory of this side, and regions of the other.

use std::{
    any::Any,
    fmt,
    ops::{Bound, RangeBounds},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use pmof_locks::Mutex;
use pmof_mem::{Durability, Evidence, Medium, MediumKind, Promise, check_bounds, forks::Own};
use pmof_proto::{
    Access, DESCRIPTOR_BYTES, Descriptor, DescriptorError, DirectAccess, LocalSlice, PostError, RegionKey, RegionTable,
    RegisteredRegion, Scope,
};

use crate::{
    RegisterError, logging,
    shm::shares::{Revocation, Shares, is_shareable},
    short::{ShortDescriptor, publish, unpublish},
};

/// A range of memory that the connections of its peer may use, and, with access rights, the other sides too.
///
/// Handles are cheap to clone. When the last one is dropped the region is deregistered: its key is forgotten and every
/// later remote use is refused. Operations already posted keep the memory alive.
#[derive(Clone, Debug)]
pub struct Region(Arc<Registration>);

#[derive(Debug)]
struct Registration {
    region: Arc<RegisteredRegion>,
    table: Arc<RegionTable>,
    /// The connections that may use it.
    users: Arc<dyn RegionUsers>,
    device: Own<Option<Arc<dyn DeviceReach>>>,
    /// Where other processes find the region, if they may map it.
    shares: Option<Arc<Shares>>,
    /// Under which names its descriptor is told.
    published: Mutex<Vec<ShortDescriptor>>,
}

/// The connections that may use a region.
pub(crate) trait RegionUsers: fmt::Debug + Send + Sync {
    /// Returns when whatever other threads were doing on any of the connections is over. Waits for batches, so not to be called in
    /// one.
    fn wait_for_each(&self);
}

/// Memory as a device reaches it: registered for the other sides, and for this side's own operations.
pub(crate) trait DeviceReach: fmt::Debug + Send + Sync {
    /// What it is, for those who know.
    fn as_any(&self) -> &dyn Any;

    /// The same, with its ownership.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;

    /// How the other sides reach it.
    fn direct(&self) -> DirectAccess;

    /// Why they cannot, if they cannot.
    fn refusal(&self) -> Option<&dyn fmt::Display>;

    /// Has pages brought in. False where nothing is paged on demand.
    fn prefetch(&self, offset: u64, len_bytes: u64, for_writing: bool) -> bool;

    /// Takes the memory away from the other sides; operations of this side that use it go on.
    fn revoke(&self);

    /// Behind [`revoke`](Self::revoke), of a region for these connections: returns when nothing of theirs changes the memory any more. A
    /// device that checks its keys as it goes has nothing to do.
    fn fence(&self, _scope: Scope) {}

    /// Whether [`fence`](Self::fence) ends connections.
    fn fence_ends_connections(&self) -> bool {
        false
    }

    /// Has no operation of this side use it from now on, but those that are being posted by another thread just now.
    fn close(&self);

    /// Takes it away from the device after that: operations under way that use it fail.
    fn release(&self);

    /// Registers it for receives, which is for writing or not at all. Before anything else uses it.
    fn prepare_receives(&self) -> Result<(), String>;
}

/// What makes a region reachable past this CPU.
#[derive(Debug)]
pub(crate) enum Reach {
    None,
    Device(Arc<dyn DeviceReach>),
    Shared(Arc<Shares>),
}

impl Registration {
    /// Takes the region away from the other sides. Whether one of them was handed its memory to be mapped for writing.
    fn revoke(&self, why: Revocation) -> bool {
        if !self.device.is_here() {
            // The other sides are its parent's.
            return false;
        }
        self.table.remove(self.region.key());
        for short in self.published.lock().drain(..) {
            unpublish(&self.table, &short);
        }
        if let Some(device) = &*self.device {
            device.revoke();
        }
        self.shares.as_ref().is_some_and(|shares| shares.revoke(self.region.key(), why))
    }
}

impl Registration {
    /// Ends all use of memory that was lent.
    fn take_back(&self) {
        if !self.device.is_here() {
            return;
        }
        let Some(lent) = self.region.memory().lent() else { return };
        // A write that is coming in just now is refused in words from its next bytes on, which says more than a connection
        // that breaks.
        self.users.wait_for_each();
        lent.take_back();
        if let Some(device) = &*self.device {
            device.close();
        }
        // All that touches memory does it with its connection locked: who comes after this sees that it is gone.
        self.users.wait_for_each();
        if let Some(device) = &*self.device {
            device.release();
        }
    }
}

/// Nothing is taken away in a child: `revoke` sees to that.
impl Drop for Registration {
    fn drop(&mut self) {
        self.revoke(Revocation::Deregistered);
    }
}

impl Region {
    pub(crate) fn register(
        (table, users): (&Arc<RegionTable>, Arc<dyn RegionUsers>),
        memory: Arc<dyn Medium>,
        (offset, len_bytes): (u64, u64),
        (access, scope): (Access, Scope),
        reach: Reach,
    ) -> Result<Self, RegisterError> {
        let key = random()?;
        let (device, shares) = match reach {
            Reach::Device(device) => (Some(device), None),
            Reach::Shared(shares) => (None, is_shareable(memory.as_ref()).then_some(shares)),
            Reach::None => (None, None),
        };
        let direct = match (&device, &shares) {
            (Some(device), _) => device.direct(),
            (None, Some(_)) => DirectAccess::Mapped,
            (None, None) => DirectAccess::None,
        };
        if let Some(why) = device.as_ref().and_then(|device| device.refusal()) {
            logging::tell_indirect(memory.kind(), len_bytes, why);
        }
        let region = RegisteredRegion::new(RegionKey(key), memory, offset, len_bytes, access);
        let region = Arc::new(region.with_direct(direct).with_scope(scope));
        table.insert(Arc::clone(&region));
        if let Some(shares) = &shares {
            shares.add(&region);
        }
        let table = Arc::clone(table);
        let (device, published) = (Own::new(device), Mutex::default());
        Ok(Self(Arc::new(Registration { region, table, users, device, shares, published })))
    }

    /// What the other side needs to use the region: hand it over as private data or in a message.
    pub fn descriptor(&self) -> [u8; DESCRIPTOR_BYTES] {
        self.0.region.descriptor().encode()
    }

    /// A [short descriptor](ShortDescriptor), where 21 bytes have to do. It works as long as the region is registered; `note`
    /// goes along for the application. Each call makes a new one; where the region is reached past this side's CPU that takes a page of
    /// memory.
    pub fn short_descriptor(&self, note: u8) -> Result<ShortDescriptor, RegisterError> {
        self.check_process()?;
        let short = publish(&self.0.table, &self.0.region, note)?;
        self.0.published.lock().push(short);
        Ok(short)
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.region.len_bytes()
    }

    /// Copies bytes out, from `offset` of the region on.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RegisterError> {
        self.check_process()?;
        check_bounds(offset, into.len() as u64, self.len_bytes())?;
        Ok(self.0.region.memory().read(self.0.region.offset() + offset, into)?)
    }

    /// Copies bytes in, from `offset` of the region on.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), RegisterError> {
        self.check_process()?;
        check_bounds(offset, bytes.len() as u64, self.len_bytes())?;
        Ok(self.0.region.memory().store(self.0.region.offset() + offset, bytes)?)
    }

    /// A part of the region: the source of a write or send, the destination of a read or receive.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RegionSlice, PostError> {
        self.part(range).map(RegionSlice::from)
    }

    /// The same without a handle of its own: the source of one operation, for which it takes less.
    #[inline]
    pub fn part(&self, range: impl RangeBounds<u64>) -> Result<RegionPart<'_>, PostError> {
        let (offset, len_bytes) = resolve(range, self.len_bytes())?;
        Ok(RegionPart { region: self, offset, len_bytes })
    }

    /// Has the pages of a range brought in, for writing or for reading, so that the first operations do not wait for that. It is
    /// done for all of a region when it is registered. False where nothing is paged on demand.
    pub fn prefetch(&self, offset: u64, len_bytes: u64, for_writing: bool) -> Result<bool, RegisterError> {
        self.check_process()?;
        check_bounds(offset, len_bytes, self.len_bytes())?;
        Ok(self.device().is_some_and(|device| device.prefetch(offset, len_bytes, for_writing)))
    }

    /// How the peer's device reaches it, if it has one.
    pub(crate) fn device(&self) -> Option<&Arc<dyn DeviceReach>> {
        self.0.device.as_ref()
    }

    /// A child has a copy of the memory, and none of the other sides.
    pub(crate) fn check_process(&self) -> Result<(), RegisterError> {
        if self.0.device.is_here() { Ok(()) } else { Err(RegisterError::Forked) }
    }

    pub(crate) fn key(&self) -> [u8; 16] {
        self.0.region.key().0
    }

    /// Deregisters now, whatever other handles there are: every later remote use is refused.
    ///
    /// Of [lent](crate::Lent) memory nothing is touched any more on return, by no thread and no device: what operations
    /// still need it for fails, and their connections end. That waits for what other threads are doing on connections of the
    /// peer, batches included, so it must not be called while this thread has a [`Batch`](crate::Batch) open. Other memory
    /// is kept alive by the operations that use it.
    pub fn deregister(self) {
        self.0.revoke(Revocation::Deregistered);
        self.0.take_back();
    }

    /// Takes the region away from the other sides because another one took their place, whatever other handles there are. On return no device and no
    /// message of theirs changes it any more. A process that has it [mapped](Self::is_mapped_for_writing) can: it is told by a word that it looks at
    /// behind each flush, so that what it reports as flushed from here on was flushed before; what it still stores, only another file keeps out.
    /// Over libfabric a write that was begun with the key of another connection's region goes on: keys are told to that connection alone.
    /// Returns whether there is such a process.
    pub fn fence(self) -> bool {
        let is_handed_out = self.0.revoke(Revocation::Fenced);
        if let Some(device) = self.device().filter(|_| self.check_process().is_ok()) {
            device.fence(self.0.region.scope());
        }
        // What is read from here on is read behind the word.
        fence(Ordering::SeqCst);
        is_handed_out
    }

    /// Whether [`fence`](Self::fence) ends the connections that may use the region without another word to the other
    /// sides: the device looks at its keys only when an operation begins. Who has something to tell them waits until [it is told](crate::Connection::wait_closed).
    pub fn fence_ends_connections(&self) -> bool {
        self.check_process().is_ok() && self.device().is_some_and(|device| device.fence_ends_connections())
    }

    /// Whether another process was handed the memory to be mapped for writing, over shm. That process may change it as long as it lives.
    pub fn is_mapped_for_writing(&self) -> bool {
        let shares = self.0.shares.as_ref().filter(|_| self.check_process().is_ok());
        shares.is_some_and(|shares| shares.is_handed_out_for_writing(self.0.region.key()))
    }

    /// Why the other sides' devices cannot reach the region, where that is so: the memory does not allow it. Its
    /// operations then are messages that this side's CPU carries out. `None` also where the transport has no devices.
    pub fn why_not_direct(&self) -> Option<String> {
        self.0.device.as_ref()?.refusal().map(ToString::to_string)
    }
}

/// A part of a [`Region`]; keeps its memory alive.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    pub(crate) local: LocalSlice,
    /// How the peer's device reaches it, if it has one.
    pub(crate) device: Option<Arc<dyn DeviceReach>>,
}

/// A part of a [`Region`] that lasts no longer than that is borrowed.
#[derive(Clone, Copy, Debug)]
pub struct RegionPart<'a> {
    region: &'a Region,
    offset: u64,
    len_bytes: u64,
}

impl<'a> RegionPart<'a> {
    #[inline]
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// How the peer's device reaches the region, if it has one, and where the part begins in what the device knows.
    #[inline]
    pub(crate) fn device(&self) -> Option<(&'a Arc<dyn DeviceReach>, u64)> {
        Some((self.region.0.device.as_ref()?, self.offset))
    }

    pub(crate) fn local(&self) -> LocalSlice {
        let Self { region, offset, len_bytes } = *self;
        let memory = Arc::clone(region.0.region.memory());
        LocalSlice { memory, offset: region.0.region.offset() + offset, len_bytes }
    }
}

impl From<RegionPart<'_>> for RegionSlice {
    fn from(part: RegionPart<'_>) -> Self {
        Self { local: part.local(), device: Option::clone(&part.region.0.device) }
    }
}

/// A region of the other side, known by its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRegion {
    descriptor: Descriptor,
}

impl RemoteRegion {
    pub(crate) fn of(descriptor: Descriptor) -> Self {
        Self { descriptor }
    }

    /// Reads a descriptor that the other side handed over: its first [`DESCRIPTOR_BYTES`] bytes.
    pub fn from_descriptor(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let bytes = bytes.get(..DESCRIPTOR_BYTES).unwrap_or(bytes);
        Ok(Self { descriptor: Descriptor::decode(bytes)? })
    }

    /// Size in bytes.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.descriptor.len_bytes
    }

    /// Whether initiators may reach it past the target's CPU: through its device, or by mapping it.
    pub fn is_direct(&self) -> bool {
        self.descriptor.direct != DirectAccess::None
    }

    /// What this side may do with it.
    #[inline]
    pub fn access(&self) -> Access {
        self.descriptor.access
    }

    /// What the bytes lie on.
    pub fn kind(&self) -> MediumKind {
        self.descriptor.kind
    }

    /// How the region keeps `level`, or `None` where it cannot.
    #[inline]
    pub fn promise(&self, level: Durability) -> Option<Promise> {
        self.descriptor.promise(level)
    }

    /// On what the promise for `level` rests; where there is none, nothing but what was probed counts.
    pub(crate) fn evidence(&self, level: Durability) -> Evidence {
        self.promise(level).map_or(Evidence::Probed, |promise| promise.evidence)
    }

    /// The strongest level that the region can give.
    pub fn strongest(&self) -> Durability {
        self.descriptor.strongest()
    }

    #[inline]
    pub(crate) fn key(&self) -> RegionKey {
        self.descriptor.key
    }

    /// Whether it grants this right in a range.
    #[inline]
    pub(crate) fn allows(&self, right: Access, offset: u64, len_bytes: u64) -> bool {
        let end = offset.checked_add(len_bytes);
        self.access().contains(right) && end.is_some_and(|end| end <= self.len_bytes())
    }

    /// Checks a range and a right before anything is sent.
    #[inline]
    pub(crate) fn check(
        &self,
        right: Access,
        right_name: &'static str,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), PostError> {
        if !self.access().contains(right) {
            return Err(PostError::NoRight { right: right_name });
        }
        check_range(offset, len_bytes, self.len_bytes())
    }

    #[inline]
    pub(crate) fn check_flush(&self, level: Durability) -> Result<(), PostError> {
        let persistent = self.access().contains(Access::FLUSH_PERSISTENT);
        let visible = level == Durability::Visible && self.access().contains(Access::FLUSH_VISIBLE);
        if !persistent && !visible {
            return Err(PostError::NoRight { right: "flush to this level" });
        }
        if self.promise(level).is_none() { Err(self.not_durable(level)) } else { Ok(()) }
    }

    pub(crate) fn not_durable(&self, wanted: Durability) -> PostError {
        PostError::NotDurable { wanted, strongest: self.strongest(), medium: self.kind().to_string() }
    }

    #[inline]
    pub(crate) fn direct(&self) -> DirectAccess {
        self.descriptor.direct
    }
}

/// Bytes that nobody guesses.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES], RegisterError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| RegisterError::Random { source: std::io::Error::other(error.to_string()) })?;
    Ok(bytes)
}

#[inline]
pub(crate) fn check_range(offset: u64, len_bytes: u64, size_bytes: u64) -> Result<(), PostError> {
    check_bounds(offset, len_bytes, size_bytes).map_err(|_| PostError::OutOfBounds { offset, len_bytes, size_bytes })
}

/// Offset and length of a range inside `size_bytes`.
#[inline]
pub(crate) fn resolve(range: impl RangeBounds<u64>, size_bytes: u64) -> Result<(u64, u64), PostError> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => size_bytes,
    };
    let len_bytes = end.saturating_sub(start);
    if start > end || end > size_bytes {
        return Err(PostError::OutOfBounds { offset: start, len_bytes, size_bytes });
    }
    Ok((start, len_bytes))
}
