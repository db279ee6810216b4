//! Reads the features in the headers of a pool, and changes them in all replicas.

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
    /// The pool loses it.
    Disable(Feature),
}

/// How to reach the replicas of a pool whose features are changed.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct FeatureOptions {
    /// What the operator vouches for of the local ones.
    pub declaration: Option<Declaration>,
    /// A dry run: reports what would be changed.
    pub dry_run: bool,
}

pmof_mem::setters!(FeatureOptions { declaration: impl Into<Option<Declaration>>, dry_run: bool });

/// Why the features of a pool could not be read, or not changed in all replicas.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FeatureError {
    /// The set names only some of a pool's parts or replicas; the others would keep their features.
    #[error(transparent)]
    Set(#[from] PoolSetError),
    /// A replica on another machine is not sound.
    #[error("replica {index} is not sound ({reason}): synchronize the set first (`pmof pool sync`)")]
    NotSound {
        /// Its place in the set, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// Which parts have headers is decided when a pool is created.
    #[error("SINGLEHDR is an option of the pool set file: a pool has it from the start or not at all")]
    OfTheSet,
    /// A shutdown state lies behind the first 2048 bytes of a header, and must not be in its checksum.
    #[error("SHUTDOWN_STATE needs CKSUM_2K: turn SHUTDOWN_STATE off first, or CKSUM_2K on")]
    NeedsChecksum2k,
    /// A replica failed, or could not be reached. Features of other replicas may have been changed already; repeating the call
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
    /// The features after the change of `before`.
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

/// Sets or clears a feature in every header of every replica; returns the new features of the first replica. Replicas that already agree
/// are not changed.
///
/// All replicas are opened and checked before the first is changed. If one fails after that, the others are still
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

/// Does the same with all replicas, even if one fails.
fn each<T>(
    replicas: &mut [Box<dyn ReplicaAccess>],
    mut act: impl FnMut(&mut dyn ReplicaAccess) -> Result<T, AccessError>,
) -> Result<Vec<T>, FeatureError> {
    let done: Vec<_> = replicas.iter_mut().map(|replica| act(&mut **replica)).collect();
    let failed = |(index, done): (usize, Result<T, _>)| done.map_err(|source| FeatureError::Replica { index, source });
    done.into_iter().enumerate().map(failed).collect()
}

/// Closes all, even if one fails.
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
