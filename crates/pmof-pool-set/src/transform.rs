//! Changes the replicas of a pool to those of another set.

use std::path::{Path, PathBuf};

use pmof_mem::Declaration;

use crate::{
    AccessError, EMPTY, LocalReplica, OpenFor, PartSpec, PoolSet, PoolSetError, Reached, RemoteReplicas, ReplicaSpec,
    SetOptions, Step, SyncError, SyncOptions, Unreached,
    distinct::{self, FilesElsewhere},
    error::UNFINISHED,
    made_at::is_made_at,
    part::{Part, places_left},
    part_header,
    replica::{check_member, check_one_pool, check_replaceable, is_begun, no_source, remove_member, something_in},
    sync::{Found, Old, Plan, check_links, check_same, close_unchanged, look, of_files, plan, sync_found},
};

/// Options of a transform.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TransformOptions {
    /// What the operator vouches for of the local ones.
    pub declaration: Option<Declaration>,
    /// A dry run: reports what would be changed.
    pub dry_run: bool,
    /// Hosts that are gone, as the old set names them, with or without the user: their replicas, which the new set must not
    /// have, are neither checked nor removed.
    pub lost: Vec<String>,
}

pmof_mem::setters!(TransformOptions { declaration: impl Into<Option<Declaration>>, dry_run: bool, lost: Vec<String> });

/// What was done to a set, or would be done in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransformReport {
    /// Places in the new set of replicas that were made; none where an earlier call had made and linked them.
    pub added: Vec<usize>,
    /// Places in the old set of those that were removed with their bytes. Of this machine those of which something was there.
    pub removed: Vec<usize>,
    /// Places in the old set of replicas on lost hosts: their files stay, and no longer belong to the pool.
    pub left: Vec<usize>,
}

/// Changes the replicas of a pool: creates those that only `to` has, and at the end removes those that only `from` has,
/// with their bytes. Options must be the same; the first replica of `to` must be in `from`.
///
/// All replicas of `from` must be reached, sound and equal, but for those on hosts that are named as lost. A replica on a lost host
/// comes back as stale: opening and checking it are refused, and so is adding it if it differs, until it is removed there.
///
/// A transform that was interrupted at any point is completed by the same call.
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
    check_elsewhere([from, to], &added, [&removed, &left], remotes)?;
    let TransformOptions { declaration, dry_run, .. } = *options;
    let (member, added, removed) = match check_old(from, to, [&removed, &left], options, remotes) {
        Ok(old) => {
            let member = old.poolset_uuid();
            let removed = check_going(from, &removed, &member, remotes)?;
            let made = check_free(to, &added, options, &member, remotes)?;
            let old = Old { were_together: old.is_linked, made };
            let done =
                sync_found(to, &SyncOptions { declaration, dry_run, from: None }, Some(&old), remotes, progress)?;
            (member, if done.is_nothing() { Vec::new() } else { added }, removed)
        }
        // An earlier transform was interrupted while it removed them, or was completed.
        Err(error @ SyncError::NotSound { index, .. }) if removed.contains(&index) => {
            let member = transformed(to, options, remotes)?.ok_or(error)?;
            (member, Vec::new(), check_going(from, &removed, &member, remotes)?)
        }
        Err(error) => return Err(error),
    };
    if !dry_run {
        remove(from, &removed, &member, remotes)?;
    }
    Ok(TransformReport { added, removed, left })
}

/// Removes replicas of the old set that the pool no longer has.
fn remove(
    from: &PoolSet,
    removed: &[usize],
    member: &[u8; 16],
    remotes: &mut dyn RemoteReplicas,
) -> Result<(), SyncError> {
    for index in removed {
        let done = match &from.replicas[*index] {
            ReplicaSpec::Local(parts) => remove_member(parts, from.options, member).map_err(AccessError::from),
            ReplicaSpec::Remote(remote) => remotes.remove(remote, member),
        };
        done.map_err(|source| SyncError::NotRemoved { index: *index, source })?;
    }
    Ok(())
}

/// Checks that the transform is possible at all.
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
            "the sets have different options, and headers cannot be added to parts or removed from them",
            "create a new pool with the options, and copy the contents of the old one",
        );
    }
    if added.first() == Some(&0) || to.replicas.is_empty() {
        return unsupported(
            "the first replica of the new set is not one of the old set, so there would be nothing to copy from",
            "put a replica of the old set first",
        );
    }
    check_reused(from, to, added)?;
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

