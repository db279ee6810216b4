//! A set that gets other replicas.

use pmof_mem::Declaration;

use crate::{
    Access, PoolSet, PoolSetError, RemoteReplicas, ReplicaSpec, Step, SyncError, SyncOptions, distinct,
    error::UNFINISHED,
    sync::{Found, look, of_files, plan, sync_found},
};

/// Gives a set other replicas: those that `to` has and `from` has not are made, those that `from` has and `to` has not are removed
/// with their bytes, at the end. Options must be the same; the first replica of `to` must be in `from`.
///
/// `dry_run`: nothing is changed. Gives the places in `to` of new replicas, and the places in `from` of those removed.
///
/// Errors: [`SyncError`].
pub fn transform(
    from: &PoolSet,
    to: &PoolSet,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
    dry_run: bool,
    progress: &mut dyn FnMut(Step),
) -> Result<(Vec<usize>, Vec<usize>), SyncError> {
    let in_set =
        |replica: &ReplicaSpec, set: &PoolSet| set.replicas.iter().position(|other| same_place(other, replica));
    let places = |one: &PoolSet, other: &PoolSet| {
        (0..one.replicas.len()).filter(|index| in_set(&one.replicas[*index], other).is_none()).collect::<Vec<_>>()
    };
    let (added, removed) = (places(to, from), places(from, to));
    if from.options != to.options {
        return Err(SyncError::Unsupported {
            why: "the sets have other options, and headers are not added to parts or removed from them",
            mend: "make a new pool with the options, and copy what is in the old one",
        });
    }
    if added.first() == Some(&0) || to.replicas.is_empty() {
        return Err(SyncError::Unsupported {
            why: "the first replica of the new set is not one of the old set, so there would be nothing to copy from",
            mend: "put a replica of the old set first",
        });
    }
    for set in [from, to] {
        distinct::check_set(set).map_err(of_files)?;
    }
    distinct::check_added(from, to, &added).map_err(of_files)?;
    // All must be sound before one is given up.
    let mut found = Vec::with_capacity(from.replicas.len());
    for (index, spec) in from.replicas.iter().enumerate() {
        match look(index, spec, from, Access::ReadOnly, declaration, remotes)? {
            Found::Unfinished(_) => return Err(SyncError::NotSound { index, reason: UNFINISHED.to_owned() }),
            Found::Damaged(reason) => return Err(SyncError::NotSound { index, reason }),
            whole @ Found::Whole(_) => found.push(whole),
        }
    }
    // Those that stay are linked as the old set has them.
    let were_together = plan(from, &mut found, None)?.is_linked;
    for (index, found) in found.into_iter().enumerate() {
        if let Found::Whole(replica) = found {
            replica.close().map_err(|source| SyncError::Replica { index, source })?;
        }
    }
    check_free(to, &added)?;
    sync_found(to, &SyncOptions { declaration, dry_run, from: None }, were_together, remotes, progress)?;
    if !dry_run {
        for index in &removed {
            let failed = |source| SyncError::Replica { index: *index, source };
            match &from.replicas[*index] {
                ReplicaSpec::Local(parts) => crate::remove(parts, true).map_err(|error| failed(error.into()))?,
                ReplicaSpec::Remote(remote) => remotes.remove(remote, true).map_err(failed)?,
            }
        }
    }
    Ok((added, removed))
}

/// No file of a new replica may be there: it could be somebody's.
fn check_free(set: &PoolSet, added: &[usize]) -> Result<(), SyncError> {
    for index in added {
        let paths = set.replicas[*index].local().unwrap_or_default().iter().map(|part| &part.path);
        if let Some(path) = paths.into_iter().find(|path| path.is_file()) {
            let source = PoolSetError::Exists { path: path.clone() }.into();
            return Err(SyncError::Replica { index: *index, source });
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
