//! The real medium: memory mapped from the kernel, a file or a device.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    io::{Errno, pwrite},
    process::{Resource, getrlimit},
};

use crate::{
    Declaration, Durability, Medium, MediumKind, MemError, Promise, Settled, SyncChoice, System,
    dirty_pages::{Storing, UNIT_BYTES},
    file::{NO_PATH, Opened, create_whole, inspect, io_error, map_error, open_existing, seal_memory, unnamed_memory},
    flush::{Flush, Flushed, promise_of},
    forks::Process,
    handout::{HandOut, Handed},
    judge::{Judgement, judge_devdax, judge_file},
    mapping::{Addresses, Mapping, STREAM_MIN_BYTES},
    part_flush::PartFlush,
    socket,
};

/// The longest medium: mmap, file offsets and pointer arithmetic are all bounded by it.
pub const LEN_BYTES_MAX: u64 = i64::MAX as u64;

/// Stores of at most so many bytes to clean pages of files behind the page cache use pwrite(2), which takes no page fault. No more, since the
/// kernel may keep what a longer one stores in a folio that reaches beyond the unit of [`DirtyPages`](crate::dirty_pages::DirtyPages).
const PWRITE_MAX_BYTES: usize = UNIT_BYTES as usize;

/// Memory that the kernel mapped, with what its medium can promise. Unmapped on drop.
///
/// For files the kernel is asked for `MAP_SYNC` first; where it grants it, the file lies on DAX and cache-line write-back
/// makes bytes durable; otherwise fdatasync does. Every answer that a promise relies on is in [`evidence`](Self::evidence).
///
/// If a page cannot be loaded, because the file was truncated or its device cannot read it, the kernel sends `SIGBUS`. A
/// handler, which the first mapping of a file installs for the process, makes it an error of the memory: `MediumFailed`, for this
/// and every later operation on it. It forwards other signals to the previous handler; a program that installs its own
/// later must forward them too, or such a page kills it. [Borrowed](Self::borrow) memory is the owner's responsibility in this too.
#[derive(Debug)]
pub struct Memory {
    mapping: Mapping,
    /// Behind the mapping, which ends first.
    lock: OnceLock<Option<HeldLock>>,
    path: PathBuf,
    file: Option<OwnedFd>,
    /// Where the memory begins in the file, in bytes.
    file_offset: u64,
    judgement: Judgement,
    declaration: Option<Declaration>,
    flush: Flush,
    /// Short stores to clean pages use pwrite(2).
    uses_pwrite: bool,
    handed: Handed,
    /// Bytes that the kernel keeps in memory.
    kept_bytes: AtomicU64,
}

/// Bytes that are kept in memory at once, at most. In single pages they split the mapping 16,384 times, and a process has 65,530 mappings (`vm.max_map_count`).
const KEPT_BYTES_MAX: u64 = 32 << 20;

/// The `flock` of a file, which ends here, whoever has copies of the descriptor. In a child it is the parent's.
#[derive(Debug)]
struct HeldLock {
    file: OwnedFd,
    process: Process,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.process.is_current() {
            // What cannot be unlocked is so when the last copy of the descriptor is closed.
            let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
        }
    }
}