/// Fails where a replica that is to be added names a part of the old set: in another place, with other parts, or of another length. What is
/// there would be both kept and made anew.
fn check_reused(from: &PoolSet, to: &PoolSet, added: &[usize]) -> Result<(), SyncError> {
    let old_size = |path: &Path| {
        let size = |replica: &ReplicaSpec| Some(replica.local()?.iter().find(|old| old.path == path)?.size);
        from.replicas.iter().enumerate().find_map(|(of, replica)| Some((of, size(replica)?)))
    };
    for index in added {
        let parts = to.replicas[*index].local().unwrap_or_default();
        let reused = parts.iter().filter_map(|part| Some((part, old_size(&part.path)?)));
        // Another length says more than another order.
        if let Some((part, (of, old_size))) = reused.min_by_key(|(part, (_, old_size))| part.size == *old_size) {
            let (path, size) = (part.path.clone(), part.size);
            return Err(SyncError::Reused { index: *index, of, path, size, old_size });
        }
    }
    Ok(())
}

/// Fails where two replicas of a set, or one that is added and one of the old set, have one file on another machine.
fn check_elsewhere(
    [from, to]: [&PoolSet; 2],
    added: &[usize],
    [removed, left]: [&[usize]; 2],
    remotes: &mut dyn RemoteReplicas,
) -> Result<(), SyncError> {
    let mut files = FilesElsewhere::default();
    let asked = files.ask(from, left, remotes);
    asked.map_err(|(index, source)| not_looked_at(index, &from.replicas[index], removed, source))?;
    files.ask(to, &[], remotes).map_err(|(index, source)| SyncError::Replica { index, source })?;
    for set in [from, to] {
        files.check_set(set).map_err(of_files)?;
    }
    files.check_added(from, to, added).map_err(of_files)
}

/// Why a replica of the old set could not be looked at: that of a host which is to lose it can be lost for good.
fn not_looked_at(index: usize, spec: &ReplicaSpec, removed: &[usize], source: AccessError) -> SyncError {
    match spec.remote() {
        Some(remote) if removed.contains(&index) && source.is::<Unreached>() => {
            SyncError::HostAway { index, node: remote.node.clone(), source }
        }
        _ => SyncError::Replica { index, source },
    }
}

/// All reachable replicas must be sound and equal before one is removed. Gives what is known of the pool, and whether the replicas are linked as the
/// old set has them, as those that stay are.
fn check_old(
    from: &PoolSet,
    to: &PoolSet,
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
        match look(index, spec, from, OpenFor::Read, options.declaration, remotes) {
            Ok(Found::Unfinished(_)) => return Err(SyncError::NotSound { index, reason: UNFINISHED.to_owned() }),
            Ok(Found::Damaged(reason)) => {
                // Damaged headers count too: the user must not be advised to synchronize two pools.
                check_one_pool(from).map_err(of_files)?;
                return Err(SyncError::NotSound { index, reason });
            }
            Ok(whole @ (Found::Whole(_) | Found::Empty(_))) => found.push(whole),
            Err(SyncError::Replica { source, .. }) => return Err(not_looked_at(index, spec, removed, source)),
            Err(error) => return Err(error),
        }
    }
    let holds_something = found.iter().any(|found| matches!(found, Found::Whole(_)));
    if let Some(index) = found.iter().position(|found| holds_something && matches!(found, Found::Empty(_))) {
        return Err(SyncError::NotSound { index, reason: EMPTY.to_owned() });
    }
    // One that was ended may have linked some to those that it made.
    let is_of_new_set = |uuid: &[u8; 16]| to.replicas.iter().any(|spec| is_made_at(uuid, spec));
    let known = plan(from, &mut found, None, false)
        .and_then(|plan| check_same(&mut found, &plan).map(|()| plan))
        .and_then(|plan| check_links(from, &mut found, is_of_new_set).map(|()| plan));
    match known {
        Ok(known) => close_all(found).map(|()| known),
        Err(error) => Err(close_unchanged(found, error)),
    }
}

/// Fails where what is to be removed is not the pool's, or cannot be, before anything is changed. Gives those of which something is there;
/// of those on other machines that is not known.
fn check_going(
    from: &PoolSet,
    removed: &[usize],
    member: &[u8; 16],
    remotes: &mut dyn RemoteReplicas,
) -> Result<Vec<usize>, SyncError> {
    let mut there = Vec::with_capacity(removed.len());
    for index in removed {
        let checked = match &from.replicas[*index] {
            ReplicaSpec::Local(parts) => check_member(parts, from.options, member).map_err(AccessError::from),
            ReplicaSpec::Remote(remote) => remotes.check_removable(remote, member).map(|()| true),
        };
        let is_there = checked.map_err(|source| SyncError::Replica { index: *index, source })?;
        there.extend(is_there.then_some(*index));
    }
    Ok(there)
}

/// Whether a replica is on one of these hosts, named with or without the user.
fn is_on(replica: &ReplicaSpec, hosts: &[String]) -> bool {
    let Some(remote) = replica.remote() else { return false };
    let host = remote.node.rsplit_once('@').map_or(remote.node.as_str(), |(_, host)| host);
    hosts.iter().any(|lost| [host, &remote.node].contains(&lost.as_str()))
}

