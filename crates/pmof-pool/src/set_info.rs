//! What the parts of a pool set and its hosts say of its replicas, while the pool may be in use.

use std::path::{Path, PathBuf};

use pmof_pool_set::{
    Attributes, ContentsState, Misfit, PartSpec, PoolHeader, PoolSet, PoolSetError, ReplicaSpec, misfits,
    part_contents, part_header,
};

use crate::{RemoteState, SshReplicas};

#[cfg(test)]
mod tests;

/// What there is to know of the pool of a set.
#[derive(Debug)]
#[non_exhaustive]
pub struct SetInfo {
    /// What is wrong with the names of the parts, by which two of them are one file.
    pub files: Result<(), PoolSetError>,
    /// The replicas, in the order of the set.
    pub replicas: Vec<ReplicaInfo>,
}

/// What there is to know of one replica.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplicaInfo {
    /// What is there.
    pub found: ReplicaFound,
    /// What its header says that does not fit the other replicas of the set.
    pub misfits: Vec<Misfit>,
}

/// What is where a set has a replica.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplicaFound {
    /// On this machine.
    Here {
        /// The parts, in their order.
        parts: Vec<PartInfo>,
        /// What they hold, by what it begins with; `None` where that could not be read, or a header is damaged or missing. Of a pool that is
        /// being opened it may look as if it were damaged.
        contents: Option<ContentsState>,
    },
    /// On another machine: what its host says.
    There(RemoteState),
}

/// What there is to know of one part.
#[derive(Debug)]
#[non_exhaustive]
pub struct PartInfo {
    /// The file, device or directory, as the set names it.
    pub path: PathBuf,
    /// Its header, of a directory that of its first file, or why there is none; `None` of a part that has no header by the set's options.
    pub header: Option<Result<PoolHeader, PoolSetError>>,
}

impl SetInfo {
    /// Nothing is locked or changed here; the hosts are asked one after the other.
    pub(crate) fn of(set: &PoolSet, remotes: &mut SshReplicas) -> Self {
        let found = set.replicas.iter().map(|replica| match replica {
            ReplicaSpec::Local(specs) => ReplicaFound::here(set, specs),
            ReplicaSpec::Remote(remote) => ReplicaFound::There(remotes.state(remote)),
        });
        let found: Vec<_> = found.collect();
        let headers: Vec<_> = found.iter().map(ReplicaFound::attributes).collect();
        let replica = |(index, found)| ReplicaInfo { found, misfits: misfits(&headers, index) };
        Self { files: set.check_files(), replicas: found.into_iter().enumerate().map(replica).collect() }
    }
}

impl ReplicaFound {
    fn here(set: &PoolSet, specs: &[PartSpec]) -> Self {
        let has_header = |index: usize| !set.options.no_headers && (index == 0 || !set.options.single_header);
        let part = |(index, spec): (usize, &PartSpec)| PartInfo {
            path: spec.path.clone(),
            header: has_header(index).then(|| part_header(&first_file(&spec.path))),
        };
        let parts: Vec<_> = specs.iter().enumerate().map(part).collect();
        // What is wrong with the headers is told already.
        let has_headers = !set.options.no_headers && parts.iter().all(|part| !matches!(part.header, Some(Err(_))));
        let contents = if has_headers { part_contents(specs, set.options).ok() } else { None };
        Self::Here { parts, contents }
    }

    /// What it holds, by what it begins with; `None` where that could not be read.
    pub fn contents(&self) -> Option<ContentsState> {
        match self {
            Self::Here { contents, .. } => *contents,
            Self::There(RemoteState::Sound { contents, .. }) => Some(*contents),
            Self::There(_) => None,
        }
    }

    /// What its first header says, of one that is sound.
    pub fn attributes(&self) -> Option<Attributes> {
        let attributes = match self {
            Self::Here { parts, .. } => Some(parts.first()?.header.as_ref()?.as_ref().ok()?.attributes()),
            Self::There(RemoteState::Sound { attributes, .. }) => Some(*attributes),
            Self::There(_) => None,
        };
        attributes.filter(|attributes| !attributes.is_unfinished())
    }
}

/// The file that has the header of a part, which may be a directory of files.
fn first_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("000000.pmem") } else { path.into() }
}
