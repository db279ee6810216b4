//! Whether the calls that flush files reach the kernel. A filter of system calls (seccomp(2)) may answer in its place: container
//! managers install filters in which fsync, fdatasync and msync return 0 and do nothing.
//!
//! Each call is made with an argument that the kernel refuses. A filter that looks at arguments can pass that on, so in a
//! thread that has a filter an effect is looked for as well: a page that is written to a file without a name is dirty before
//! the call and on the disk after it. Both are seen for that page alone, so nothing that others write can be taken for it,
//! as it could by the disk's counters.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use pmof_locks::Mutex;
use rustix::{
    fs::FallocateFlags,
    io::pwrite,
    mm::{MsyncFlags, msync},
};

use crate::{
    extents::is_written,
    file::{named_file, unnamed_file},
    mapping::Mapping,
    mounts::OVERLAY_MAGIC,
};

/// The calls that promises rest on. `sync_file_range` is none: the flush behind it does its work too.
const CALLS: [Call; 3] = [Call::Fdatasync, Call::Fsync, Call::Msync];

/// The kernel may write a page by itself before it is looked at; then another file is tried.
const TRIES: usize = 5;

/// `cachestat(2)`, Linux 6.5: the same number on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// The file systems (`st_dev`) on which this process has seen every call work.
static SEEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// What keeps the flushes of this thread from being believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unflushed {
    /// A sentence.
    pub(crate) why: String,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Fdatasync,
    Fsync,
    Msync,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Fdatasync => "fdatasync",
            Self::Fsync => "fsync",
            Self::Msync => "msync",
        }
    }

    /// Whether the call fails where the kernel says that it must.
    fn is_refused(self) -> bool {
        let (errno, outcome) = match self {
            // SAFETY: the call takes a number, which is no descriptor.
            Self::Fdatasync => (libc::EBADF, unsafe { libc::syscall(libc::SYS_fdatasync, -1) }),
            // SAFETY: the call takes a number, which is no descriptor, and touches no memory.
            Self::Fsync => (libc::EBADF, unsafe { libc::syscall(libc::SYS_fsync, -1) }),
            // SAFETY: the call changes no byte, and the range is empty.
            Self::Msync => (libc::EINVAL, unsafe { libc::syscall(libc::SYS_msync, 1, 0, libc::MS_SYNC) }),
        };
        outcome == -1 && io::Error::last_os_error().raw_os_error() == Some(errno)
    }

    /// Flushes one page of a file.
    fn flush(self, file: BorrowedFd<'_>, page: *mut u8, page_bytes: usize) -> io::Result<()> {
        match self {
            Self::Fdatasync => rustix::fs::fdatasync(file)?,
            Self::Fsync => rustix::fs::fsync(file)?,
            // SAFETY: `page` lies in the mapping of `see_once`, which holds it until this returns; msync changes no byte.
            Self::Msync => unsafe { msync(page.cast(), page_bytes, MsyncFlags::SYNC)? },
        }
        Ok(())
    }
}

/// Checks the calls of this thread for a file system of which no file is at hand.
pub(crate) fn check() -> Result<(), Unflushed> {
    check_refusals()?;
    if has_filter() {
        let why = "this process runs under a system call filter (seccomp), and whether a flush has an effect is seen once a file is tried";
        return Err(Unflushed { why: why.into() });
    }
    Ok(())
}

/// Checks the calls of this thread for the file system of `file`, which is at `path`. Returns the evidence, if any was needed.
pub(crate) fn check_for(file: BorrowedFd<'_>, path: &Path) -> Result<Option<String>, Unflushed> {
    check_refusals()?;
    if !has_filter() {
        return Ok(None);
    }
    let directory = if path.is_dir() { path } else { parent_of(path) };
    let seen = match rustix::fs::fstat(file) {
        Ok(stat) => see_effects(directory, stat.st_dev),
        Err(errno) => Seen::Untried(errno.to_string()),
    };
    match seen {
        Seen::Effects => Ok(Some(
            "fdatasync, fsync, msync: each was seen to write a page, under the filter of system calls that is here"
                .into(),
        )),
        // As on DAX, on a full disk, or beside a file whose directory cannot be written.
        Seen::Untried(why) => Ok(Some(format!(
            "fdatasync, fsync, msync: each refuses what the kernel refuses, under the filter of system calls that is here; no effect was seen: {why}"
        ))),
        Seen::NoEffect(why) => Err(Unflushed {
            why: format!("this process runs under a system call filter (seccomp), and flushes do not work: {why}"),
        }),
    }
}

/// What came of flushing a file.
#[derive(Debug)]
enum Seen {
    Effects,
    /// It waits for the disk as before.
    NoEffect(String),
    /// There is no file to try, or nothing that tells whether a page waits.
    Untried(String),
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn check_refusals() -> Result<(), Unflushed> {
    match CALLS.into_iter().find(|call| !call.is_refused()) {
        None => Ok(()),
        Some(call) => {
            let name = call.name();
            let why = format!(
                "{name} of no file does not fail as the kernel has it fail: a system call filter (seccomp) answers {name} in the kernel's place"
            );
            Err(Unflushed { why })
        }
    }
}

/// Whether this thread has a filter, or one that hides itself.
fn has_filter() -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) != 0 }
}

