//! One-sided operations on mapped memory: this side's CPU carries them out when they are posted.

use std::{
    cell::Cell,
    os::fd::AsFd,
    path::Path,
    sync::atomic::{Ordering, fence},
};

use pmof_mem::{Durability, Evidence, Medium, MemError, Memory, Promise, causes, check_bounds};
use pmof_proto::{
    ConnectionError, DirectAccess, LocalSlice, OperationError, OperationKind, PostError, Refusal, RegionKey,
};
use rustix::fs::{SealFlags, fcntl_get_seals};

use super::{
    control::Answer,
    shares::{Revocation, Terms},
    wire::ShmWire,
};
use crate::{
    Method, RemoteRegion,
    request::{Data, Request, Verb},
    wire::{DirectOutcome, Posted},
};

/// Regions of the other side that one connection keeps mapped; those beyond it are reached by messages.
const MAPPINGS_MAX: usize = 1024;

/// Bytes copied at a time between mapped and other registered memory: they stay in the first cache.
const COPY_BYTES: usize = 16 << 10;

/// The regions that were asked for, by key.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    entries: Vec<(RegionKey, State)>,
    /// The entry that was used last is likely the next.
    last: Cell<usize>,
}

#[derive(Debug)]
enum State {
    Asked,
    /// Messages will have to do.
    Unmapped,
    Mapped(Box<Mapped>),
}

/// Memory of the other side, mapped here.
#[derive(Debug)]
struct Mapped {
    memory: Memory,
    page: Memory,
    terms: Terms,
}

impl Mapped {
    fn new((terms, memory, page): (Terms, std::os::fd::OwnedFd, std::os::fd::OwnedFd)) -> Option<Self> {
        // A page that its owner could make shorter would be this process's death (SIGBUS).
        if !fcntl_get_seals(page.as_fd()).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return None;
        }
        let memory = Memory::from_file(memory, Path::new("(shared)"), terms.is_writable, terms.declaration).ok()?;
        let page = Memory::from_file(page, Path::new("(shared)"), false, None).ok()?;
        check_bounds(terms.offset, terms.len_bytes, memory.len_bytes()).ok()?;
        check_bounds(0, 8, page.len_bytes()).ok()?;
        Some(Self { memory, page, terms })
    }

    fn is_revoked(&self) -> bool {
        self.revocation().is_some()
    }

    fn revocation(&self) -> Option<Revocation> {
        let mut word = [0; 8];
        match self.page.read(0, &mut word) {
            Ok(()) => Revocation::from_word(u64::from_le_bytes(word)),
            Err(_) => Some(Revocation::Deregistered),
        }
    }

    /// Whether the region is still there after all that this thread has done to it: then the target, which copies the memory only once it has
    /// said that it is not, has all of that. The word is read behind the stores, as the target reads them behind its word.
    fn check_still_there(&self) -> Result<(), CopyError> {
        fence(Ordering::SeqCst);
        self.check_there()
    }

    fn check_there(&self) -> Result<(), CopyError> {
        self.revocation().map_or(Ok(()), |why| Err(CopyError::Gone(why)))
    }

    /// What the descriptor claims is no more than what the target granted, and the region is still there. Where not, the
    /// target says no to a message itself.
    fn backs(&self, region: &RemoteRegion) -> bool {
        region.len_bytes() == self.terms.len_bytes && self.terms.access.contains(region.access()) && !self.is_revoked()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        let at = self.terms.offset + offset;
        self.memory.store(at, bytes)?;
        self.memory.write_back(at, bytes.len() as u64)
    }

    fn write_from(&self, offset: u64, slice: &LocalSlice) -> Result<(), CopyError> {
        copy_in_parts(slice, |done, part, local, at| {
            local.read(at, part).map_err(CopyError::Local)?;
            self.write(offset + done, part).map_err(CopyError::from)
        })
    }

    fn read_into(&self, offset: u64, slice: &LocalSlice) -> Result<(), CopyError> {
        copy_in_parts(slice, |done, part, local, at| {
            self.memory.read(self.terms.offset + offset + done, part).map_err(CopyError::from)?;
            local.store(at, part).map_err(CopyError::Local)
        })
    }

    /// Carries out an 8-byte operation and starts its write-back.
    fn atomic<T>(&self, offset: u64, change: impl FnOnce(&Memory, u64) -> Result<T, MemError>) -> Result<T, CopyError> {
        let at = self.terms.offset + offset;
        let outcome = change(&self.memory, at).map_err(CopyError::from)?;
        self.memory.write_back(at, 8).map_err(CopyError::from)?;
        Ok(outcome)
    }

    fn carry_out(&self, request: &Request<'_>, offset: u64) -> Result<DirectOutcome, CopyError> {
        match (request.verb, request.data) {
            (Verb::Write { .. }, Data::Bytes(bytes)) => self.write(offset, bytes)?,
            (Verb::Write { .. }, Data::Slice(slice)) => self.write_from(offset, &slice.local)?,
            (Verb::Write { .. }, Data::Part(part)) => self.write_from(offset, &part.local())?,
            (Verb::Read, Data::Slice(into)) => self.read_into(offset, &into.local)?,
            (Verb::AtomicWrite { value }, _) => {
                self.atomic(offset, |memory, at| memory.atomic_store(at, value))?;
            }
            (Verb::CompareAndSwap { expected, new }, _) => {
                let previous = self.atomic(offset, |memory, at| memory.compare_and_swap(at, expected, new))?;
                // Whoever is told of it counts on it, flushed or not.
                self.check_still_there()?;
                return Ok(DirectOutcome::Previous(previous));
            }
            (Verb::FetchAndAdd { addend }, _) => {
                let previous = self.atomic(offset, |memory, at| memory.fetch_and_add(at, addend))?;
                self.check_still_there()?;
                return Ok(DirectOutcome::Previous(previous));
            }
            _ => return Err(CopyError::Elsewhere),
        }
        Ok(DirectOutcome::Done)
    }

    fn flush(&self, ranges: &[(u64, u64)], level: Durability) -> Result<(), MemError> {
        if level != Durability::PowerFailure {
            fence(Ordering::SeqCst);
            return Ok(());
        }
        for (offset, len_bytes) in ranges {
            self.memory.write_back(self.terms.offset + offset, *len_bytes)?;
        }
        self.memory.fence()
    }
}

