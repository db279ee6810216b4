//! The pools that a target keeps: files of one directory, each a header and the user's data.
//!
//! What each crash leaves: a pool that is whole under its name, or a working file that the next
//! [`PoolStore::open`] removes. Who writes a pool holds the exclusive `flock` of its file for as long as the memory is
//! mapped, so a pool has one writer across all processes of the machine.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::{Arc, Weak},
};

use pmof_control::{
    Header, HeaderError, MAX_SIZE_BYTES, MeantReplica, NewPool, OpenFor, PoolInfo, PoolName, PoolState, REPLICAS_MAX,
    Roster,
};
use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::{Durability, HandOut, Medium, MemError, Memory};
use uuid::Uuid;

use crate::{
    engine::{Head, OpenReplica, Opening, ShippedRules},
    holder::holder_of_file,
};
use device::{Device, UnfinishedDevice};
use outputs::{OnFile, run_on};
use protected::ProtectedMemory;
use root::{Entry, Identity, Root, WorkingFile};
use state::{new_header, write_head};

mod device;
mod error;
mod former;
mod handover;
mod mapped;
mod options;
mod outputs;
mod protected;
mod root;
mod roster;
mod settle;
mod state;
mod survey;
#[cfg(test)]
mod tests;

pub use error::StoreError;
pub(crate) use handover::{NotHandedOver, Replacement};
pub(crate) use options::OpenTerms;
pub use options::{DEFAULT_MAX_POOL_BYTES, StoreOptions};
pub(crate) use survey::Surveyed;

/// The pools under one root directory. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct PoolStore {
    root: Arc<Root>,
    options: StoreOptions,
    devices: Vec<Device>,
    /// Pools that this store opened for writing. Held while names change hands, never while a file is allocated.
    writers: Mutex<HashMap<PoolName, Writer>>,
}

/// A pool that is open. The file stays locked and mapped until this and every [`medium`](Self::medium) of it is dropped.
#[derive(Debug)]
pub struct OpenPool {
    name: PoolName,
    replica: OpenReplica,
    memory: Arc<Memory>,
    /// What holds it, where it has not got its name yet.
    unpublished: Option<Unpublished>,
}

/// What a pool without a name lies on; freed when dropped.
#[derive(Debug)]
enum Unpublished {
    File(WorkingFile),
    Device(UnfinishedDevice),
}

impl PoolStore {
    /// Opens the store in the existing directory `root` and removes what a crash left half-made there.
    ///
    /// The root need not be writable to read pools. Pools are files of the directory itself; links are never followed.
    /// Each device must be there, and its name free in the root.
    pub fn open(root: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let root = Arc::new(Root::open(root)?);
        let devices = Device::all(&options.devices, options.declaration)?;
        for device @ Device { name, .. } in &devices {
            // A device node of the root itself is no pool's file.
            if root.exists(name)? && !device.is_at(&root.path().join(name.as_str())) {
                return Err(StoreError::AlreadyExists { name: name.clone(), root: root.path().to_owned() });
            }
        }
        root.remove_leftovers()?;
        Ok(Self { root, options, devices, writers: Mutex::default() })
    }

    /// Refuses a root that its path does not lead to any more.
    pub(crate) fn check_attached(&self) -> Result<(), StoreError> {
        self.root.check_attached()
    }

    /// The same for a pool, which may lie on a device instead.
    pub(crate) fn check_place(&self, name: &PoolName) -> Result<(), StoreError> {
        if self.device(name).is_some() { Ok(()) } else { self.check_attached() }
    }

    /// Whether pools can be made under the root.
    pub(crate) fn is_root_writable(&self) -> bool {
        self.root.is_writable()
    }

