//! Errors of memory and its media.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{Durability, limits::file_size_limit_below};

/// A failed operation on a medium. Each says what failed, on what, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The range does not lie inside the medium.
    #[error("range of {len_bytes} bytes at offset {offset} lies outside the medium of {size_bytes} bytes")]
    OutOfBounds {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// Bytes there are.
        size_bytes: u64,
    },
    /// The medium changed bytes since they were written: they do not have the digest that was kept of them.
    #[error("the medium changed bytes since they were written: {len_bytes} at offset {offset}; check the device")]
    Damaged {
        /// First byte of the damaged page.
        offset: u64,
        /// Bytes of the page.
        len_bytes: u64,
    },
    /// A store to a page whose protection was not taken back.
    #[error("the page at offset {offset} is protected by its digest, which a store would not fit")]
    Protected {
        /// First byte of the page.
        offset: u64,
    },
    /// An atomic operation needs an offset divisible by 8.
    #[error("offset {offset} is not divisible by 8, as an 8-byte atomic operation needs")]
    Misaligned {
        /// The offset asked for.
        offset: u64,
    },
    /// A length that no medium can have.
    #[error("a medium cannot be {len_bytes} bytes long: {why}")]
    BadLength {
        /// The length asked for.
        len_bytes: u64,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The file system has no room for all of the medium; nothing was left behind.
    #[error("no room for {len_bytes} bytes at {}: free space there, or ask for less", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        len_bytes: u64,
    },
    /// A file would be longer than files may be; nothing was left behind.
    #[error("{} would have {len_bytes} bytes, and {}", path.display(), limit_text(*limit_bytes))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        len_bytes: u64,
        /// The limit of file sizes of this process; `None` where it is the file system's.
        limit_bytes: Option<u64>,
    },
    /// The medium cannot give this level of durability.
    #[error("{medium} cannot give {wanted}: {mend}")]
    NotDurable {
        /// The level asked for.
        wanted: Durability,
        /// What the medium is.
        medium: String,
        /// What would give the level.
        mend: String,
    },
    /// The file at the path is of a kind that pmof does not map.
    #[error("{} cannot be mapped: {why}; {mend}", path.display())]
    Unsuitable {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
        /// What to do instead.
        mend: &'static str,
    },
    /// The medium was opened for reading only.
    #[error("{} was opened for reading only: open it for writing to change it", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// An earlier write-back failed, so what is on the device is unknown.
    #[error("an earlier flush of {} failed; what reached the device is unknown: close it, check the device, and open it again", path.display())]
    Poisoned {
        /// The file.
        path: PathBuf,
    },
    /// A page could not be loaded: the file was truncated, or its device cannot read it. The memory can no longer be read.
    #[error("a page of {} could not be loaded: the file was truncated, or its device cannot read it; no more accesses are possible; check the device (`dmesg`), and restore the file from a replica", path.display())]
    MediumFailed {
        /// The file.
        path: PathBuf,
    },
    /// Pages of a file stay in the page cache, and the disk has other bytes or cannot be read directly.
    #[error("{len_bytes} bytes of {} are in memory and not known to be on the disk: stop other users of the file, and open it for writing", path.display())]
    Unverified {
        /// The file.
        path: PathBuf,
        /// How many bytes, in whole pages.
        len_bytes: u64,
    },
    /// The memory was lent, and its owner took it back.
    #[error("the memory was deregistered while operations still used it: wait for their completions first")]
    TakenBack,
    /// A system call failed.
    #[error("{call} of {} failed{}", path.display(), crate::error::mend_suffix(mend))]
    Io {
        /// The system call.
        call: &'static str,
        /// The file, or `(anonymous)`.
        path: PathBuf,
        /// What the caller can do about it; may be empty.
        mend: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn mend_suffix(mend: &str) -> String {
    if mend.is_empty() { String::new() } else { format!("; {mend}") }
}

impl MemError {
    /// The cause of `EFBIG` for a file that would have this many bytes.
    pub fn too_long(path: &Path, len_bytes: u64) -> Self {
        Self::TooLong { path: path.into(), len_bytes, limit_bytes: file_size_limit_below(len_bytes) }
    }
}

fn limit_text(limit_bytes: Option<u64>) -> String {
    match limit_bytes {
        Some(limit) => format!(
            "this process may have files of {limit} bytes at most: raise the limit of file sizes where it is started (`ulimit -f`, LimitFSIZE= of \
             systemd), or ask for less"
        ),
        None => "its file system does not support files of that length: ask for less, or use another one".to_owned(),
    }
}