/// Whose memory an operation failed on.
enum CopyError {
    Remote,
    /// The other side took the region away.
    Gone(Revocation),
    Local(MemError),
    /// Such operations go another way.
    Elsewhere,
}

impl From<MemError> for CopyError {
    fn from(_: MemError) -> Self {
        Self::Remote
    }
}

/// Moves a slice part by part: `part` is given bytes done, a buffer, the local memory and the place in it.
fn copy_in_parts(
    slice: &LocalSlice,
    mut part: impl FnMut(u64, &mut [u8], &dyn Medium, u64) -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let mut buffer = [0; COPY_BYTES];
    let len_bytes = slice.len_bytes;
    let mut done = 0;
    while done < len_bytes {
        let len = (len_bytes - done).min(COPY_BYTES as u64);
        part(done, &mut buffer[..len as usize], slice.memory.as_ref(), slice.offset + done)?;
        done += len;
    }
    Ok(())
}

impl Mappings {
    fn find(&self, key: RegionKey) -> Option<&State> {
        if let Some((found, state)) = self.entries.get(self.last.get()) {
            if *found == key {
                return Some(state);
            }
        }
        let at = self.entries.iter().position(|(found, _)| *found == key)?;
        self.last.set(at);
        Some(&self.entries[at].1)
    }

    fn mapped(&self, key: RegionKey) -> Option<&Mapped> {
        match self.find(key) {
            Some(State::Mapped(mapped)) => Some(mapped),
            _ => None,
        }
    }

    /// Notes that a region is asked for. False if it was already, or if there is no place for one more.
    pub(super) fn expect(&mut self, key: RegionKey) -> bool {
        if self.find(key).is_some() {
            return false;
        }
        if self.entries.len() >= MAPPINGS_MAX {
            self.entries.retain(|(_, state)| match state {
                State::Asked => true,
                State::Unmapped => false,
                State::Mapped(mapped) => !mapped.is_revoked(),
            });
        }
        let has_place = self.entries.len() < MAPPINGS_MAX;
        if has_place {
            self.entries.push((key, State::Asked));
        }
        has_place
    }

    pub(super) fn settle(&mut self, answer: Answer) {
        let state =
            answer.grant.and_then(Mapped::new).map_or(State::Unmapped, |mapped| State::Mapped(Box::new(mapped)));
        if let Some((_, waiting)) = self.entries.iter_mut().find(|(key, _)| *key == answer.key) {
            *waiting = state;
        }
    }

    /// Whether there is no place for one more region.
    fn is_full(&self) -> bool {
        self.entries.len() >= MAPPINGS_MAX
    }
}

impl ShmWire {
    /// The mapped region; where it is not known yet, it will be asked for.
    fn mapped(&self, region: &RemoteRegion) -> Option<&Mapped> {
        if region.direct() != DirectAccess::Mapped {
            return None;
        }
        match self.mappings.find(region.key()) {
            Some(State::Mapped(mapped)) => Some(mapped),
            Some(_) => None,
            None => {
                let mut wanted = self.wanted.borrow_mut();
                if !wanted.contains(&region.key()) {
                    wanted.push(region.key());
                }
                None
            }
        }
    }

