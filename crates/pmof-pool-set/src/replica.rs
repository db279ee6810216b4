//! One copy of a pool on this machine: its parts as one piece of memory.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::{Declaration, Medium, MediumKind, Memory, NewFile, System};

use crate::{
    Attributes, Feature, Features, HEADER_LEN_BYTES, OpenFor, PartSpec, PoolHeader, PoolSetError,
    SHUTDOWN_STATE_LEN_BYTES, SetOptions, ShutdownState, behind_header, distinct,
    header::{self, Arch, SHUTDOWN_STATE},
    new_uuid,
    part::{Part, Place, check_devices, new_places, page_bytes, places, places_of_broken},
    shutdown, uuid_text,
};

mod clear;
mod contents_of;
mod named_whole;
mod numbered;
mod owner;
mod planned;
mod removal;
mod restored;
#[cfg(test)]
mod tests;
mod unlinkable;
mod vouched;
mod whose;

pub(crate) use contents_of::contents_behind;
pub use contents_of::{has_contents_behind, open_contents_behind, part_contents};
pub use named_whole::check_named_whole;
pub(crate) use owner::something_in;
pub(crate) use planned::{Rooms, check_restorable, check_unused};
pub use removal::Removal;
pub(crate) use removal::{check_member, remove_member};
pub use unlinkable::check_unlinkable;
pub(crate) use vouched::{SAMPLES, UNLIKE_PAGES, resembles};
pub(crate) use vouched::{Source, no_source};
pub use whose::pool_set_uuid;
pub(crate) use whose::{check_one_pool, check_replaceable, is_begun};

/// The minimum size of a pool of any kind, as in librpmem.
pub const POOL_LEN_BYTES_MIN: u64 = 8 << 10;

/// How to create a replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewReplica {
    /// What its headers say; `None` if and only if the set has `NOHDRS`. UUIDs that are zero are made up, but those of
    /// neighbours, which become the replica's own: it is then the only one. Zero user flags become this machine's architecture.
    pub attributes: Option<Attributes>,
    /// Those of the set.
    pub options: SetOptions,
    /// What the operator vouches for.
    pub declaration: Option<Declaration>,
}

/// How to recreate a damaged replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restoration<'r> {
    /// Those of the set.
    pub(crate) options: SetOptions,
    /// What its headers will say.
    pub(crate) links: &'r Attributes,
    /// Bytes that it must hold.
    pub(crate) least: u64,
    /// What the operator vouches for.
    pub(crate) declaration: Option<Declaration>,
    /// Parts of the other replicas of this machine, the source's first: files that are made belong to whom these belong to, where no part of the
    /// replica itself is left.
    pub(crate) beside: &'r [PathBuf],
}

/// The parts of one replica, open, locked and mapped one behind the other.
///
/// The memory begins with the header of the first part, if there is one; of later parts it has what follows their headers.
/// A drop without [`close`](Self::close) leaves the shutdown state as that of a pool that is open.
#[derive(Debug)]
pub struct LocalReplica {
    parts: Vec<Part>,
    pub(crate) memory: Arc<Memory>,
    options: SetOptions,
    access: OpenFor,
    /// It was made by this value, and can be [discarded](Self::discard).
    is_new: bool,
    state: Mutex<State>,
}

/// Who reads what the headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A library that keeps pools as PMDK's do, and must know their features.
    Library,
    /// The client of a target, whose attributes they are.
    Client,
}

/// What the headers say.
#[derive(Debug, Default)]
struct State {
    /// One for each part that has one.
    headers: Vec<PoolHeader>,
    /// The shutdown state of this opening, dirty; `None` where there is none to clear.
    opened: Option<ShutdownState>,
}

/// A replica that is being created; removed again on drop unless it is finished.
#[derive(Debug)]
pub(crate) struct NewParts {
    parts: Vec<Part>,
    files: Vec<NewFile>,
    pub(crate) memory: Arc<Memory>,
    options: SetOptions,
    /// What parts are known by; those without get new ones.
    uuids: Vec<Option<[u8; 16]>>,
}

