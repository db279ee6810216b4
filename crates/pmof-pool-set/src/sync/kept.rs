//! Replicas whose headers are damaged and whose contents are not: a byte of a header does not say that what lies behind it is the older.

use pmof_mem::{Declaration, Medium as _};

use super::{Found, Plan, SyncError, of_pair, whole};
use crate::{
    Contents, ContentsState, PoolKind, PoolSet, RemoteReplicas, ReplicaSpec, replica::contents_behind, state_of, vote,
};

/// Fails where a replica that is to be made anew for its headers holds, in bytes that are in use, something else than the one to copy from.
///
/// Errors: `Kept`; those of reading.
pub(crate) fn check_kept(
    set: &PoolSet,
    found: &mut [Found],
    plan: &Plan,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
) -> Result<(), SyncError> {
    let kind = PoolKind::of_signature(&plan.known.signature);
    for (index, spec) in set.replicas.iter().enumerate() {
        if !matches!(found[index], Found::Damaged(_)) {
            continue;
        }
        let failed = |source| SyncError::Replica { index, source };
        match spec {
            ReplicaSpec::Local(parts) => {
                let kept = contents_behind(parts, set.options, kind, declaration).map_err(failed)?;
                if let Some(mut kept) = kept {
                    let len_bytes = kept.len_bytes();
                    check_same(found, plan, index, (&mut kept, len_bytes))?;
                }
            }
            ReplicaSpec::Remote(remote) => {
                let Some(mut kept) = remotes.open_behind(remote).map_err(failed)? else { continue };
                let len_bytes = kept.len_bytes();
                let state = state_of(kind, kept.contents(), len_bytes).map_err(failed)?;
                if state == ContentsState::Sound {
                    check_same(found, plan, index, (kept.contents(), len_bytes))?;
                }
                // It is made anew next, for which nobody may have it open.
                kept.close().map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Fails where the contents behind the headers of a replica differ from the source, in what is in use.
fn check_same(
    found: &mut [Found],
    plan: &Plan,
    index: usize,
    (kept, len_bytes): (&mut dyn Contents, u64),
) -> Result<(), SyncError> {
    let (source, kind) = (plan.source, PoolKind::of_signature(&plan.known.signature));
    let first = whole(&mut found[source])?;
    let comparison = vote::comparison_with(&mut **first, kind, plan.len_bytes.min(len_bytes));
    let comparison = comparison.map_err(|error| SyncError::Replica { index: source, source: error })?;
    let differences = comparison.differences(first.contents(), kept, &mut |_| {});
    let differences = differences.map_err(|error| of_pair(source, index, error))?;
    match differences.told.first() {
        Some(difference) => Err(SyncError::Kept { index, source_index: source, offset: difference.range.start }),
        None => Ok(()),
    }
}
