//! A replica that a program opened after the one to copy from was opened last: that one is an old copy.

use super::{Found, Plan, SyncError, others, vote, whole};
use crate::{AccessError, Contents, PoolKind, format::OBJ_OPENINGS};

/// How often libpmemobj opened a pool of objects, as this replica has it: each opening counts 2, in all replicas.
///
/// # Errors
/// Those of reading it.
pub fn opening_count(contents: &mut dyn Contents) -> Result<u64, AccessError> {
    let mut count = [0; 8];
    contents.read(OBJ_OPENINGS.start, &mut count)?;
    Ok(u64::from_le_bytes(count) / 2)
}

/// Fails where another sound replica was opened more often than the one to copy from, and differs from it in more than that: in what is in use. The
/// count by itself differs if the power failed at an opening.
///
/// Errors: `OldSource`; those of reading.
pub(crate) fn check_newer(found: &mut [Found], plan: &Plan) -> Result<(), SyncError> {
    let (source_index, kind) = (plan.source, PoolKind::of_signature(&plan.known.signature));
    if kind != Some(PoolKind::Obj) {
        return Ok(());
    }
    let count = |found: &mut [Found], index: usize| {
        opening_count(whole(&mut found[index])?.contents()).map_err(|source| SyncError::Replica { index, source })
    };
    let source_count = count(found, source_index)?;
    for index in others(found, plan) {
        let count = count(found, index)?;
        if count <= source_count {
            continue;
        }
        let first = whole(&mut found[source_index])?;
        let comparison = vote::comparison_with(&mut **first, kind, plan.len_bytes);
        let comparison = comparison.map_err(|source| SyncError::Replica { index: source_index, source })?;
        let differences = vote::differences(found, [source_index, index], &comparison, &mut |_| {})?;
        let is_count =
            |range: &std::ops::Range<u64>| OBJ_OPENINGS.start <= range.start && range.end <= OBJ_OPENINGS.end;
        if differences.told.iter().any(|difference| !is_count(&difference.range)) {
            return Err(SyncError::OldSource { index, count, source_index, source_count });
        }
    }
    Ok(())
}