    /// The directory.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Bytes of the root's file system that are free for this process's user, and all of them.
    pub(crate) fn free_and_total_bytes(&self) -> Result<(u64, u64), StoreError> {
        let stat = self.root.statvfs()?;
        Ok((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
    }

    /// Makes a pool of zeroes and opens it for writing. `holder` is named to whoever finds the pool busy.
    ///
    /// All space is allocated, and the pool is durable under its name, before this returns; on failure nothing is left.
    pub fn create(&self, name: &PoolName, new: &NewPool, holder: String) -> Result<OpenPool, StoreError> {
        let mut pool = self.create_unpublished(name, new)?;
        self.publish(&mut pool, holder)?;
        Ok(pool)
    }

    /// Makes a pool of zeroes that nobody else sees before it is [published](Self::publish). Dropped before, it is gone, and
    /// so it is after a crash.
    pub fn create_unpublished(&self, name: &PoolName, new: &NewPool) -> Result<OpenPool, StoreError> {
        if let Some(device) = self.device(name) {
            return self.create_on(device, new);
        }
        let (header, file_len_bytes) = self.check_new(name, new)?;
        self.root.check_attached()?;
        if self.root.exists(name)? {
            return Err(StoreError::AlreadyExists { name: name.clone(), root: self.root.path().to_owned() });
        }
        let working_file = self.root.working_file()?;
        let memory = Memory::create(&working_file.path(), file_len_bytes, self.options.declaration)
            .map_err(|error| self.creation_error(name, new.size_bytes, error))?
            .named(self.root.path().join(name.as_str()))
            .synced_by(self.options.sync_choice);
        check_level(name, &memory, new.require)?;
        memory.hand_out(HandOut::Marked);
        self.lock(name, self.file_of(name, &memory)?)?;
        let state = PoolState::new(new.epoch, new.replica_count);
        write_head(&memory, &header, &state).map_err(|error| self.memory_error(name, error))?;

        let replica = OpenReplica::made(header, state, ShippedRules);
        let unpublished = Some(Unpublished::File(working_file));
        Ok(OpenPool { name: name.clone(), replica, memory: Arc::new(memory), unpublished })
    }

    /// Gives a pool its name, durably; it stays open for writing by `holder`. On failure, as where the name was taken
    /// meanwhile, nothing of it is left. Does nothing with a pool that has its name.
    pub fn publish(&self, pool: &mut OpenPool, holder: String) -> Result<(), StoreError> {
        self.publish_memory(&pool.name, &pool.memory, pool.unpublished.take(), holder)
    }

    fn publish_memory(
        &self,
        name: &PoolName,
        memory: &Arc<Memory>,
        unpublished: Option<Unpublished>,
        holder: String,
    ) -> Result<(), StoreError> {
        let Some(unpublished) = unpublished else { return Ok(()) };
        let mut writers = self.writers();
        match unpublished {
            Unpublished::File(file) => {
                self.root.check_attached()?;
                file.publish(name)?;
            }
            Unpublished::Device(device) => {
                device.publish().map_err(|source| StoreError::Memory { name: name.clone(), source })?;
            }
        }
        writers.insert(name.clone(), Writer::new(holder, memory));
        Ok(())
    }

    /// Opens a pool. `holder` is named to whoever finds the pool busy.
    ///
    /// What a writer left that did not close it is made durable first, so that no byte is shown that a loss of power would take
    /// back. Pools of format 1 can be read only. Where a process still has the file mapped for writing that a target gave it which is gone by
    /// now, the pool moves to another file, and a device is refused (`NotFenceable`).
    pub fn open_pool(&self, name: &PoolName, access: OpenFor, holder: String) -> Result<OpenPool, StoreError> {
        self.open_pool_before(
            name,
            OpenTerms { access, require: Durability::Visible, may_be_older: false },
            holder,
            &|| (),
        )
    }

    /// The same; `end_readers` runs before a file is cut that its readers may have mapped.
    pub(crate) fn open_pool_before(
        &self,
        name: &PoolName,
        terms: OpenTerms,
        holder: String,
        end_readers: &dyn Fn(),
    ) -> Result<OpenPool, StoreError> {
        let access = terms.access;
        let memory = match self.device(name) {
            Some(device) => self.open_device(device, access, holder)?,
            None => self.open_file(name, access, holder)?,
        };
        let mut driver = OnFile { store: self, name, memory, terms, end_readers };
        let replica = run_on(name, Opening::new(access, terms.may_be_older, ShippedRules), &mut driver)?;
        Ok(OpenPool { name: name.clone(), replica, memory: driver.memory, unpublished: None })
    }

    /// Whether a writer has the pool, here or in another process.
    fn is_being_written(&self, name: &PoolName, memory: &Memory) -> Result<bool, StoreError> {
        if self.writers().contains_key(name) {
            return Ok(true);
        }
        root::is_locked(self.file_of(name, memory)?).map_err(|error| self.root.io("flock", name.as_str(), error))
    }

    /// Maps the file of a pool, and makes it this process's to write.
    fn open_file(&self, name: &PoolName, access: OpenFor, holder: String) -> Result<Arc<Memory>, StoreError> {
        self.root.check_attached()?;
        let mut writers = self.writers();
        let (entry, _) = self.checked_entry(name)?;
        if access == OpenFor::Read {
            return self.map(name, &entry, OpenFor::Read).map(Arc::new);
        }
        if let Some(writer) = writers.get(name) {
            return Err(StoreError::Busy { name: name.clone(), holder: writer.holder.clone() });
        }
        let memory = self.map(name, &entry, OpenFor::Write)?;
        self.lock_named(name, self.file_of(name, &memory)?, entry.identity)?;
        let memory = Arc::new(memory);
        writers.insert(name.clone(), Writer::new(holder, &memory));
        Ok(memory)
    }

    /// Deletes a pool and its bytes, durably. Its readers keep what they have mapped; a writer must close it first.
    ///
    /// A file without the whole header of a pool is left alone, and so is a pool whose state is damaged or whose length is wrong: it may be a member of a pool that has
    /// others, or the only copy. A pool of a newer version may be removed. Of a pool on a device the header is wiped; its bytes stay there until another pool is made.
    pub fn remove(&self, name: &PoolName) -> Result<(), StoreError> {
        self.remove_if(name, None, |error| {
            use HeaderError::{NewerVersion, UnknownFeature};
            matches!(error, StoreError::Header { source: NewerVersion { .. } | UnknownFeature { .. }, .. })
        })
    }

    /// The same of one replica only, as it was last seen: the program that looked at it may be late, and another one have made a replica under its name, or written
    /// to this one, since.
    pub fn remove_replica(&self, name: &PoolName, meant: MeantReplica) -> Result<(), StoreError> {
        self.remove_if(name, Some(meant), |_| false)
    }

    /// The same also of a pool whose header or state is damaged, so that it cannot be known whose it is, or whose length is wrong. What is not known to be a pool
    /// is left alone.
    pub fn discard(&self, name: &PoolName) -> Result<(), StoreError> {
        self.remove_if(name, None, |error| match error {
            StoreError::Header { source, .. } => !matches!(source, HeaderError::NotAPool),
            error => matches!(error, StoreError::SizeMismatch { .. }),
        })
    }

    /// Deletes a pool that is whole, or has a fault that does not matter; where a replica is named, only that.
    fn remove_if(
        &self,
        name: &PoolName,
        meant: Option<MeantReplica>,
        matters_not: fn(&StoreError) -> bool,
    ) -> Result<(), StoreError> {
        if let Some(device) = self.device(name) {
            return self.remove_on(device, meant, matters_not);
        }
        self.root.check_attached()?;
        let writers = self.writers();
        let entry = self.root.entry(name)?;
        match self.check_whole(name, &entry) {
            Ok(header) => check_replica(name, &header, meant)?,
            Err(error) if !matters_not(&error) => return Err(error),
            Err(_) => {}
        }
        if let Some(writer) = writers.get(name) {
            return Err(StoreError::Busy { name: name.clone(), holder: writer.holder.clone() });
        }
        self.lock_named(name, entry.file.as_fd(), entry.identity)?;
        if let Some(epoch) = meant.and_then(|meant| meant.epoch) {
            self.check_epoch(name, &self.map(name, &entry, OpenFor::Read)?, epoch)?;
        }
        self.root.unlink(name.as_str())?;
        self.root.sync()
    }

    /// Whether the replica is at the epoch at which it was last seen: it is locked, and so it stays there.
    fn check_epoch(&self, name: &PoolName, memory: &Memory, epoch: Uuid) -> Result<(), StoreError> {
        let state = self.read_head(name, memory)?.state;
        if state.epoch.id == epoch { Ok(()) } else { Err(StoreError::OpenedSince { name: name.clone() }) }
    }

    /// Whether the header, the length and the state of a pool are those of one. What cannot be mapped is not known to be damaged.
    fn check_whole(&self, name: &PoolName, entry: &Entry) -> Result<Header, StoreError> {
        let header = self.checked_header(name, entry)?;
        let Ok(memory) = self.map(name, entry, OpenFor::Read) else { return Ok(header) };
        match self.read_head(name, &memory) {
            Err(error @ StoreError::Header { .. }) => Err(error),
            _ => Ok(header),
        }
    }

    /// Describes a pool without opening it for anybody.
    pub fn info(&self, name: &PoolName) -> Result<PoolInfo, StoreError> {
        if let Some(device) = self.device(name) {
            return self.info_on(device);
        }
        let writers = self.writers();
        let (entry, header) = self.checked_entry(name)?;
        let open_by = match writers.get(name) {
            Some(writer) => Some(writer.holder.clone()),
            None if root::is_locked(&entry.file).map_err(|error| self.root.io("flock", name.as_str(), error))? => {
                Some(holder_of_file(&entry.file))
            }
            None => None,
        };
        // Mapped as a writer would, since it is a writer whom the promises are for.
        let memory = self.map(name, &entry, OpenFor::Write)?;
        let state = self.read_head(name, &memory)?.state;
        Ok(PoolInfo {
            name: name.clone(),
            header,
            state,
            file_len_bytes: entry.len_bytes,
            medium: memory.kind(),
            promises: Durability::ALL.map(|level| memory.promise(level)),
            open_by,
        })
    }

    /// Up to `limit` names of pools after `after`, in order. Files that are nothing of a pool's are passed over; a
    /// damaged pool is named, also one whose header was overwritten or zeroed, and so is a file that cannot be read: [`info`](Self::info) says what is wrong with it.
    pub fn list(&self, after: Option<&PoolName>, limit: usize) -> Result<Vec<PoolName>, StoreError> {
        let mut left = limit;
        self.list_while(after, |_| {
            let is_wanted = left > 0;
            left = left.saturating_sub(1);
            is_wanted
        })
    }

    /// The same of as many names as have so many bytes together, and one more: what does not fit is not looked at.
    pub(crate) fn list_bytes(&self, after: Option<&PoolName>, len_bytes: usize) -> Result<Vec<PoolName>, StoreError> {
        let mut so_far = 0;
        self.list_while(after, |name| {
            let is_wanted = so_far <= len_bytes;
            so_far += name.as_str().len();
            is_wanted
        })
    }

    fn list_while(
        &self,
        after: Option<&PoolName>,
        is_wanted: impl FnMut(&PoolName) -> bool,
    ) -> Result<Vec<PoolName>, StoreError> {
        // It lists nothing then, which says nothing of the pools that it had.
        if self.root.is_removed() {
            return Err(StoreError::Detached { root: self.root.path().to_owned() });
        }
        let looks_like_a_pool = |name: &PoolName| {
            let header = self.root.entry(name).and_then(|entry| self.header_of(name, &entry));
            header.err().is_none_or(|error| !self.is_no_pool(name, &error))
        };
        let on_devices: HashSet<_> =
            self.names_on_devices().filter(|name| after.is_none_or(|after| name > after)).collect();
        let mut names: Vec<_> = self.root.names_after(after)?;
        names.retain(|name| self.device(name).is_none());
        names.extend(on_devices.iter().cloned());
        names.sort_unstable();
        let is_pool = |name: &PoolName| on_devices.contains(name) || looks_like_a_pool(name);
        Ok(names.into_iter().filter(is_pool).take_while(is_wanted).collect())
    }

    /// Whether a look at what has a name failed because it is nothing of a pool's. What cannot be read may be a pool, if it is a file.
    fn is_no_pool(&self, name: &PoolName, error: &StoreError) -> bool {
        match error {
            StoreError::NotFound { .. }
            | StoreError::NotAFile { .. }
            | StoreError::Header { source: HeaderError::NotAPool, .. } => true,
            StoreError::Io { .. } => !self.root.is_regular(name.as_str()),
            _ => false,
        }
    }

    /// The live writers; the dead ones are forgotten first.
    fn writers(&self) -> MutexGuard<'_, HashMap<PoolName, Writer>> {
        let mut writers = self.writers.lock();
        writers.retain(|_, writer| writer.memory.strong_count() > 0);
        writers
    }

    /// The header of a new pool, and the length of its file in bytes.
    fn check_new(&self, name: &PoolName, new: &NewPool) -> Result<(Header, u64), StoreError> {
        if new.replica_index >= new.replica_count || new.replica_count > REPLICAS_MAX {
            return Err(StoreError::BadReplica { index: new.replica_index, count: new.replica_count });
        }
        if new.size_bytes == 0 {
            return Err(StoreError::Empty { name: name.clone() });
        }
        let limit_bytes = self.options.max_pool_bytes.min(MAX_SIZE_BYTES);
        let header = new_header(new).filter(|_| new.size_bytes <= limit_bytes);
        match header.and_then(|header| header.file_len_bytes().map(|len_bytes| (header, len_bytes))) {
            Some(made) => Ok(made),
            None => Err(StoreError::TooLarge { name: name.clone(), size_bytes: new.size_bytes, limit_bytes }),
        }
    }

    /// The file of a pool and its header, where both are whole.
    fn checked_entry(&self, name: &PoolName) -> Result<(Entry, Header), StoreError> {
        let entry = self.root.entry(name)?;
        let header = self.checked_header(name, &entry)?;
        Ok((entry, header))
    }

    /// The header of a file that has the length which it says.
    fn checked_header(&self, name: &PoolName, entry: &Entry) -> Result<Header, StoreError> {
        let header = self.header_of(name, entry)?;
        match header.file_len_bytes() {
            Some(expected_bytes) if expected_bytes != entry.len_bytes => {
                Err(StoreError::SizeMismatch { name: name.clone(), expected_bytes, found_bytes: entry.len_bytes })
            }
            _ => Ok(header),
        }
    }

    fn header_of(&self, name: &PoolName, entry: &Entry) -> Result<Header, StoreError> {
        let header = entry.header().map_err(|error| self.root.io("read", name.as_str(), error))?;
        header.map_err(|source| StoreError::Header { name: name.clone(), source })
    }

    /// Maps the very file that `entry` is; a name that now leads elsewhere is refused.
    fn map(&self, name: &PoolName, entry: &Entry, access: OpenFor) -> Result<Memory, StoreError> {
        let path = self.root.path_by_descriptor(name.as_str());
        let memory = match access {
            OpenFor::Read => Memory::open_read_only(&path, self.options.declaration),
            OpenFor::Write => Memory::open(&path, self.options.declaration),
        }
        .map_err(|error| self.memory_error(name, error))?
        .named(self.root.path().join(name.as_str()))
        .synced_by(self.options.sync_choice);
        memory.hand_out(HandOut::Marked);
        match Identity::of_file(self.file_of(name, &memory)?) {
            Ok(identity) if identity == entry.identity => Ok(memory),
            Ok(_) => Err(StoreError::Replaced { name: name.clone() }),
            Err(error) => Err(self.root.io("fstat", name.as_str(), error)),
        }
    }

    fn file_of<'a>(&self, name: &PoolName, memory: &'a Memory) -> Result<BorrowedFd<'a>, StoreError> {
        memory.file().ok_or_else(|| no_file(&self.root.path().join(name.as_str())))
    }

    /// Makes the file this process's to write, until its description is closed.
    fn lock(&self, name: &PoolName, file: BorrowedFd<'_>) -> Result<(), StoreError> {
        match root::try_lock(file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(StoreError::Busy { name: name.clone(), holder: holder_of_file(file) }),
            Err(error) => Err(self.root.io("flock", name.as_str(), error)),
        }
    }

    /// As [`lock`](Self::lock). Before the lock was ours, another process may have removed the pool: then it is refused.
    fn lock_named(&self, name: &PoolName, file: BorrowedFd<'_>, identity: Identity) -> Result<(), StoreError> {
        self.lock(name, file)?;
        if self.root.identity(name)? == Some(identity) {
            Ok(())
        } else {
            Err(StoreError::Replaced { name: name.clone() })
        }
    }

    /// Refuses with [`StoreError::Replaced`] a pool that is open and whose file has lost its name to another process: what is written
    /// to it is lost when it is closed. A pool that has no name yet is none of these.
    pub(crate) fn check_named(&self, pool: &OpenPool) -> Result<(), StoreError> {
        if pool.unpublished.is_some() { Ok(()) } else { self.check_file_named(&pool.name, &pool.memory) }
    }

    fn check_file_named(&self, name: &PoolName, memory: &Memory) -> Result<(), StoreError> {
        if self.device(name).is_some() {
            return Ok(());
        }
        let own = Identity::of_file(self.file_of(name, memory)?)
            .map_err(|error| self.root.io("fstat", name.as_str(), error))?;
        if self.root.identity(name)? == Some(own) { Ok(()) } else { Err(StoreError::Replaced { name: name.clone() }) }
    }

    /// The head of a file whose state is the newest that it had.
    fn read_head(&self, name: &PoolName, memory: &Memory) -> Result<Head, StoreError> {
        let head = self.head(name, memory)?;
        let uncertain = || StoreError::Header { name: name.clone(), source: HeaderError::UncertainState };
        if head.is_uncertain { Err(uncertain()) } else { Ok(head) }
    }

    fn creation_error(&self, name: &PoolName, size_bytes: u64, error: MemError) -> StoreError {
        let root = self.root.path().to_owned();
        match error {
            MemError::NoSpace { .. } => StoreError::NoSpace { name: name.clone(), size_bytes, root },
            MemError::Io { source, .. } if refuses_writing(&source) => StoreError::NotWritable { root, source },
            other => self.memory_error(name, other),
        }
    }

    /// Says the path as the operator knows it.
    fn memory_error(&self, name: &PoolName, error: MemError) -> StoreError {
        if self.device(name).is_some() {
            return StoreError::Memory { name: name.clone(), source: error };
        }
        let path = self.root.path().join(name.as_str());
        let source = match error {
            MemError::Io { call, mend, source, .. } => MemError::Io { call, path, mend, source },
            MemError::Unsuitable { why, mend, .. } => MemError::Unsuitable { path, why, mend },
            MemError::Poisoned { .. } => MemError::Poisoned { path },
            MemError::TooLong { len_bytes, limit_bytes, .. } => MemError::TooLong { path, len_bytes, limit_bytes },
            other => other,
        };
        StoreError::Memory { name: name.clone(), source }
    }
}

