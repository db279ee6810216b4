//! A set that gets other replicas.

use pmof_mem::Declaration;

use crate::{
    Access, EMPTY, PoolSet, PoolSetError, Reached, RemoteReplicas, ReplicaSpec, Step, SyncError, SyncOptions,
    Unreached, distinct,
    error::UNFINISHED,
    part_header,
    sync::{Found, Old, Plan, look, of_files, plan, sync_found},
};

/// How a set is given other replicas.
#[derive(Clone, Debug, Default)]
pub struct TransformOptions {
    /// What the operator vouches for of the local ones.
    pub declaration: Option<Declaration>,
    /// Nothing is changed; what would be is told.
    pub dry_run: bool,
    /// Hosts that are gone, as the old set names them, with or without the user: their replicas, which the new set must not
    /// have, are neither looked at nor removed.
    pub lost: Vec<String>,
}

/// What was done to a set, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransformReport {
    /// Places in the new set of replicas that were made.
    pub added: Vec<usize>,
    /// Places in the old set of those that were removed with their bytes.
    pub removed: Vec<usize>,
    /// Places in the old set of those on lost hosts: what lies there stays, and belongs to the pool no more.
    pub left: Vec<usize>,
}

/// Gives a set other replicas: those that `to` has and `from` has not are made, those that `from` has and `to` has not are removed
/// with their bytes, at the end. Options must be the same; the first replica of `to` must be in `from`.
///
/// All replicas of `from` must be reached and sound, but for those on hosts that are named as lost. What a lost host holds comes back
/// as a replica that was left behind: opening, checking and adding it are refused until it is removed there.
///
/// Errors: [`SyncError`].
pub fn transform(
    from: &PoolSet,
    to: &PoolSet,
    options: &TransformOptions,
    remotes: &mut dyn RemoteReplicas,
    progress: &mut dyn FnMut(Step),
) -> Result<TransformReport, SyncError> {
    let in_set =
        |replica: &ReplicaSpec, set: &PoolSet| set.replicas.iter().position(|other| same_place(other, replica));
    let places = |one: &PoolSet, other: &PoolSet| {
        (0..one.replicas.len()).filter(|index| in_set(&one.replicas[*index], other).is_none()).collect::<Vec<_>>()
    };
    let (added, gone) = (places(to, from), places(from, to));
    let is_lost = |index: &usize| is_on(&from.replicas[*index], &options.lost);
    let (left, removed): (Vec<_>, Vec<_>) = gone.into_iter().partition(is_lost);
    check_request(from, to, &added, &left, options)?;
    for set in [from, to] {
        distinct::check_set(set).map_err(of_files)?;
    }
    distinct::check_added(from, to, &added).map_err(of_files)?;
    let old = check_old(from, [&removed, &left], options, remotes)?;
    check_free(to, &added, &old.poolset_uuid(), remotes)?;
    let were_together = old.is_linked;
    let TransformOptions { declaration, dry_run, .. } = *options;
    let options = SyncOptions { declaration, dry_run, from: None };
    sync_found(to, &options, Some(Old { were_together }), remotes, progress)?;
    if !dry_run {
        for index in &removed {
            let failed = |source| SyncError::Replica { index: *index, source };
            match &from.replicas[*index] {
                ReplicaSpec::Local(parts) => crate::remove(parts, true).map_err(|error| failed(error.into()))?,
                ReplicaSpec::Remote(remote) => remotes.remove(remote, true).map_err(failed)?,
            }
        }
    }
    Ok(TransformReport { added, removed, left })
}

/// Whether what is asked for can be done at all.
fn check_request(
    from: &PoolSet,
    to: &PoolSet,
    added: &[usize],
    left: &[usize],
    options: &TransformOptions,
) -> Result<(), SyncError> {
    let unsupported = |why, mend| Err(SyncError::Unsupported { why, mend });
    if from.options != to.options {
        return unsupported(
            "the sets have other options, and headers are not added to parts or removed from them",
            "make a new pool with the options, and copy what is in the old one",
        );
    }
    if added.first() == Some(&0) || to.replicas.is_empty() {
        return unsupported(
            "the first replica of the new set is not one of the old set, so there would be nothing to copy from",
            "put a replica of the old set first",
        );
    }
    for host in &options.lost {
        let is_on_it = |replica: &ReplicaSpec| is_on(replica, std::slice::from_ref(host));
        if let Some(index) = to.replicas.iter().position(is_on_it) {
            return Err(SyncError::LostAndKept { index, host: host.clone() });
        }
        if !left.iter().any(|index| is_on_it(&from.replicas[*index])) {
            return Err(SyncError::NothingLost { host: host.clone() });
        }
    }
    Ok(())
}

