//! Files and devices that memory is mapped from: created completely or not at all, opened only if every byte is allocated.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::{
    fs::{Access, AtFlags, CWD, FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags, Stat},
    io::Errno,
};

use crate::{
    MemError, System,
    judge::magic_of,
    limits::file_size_limit_below,
    mounts::HUGETLBFS_MAGIC,
    sysfs::{devdax_directory, devdax_len_bytes},
};

/// The placeholder for the path of memory that has none.
pub(crate) const NO_PATH: &str = "(anonymous)";

/// Zeros written at a time where the file system cannot allocate: large enough that system calls do not count.
const ZEROS_BYTES: usize = 1 << 20;

/// Unit of `st_blocks`, whatever the file system's block size (stat(3type)).
const STAT_BLOCK_BYTES: u64 = 512;

/// Never an existing file, never through a link.
const NEW_FILE: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A pool's bytes are its owner's.
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// An open file or device, and how much of it there is to map.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    pub(crate) len_bytes: u64,
    /// Its sysfs directory, if it is a devdax device.
    pub(crate) devdax: Option<PathBuf>,
}

/// A name just created; removed again on drop unless kept, or it leads to another file by then.
#[derive(Debug)]
pub(crate) struct Unfinished {
    directory: OwnedFd,
    name: OsString,
    file: FileId,
    is_kept: bool,
}

/// Device and inode: no two files have both while one of them is open.
type FileId = (u64, u64);

fn file_id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

impl Unfinished {
    /// The file stays.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let name = self.name.as_os_str();
        let is_ours = |stat: Stat| file_id(&stat) == self.file;
        if !self.is_kept && rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_ours) {
            // The original failure is the one to report.
            let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

/// Creates `path`, which must not exist, with space for all of `len_bytes`, durably. The file is removed again unless the
/// caller keeps it.
pub(crate) fn create_whole(path: &Path, len_bytes: u64) -> Result<(OwnedFd, Unfinished), MemError> {
    let (fd, unfinished) = create_empty(path)?;
    make_whole(&fd, &unfinished, path, len_bytes)?;
    Ok((fd, unfinished))
}

/// Creates `path`, which must not exist, with no bytes yet.
pub(crate) fn create_empty(path: &Path) -> Result<(OwnedFd, Unfinished), MemError> {
    let name = path.file_name().ok_or(MemError::Unsuitable {
        path: path.into(),
        why: "it does not end in a file name",
        mend: "name a file",
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, parent, flags, Mode::empty())
        .map_err(|errno| io_error("open", parent, "the directory must exist and be readable", errno))?;
    let fd = rustix::fs::openat(&directory, name, NEW_FILE, OWNER_ONLY).map_err(|errno| {
        let mend = if errno == Errno::EXIST { "open it, or choose another name" } else { "" };
        io_error("open", path, mend, errno)
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| io_error("fstat", path, "", errno))?;
    Ok((fd, Unfinished { directory, name: name.into(), file: file_id(&stat), is_kept: false }))
}

/// Allocates all space of a file that was created empty, and makes space and name durable.
pub(crate) fn make_whole(fd: &OwnedFd, unfinished: &Unfinished, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    allocate(fd.as_fd(), path, len_bytes)?;
    rustix::fs::fsync(fd).map_err(|errno| space_error("fsync", path, len_bytes, errno))?;
    match rustix::fs::fsync(&unfinished.directory) {
        // Some file systems have no fsync on directories: there the name is durable with the file, or nothing is.
        Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(io_error("fsync of the directory", path, "", errno)),
    }
}

/// Opens an existing regular file without holes, or a devdax device.
pub(crate) fn open_existing(system: &System, path: &Path, writable: bool) -> Result<Opened, MemError> {
    let fd = open_suitable(system, path, writable)?;
    let (opened, _) = inspect(system, path, fd)?;
    Ok(opened)
}

/// The same for a file that may be empty or have holes, for callers that do not map it.
pub(crate) fn open_unmapped(system: &System, path: &Path, writable: bool) -> Result<Opened, MemError> {
    let fd = open_suitable(system, path, writable)?;
    let (opened, _) = measured(system, path, fd)?;
    Ok(opened)
}

fn open_suitable(system: &System, path: &Path, writable: bool) -> Result<OwnedFd, MemError> {
    // Checked before it is opened: opening some devices and pipes has side effects.
    let before = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| io_error("stat", path, "the file must exist; create it first", errno))?;
    suitable(system, path, &before)?;
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| io_error("open", path, "", errno))
}

/// What an open file or device is, and whether it has a name. A file with one must have no holes.
pub(crate) fn inspect(system: &System, path: &Path, fd: OwnedFd) -> Result<(Opened, bool), MemError> {
    let (opened, stat) = measured(system, path, fd)?;
    let is_named = stat.st_nlink > 0;
    if opened.len_bytes == 0 {
        let (why, mend) = ("it is empty", "create it with the length that is needed");
        return Err(MemError::Unsuitable { path: path.into(), why, mend });
    }
    if is_named && opened.devdax.is_none() && room_bytes(&stat) < opened.len_bytes {
        return Err(has_holes(path));
    }
    Ok((opened, is_named))
}

fn measured(system: &System, path: &Path, fd: OwnedFd) -> Result<(Opened, Stat), MemError> {
    let stat = rustix::fs::fstat(&fd).map_err(|errno| io_error("fstat", path, "", errno))?;
    let devdax = suitable(system, path, &stat)?;
    let len_bytes = match &devdax {
        Some(directory) => devdax_len_bytes(directory).unwrap_or(0),
        None => stat.st_size.unsigned_abs(),
    };
    Ok((Opened { fd, len_bytes, devdax }, stat))
}

/// Bytes of the file system that the file takes.
fn room_bytes(stat: &Stat) -> u64 {
    stat.st_blocks.unsigned_abs() * STAT_BLOCK_BYTES
}

fn has_holes(path: &Path) -> MemError {
    let why = "it has holes, and a store to one ends the process when the disk is full";
    MemError::Unsuitable { path: path.into(), why, mend: "fill them with `fallocate -l LENGTH FILE`" }
}

/// Allocates space for the holes of a file of `len_bytes`, durably. Its bytes do not change.
pub(crate) fn fill_holes(fd: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| io_error("fstat", path, "", errno))?;
    let missing_bytes = len_bytes.saturating_sub(room_bytes(&stat));
    check_free_space(fd, path, missing_bytes)?;
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len_bytes) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // A file system that cannot allocate.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) if missing_bytes == 0 => break,
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => return Err(has_holes(path)),
            Err(errno) => return Err(space_error("fallocate", path, len_bytes, errno)),
        }
    }
    rustix::fs::fsync(fd).map_err(|errno| space_error("fsync", path, len_bytes, errno))
}

