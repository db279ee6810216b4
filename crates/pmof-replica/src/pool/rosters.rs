//! Rosters of the members of a pool, as targets keep them: read when it is opened, to know the members and to find those that were not named.

use pmof_control::{Reply, Request, Roster};

use crate::{
    ReplicaError,
    site::{Asked, Site},
};

/// What targets keep of the members of the pool that is open there, all of which are asked at once; `None` of one that keeps nothing.
pub(super) fn read_rosters<'t>(sites: impl Iterator<Item = &'t Site>) -> Vec<Option<Roster>> {
    let asked: Vec<_> = sites.map(|site| (site, site.send(&Request::Roster { offset: 0 }))).collect();
    // One that is lost meanwhile is noticed when it is used.
    let read = asked.into_iter().map(|(site, asked)| asked.and_then(|asked| read_roster(site, asked)).ok().flatten());
    read.collect()
}

/// The roster that a target keeps of the pool that is open there. `None`: it is too old to keep one.
pub(super) fn read_roster(site: &Site, asked: Asked) -> Result<Option<Roster>, ReplicaError> {
    let (mut bytes, mut answer) = (Vec::new(), site.answer(asked));
    loop {
        let part = match answer {
            Ok(Reply::Roster(part)) => part,
            Err(ReplicaError::Refused { .. }) => return Ok(None),
            Ok(_) => return Err(ReplicaError::Unexpected),
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&part.bytes);
        if bytes.len() >= usize::from(part.len_bytes) {
            return Roster::decode(&bytes).map(Some).map_err(|_| ReplicaError::Unexpected);
        }
        if part.bytes.is_empty() {
            return Err(ReplicaError::Unexpected);
        }
        answer = site.ask(&Request::Roster { offset: bytes.len() as u16 });
    }
}
