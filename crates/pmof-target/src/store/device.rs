//! Pools whose bytes are all of a device: a devdax device, or a file that the operator reserved.
//!
//! The header is at byte 0 as in a pool's file, the user's data behind it, and what is left of the device is unused.
//! A device has no working file and no rename, so its first word says what it holds, and changes by one atomic store:
//!
//! | first 8 bytes | the rest of the first page | meaning |
//! |---|---|---|
//! | `PMOFPOOL` | the rest of a header | a pool |
//! | `PMOFMAKE` | anything | a pool being made or removed, or left so by a crash: free |
//! | zero | zero | free |
//! | anything else | | not ours: never touched |

use std::{
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use pmof_control::{
    HEAD_4_BYTES, HEADER_BYTES, Header, HeaderError, MeantReplica, NewPool, OpenFor, PAGE_BYTES, PoolFormat, PoolInfo,
    PoolName, PoolState, Protection,
};
use pmof_mem::{Declaration, Durability, HandOut, Medium, MemError, Memory};

use super::{
    OpenPool, PoolStore, StoreError, Unpublished, Writer, check_level, check_replica,
    former::stays_mapped,
    no_file, root,
    state::{new_header, write_new},
};
use crate::{
    engine::{OpenReplica, ShippedRules},
    holder::{holder_of_file, processes_that_map},
};

/// The first word of a device with a pool, and of one where a pool is made or removed.
const POOL_WORD: u64 = u64::from_le_bytes(pmof_terms::NATIVE_MAGIC);
const MAKING_WORD: u64 = u64::from_le_bytes(*b"PMOFMAKE");

/// Zeroes stored at a time.
const ZEROS_BYTES: usize = 1 << 20;

/// Who has a device whose pool has not got its name yet.
pub(super) const MAKER: &str = "the initiator that makes it";

/// A device that the operator gave to one pool.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: PoolName,
    path: PathBuf,
    declaration: Option<Declaration>,
}

/// A device mapped, and what its first page says.
struct Found {
    memory: Memory,
    holds: Holds,
}

/// What a device holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Nothing,
    Pool(Header),
    /// A pool that this program cannot use, or no pool.
    Unusable(HeaderError),
}

impl Holds {
    /// What a device holds that begins with these bytes.
    pub(super) fn of(begin: &[u8]) -> Self {
        let head = &begin[..begin.len().min(HEADER_BYTES)];
        if head.starts_with(&MAKING_WORD.to_le_bytes()) || head.iter().all(|byte| *byte == 0) {
            return Self::Nothing;
        }
        Header::of_file(begin).map_or_else(Self::Unusable, |(header, _)| Self::Pool(header))
    }
}

/// A pool being made on a device: free again when dropped, unless it was published.
#[derive(Debug)]
pub(super) struct UnfinishedDevice {
    memory: Arc<Memory>,
    is_published: bool,
}

