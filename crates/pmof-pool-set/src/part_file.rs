//! Files that parts are, as targets tell them.

use std::{fmt, path::PathBuf};

use crate::RemoteSpec;

/// Bytes of the identity of a file.
pub const FILE_IDENTITY_BYTES: usize = 32;

/// A file that a part names, or will be: what tells it from every other file, also from those of other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartFile {
    /// The BLAKE3 digest of, without gaps: the machine's `boot_id` `[16]`, or zeros where it is not known; a kind `u8`; and by that (numbers little-endian)
    /// 0 a file or directory that exists: its file system `u64` and inode `u64`; 1 a device: its number `u64`; 2 a file that does not exist
    /// yet: file system and inode of its directory, and its name there.
    pub identity: [u8; FILE_IDENTITY_BYTES],
    /// Its path on that machine.
    pub path: PathBuf,
}

/// Where a set names a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file, on its machine.
    pub path: PathBuf,
    /// The replica, if it is on another machine.
    pub remote: Option<RemoteSpec>,
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, remote } = self;
        write!(f, "{}", path.display())?;
        match remote {
            Some(RemoteSpec { node, set, .. }) => write!(f, " of {} on {node}", set.display()),
            None => Ok(()),
        }
    }
}
