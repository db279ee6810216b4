//! What targets are asked: one request, or a few that belong together.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use pmof_control::{Enclosed, FailureDomain, Reply, Request, Roster};

use super::{
    action::{Action, Answer, SiteId},
    cause::{Cause, Failure, Reason},
    exchange::{Exchange, Patience, Task},
    limits::{BUSY_WAIT, busy_pauses},
};
use crate::place::Place;

/// A target's reply to one request.
pub(crate) type Replied<F> = Result<Reply, Cause<F>>;

/// Connects to addresses side by side, and asks there. A connection whose answer is not the right one is dropped.
pub(crate) async fn at_each<P: Place, F: Failure, T>(
    exchange: &Exchange<P, F>,
    places: &[Arc<P>],
    patience: Patience,
    ask: impl AsyncFn(SiteId, &P) -> Result<T, Cause<F>>,
) -> Vec<Result<(SiteId, T), Cause<F>>> {
    let (sites, ask): (Vec<_>, _) = (places.iter().map(|_| exchange.fresh_site()).collect(), &ask);
    let tasks = sites.iter().zip(places).map(|(site, place)| -> Task<'_, _> {
        let connect = Action::Connect { site: *site, place: Arc::clone(place), limit: None };
        Box::pin(async move {
            done(exchange, connect).await?;
            Ok((*site, ask(*site, place).await?))
        })
    });
    let answers = exchange.answers(tasks.collect(), patience, Result::is_ok).await;
    for (site, _) in sites.iter().zip(&answers).filter(|(_, answer)| answer.is_err()) {
        exchange.tell(Action::Drop { site: *site });
    }
    answers
}

/// The roster that a target keeps of the pool that is open there, unless that came `beside` another reply. `None`: it keeps none, or refuses to tell it. Without the roster of a
/// member that keeps one, a pool would be judged by its older members: a target that is lost meanwhile counts as one that did not answer.
pub(crate) async fn kept_roster<P, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    beside: &mut Enclosed,
) -> Result<Option<Roster>, Cause<F>> {
    match beside.roster.take() {
        Some(roster) => Ok(Some(roster)),
        None => read_roster(exchange, site).await,
    }
}

async fn read_roster<P, F: Failure>(exchange: &Exchange<P, F>, site: SiteId) -> Result<Option<Roster>, Cause<F>> {
    let mut bytes = Vec::new();
    loop {
        let part = match reply(exchange, site, Request::Roster { offset: bytes.len() as u16 }).await {
            Ok(Reply::Roster(part)) => part,
            Err(cause) if cause.is_refused() => return Ok(None),
            Ok(_) => return Err(Reason::Unexpected.into()),
            Err(cause) => return Err(cause),
        };
        bytes.extend_from_slice(&part.bytes);
        if bytes.len() >= usize::from(part.len_bytes) {
            return Roster::decode(&bytes).map(Some).map_err(|_| Reason::Unexpected.into());
        }
        if part.bytes.is_empty() {
            return Err(Reason::Unexpected.into());
        }
    }
}

/// What fails together with a target, unless that came `beside` another reply. `None`: it is of a release that does not say.
pub(crate) async fn failure_domain<P, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    beside: &mut Enclosed,
) -> Option<FailureDomain> {
    match beside.domain.take() {
        Some(domain) => domain,
        None => match reply(exchange, site, Request::Domain).await {
            Ok(Reply::Domain(domain)) => domain,
            _ => None,
        },
    }
}

pub(crate) async fn done<P, F: Failure>(exchange: &Exchange<P, F>, action: Action<P>) -> Result<(), Cause<F>> {
    match exchange.ask(action).await? {
        Answer::Done => Ok(()),
        Answer::Reply(_) | Answer::Kept(_) => Err(Reason::Unexpected.into()),
    }
}

pub(crate) async fn reply<P, F: Failure>(exchange: &Exchange<P, F>, site: SiteId, request: Request) -> Replied<F> {
    match exchange.ask(Action::Send { site, request }).await? {
        Answer::Reply(reply) => Ok(*reply),
        Answer::Done | Answer::Kept(_) => Err(Reason::Unexpected.into()),
    }
}

/// The reply; where another has open what is asked for, which may be gone, it is asked for again and again for a second.
pub(crate) async fn reply_when_free<P, F: Failure>(
    exchange: &Exchange<P, F>,
    site: SiteId,
    request: Request,
) -> Replied<F> {
    let (since, mut pauses) = (exchange.now(), busy_pauses());
    loop {
        let replied = reply(exchange, site, request.clone()).await;
        if !replied.as_ref().is_err_and(Cause::may_be_free_soon) || exchange.since(since) >= BUSY_WAIT {
            return replied;
        }
        exchange.sleep(pauses.next().unwrap_or_default()).await;
    }
}
