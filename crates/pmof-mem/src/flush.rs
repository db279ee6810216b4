//! How stored bytes are made durable: by nothing, by a fence, line by line, or by the kernel.

use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::io::Errno;

use crate::{
    CacheWriteBack, Declaration, Durability, Evidence, Mechanism, MediumKind, MemError, Promise, Settled, SyncChoice,
    SyncMethod,
    cache::{persist_fence, write_back_lines},
    dirty_pages::{DirtyPages, whole_units},
    file::io_error,
    flush_turns::FlushTurns,
    judge::Judgement,
    mapping::Mapping,
    part_flush::PartFlush,
    pending_writes::{Pending, PendingWrites},
    settle::Pages,
};

/// From this length on, `write_back` has the kernel start writing at once, so that the fence finds less to wait for.
/// Below, the system call costs more than it saves.
pub(crate) const EARLY_WRITE_MIN_BYTES: u64 = 1 << 20;

/// The same while a flush is in progress: the thread would wait for that anyway, and the device has room for more.
const EARLY_WRITE_BUSY_MIN_BYTES: u64 = 64 << 10;

pub(crate) const POISON_MEND: &str =
    "what reached the device is unknown: close it, check the device, and open it again";

/// How `write_back` and `fence` do their work.
#[derive(Debug)]
pub(crate) enum Flush {
    /// Nothing to flush, but the order between threads is kept.
    Order,
    /// The caches belong to the persistence domain.
    Fence,
    /// Cache lines are written back one by one.
    Lines(CacheWriteBack),
    /// The kernel flushes the file.
    Sync(Box<SyncState>),
    /// Each of several files by its own means, in the order of their bytes.
    Parts(Vec<PartFlush>),
}

/// The file that is flushed, and which of its bytes lies where in the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushed<'a> {
    pub(crate) path: &'a Path,
    pub(crate) file: Option<BorrowedFd<'a>>,
    pub(crate) file_offset: u64,
    pub(crate) mapping_offset: u64,
}

/// What has been written back and what has been flushed, counted in calls of `write_back`.
#[derive(Debug)]
pub(crate) struct SyncState {
    written: AtomicU64,
    /// How far the last successful flush reached, and whose turn it is.
    pub(crate) turns: FlushTurns,
    is_poisoned: AtomicBool,
    /// The cache that a failed flush leaves wrong is the host's, out of this kernel's reach.
    is_host_cached: bool,
    /// The call that flushes.
    choice: SyncChoice,
    /// Where the choice depends on it, what was written back since the last flush began.
    pending: PendingWrites,
    /// The device, once it was queried.
    device: OnceLock<u64>,
    pub(crate) dirty_pages: DirtyPages,
}

impl Flush {
    /// What this medium needs.
    pub(crate) fn of(judgement: &Judgement, declaration: Option<Declaration>) -> Self {
        let promise = promise_of(judgement, Durability::PowerFailure, declaration);
        match judgement.kind {
            MediumKind::Tmpfs if declaration == Some(Declaration::MemoryKept) => match CacheWriteBack::detect() {
                Some(instruction) => Self::Lines(instruction),
                None => Self::Order,
            },
            MediumKind::Anonymous | MediumKind::Tmpfs => Self::Order,
            MediumKind::PageCache | MediumKind::VirtioPmem => Self::Sync(Box::new(SyncState::unknown(judgement.kind))),
            MediumKind::FsDax | MediumKind::DevDax => {
                match (promise.map(|promise| promise.mechanism), CacheWriteBack::detect()) {
                    (Some(Mechanism::CacheLineWriteBack), Some(instruction)) => Self::Lines(instruction),
                    // Without a promise the fence still orders.
                    _ => Self::Fence,
                }
            }
        }
    }