/// Addresses that stay mapped behind the drop of their [`Memory`]: [`Memory::hold_addresses`].
#[derive(Debug)]
#[must_use]
pub struct HeldAddresses(#[expect(dead_code, reason = "it is there to be dropped")] Arc<Addresses>);

impl Memory {
    /// Zeroed memory of this process. Promises [`Durability::Visible`] and nothing more.
    ///
    /// `len_bytes`: 1 to [`LEN_BYTES_MAX`]. Errors: `BadLength`; `NoSpace` where the kernel has no memory for it.
    pub fn anonymous(len_bytes: u64) -> Result<Self, MemError> {
        check_len(len_bytes)?;
        let mapping = Mapping::anonymous(len_bytes as usize).map_err(|error| {
            if error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) {
                return MemError::NoSpace { path: NO_PATH.into(), len_bytes };
            }
            io_error("mmap", NO_PATH.as_ref(), "", error)
        })?;
        Ok(Self::assemble(NO_PATH.into(), None, mapping, Judgement::anonymous(), None))
    }

    /// Zeroed memory that other processes can map too, once they are handed [`file`](Self::file): a memfd, whose length is
    /// fixed. It has no name, so it dies with the last process that holds it, and promises [`Durability::Visible`] and
    /// nothing more. `sealed`: only this mapping can ever change it, whatever is done with the descriptor
    /// (`F_SEAL_FUTURE_WRITE`).
    ///
    /// `len_bytes`: 1 to [`LEN_BYTES_MAX`]. Errors: `BadLength`, `NoSpace`, `Io`.
    pub fn shared_anonymous(len_bytes: u64, sealed: bool) -> Result<Self, MemError> {
        check_len(len_bytes)?;
        let path = Path::new(NO_PATH);
        let fd = unnamed_memory(len_bytes)?;
        let mapping = Mapping::of_file(fd.as_fd(), len_bytes as usize, true, false)
            .map_err(|error| io_error("mmap", path, "", error))?;
        // Sealed from here on, so that only the existing mapping may write.
        seal_memory(fd.as_fd(), sealed)?;
        Ok(Self::assemble(path.into(), Some(fd), mapping, Judgement::anonymous(), None))
    }

    /// Maps all of an open file or devdax device that another process passed on, judged as by [`open`](Self::open). A file
    /// without a name (a memfd, an unlinked file) promises what anonymous memory does. `path` is for messages.
    ///
    /// Errors: as for `open`; `Io` (`EACCES`, `EPERM`) where the descriptor does not allow what `writable` asks for.
    pub fn from_file(
        fd: OwnedFd,
        path: &Path,
        writable: bool,
        declaration: Option<Declaration>,
    ) -> Result<Self, MemError> {
        let system = System::real();
        let (opened, is_named) = inspect(&system, path, fd)?;
        if is_named {
            return Self::of(&system, path, opened, writable, declaration);
        }
        let Opened { fd, len_bytes, .. } = opened;
        check_len(len_bytes)?;
        let mapping = Mapping::of_file(fd.as_fd(), len_bytes as usize, writable, false)
            .map_err(|error| io_error("mmap", path, "the descriptor must allow it", error))?;
        Ok(Self::assemble(path.into(), Some(fd), mapping, Judgement::anonymous(), None))
    }

    /// Creates the file `path` (mode 0600, never an existing one, never through a link) with all its space allocated, and
    /// maps it. File and name survive loss of power when this returns. On an error no file is left behind.
    ///
    /// Behind the page cache, the first write to each allocated block also commits the file system's journal at the next
    /// fence; later writes do not. A benchmark writes the range once before it measures.
    ///
    /// `len_bytes`: 1 to [`LEN_BYTES_MAX`]. Errors: `BadLength`, `NoSpace`, `Io` (`EEXIST` if there is a file).
    pub fn create(path: &Path, len_bytes: u64, declaration: Option<Declaration>) -> Result<Self, MemError> {
        check_len(len_bytes)?;
        let (fd, unfinished) = create_whole(path, len_bytes)?;
        let memory = Self::of(&System::real(), path, Opened { fd, len_bytes, devdax: None }, true, declaration)?;
        unfinished.keep();
        Ok(memory)
    }

    /// Maps all of an existing regular file or devdax device.
    ///
    /// Errors: `Unsuitable` for anything else, for links, empty files, and files with fewer blocks than bytes (a store to
    /// a hole dies when the disk is full); `Io`.
    pub fn open(path: &Path, declaration: Option<Declaration>) -> Result<Self, MemError> {
        let system = System::real();
        Self::of(&system, path, open_existing(&system, path, true)?, true, declaration)
    }

    /// As [`open`](Self::open), but every change is refused with `ReadOnly`.
    pub fn open_read_only(path: &Path, declaration: Option<Declaration>) -> Result<Self, MemError> {
        let system = System::real();
        Self::of(&system, path, open_existing(&system, path, false)?, false, declaration)
    }

    /// The file, for locks and for handing over; `None` for private anonymous memory, and for memory of
    /// [several files](Self::concatenate).
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Has the drop of this memory release the `flock` of its file, which the caller has taken. The end of the descriptor alone releases it only when no child of
    /// this process has a copy of that. Does nothing where the memory has no file of its own.
    pub fn unlock_when_dropped(&self) {
        self.lock.get_or_init(|| {
            let file = rustix::io::fcntl_dupfd_cloexec(self.file()?, 0).ok()?;
            Some(HeldLock { file, process: Process::current() })
        });
    }

    /// Keeps a range in memory until it is [let go](Self::let_go), so that what is read of it is what was stored, and not what a medium gave back. False: the kernel refuses
    /// (`RLIMIT_MEMLOCK`), or 32 MiB are kept, and nothing is. Memory that is its own medium, or has none, has nothing to be loaded from.
    pub fn keep_resident(&self, offset: u64, len_bytes: u64) -> bool {
        if !self.may_be_loaded_again() {
            return true;
        }
        let is_kept = self.kept_bytes.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes <= KEPT_BYTES_MAX
            && self.mapping.lock(offset, len_bytes);
        if !is_kept {
            self.kept_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
        }
        is_kept
    }

    /// A range that is kept, or a part of one, may leave memory again.
    pub fn let_go(&self, offset: u64, len_bytes: u64) {
        if self.may_be_loaded_again() {
            self.mapping.unlock(offset, len_bytes);
            self.kept_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
        }
    }

    /// Whether the kernel may drop a page and load it from the medium later.
    fn may_be_loaded_again(&self) -> bool {
        matches!(self.kind(), MediumKind::PageCache | MediumKind::VirtioPmem)
    }

    /// Decides what is known of processes that get the file from now on.
    pub fn hand_out(&self, how: HandOut) {
        self.handed.hand_out(how);
    }

    /// A descriptor by which another process may map the memory's file for writing.
    ///
    /// # Errors
    /// Where there is no file, or none of the locks that [`hand_out`](Self::hand_out) asks for.
    pub fn file_for_writers(&self) -> io::Result<OwnedFd> {
        self.handed.file_for_writers(self.file().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?)
    }

    /// Closes this process's own descriptor of what was handed out: [`is_mapped_for_writing`](crate::is_mapped_for_writing) speaks of others from
    /// now on.
    pub fn close_handed_out(&self) {
        self.handed.close();
    }

    /// Ends the locks of what was handed out, whatever still has it mapped: nothing changes the file through that any more.
    pub fn take_back(&self) {
        self.handed.take_back(self.file());
    }

    /// Where the memory begins in its file, in bytes: 0 unless it was [borrowed](Self::borrow) or is a
    /// [part](Self::concatenate) of one.
    pub fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// The virtual address of the first byte in this process, fixed until the drop.
    pub fn address(&self) -> u64 {
        self.mapping.address()
    }

    /// Keeps the addresses from everything else until the result is dropped, for a device that may still have an access under way
    /// when the memory is. From the memory's drop on, what is stored there goes nowhere and what is read there is arbitrary: the file is let go
    /// of, with its lock. `None` of [borrowed](Self::borrow) memory, whose owner chooses what is mapped there.
    pub fn hold_addresses(&self) -> Option<HeldAddresses> {
        self.mapping.addresses().map(HeldAddresses)
    }

    /// True if the memory was mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.mapping.is_writable()
    }

    /// What the operator declared when it was opened.
    pub fn declaration(&self) -> Option<Declaration> {
        self.declaration
    }

    /// Sets the path for messages: for a file that was opened by a path that means nothing to an operator.
    #[must_use]
    pub fn named(self, path: PathBuf) -> Self {
        Self { path, ..self }
    }

    /// Has fences flush the file by the calls that `choice` names, where they are durable by rule for it; otherwise, as without this, by
    /// `fdatasync`. It changes how long a fence takes, and nothing that a fence promises. No effect on memory of several files, and on memory that is not flushed by the kernel.
    #[must_use]
    pub fn synced_by(mut self, choice: SyncChoice) -> Self {
        let kind = self.judgement.kind;
        let device = self.file().and_then(|file| rustix::fs::fstat(file).ok()).map(|stat| stat.st_dev);
        if let (Flush::Sync(state), Some(device), false) = (&mut self.flush, device, self.mapping.is_borrowed()) {
            state.set_choice(choice.for_file(kind, &self.judgement.file_system, device));
        }
        self
    }

    /// The path as given, or that of the first of several files; `(anonymous)` if there is none.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the file system, as the kernel calls it; `none` for devices and anonymous memory.
    pub fn file_system(&self) -> &str {
        &self.judgement.file_system
    }

    /// What the kernel was asked about the medium and what it answered, one sentence each.
    pub fn evidence(&self) -> &[String] {
        &self.judgement.evidence
    }

    /// Makes the memory agree with its medium: on success, everything that is read from now on is on the medium
    /// (in the sense of [`PowerFailure`](Durability::PowerFailure)), until something is stored. For the first opening after
    /// an unclean end (a crash, a failed flush) and before every comparison; there must be no concurrent stores.
    ///
    /// - Page cache: flushes, then drops the file's pages, so that they are read from the disk. Pages that another
    ///   mapping holds are compared with the disk by direct reads, and dropped by direct writes where they differ. So bytes
    ///   whose write-back failed earlier are gone: no receipt names them.
    /// - virtio-pmem: the cache is the host's and cannot be dropped, so every page is written again and flushed.
    ///   Memory that was opened for reading cannot do that: there, what the host lost is not seen.
    /// - DAX, and tmpfs whose operator declared that memory is kept: every line is written back.
    /// - tmpfs and anonymous memory: nothing to do, since nothing else is promised.
    ///
    /// A disk that lost writes from its own cache is not detected. This costs about 20 ns per page, and reading the file again.
    /// The medium stays poisoned if it was: the writer of the lost bytes must be told.
    ///
    /// Errors: `Io` where the flush fails (after which the medium is poisoned); `Unverified` where pages that stay in
    /// the page cache differ from the disk and the memory was opened for reading only, or the file system has no direct
    /// reads and writes to compare and mend them by.
    pub fn settle(&self) -> Result<Settled, MemError> {
        self.settle_range(0, self.mapping.len_bytes())
    }

    /// [`settle`](Self::settle) of `len_bytes` bytes at `offset`: all of the file is flushed, and only these pages are read again. Memory of
    /// several files is settled as a whole.
    pub fn settle_range(&self, offset: u64, len_bytes: u64) -> Result<Settled, MemError> {
        self.flush.settle(&self.flushed(), &self.mapping, offset, len_bytes)
    }

    /// The error for a caller that needs `wanted` and has no promise for it; it says what would provide it.
    pub fn not_durable(&self, wanted: Durability) -> MemError {
        let medium = format!("{} ({}, file system {})", self.path.display(), self.kind(), self.file_system());
        let mend = self.judgement.mend().unwrap_or_else(|| format!("it gives {}", Durability::PowerFailure));
        MemError::NotDurable { wanted, medium, mend }
    }

    pub(crate) fn of(
        system: &System,
        path: &Path,
        opened: Opened,
        writable: bool,
        declaration: Option<Declaration>,
    ) -> Result<Self, MemError> {
        let Opened { fd, len_bytes, devdax } = opened;
        check_len(len_bytes)?;
        let map = |sync| Mapping::of_file(fd.as_fd(), len_bytes as usize, writable, sync);
        let failed = |error| map_error(path, error);
        let (mapping, judgement) = if let Some(directory) = devdax {
            (map(false).map_err(failed)?, judge_devdax(system, &directory))
        } else {
            let (mapping, map_sync) = match map(true) {
                Ok(mapping) => (mapping, true),
                Err(error) if refuses_map_sync(&error) => (map(false).map_err(failed)?, false),
                Err(error) => return Err(failed(error)),
            };
            let judgement = judge_file(system, path, fd.as_fd(), map_sync);
            (mapping, judgement.map_err(|error| io_error("statfs", path, "", error))?)
        };
        Ok(Self::assemble(path.into(), Some(fd), mapping, judgement, declaration))
    }

    pub(crate) fn assemble(
        path: PathBuf,
        file: Option<OwnedFd>,
        mapping: Mapping,
        judgement: Judgement,
        declaration: Option<Declaration>,
    ) -> Self {
        let flush = Flush::of(&judgement, declaration);
        Self::assemble_with(path, file, mapping, judgement, declaration, flush)
    }

    pub(crate) fn assemble_with(
        path: PathBuf,
        file: Option<OwnedFd>,
        mut mapping: Mapping,
        judgement: Judgement,
        declaration: Option<Declaration>,
        flush: Flush,
    ) -> Self {
        let is_cached = judgement.kind == MediumKind::PageCache && mapping.is_writable();
        if is_cached {
            mapping.load_pages();
        }
        // Whoever owns borrowed memory stores to it unseen. And pwrite(2) beyond a limit of file sizes kills the process, within the file too.
        let has_limit = || getrlimit(Resource::Fsize).current.is_some();
        let uses_pwrite = is_cached && !mapping.is_borrowed() && !has_limit();
        Self {
            mapping,
            path,
            file,
            file_offset: 0,
            judgement,
            declaration,
            flush,
            uses_pwrite,
            kept_bytes: AtomicU64::new(0),
            lock: OnceLock::new(),
            handed: Handed::default(),
        }
    }

    /// The same memory, which is a part of its file.
    pub(crate) fn at_file_offset(self, file_offset: u64) -> Self {
        Self { file_offset, ..self }
    }

    /// Fails if a page could not be loaded. Called after the access, which is when this is known.
    #[inline]
    fn check_loaded(&self) -> Result<(), MemError> {
        if self.mapping.has_failed() { Err(self.medium_failed()) } else { Ok(()) }
    }

    #[cold]
    fn medium_failed(&self) -> MemError {
        MemError::MediumFailed { path: self.path.clone() }
    }

    /// Has the kernel load all pages of a range, to be read or to be changed, without touching them: `MediumFailed` where it cannot,
    /// since they are mapped no more or lie beyond the end of their file. Kernels before 5.14 and mappings of devices do not say.
    pub(crate) fn check_there(&self, offset: u64, len_bytes: u64, to_change: bool) -> Result<(), MemError> {
        let start = self.mapping.range(offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let into_page = start.addr() % rustix::param::page_size();
        let advice = if to_change { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        loop {
            // SAFETY: brings in pages of the range as a touch of each would, where there are any, and changes nothing else.
            let answer =
                unsafe { libc::madvise(start.wrapping_sub(into_page).cast(), len_bytes as usize + into_page, advice) };
            if answer == 0 {
                return Ok(());
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                Some(libc::ENOMEM | libc::EFAULT | libc::EHWPOISON) => return Err(self.medium_failed()),
                // It does not know: the touch will tell.
                _ => return Ok(()),
            }
        }
    }

    fn check_writable(&self) -> Result<(), MemError> {
        if self.mapping.is_writable() { Ok(()) } else { Err(MemError::ReadOnly { path: self.path.clone() }) }
    }

    /// Stores a short range of clean pages by pwrite(2). False, and nothing is stored, where that cannot be or may tear words.
    fn store_by_pwrite(&self, offset: u64, bytes: &[u8]) -> Result<bool, MemError> {
        let (Flush::Sync(state), Some(file)) = (&self.flush, &self.file) else { return Ok(false) };
        if !self.uses_pwrite || bytes.len() > PWRITE_MAX_BYTES {
            return Ok(false);
        }
        // Past the end of a file that was truncated pwrite(2) would extend it.
        self.touch(offset, bytes.len() as u64)?;
        let file_offset = self.file_offset + offset;
        let write = || pwrite(file, bytes, file_offset);
        let written = state.dirty_pages.write_clean(file_offset, bytes.len() as u64, write);
        // A store through the mapping tells of what else went wrong.
        Ok(written == Some(Ok(bytes.len())))
    }

    /// To be held during a store through the mapping.
    fn begin_store(&self, offset: u64, len_bytes: u64) -> Option<Storing<'_>> {
        match &self.flush {
            Flush::Sync(state) if self.uses_pwrite => {
                Some(state.dirty_pages.begin_store(self.file_offset + offset, len_bytes))
            }
            _ => None,
        }
    }

    fn is_dax(&self) -> bool {
        matches!(self.judgement.kind, MediumKind::FsDax | MediumKind::DevDax)
    }

    pub(crate) fn flush_means(&self) -> &Flush {
        &self.flush
    }

    pub(crate) fn is_borrowed(&self) -> bool {
        self.mapping.is_borrowed()
    }

    #[cfg(test)]
    pub(crate) fn flush_mut(&mut self) -> &mut Flush {
        &mut self.flush
    }

    fn flushed(&self) -> Flushed<'_> {
        Flushed { path: &self.path, file: self.file(), file_offset: self.file_offset, mapping_offset: 0 }
    }
}

