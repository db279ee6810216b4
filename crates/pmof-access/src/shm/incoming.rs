//! Listening on a Unix socket.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use pmof_mem::forks::Uninherited;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, fchmod, flock},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, accept_with, bind, listen, socket_with},
};

use super::{
    shares::Shares,
    wire::{ShmWire, is_listened_on, socket_address},
};

/// Only the owner's own processes, and root's, may connect.
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// How long another target that starts in the same directory is waited for: far longer than that takes.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A socket that is listened on. Its file goes with it.
#[derive(Debug)]
pub(crate) struct ShmIncoming {
    socket: Uninherited,
    path: PathBuf,
    /// Device and inode of the socket's file: what lies at the path later may be another target's.
    identity: (u64, u64),
    shares: Arc<Shares>,
}

impl ShmIncoming {
    /// A socket file that a dead target left is replaced; any other file stays, and is an error.
    pub(crate) fn open(path: &Path, backlog: i32, shares: Arc<Shares>) -> io::Result<Self> {
        let address = socket_address(path)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = Uninherited::open(|| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None))?;
        // The file is born with the mode of the socket, so there is no moment in which others may connect.
        fchmod(&socket, OWNER_ONLY)?;
        let _lock = lock_directory(path)?;
        make_room(path)?;
        bind(&socket, &address)?;
        let identity = identity(path)?;
        let listening = Self { socket, path: path.to_owned(), identity, shares };
        listen(&listening.socket, backlog)?;
        Ok(listening)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next connection, if one waits. One whose user may not connect is sent away.
    pub(super) fn accept_one(&self) -> io::Result<Option<ShmWire>> {
        loop {
            match Uninherited::open(|| accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)) {
                Ok(socket) => {
                    if let Some(wire) = ShmWire::accepted(socket, Arc::clone(&self.shares)) {
                        return Ok(Some(wire));
                    }
                }
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for ShmIncoming {
    fn drop(&mut self) {
        // Without the directory's lock, which whoever makes a pool there holds for long: while this socket listens nobody takes its file for a stale one.
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // One that stays is replaced by the next target.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Keeps other targets from starting in the same directory: of two that find the same stale file, the second would remove the socket of the first.
fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let named =
        |error: io::Error, what: &str| io::Error::new(error.kind(), format!("{what} {}: {error}", directory.display()));
    let opened = rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let lock = opened.map_err(|errno| named(errno.into(), "the directory"))?;
    for _ in 0..LOCK_TRIES {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(LOCK_PAUSE),
            Err(errno) => return Err(named(errno.into(), "the lock of")),
        }
    }
    Err(named(Errno::WOULDBLOCK.into(), "another process holds the lock of"))
}

fn make_room(path: &Path) -> io::Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let taken = |why: &str| io::Error::new(io::ErrorKind::AddrInUse, why.to_owned());
    if !file.file_type().is_socket() {
        return Err(taken("there is a file that is no socket"));
    }
    if file.uid() != rustix::process::geteuid().as_raw() {
        return Err(taken("there is a socket of another user"));
    }
    match is_listened_on(path) {
        Ok(true) => Err(taken("somebody listens there already")),
        Ok(false) => Ok(rustix::fs::unlink(path)?),
        // Its target has just ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(taken(&format!("there is a socket, and whether its process lives is not known ({error})"))),
    }
}