    /// `offset` is that of the mapping; `flushed` names the file of the range, where that matters.
    // Inlined, as `fence` is: for most media both are a few instructions.
    #[inline]
    pub(crate) fn write_back<'a>(
        &self,
        flushed: impl FnOnce() -> Flushed<'a>,
        mapping: &Mapping,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), MemError> {
        let start = mapping.range(offset, len_bytes)?;
        match self {
            Self::Order | Self::Fence => Ok(()),
            Self::Lines(instruction) => {
                // SAFETY: the range was checked and stays mapped; the instruction was detected on this CPU.
                unsafe { write_back_lines(*instruction, start, len_bytes as usize) };
                Ok(())
            }
            Self::Sync(state) => state.start(&flushed(), offset, len_bytes),
            Self::Parts(parts) => PartFlush::write_back(parts, mapping, offset, len_bytes),
        }
    }

    #[inline]
    pub(crate) fn fence<'a>(&self, flushed: impl FnOnce() -> Flushed<'a>, mapping: &Mapping) -> Result<(), MemError> {
        match self {
            Self::Order => {
                std::sync::atomic::fence(Ordering::SeqCst);
                Ok(())
            }
            Self::Fence | Self::Lines(_) => {
                persist_fence();
                Ok(())
            }
            Self::Sync(state) => state.sync(&flushed(), mapping),
            Self::Parts(parts) => PartFlush::fence(parts, mapping),
        }
    }

    /// [`Medium::sync_range`](crate::Medium::sync_range).
    pub(crate) fn sync_range<'a>(
        &self,
        flushed: impl Fn() -> Flushed<'a>,
        mapping: &Mapping,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), MemError> {
        if let Self::Sync(state) = self {
            return state.sync_range(&flushed(), mapping, offset, len_bytes);
        }
        self.write_back(&flushed, mapping, offset, len_bytes)?;
        self.fence(flushed, mapping)
    }

    /// [`Medium::fence_device`](crate::Medium::fence_device).
    #[inline]
    pub(crate) fn device<'a>(&self, flushed: impl FnOnce() -> Flushed<'a>) -> Option<u64> {
        match self {
            Self::Order | Self::Fence | Self::Lines(_) => None,
            Self::Sync(state) => Some(*state.device.get_or_init(|| flushed().device())),
            Self::Parts(parts) => PartFlush::device(parts),
        }
    }

    /// [`Memory::settle`](crate::Memory::settle) of a range of the mapping.
    pub(crate) fn settle(
        &self,
        flushed: &Flushed<'_>,
        mapping: &Mapping,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Settled, MemError> {
        let start = mapping.range(offset, len_bytes)?;
        let mut settled = Settled::default();
        match self {
            Self::Order => {}
            Self::Fence => {
                flushed.settle_metadata()?;
                persist_fence();
            }
            Self::Lines(instruction) => {
                flushed.settle_metadata()?;
                // SAFETY: the range was checked and stays mapped; the instruction was detected on this CPU.
                unsafe { write_back_lines(*instruction, start, len_bytes as usize) };
                persist_fence();
            }
            Self::Sync(state) => settled = state.settle(flushed, mapping, offset, len_bytes)?,
            Self::Parts(parts) => settled = PartFlush::settle(parts, mapping)?,
        }
        if mapping.has_failed() { Err(MemError::MediumFailed { path: flushed.path.into() }) } else { Ok(settled) }
    }
}

impl SyncState {
    /// That of a file just opened: a process that died may have left bytes in the page cache which nobody flushed.
    fn unknown(kind: MediumKind) -> Self {
        let is_host_cached = kind == MediumKind::VirtioPmem;
        Self {
            written: AtomicU64::new(1),
            turns: FlushTurns::default(),
            is_poisoned: AtomicBool::new(false),
            is_host_cached,
            choice: SyncChoice::default(),
            pending: PendingWrites::default(),
            device: OnceLock::new(),
            dirty_pages: DirtyPages::all(),
        }
    }

    /// Before the first write.
    pub(crate) fn set_choice(&mut self, choice: SyncChoice) {
        self.choice = choice;
    }

    fn start(&self, flushed: &Flushed<'_>, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        if self.is_poisoned.load(Ordering::Acquire) {
            return Err(flushed.poisoned());
        }
        let is_early =
            len_bytes >= EARLY_WRITE_MIN_BYTES || (len_bytes >= EARLY_WRITE_BUSY_MIN_BYTES && self.turns.is_flushing());
        if let Some(file) = flushed.file.filter(|_| is_early) {
            let file_offset = flushed.file_offset + (offset - flushed.mapping_offset);
            if let Err(error) = start_writing(file, file_offset, len_bytes) {
                self.is_poisoned.store(true, Ordering::Release);
                return Err(io_error("sync_file_range", flushed.path, POISON_MEND, error));
            }
        }
        if self.choice.needs_ranges() {
            self.pending.add(offset, len_bytes);
        }
        self.written.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn sync(&self, flushed: &Flushed<'_>, mapping: &Mapping) -> Result<(), MemError> {
        let wanted = self.written.load(Ordering::Acquire);
        let turn = self.turns.join(wanted);
        if self.is_poisoned.load(Ordering::Acquire) {
            return Err(flushed.poisoned());
        }
        let Some(turn) = turn else { return Ok(()) };
        // Everything written back so far is in the page cache, so this flush covers it.
        let covered = self.written.load(Ordering::Acquire);
        let outcome = match self.range_to_flush(mapping) {
            Some(range) => self.flush_range(flushed, mapping, &range),
            None => self.flush_whole(flushed),
        };
        match outcome {
            Ok(()) => {
                self.dirty_pages.end_flush();
                turn.covers(covered);
            }
            // The kernel reports a lost page once and then counts it as clean: no later flush can be trusted.
            Err(_) => self.is_poisoned.store(true, Ordering::Release),
        }
        outcome
    }

    /// The range that a fence may flush alone; `None` for the whole file.
    fn range_to_flush(&self, mapping: &Mapping) -> Option<Range<u64>> {
        if !self.choice.needs_ranges() {
            return None;
        }
        let Pending { range, write_count, len_bytes } = self.pending.take();
        let range = whole_units(&range?);
        // All is dirty before the first flush, since a process that died may have left bytes anywhere, and where more is than is remembered:
        // only a flush of the whole file lets short stores use pwrite(2) again.
        let is_chosen = self.choice.method(len_bytes, write_count) == SyncMethod::Msync;
        (is_chosen && !self.dirty_pages.is_all_dirty()).then(|| range.start..range.end.min(mapping.len_bytes()))
    }

