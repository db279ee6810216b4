//! What a pool is named by on the command line: a URL, a pool set file, or its only part.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use anyhow::{Context, bail};
use pmof::mem::Memory;
use pmof::{PoolUrl, PoolUrlError};
use pmof_pool::{
    BlockTable, Feature, HeaderError, NoRemotes, PartSpec, PoolSet, PoolSetError, ReplicaSpec, SetOptions,
    behind_header, check_named_whole, part_header,
};

/// A pool of a target, or one in files of this machine.
#[derive(Clone, Debug)]
pub(crate) enum PoolPlace {
    /// Of a target.
    Url(PoolUrl),
    /// A pool set file, or the file or device that is a pool's only part.
    Path(PathBuf),
}

impl FromStr for PoolPlace {
    type Err = PoolUrlError;

    fn from_str(text: &str) -> Result<Self, PoolUrlError> {
        if text.contains("://") { Ok(Self::Url(text.parse()?)) } else { Ok(Self::Path(text.into())) }
    }
}

/// What is said of a file or device that is a block table without a pool; `None` if it is none.
pub(crate) fn block_table(path: &Path) -> anyhow::Result<Option<BlockTable>> {
    match Memory::open_read_only(path, None) {
        Ok(memory) => Ok(pmof_pool::block_table(&memory)?),
        Err(_) => Ok(None),
    }
}

const BRING_BACK: &str = "restore it from a copy, or from another replica with the pool set file that names both";

/// What a file is whose header does not say it: by its signature, or by what lies behind the header. Says what of it is intact.
fn damaged_pool(path: &Path) -> Option<String> {
    let behind = behind_header(&Arc::new(Memory::open_read_only(path, None).ok()?))?;
    Some(format!("a pool or the first part of one ({behind})"))
}

/// The pool set that `path` is, or is the only part of.
pub(crate) fn set_at(path: &Path) -> anyhow::Result<PoolSet> {
    let is_set = PoolSet::is_set_file(path).with_context(|| {
        format!("cannot read {}; name a pool set file, a pool's only part, or a URL", path.display())
    })?;
    if is_set {
        return Ok(PoolSet::read(path)?);
    }
    let path = std::path::absolute(path)?;
    let header = match part_header(&path) {
        Ok(header) => header,
        Err(PoolSetError::Header {
            problem: problem @ (HeaderError::BadChecksum { .. } | HeaderError::Blank), ..
        }) => {
            if block_table(&path)?.is_some() {
                bail!("{} is a block table (BTT) and no pool: `pmof pool check` checks it", path.display());
            }
            match damaged_pool(&path) {
                Some(found) => bail!("{} is {found}, whose header is damaged: {problem}; {BRING_BACK}", path.display()),
                None => bail!("{} is neither a pool set file nor a part of a pool", path.display()),
            }
        }
        Err(PoolSetError::Header { problem, .. }) => {
            let found = damaged_pool(&path).unwrap_or_else(|| "part of a pool".to_owned());
            bail!("{} is {found}, whose header is damaged: {problem}; {BRING_BACK}", path.display())
        }
        Err(error) => return Err(error.into()),
    };
    if header.next_part_uuid != header.uuid || header.next_replica_uuid != header.uuid {
        bail!("{} is one of several parts of a pool: name the pool set file that lists them", path.display());
    }
    let len_bytes = std::fs::metadata(&path)?.len();
    let size = if len_bytes == 0 { pmof_pool::PartSize::Auto } else { pmof_pool::PartSize::Bytes(len_bytes) };
    let part = PartSpec { size, ..PartSpec::new(&path, len_bytes) };
    let options = SetOptions { single_header: header.features.has(Feature::SingleHeader), no_headers: false };
    let set = PoolSet { path, replicas: vec![ReplicaSpec::Local(vec![part])], options };
    check_named_whole(&set, &mut NoRemotes)?;
    Ok(set)
}