impl OpenPool {
    /// Its name.
    pub fn name(&self) -> &PoolName {
        &self.name
    }

    /// The header as it was when the pool was opened.
    pub fn header(&self) -> &Header {
        self.replica.header()
    }

    /// What it was opened for.
    pub fn access(&self) -> OpenFor {
        self.replica.access()
    }

    /// The memory of the whole file, header included: peers get rights from [`data_offset`](Self::data_offset) on
    /// for [`data_len_bytes`](Self::data_len_bytes) only.
    pub fn medium(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// The same as peers have it: where the pool keeps digests of its pages, what they read is verified, and a page that is protected is not stored to.
    pub(crate) fn served_medium(&self) -> Arc<dyn Medium> {
        match ProtectedMemory::new(&self.memory, self.header()) {
            Some(protected) => Arc::new(protected),
            None => self.medium(),
        }
    }

    /// Where user data begins in the medium, in bytes.
    pub fn data_offset(&self) -> u64 {
        self.header().data_offset()
    }

    /// Refuses with [`StoreError::NotDurable`] where the pool's medium cannot give the level `wanted`.
    pub fn require(&self, wanted: Durability) -> Result<(), StoreError> {
        check_level(&self.name, &self.memory, wanted)
    }

    /// Which opening wrote it last, and whether that ended in order.
    pub fn state(&self) -> &PoolState {
        self.replica.state()
    }

    /// The members of the pool, as this replica knows them.
    pub fn roster(&self) -> &Roster {
        self.replica.roster()
    }

    /// What it keeps, and who has begun epochs.
    pub(crate) fn replica(&self) -> &OpenReplica {
        &self.replica
    }

    /// The same, for a writer that names an epoch of its own.
    pub(crate) fn named_by(self, named_epoch: Option<Uuid>) -> Self {
        Self { replica: self.replica.named_by(named_epoch), ..self }
    }

    /// Whether it has its name.
    pub(crate) fn is_published(&self) -> bool {
        self.unpublished.is_none()
    }

    /// Bytes of user data.
    pub fn data_len_bytes(&self) -> u64 {
        self.header().size_bytes
    }
}

/// Who has a pool open for writing, as long as its memory lives.
#[derive(Debug)]
struct Writer {
    holder: String,
    memory: Weak<Memory>,
}

impl Writer {
    fn new(holder: String, memory: &Arc<Memory>) -> Self {
        memory.unlock_when_dropped();
        Self { holder, memory: Arc::downgrade(memory) }
    }
}

/// Whether the replica is the one that was meant, if any was.
fn check_replica(name: &PoolName, header: &Header, meant: Option<MeantReplica>) -> Result<(), StoreError> {
    match meant.map(|meant| meant.uuid).filter(|meant| *meant != header.replica_uuid) {
        Some(meant) => Err(StoreError::OtherReplica { name: name.clone(), found: header.replica_uuid, meant }),
        None => Ok(()),
    }
}

fn check_level(name: &PoolName, memory: &Memory, wanted: Durability) -> Result<(), StoreError> {
    if memory.promise(wanted).is_some() {
        return Ok(());
    }
    Err(match memory.not_durable(wanted) {
        // Without the medium's description, which holds a path of this process only.
        MemError::NotDurable { wanted, mend, .. } => {
            StoreError::NotDurable { name: name.clone(), wanted, medium: memory.kind(), mend }
        }
        source => StoreError::Memory { name: name.clone(), source },
    })
}

/// Memory of a path always has its file, unless something is very wrong.
fn no_file(path: &Path) -> StoreError {
    StoreError::Io { call: "mmap", path: path.to_owned(), source: io::Error::other("the memory has no file") }
}

/// Whether the kernel's answer means that files cannot be made in a directory.
fn refuses_writing(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}
