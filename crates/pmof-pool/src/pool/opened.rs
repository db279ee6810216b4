//! What answers a pool's opening of one replica, and whether that fits.

use std::sync::Arc;

use pmof_access::{Durability, Medium, RemoteRegion};
use pmof_control::{OpenFor, PoolState, Reply};
pub(super) use pmof_replication::opening::Identity;
use pmof_replication::opening::OpenedReply;
use uuid::Uuid;

use crate::{
    PoolUrl, ReplicaError, ReplicaPlace,
    member::{Control, LocalMember, Member, RemoteMember, Standing, WitnessMember, Writing},
    site::Site,
};

/// What an answer says, where it fits.
pub(super) struct Checked {
    pub(super) replica_uuid: Uuid,
    pub(super) size_bytes: u64,
    pub(super) state: PoolState,
    pub(super) reached: Reached,
}

/// The bytes of a replica that is open; how they are flushed, where it is open for writing.
#[derive(Debug)]
pub(super) enum Reached {
    Remote { data: RemoteRegion, writing: Option<Writing> },
    Here { memory: Arc<dyn Medium>, begin: u64, levels: Option<(Durability, Durability)> },
}

/// Checks that an answer is what was asked for, and the same pool as those before it. One of a witness's size may be a witness: only the pool's roster
/// tells, so that [`Identity::check_size`] is to follow.
pub(super) fn check_opened(
    reply: Reply,
    site: &Site,
    wanted: Durability,
    access: OpenFor,
    identity: &mut Option<Identity>,
) -> Result<Checked, ReplicaError> {
    let told = OpenedReply::of(reply)?;
    // Before it is compared: what does not describe its memory is no target.
    Reached::check(site, &told.descriptor)?;
    told.check(identity)?;
    let OpenedReply { identity: Identity { size_bytes, .. }, replica_uuid, state, descriptor, .. } = told;
    let reached = Reached::open(site, &descriptor, size_bytes, (wanted, access))?;
    Ok(Checked { replica_uuid, size_bytes, state, reached })
}

impl Reached {
    /// Checks that a descriptor is one.
    pub(super) fn check(site: &Site, descriptor: &[u8]) -> Result<(), ReplicaError> {
        match site {
            Site::Target(_) => RemoteRegion::from_descriptor(descriptor).map(drop).map_err(ReplicaError::from),
            Site::Here(_) => Ok(()),
        }
    }

    /// The bytes of a replica that was opened, by its `descriptor`, ready for what it was opened for: flushes reach `wanted` at least.
    pub(super) fn open(
        site: &Site,
        descriptor: &[u8],
        size_bytes: u64,
        (wanted, access): (Durability, OpenFor),
    ) -> Result<Self, ReplicaError> {
        let mut reached = match site {
            Site::Target(_) => Self::Remote { data: RemoteRegion::from_descriptor(descriptor)?, writing: None },
            Site::Here(here) => {
                let (memory, data) = here.memory().ok_or(ReplicaError::Unexpected)?;
                Self::Here { memory, begin: data.start, levels: None }
            }
        };
        let is_written = access == OpenFor::Write;
        match (&mut reached, site) {
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
        Ok(reached)
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

/// The place of a native replica.
pub(super) fn place(url: &PoolUrl) -> Arc<ReplicaPlace> {
    Arc::new(ReplicaPlace::Pool(url.clone()))
}
