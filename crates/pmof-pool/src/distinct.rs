//! Whether the parts of a set are distinct files: two names can lead to one file.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::{PartSpec, PoolSet, PoolSetError, ReplicaSpec, part::names_in};

/// What a name resolves to, through all links and directories.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Identity {
    /// Device and inode of a file or directory.
    File(u64, u64),
    /// The number of a device.
    Device(u64),
    /// Nothing yet: device and inode of the directory that it would be in, and its name there.
    New(u64, u64, OsString),
}

impl Identity {
    /// `None` if the path leads nowhere or cannot be resolved; opening it gives the reason.
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

/// The names seen so far.
#[derive(Debug, Default)]
struct Seen {
    names: HashMap<Identity, PathBuf>,
}

impl Seen {
    fn add(&mut self, parts: &[PartSpec]) -> Result<(), PoolSetError> {
        for part in parts {
            self.add_path(&part.path)?;
            // Everything that appears in a directory becomes a part.
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
        // A set that names a file twice fails in its own check.
        parts.for_each(|parts| drop(seen.add(parts)));
        seen.add(to.replicas[*index].local().unwrap_or_default()).map_err(|error| (*index, error))?;
    }
    Ok(())
}

impl PoolSet {
    /// Checks that all local parts are distinct files: two names may lead to one file, through links, directories or mounts.
    /// Files that do not exist yet are distinguished by their directories. Nothing is opened.
    ///
    /// Every operation that creates, opens or changes a set does this first.
    ///
    /// Errors: `SameFile`.
    pub fn check_files(&self) -> Result<(), PoolSetError> {
        check_set(self).map_err(|(_, error)| error)
    }
}