/// All that is reached must be sound before one is given up. Gives what is known of the pool, and whether the replicas are linked as the
/// old set has them, as those that stay are.
fn check_old(
    from: &PoolSet,
    [removed, left]: [&[usize]; 2],
    options: &TransformOptions,
    remotes: &mut dyn RemoteReplicas,
) -> Result<Plan, SyncError> {
    let mut found = Vec::with_capacity(from.replicas.len());
    for (index, spec) in from.replicas.iter().enumerate() {
        if left.contains(&index) {
            found.push(Found::Damaged("its host is lost".to_owned()));
            continue;
        }
        match look(index, spec, from, Access::ReadOnly, options.declaration, remotes) {
            Ok(Found::Unfinished(_)) => return Err(SyncError::NotSound { index, reason: UNFINISHED.to_owned() }),
            Ok(Found::Damaged(reason)) => return Err(SyncError::NotSound { index, reason }),
            Ok(whole @ (Found::Whole(_) | Found::Empty(_))) => found.push(whole),
            Err(SyncError::Replica { source, .. }) if removed.contains(&index) && source.is::<Unreached>() => {
                let node = spec.remote().map(|remote| remote.node.clone()).unwrap_or_default();
                return Err(SyncError::HostAway { index, node, source });
            }
            Err(error) => return Err(error),
        }
    }
    let holds_something = found.iter().any(|found| matches!(found, Found::Whole(_)));
    if let Some(index) = found.iter().position(|found| holds_something && matches!(found, Found::Empty(_))) {
        return Err(SyncError::NotSound { index, reason: EMPTY.to_owned() });
    }
    let known = plan(from, &mut found, None, false)?;
    for (index, found) in found.into_iter().enumerate() {
        if let Found::Whole(replica) | Found::Empty(replica) = found {
            replica.close().map_err(|source| SyncError::Replica { index, source })?;
        }
    }
    Ok(known)
}

/// Whether a replica is on one of these hosts, named with or without the user.
fn is_on(replica: &ReplicaSpec, hosts: &[String]) -> bool {
    let Some(remote) = replica.remote() else { return false };
    let host = remote.node.rsplit_once('@').map_or(remote.node.as_str(), |(_, host)| host);
    hosts.iter().any(|lost| [host, &remote.node].contains(&lost.as_str()))
}

/// No file of a new replica may be there: it could be somebody's. Nor may a whole replica on its host, also of this pool: it
/// was left behind. One that a sync was making is gone on with.
fn check_free(
    set: &PoolSet,
    added: &[usize],
    poolset_uuid: &[u8; 16],
    remotes: &mut dyn RemoteReplicas,
) -> Result<(), SyncError> {
    for index in added {
        let failed = |source| SyncError::Replica { index: *index, source };
        match &set.replicas[*index] {
            ReplicaSpec::Local(parts) => {
                if let Some(part) = parts.iter().find(|part| part.path.is_file()) {
                    if part_header(&part.path).is_ok_and(|header| header.poolset_uuid == *poolset_uuid) {
                        let place = part.path.display().to_string();
                        return Err(SyncError::MadeAlready { index: *index, place });
                    }
                    return Err(failed(PoolSetError::Exists { path: part.path.clone() }.into()));
                }
            }
            ReplicaSpec::Remote(remote) => {
                if let Reached::Whole(mut replica) = remotes.open(remote, 0, Access::ReadOnly).map_err(failed)? {
                    let attributes = replica.attributes().map_err(failed)?;
                    let is_unfinished = attributes.is_unfinished();
                    replica.close().map_err(failed)?;
                    if !is_unfinished {
                        let (node, set) = (remote.node.clone(), remote.set.clone());
                        return Err(if attributes.poolset_uuid == *poolset_uuid {
                            SyncError::MadeAlready { index: *index, place: format!("{} on {node}", set.display()) }
                        } else {
                            SyncError::Taken { index: *index, node, set }
                        });
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether two lines of set files, or two blocks of them, name the same replica.
fn same_place(one: &ReplicaSpec, other: &ReplicaSpec) -> bool {
    match (one, other) {
        (ReplicaSpec::Local(one), ReplicaSpec::Local(other)) => {
            one.iter().map(|part| (&part.path, part.size)).eq(other.iter().map(|part| (&part.path, part.size)))
        }
        (ReplicaSpec::Remote(one), ReplicaSpec::Remote(other)) => (&one.node, &one.set) == (&other.node, &other.set),
        _ => false,
    }
}
