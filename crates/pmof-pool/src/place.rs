//! Where the replicas of a pool lie.

use std::{fmt, path::PathBuf};

use pmof_control::SetName;

use crate::{PoolUrl, TargetUrl};

/// Where a replica lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaPlace {
    /// On a target, as a file of its root.
    Pool(PoolUrl),
    /// On a target, in the parts of one of its pool sets.
    Set {
        /// Its number in the pool set that names it, from 0; `None` where none does.
        index: Option<usize>,
        /// The target.
        target: TargetUrl,
        /// The set's name there.
        set: SetName,
    },
    /// On this machine, in files or devices.
    Local {
        /// Its number in the pool set that names it, from 0.
        index: usize,
        /// The first part.
        path: PathBuf,
    },
}

impl ReplicaPlace {
    /// The URL, of a replica that is a file of a target's root.
    pub fn url(&self) -> Option<&PoolUrl> {
        match self {
            Self::Pool(url) => Some(url),
            _ => None,
        }
    }

    /// The replica's number in the pool set that names it, from 0; `None` where no set does.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Pool(_) => None,
            Self::Set { index, .. } => *index,
            Self::Local { index, .. } => Some(*index),
        }
    }
}

/// The place; with `#` as what a message is about, such as `replica tcp://127.0.0.1:7204/orders`.
impl fmt::Display for ReplicaPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() && !matches!(self, Self::Set { index: None, .. }) {
            f.write_str("replica ")?;
        }
        match self {
            Self::Pool(url) => write!(f, "{url}"),
            Self::Set { index: Some(index), target, set } => write!(f, "{index} (pool set {set} on {target})"),
            Self::Set { index: None, target, set } => write!(f, "pool set {set} on {target}"),
            Self::Local { index, path } => write!(f, "{index} ({})", path.display()),
        }
    }
}