impl LocalReplica {
    /// Makes all parts of a replica, of zeros, with their headers. Parts that are there are taken if they are nobody's: files of the right
    /// length that hold nothing but zeros, whose holes are filled, and devices whose first 4096 bytes are zero; what these hold behind them
    /// stays. On an error no file is left behind, and what was there is blank as before.
    ///
    /// Errors: `Busy`, `Exists`, `NotBlank`, `WrongLength`, `TooSmall`, `PoolTooSmall`, `WrongKind`, `BadBlocks`; `Unsupported` where attributes
    /// and options contradict each other; `Mem` where there is no room.
    pub fn create(parts: &[PartSpec], new: &NewReplica) -> Result<Self, PoolSetError> {
        Self::create_on(&System::real(), parts, new)
    }

    pub(crate) fn create_on(system: &System, parts: &[PartSpec], new: &NewReplica) -> Result<Self, PoolSetError> {
        check_attributes(new.attributes.as_ref(), new.options)?;
        let attributes = new.attributes.as_ref();
        let parts = NewParts::create(system, parts, new.options, attributes, new.declaration)?;
        parts.clear_files()?;
        parts.finish(system, attributes)
    }

    /// The same, but that the headers say that it is being made, so that what a kill leaves is taken by the next creation, until they are
    /// [written](Self::write_out).
    ///
    /// Errors: as for [`create`](Self::create).
    pub fn begin(parts: &[PartSpec], new: &NewReplica) -> Result<Self, PoolSetError> {
        check_attributes(new.attributes.as_ref(), new.options)?;
        let attributes = new.attributes.as_ref();
        let system = System::real();
        let parts = NewParts::create(&system, parts, new.options, attributes, new.declaration)?;
        parts.mark()?;
        parts.clear_files()?;
        let (replica, files) = parts.unwritten(&system, attributes)?;
        files.into_iter().for_each(NewFile::keep);
        Ok(replica)
    }

    /// Writes the headers of one that was [begun](Self::begin), durably.
    ///
    /// Errors: `Mem`.
    pub fn write_out(&self) -> Result<(), PoolSetError> {
        self.write_headers(&self.state().headers)
    }

    /// Opens all parts of a replica, and checks that they are sound and belong together. What they hold is on their medium,
    /// whatever its last user left ([`Memory::settle`]): at every opening of files behind a page cache, since nobody can be
    /// believed to have flushed it; of persistent memory where the shutdown state does not say that the pool was closed.
    ///
    /// Errors: `Missing`, `WrongLength`, `Busy`, `Header`, `OtherSet`, `WrongNeighbour`, `Differs`, `WrongOptions`, `Unfinished`,
    /// `UnknownFeatures`, `UnsafeShutdown`, `BadBlocks`, `WrongKind`, `Mem`.
    pub fn open(
        parts: &[PartSpec],
        options: SetOptions,
        access: OpenFor,
        declaration: Option<Declaration>,
    ) -> Result<Self, PoolSetError> {
        Self::open_on(&System::real(), parts, options, access, declaration, Reader::Library)
    }

    /// The same as a target does for its client: what the attributes mean is known to the client, so features that pmof does not
    /// know are no reason to refuse them. Parts are still held against each other.
    pub fn open_for_client(
        parts: &[PartSpec],
        options: SetOptions,
        access: OpenFor,
        declaration: Option<Declaration>,
    ) -> Result<Self, PoolSetError> {
        Self::open_on(&System::real(), parts, options, access, declaration, Reader::Client)
    }