impl Device {
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.path == path
    }

    /// Checks that each can hold a pool, and that no two are the same.
    pub(super) fn all(
        given: &[(PoolName, PathBuf)],
        declaration: Option<Declaration>,
    ) -> Result<Vec<Self>, StoreError> {
        let mut devices: Vec<Self> = Vec::with_capacity(given.len());
        for (name, path) in given {
            let device = Self { name: name.clone(), path: path.clone(), declaration };
            device.map(OpenFor::Read)?;
            let is_known = |other: &Self| other.name == *name || same_file(&other.path, path);
            if devices.iter().any(is_known) {
                return Err(StoreError::DeviceTwice { name: name.clone(), path: path.clone() });
            }
            devices.push(device);
        }
        Ok(devices)
    }

    pub(super) fn map(&self, access: OpenFor) -> Result<Memory, StoreError> {
        let memory = match access {
            OpenFor::Read => Memory::open_read_only(&self.path, self.declaration),
            OpenFor::Write => Memory::open(&self.path, self.declaration),
        }
        .map_err(|error| self.failed(error))?;
        memory.hand_out(HandOut::Marked);
        Ok(memory)
    }

    /// Refuses a device that a process still has mapped for writing, which a target gave it that is gone by now: no copy can take its place.
    fn check_not_mapped(&self, memory: &Memory) -> Result<(), StoreError> {
        let file = self.file(memory)?;
        match stays_mapped(file) {
            Ok(false) => Ok(()),
            Ok(true) => Err(StoreError::NotFenceable { name: self.name.clone(), holder: processes_that_map(file) }),
            Err(source) => Err(StoreError::Io { call: "fcntl", path: self.path.clone(), source }),
        }
    }

    fn look(&self, access: OpenFor) -> Result<Found, StoreError> {
        let memory = self.map(access)?;
        let holds = self.holds(&memory)?;
        Ok(Found { memory, holds })
    }

    fn holds(&self, memory: &Memory) -> Result<Holds, StoreError> {
        let len_bytes = memory.len_bytes();
        let mut begin = vec![0; len_bytes.min(HEAD_4_BYTES) as usize];
        memory.read(0, &mut begin).map_err(|error| self.failed(error))?;
        match Holds::of(&begin) {
            Holds::Pool(header) => {
                let expected_bytes = header.file_len_bytes().unwrap_or(u64::MAX);
                if expected_bytes > len_bytes {
                    let name = self.name.clone();
                    return Err(StoreError::SizeMismatch { name, expected_bytes, found_bytes: len_bytes });
                }
                Ok(Holds::Pool(header))
            }
            Holds::Unusable(HeaderError::NotAPool) => {
                Err(StoreError::DeviceInUse { name: self.name.clone(), path: self.path.clone() })
            }
            other => Ok(other),
        }
    }

    fn file<'a>(&self, memory: &'a Memory) -> Result<BorrowedFd<'a>, StoreError> {
        memory.file().ok_or_else(|| no_file(&self.path))
    }

    /// Makes the device this process's to write, until its description is closed.
    fn lock(&self, memory: &Memory) -> Result<(), StoreError> {
        let file = self.file(memory)?;
        match root::try_lock(file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(StoreError::Busy { name: self.name.clone(), holder: holder_of_file(file) }),
            Err(source) => Err(StoreError::Io { call: "flock", path: self.path.clone(), source }),
        }
    }

    fn not_found(&self) -> StoreError {
        StoreError::NotFound { name: self.name.clone(), root: self.path.clone() }
    }

    fn unusable(&self, source: HeaderError) -> StoreError {
        StoreError::Header { name: self.name.clone(), source }
    }

    fn failed(&self, source: MemError) -> StoreError {
        StoreError::Memory { name: self.name.clone(), source }
    }
}

