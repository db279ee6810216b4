//! What parts without a header say of the replicas that check and sync found.

use super::{Found, SyncError};
use crate::{LostPart, PoolSet, headerless_parts};

/// A replica whose part was lost is damaged. Fails where a part is another's file, or those that it is held against are.
///
/// Errors: `Unlike`, `UnlikeElsewhere`; those of reading.
pub(crate) fn judge_headerless(set: &PoolSet, found: &mut [Found]) -> Result<(), SyncError> {
    let mut held: Vec<_> = found
        .iter_mut()
        .map(|found| match found {
            Found::Whole(replica) => {
                let len_bytes = replica.len_bytes();
                Some((replica.contents(), len_bytes))
            }
            _ => None,
        })
        .collect();
    let failed = |(index, source)| SyncError::Replica { index, source };
    let parts = headerless_parts(set, &mut held).map_err(failed)?;
    for LostPart { index, reason } in parts.lost {
        if let Found::Whole(replica) = std::mem::replace(&mut found[index], Found::Damaged(reason)) {
            replica.close().map_err(|source| failed((index, source)))?;
        }
    }
    if let Some((index, range)) = parts.elsewhere.into_iter().next() {
        return Err(SyncError::UnlikeElsewhere { index, range });
    }
    match parts.unlike.into_iter().next() {
        Some((index, path)) => Err(SyncError::Unlike { index, path }),
        None => Ok(()),
    }
}
