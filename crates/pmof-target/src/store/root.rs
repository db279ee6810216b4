//! The root directory of a store: every file of it is reached through one open directory, never through a link.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use pmof_control::{DATA_OFFSET, HEAD_4_BYTES, HEADER_BYTES, Header, HeaderError, PoolFormat, PoolName, without_magic};
use rustix::{
    fs::{Access, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, StatVfs},
    io::Errno,
};

use super::StoreError;

/// Working files are `.pmof.`, 32 hexadecimal digits, `.new`. No pool's name begins with a dot.
const WORK_PREFIX: &str = ".pmof.";
const WORK_SUFFIX: &str = ".new";
const WORK_RANDOM_BYTES: usize = 16;
/// A lock may be held for a moment by somebody who only looks who holds it, or by a mapping on its way out.
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(2);
const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// One inode of the root's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }

    pub(super) fn of_file(file: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::of(&rustix::fs::fstat(file)?))
    }
}

/// A regular file of the root, open for reading.
pub(super) struct Entry {
    pub(super) file: File,
    pub(super) identity: Identity,
    pub(super) len_bytes: u64,
}

impl Entry {
    /// The header that the file begins with, or what it is without one.
    pub(super) fn header(&self) -> io::Result<Result<Header, HeaderError>> {
        Ok(match Header::decode(&self.begin(HEADER_BYTES)?) {
            Ok(header) if header.format != PoolFormat::Four => Ok(header),
            Err(error @ (HeaderError::NewerVersion { .. } | HeaderError::UnknownFeature { .. })) => Err(error),
            _ => {
                let begin = self.begin(HEAD_4_BYTES as usize)?;
                match Header::of_file(&begin) {
                    Err(HeaderError::NotAPool) => Err(without_magic(&begin[..begin.len().min(DATA_OFFSET as usize)])),
                    header => header.map(|(header, _)| header),
                }
            }
        })
    }

    /// What there is of the first bytes.
    pub(super) fn begin(&self, len_bytes: usize) -> io::Result<Vec<u8>> {
        let (mut begin, mut read) = (vec![0; len_bytes], 0);
        while read < len_bytes {
            match self.file.read_at(&mut begin[read..], read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        begin.truncate(read);
        Ok(begin)
    }
}

#[derive(Debug)]
pub(super) struct Root {
    directory: OwnedFd,
    /// As the operator named it, for messages.
    path: PathBuf,
    /// The same from the root of the file system: this process may change its directory.
    place: PathBuf,
}

impl Root {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let directory = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty())
            .map_err(|errno| StoreError::Root { path: path.to_owned(), source: errno.into() })?;
        let place = std::path::absolute(path).map_err(|source| StoreError::Root { path: path.to_owned(), source })?;
        let root = Self { directory, path: path.to_owned(), place };
        let own = rustix::fs::fstat(&root.directory).map_err(|errno| root.io("fstat", "", errno))?;
        match rustix::fs::stat(root.path_by_descriptor("")) {
            Ok(seen) if Identity::of(&seen) == Identity::of(&own) => Ok(root),
            _ => Err(StoreError::NoProc { root: root.path }),
        }
    }

    /// The root as the operator named it, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A path to `entry` that stays inside this directory even when the root is renamed or replaced.
    pub(super) fn path_by_descriptor(&self, entry: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{entry}", self.directory.as_raw_fd()))
    }

    /// Refuses a root that its path does not lead to any more: it was unmounted, mounted over, renamed or removed. What is made there would be lost
    /// to a process that looks it up by that path, such as this target when it is started again.
    pub(super) fn check_attached(&self) -> Result<(), StoreError> {
        let detached = || StoreError::Detached { root: self.path.clone() };
        let own = Identity::of_file(self.directory.as_fd()).map_err(|error| self.io("fstat", "", error))?;
        match rustix::fs::stat(&self.place) {
            Ok(found) if Identity::of(&found) == own => Ok(()),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(detached()),
            // The path could not be looked at, which says nothing of where it leads.
            Err(_) => Ok(()),
        }
    }

    /// Whether the directory has lost its name. One that is elsewhere can be listed still.
    pub(super) fn is_removed(&self) -> bool {
        // Some file systems count no links of directories that are there.
        let has_no_link = || rustix::fs::fstat(&self.directory).is_ok_and(|stat| stat.st_nlink == 0);
        has_no_link() && self.check_attached().is_err()
    }

    pub(super) fn statvfs(&self) -> Result<StatVfs, StoreError> {
        rustix::fs::fstatvfs(&self.directory).map_err(|errno| self.io("statvfs", "", errno))
    }