/// Has each call flush a page of a file in `directory`, which must be on `device`; once in a process.
fn see_effects(directory: &Path, device: u64) -> Seen {
    if SEEN.lock().contains(&device) {
        return Seen::Effects;
    }
    let mut seen = Seen::Untried(String::new());
    for _ in 0..TRIES {
        seen = see_once(directory, device).unwrap_or_else(Seen::Untried);
        match seen {
            Seen::Effects => {
                SEEN.lock().push(device);
                break;
            }
            Seen::NoEffect(_) => break,
            Seen::Untried(_) => {}
        }
    }
    seen
}

/// An error where no file can be tried.
fn see_once(directory: &Path, device: u64) -> Result<Seen, String> {
    let page_bytes = rustix::param::page_size();
    let len_bytes = CALLS.len() * page_bytes;
    let (file, _removed_at_the_end) = file_to_try(directory, len_bytes as u64)?;
    let failed = |call: &str, error: &dyn std::fmt::Display| format!("{call} in {}: {error}", directory.display());
    if rustix::fs::fstat(&file).map_err(|errno| failed("fstat", &errno))?.st_dev != device {
        return Err(format!("{} is on another file system", directory.display()));
    }
    // Blocks that are allocated are marked as unwritten until the disk has the page. Where that cannot be, they are not allocated before.
    let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len_bytes as u64);
    let mapping = Mapping::of_file(file.as_fd(), len_bytes, true, false).map_err(|error| failed("mmap", &error))?;
    for (index, call) in CALLS.into_iter().enumerate() {
        let offset = (index * page_bytes) as u64;
        pwrite(&file, &vec![0xa5; page_bytes], offset).map_err(|errno| failed("pwrite", &errno))?;
        let page = mapping.range(offset, page_bytes as u64).map_err(|error| failed("mmap", &error))?;
        let before = Waiting::of(file.as_fd(), offset, page_bytes as u64);
        call.flush(file.as_fd(), page, page_bytes).map_err(|error| failed(call.name(), &error))?;
        let after = Waiting::of(file.as_fd(), offset, page_bytes as u64);
        match before.is_over(after) {
            Some(true) => {}
            Some(false) => {
                let (place, call) = (directory.display(), call.name());
                return Ok(Seen::NoEffect(format!("a page in {place} is as dirty after {call} as before")));
            }
            None => {
                let call = call.name();
                return Err(format!(
                    "neither the extents of a file nor cachestat(2) show that a page waits for {call}"
                ));
            }
        }
    }
    Ok(Seen::Effects)
}

/// A file of holes. One without a name, but on overlayfs, which may have none.
fn file_to_try(directory: &Path, len_bytes: u64) -> Result<(OwnedFd, Option<crate::file::Unfinished>), String> {
    let failed = |error: crate::MemError| crate::causes(&error).to_string();
    let is_overlay = rustix::fs::statfs(directory).is_ok_and(|stat| stat.f_type.unsigned_abs() == OVERLAY_MAGIC);
    if is_overlay {
        let (file, unfinished) = named_file(directory, len_bytes).map_err(failed)?;
        return Ok((file, Some(unfinished)));
    }
    Ok((unnamed_file(directory, len_bytes).map_err(failed)?, None))
}

/// Whether a page waits to be written to the disk, by two witnesses; `None` where one does not say.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    by_extents: Option<bool>,
    by_cache: Option<bool>,
}

impl Waiting {
    fn of(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> Self {
        let by_extents = is_written(file, offset).ok().map(|is_written| !is_written);
        Self { by_extents, by_cache: waits_in_cache(file, offset, len_bytes) }
    }

    /// Whether a page that waited `self` does no more; `None` where it was not seen to wait.
    fn is_over(self, after: Self) -> Option<bool> {
        let seen = [(self.by_extents, after.by_extents), (self.by_cache, after.by_cache)];
        let mut waited = seen.into_iter().filter(|(before, _)| *before == Some(true)).peekable();
        waited.peek()?;
        Some(waited.all(|(_, after)| after == Some(false)))
    }
}

/// Whether the page cache has dirty pages of that range, or such as are being written.
pub(crate) fn waits_in_cache(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> Option<bool> {
    /// `struct cachestat_range`.
    #[repr(C)]
    struct Range {
        offset: u64,
        len_bytes: u64,
    }
    /// `struct cachestat`.
    #[repr(C)]
    #[derive(Default)]
    struct Counts {
        cached: u64,
        dirty: u64,
        written_back: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let (range, mut counts) = (Range { offset, len_bytes }, Counts::default());
    // SAFETY: both structures are of the kernel's layout and live until the call returns; it reads one and writes the other.
    let outcome = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    // A page that was written a moment ago is there: where none is, another cache has it.
    (outcome == 0 && counts.cached > 0).then_some(counts.dirty + counts.written_back > 0)
}

#[cfg(test)]
mod tests;
