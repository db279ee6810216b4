//! What answers a pool's opening of one replica, and whether that fits.

use std::sync::Arc;

use pmof_access::{Durability, Medium, Memory, RemoteRegion};
use pmof_control::{OpenFor, PoolState, Reply, USER_FLAGS_BYTES, WITNESS_BYTES};
use uuid::Uuid;

use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace,
    member::{Control, LocalMember, Member, RemoteMember, Standing, WitnessMember, Writing},
    site::Site,
};

/// What all replicas of a pool have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uuid: Uuid,
    pub(super) size_bytes: u64,
    pub(super) user_flags: [u8; USER_FLAGS_BYTES],
    /// Members that it has: those that it was made with, until it is known that they were changed.
    pub(super) replica_count: u16,
}

/// What an answer says, where it fits.
pub(super) struct Checked {
    pub(super) index: u16,
    pub(super) replica_uuid: Uuid,
    pub(super) size_bytes: u64,
    pub(super) state: PoolState,
    pub(super) reached: Reached,
}

/// The bytes of a replica that is open; how they are flushed, where it is open for writing.
#[derive(Debug)]
pub(super) enum Reached {
    Remote { data: RemoteRegion, writing: Option<Writing> },
    Here { memory: Arc<Memory>, begin: u64, levels: Option<(Durability, Durability)> },
}

/// Checks that an answer is what was asked for, and the same pool as those before it. One of a witness's size may be a witness: only the pool's roster
/// tells, so that whoever calls this has to [ask it](check_size).
pub(super) fn check_opened(
    reply: Reply,
    site: &Site,
    wanted: Durability,
    access: OpenFor,
    identity: &mut Option<Identity>,
) -> Result<Checked, ReplicaError> {
    let Reply::Opened {
        pool_uuid,
        replica_uuid,
        size_bytes,
        replica_count,
        replica_index,
        user_flags,
        state,
        descriptor,
    } = reply
    else {
        return Err(ReplicaError::Unexpected);
    };
    // Before it is compared: whatever answers so is no target.
    let reached = reached(site, &descriptor)?;
    let found = Identity { uuid: pool_uuid, size_bytes, user_flags, replica_count };
    let mut first = *identity.get_or_insert(found);
    if first.size_bytes == WITNESS_BYTES && first.uuid == found.uuid {
        // That was one's that may be a witness.
        first.size_bytes = size_bytes;
    }
    let may_be_witness = size_bytes == WITNESS_BYTES;
    let expected_bytes = if may_be_witness { WITNESS_BYTES } else { first.size_bytes };
    // A member that came later was made with another number of replicas.
    if (Identity { size_bytes: expected_bytes, ..first }) != (Identity { replica_count: first.replica_count, ..found })
    {
        return Err(mismatch(&first, pool_uuid, size_bytes));
    }
    *identity = Some(first);
    if replica_index >= replica_count {
        return Err(ReplicaError::Unexpected);
    }
    let reached = reached.prepared(site, size_bytes, wanted, access)?;
    Ok(Checked { index: replica_index, replica_uuid, size_bytes, state, reached })
}

/// Whether a replica has the size that it is to have. `is_witness`: the pool's roster says so.
pub(super) fn check_size(checked: (u64, Uuid), identity: &Identity, is_witness: bool) -> Result<(), ReplicaError> {
    let (size_bytes, uuid) = checked;
    let expected_bytes = if is_witness { WITNESS_BYTES } else { identity.size_bytes };
    if size_bytes == expected_bytes { Ok(()) } else { Err(mismatch(identity, uuid, size_bytes)) }
}

fn mismatch(first: &Identity, found_uuid: Uuid, found_bytes: u64) -> ReplicaError {
    ReplicaError::Mismatch { uuid: first.uuid, found_uuid, size_bytes: first.size_bytes, found_bytes }
}

