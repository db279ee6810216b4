//! Finds the upper file of a file on overlayfs.
//!
//! The kernel names the upper directory as text, as of the time and in the mount namespace of the mount. Whether the path still leads
//! there is tested by an effect: a change of the overlay's file changes the upper file.

use std::{
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::fs::{Mode, OFlags, Stat};

use crate::{System, answers::open_regular, mounts::Mount};

/// How often the change is tried: the kernel's change time may be as coarse as a tick.
const TRIES: u32 = 50;
const TICK: Duration = Duration::from_millis(2);

/// The file below `file`, which must be open for writing, so that it has been copied up, and be the caller's to change the
/// time of change of.
pub(crate) fn upper_file(system: &System, mount: &Mount, file: BorrowedFd<'_>) -> Result<OwnedFd, String> {
    let upper = upper_path(system, mount, file)?;
    let shown = upper.display();
    let is_writable = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.intersects(OFlags::RDWR | OFlags::WRONLY));
    if !is_writable {
        return Err("which file of the upper file system it is can be seen only once it is opened for writing".into());
    }
    let found = open_regular(&upper)
        .map_err(|error| format!("{shown}, the overlay's upper file, cannot be opened: {error}"))?;
    if is_changed_by(file, found.as_fd())? {
        Ok(found)
    } else {
        Err(format!(
            "{shown} is not the overlay's upper file: it was mounted over, detached, or is of another mount namespace"
        ))
    }
}

fn upper_path(system: &System, mount: &Mount, file: BorrowedFd<'_>) -> Result<PathBuf, String> {
    let directory = mount.option("upperdir").ok_or("the overlay has no upper directory")?;
    if !directory.starts_with('/') {
        return Err(format!("the overlay's upper directory is named from somewhere: {directory}"));
    }
    let link = system.proc_root.join(format!("self/fd/{}", file.as_raw_fd()));
    let path = std::fs::read_link(&link).map_err(|error| format!("{}: {error}", link.display()))?;
    let nameless = || format!("{} is not below {}", path.display(), mount.point.display());
    let within = path.strip_prefix(&mount.point).map_err(|_| nameless())?;
    let root = mount.root.strip_prefix("/").unwrap_or(Path::new(""));
    Ok(Path::new(directory).join(root).join(within))
}

/// Whether both are one file: alike, and a new time of change of the one is the other's.
fn is_changed_by(file: BorrowedFd<'_>, found: BorrowedFd<'_>) -> Result<bool, String> {
    let stat = |file| rustix::fs::fstat(file).map_err(|error| format!("fstat: {error}"));
    let change = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec);
    let likeness = |stat: &Stat| (stat.st_size, stat.st_mode, stat.st_uid, stat.st_mtime, stat.st_mtime_nsec);
    let before = stat(found)?;
    for _ in 0..TRIES {
        let own = stat(file)?;
        // The same rights again: nothing changes but the time of change.
        rustix::fs::fchmod(file, Mode::from_raw_mode(own.st_mode))
            .map_err(|error| format!("the overlay's file cannot be marked (fchmod: {error})"))?;
        let (own, other) = (stat(file)?, stat(found)?);
        if likeness(&own) != likeness(&other) || change(&own) != change(&other) {
            return Ok(false);
        }
        if change(&other) != change(&before) {
            return Ok(true);
        }
        thread::sleep(TICK);
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