    pub(crate) fn open_on(
        system: &System,
        parts: &[PartSpec],
        options: SetOptions,
        access: OpenFor,
        declaration: Option<Declaration>,
        reader: Reader,
    ) -> Result<Self, PoolSetError> {
        distinct::check_parts(parts)?;
        let places = places(parts, options)?;
        let parts = places.iter().map(|place| Part::open(place, access)).collect::<Result<Vec<_>, _>>()?;
        check_devices(parts.iter().map(Part::device), options)?;
        check_lengths(&parts)?;
        // Before the first touch: a block that cannot be read would end the process.
        parts.iter().try_for_each(|part| part.check_bad_blocks(system, false))?;
        let memory = map(parts.iter(), options, access, declaration)?;
        if !is_dax(&memory) {
            // The last writer may have failed to flush, and even the header may be only in the page cache.
            memory.settle()?;
        }
        let replica = Self { parts, memory, options, access, is_new: false, state: Mutex::default() };
        let headers = replica.read_headers()?;
        if is_dax(&replica.memory) && !headers.first().is_some_and(was_closed) {
            replica.memory.settle()?;
        }
        if let Some(first) = headers.first() {
            match reader {
                Reader::Library if first.attributes().is_unfinished() => {
                    return Err(PoolSetError::Unfinished { path: replica.parts[0].path.clone() });
                }
                Reader::Library => replica.check_features(first)?,
                Reader::Client => replica.check_single(first)?,
            }
            check_links(&replica.parts, &headers)?;
            replica.check_headerless(first)?;
            if first.features.has(Feature::CheckBadBlocks) {
                replica.parts.iter().try_for_each(|part| part.check_bad_blocks(system, true))?;
            }
            let stored = keeps_shutdown_state(first.features).then_some(first.shutdown_state);
            replica.state().headers = headers;
            if let Some(stored) = stored {
                replica.mark_open(system, &stored)?;
            }
        }
        Ok(replica)
    }

    /// The memory of all parts.
    pub fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    /// Usable bytes: all parts in whole pages, without the headers of all but the first.
    pub fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// What the header of the first part says; `None` with `NOHDRS`.
    pub fn attributes(&self) -> Option<Attributes> {
        self.state().headers.first().map(PoolHeader::attributes)
    }

    /// The header of part `index`; `None` for parts without one. With `SINGLEHDR` only the first part has one.
    pub fn header(&self, index: usize) -> Option<PoolHeader> {
        self.state().headers.get(index).cloned()
    }

    /// The parts as they are on this machine, the files in directories among them, with their lengths in bytes.
    pub fn parts(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.parts.iter().map(|part| (part.path.as_path(), part.len_bytes))
    }

    /// The path of the first part, which names the replica in messages.
    pub fn first_path(&self) -> &Path {
        self.parts.first().map_or(Path::new(""), |part| &part.path)
    }