/// The sysfs directory if it is a devdax device, `None` if it is a regular file, else an error.
pub(crate) fn suitable(system: &System, path: &Path, stat: &Stat) -> Result<Option<PathBuf>, MemError> {
    let mend = "name a regular file or a devdax device (/dev/daxX.Y)";
    let why = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(None),
        FileType::CharacterDevice => {
            let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            match devdax_directory(&system.sysfs_root, major, minor) {
                Some(directory) => return Ok(Some(directory)),
                None => "it is a character device that sysfs does not call dax",
            }
        }
        FileType::Directory => "it is a directory",
        FileType::Symlink => "it is a symbolic link, which pmof does not follow",
        FileType::Socket => "it is a socket",
        FileType::Fifo => "it is a pipe",
        FileType::BlockDevice => "it is a block device",
        FileType::Unknown => "it is no file",
    };
    Err(MemError::Unsuitable { path: path.into(), why, mend })
}

/// A new file in `directory` that has no name, of `len_bytes` bytes: for asking the kernel about the directory.
pub(crate) fn unnamed_file(directory: &Path, len_bytes: u64) -> Result<OwnedFd, MemError> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(CWD, directory, flags, OWNER_ONLY) {
        Ok(fd) => fd,
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            let path = directory.join(format!(".pmof-probe-{}", std::process::id()));
            let fd = rustix::fs::openat(CWD, &path, NEW_FILE, OWNER_ONLY)
                .map_err(|errno| io_error("open", &path, "", errno))?;
            rustix::fs::unlink(&path).map_err(|errno| io_error("unlink", &path, "remove it by hand", errno))?;
            fd
        }
        Err(errno) => return Err(io_error("open", directory, "the directory must be writable to be probed", errno)),
    };
    rustix::fs::ftruncate(&fd, len_bytes).map_err(|errno| space_error("ftruncate", directory, len_bytes, errno))?;
    Ok(fd)
}

/// A new file in `directory` of `len_bytes` bytes, whose name is removed when the second value is dropped.
pub(crate) fn named_file(directory: &Path, len_bytes: u64) -> Result<(OwnedFd, Unfinished), MemError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = OsString::from(format!(".pmof-probe-{}-{count}", std::process::id()));
    let path = directory.join(&name);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, directory, flags, Mode::empty())
        .map_err(|errno| io_error("open", directory, "", errno))?;
    let fd = rustix::fs::openat(&directory, name.as_os_str(), NEW_FILE, OWNER_ONLY)
        .map_err(|errno| io_error("open", &path, "the directory must be writable to be probed", errno))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| io_error("fstat", &path, "", errno))?;
    let unfinished = Unfinished { directory, name, file: file_id(&stat), is_kept: false };
    rustix::fs::ftruncate(&fd, len_bytes).map_err(|errno| space_error("ftruncate", &path, len_bytes, errno))?;
    Ok((fd, unfinished))
}

/// Memory of `len_bytes` bytes that has a descriptor and no name.
pub(crate) fn unnamed_memory(len_bytes: u64) -> Result<OwnedFd, MemError> {
    let path = Path::new(NO_PATH);
    let fd = rustix::fs::memfd_create("pmof", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|errno| io_error("memfd_create", path, "see the limit of open files (ulimit -n)", errno))?;
    rustix::fs::ftruncate(&fd, len_bytes).map_err(|errno| space_error("ftruncate", path, len_bytes, errno))?;
    Ok(fd)
}

