//! Records the system calls that make files and names durable, in the order in which the kernel gets them, and lets a test
//! fail or delay any of them: `fsync`, `fdatasync`, `msync`, `syncfs`, `sync`, and the calls that give a file a name.
//!
//! The kernel shows each call before it carries it out (seccomp(2), `SECCOMP_RET_USER_NOTIF`, Linux 5.5). So a test sees what
//! the code under test really asks of the kernel, without a hook in that code and without privileges. Only the thread that
//! [`record`] starts, and the threads and processes that it starts, are watched.
//!
//! [`silenced`] runs something where the calls that flush files return 0 and do nothing, as container managers can have it.
//!
//! Not seen: flushes of files that never had a name, which make nothing durable; calls made through `io_uring`, and those of threads that were there before.

mod filter;
mod notify;

use std::{
    fmt, io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use notify::Listener;

/// A system call that makes something durable or names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `fsync` of this file or directory.
    Fsync(PathBuf),
    /// `fdatasync` of this file.
    Fdatasync(PathBuf),
    /// `msync` of a range of addresses, at which this file is mapped.
    Msync(PathBuf),
    /// `sync`, or `syncfs` of the file system of some file.
    SyncAll,
    /// `rename`, `renameat`, `renameat2`: this name becomes that one.
    Rename(PathBuf, PathBuf),
    /// `link`, `linkat`: this file gets that name as well.
    Link(PathBuf, PathBuf),
}

impl Call {
    /// Whether this is an `fsync`, `fdatasync` or `msync` of `path`, as it is called now.
    pub fn is_sync_of(&self, path: &Path) -> bool {
        matches!(self, Self::Fsync(synced) | Self::Fdatasync(synced) | Self::Msync(synced) if synced == path)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fsync(path) => write!(f, "fsync {}", path.display()),
            Self::Fdatasync(path) => write!(f, "fdatasync {}", path.display()),
            Self::Msync(path) => write!(f, "msync {}", path.display()),
            Self::SyncAll => f.write_str("sync"),
            Self::Rename(from, to) => write!(f, "rename {} to {}", from.display(), to.display()),
            Self::Link(from, to) => write!(f, "link {} to {}", from.display(), to.display()),
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel carries it out.
    Pass,
    /// It fails with this error number and does nothing.
    Fail(i32),
}

/// Why nothing can be recorded on this machine.
#[derive(Debug)]
pub struct Unavailable(io::Error);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel shows no system calls to this process (seccomp): {}", self.0)
    }
}

impl std::error::Error for Unavailable {}

/// Runs `act` on a thread of its own. `judge` sees each call before the kernel does and may take its time; it runs on the
/// calling thread. Returns what `act` returned, and all calls in order, the failed ones among them.
///
/// All threads that `act` starts must have ended when it returns: later calls of theirs fail with `ENOSYS`.
///
/// # Errors
/// Where the kernel or a sandbox forbids it; then `act` did not run.
///
/// # Panics
/// With the panic of `act`.
pub fn record<T: Send>(
    mut judge: impl FnMut(&Call) -> Verdict,
    act: impl FnOnce() -> T + Send,
) -> Result<(T, Vec<Call>), Unavailable> {
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let watched = scope.spawn(move || {
            let listener = filter::install();
            let is_watched = listener.is_ok();
            // The receiver waits below.
            let _ = sender.send(listener);
            is_watched.then(act)
        });
        let listener = match receiver.recv() {
            Ok(Ok(listener)) => Listener::new(listener),
            Ok(Err(error)) => return Err(Unavailable(error)),
            Err(_) => return Err(Unavailable(io::Error::other("the watched thread ended"))),
        };
        let mut calls = Vec::new();
        while let Some(notice) = listener.next(|| watched.is_finished()).map_err(Unavailable)? {
            let verdict = match notice.call() {
                Some(call) => {
                    let verdict = judge(&call);
                    calls.push(call);
                    verdict
                }
                None => Verdict::Pass,
            };
            listener.answer(&notice, verdict);
        }
        drop(listener);
        match watched.join() {
            Ok(Some(done)) => Ok((done, calls)),
            Ok(None) => Err(Unavailable(io::Error::other("the filter was not installed"))),
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// As [`record`], with every call passed.
///
/// # Errors
/// As for [`record`].
pub fn observe<T: Send>(act: impl FnOnce() -> T + Send) -> Result<(T, Vec<Call>), Unavailable> {
    record(|_| Verdict::Pass, act)
}

/// Which flushes a filter answers with 0, without carrying them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// All `fsync`, `fdatasync`, `msync` and `sync_file_range`.
    All,
    /// Those whose first argument the kernel would not refuse.
    Valid,
}

/// Runs `act` on a thread of its own that has such a filter, as have all threads and processes that it starts.
///
/// # Errors
/// Where the kernel or a sandbox forbids it; then `act` did not run.
///
/// # Panics
/// With the panic of `act`.
pub fn silenced<T: Send>(silence: Silence, act: impl FnOnce() -> T + Send) -> Result<T, Unavailable> {
    thread::scope(|scope| {
        let done = scope.spawn(move || filter::silence(silence).map(|()| act()));
        done.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(Unavailable)
    })
}

/// Runs `act` on a thread of its own that has no netlink sockets (`EAFNOSUPPORT`, as under systemd's `RestrictAddressFamilies=`), as have no threads and
/// processes that it starts.
///
/// # Errors
/// Where the kernel or a sandbox forbids it; then `act` did not run.
///
/// # Panics
/// With the panic of `act`.
pub fn without_netlink<T: Send>(act: impl FnOnce() -> T + Send) -> Result<T, Unavailable> {
    thread::scope(|scope| {
        let done = scope.spawn(move || filter::refuse_netlink().map(|()| act()));
        done.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(Unavailable)
    })
}
