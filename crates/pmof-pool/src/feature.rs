//! The features that the headers of a pool name: read, and changed in all replicas.

use pmof_mem::Declaration;

use crate::{
    AccessError, Feature, Features, LocalReplica, OpenFor, PoolSet, PoolSetError, Reached, RemoteReplicas,
    ReplicaAccess, ReplicaSpec, check_named_whole,
};

#[cfg(test)]
mod tests;

/// How a pool's features are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureChange {
    /// The pool gets it.
    Enable(Feature),
    /// The pool has it no more.
    Disable(Feature),
}

/// How the replicas of a pool are reached whose features are changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct FeatureOptions {
    /// What the operator vouches for of the local ones.
    pub declaration: Option<Declaration>,
    /// Nothing is changed; what would be is told.
    pub dry_run: bool,
}

/// Why the features of a pool are not told, or not changed in all replicas.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FeatureError {
    /// The set names some of a pool's parts or replicas; the others would keep their features.
    #[error(transparent)]
    Set(#[from] PoolSetError),
    /// A replica on another machine is not whole.
    #[error("replica {index} is not sound ({reason}): bring the set in order first (`pmof pool sync`)")]
    NotSound {
        /// Its place in the set, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// Which parts have headers is decided when a pool is made.
    #[error("SINGLEHDR is an option of the pool set file: a pool has it from the start or not at all")]
    OfTheSet,
    /// A shutdown state lies behind the first 2048 bytes of a header, and must not be in its checksum.
    #[error("SHUTDOWN_STATE needs CKSUM_2K: turn SHUTDOWN_STATE off first, or CKSUM_2K on")]
    NeedsChecksum2k,
    /// One replica's parts, or the way to it. Where features were to be changed, other replicas may have them changed: the same call again
    /// changes the rest.
    #[error("replica {index} failed")]
    Replica {
        /// Its place in the set, from 0.
        index: usize,
        /// What went wrong.
        source: AccessError,
    },
}

impl FeatureChange {
    /// What `before` becomes.
    fn of(self, before: Features) -> Result<Features, FeatureError> {
        let after = match self {
            Self::Enable(feature) => before.with(feature),
            Self::Disable(feature) => before.without(feature),
        };
        if before.has(Feature::SingleHeader) != after.has(Feature::SingleHeader) {
            return Err(FeatureError::OfTheSet);
        }
        if after.has(Feature::ShutdownState) && !after.has(Feature::Checksum2k) && after != before {
            return Err(FeatureError::NeedsChecksum2k);
        }
        Ok(after)
    }
}

/// The features that the first replica of a set has. All are opened for reading, and closed again.
///
/// # Errors
/// `NotSound`, `Replica`.
pub fn features(
    set: &PoolSet,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
) -> Result<Features, FeatureError> {
    let mut replicas = open_all(set, OpenFor::Read, declaration, remotes)?;
    let found = each(&mut replicas, |replica| Ok(replica.attributes()?.features()));
    let closed = close_all(replicas);
    let found = found?;
    closed.map(|()| found.into_iter().next().unwrap_or_default())
}

/// Has every header of every replica name a feature, or name it no more; gives what the first replica has then. Replicas that have it so
/// already are left as they are.
///
/// All replicas are open, and all take the change, before the first is changed. One that fails then keeps none of the others from being
/// changed: they differ from it until the same call succeeds.
///
/// # Errors
/// [`FeatureError`].
pub fn change_feature(
    set: &PoolSet,
    change: FeatureChange,
    options: &FeatureOptions,
    remotes: &mut dyn RemoteReplicas,
) -> Result<Features, FeatureError> {
    check_named_whole(set, remotes)?;
    let access = if options.dry_run { OpenFor::Read } else { OpenFor::Write };
    let mut replicas = open_all(set, access, options.declaration, remotes)?;
    let changed = change_all(&mut replicas, change, access);
    let closed = close_all(replicas);
    let features = changed?;
    closed.map(|()| features)
}

fn change_all(
    replicas: &mut [Box<dyn ReplicaAccess>],
    change: FeatureChange,
    access: OpenFor,
) -> Result<Features, FeatureError> {
    let before = each(replicas, |replica| Ok(replica.attributes()?.features()))?;
    let after = before.iter().map(|before| change.of(*before)).collect::<Result<Vec<_>, _>>()?;
    if access == OpenFor::Write {
        let mut wanted = before.iter().zip(&after);
        each(replicas, |replica| match wanted.next() {
            Some((before, after)) if before != after => {
                let mut attributes = replica.attributes()?;
                (attributes.compat, attributes.incompat, attributes.ro_compat) =
                    (after.compat, after.incompat, after.ro_compat);
                replica.set_attributes(&attributes)
            }
            _ => Ok(()),
        })?;
    }
    Ok(after.into_iter().next().unwrap_or_default())
}

/// Does the same with all replicas; the failure of one keeps it from none.
fn each<T>(
    replicas: &mut [Box<dyn ReplicaAccess>],
    mut act: impl FnMut(&mut dyn ReplicaAccess) -> Result<T, AccessError>,
) -> Result<Vec<T>, FeatureError> {
    let done: Vec<_> = replicas.iter_mut().map(|replica| act(&mut **replica)).collect();
    let failed = |(index, done): (usize, Result<T, _>)| done.map_err(|source| FeatureError::Replica { index, source });
    done.into_iter().enumerate().map(failed).collect()
}

/// Closes all; the failure of one keeps none from it.
fn close_all(replicas: Vec<Box<dyn ReplicaAccess>>) -> Result<(), FeatureError> {
    let closed: Vec<_> = replicas.into_iter().map(ReplicaAccess::close).collect();
    let failed =
        |(index, closed): (usize, Result<(), _>)| closed.map_err(|source| FeatureError::Replica { index, source });
    closed.into_iter().enumerate().try_for_each(failed)
}

fn open_all(
    set: &PoolSet,
    access: OpenFor,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
) -> Result<Vec<Box<dyn ReplicaAccess>>, FeatureError> {
    let open = |(index, spec): (usize, &ReplicaSpec)| {
        let failed = |source| FeatureError::Replica { index, source };
        Ok(match spec {
            ReplicaSpec::Local(parts) => {
                let replica = LocalReplica::open(parts, set.options, access, declaration);
                Box::new(replica.map_err(|error| failed(error.into()))?) as Box<dyn ReplicaAccess>
            }
            ReplicaSpec::Remote(remote) => match remotes.open(remote, 0, access).map_err(failed)? {
                Reached::Whole(replica) => replica,
                Reached::Damaged(reason) | Reached::HeadersDamaged(reason) => {
                    return Err(FeatureError::NotSound { index, reason });
                }
            },
        })
    };
    set.replicas.iter().enumerate().map(open).collect()
}
