//! Whether the replicas of a set are linked to each other, and not to others.

use super::{Found, SyncError};
use crate::{PoolSet, made_at::is_made_elsewhere, uuid_text};

/// Fails where a replica names one beside it that is not of the set: one that was made in another place than the set has there, since the
/// replicas were linked to others after the set was written, or one that the set does not have, since the one beside it is another. `is_known`: whether
/// a UUID is that of a replica that is rightly not here.
pub(crate) fn check_links(
    set: &PoolSet,
    found: &mut [Found],
    is_known: impl Fn(&[u8; 16]) -> bool,
) -> Result<(), SyncError> {
    let mut headers = Vec::with_capacity(found.len());
    for (index, found) in found.iter_mut().enumerate() {
        headers.push(match found {
            Found::Whole(replica) | Found::Empty(replica) | Found::Unfinished(replica) => {
                Some(replica.attributes().map_err(|source| SyncError::Replica { index, source })?)
            }
            Found::Damaged(_) => None,
        });
    }
    let count = headers.len();
    let is_here = |uuid: &[u8; 16]| headers.iter().flatten().any(|header| header.uuid == *uuid);
    for (index, header) in headers.iter().enumerate() {
        let Some(header) = header.filter(|header| !header.is_unfinished()) else { continue };
        for (named, beside) in
            [(header.next_uuid, (index + 1) % count), (header.prev_uuid, (index + count - 1) % count)]
        {
            if is_here(&named) || is_known(&named) {
                continue;
            }
            if is_made_elsewhere(&named, &set.replicas[beside]) {
                return Err(SyncError::Transformed { index, beside });
            }
            if headers[beside].is_some_and(|beside| !beside.is_unfinished()) {
                return Err(SyncError::NotAll { index, named: uuid_text(&named) });
            }
        }
    }
    Ok(())
}
