//! The pool set that a path names: a pool set file, or the file or device that is a pool's only part.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use pmof_mem::Memory;

use pmof_terms::NATIVE_MAGIC;

use crate::{
    BlockTable, Feature, HeaderError, NoRemotes, PartSize, PartSpec, PoolSet, PoolSetError, ReplicaSpec, SetError,
    SetOptions, behind_header, check_named_whole, part_header,
};

#[cfg(test)]
mod tests;

/// Why a path does not name a pool set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetAtError {
    /// It cannot be read.
    #[error(
        "cannot read {}; {}", path.display(),
        if path.to_string_lossy().contains("://") {
            "pools at URLs are looked at by `pmof pool info`, `scrub` and `cp`, and not by this command"
        } else {
            "name a pool set file or a pool's only part"
        }
    )]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The pool set file is invalid.
    #[error(transparent)]
    Set(#[from] SetError),
    /// It is a replica of a native pool, which is no part of a pool set.
    #[error(
        "{} is a replica of a native pool: name it as file://DIRECTORY/POOL to `pmof pool info`, `scrub` or `cp`",
        path.display()
    )]
    Native {
        /// The path.
        path: PathBuf,
    },
    /// It is a block table without a pool.
    #[error("{} is a block table (BTT) and not a pool: `pmof pool check` checks it", path.display())]
    BlockTable {
        /// The path.
        path: PathBuf,
    },
    /// Nothing shows that it is a pool.
    #[error("{} is neither a pool set file nor a part of a pool", path.display())]
    NotAPool {
        /// The path.
        path: PathBuf,
    },
    /// It belongs to a pool, by its signature or its contents, but the header is damaged.
    #[error(
        "{} is {found}, whose header is damaged; restore it from a copy, or from another replica with the pool set file that names both",
        path.display()
    )]
    Damaged {
        /// The path.
        path: PathBuf,
        /// What it is, and which of it is intact.
        found: String,
        /// What is wrong with the header.
        source: HeaderError,
    },
    /// The pool has other parts.
    #[error("{} is one of several parts of a pool: name the pool set file that lists them", path.display())]
    OneOfSeveral {
        /// The path.
        path: PathBuf,
    },
    /// The part cannot be used, or is shorter than its pool.
    #[error(transparent)]
    Part(#[from] PoolSetError),
}

/// The pool set that the file at `path` lists, or the set of one part if it is a pool's only part. Nothing is locked or changed.
///
/// # Errors
/// [`SetAtError`].
pub fn set_at(path: &Path) -> Result<PoolSet, SetAtError> {
    let unreadable = |source| SetAtError::Unreadable { path: path.into(), source };
    if PoolSet::is_set_file(path).map_err(unreadable)? {
        return Ok(PoolSet::read(path)?);
    }
    let path = std::path::absolute(path).map_err(unreadable)?;
    if is_native(&path) {
        return Err(SetAtError::Native { path });
    }
    let header = match part_header(&path) {
        Ok(header) => header,
        Err(PoolSetError::Header { problem, .. }) => return Err(without_header(path, problem)?),
        Err(error) => return Err(error.into()),
    };
    if header.next_part_uuid != header.uuid || header.next_replica_uuid != header.uuid {
        return Err(SetAtError::OneOfSeveral { path });
    }
    let len_bytes = fs::metadata(&path).map_err(unreadable)?.len();
    let size = if len_bytes == 0 { PartSize::Auto } else { PartSize::Bytes(len_bytes) };
    let part = PartSpec { size, ..PartSpec::new(&path, len_bytes) };
    let options = SetOptions { single_header: header.features.has(Feature::SingleHeader), no_headers: false };
    let set = PoolSet { path, replicas: vec![ReplicaSpec::Local(vec![part])], options };
    check_named_whole(&set, &mut NoRemotes)?;
    Ok(set)
}

/// Whether a file begins as the replica of a native pool does.
fn is_native(path: &Path) -> bool {
    let mut magic = [0; NATIVE_MAGIC.len()];
    let is_file = fs::metadata(path).is_ok_and(|file| file.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == NATIVE_MAGIC
}

/// Classifies a file with a damaged header.
fn without_header(path: PathBuf, problem: HeaderError) -> Result<SetAtError, PoolSetError> {
    // With any other problem it certainly belongs to a pool.
    let may_be_none = matches!(problem, HeaderError::BadChecksum { .. } | HeaderError::Blank);
    if may_be_none && BlockTable::at(&path)?.is_some() {
        return Ok(SetAtError::BlockTable { path });
    }
    Ok(match damaged_pool(&path) {
        Some(found) => SetAtError::Damaged { path, found, source: problem },
        None if may_be_none => SetAtError::NotAPool { path },
        None => SetAtError::Damaged { path, found: "part of a pool".to_owned(), source: problem },
    })
}

/// Describes the pool behind a damaged header; `None` if nothing shows that there is one.
fn damaged_pool(path: &Path) -> Option<String> {
    let behind = behind_header(&Arc::new(Memory::open_read_only(path, None).ok()?))?;
    Some(format!("a pool or the first part of one ({behind})"))
}
