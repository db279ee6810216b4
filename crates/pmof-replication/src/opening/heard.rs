//! Replicas that are not opened, or not yet, and know better who the members are: a spare takes a member's place while that one is away, and a pool
//! may be made of an asynchronous member.

use alloc::{boxed::Box, rc::Rc, sync::Arc, vec::Vec};

use pmof_control::{OpenFor, PoolInfo, PoolState, Reply, Request, Role, Roster, RosterMember};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{
    Cause, Failure, Reason, Rules,
    action::{Action, SiteId},
    ask::{Run, done, read_roster, reply_when_free},
    exchange::{Exchange, Patience, Task},
    limits::PROMOTED_WAIT,
    outcome::OpenedReplica,
};
use crate::{
    electorate::Word,
    lineage::Found,
    place::{Place, asynchronous_elsewhere, elsewhere, lacks, spares_elsewhere},
    roster::newest,
};

/// What a replica says that was asked for nothing else.
#[derive(Debug)]
pub(super) struct Heard {
    index: u16,
    replica_uuid: Uuid,
    state: PoolState,
    pub(super) roster: Roster,
}

impl Heard {
    fn new(info: &PoolInfo, roster: Roster) -> Self {
        let (index, replica_uuid) = (info.header.replica_index, info.header.replica_uuid);
        Self { index, replica_uuid, state: info.state.clone(), roster }
    }

    /// Its word, unless it was opened since.
    pub(super) fn word(&self, opened: &[OpenedReplica]) -> Option<Word<'_>> {
        let is_open = opened.iter().any(|opened| opened.replica_uuid == self.replica_uuid);
        let (found, roster) = (Found { index: self.index, state: &self.state }, Some(&self.roster));
        (!is_open).then_some(Word { found, replica_uuid: self.replica_uuid, roster })
    }
}

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    /// What those say that lie where `roster` has its spares, if members are missing and they know better.
    pub(super) async fn hear_spares(&mut self, roster: &Roster, opened: &[OpenedReplica], uuid: Uuid) -> Vec<Heard> {
        if !lacks(roster, &self.found(opened)) {
            return Vec::new();
        }
        let spares = spares_elsewhere(roster, &self.places);
        self.hear_at(&spares, roster, uuid).await
    }

    /// What those say of which a pool was made, of the asynchronous members of `roster`: they are no members of that roster.
    pub(super) async fn hear_promoted(&mut self, roster: &Roster, uuid: Uuid) -> Vec<Heard> {
        let exchange = Rc::clone(&self.exchange);
        let members = asynchronous_elsewhere(roster, &self.places);
        let sites: Vec<_> = members.iter().map(|_| exchange.fresh_site()).collect();
        let tasks = members.iter().zip(&sites).map(|((member, place), site)| -> Task<'_, _> {
            Box::pin(ask_promoted(&exchange, *site, place, (uuid, member)))
        });
        let answers = exchange.answers(tasks.collect(), Patience::within(PROMOTED_WAIT), |_| false).await;
        for site in sites {
            exchange.tell(Action::Drop { site });
        }
        let heard = answers.into_iter().filter_map(|answer| answer.ok().flatten());
        heard.filter(|heard| heard.roster.age() > roster.age()).collect()
    }

    /// For a forced opening: what members, spares and promoted members say that keep a newer roster. The open replicas may have been removed since.
    pub(super) async fn hear_all(&mut self, opened: &[OpenedReplica], uuid: Uuid) -> Vec<Heard> {
        let mut heard: Vec<Heard> = Vec::new();
        if self.access == OpenFor::Read || self.terms.min_replicas.is_none() {
            return heard;
        }
        let (mut asked, found) = (self.places.clone(), self.found(opened));
        let mut followed = newest(opened.iter().filter_map(|opened| opened.roster.as_ref())).cloned();
        while let Some(roster) = followed.take() {
            let mut fresh = self.hear_promoted(&roster, uuid).await;
            if lacks(&roster, &found) {
                let members = elsewhere(&roster, &found, &asked).into_iter().map(|other| other.url);
                let places: Vec<Arc<P>> = members.chain(spares_elsewhere(&roster, &asked)).collect();
                fresh.extend(self.hear_at(&places, &roster, uuid).await);
                asked.extend(places);
            }
            followed = newest(fresh.iter().map(|heard| &heard.roster)).cloned();
            heard.extend(fresh);
        }
        heard
    }

    /// What lies there, where it is of this pool and keeps a newer roster than this.
    async fn hear_at(&mut self, places: &[Arc<P>], roster: &Roster, uuid: Uuid) -> Vec<Heard> {
        let exchange = Rc::clone(&self.exchange);
        let sites: Vec<_> = places.iter().map(|_| exchange.fresh_site()).collect();
        let tasks = places
            .iter()
            .zip(&sites)
            .map(|(place, site)| -> Task<'_, _> { Box::pin(ask_member(&exchange, *site, place)) });
        let patience = self.patience(0, places);
        let answers = exchange.answers(tasks.collect(), patience, Result::is_ok).await;
        for site in sites {
            exchange.tell(Action::Drop { site });
        }
        for answer in &answers {
            self.note_silence(answer);
        }
        let newer = answers.into_iter().filter_map(|answer| {
            let (info, newer) = answer.ok()?;
            let newer = newer.filter(|newer| info.header.pool_uuid == uuid && newer.age() > roster.age())?;
            Some(Heard::new(&info, newer))
        });
        newer.collect()
    }
}