    fn check_there(&self) -> Result<(), PostError> {
        if !self.is_gone {
            return Ok(());
        }
        let why = "the other process died or was killed".to_owned();
        Err(PostError::NotConnected(ConnectionError::Lost { why }))
    }
}

/// The outcome of an operation that was carried out, of an offset and a length; an error where nothing was done.
fn outcome_of(outcome: Result<DirectOutcome, CopyError>, (offset, len_bytes): (u64, u64)) -> Result<Posted, PostError> {
    let refused = |refusal| DirectOutcome::Failed(OperationError::Refused { refusal, offset, len_bytes, limit: 0 });
    match outcome {
        Ok(outcome) => Ok(Posted::Finished(outcome)),
        Err(CopyError::Remote) => Ok(Posted::Finished(refused(Refusal::MediumFailed))),
        Err(CopyError::Gone(Revocation::Deregistered)) => Ok(Posted::Finished(refused(Refusal::UnknownRegion))),
        Err(CopyError::Gone(Revocation::Fenced)) => Ok(Posted::Finished(refused(Refusal::Fenced))),
        Err(CopyError::Local(error)) => Err(PostError::LocalMemory { why: causes(&error).to_string() }),
        Err(CopyError::Elsewhere) => Err(unmapped()),
    }
}

fn unmapped() -> PostError {
    PostError::LocalMemory { why: "the region is not mapped".to_owned() }
}

impl ShmWire {
    /// The mapped memory, where this kind of operation at `offset` of the region may use it.
    fn reached(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> Option<&Mapped> {
        let mapped = self.mapped(region)?;
        // A region may begin anywhere in its memory: the target says no where its number is not whole.
        let is_aligned = || (mapped.terms.offset + offset) % 8 == 0;
        let is_possible = match kind {
            OperationKind::Read => true,
            OperationKind::Write => mapped.terms.is_writable,
            OperationKind::AtomicWrite | OperationKind::CompareAndSwap | OperationKind::FetchAndAdd => {
                mapped.terms.is_writable && is_aligned()
            }
            _ => false,
        };
        (is_possible && mapped.backs(region)).then_some(mapped)
    }

    pub(super) fn reaches_directly(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> bool {
        self.reached(region, kind, offset).is_some()
    }

    pub(super) fn promise_of(
        &self,
        method: Method,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<Promise, &'static str> {
        if method != Method::LocalWriteBack {
            return Err("the memory is mapped, no device lies between");
        }
        let Some(mapped) = self.mapped(region) else {
            return Err("the region is not mapped: its memory cannot be handed over, or has not been yet \
                        (Connection::prepare waits for it)");
        };
        if !mapped.backs(region) {
            return Err("the region is gone, or its owner grants less than its descriptor says");
        }
        let theirs = region.promise(level).ok_or("the region's medium cannot give this durability")?;
        let ours =
            mapped.memory.promise(level).ok_or("this side's own mapping of the memory cannot give this durability")?;
        let is_declared = [theirs.evidence, ours.evidence].contains(&Evidence::Declared);
        let evidence = if is_declared { Evidence::Declared } else { Evidence::Probed };
        Ok(Promise { mechanism: ours.mechanism, evidence })
    }

    pub(super) fn knows(&self, region: &RemoteRegion) -> bool {
        self.mapped(region).is_some()
            || region.direct() != DirectAccess::Mapped
            || matches!(self.mappings.find(region.key()), Some(State::Unmapped))
            || self.mappings.is_full()
    }

    pub(super) fn carry_out(&self, request: &Request<'_>) -> Result<Posted, PostError> {
        let Some((region, offset)) = request.place else { return Ok(Posted::ByMessage) };
        let Some(mapped) = self.reached(region, request.kind(), offset) else { return Ok(Posted::ByMessage) };
        self.check_there()?;
        let outcome = mapped.carry_out(request, offset).map_err(|error| match (error, mapped.revocation()) {
            // What the target made of the file since then is no fault of its medium.
            (CopyError::Remote, Some(why)) => CopyError::Gone(why),
            (error, _) => error,
        });
        outcome_of(outcome, (offset, request.len_bytes))
    }

    pub(super) fn flush_mapped(
        &self,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
    ) -> Result<Posted, PostError> {
        let Some(mapped) = self.mappings.mapped(region.key()) else { return Err(unmapped()) };
        // It may have waited since its way was chosen.
        let outcome = mapped.check_there().and_then(|()| {
            let flushed = mapped.flush(ranges, level);
            mapped.check_still_there()?;
            Ok(flushed.map(|()| DirectOutcome::Done)?)
        });
        if outcome.is_ok() {
            self.check_there()?;
        }
        outcome_of(outcome, (0, region.len_bytes()))
    }
}