    /// The part that has the byte at `offset` of the memory, and the offset in that file; `None` behind the end.
    pub fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        let mut start = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let behind_header = is_behind_header(index, self.options);
            let end = start + part.mapped_len_bytes(behind_header);
            if offset < end {
                let header_bytes = if behind_header { page_bytes() } else { 0 };
                return Some((index, header_bytes + (offset - start)));
            }
            start = end;
        }
        None
    }

    /// What each part without a header has of the memory, in order; but for the first part, and devices.
    pub fn headerless_ranges(&self) -> Vec<Range<u64>> {
        let (mut all, mut start) = (Vec::new(), 0);
        for (index, part) in self.parts.iter().enumerate() {
            let end = start + part.mapped_len_bytes(is_behind_header(index, self.options));
            if index >= header_count(self.parts.len(), self.options).max(1) && part.devdax_align_bytes.is_none() {
                all.push(start..end);
            }
            start = end;
        }
        all
    }

    /// Replaces what the headers have of `attributes`, durably: of the last part first and of the first part last. A crash
    /// in between leaves parts that [`open`](Self::open) tells apart as `Differs`, `WrongNeighbour` or `Header`: the format has no room
    /// for the old and the new.
    ///
    /// What they say about `SINGLEHDR` is stored like the rest; which parts have headers stays as it is.
    ///
    /// Errors: `Unsupported` with `NOHDRS`, unless they are zero, which such a set has; `Mem`.
    pub fn set_attributes(&self, attributes: &Attributes) -> Result<(), PoolSetError> {
        if self.options.no_headers {
            return if attributes.is_zero() { Ok(()) } else { Err(NO_ROOM) };
        }
        let mut state = self.state();
        let State { headers, opened } = &mut *state;
        if !keeps_shutdown_state(attributes.features()) {
            *opened = None;
        }
        let count = headers.len();
        for (index, header) in headers.iter_mut().enumerate() {
            header.set_attributes(attributes);
            if index == 0 {
                header.uuid = attributes.uuid;
                header.shutdown_state = opened.unwrap_or_default();
            }
            if index + 1 == count {
                header.next_part_uuid = attributes.uuid;
            }
            if index == 1 || count == 1 {
                header.prev_part_uuid = attributes.uuid;
            }
        }
        self.write_headers(headers)
    }

    /// Writes all headers, durably: that of the first part last.
    fn write_headers(&self, headers: &[PoolHeader]) -> Result<(), PoolSetError> {
        for (index, header) in headers.iter().enumerate().rev() {
            write_header(&self.header_memory(index)?, &header.encode())?;
        }
        Ok(())
    }

    /// Notes durably that the pool was closed, after all that was written back is durable, and unlocks the parts once the
    /// last user of the memory is gone. Where the page cache is, that is all that was stored.
    ///
    /// Errors: `Mem`, also where an earlier flush failed; the pool then counts as open.
    pub fn close(self) -> Result<(), PoolSetError> {
        if self.access == OpenFor::Write {
            if !is_dax(&self.memory) {
                // Also what nobody asked to be flushed: the kernel may have failed to write it, and tells that to a flush only.
                self.memory.write_back(0, self.memory.len_bytes())?;
            }
            self.memory.fence()?;
        }
        let opened = self.state().opened;
        if let Some(opened) = opened {
            let closed = ShutdownState::new(opened.unsafe_shutdowns, opened.modules, false);
            self.write_shutdown_state(&closed)?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn header_count(&self) -> usize {
        header_count(self.parts.len(), self.options)
    }

    fn header_memory(&self, index: usize) -> Result<Arc<Memory>, PoolSetError> {
        if index == 0 {
            return Ok(self.memory.clone());
        }
        header_memory(&self.parts[index], self.access)
    }

    fn read_headers(&self) -> Result<Vec<PoolHeader>, PoolSetError> {
        let read = |index: usize| {
            let mut bytes = [0; HEADER_LEN_BYTES];
            let memory = self.header_memory(index)?;
            if index > 0 {
                memory.settle()?;
            }
            memory.read(0, &mut bytes)?;
            PoolHeader::decode(&bytes).map_err(|problem| {
                let behind = if index == 0 { behind_header(&self.memory) } else { None };
                PoolSetError::Header { path: self.parts[index].path.clone(), problem, behind }
            })
        };
        (0..self.header_count()).map(read).collect()
    }

    fn check_features(&self, first: &PoolHeader) -> Result<(), PoolSetError> {
        let path = self.parts[0].path.clone();
        let features = first.features.unknown();
        if features.incompat != 0 {
            return Err(PoolSetError::UnknownFeatures { path, features, mend: "use the program that made the pool" });
        }
        if features.ro_compat != 0 && self.access == OpenFor::Write {
            let mend = "open it for reading only, or use the program that made the pool";
            return Err(PoolSetError::UnknownFeatures { path, features, mend });
        }
        match (first.features.has(Feature::SingleHeader), self.options.single_header) {
            (true, false) => Err(PoolSetError::WrongOptions {
                path,
                why: "the pool was made with the option SINGLEHDR, and the set does not have it",
                mend: "add `OPTION SINGLEHDR` to the pool set file",
            }),
            (false, true) => Err(made_without_single(&path)),
            _ => Ok(()),
        }
    }

    /// Whether the set has the first part's header only, as the pool has. The attributes are the client's, so that they tell
    /// nothing of it; the links do.
    fn check_single(&self, first: &PoolHeader) -> Result<(), PoolSetError> {
        if !self.options.single_header || self.parts.len() == 1 || first.next_part_uuid == first.uuid {
            return Ok(());
        }
        Err(made_without_single(&self.parts[0].path))
    }

    /// Fails where another pool's part is in the place of one that has no header.
    fn check_headerless(&self, first: &PoolHeader) -> Result<(), PoolSetError> {
        let mut headerless = self.parts.iter().skip(self.header_count());
        headerless.try_for_each(|part| owner::check_no_header(part, &first.poolset_uuid))
    }

    /// Checks the shutdown state, and makes it that of an open pool, durably.
    fn mark_open(&self, system: &System, stored: &ShutdownState) -> Result<(), PoolSetError> {
        let now = shutdown::of_modules(system, &self.parts, true);
        if !shutdown::is_trusted(stored, &now) {
            return Err(PoolSetError::UnsafeShutdown { path: self.parts[0].path.clone() });
        }
        if self.access == OpenFor::Write {
            self.write_shutdown_state(&now)?;
            self.state().opened = Some(now);
        }
        Ok(())
    }

    fn write_shutdown_state(&self, state: &ShutdownState) -> Result<(), PoolSetError> {
        self.memory.store(SHUTDOWN_STATE as u64, &state.to_bytes())?;
        self.memory.write_back(SHUTDOWN_STATE as u64, SHUTDOWN_STATE_LEN_BYTES as u64)?;
        self.memory.fence()?;
        if let Some(first) = self.state().headers.first_mut() {
            first.shutdown_state = *state;
        }
        Ok(())
    }
}

impl NewParts {
    /// Makes and maps all parts; they have no headers yet.
    pub(crate) fn create(
        system: &System,
        specs: &[PartSpec],
        options: SetOptions,
        attributes: Option<&Attributes>,
        declaration: Option<Declaration>,
    ) -> Result<Self, PoolSetError> {
        distinct::check_parts(specs)?;
        let (mut parts, mut files) = (Vec::new(), Vec::new());
        let places = new_places(specs, options)?;
        for place in &places {
            let (part, file) = Part::create(place)?;
            parts.push(part);
            files.extend(file);
        }
        restored::own_made_as_given(&parts)?;
        check_devices(parts.iter().map(Part::device), options)?;
        let checks_all = attributes.is_some_and(|attributes| attributes.features().has(Feature::CheckBadBlocks));
        parts.iter().try_for_each(|part| part.check_bad_blocks(system, checks_all))?;
        let memory = map(parts.iter(), options, OpenFor::Write, declaration)?;
        if parts.iter().any(|part| !part.is_made) {
            // Their writer may have failed to flush: only the medium counts.
            memory.settle()?;
            parts.iter().filter(|part| !part.is_made).try_for_each(Part::check_nobodys)?;
        }
        let new = Self { parts, files, memory, options, uuids: Vec::new() };
        new.check_len(POOL_LEN_BYTES_MIN)?;
        Ok(new)
    }

    /// Usable bytes, as of the finished replica.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// Opens what of a broken replica is there, and makes what is not; whatever it held may be overwritten. What is made stays, so
    /// that an interrupted restoration goes on where it was.
    ///
    /// Never touches what is another pool's, or no pool's. `source`: what it will hold.
    pub(crate) fn restore(
        system: &System,
        specs: &[PartSpec],
        restoration: &Restoration<'_>,
        source: Source<'_>,
    ) -> Result<Self, PoolSetError> {
        let Restoration { options, links, least, declaration, beside } = *restoration;
        distinct::check_parts(specs)?;
        let places = places_of_broken(specs, options, least)?;
        // Before anything is changed.
        check_replaceable(specs, options, &links.poolset_uuid, least, source)?;
        check_restorable(specs, options, least, &mut Rooms::default())?;
        let uuids = known_uuids(&places[..header_count(places.len(), options)]);
        let begun = header::begun(links);
        let mut parts = Vec::with_capacity(places.len());
        for (index, place) in places.iter().enumerate() {
            let has_header = index < header_count(places.len(), options);
            let part = restored::part(system, place, &places, beside)?;
            if has_header {
                // From here on, and until all is restored, the replica must not pass for a whole one.
                write_header(&header_memory(&part, OpenFor::Write)?, &begun)?;
            }
            parts.push(part);
        }
        check_devices(parts.iter().map(Part::device), options)?;
        let memory = map(parts.iter(), options, OpenFor::Write, declaration)?;
        memory.settle()?;
        Ok(Self { parts, files: Vec::new(), memory, options, uuids })
    }

    /// Fails if the replica holds less than `least` bytes.
    pub(crate) fn check_len(&self, least: u64) -> Result<(), PoolSetError> {
        planned::check_least(&self.parts[0].path, self.memory.len_bytes(), least)
    }

    /// Writes the headers, that of the first part last, and keeps the parts.
    pub(crate) fn finish(self, system: &System, attributes: Option<&Attributes>) -> Result<LocalReplica, PoolSetError> {
        let (replica, files) = self.unwritten(system, attributes)?;
        if let Err(error) = replica.write_out() {
            // New files go, what was there stays; the failure that led here is the one to report.
            let _ = replica.blank_again();
            return Err(error);
        }
        files.into_iter().for_each(NewFile::keep);
        Ok(replica)
    }

    /// What [`finish`](Self::finish) gives before the headers are written, and the files that go unless they are kept.
    fn unwritten(
        self,
        system: &System,
        attributes: Option<&Attributes>,
    ) -> Result<(LocalReplica, Vec<NewFile>), PoolSetError> {
        let Self { parts, files, memory, options, uuids } = self;
        let has_state = attributes.is_some_and(|attributes| keeps_shutdown_state(attributes.features()));
        let opened = has_state.then(|| shutdown::of_modules(system, &parts, true));
        let headers = match attributes {
            Some(attributes) => new_headers(attributes, &parts, options, opened, &uuids)?,
            None => Vec::new(),
        };
        let state = Mutex::new(State { headers, opened });
        Ok((LocalReplica { parts, memory, options, access: OpenFor::Write, is_new: true, state }, files))
    }
}

/// What the parts of a broken replica are known by: each by its own header, or by what its neighbours say.
fn known_uuids(places: &[Place]) -> Vec<Option<[u8; 16]>> {
    let headers: Vec<_> = places.iter().map(|place| part_header(&place.path).ok()).collect();
    let count = headers.len();
    let known = |index: usize| {
        let own = headers[index].as_ref().map(|header| header.uuid);
        let before = headers[(index + count - 1) % count].as_ref().map(|header| header.next_part_uuid);
        let behind = headers[(index + 1) % count].as_ref().map(|header| header.prev_part_uuid);
        own.or(before).or(behind).filter(|uuid| *uuid != [0; 16])
    };
    (0..count).map(known).collect()
}

/// The header of a part by itself, whatever set it belongs to. Nothing is locked or changed.
///
/// Errors: `Missing`, `Header`, `BadBlocks`, `WrongKind`, `Mem`.
pub fn part_header(path: &Path) -> Result<PoolHeader, PoolSetError> {
    let part = Part::look(path)?;
    part.check_bad_blocks(&System::real(), false)?;
    read_header(&part)
}

fn read_header(part: &Part) -> Result<PoolHeader, PoolSetError> {
    PoolHeader::decode(&part.header_bytes()?).map_err(|problem| PoolSetError::Header {
        path: part.path.clone(),
        problem,
        behind: None,
    })
}

fn write_header(memory: &impl Medium, bytes: &[u8; HEADER_LEN_BYTES]) -> Result<(), PoolSetError> {
    memory.store(0, bytes)?;
    memory.write_back(0, HEADER_LEN_BYTES as u64)?;
    Ok(memory.fence()?)
}

fn clear_header(part: &Part) -> Result<(), PoolSetError> {
    write_header(&header_memory(part, OpenFor::Write)?, &[0; HEADER_LEN_BYTES])
}

fn header_memory(part: &Part, access: OpenFor) -> Result<Arc<Memory>, PoolSetError> {
    let range = part.header_range()?;
    Ok(Arc::new(Memory::concatenate(vec![range], access == OpenFor::Write, None)?))
}

/// Whether the shutdown state can be changed by itself: it must be wanted, and lie outside of the header's checksum.
fn keeps_shutdown_state(features: Features) -> bool {
    features.has(Feature::ShutdownState) && features.has(Feature::Checksum2k)
}

/// Whether all of the memory is persistent memory, without a page cache between.
fn is_dax(memory: &Memory) -> bool {
    matches!(memory.kind(), MediumKind::FsDax | MediumKind::DevDax)
}

/// Whether a header says that its pool was closed.
fn was_closed(header: &PoolHeader) -> bool {
    let state = &header.shutdown_state;
    keeps_shutdown_state(header.features) && state.is_intact() && !state.is_dirty()
}

/// How many parts have a header.
fn header_count(part_count: usize, options: SetOptions) -> usize {
    match options {
        SetOptions { no_headers: true, .. } => 0,
        SetOptions { single_header: true, .. } => part_count.min(1),
        _ => part_count,
    }
}

/// Fails for a file that has not even a page: in a directory anything can have a part's name.
fn check_lengths(parts: &[Part]) -> Result<(), PoolSetError> {
    match parts.iter().find(|part| part.len_bytes < page_bytes()) {
        None => Ok(()),
        Some(part) => Err(PoolSetError::WrongKind {
            path: part.path.clone(),
            why: "it is shorter than any part of a pool",
            mend: "move it away if it is not the pool's, or restore it from another replica",
        }),
    }
}

/// Whether the memory of part `index` begins behind its header.
fn is_behind_header(index: usize, options: SetOptions) -> bool {
    index > 0 && !options.single_header && !options.no_headers
}

fn map<'a>(
    parts: impl Iterator<Item = &'a Part>,
    options: SetOptions,
    access: OpenFor,
    declaration: Option<Declaration>,
) -> Result<Arc<Memory>, PoolSetError> {
    let mapped = |(index, part): (usize, &Part)| part.mapped(is_behind_header(index, options));
    let ranges = parts.enumerate().map(mapped).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(Memory::concatenate(ranges, access == OpenFor::Write, declaration)?))
}