    /// Whether the effective user may make files there. Says nothing of the room that is left.
    pub(super) fn is_writable(&self) -> bool {
        let access = |flags| rustix::fs::accessat(&self.directory, ".", Access::WRITE_OK | Access::EXEC_OK, flags);
        match access(AtFlags::EACCESS) {
            // A kernel without faccessat2 tells it of the real user only.
            Err(Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP) => access(AtFlags::empty()).is_ok(),
            allowed => allowed.is_ok(),
        }
    }

    /// Opens the regular file `name` for reading. Anything else of that name is refused, links above all.
    pub(super) fn entry(&self, name: &PoolName) -> Result<Entry, StoreError> {
        let refuse = |what| StoreError::NotAFile { name: name.clone(), what };
        let not_found = || StoreError::NotFound { name: name.clone(), root: self.path.clone() };
        // Without NONBLOCK, opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.directory, name.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(not_found()),
            Err(Errno::LOOP) => return Err(refuse("a symbolic link")),
            Err(Errno::NXIO) => return Err(refuse("a socket")),
            Err(errno) => return Err(self.io("open", name.as_str(), errno)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.io("fstat", name.as_str(), errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(refuse("a directory")),
            _ => return Err(refuse("a device or pipe")),
        }
        Ok(Entry { file: file.into(), identity: Identity::of(&stat), len_bytes: stat.st_size.unsigned_abs() })
    }

    /// Whether anything, even a dangling link, has this name.
    pub(super) fn exists(&self, name: &PoolName) -> Result<bool, StoreError> {
        self.identity(name).map(|identity| identity.is_some())
    }

    /// What has this name now; links are not followed.
    pub(super) fn identity(&self, name: &PoolName) -> Result<Option<Identity>, StoreError> {
        match rustix::fs::statat(&self.directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Identity::of(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.io("stat", name.as_str(), errno)),
        }
    }

    /// Names that a pool can have, after `after`, in order.
    pub(super) fn names_after(&self, after: Option<&PoolName>) -> Result<Vec<PoolName>, StoreError> {
        let mut names = Vec::new();
        self.for_each_entry(|entry| {
            if let Ok(name) = PoolName::try_from(entry) {
                if after.is_none_or(|after| name > *after) {
                    names.push(name);
                }
            }
        })?;
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn unlink(&self, entry: &str) -> Result<(), StoreError> {
        rustix::fs::unlinkat(&self.directory, entry, AtFlags::empty()).map_err(|errno| self.io("unlink", entry, errno))
    }

    /// Makes the directory's entries durable.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        rustix::fs::fsync(&self.directory).map_err(|errno| self.io("fsync", "", errno))
    }

    /// A name for a new working file. The file of that name is unlinked when the result is dropped, if there is one.
    pub(super) fn working_file(self: &Arc<Self>) -> Result<WorkingFile, StoreError> {
        let mut random = [0; WORK_RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|error| StoreError::Io {
            call: "getrandom",
            path: self.path.clone(),
            source: io::Error::other(error.to_string()),
        })?;
        let entry = format!("{WORK_PREFIX}{:032x}{WORK_SUFFIX}", u128::from_le_bytes(random));
        let making = self.lock_makers(FlockOperation::LockShared)?;
        Ok(WorkingFile { root: Arc::clone(self), entry: Some(entry), _making: making })
    }

    /// Removes working files that a crash left; returns how many. Does nothing while somebody else makes a pool.
    pub(super) fn remove_leftovers(&self) -> Result<usize, StoreError> {
        let Ok(_cleaning) = self.lock_makers(FlockOperation::NonBlockingLockExclusive) else {
            return Ok(0);
        };
        let mut leftovers = Vec::new();
        self.for_each_entry(|entry| {
            if let Ok(text) = std::str::from_utf8(entry) {
                if is_working_file(text) {
                    leftovers.push(text.to_owned());
                }
            }
        })?;
        // A root that cannot be written keeps its leftovers; its pools can still be read.
        Ok(leftovers.iter().filter(|entry| self.is_regular(entry) && self.unlink(entry).is_ok()).count())
    }

    pub(super) fn io(&self, call: &'static str, entry: &str, errno: impl Into<io::Error>) -> StoreError {
        StoreError::Io { call, path: self.path.join(entry), source: errno.into() }
    }

    /// Who makes a pool holds the directory's lock shared, who removes leftovers exclusively, so no file being made
    /// looks left over. Each time a file description of its own, since a lock belongs to one.
    fn lock_makers(&self, operation: FlockOperation) -> Result<OwnedFd, StoreError> {
        let own = rustix::fs::openat(&self.directory, ".", DIRECTORY_FLAGS, Mode::empty())
            .map_err(|errno| self.io("open", "", errno))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&own, operation))
            .map_err(|errno| self.io("flock", "", errno))?;
        Ok(own)
    }

    /// Whether it is a file, and no link to one. False also where that is not known.
    pub(super) fn is_regular(&self, entry: &str) -> bool {
        rustix::fs::statat(&self.directory, entry, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }

    fn for_each_entry(&self, mut visit: impl FnMut(&[u8])) -> Result<(), StoreError> {
        for entry in Dir::read_from(&self.directory).map_err(|errno| self.io("readdir", "", errno))? {
            visit(entry.map_err(|errno| self.io("readdir", "", errno))?.file_name().to_bytes());
        }
        Ok(())
    }
}

