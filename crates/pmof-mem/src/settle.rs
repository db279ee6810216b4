//! Makes a memory agree with its medium after an unclean end.
//!
//! A page whose write-back failed is clean to the kernel and stays in the page cache with bytes that the disk does not have
//! (fsync(2), "NOTES"; Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020). Comparing such pages, or
//! flushing them, proves nothing. So they are dropped, including those that another process holds if the disk has other bytes.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use rustix::{
    fs::{Advice as FileAdvice, Mode, OFlags},
    io::Errno,
    mm::{Advice, MsyncFlags, madvise, msync},
};

use crate::{
    MemError,
    file::io_error,
    flush::{Flushed, POISON_MEND},
    mapping::{Mapping, copy_out},
};

/// How often pages are dropped before those that remain count as held by another process. The kernel itself holds pages
/// briefly: in batches for its lists, and during read-ahead.
const DROPS_MAX: u32 = 6;

/// Before the second drop; each later wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(1);

/// Bytes whose residency is asked for at once: the answer takes a byte a page.
const ASKED_AT_ONCE_BYTES: usize = 1 << 30;

/// Bytes read from the disk at once, to be compared with pages that stayed.
const COMPARED_AT_ONCE_BYTES: usize = 1 << 20;

/// Smallest block of a disk, which direct writes are multiples of. Where blocks are larger the kernel refuses the end of a file.
const SECTOR_BYTES: usize = 512;

const DIRECT_MEND: &str = "stop other users of the file, so that its pages need not be compared with the disk";

/// What [`Memory::settle`](crate::Memory::settle) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// The kernel reported an earlier failed write-back. The bytes of the medium were kept.
    pub has_lost_writes: bool,
    /// Bytes of pages that had to be written to the medium again, since the cache could not be dropped without.
    pub rewritten_bytes: u64,
}

impl Settled {
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            has_lost_writes: self.has_lost_writes || other.has_lost_writes,
            rewritten_bytes: self.rewritten_bytes + other.rewritten_bytes,
        }
    }
}

/// A range of a file that is mapped: whole pages, as the kernel wants them named.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    flushed: Flushed<'a>,
    file: BorrowedFd<'a>,
    /// The range itself.
    first: *mut u8,
    /// The first page that has a byte of it.
    start: *mut u8,
    /// From there to the end of its last page.
    whole_bytes: usize,
    page_bytes: usize,
    is_writable: bool,
}

impl<'a> Pages<'a> {
    /// The bytes at `offset` of the mapping, which `file` lies under.
    pub(crate) fn new(
        flushed: Flushed<'a>,
        file: BorrowedFd<'a>,
        mapping: &Mapping,
        offset: u64,
        len_bytes: u64,
    ) -> Result<Self, MemError> {
        let first = mapping.range(offset, len_bytes)?;
        let page_bytes = rustix::param::page_size();
        let lead_bytes = first.addr() % page_bytes;
        let start = first.wrapping_sub(lead_bytes);
        let whole_bytes = (lead_bytes + len_bytes as usize).next_multiple_of(page_bytes);
        let is_writable = mapping.is_writable();
        Ok(Self { flushed, file, first, start, whole_bytes, page_bytes, is_writable })
    }

