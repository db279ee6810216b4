//! Descriptors by which other processes map a memory's file for writing, and the locks that tell whether one of them still does.
//!
//! A lock of an open file description (`F_OFD_SETLK`, `flock`) lasts as long as any descriptor or mapping of that description, in whatever process: fcntl(2),
//! flock(2). Killing the process that took it does not end it while another one has the description mapped. So the description that is handed out is
//! the one with the lock.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
};

use pmof_locks::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// The byte whose lock says that the file is mapped. No file is that long.
const MAPPED_BYTE: i64 = 1 << 62;

/// What others that open a file can find out about processes that [were given it](crate::Memory::file_for_writers) to map it for writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOut {
    /// Nothing: each process gets an opening of its own, without locks.
    #[default]
    Unlocked,
    /// [`is_mapped_for_writing`], also once this process is gone. A file system without such locks hands nothing out.
    Marked,
    /// That the file is in use: they hold the `flock` of this process, too.
    Locked,
}

/// How a memory's file is handed out, and the description for [`HandOut::Marked`] once one was asked for.
#[derive(Debug, Default)]
pub(crate) struct Handed(Mutex<(HandOut, Option<OwnedFd>)>);

impl Handed {
    pub(crate) fn hand_out(&self, how: HandOut) {
        self.0.lock().0 = how;
    }

    /// A descriptor by which another process may map `file` for writing.
    pub(crate) fn file_for_writers(&self, file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let mut handed = self.0.lock();
        match handed.0 {
            HandOut::Unlocked => open_again(file, true),
            HandOut::Locked => Ok(rustix::io::fcntl_dupfd_cloexec(file, 0)?),
            HandOut::Marked => {
                if handed.1.is_none() {
                    let marked = open_again(file, true)?;
                    lock_mapped_byte(&marked)?;
                    handed.1 = Some(marked);
                }
                let marked = handed.1.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
                Ok(rustix::io::fcntl_dupfd_cloexec(marked, 0)?)
            }
        }
    }

    pub(crate) fn close(&self) {
        self.0.lock().1 = None;
    }

    /// Ends the locks of what was handed out of `file`.
    pub(crate) fn take_back(&self, file: Option<BorrowedFd<'_>>) {
        let mut handed = self.0.lock();
        // A lock that cannot be released costs the next opening a copy or a wait, no byte.
        match (handed.0, handed.1.take(), file) {
            (_, Some(marked), _) => drop(lock(&marked, libc::F_OFD_SETLK, libc::F_UNLCK)),
            (HandOut::Locked, None, Some(file)) => drop(flock(file, FlockOperation::Unlock)),
            _ => {}
        }
    }
}

/// Whether a process, this one included, may still have the file mapped for writing that was [handed out](HandOut::Marked) to it, or a descriptor by which
/// it can.
///
/// # Errors
/// The kernel's, for example on a file system without such locks, whose files are never handed out.
pub fn is_mapped_for_writing(file: BorrowedFd<'_>) -> io::Result<bool> {
    lock(&file, libc::F_OFD_GETLK, libc::F_WRLCK).map(|found| found != libc::F_UNLCK)
}

/// Opens the file anew, with the access that is meant and without the locks of the first opening.
pub fn open_again(file: BorrowedFd<'_>, writable: bool) -> io::Result<OwnedFd> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?)
}

/// Shared, so that one more target process that serves the same file does not fail on the leftovers of another.
fn lock_mapped_byte(file: &OwnedFd) -> io::Result<()> {
    lock(file, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
}

/// One call about the lock of the byte: the kind of lock that the kernel leaves in the answer.
fn lock(file: &impl std::os::fd::AsFd, call: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_int> {
    let mut about = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: MAPPED_BYTE,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the kernel reads and fills one `flock`, which outlives the call, and keeps no pointer to it.
    let answer = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), call, &raw mut about) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(libc::c_int::from(about.l_type)) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::Memory;

    fn mapped(directory: &tempfile::TempDir) -> Memory {
        Memory::create(&directory.path().join("file"), 8192, None).expect("a file")
    }

    #[test]
    fn a_mapping_alone_keeps_the_mark() {
        let directory = tempfile::tempdir().unwrap();
        let memory = mapped(&directory);
        let looks = std::fs::File::open(directory.path().join("file")).unwrap();
        let is_mapped = || is_mapped_for_writing(looks.as_fd()).unwrap();
        memory.hand_out(HandOut::Marked);
        assert!(!is_mapped(), "it was not handed out yet");
        let handed = memory.file_for_writers().unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping of its own, which nothing touches.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, handed.as_raw_fd(), 0) };
        assert_ne!(place, libc::MAP_FAILED);
        drop((handed, memory));
        assert!(is_mapped(), "the mapping is all that is left");
        // SAFETY: the mapping from above.
        assert_eq!(unsafe { libc::munmap(place, 4096) }, 0);
        assert!(!is_mapped());
    }

    #[test]
    fn what_is_taken_back_has_no_mark() {
        let directory = tempfile::tempdir().unwrap();
        let memory = mapped(&directory);
        let is_mapped = || is_mapped_for_writing(memory.file().unwrap()).unwrap();
        memory.hand_out(HandOut::Marked);
        let handed = memory.file_for_writers().unwrap();
        memory.close_handed_out();
        assert!(is_mapped(), "another one has it");
        drop(handed);
        assert!(!is_mapped());
        let _handed = memory.file_for_writers().unwrap();
        memory.take_back();
        assert!(!is_mapped());
    }

    #[test]
    fn who_gets_a_locked_file_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let memory = mapped(&directory);
        let other = std::fs::File::open(directory.path().join("file")).unwrap();
        let is_free = || {
            let locked = flock(&other, FlockOperation::NonBlockingLockExclusive);
            flock(&other, FlockOperation::Unlock).unwrap();
            locked.is_ok()
        };
        flock(memory.file().unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
        memory.hand_out(HandOut::Locked);
        let handed = memory.file_for_writers().unwrap();
        drop(memory);
        assert!(!is_free());
        drop(handed);
        assert!(is_free());
    }
}