/// What the headers of new parts say, as PMDK's target writes them from a client's attributes.
fn new_headers(
    attributes: &Attributes,
    parts: &[Part],
    options: SetOptions,
    opened: Option<ShutdownState>,
    known: &[Option<[u8; 16]>],
) -> Result<Vec<PoolHeader>, PoolSetError> {
    let or_new = |uuid: [u8; 16]| if uuid == [0; 16] { new_uuid() } else { uuid };
    let count = header_count(parts.len(), options);
    let mut uuids = vec![or_new(attributes.uuid)];
    for index in 1..count {
        let known = known.get(index).copied().flatten().filter(|uuid| !uuids.contains(uuid));
        uuids.push(known.unwrap_or_else(new_uuid));
    }
    let or_own = |uuid: [u8; 16]| if uuid == [0; 16] { uuids[0] } else { uuid };
    let poolset_uuid = or_new(attributes.poolset_uuid);
    let arch = match attributes.user_flags {
        flags if flags == [0; 16] => Arch::of_this_machine(),
        flags => Arch::from_bytes(flags),
    };
    let header = |(index, part): (usize, &Part)| {
        Ok(PoolHeader {
            signature: attributes.signature,
            major: attributes.major,
            features: attributes.features(),
            poolset_uuid,
            uuid: uuids[index],
            prev_part_uuid: uuids[(index + count - 1) % count],
            next_part_uuid: uuids[(index + 1) % count],
            prev_replica_uuid: or_own(attributes.prev_uuid),
            next_replica_uuid: or_own(attributes.next_uuid),
            created_at_unix_s: part.changed_at_unix_s()?,
            arch,
            shutdown_state: opened.filter(|_| index == 0).unwrap_or_default(),
        })
    };
    parts.iter().take(count).enumerate().map(header).collect()
}

