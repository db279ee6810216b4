//! What a command has made for its own use goes also when a signal ends it.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Child,
    thread::{sleep, spawn},
    time::Duration,
};

use pmof_locks::{Mutex, MutexGuard};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};
use tempfile::{Builder, NamedTempFile, TempDir};

/// Processes that still write into a directory while it is removed may fill it again.
const REMOVALS: usize = 100;

/// Rest between two removals.
const REST: Duration = Duration::from_millis(10);

/// Time for a child that was killed to end.
const CHILD_ENDS: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What has to go.
static MADE: Mutex<Made> = Mutex::new(Made { next: 0, items: Vec::new() });

struct Made {
    next: u64,
    items: Vec<(u64, Item)>,
}

enum Item {
    Path(PathBuf),
    /// By a descriptor: its number may be another's by now.
    Process(OwnedFd),
}

/// Has signals remove what the command made, before they end it as they do by default. For commands that do not handle signals themselves.
///
/// # Errors
/// The kernel's answer.
pub fn clean_up_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Nothing more is made: whoever tries waits for the end.
            let made = made();
            made.clean_up();
            // It ends the process, unless the kernel does not know the signal.
            let _ = emulate_default_handler(signal);
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn made() -> MutexGuard<'static, Made> {
    MADE.lock()
}

impl Made {
    fn add(&mut self, item: Item) -> Mark {
        self.next += 1;
        self.items.push((self.next, item));
        Mark(self.next)
    }

    /// Processes first, as they write into directories.
    fn clean_up(&self) {
        let processes = self.items.iter().filter_map(|(_, item)| match item {
            Item::Process(process) => Some(process),
            Item::Path(_) => None,
        });
        for process in processes {
            if pidfd_send_signal(process, Signal::KILL).is_ok() {
                // Its files are closed then. One that does not end is not waited for.
                let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&CHILD_ENDS));
            }
        }
        for (_, item) in self.items.iter().rev() {
            if let Item::Path(path) = item {
                remove(path);
            }
        }
    }
}

fn remove(path: &Path) {
    for _ in 0..REMOVALS {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => sleep(REST),
        }
    }
}

/// Something in the list, until it is dropped.
#[derive(Debug)]
struct Mark(u64);

impl Drop for Mark {
    fn drop(&mut self) {
        made().items.retain(|(number, _)| *number != self.0);
    }
}

/// A directory that is gone when it is dropped, and when a signal ends the process.
#[derive(Debug)]
pub struct TemporaryDirectory {
    // Removed first: a signal in between finds nothing, which is well.
    directory: TempDir,
    mark: Mark,
}

impl TemporaryDirectory {
    /// Makes one under `parent`, with a name that begins with `prefix`.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn create(prefix: &str, parent: &Path) -> io::Result<Self> {
        let mut made = made();
        let directory = Builder::new().prefix(prefix).tempdir_in(parent)?;
        let mark = made.add(Item::Path(directory.path().to_owned()));
        Ok(Self { directory, mark })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Leaves it where it is, for somebody to look into.
    pub fn keep(self) -> PathBuf {
        drop(self.mark);
        self.directory.keep()
    }
}

/// The same of a file.
#[derive(Debug)]
pub struct TemporaryFile {
    file: NamedTempFile,
    _mark: Mark,
}

impl TemporaryFile {
    /// Makes one as `builder` says, in `directory`.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn create(builder: &Builder<'_, '_>, directory: &Path) -> io::Result<Self> {
        let mut made = made();
        let file = builder.tempfile_in(directory)?;
        let mark = made.add(Item::Path(file.path().to_owned()));
        Ok(Self { file, _mark: mark })
    }

    /// The file.
    pub fn as_file(&self) -> &fs::File {
        self.file.as_file()
    }

    /// Gives it a name for good, which may replace another file's.
    ///
    /// # Errors
    /// The kernel's answer; with `replaces` false, that there is a file of this name.
    pub fn persist(self, path: &Path, replaces: bool) -> io::Result<()> {
        let named = if replaces { self.file.persist(path) } else { self.file.persist_noclobber(path) };
        named.map(drop).map_err(|error| error.error)
    }
}

/// A child that a signal kills before directories are removed. Held while the child is not waited for.
#[derive(Debug)]
pub struct KilledOnSignal {
    _mark: Option<Mark>,
}

impl KilledOnSignal {
    /// A child that was just started. Without descriptors of processes it ends with this process, a little later.
    pub fn new(child: &Child) -> Self {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
        Self { _mark: process.ok().map(|process| made().add(Item::Process(process))) }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_was_made_goes_and_what_was_dropped_or_kept_is_forgotten() {
        let parent = tempfile::tempdir().unwrap();
        let (first, kept) = (
            TemporaryDirectory::create("first", parent.path()).unwrap(),
            TemporaryDirectory::create("kept", parent.path()).unwrap(),
        );
        fs::write(first.path().join("file"), "bytes").unwrap();
        let file = TemporaryFile::create(Builder::new().suffix(".part"), parent.path()).unwrap();
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let mark = KilledOnSignal::new(&child);
        let kept = kept.keep();
        drop(TemporaryDirectory::create("dropped", parent.path()).unwrap());
        assert_eq!(made().items.len(), 3);
        made().clean_up();
        assert!(!first.path().exists() && kept.is_dir());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
        assert!(!child.wait().unwrap().success());
        drop((first, file, mark));
        assert!(made().items.is_empty());
    }
}
