//! Questions to several replicas whose answers are of use one by one.

use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};

use pmof_control::{Claim, MeantReplica, PoolInfo, Request, Roster, RosterMember};
use pmof_terms::Durability;
use uuid::Uuid;

use crate::{
    asking::{
        Asking, Cause, Exchange, Failure, Looked, Patience, SiteId, Task, at_each, look, look_at_promoted, read_info,
        reply, reply_when_free,
    },
    place::Place,
};

/// What a target says of a replica that is not opened.
#[derive(Debug)]
pub struct Look {
    /// The connection, which stays.
    pub site: SiteId,
    /// The replica.
    pub info: Box<PoolInfo>,
    /// The members, if it keeps them.
    pub roster: Option<Roster>,
}

type Answers<T, F> = Vec<Result<T, Cause<F>>>;

/// Asks what each target says of its replica. All are awaited.
pub fn infos<P: Place + 'static, F: Failure + 'static>(places: Vec<Arc<P>>) -> Asking<P, F, Answers<Box<PoolInfo>, F>> {
    Asking::new(move |exchange| async move {
        let infos = ask_infos(&exchange, &places, Patience::ENDLESS).await;
        infos.into_iter().map(|answer| answer.map(|(_, info)| info)).collect()
    })
}

/// Looks at each replica. All are awaited.
pub fn looks<P: Place + 'static, F: Failure + 'static>(places: Vec<Arc<P>>) -> Asking<P, F, Answers<Look, F>> {
    Asking::new(move |exchange| async move { look_at_each(&exchange, &places).await })
}

/// Takes the pool from its writer on each replica that answers, and leaves the replica to others, as its writer left it. Returns which writer had it. Replicas that are silent
/// when half of them have answered are not awaited, and nothing is taken there.
pub fn release<P: Place + 'static, F: Failure + 'static>(
    places: Vec<Arc<P>>,
    require: Durability,
    silent_ms: u64,
) -> Asking<P, F, Answers<Option<String>, F>> {
    Asking::new(move |exchange| async move {
        let exchange = &*exchange;
        let patience = Patience::once(places.len().div_ceil(2), places.iter().any(|place| place.starts_target()));
        let found = ask_infos(exchange, &places, patience).await;
        let tasks = found.into_iter().zip(&places).map(|(found, place)| -> Task<'_, Result<_, Cause<F>>> {
            let name = place.pool_name().clone();
            Box::pin(async move {
                let (site, info) = found?;
                let take = Request::TakeOver { name, require, silent_ms, claim: Claim::None };
                reply_when_free(exchange, site, take).await?;
                reply(exchange, site, Request::Close { in_order: false }).await?;
                Ok(info.open_by)
            })
        });
        // However long it takes: it changes something.
        exchange.answers(tasks.collect(), Patience::ENDLESS, Result::is_ok).await
    })
}

/// Looks for a pool that was made of an asynchronous member of the pool `uuid`. `None`: another replica lies there, or none was made of it.
pub fn promoted_at<P: Place + 'static, F: Failure + 'static>(
    place: Arc<P>,
    uuid: Uuid,
    member: RosterMember,
) -> Asking<P, F, Result<Option<Roster>, Cause<F>>> {
    Asking::new(move |exchange| async move {
        let looked = look_at_promoted(&exchange, exchange.fresh_site(), &place, (uuid, &member)).await?;
        Ok(looked.and_then(|(_, enclosed)| enclosed.roster))
    })
}

/// Removes what programs left that died while they made a pool, if that is all that there is at `places`. A pool is there once all of its replicas are made and know
/// of each other, which is before anything can be acknowledged. Returns which replicas were removed.
pub fn remove_unfinished<P: Place + 'static, F: Failure + 'static>(places: Vec<Arc<P>>) -> Asking<P, F, Vec<Arc<P>>> {
    Asking::new(move |exchange| async move {
        let mut found = Vec::new();
        for (place, look) in places.iter().zip(look_at_each(&exchange, &places).await) {
            match look {
                Ok(look) if is_unfinished(&look) => found.push((place, look)),
                Err(cause) if cause.is_absent() => {}
                _ => return Vec::new(),
            }
        }
        // As many as were to be made have been made: an opening says what is wrong with these.
        let is_same = |(_, look): &(_, Look)| look.info.header.pool_uuid == found[0].1.info.header.pool_uuid;
        if found.is_empty() || found.len() == places.len() && found.iter().all(is_same) {
            return Vec::new();
        }
        let mut removed = Vec::new();
        for (place, Look { site, info, .. }) in found {
            // Another program may have opened it since, and is the pool's only one now.
            let meant = MeantReplica { uuid: info.header.replica_uuid, epoch: Some(info.state.epoch.id) };
            let remove = Request::Remove { name: place.pool_name().clone(), meant: Some(meant) };
            if reply(&exchange, site, remove).await.is_ok() {
                removed.push(Arc::clone(place));
            }
        }
        removed
    })
}

/// Whether a replica is as it was made: no one has it open, nothing was acknowledged in it, and it knows of no others.
fn is_unfinished(Look { info, roster, .. }: &Look) -> bool {
    let state = &info.state;
    let is_first = state.opening == 1 && state.ancestors.is_empty() && state.is_confirmed && !state.is_behind;
    let has_others = info.header.replica_count > 1;
    let is_blank = roster.as_ref().is_some_and(|roster| *roster == Roster::made(info.header.replica_count));
    is_first && state.is_open && state.mark == 0 && has_others && is_blank && info.open_by.is_none()
}

async fn ask_infos<P: Place, F: Failure>(
    exchange: &Exchange<P, F>,
    places: &[Arc<P>],
    patience: Patience,
) -> Answers<(SiteId, Box<PoolInfo>), F> {
    at_each(exchange, places, patience, async |site, place| read_info(exchange, site, place).await).await
}

async fn look_at_each<P: Place, F: Failure>(exchange: &Exchange<P, F>, places: &[Arc<P>]) -> Answers<Look, F> {
    let looked = async |site, place: &P| {
        let looked = look(exchange, site, place).await?;
        // What cannot be closed ends with the connection.
        let _ = reply(exchange, site, Request::Close { in_order: false }).await;
        Ok(looked)
    };
    let answers = at_each(exchange, places, Patience::ENDLESS, looked).await;
    let look = |(site, (info, beside)): (SiteId, Looked)| Look { site, info, roster: beside.roster };
    answers.into_iter().map(|answer| answer.map(look)).collect()
}
