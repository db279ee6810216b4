//! A set that is removed with all its replicas, or not at all.

use pmof_control::PoolRefusal;
use pmof_mem::causes;
use pmof_pool_set::{
    AccessError, HeaderlessParts, PoolSet, PoolSetError, Removal, ReplicaSpec, SetOptions, check_named_whole,
    foreign_files, pool_set_uuid,
};

use crate::{PlaceError, PoolError, RemoteRemoval, ReplicaError, SshReplicas, TargetOptions, remote_place};

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
    /// Whether parts without a header are the pool's is not known.
    #[error("its parts without a header could not be compared with those of the other replicas")]
    NotCompared(#[source] AccessError),
}

impl ReplicaRemovalError {
    /// Whether the replica was looked at, and is not whole, or not alone: then force removes what is left of it.
    pub fn is_damage(&self) -> bool {
        match self {
            // Which of two pools is meant, force does not say.
            Self::Place(_) | Self::NotCompared(_) | Self::Local(PoolSetError::OtherSet { .. }) => false,
            Self::Local(error) => error.is_damage() || matches!(error, PoolSetError::NotRemoved { .. }),
            Self::Remote(error) => matches!(
                error.replica_error(),
                Some(ReplicaError::Refused {
                    refusal: PoolRefusal::NotAUsablePool | PoolRefusal::HeadersDamaged | PoolRefusal::PartMissing,
                    ..
                })
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
    /// The set names some of a pool's parts or replicas.
    #[error("nothing was removed; `--force` removes what the set names")]
    NotAll(#[source] PoolSetError),
    /// Replicas that cannot be removed, by their places in the set, from 0. Nothing was removed.
    #[error("{}; nothing was removed; {}", texts(reasons), if *helps_force { FORCE } else { FREE })]
    Refused {
        /// Why, of each.
        reasons: Vec<(usize, ReplicaRemovalError)>,
        /// Whether force would remove them.
        helps_force: bool,
    },
    /// The removal itself failed, which nothing told beforehand.
    #[error("replica {index} was not removed{}", after(removed))]
    Failed {
        /// Which replica, from 0.
        index: usize,
        /// Those that were removed before.
        removed: Vec<usize>,
        /// What went wrong.
        source: ReplicaRemovalError,
    },
}

const FOREIGN: &str = "a part of its number has no header, and nothing in it is what the pool holds there";
const FORCE: &str = "`--force` removes what is left";
const FREE: &str = "have each replica reachable and unused, or take it out of the pool set file";

fn texts(reasons: &[(usize, ReplicaRemovalError)]) -> String {
    reasons.iter().map(|(index, error)| format!("replica {index}: {}", causes(error))).collect::<Vec<_>>().join("; ")
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
    /// Finds and locks all replicas. `force`: those that are missing or damaged do not matter, and files of this machine that are no
    /// pool's are [left](Removal::left); a host that has such a file refuses. What is wrong with any of them is told at once. Replicas
    /// that are of two pools, wherever they are, are refused, `force` or not.
    ///
    /// Errors: `Files`, `NotAll`, `Refused`.
    pub fn prepare(set: &PoolSet, force: bool, options: &TargetOptions) -> Result<Self, SetRemovalError> {
        set.check_files().map_err(SetRemovalError::Files)?;
        // Before the parts are locked, which hosts could not open then.
        let named = if force { Ok(()) } else { check_named_whole(set, &mut SshReplicas::new(options)) };
        let foreign = foreign_files(set, &mut SshReplicas::new(options));
        let (mut found, mut reasons) = (Vec::new(), Vec::new());
        let foreign = foreign.unwrap_or_else(|(index, source)| {
            reasons.push((index, not_compared(source)));
            HeaderlessParts::default()
        });
        let member = pool_set_uuid(set);
        for (index, replica) in set.replicas.iter().enumerate() {
            match Found::new(replica, set.options, force, member.as_ref(), options) {
                Ok(replica) => found.push((index, replica)),
                Err(error) => reasons.push((index, error)),
            }
        }
        for (index, range) in foreign.elsewhere {
            reasons.push((index, Box::new(PoolError::UnlikeElsewhere { index, range }).into()));
        }
        for (index, path) in foreign.unlike {
            match found.iter_mut().find_map(|(at, replica)| replica.here().filter(|_| *at == index)) {
                Some(removal) if force => removal.leave(&path),
                Some(_) => reasons.push((index, PoolSetError::NotRemoved { path, found: FOREIGN.to_owned() }.into())),
                None => {}
            }
        }
        if reasons.is_empty() {
            return named.map(|()| Self { found }).map_err(SetRemovalError::NotAll);
        }
        let helps_force = !force && reasons.iter().all(|(_, error)| error.is_damage());
        Err(SetRemovalError::Refused { reasons, helps_force })
    }

    /// What was found of a replica of this machine, by its place in the set, from 0; `None` for those of other machines, whose targets
    /// remove all or refuse.
    pub fn local(&self, index: usize) -> Option<&Removal> {
        self.found.iter().find_map(|(at, replica)| match replica {
            Found::Here(removal) if *at == index => Some(removal),
            _ => None,
        })
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

fn not_compared(source: AccessError) -> ReplicaRemovalError {
    match source.downcast::<PoolError>() {
        Ok(error) => error.into(),
        Err(source) => ReplicaRemovalError::NotCompared(source),
    }
}

impl Found {
    fn new(
        replica: &ReplicaSpec,
        set: SetOptions,
        force: bool,
        member: Option<&[u8; 16]>,
        options: &TargetOptions,
    ) -> Result<Self, ReplicaRemovalError> {
        match replica {
            ReplicaSpec::Local(parts) => Ok(Self::Here(Removal::prepare(parts, set, force, member)?)),
            ReplicaSpec::Remote(remote) => {
                let (url, name) = remote_place(remote)?;
                Ok(Self::There(Box::new(
                    RemoteRemoval::prepare(&url, &name, [force, false], member, options).map_err(Box::new)?,
                )))
            }
        }
    }

    fn here(&mut self) -> Option<&mut Removal> {
        match self {
            Self::Here(removal) => Some(removal),
            Self::There(_) => None,
        }
    }

    fn remove(self) -> Result<(), ReplicaRemovalError> {
        match self {
            Self::Here(removal) => Ok(removal.carry_out()?),
            Self::There(removal) => Ok(removal.carry_out().map_err(Box::new)?),
        }
    }
}