    /// Has the kernel write the pages to the disk, and returns when they are there.
    pub(crate) fn sync(&self) -> Result<(), MemError> {
        loop {
            // SAFETY: the range is whole pages of the mapping, which lives as long as `self`; no byte of it is changed.
            match unsafe { msync(self.start.cast(), self.whole_bytes, MsyncFlags::SYNC) } {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error("msync", self.flushed.path, POISON_MEND, errno)),
            }
        }
    }

    /// Drops the pages from the page cache; returns the bytes of those that stayed.
    pub(crate) fn drop_cached(&self) -> Result<u64, MemError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..DROPS_MAX {
            self.drop_once()?;
            if self.resident_bytes()? == 0 {
                return Ok(0);
            }
            std::thread::sleep(wait);
            wait *= 2;
        }
        self.drop_once()?;
        self.resident_bytes()
    }

    fn drop_once(&self) -> Result<(), MemError> {
        let path = self.flushed.path;
        // SAFETY: of a shared mapping of a file, this only forgets where the pages lie; the bytes are the file's. The range
        // is whole pages of the mapping, which lives as long as `self`.
        match unsafe { madvise(self.start.cast(), self.whole_bytes, Advice::LinuxDontNeed) } {
            // Locked in memory by the owner of borrowed memory: its pages stay.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(io_error("madvise", path, "", errno)),
        }
        let start_in_file = self.offset_in_file(self.start);
        let len_bytes = std::num::NonZeroU64::new(self.whole_bytes as u64);
        rustix::fs::fadvise(self.file, start_in_file, len_bytes, FileAdvice::DontNeed)
            .map_err(|errno| io_error("fadvise", path, "", errno))
    }

    fn resident_bytes(&self) -> Result<u64, MemError> {
        let mut resident_bytes = 0;
        self.for_each_resident(|_| resident_bytes += self.page_bytes as u64)?;
        Ok(resident_bytes)
    }

    /// Makes every page dirty without changing it; returns their bytes.
    pub(crate) fn make_dirty(&self) -> u64 {
        assert!(self.is_writable, "a mapping for reading is not written to");
        for at in (0..self.whole_bytes).step_by(self.page_bytes) {
            // The loan of borrowed memory may begin in the middle of a page.
            let byte = self.start.wrapping_add(at).max(self.first);
            // SAFETY: a byte of the range, which is mapped and writable as `self` was made; atomic, as all access is.
            make_dirty(unsafe { AtomicU8::from_ptr(byte) });
        }
        self.whole_bytes as u64
    }

    /// Compares the pages that stayed in the page cache with the disk, by direct reads. Where they differ, the disk's bytes are
    /// written to it once more, directly: that drops the page for every holder, which nothing else does. Returns the
    /// bytes written.
    ///
    /// To write the page's own bytes, by making it dirty, is not enough: after a failed write-back into an extent that ext4
    /// has not marked as written, a later one of the same page succeeds and leaves the mark out, so that reads of the disk
    /// give zeros.
    pub(crate) fn drop_held(&self) -> Result<u64, MemError> {
        let (mut held, mut rewritten_bytes, mut unverified_bytes) = (Vec::new(), 0, 0);
        self.for_each_resident(|page| held.push(page))?;
        let access = if self.is_writable { OFlags::RDWR } else { OFlags::RDONLY };
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = access | OFlags::DIRECT | OFlags::CLOEXEC;
        let Ok(direct) = rustix::fs::openat(rustix::fs::CWD, name, flags, Mode::empty()) else {
            return Err(self.unverified((held.len() * self.page_bytes) as u64));
        };
        let mut buffer = vec![0; COMPARED_AT_ONCE_BYTES + self.page_bytes];
        let lead_bytes = buffer.as_ptr().addr().wrapping_neg() % self.page_bytes;
        let aligned = &mut buffer[lead_bytes..][..COMPARED_AT_ONCE_BYTES];
        let follows = |one: &*mut u8, next: &*mut u8| next.addr() == one.addr() + self.page_bytes;
        for run in held.chunk_by(follows).flat_map(|run| run.chunks(COMPARED_AT_ONCE_BYTES / self.page_bytes)) {
            let on_disk = self.read_directly(&direct, run[0], &mut aligned[..run.len() * self.page_bytes])?;
            let differing: Vec<_> = run
                .iter()
                .zip(on_disk.chunks(self.page_bytes))
                .filter(|(page, on_disk)| !self.shows(**page, on_disk))
                .map(|(page, on_disk)| (*page, on_disk.to_vec()))
                .collect();
            for (page, on_disk) in differing {
                let own = &mut aligned[..self.page_bytes];
                own[..on_disk.len()].copy_from_slice(&on_disk);
                let is_written = self.is_writable && self.write_directly(&direct, page, &own[..on_disk.len()])?;
                if is_written && self.shows(page, self.read_directly(&direct, page, own)?) {
                    rewritten_bytes += self.page_bytes as u64;
                } else {
                    unverified_bytes += self.page_bytes as u64;
                }
            }
        }
        if unverified_bytes > 0 { Err(self.unverified(unverified_bytes)) } else { Ok(rewritten_bytes) }
    }

    /// Whether the page, one that `for_each_resident` named, begins with these bytes.
    fn shows(&self, page: *mut u8, bytes: &[u8]) -> bool {
        debug_assert!(page >= self.start && bytes.len() <= self.page_bytes, "a page of the range");
        let mut shown = vec![0; bytes.len()];
        // SAFETY: the page lies in the range, which stays mapped as long as `self` lives; `bytes` ends where its file does.
        unsafe { copy_out(page, &mut shown) };
        shown == bytes
    }

    /// What the disk has of the pages from `page` on, as far as the file goes. `aligned`: whole pages, at the address of one.
    fn read_directly<'b>(&self, direct: &OwnedFd, page: *mut u8, aligned: &'b mut [u8]) -> Result<&'b [u8], MemError> {
        let mut read_bytes = 0;
        while read_bytes < aligned.len() {
            let at = self.offset_in_file(page) + read_bytes as u64;
            match rustix::io::pread(direct, &mut aligned[read_bytes..], at) {
                Ok(0) => break,
                Ok(count) => read_bytes += count,
                Err(Errno::INTR) => {}
                // The end of the file may lie inside a block, behind which no read can begin.
                Err(Errno::INVAL) if read_bytes > 0 => break,
                Err(errno) => return Err(io_error("pread", self.flushed.path, DIRECT_MEND, errno)),
            }
        }
        Ok(&aligned[..read_bytes])
    }

    /// Writes bytes of one page, which drops it. False where the file ends in the page's first block.
    fn write_directly(&self, direct: &OwnedFd, page: *mut u8, bytes: &[u8]) -> Result<bool, MemError> {
        // Of the block with the file's end, nothing can be written this way; it is dropped with the rest of its page.
        let bytes = &bytes[..bytes.len() - bytes.len() % SECTOR_BYTES];
        let mut written_bytes = 0;
        while written_bytes < bytes.len() {
            let at = self.offset_in_file(page) + written_bytes as u64;
            match rustix::io::pwrite(direct, &bytes[written_bytes..], at) {
                Ok(0) => return Ok(false),
                Ok(count) => written_bytes += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error("pwrite", self.flushed.path, DIRECT_MEND, errno)),
            }
        }
        Ok(!bytes.is_empty())
    }

    fn offset_in_file(&self, page: *mut u8) -> u64 {
        self.flushed.file_offset + page.addr() as u64 - self.first.addr() as u64
    }

    fn unverified(&self, len_bytes: u64) -> MemError {
        MemError::Unverified { path: self.flushed.path.into(), len_bytes }
    }

    /// Calls `visit` with the address of each page that a read would find in the page cache.
    fn for_each_resident(&self, mut visit: impl FnMut(*mut u8)) -> Result<(), MemError> {
        let mut answers = vec![0_u8; self.whole_bytes.min(ASKED_AT_ONCE_BYTES) / self.page_bytes];
        let mut done = 0;
        while done < self.whole_bytes {
            let len_bytes = (self.whole_bytes - done).min(ASKED_AT_ONCE_BYTES);
            let start = self.start.wrapping_add(done);
            // SAFETY: the kernel writes a byte for each page of the range, which `answers` has room for.
            if unsafe { libc::mincore(start.cast(), len_bytes, answers.as_mut_ptr()) } != 0 {
                let error = io::Error::last_os_error();
                // The kernel is short of something for a moment.
                if error.raw_os_error() == Some(libc::EAGAIN) {
                    continue;
                }
                return Err(io_error("mincore", self.flushed.path, "", error));
            }
            for (index, _) in answers[..len_bytes / self.page_bytes].iter().enumerate().filter(|(_, is)| **is & 1 != 0)
            {
                visit(start.wrapping_add(index * self.page_bytes));
            }
            done += len_bytes;
        }
        Ok(())
    }
}

/// Stores what is there. Of the idempotent operations only compare-and-swap is sure to become a store: compilers turn the
/// others into loads.
fn make_dirty(byte: &AtomicU8) {
    let mut found = byte.load(Ordering::Relaxed);
    while let Err(newer) = byte.compare_exchange_weak(found, found, Ordering::SeqCst, Ordering::Relaxed) {
        found = newer;
    }
}

#[cfg(test)]
mod tests;
