//! Errors of a copy other than those of the pool.

use std::{io, path::PathBuf};

use pmof::PoolError;
use pmof_mem::MemError;

use crate::unequal::Unequal;

/// A copy that was aborted. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CopyError {
    /// Only regular files have a length that can be trusted.
    #[error("{} is not a regular file and cannot be copied; pack a directory first, for example with tar", path.display())]
    NotAFile { path: PathBuf, source: io::Error },
    /// Another program writes the source.
    #[error(
        "{} changed its length from {before_bytes} to {after_bytes} bytes while it was copied; copy it while no \
         program writes it",
        path.display()
    )]
    LengthChanged { path: PathBuf, before_bytes: u64, after_bytes: u64 },
    /// A replica does not read back as it was copied.
    #[error(
        "{replica} does not read back as it was copied, in the {len_bytes} bytes at offset {offset}; check the memory and disk of its machine, and copy again"
    )]
    Differs { replica: String, offset: u64, len_bytes: usize },
    /// The replicas of the pool that was copied are not equal.
    #[error(transparent)]
    Unequal(Unequal),
    /// The replicas differ, and a writer would be no news of damage.
    #[error("replicas differ, and whether a program writes the pool meanwhile is not known; copy it again")]
    Unsure { source: Box<PoolError> },
    /// The new file does not read back as it was written.
    #[error(
        "{} does not read back as it was written, in the {len_bytes} bytes at offset {offset}; check its disk",
        path.display()
    )]
    FileDiffers { path: PathBuf, offset: u64, len_bytes: usize },
    /// The pool's mark contradicts its size.
    #[error("the pool says that it holds a file of {stated_bytes} bytes, and has {size_bytes}; restore it")]
    BadMark { stated_bytes: u64, size_bytes: u64 },
    /// The destination exists.
    #[error("{} exists; replace it with --force, or choose another name", path.display())]
    Exists { path: PathBuf },
    /// The destination is a pool of a target, perhaps the one being copied.
    #[error("{} is {found}, and is not replaced; choose another name", path.display())]
    Pool { path: PathBuf, found: &'static str },
    /// The destination exists and is not a regular file.
    #[error("{} is not a regular file, and only regular files are replaced; choose another name", path.display())]
    NotReplaced { path: PathBuf },
    /// The destination's file system is full.
    #[error("no room for {len_bytes} bytes in {}; free space there, or choose another place", directory.display())]
    NoSpace { directory: PathBuf, len_bytes: u64 },
    /// The destination would exceed the limit of file sizes.
    #[error(transparent)]
    TooLong(MemError),
    /// A system call failed.
    #[error("{call} of {} failed; check that it exists and that this user may access it", path.display())]
    Io { call: &'static str, path: PathBuf, source: io::Error },
}

impl CopyError {
    /// Whether a comparison was made and found a difference: while a pool is written, replicas may differ, and that says nothing.
    pub(crate) fn is_difference(&self) -> bool {
        match self {
            Self::Unequal(unequal) => unequal.was_closed,
            Self::Differs { .. } | Self::FileDiffers { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn io(call: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { call, path: path.into(), source: source.into() }
    }
}
