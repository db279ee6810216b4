//! How the command line names a pool: by a URL, a pool set file, or its only part.

use std::{path::PathBuf, str::FromStr};

use pmof::PoolUrl;
use pmof_pool::PoolUrlError;

/// A native pool, or one of PMDK in local files.
#[derive(Clone, Debug)]
pub(crate) enum PoolPlace {
    /// A pool of a target, or in a local file.
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