/// Whether all parts are of the same pool, and in their order. `headers`: of the first parts.
fn check_links(parts: &[Part], headers: &[PoolHeader]) -> Result<(), PoolSetError> {
    let count = headers.len();
    let path = |index: usize| parts[index].path.clone();
    for (index, header) in headers.iter().enumerate() {
        if header.poolset_uuid != headers[0].poolset_uuid {
            return Err(PoolSetError::OtherSet {
                path: path(index),
                found: uuid_text(&header.poolset_uuid),
                expected: uuid_text(&headers[0].poolset_uuid),
            });
        }
    }
    for (index, header) in headers.iter().enumerate() {
        let neighbours = [
            ("previous part", header.prev_part_uuid, headers[(index + count - 1) % count].uuid),
            ("next part", header.next_part_uuid, headers[(index + 1) % count].uuid),
        ];
        check_neighbours(&path(index), neighbours)?;
        if let Some(what) = difference(&headers[0], header) {
            return Err(PoolSetError::Differs { path: path(index), first: path(0), what });
        }
    }
    Ok(())
}

fn made_without_single(path: &Path) -> PoolSetError {
    PoolSetError::WrongOptions {
        path: path.into(),
        why: "the pool was made without the option SINGLEHDR, and the set has it",
        mend: "remove `OPTION SINGLEHDR` from the pool set file",
    }
}