impl PoolStore {
    /// The device that was given to pools of this name.
    pub(super) fn device(&self, name: &PoolName) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == *name)
    }

    /// Names of the pools on devices, damaged ones too.
    pub(super) fn names_on_devices(&self) -> impl Iterator<Item = PoolName> {
        let holds_pool = |device: &&Device| {
            matches!(device.look(OpenFor::Read), Ok(Found { holds: Holds::Pool(_) | Holds::Unusable(_), .. }))
        };
        self.devices.iter().filter(holds_pool).map(|device| device.name.clone())
    }

    /// Makes a pool of zeroes on its device. It counts as none before it is published.
    pub(super) fn create_on(&self, device: &Device, new: &NewPool) -> Result<OpenPool, StoreError> {
        self.check_new(&device.name, new)?;
        let memory = {
            let mut writers = self.writers();
            if let Some(writer) = writers.get(&device.name) {
                return Err(StoreError::Busy { name: device.name.clone(), holder: writer.holder.clone() });
            }
            let memory = device.map(OpenFor::Write)?;
            device.lock(&memory)?;
            if !matches!(device.holds(&memory)?, Holds::Nothing) {
                return Err(StoreError::AlreadyExists { name: device.name.clone(), root: device.path.clone() });
            }
            let memory = Arc::new(memory);
            writers.insert(device.name.clone(), Writer::new(MAKER.to_owned(), &memory));
            memory
        };
        device.check_not_mapped(&memory)?;
        let no_space = || {
            let (name, root) = (device.name.clone(), device.path.clone());
            StoreError::NoSpace { name, size_bytes: new.size_bytes, root }
        };
        let header = header_on_device(new, memory.len_bytes()).ok_or_else(no_space)?;
        let needed_bytes =
            header.file_len_bytes().filter(|needed| *needed <= memory.len_bytes()).ok_or_else(no_space)?;
        check_level(&device.name, &memory, new.require)?;
        let state = PoolState::new(new.epoch, new.replica_count);
        let unfinished = UnfinishedDevice::begin(&memory, &header, &state, needed_bytes);
        let unpublished = Some(Unpublished::Device(unfinished.map_err(|error| device.failed(error))?));
        let replica = OpenReplica::made(header, state, ShippedRules);
        Ok(OpenPool { name: device.name.clone(), replica, memory, unpublished })
    }

    /// Maps a device with a pool, and makes it this process's to write.
    pub(super) fn open_device(
        &self,
        device: &Device,
        access: OpenFor,
        holder: String,
    ) -> Result<Arc<Memory>, StoreError> {
        let mut writers = self.writers();
        if access == OpenFor::Write {
            if let Some(writer) = writers.get(&device.name) {
                return Err(StoreError::Busy { name: device.name.clone(), holder: writer.holder.clone() });
            }
        }
        let memory = device.map(access)?;
        if access == OpenFor::Write {
            device.lock(&memory)?;
        }
        match device.holds(&memory)? {
            Holds::Pool(_) => {}
            Holds::Nothing => return Err(device.not_found()),
            Holds::Unusable(error) => return Err(device.unusable(error)),
        }
        let memory = Arc::new(memory);
        if access == OpenFor::Write {
            writers.insert(device.name.clone(), Writer::new(holder, &memory));
            // Others find it in use meanwhile, instead of waiting too.
            drop(writers);
            device.check_not_mapped(&memory)?;
        }
        Ok(memory)
    }

    /// Wipes the header, durably. The device stays, and the user's data stays on it until the next pool is made there.
    pub(super) fn remove_on(
        &self,
        device: &Device,
        meant: Option<MeantReplica>,
        matters_not: fn(&StoreError) -> bool,
    ) -> Result<(), StoreError> {
        let writers = self.writers();
        if let Some(writer) = writers.get(&device.name) {
            return Err(StoreError::Busy { name: device.name.clone(), holder: writer.holder.clone() });
        }
        let memory = device.map(OpenFor::Write)?;
        device.lock(&memory)?;
        match device.holds(&memory)? {
            Holds::Pool(header) => {
                check_replica(&device.name, &header, meant)?;
                if let Some(epoch) = meant.and_then(|meant| meant.epoch) {
                    self.check_epoch(&device.name, &memory, epoch)?;
                }
            }
            Holds::Nothing => return Err(device.not_found()),
            Holds::Unusable(error) => {
                let error = device.unusable(error);
                if !matters_not(&error) {
                    return Err(error);
                }
            }
        }
        wipe(&memory).map_err(|error| device.failed(error))
    }

    pub(super) fn info_on(&self, device: &Device) -> Result<PoolInfo, StoreError> {
        let writers = self.writers();
        // Mapped as a writer would, since it is a writer whom the promises are for.
        let Found { memory, holds } = device.look(OpenFor::Write)?;
        let header = match holds {
            Holds::Pool(header) => header,
            Holds::Nothing => return Err(device.not_found()),
            Holds::Unusable(error) => return Err(device.unusable(error)),
        };
        let state = self.read_head(&device.name, &memory)?.state;
        let file = device.file(&memory)?;
        let is_locked = root::is_locked(file).map_err(|source| StoreError::Io {
            call: "flock",
            path: device.path.clone(),
            source,
        })?;
        let known = writers.get(&device.name).map(|writer| writer.holder.clone());
        Ok(PoolInfo {
            name: device.name.clone(),
            header,
            state,
            file_len_bytes: memory.len_bytes(),
            medium: memory.kind(),
            promises: Durability::ALL.map(|level| memory.promise(level)),
            open_by: known.or_else(|| is_locked.then(|| holder_of_file(file))),
        })
    }
}

