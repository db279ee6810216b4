//! Whether the parts of a set are as many files as it names: two names can lead to one file.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::{PartSpec, PoolSet, PoolSetError, ReplicaSpec, part::names_in};

/// What a name leads to, whatever links and directories are on the way.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Identity {
    /// Device and inode of a file or directory.
    File(u64, u64),
    /// The number of a device.
    Device(u64),
    /// Nothing yet: device and inode of the directory that it would lie in, and its name there.
    New(u64, u64, OsString),
}

impl Identity {
    /// `None` where the path leads nowhere, or cannot be followed; opening it says why.
    fn of(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_char_device() || found.file_type().is_block_device() => {
                Some(Self::Device(found.rdev()))
            }
            Ok(found) => Some(Self::File(found.dev(), found.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = fs::metadata(path.parent()?).ok()?;
                Some(Self::New(directory.dev(), directory.ino(), path.file_name()?.to_owned()))
            }
            Err(_) => None,
        }
    }
}

/// The names that were seen.
#[derive(Debug, Default)]
struct Seen {
    names: HashMap<Identity, PathBuf>,
}

impl Seen {
    fn add(&mut self, parts: &[PartSpec]) -> Result<(), PoolSetError> {
        for part in parts {
            self.add_path(&part.path)?;
            // What lies in a directory is a part, as soon as it is there.
            for path in names_in(&part.path) {
                self.add_path(&path)?;
            }
        }
        Ok(())
    }

    fn add_path(&mut self, path: &Path) -> Result<(), PoolSetError> {
        let Some(identity) = Identity::of(path) else { return Ok(()) };
        match self.names.insert(identity, path.to_owned()) {
            Some(first) => Err(PoolSetError::SameFile { path: path.into(), first }),
            None => Ok(()),
        }
    }
}

/// Fails with `SameFile` if two of the parts are one file.
pub(crate) fn check_parts(parts: &[PartSpec]) -> Result<(), PoolSetError> {
    Seen::default().add(parts)
}

/// Fails if two parts of the set are one file, also of different replicas; gives the place of the replica that names it again.
pub(crate) fn check_set(set: &PoolSet) -> Result<(), (usize, PoolSetError)> {
    let mut seen = Seen::default();
    for (index, replica) in set.replicas.iter().enumerate() {
        seen.add(replica.local().unwrap_or_default()).map_err(|error| (index, error))?;
    }
    Ok(())
}

/// Fails if a replica of `to` at one of the places `added` has a file of the set `from`.
pub(crate) fn check_added(from: &PoolSet, to: &PoolSet, added: &[usize]) -> Result<(), (usize, PoolSetError)> {
    for index in added {
        let mut seen = Seen::default();
        let parts = from.replicas.iter().filter_map(ReplicaSpec::local);
        // One that names a file twice is told by its own check.
        parts.for_each(|parts| drop(seen.add(parts)));
        seen.add(to.replicas[*index].local().unwrap_or_default()).map_err(|error| (*index, error))?;
    }
    Ok(())
}

impl PoolSet {
    /// Whether all local parts are files of their own: two names may lead to one file, through links, directories or mounts.
    /// Files that are not there yet are told apart by the directories that they would lie in. Nothing is opened.
    ///
    /// Whatever makes, opens or changes a set does this first.
    ///
    /// Errors: `SameFile`.
    pub fn check_files(&self) -> Result<(), PoolSetError> {
        check_set(self).map_err(|(_, error)| error)
    }
}