/// No file of a new replica may be there: it could be somebody's. Nor may a whole replica of another pool. One that a transform was making
/// when it was ended is gone on with: its first part is blank. Gives the places of whole ones of this pool.
fn check_free(
    set: &PoolSet,
    added: &[usize],
    options: &TransformOptions,
    poolset_uuid: &[u8; 16],
    remotes: &mut dyn RemoteReplicas,
) -> Result<Vec<usize>, SyncError> {
    let mut made = Vec::new();
    for index in added {
        let failed = |source| SyncError::Replica { index: *index, source };
        match &set.replicas[*index] {
            ReplicaSpec::Local(parts) => {
                if is_made(*index, parts, set.options, options, poolset_uuid)? {
                    made.push(*index);
                }
            }
            ReplicaSpec::Remote(remote) => {
                if let Reached::Whole(mut replica) = remotes.open(remote, 0, OpenFor::Read).map_err(failed)? {
                    let attributes = replica.attributes().map_err(failed)?;
                    replica.close().map_err(failed)?;
                    if attributes.poolset_uuid != *poolset_uuid && !attributes.is_unfinished() {
                        let (node, set) = (remote.node.clone(), remote.set.clone());
                        return Err(SyncError::Taken { index: *index, node, set });
                    }
                    if !attributes.is_unfinished() {
                        made.push(*index);
                    }
                }
            }
        }
    }
    Ok(made)
}

/// Whether the files of a new replica are there and are a whole one of this pool; not where none is, or only what a transform that was
/// ended leaves.
fn is_made(
    index: usize,
    parts: &[PartSpec],
    set: SetOptions,
    options: &TransformOptions,
    poolset_uuid: &[u8; 16],
) -> Result<bool, SyncError> {
    let failed = |error: PoolSetError| SyncError::Replica { index, source: error.into() };
    let Some((there, found)) = first_held(parts).map_err(failed)? else { return Ok(false) };
    let exists = |found: &str| failed(PoolSetError::Exists { path: there.clone(), found: found.to_owned() });
    match LocalReplica::open(parts, set, OpenFor::Read, options.declaration) {
        Ok(replica) => {
            let is_own = replica.attributes().is_some_and(|own| own.poolset_uuid == *poolset_uuid);
            replica.close().map_err(failed)?;
            if is_own { Ok(true) } else { Err(exists(&found)) }
        }
        Err(error) if error.is_damage() => {
            // The first part is made first, and gets its header last.
            let first = places_left(parts).map_err(failed)?.into_iter().next();
            if first.is_some_and(|first| is_begun(&first, poolset_uuid))
                && check_replaceable(parts, set, poolset_uuid, 0, &mut no_source).is_ok()
            {
                return Ok(false);
            }
            if part_header(&there).is_ok_and(|header| header.poolset_uuid == *poolset_uuid) {
                return Err(SyncError::MadeAlready { index, place: there.display().to_string() });
            }
            Err(exists(&found))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The first file of a replica that is to be made in which there is something, and what it is.
fn first_held(parts: &[PartSpec]) -> Result<Option<(PathBuf, String)>, PoolSetError> {
    for path in places_left(parts)?.into_iter().filter(|path| path.is_file()) {
        if let Some(found) = something_in(&Part::look_at_any(&path)?)? {
            return Ok(Some((path, found)));
        }
    }
    Ok(None)
}

/// The pool's set if it has been transformed to `to` already, but for the removal of others: all of its replicas are whole, and linked as
/// it has them.
fn transformed(
    to: &PoolSet,
    options: &TransformOptions,
    remotes: &mut dyn RemoteReplicas,
) -> Result<Option<[u8; 16]>, SyncError> {
    let mut found = Vec::with_capacity(to.replicas.len());
    for (index, spec) in to.replicas.iter().enumerate() {
        found.push(look(index, spec, to, OpenFor::Read, options.declaration, remotes)?);
    }
    let is_whole = found.iter().all(|found| matches!(found, Found::Whole(_) | Found::Empty(_)));
    let plan = if is_whole { plan(to, &mut found, None, false).ok() } else { None };
    let done = match plan {
        Some(plan) => plan.is_done(&mut found)?.then(|| plan.poolset_uuid()),
        None => None,
    };
    close_all(found)?;
    Ok(done)
}

fn close_all(found: Vec<Found>) -> Result<(), SyncError> {
    for (index, found) in found.into_iter().enumerate() {
        if let Found::Whole(replica) | Found::Empty(replica) | Found::Unfinished(replica) = found {
            replica.close().map_err(|source| SyncError::Replica { index, source })?;
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
