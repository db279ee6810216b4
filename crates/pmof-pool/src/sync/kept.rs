//! Replicas whose headers are damaged and whose contents are not: a byte of a header does not say that what lies behind it is the older.

use pmof_mem::{Declaration, Medium as _};

use super::{Found, Plan, SyncError, of_pair, whole};
use crate::{OpenFor, PoolKind, PoolSet, Reached, RemoteReplicas, ReplicaSpec, replica::contents_behind, vote};

/// Fails where a replica that is to be made anew for its headers holds, in bytes that are in use, something else than the one to copy from. Of
/// a replica on another machine, its target tells only that it holds something.
///
/// Errors: `Kept`, `KeptElsewhere`; those of reading.
pub(crate) fn check_kept(
    set: &PoolSet,
    found: &mut [Found],
    plan: &Plan,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
) -> Result<(), SyncError> {
    let (source, kind) = (plan.source, PoolKind::of_signature(&plan.known.signature));
    for (index, spec) in set.replicas.iter().enumerate() {
        if !matches!(found[index], Found::Damaged(_)) {
            continue;
        }
        let parts = match spec {
            ReplicaSpec::Local(parts) => parts,
            ReplicaSpec::Remote(remote) => match remotes.open(remote, 0, OpenFor::Read) {
                Ok(Reached::HeadersDamaged(reason)) => {
                    return Err(SyncError::KeptElsewhere { index, source_index: source, reason });
                }
                Ok(Reached::Whole(_) | Reached::Damaged(_)) => continue,
                Err(source) => return Err(SyncError::Replica { index, source }),
            },
        };
        let kept = contents_behind(parts, set.options, kind, declaration);
        let Some(mut kept) = kept.map_err(|source| SyncError::Replica { index, source })? else { continue };
        let first = whole(&mut found[source])?;
        let len_bytes = plan.len_bytes.min(kept.len_bytes());
        let comparison = vote::comparison_with(&mut **first, kind, len_bytes);
        let comparison = comparison.map_err(|error| SyncError::Replica { index: source, source: error })?;
        let differences = comparison.differences(first.contents(), &mut kept, &mut |_| {});
        let differences = differences.map_err(|error| of_pair(source, index, error))?;
        if let Some(difference) = differences.told.first() {
            return Err(SyncError::Kept { index, source_index: source, offset: difference.range.start });
        }
    }
    Ok(())
}