fn reached(site: &Site, descriptor: &[u8]) -> Result<Reached, ReplicaError> {
    Ok(match site {
        Site::Target(_) => Reached::Remote { data: RemoteRegion::from_descriptor(descriptor)?, writing: None },
        Site::Here(here) => {
            let (memory, data) = here.memory().ok_or(ReplicaError::Unexpected)?;
            Reached::Here { memory, begin: data.start, levels: None }
        }
    })
}

impl Reached {
    /// The same, ready for what it was opened for: flushes reach `wanted` at least.
    fn prepared(
        mut self,
        site: &Site,
        size_bytes: u64,
        wanted: Durability,
        access: OpenFor,
    ) -> Result<Self, ReplicaError> {
        let is_written = access == OpenFor::Write;
        match (&mut self, site) {
            (Self::Remote { data, writing }, Site::Target(target)) => {
                if data.len_bytes() != size_bytes {
                    return Err(ReplicaError::Unexpected);
                }
                target.prepare(data)?;
                if is_written {
                    let gives = |level| data.promise(level).is_some() && target.flush_method(data, level).is_ok();
                    let strongest = strongest(wanted, gives);
                    *writing = Some(Writing { strongest, ..Writing::to(wanted, target, data)? });
                }
            }
            // What it cannot give was refused when it was opened.
            (Self::Here { memory, levels, .. }, Site::Here(_)) => {
                *levels = is_written.then(|| (wanted, strongest(wanted, |level| memory.promise(level).is_some())));
            }
            _ => return Err(ReplicaError::Unexpected),
        }
        Ok(self)
    }

    /// The replica as a pool uses it, with the pool's mirror where it has one.
    pub(super) fn member(
        self,
        standing: Standing,
        site: Site,
        size_bytes: u64,
        mirror: Option<&Arc<dyn Medium>>,
    ) -> Result<Arc<dyn Member>, ReplicaError> {
        if standing.state().is_witness() {
            return Ok(Arc::new(WitnessMember::new(standing, site)));
        }
        Ok(match (self, site) {
            (Self::Remote { data, writing }, Site::Target(target)) => {
                let mut member = RemoteMember::new(standing, target, data, None, writing);
                if let Some(mirror) = mirror {
                    member.use_mirror(Arc::clone(mirror))?;
                }
                Arc::new(member)
            }
            (Self::Here { memory, begin, levels }, site) => {
                let control = Control::new(standing, site, levels.is_some());
                Arc::new(LocalMember::native(control, (memory, begin..begin + size_bytes), levels, mirror.cloned()))
            }
            _ => return Err(ReplicaError::Unexpected),
        })
    }
}

/// The strongest level that this way of flushing can give: what a closed pool has in common must last.
fn strongest(wanted: Durability, gives: impl Fn(Durability) -> bool) -> Durability {
    let mut stronger = Durability::ALL.into_iter().rev().filter(|level| *level > wanted);
    stronger.find(|level| gives(*level)).unwrap_or(wanted)
}

/// Where no replica was opened. Of the only one that was named its failure is all there is to tell.
pub(super) fn none_opened(left_out: &[(Arc<ReplicaPlace>, Arc<ReplicaError>)]) -> PoolError {
    match left_out {
        [] => PoolError::NoReplicas,
        [(replica, source)] => PoolError::Replica { replica: Arc::clone(replica), source: Arc::clone(source) },
        _ => PoolError::NoneOpened { replicas: left_out.to_vec() },
    }
}

/// The place of a native replica.
pub(super) fn place(url: &PoolUrl) -> Arc<ReplicaPlace> {
    Arc::new(ReplicaPlace::Pool(url.clone()))
}

/// A replica and a copy of it are one replica. `replicas`: where each was found, and which of the pool's it is.
pub(super) fn check_distinct<'u>(replicas: impl Iterator<Item = (&'u Arc<PoolUrl>, u16)>) -> Result<(), PoolError> {
    let mut seen: Vec<(&PoolUrl, u16)> = Vec::new();
    for (url, index) in replicas {
        if let Some((other, _)) = seen.iter().find(|(_, known)| *known == index) {
            return Err(PoolError::SameReplica { replica: place(url), other: place(other), index });
        }
        seen.push((url, index));
    }
    Ok(())
}