    fn flush_whole(&self, flushed: &Flushed<'_>) -> Result<(), MemError> {
        self.dirty_pages.begin_flush();
        let outcome = flushed.file.map_or(Ok(()), flush_file);
        outcome.map_err(|errno| io_error("fdatasync", flushed.path, POISON_MEND, errno))
    }

    fn flush_range(&self, flushed: &Flushed<'_>, mapping: &Mapping, range: &Range<u64>) -> Result<(), MemError> {
        let Some(file) = flushed.file else { return Ok(()) };
        self.dirty_pages.begin_range_flush(range);
        Pages::new(*flushed, file, mapping, range.start, range.end - range.start)?.sync()
    }

    /// msync(2) has the kernel write only the range, however much of the rest of the file is dirty.
    fn sync_range(
        &self,
        flushed: &Flushed<'_>,
        mapping: &Mapping,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), MemError> {
        // The kernel reports a lost page to the first caller only: the turn keeps others from flushing meanwhile and trusting the file.
        let _turn = self.turns.take();
        if self.is_poisoned.load(Ordering::Acquire) {
            return Err(flushed.poisoned());
        }
        let Some(file) = flushed.file else { return Ok(()) };
        let pages = Pages::new(*flushed, file, mapping, offset, len_bytes)?;
        pages.sync().inspect_err(|_| self.is_poisoned.store(true, Ordering::Release))
    }

    fn settle(
        &self,
        flushed: &Flushed<'_>,
        mapping: &Mapping,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Settled, MemError> {
        let Some(file) = flushed.file else { return Ok(Settled::default()) };
        let failed = |errno| {
            self.is_poisoned.store(true, Ordering::Release);
            io_error("fdatasync", flushed.path, POISON_MEND, errno)
        };
        // The turn keeps others from flushing meanwhile: what they would vouch for is about to be dropped.
        let _turn = self.turns.take();
        // The kernel reports a failure once, and it may be of long ago. What is written then is on the disk if the second
        // says so, and what is lost is dropped below.
        let has_lost_writes = flush_file(file).is_err();
        if has_lost_writes {
            flush_file(file).map_err(failed)?;
        }
        let pages = Pages::new(*flushed, file, mapping, offset, len_bytes)?;
        let held_bytes = pages.drop_cached()?;
        let rewritten_bytes = if self.is_host_cached {
            // Whether the host has all of it on its disk cannot be known without writing.
            if mapping.is_writable() { pages.make_dirty() } else { 0 }
        } else if held_bytes > 0 {
            pages.drop_held()?
        } else {
            0
        };
        if rewritten_bytes > 0 {
            flush_file(file).map_err(failed)?;
        }
        Ok(Settled { has_lost_writes, rewritten_bytes })
    }
}

impl Flushed<'_> {
    /// An earlier user of a DAX file may have written it by system calls, or mapped it without `MAP_SYNC`.
    fn settle_metadata(&self) -> Result<(), MemError> {
        match self.file.map_or(Ok(()), flush_file) {
            // A devdax device has no fsync, and needs none.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(io_error("fdatasync", self.path, POISON_MEND, errno)),
        }
    }

    /// `st_dev` of the file; 0, which no device has, where there is no file or the kernel does not say.
    fn device(&self) -> u64 {
        self.file.and_then(|file| rustix::fs::fstat(file).ok()).map_or(0, |stat| stat.st_dev)
    }

    fn poisoned(&self) -> MemError {
        MemError::Poisoned { path: self.path.into() }
    }
}

/// The promise of a medium with this declaration. If the memory is kept but the caches are not, a store
/// by itself is not enough.
pub(crate) fn promise_of(
    judgement: &Judgement,
    level: Durability,
    declaration: Option<Declaration>,
) -> Option<Promise> {
    let promise = judgement.promise(level, declaration.is_some())?;
    let is_declared = promise.evidence == Evidence::Declared;
    match (promise.mechanism, declaration) {
        (Mechanism::Store | Mechanism::Fence, Some(Declaration::MemoryKept)) if is_declared => {
            CacheWriteBack::detect().map(|_| Promise { mechanism: Mechanism::CacheLineWriteBack, ..promise })
        }
        _ => Some(promise),
    }
}

fn flush_file(file: BorrowedFd<'_>) -> Result<(), Errno> {
    // Stores through the mapping marked their pages dirty, so fdatasync covers them (msync does the same by address).
    loop {
        match rustix::fs::fdatasync(file) {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// Has the kernel start to write a range; the fence does the rest.
fn start_writing(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // The range lies inside the file, so both fit.
    let [offset, len_bytes] = [offset, len_bytes].map(|bytes| libc::off64_t::try_from(bytes).unwrap_or(i64::MAX));
    // SAFETY: the call takes numbers only.
    let outcome = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len_bytes, flags) };
    if outcome == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error),
        _ => Ok(()),
    }
}