impl Medium for Memory {
    fn len_bytes(&self) -> u64 {
        self.mapping.len_bytes()
    }

    fn kind(&self) -> MediumKind {
        self.judgement.kind
    }

    fn promise(&self, level: Durability) -> Option<Promise> {
        promise_of(&self.judgement, level, self.declaration)
    }

    fn promise_in(&self, level: Durability, offset: u64, len_bytes: u64) -> Option<Promise> {
        match &self.flush {
            Flush::Parts(parts) if len_bytes > 0 => {
                PartFlush::promise(parts, offset, len_bytes, |part| promise_of(part, level, self.declaration))
            }
            _ => self.promise(level),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), MemError> {
        self.mapping.read(offset, into)?;
        self.check_loaded()
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), MemError> {
        self.check_writable()?;
        if self.is_dax() && bytes.len() >= STREAM_MIN_BYTES {
            self.mapping.store_streaming(offset, bytes)?;
        } else if !self.store_by_pwrite(offset, bytes)? {
            let _storing = self.begin_store(offset, bytes.len() as u64);
            self.mapping.store(offset, bytes)?;
        }
        self.check_loaded()
    }

    fn receive(&self, fd: BorrowedFd<'_>, offset: u64, len_bytes: u64, tail: &mut [u8]) -> io::Result<usize> {
        let start = self.mapping.range(offset, len_bytes).map_err(invalid_input)?;
        if len_bytes > 0 {
            self.check_writable().map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        }
        let parts = [(start, len_bytes as usize), (tail.as_mut_ptr(), tail.len())];
        let _storing = self.begin_store(offset, len_bytes);
        // SAFETY: the range was checked and stays mapped while `self` is borrowed; `tail` is borrowed exclusively.
        let received = self.mapping.call(|| unsafe { socket::receive(fd, parts) });
        received.unwrap_or_else(|| Err(io::Error::other(self.medium_failed())))
    }

    fn send(&self, fd: BorrowedFd<'_>, head: &[u8], offset: u64, len_bytes: u64, tail: &[u8]) -> io::Result<usize> {
        let start = self.mapping.range(offset, len_bytes).map_err(invalid_input)?;
        let parts = [
            (head.as_ptr().cast_mut(), head.len()),
            (start, len_bytes as usize),
            (tail.as_ptr().cast_mut(), tail.len()),
        ];
        // SAFETY: the range was checked and stays mapped while `self` is borrowed; the slices are only read from.
        let sent = self.mapping.call(|| unsafe { socket::send(fd, parts) });
        sent.unwrap_or_else(|| Err(io::Error::other(self.medium_failed())))
    }

    fn atomic_store(&self, offset: u64, value: u64) -> Result<(), MemError> {
        self.check_writable()?;
        let _storing = self.begin_store(offset, 8);
        self.mapping.atomic(offset)?.store(value.to_le(), Ordering::SeqCst);
        self.check_loaded()
    }

    fn compare_and_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, MemError> {
        self.check_writable()?;
        let _storing = self.begin_store(offset, 8);
        let word = self.mapping.atomic(offset)?;
        let found = word.compare_exchange(expected.to_le(), new.to_le(), Ordering::SeqCst, Ordering::SeqCst);
        self.check_loaded()?;
        Ok(u64::from_le(found.unwrap_or_else(|found| found)))
    }

    fn fetch_and_add(&self, offset: u64, addend: u64) -> Result<u64, MemError> {
        self.check_writable()?;
        let _storing = self.begin_store(offset, 8);
        let word = self.mapping.atomic(offset)?;
        let add = |stored: u64| u64::from_le(stored).wrapping_add(addend).to_le();
        let mut found = word.load(Ordering::SeqCst);
        while let Err(newer) = word.compare_exchange_weak(found, add(found), Ordering::SeqCst, Ordering::SeqCst) {
            found = newer;
        }
        self.check_loaded()?;
        Ok(u64::from_le(found))
    }

    fn write_back(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.flush.write_back(|| self.flushed(), &self.mapping, offset, len_bytes)?;
        self.check_loaded()
    }

    fn fence(&self) -> Result<(), MemError> {
        self.flush.fence(|| self.flushed(), &self.mapping)?;
        self.check_loaded()
    }

    fn sync_range(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.flush.sync_range(|| self.flushed(), &self.mapping, offset, len_bytes)?;
        self.check_loaded()
    }

    fn fence_device(&self) -> Option<u64> {
        self.flush.device(|| self.flushed())
    }

    fn crc32c(&self, offset: u64, len_bytes: u64) -> Result<u32, MemError> {
        let crc = self.mapping.crc32c(offset, len_bytes)?;
        self.check_loaded()?;
        Ok(crc)
    }

    fn touch(&self, offset: u64, len_bytes: u64) -> Result<(), MemError> {
        self.mapping.touch(offset, len_bytes)?;
        self.check_loaded()
    }

    fn memory(&self) -> Option<&Memory> {
        Some(self)
    }
}

pub(crate) fn check_len(len_bytes: u64) -> Result<(), MemError> {
    let why = match len_bytes {
        0 => "there must be at least one byte",
        1..=LEN_BYTES_MAX => return Ok(()),
        _ => "the largest file and mapping is 2^63 - 1 bytes",
    };
    Err(MemError::BadLength { len_bytes, why })
}

fn invalid_input(error: MemError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// `EOPNOTSUPP` from files that are not on DAX; `EINVAL` from kernels before 4.15.
pub(crate) fn refuses_map_sync(error: &io::Error) -> bool {
    let refusals = [Errno::OPNOTSUPP, Errno::INVAL];
    refusals.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod instructions;
#[cfg(test)]
mod tests;
