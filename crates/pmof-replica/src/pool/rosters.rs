//! Rosters of the members of a pool, as targets keep them: read when it is opened, to know the members and to find those that were not named.

use pmof_access::Durability;
use pmof_control::{Enclosed, FailureDomain, OpenFor, PoolInfo, Reply, Request, Roster};

use crate::{
    PoolUrl, ReplicaError,
    site::{Asked, Site},
};

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

/// What a target says of a replica, and the roster that it keeps there.
pub(super) fn hear(site: &Site, url: &PoolUrl) -> Result<(Box<PoolInfo>, Option<Roster>), ReplicaError> {
    let (info, beside) = hear_all(site, url)?;
    Ok((info, beside.roster))
}

/// A replica, the roster that its target keeps, and the failure domain of that.
pub(super) type Told = (Box<PoolInfo>, Option<Roster>, Option<FailureDomain>);

/// The same, with the failure domain.
pub(super) fn hear_with_domain(site: &Site, url: &PoolUrl) -> Result<Told, ReplicaError> {
    let (info, Enclosed { roster, domain, .. }) = hear_all(site, url)?;
    let domain = domain.unwrap_or_else(|| site.failure_domain(site.send(&Request::Domain)));
    Ok((info, roster, domain))
}

fn hear_all(site: &Site, url: &PoolUrl) -> Result<(Box<PoolInfo>, Enclosed), ReplicaError> {
    match site.ask_when_free(&Request::Info { name: url.name.clone() })? {
        Reply::Info(info) => Ok((info, look_beside(site, url)?)),
        _ => Err(ReplicaError::Unexpected),
    }
}

/// What a target tells of a replica that is opened there, with the roster, where it keeps one and can tell it now. A member that cannot be opened is no help to the others,
/// whatever its state says.
fn look_beside(site: &Site, url: &PoolUrl) -> Result<Enclosed, ReplicaError> {
    let open = Request::Open {
        name: url.name.clone(),
        access: OpenFor::Read,
        require: Durability::Visible,
        may_be_older: false,
    };
    let mut enclosed = match site.ask_when_free(&open)? {
        Reply::Opened { enclosed, .. } => *enclosed,
        _ => Enclosed::default(),
    };
    let ask = || site.send(&Request::Roster { offset: 0 }).and_then(|asked| read_roster(site, asked)).ok().flatten();
    enclosed.roster = enclosed.roster.or_else(ask);
    // What cannot be closed ends with the connection.
    let _ = site.ask(&Request::Close { in_order: false });
    Ok(enclosed)
}
