//! What a target answers that opens a replica, and whether that fits.

use pmof_access::{Durability, RemoteRegion};
use pmof_control::{OpenFor, PoolState, Reply, USER_FLAGS_BYTES};
use uuid::Uuid;

use crate::{ReplicaError, member::Writing, target::TargetConnection};

/// What all replicas of a pool have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uuid: Uuid,
    pub(super) size_bytes: u64,
    pub(super) user_flags: [u8; USER_FLAGS_BYTES],
    /// Replicas that it was made with.
    pub(super) replica_count: u16,
}

/// What a target's answer says, where it fits.
pub(super) struct Checked {
    pub(super) index: u16,
    pub(super) state: PoolState,
    pub(super) remote: RemoteRegion,
    pub(super) writing: Option<Writing>,
}

/// Checks that a target's answer is what was asked for, and the same pool as at the targets before it.
pub(super) fn check_opened(
    reply: Reply,
    target: &TargetConnection,
    wanted: Durability,
    access: OpenFor,
    identity: &mut Option<Identity>,
) -> Result<Checked, ReplicaError> {
    let Reply::Opened { pool_uuid, size_bytes, replica_count, replica_index, user_flags, state, descriptor, .. } =
        reply
    else {
        return Err(ReplicaError::Unexpected);
    };
    let remote = RemoteRegion::from_descriptor(&descriptor)?;
    let found = Identity { uuid: pool_uuid, size_bytes, user_flags, replica_count };
    let first = *identity.get_or_insert(found);
    if first != found {
        return Err(ReplicaError::Mismatch {
            uuid: first.uuid,
            found_uuid: found.uuid,
            size_bytes: first.size_bytes,
            found_bytes: found.size_bytes,
        });
    }
    if remote.len_bytes() != size_bytes || replica_index >= replica_count {
        return Err(ReplicaError::Unexpected);
    }
    target.prepare(&remote)?;
    let mut checked = Checked { index: replica_index, state, remote, writing: None };
    if access == OpenFor::Write {
        let mut writing = Writing::to(wanted, target, &remote)?;
        // The strongest level that this way of flushing can give: what a closed pool has in common must last.
        let stronger = Durability::ALL.into_iter().rev().filter(|level| *level > wanted);
        let mut reachable =
            stronger.filter(|level| remote.promise(*level).is_some() && target.flush_method(&remote, *level).is_ok());
        writing.strongest = reachable.next().unwrap_or(wanted);
        checked.writing = Some(writing);
    }
    Ok(checked)
}
