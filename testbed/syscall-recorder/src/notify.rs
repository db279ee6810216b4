//! The kernel's notices of calls, and the answers to them.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{Call, Verdict};

/// How often it is looked whether the watched thread is done: the kernel tells of calls at once, of the end only when no
/// thread is left.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Longest path that is read from a caller's memory (`PATH_MAX` of Linux).
const PATH_MAX_BYTES: usize = 4096;

/// Where notices come from.
pub(crate) struct Listener(OwnedFd);

/// A call that waits for its answer.
pub(crate) struct Notice(libc::seccomp_notif);

impl Listener {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// The next call; `None` once `is_over` says so and none waits.
    pub(crate) fn next(&self, is_over: impl Fn() -> bool) -> io::Result<Option<Notice>> {
        loop {
            let was_over = is_over();
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK_EVERY)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if fds[0].revents().contains(PollFlags::IN) {
                if let Some(notice) = self.receive()? {
                    return Ok(Some(notice));
                }
            } else if was_over {
                return Ok(None);
            }
        }
    }

    /// `None` where the caller was interrupted meanwhile.
    fn receive(&self) -> io::Result<Option<Notice>> {
        // SAFETY: the structure is made of numbers, for all of which zero is valid; the kernel wants it zeroed.
        let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is a listener, and the structure of the kernel's layout is written within its bounds.
        let code = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut notice) };
        if code == 0 {
            return Ok(Some(Notice(notice)));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINTR) => Ok(None),
            _ => Err(error),
        }
    }

    pub(crate) fn answer(&self, notice: &Notice, verdict: Verdict) {
        let (error, flags) = match verdict {
            Verdict::Pass => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Verdict::Fail(errno) => (-errno, 0),
        };
        let mut answer = libc::seccomp_notif_resp { id: notice.0.id, val: 0, error, flags };
        // A caller that was interrupted or killed meanwhile takes no answer.
        // SAFETY: the descriptor is a listener, and the structure is of the kernel's layout.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut answer) };
    }
}

impl Notice {
    /// The call, if it could be understood.
    pub(crate) fn call(&self) -> Option<Call> {
        let [first, second, third, fourth, ..] = self.0.data.args;
        let here = u64::from_le_bytes(i64::from(libc::AT_FDCWD).to_le_bytes());
        Some(match i64::from(self.0.data.nr) {
            libc::SYS_fsync => Call::Fsync(named(self.path_of(first)?)?),
            libc::SYS_fdatasync => Call::Fdatasync(named(self.path_of(first)?)?),
            libc::SYS_msync => Call::Msync(named(self.mapped_at(first)?)?),
            libc::SYS_sync | libc::SYS_syncfs => Call::SyncAll,
            libc::SYS_renameat | libc::SYS_renameat2 => {
                Call::Rename(self.name_at(first, second)?, self.name_at(third, fourth)?)
            }
            libc::SYS_linkat => Call::Link(self.name_at(first, second)?, self.name_at(third, fourth)?),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => Call::Rename(self.name_at(here, first)?, self.name_at(here, second)?),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_link => Call::Link(self.name_at(here, first)?, self.name_at(here, second)?),
            _ => return None,
        })
    }

    /// What the kernel calls the file of a descriptor now.
    fn path_of(&self, fd: u64) -> Option<PathBuf> {
        // Descriptors are `int`s in registers of 64 bits.
        fs::read_link(format!("/proc/{}/fd/{}", self.0.pid, fd as i32)).ok()
    }

    /// The file that is mapped at an address of the caller.
    fn mapped_at(&self, address: u64) -> Option<PathBuf> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0.pid)).ok()?;
        maps.lines().find_map(|line| {
            // Addresses, rights, offset, device, inode, and the name behind spaces.
            let mut fields = line.splitn(6, ' ');
            let (begin, end) = fields.next()?.split_once('-')?;
            let bound = |text| u64::from_str_radix(text, 16).ok();
            let is_there = bound(begin)? <= address && address < bound(end)?;
            is_there.then(|| fields.nth(4).map(|name| PathBuf::from(name.trim_start())))?
        })
    }

    /// The name at an address of the caller's memory, from the directory of a descriptor.
    fn name_at(&self, directory: u64, address: u64) -> Option<PathBuf> {
        let name = self.text_at(address)?;
        let name = Path::new(OsStr::from_bytes(&name));
        let directory = if directory as i32 == libc::AT_FDCWD {
            fs::read_link(format!("/proc/{}/cwd", self.0.pid)).ok()?
        } else {
            self.path_of(directory)?
        };
        Some(if name.as_os_str().is_empty() { directory } else { directory.join(name) })
    }

    fn text_at(&self, address: u64) -> Option<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", self.0.pid)).ok()?;
        let mut bytes = vec![0; PATH_MAX_BYTES];
        // Fewer where the mapping ends before.
        let count = memory.read_at(&mut bytes, address).ok()?;
        let end = bytes[..count].iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        Some(bytes)
    }
}

/// The path, unless it is that of a file that never had a name (`O_TMPFILE`): the kernel calls it `#`, its inode, and ` (deleted)`.
fn named(path: PathBuf) -> Option<PathBuf> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let inode = name.strip_prefix(b"#").and_then(|rest| rest.strip_suffix(b" (deleted)"));
    let never_had_one = inode.is_some_and(|inode| inode.iter().all(u8::is_ascii_digit));
    (!never_had_one).then_some(path)
}
