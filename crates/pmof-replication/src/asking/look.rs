//! Looks at replicas that are not opened, or not yet: what their targets say of them, and which of them know better who the members are.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use pmof_control::{Enclosed, OpenFor, PoolInfo, Reply, Request, Role, Roster, RosterMember};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{
    action::{Action, SiteId},
    cause::{Cause, Failure, Reason},
    exchange::{Exchange, Patience, Task},
    limits::PROMOTED_WAIT,
    requests::{done, kept_roster, reply_when_free},
};
use crate::place::{Place, asynchronous_elsewhere};

/// What a target says of a replica, and what it tells to readers: its roster, and its failure domain.
pub(crate) type Looked = (Box<PoolInfo>, Enclosed);

/// Looks at a replica.
pub(crate) async fn look<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    place: &P,
) -> Result<Looked, Cause<F>> {
    let info = read_info(exchange, site, place).await?;
    Ok((info, look_beside(exchange, site, place).await?))
}

/// What a target says of a replica, also while another program has it open.
pub(crate) async fn read_info<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    place: &P,
) -> Result<Box<PoolInfo>, Cause<F>> {
    match reply_when_free(exchange, site, Request::Info { name: place.pool_name().clone() }).await? {
        Reply::Info(info) => Ok(info),
        _ => Err(Reason::Unexpected.into()),
    }
}

/// Opens a replica for reading, for what its target tells with it. The roster is `None` where it keeps none, or refuses to tell it. A member that cannot be
/// opened is no help to the others, whatever its state says.
async fn look_beside<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    place: &P,
) -> Result<Enclosed, Cause<F>> {
    let name = place.pool_name().clone();
    let open = Request::Open { name, access: OpenFor::Read, require: Durability::Visible, may_be_older: false };
    let mut beside = match reply_when_free(exchange, site, open).await? {
        Reply::Opened { enclosed, .. } => *enclosed,
        _ => Enclosed::default(),
    };
    beside.roster = kept_roster(exchange, site, &mut beside).await?;
    Ok(beside)
}

/// The asynchronous members of `roster` of which a pool was made since, by their own words, which are not awaited for long; with their connections.
/// They are no members of that roster.
pub(crate) async fn promoted<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    (roster, uuid): (&Roster, Uuid),
    places: &[Arc<P>],
) -> Vec<(Arc<P>, SiteId, Looked)> {
    let members = asynchronous_elsewhere(roster, places);
    let sites: Vec<_> = members.iter().map(|_| exchange.fresh_site()).collect();
    let tasks = members.iter().zip(&sites).map(|((member, place), site)| -> Task<'_, _> {
        Box::pin(look_at_promoted(exchange, *site, place, (uuid, member)))
    });
    let answers = exchange.answers(tasks.collect(), Patience::within(PROMOTED_WAIT), |_| false).await;
    let is_newer = |(_, beside): &Looked| beside.roster.as_ref().is_some_and(|kept| kept.age() > roster.age());
    let mut promoted = Vec::new();
    for (((_, place), site), answer) in members.into_iter().zip(sites).zip(answers) {
        match answer.ok().flatten().filter(is_newer) {
            Some(looked) => promoted.push((place, site, looked)),
            None => exchange.tell(Action::Drop { site }),
        }
    }
    promoted
}

/// Looks at an asynchronous member. `None`: another replica lies there, no pool was made of it, or it keeps no roster.
pub(crate) async fn look_at_promoted<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    place: &Arc<P>,
    (uuid, member): (Uuid, &RosterMember),
) -> Result<Option<Looked>, Cause<F>> {
    done(exchange, Action::Connect { site, place: Arc::clone(place), limit: Some(PROMOTED_WAIT) }).await?;
    let info = read_info(exchange, site, &**place).await?;
    let (index, replica_uuid) = (info.header.replica_index, info.header.replica_uuid);
    if info.header.pool_uuid != uuid || !member.is(index, replica_uuid) || !was_promoted(&info) {
        return Ok(None);
    }
    let beside = look_beside(exchange, site, &**place).await?;
    let is_asynchronous = |member: &RosterMember| member.role == Role::Asynchronous && member.is(index, replica_uuid);
    // If it was removed since, its roster names its pool's members.
    let is_its_pools = beside.roster.as_ref().is_some_and(|roster| !roster.members.iter().any(is_asynchronous));
    Ok(is_its_pools.then_some((info, beside)))
}

/// Whether what was an asynchronous member is or was in an epoch of its own pool.
pub fn was_promoted(info: &PoolInfo) -> bool {
    let index = info.header.replica_index;
    is_promoted(info) || info.state.ancestors.iter().any(|epoch| epoch.has(index))
}

/// Whether what was an asynchronous member has an epoch of its own: no other epoch counts one.
pub fn is_promoted(info: &PoolInfo) -> bool {
    info.state.epoch.has(info.header.replica_index)
}
