//! Replicas that turn out to be one: two places of a set lead to the same files, or to copies of them.

use super::{SyncError, of_files};
use crate::{Attributes, OpenFor, PoolSet, Reached, RemoteReplicas, RemoteSpec, distinct::FilesElsewhere, uuid_text};

/// Fails where one of the replicas that were looked at before, by their places in the set, has this UUID.
pub(crate) fn check_uuid(seen: &[Option<[u8; 16]>], index: usize, uuid: &[u8; 16]) -> Result<(), SyncError> {
    match seen.iter().position(|seen| *seen == Some(*uuid)) {
        Some(other) if other != index => {
            let (index, other) = (index.max(other), index.min(other));
            Err(SyncError::SameReplica { index, other, uuid: uuid_text(uuid) })
        }
        _ => Ok(()),
    }
}

/// Fails where what was missing or damaged at the place of a replica is another one of the ring by now. Machines that share a file system name its
/// files differently, so that nothing tells before the first of them is made.
pub(crate) fn check_not_made(
    ring: &[Attributes],
    index: usize,
    remote: &RemoteSpec,
    remotes: &mut dyn RemoteReplicas,
) -> Result<(), SyncError> {
    let failed = |source| SyncError::Replica { index, source };
    let Reached::Whole(mut replica) = remotes.open(remote, 0, OpenFor::Read).map_err(failed)? else { return Ok(()) };
    let found = replica.attributes().map_err(failed)?;
    replica.close().map_err(failed)?;
    let uuids: Vec<_> = ring.iter().map(|planned| Some(planned.uuid)).collect();
    check_uuid(&uuids, index, &found.uuid)
}

/// Asks all other machines of a set for the files of their replicas.
///
/// Errors: `SameFileElsewhere`; why a replica could not be asked.
pub(crate) fn check_elsewhere(set: &PoolSet, remotes: &mut dyn RemoteReplicas) -> Result<(), SyncError> {
    let mut files = FilesElsewhere::default();
    files.ask(set, &[], remotes).map_err(|(index, source)| SyncError::Replica { index, source })?;
    files.check_set(set).map_err(of_files)
}