/// Of a set without headers.
const NO_ROOM: PoolSetError = PoolSetError::Unsupported {
    why: "a set with the option NOHDRS has no room for attributes",
    mend: "remove the option, or give none",
};

/// Whether attributes and options of the set agree.
fn check_attributes(attributes: Option<&Attributes>, options: SetOptions) -> Result<(), PoolSetError> {
    let single = attributes.map(|attributes| attributes.features().has(Feature::SingleHeader));
    let (why, mend) = match (single, options.no_headers) {
        (Some(_), true) => return Err(NO_ROOM),
        (None, false) => {
            ("a set without the option NOHDRS needs attributes for its headers", "add the option, or give them")
        }
        (Some(single), false) if single != options.single_header => (
            "the attributes and the pool set file say different things of SINGLEHDR",
            "add or remove the option in the pool set file",
        ),
        _ => return Ok(()),
    };
    Err(PoolSetError::Unsupported { why, mend })
}

pub(crate) fn check_neighbours(
    path: &Path,
    neighbours: impl IntoIterator<Item = (&'static str, [u8; 16], [u8; 16])>,
) -> Result<(), PoolSetError> {
    for (neighbour, found, expected) in neighbours {
        if found != expected {
            return Err(PoolSetError::WrongNeighbour {
                path: path.into(),
                neighbour,
                found: uuid_text(&found),
                expected: uuid_text(&expected),
            });
        }
    }
    Ok(())
}

/// What two headers of one pool must have in common and do not.
pub(crate) fn difference(first: &PoolHeader, other: &PoolHeader) -> Option<&'static str> {
    if first.signature != other.signature || first.major != other.major {
        Some("kind of pool or version")
    } else if first.features != other.features {
        Some("set of features")
    } else if first.arch != other.arch {
        Some("architecture")
    } else if (first.prev_replica_uuid, first.next_replica_uuid) != (other.prev_replica_uuid, other.next_replica_uuid) {
        Some("neighbouring replica")
    } else {
        None
    }
}