type Told<F> = Result<(Box<PoolInfo>, Option<Roster>), Cause<F>>;

/// Connects, and asks what a target says of a replica, and for the roster that it keeps there.
async fn ask_member<P: Place, F: Failure>(exchange: &Exchange<P, F>, site: SiteId, place: &Arc<P>) -> Told<F> {
    done(exchange, Action::Connect { site, place: Arc::clone(place), limit: None }).await?;
    let info = read_info(exchange, site, &**place).await?;
    let roster = open_roster(exchange, site, &**place).await?;
    Ok((info, roster))
}

/// The same of an asynchronous member. `None`: another replica lies there, or no pool was made of it.
async fn ask_promoted<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    place: &Arc<P>,
    (uuid, member): (Uuid, &RosterMember),
) -> Result<Option<Heard>, Cause<F>> {
    let limit = Some(PROMOTED_WAIT);
    done(exchange, Action::Connect { site, place: Arc::clone(place), limit }).await?;
    let info = read_info(exchange, site, &**place).await?;
    let (index, replica_uuid) = (info.header.replica_index, info.header.replica_uuid);
    if info.header.pool_uuid != uuid || !member.is(index, replica_uuid) || !was_promoted(&info) {
        return Ok(None);
    }
    let roster = open_roster(exchange, site, &**place).await?;
    let is_asynchronous = |member: &RosterMember| member.role == Role::Asynchronous && member.is(index, replica_uuid);
    // If it was removed since, its roster names its pool's members.
    let roster = roster.filter(|roster| !roster.members.iter().any(is_asynchronous));
    Ok(roster.map(|roster| Heard::new(&info, roster)))
}

async fn read_info<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    place: &P,
) -> Result<Box<PoolInfo>, Cause<F>> {
    match reply_when_free(exchange, site, Request::Info { name: place.pool_name().clone() }).await? {
        Reply::Info(info) => Ok(info),
        _ => Err(Reason::Unexpected.into()),
    }
}

/// The roster that a target keeps; `None` where it keeps none or cannot tell it now. A member that cannot be opened is no help to the others, whatever
/// its state says.
async fn open_roster<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    place: &P,
) -> Result<Option<Roster>, Cause<F>> {
    let name = place.pool_name().clone();
    let open = Request::Open { name, access: OpenFor::Read, require: Durability::Visible, may_be_older: false };
    match reply_when_free(exchange, site, open).await? {
        Reply::Opened { enclosed, .. } if enclosed.roster.is_some() => Ok(enclosed.roster),
        _ => Ok(read_roster(exchange, site).await.ok().flatten()),
    }
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