/// A file on its way to become a pool: gone when dropped, unless it was kept.
#[derive(Debug)]
pub(super) struct WorkingFile {
    root: Arc<Root>,
    entry: Option<String>,
    _making: OwnedFd,
}

impl WorkingFile {
    pub(super) fn path(&self) -> PathBuf {
        self.root.path_by_descriptor(self.entry.as_deref().unwrap_or_default())
    }

    /// Gives the file its name, durably. On failure nothing of it is left, under either name.
    pub(super) fn publish(mut self, name: &PoolName) -> Result<(), StoreError> {
        let root = Arc::clone(&self.root);
        let directory = &root.directory;
        let from = self.entry.as_deref().unwrap_or_default();
        match name_new(directory, from, name.as_str()) {
            Ok(()) => self.entry = Some(name.as_str().to_owned()),
            Err((_, Errno::EXIST)) => {
                return Err(StoreError::AlreadyExists { name: name.clone(), root: root.path.clone() });
            }
            Err((call, errno)) => return Err(root.io(call, name.as_str(), errno)),
        }
        root.sync()?;
        self.entry = None;
        Ok(())
    }
}

/// Gives the file `from` of a directory a name that nothing has. NFS, FUSE, gluster and older ZFS know no rename that fails where something has the
/// name: there it gets a second name, and loses the first; file systems without links take an empty file in the name's place first. A crash in between
/// leaves a working file, or the empty one, which is no pool.
fn name_new(directory: &OwnedFd, from: &str, name: &str) -> Result<(), (&'static str, Errno)> {
    match rustix::fs::renameat_with(directory, from, directory, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        renamed => return renamed.map_err(|errno| ("renameat2", errno)),
    }
    match link_new(directory, from, name) {
        Ok(()) => {
            // What stays is removed when the store is opened next.
            let _ = rustix::fs::unlinkat(directory, from, AtFlags::empty());
            return Ok(());
        }
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK | Errno::INVAL) => {}
        Err(errno) => return Err(("linkat", errno)),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| ("open", errno))?;
    rustix::fs::renameat(directory, from, directory, name).map_err(|errno| {
        // The failure to rename is the one to report.
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
        ("rename", errno)
    })
}

/// Gives a file a second name that nothing has. NFS may send the request again whose answer was lost, and then finds the link that it has made: that is
/// told from another file of the name by what both lead to.
fn link_new(directory: &OwnedFd, from: &str, name: &str) -> Result<(), Errno> {
    match rustix::fs::linkat(directory, from, directory, name, AtFlags::empty()) {
        Err(Errno::EXIST) => {
            let identity =
                |name| rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|of| Identity::of(&of));
            if identity(from)? == identity(name)? { Ok(()) } else { Err(Errno::EXIST) }
        }
        linked => linked,
    }
}

impl WorkingFile {
    /// Puts the file in the place of the one that has the name, durably. An error comes with whether that was done, though not durably.
    pub(super) fn replace(mut self, name: &PoolName) -> Result<(), (bool, StoreError)> {
        let root = Arc::clone(&self.root);
        let from = self.entry.as_deref().unwrap_or_default();
        rustix::fs::renameat(&root.directory, from, &root.directory, name.as_str())
            .map_err(|errno| (false, root.io("rename", name.as_str(), errno)))?;
        self.entry = None;
        root.sync().map_err(|error| (true, error))
    }
}

impl Drop for WorkingFile {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            // It may never have been made, and what stays is removed when the store is opened next.
            let _ = self.root.unlink(entry);
        }
    }
}

/// Takes the writer's lock of a pool's file, which lasts until the file description is closed. `false` where another
/// has it.
pub(super) fn try_lock(file: impl AsFd) -> io::Result<bool> {
    for attempt in 1.. {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if attempt < LOCK_ATTEMPTS => thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(false)
}

/// Whether another has the writer's lock. Looking takes a shared lock for a moment, for which [`try_lock`] waits.
pub(super) fn is_locked(file: impl AsFd) -> io::Result<bool> {
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(rustix::fs::flock(&file, FlockOperation::Unlock).map(|()| false)?),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

fn is_working_file(entry: &str) -> bool {
    entry.strip_prefix(WORK_PREFIX).and_then(|rest| rest.strip_suffix(WORK_SUFFIX)).is_some_and(|digits| {
        digits.len() == 2 * WORK_RANDOM_BYTES && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}
