//! A set that is removed with all its replicas, or not at all.

use pmof_pool::{PoolSet, PoolSetError, Removal, ReplicaSpec, SetOptions};

use crate::{PlaceError, PoolError, PoolRefusal, RemoteRemoval, ReplicaError, TargetOptions, remote_place};

/// Why one replica cannot be removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicaRemovalError {
    /// Its parts on this machine.
    #[error(transparent)]
    Local(#[from] PoolSetError),
    /// What the set says of its place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Its host, or the way there.
    #[error(transparent)]
    Remote(#[from] Box<PoolError>),
}

impl ReplicaRemovalError {
    /// Whether the replica was looked at, and is not whole: then force removes what is left of it.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Local(error) => error.is_damage(),
            Self::Place(_) => false,
            Self::Remote(error) => matches!(
                error.replica_error(),
                Some(ReplicaError::Refused { refusal: PoolRefusal::NotAUsablePool | PoolRefusal::PartMissing, .. })
            ),
        }
    }
}

/// Why a set was not removed, or not whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetRemovalError {
    /// The set names a file twice.
    #[error(transparent)]
    Files(PoolSetError),
    /// Replicas that cannot be removed, by their places in the set, from 0. Nothing was removed.
    #[error("{}; nothing was removed; {}", texts(reasons), if *helps_force { FORCE } else { FREE })]
    Refused {
        /// Why, of each.
        reasons: Vec<(usize, ReplicaRemovalError)>,
        /// Whether force would remove them.
        helps_force: bool,
    },
    /// The removal itself failed, which nothing told beforehand.
    #[error("replica {index}{}: {source}", after(removed))]
    Failed {
        /// Which replica, from 0.
        index: usize,
        /// Those that were removed before.
        removed: Vec<usize>,
        /// What went wrong.
        source: ReplicaRemovalError,
    },
}

const FORCE: &str = "`--force` removes what is left";
const FREE: &str = "have each replica reachable and unused, or take it out of the pool set file";

fn texts(reasons: &[(usize, ReplicaRemovalError)]) -> String {
    reasons.iter().map(|(index, error)| format!("replica {index}: {error}")).collect::<Vec<_>>().join("; ")
}

fn after(removed: &[usize]) -> String {
    let removed: Vec<_> = removed.iter().map(ToString::to_string).collect();
    match &removed[..] {
        [] => String::new(),
        _ => format!(
            ", after these were removed: {}; `--force` removes the rest once the reason is gone",
            removed.join(", ")
        ),
    }
}

/// All replicas of a set, looked at and locked here and on their hosts. Nothing is changed before it is
/// [carried out](Self::carry_out), and nothing if it is dropped.
#[derive(Debug)]
pub struct SetRemoval {
    found: Vec<(usize, Found)>,
}

/// A replica that is locked, and can be removed.
#[derive(Debug)]
enum Found {
    Here(Removal),
    There(Box<RemoteRemoval>),
}

impl SetRemoval {
    /// Finds and locks all replicas. `force`: those that are missing or damaged do not matter. What is wrong with any of them is
    /// told at once.
    ///
    /// Errors: `Files`, `Refused`.
    pub fn prepare(set: &PoolSet, force: bool, options: &TargetOptions) -> Result<Self, SetRemovalError> {
        set.check_files().map_err(SetRemovalError::Files)?;
        let (mut found, mut reasons) = (Vec::new(), Vec::new());
        for (index, replica) in set.replicas.iter().enumerate() {
            match Found::new(replica, set.options, force, options) {
                Ok(replica) => found.push((index, replica)),
                Err(error) => reasons.push((index, error)),
            }
        }
        if reasons.is_empty() {
            return Ok(Self { found });
        }
        let helps_force = !force && reasons.iter().all(|(_, error)| error.is_damage());
        Err(SetRemovalError::Refused { reasons, helps_force })
    }

    /// Removes all of them, durably.
    ///
    /// Errors: `Failed`.
    pub fn carry_out(mut self) -> Result<(), SetRemovalError> {
        // Those that a lost connection can stop go first: then nothing of this machine is gone.
        self.found.sort_by_key(|(_, replica)| matches!(replica, Found::Here(_)));
        let mut removed = Vec::with_capacity(self.found.len());
        for (index, replica) in self.found {
            match replica.remove() {
                Ok(()) => removed.push(index),
                Err(source) => return Err(SetRemovalError::Failed { index, removed, source }),
            }
        }
        Ok(())
    }
}

impl Found {
    fn new(
        replica: &ReplicaSpec,
        set: SetOptions,
        force: bool,
        options: &TargetOptions,
    ) -> Result<Self, ReplicaRemovalError> {
        match replica {
            ReplicaSpec::Local(parts) => Ok(Self::Here(Removal::prepare(parts, set, force)?)),
            ReplicaSpec::Remote(remote) => {
                let (url, name) = remote_place(remote)?;
                Ok(Self::There(Box::new(RemoteRemoval::prepare(&url, &name, force, false, options).map_err(Box::new)?)))
            }
        }
    }

    fn remove(self) -> Result<(), ReplicaRemovalError> {
        match self {
            Self::Here(removal) => Ok(removal.carry_out()?),
            Self::There(removal) => Ok(removal.carry_out().map_err(Box::new)?),
        }
    }
}