/// Fixes its length, and for `sealed` also forbids every further way to change its bytes.
pub(crate) fn seal_memory(fd: BorrowedFd<'_>, sealed: bool) -> Result<(), MemError> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    seals.set(SealFlags::FUTURE_WRITE, sealed);
    let mend = "sealing against writes needs Linux 5.1";
    rustix::fs::fcntl_add_seals(fd, seals).map_err(|errno| io_error("F_ADD_SEALS", Path::new(NO_PATH), mend, errno))
}

pub(crate) fn io_error(call: &'static str, path: &Path, mend: &'static str, source: impl Into<io::Error>) -> MemError {
    MemError::Io { call, path: path.into(), mend, source: source.into() }
}

/// A mapping that was refused.
pub(crate) fn map_error(path: &Path, source: impl Into<io::Error>) -> MemError {
    let source = source.into();
    let mend = match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) => {
            "this process may not map more: raise its address space (ulimit -v), the number of mappings (sysctl vm.max_map_count) or the memory of its cgroup"
        }
        Some(Errno::AGAIN) => "too much memory is locked: raise the limit (ulimit -l)",
        _ => "the file system must allow shared mappings",
    };
    io_error("mmap", path, mend, source)
}

fn space_error(call: &'static str, path: &Path, len_bytes: u64, errno: Errno) -> MemError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => MemError::NoSpace { path: path.into(), len_bytes },
        Errno::FBIG => MemError::too_long(path, len_bytes),
        errno => io_error(call, path, "", errno),
    }
}

fn allocate(fd: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    check_page_multiple(fd, path, len_bytes)?;
    check_free_space(fd, path, len_bytes)?;
    reserve(fd, path, len_bytes)
}

fn reserve(fd: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len_bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => return write_zeros(fd, path, len_bytes),
            Err(errno) => return Err(space_error("fallocate", path, len_bytes, errno)),
        }
    }
}

/// Allocates space by writing, if the file system cannot allocate.
fn write_zeros(fd: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    let zeros = vec![0; ZEROS_BYTES];
    let mut done = 0;
    while done < len_bytes {
        let part = &zeros[..(len_bytes - done).min(ZEROS_BYTES as u64) as usize];
        match rustix::io::pwrite(fd, part, done) {
            Ok(count) => done += count as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(space_error("pwrite", path, len_bytes, errno)),
        }
    }
    Ok(())
}

/// Allocates space and writes all of it, so that no block is marked as unwritten.
pub(crate) fn reserve_with_zeros(fd: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    allocate(fd, path, len_bytes)?;
    write_zeros(fd, path, len_bytes)
}

/// Refuses at once what cannot fit: otherwise allocation would fill the disk before it failed.
fn check_free_space(fd: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    let free = rustix::fs::fstatvfs(fd).map_err(|errno| io_error("statvfs", path, "", errno))?;
    // Some file systems count nothing.
    if free.f_blocks > 0 && free.f_bfree.saturating_mul(free.f_frsize) < len_bytes {
        return Err(MemError::NoSpace { path: path.into(), len_bytes });
    }
    Ok(())
}

/// Checks that a file of `len_bytes` may be created at `path`, without checking for an existing file: the directory exists and is writable, and no limit is
/// below the length. Returns the device of the directory, and the free bytes there; `None` if the file system does not count them.
pub(crate) fn room_at(path: &Path, len_bytes: u64) -> Result<(u64, Option<u64>), MemError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, parent, flags, Mode::empty())
        .map_err(|errno| io_error("open", parent, "the directory must exist and be readable", errno))?;
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(CWD, parent, wanted, AtFlags::EACCESS)
        .map_err(|errno| io_error("access", parent, "files are made by those who may write there", errno))?;
    if file_size_limit_below(len_bytes).is_some() {
        return Err(MemError::too_long(path, len_bytes));
    }
    check_page_multiple(directory.as_fd(), path, len_bytes)?;
    let stat = rustix::fs::fstat(&directory).map_err(|errno| io_error("fstat", parent, "", errno))?;
    let free = rustix::fs::fstatvfs(&directory).map_err(|errno| io_error("statvfs", parent, "", errno))?;
    Ok((stat.st_dev, (free.f_blocks > 0).then(|| free.f_bfree.saturating_mul(free.f_frsize))))
}

fn check_page_multiple(fd: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), MemError> {
    let failed = |source| io_error("statfs", path, "", source);
    if magic_of(fd).map_err(failed)? != HUGETLBFS_MAGIC {
        return Ok(());
    }
    let page_bytes = rustix::fs::fstatvfs(fd).map_err(|errno| failed(errno.into()))?.f_bsize;
    if page_bytes > 0 && len_bytes % page_bytes != 0 {
        return Err(MemError::BadLength { len_bytes, why: "hugetlbfs needs a multiple of its huge page size" });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