impl UnfinishedDevice {
    fn begin(memory: &Arc<Memory>, header: &Header, state: &PoolState, len_bytes: u64) -> Result<Self, MemError> {
        let unfinished = Self { memory: Arc::clone(memory), is_published: false };
        make(memory.as_ref(), header, state, len_bytes)?;
        Ok(unfinished)
    }

    /// Makes it a pool, durably.
    pub(super) fn publish(mut self) -> Result<(), MemError> {
        publish(self.memory.as_ref())?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for UnfinishedDevice {
    fn drop(&mut self) {
        if !self.is_published {
            // What stays is marked as unfinished, and the next pool is made over it.
            let _ = wipe(self.memory.as_ref());
        }
    }
}

/// Marks the device, then makes zeroes, the state and all of the header but its first word durable.
pub(super) fn make(medium: &dyn Medium, header: &Header, state: &PoolState, len_bytes: u64) -> Result<(), MemError> {
    set_first_word(medium, MAKING_WORD)?;
    let zeros = vec![0; ZEROS_BYTES];
    let mut at = HEADER_BYTES as u64;
    while at < len_bytes {
        let part = (len_bytes - at).min(ZEROS_BYTES as u64);
        medium.store(at, &zeros[..part as usize])?;
        medium.write_back(at, part)?;
        at += part;
    }
    for (place, bytes) in header.steps().into_iter().flatten() {
        // Without the first word it is no pool.
        let skipped = if place == 0 { size_of::<u64>() } else { 0 };
        medium.store(place + skipped as u64, &bytes[skipped..])?;
        medium.write_back(place, bytes.len() as u64)?;
    }
    write_new(medium, header, state)?;
    medium.fence()
}

/// The header of a new pool on a device of so many bytes, which it can grow to. `None`: it does not fit.
fn header_on_device(new: &NewPool, len_bytes: u64) -> Option<Header> {
    if new.protection.is_none() {
        return new_header(new);
    }
    let with_max = |max_size_bytes| new_header(&NewPool { protection: Some(Protection { max_size_bytes }), ..*new });
    let mut max_size_bytes = len_bytes / PAGE_BYTES * PAGE_BYTES;
    loop {
        let header = with_max(max_size_bytes.max(new.size_bytes))?;
        let excess = (header.layout.data_offset + header.layout.max_size_bytes).saturating_sub(len_bytes);
        if excess == 0 {
            return Some(header);
        }
        max_size_bytes = max_size_bytes.checked_sub(excess.next_multiple_of(PAGE_BYTES))?;
    }
}

/// Makes what was made a pool, durably.
pub(super) fn publish(medium: &dyn Medium) -> Result<(), MemError> {
    set_first_word(medium, POOL_WORD)
}

/// Makes the device free. At no moment does a part of a header look like something else's.
pub(super) fn wipe(medium: &dyn Medium) -> Result<(), MemError> {
    set_first_word(medium, MAKING_WORD)?;
    medium.store(size_of::<u64>() as u64, &[0; HEADER_BYTES - size_of::<u64>()])?;
    medium.write_back(0, HEADER_BYTES as u64)?;
    for place in &PoolFormat::Four.header_places()[1..] {
        let mut block = [0; HEADER_BYTES];
        if place + HEADER_BYTES as u64 <= medium.len_bytes() {
            medium.read(*place, &mut block)?;
        }
        if Header::decode(&block).is_ok_and(|header| header.format == PoolFormat::Four) {
            medium.store(*place, &[0; HEADER_BYTES])?;
            medium.write_back(*place, HEADER_BYTES as u64)?;
        }
    }
    medium.fence()?;
    set_first_word(medium, 0)
}

fn set_first_word(medium: &dyn Medium, word: u64) -> Result<(), MemError> {
    medium.atomic_store(0, word)?;
    medium.write_back(0, size_of::<u64>() as u64)?;
    medium.fence()
}

/// Whether two paths are one file or one device, whatever their names.
fn same_file(one: &Path, other: &Path) -> bool {
    let what = |path: &Path| {
        let stat = rustix::fs::stat(path).ok()?;
        // Several nodes may stand for one device.
        Some(if stat.st_rdev == 0 { (stat.st_dev, stat.st_ino) } else { (stat.st_rdev, 0) })
    };
    what(one).is_some() && what(one) == what(other)
}
