//! Connecting to an asynchronous member: whether it is the member and this writer's, how it is taken from a writer before, and what it learns.

use pmof_control::{Claim, PoolState, Reply, Request};
use uuid::Uuid;

use super::{
    driver::{Follows, Stop, Stopped, Terms},
    rules::Rules,
};
use crate::{asking::Reason, epochs::Driver, opening::OpenedReply, returning::Members, view::Introduction};

/// A member that is connected, and has finished the change set that was interrupted.
pub(super) struct Attached<R> {
    pub(super) replica: R,
    /// Which boot of its machine it is, if that is known.
    pub(super) boot: Option<Uuid>,
}

/// Connects to a member, takes it from a writer before this one, and finishes the change set that was interrupted.
pub(super) async fn attach<D: Follows>(driver: &D) -> Stopped<Attached<D::Replica>, D> {
    let Terms { identity, require, of_roster } = driver.terms();
    let name = driver.name();
    driver.epochs()?;
    let site = driver.connect().await.map_err(Stop::Lost)?;
    let Reply::Info(info) = driver.ask(&site, &Request::Info { name: name.clone() }).await.map_err(Stop::Lost)? else {
        return Err(Stop::Lost(driver.unfit(Reason::Unexpected)));
    };
    // A closing waits for it from here on, or this goes no further.
    if !driver.begin_opening() {
        return Err(Stop::Ended);
    }
    let (index, found) = (of_roster.index, info.header.replica_index);
    if info.header.pool_uuid != identity.uuid || !of_roster.is(found, info.header.replica_uuid) {
        return Err(Stop::Rejected(driver.unfit(Reason::NotTheMember { index, found })));
    }
    // One that was promoted, or that a later writer has, is not touched.
    if let Err(stop) = check_own(driver, index, &info.state).await {
        fence_if_promoted(driver).await;
        return Err(stop);
    }
    let own = driver.with_known(|known| known.epoch).filter(|epoch| *epoch == info.state.epoch.id);
    let current = driver.epochs()?.lock().await.with(|epochs| epochs.view.epoch());
    // From this writer's own connection, or from a writer before it, which may hang. That one is not granted it again: it does not know the epoch.
    let (silent_ms, epoch) = if own.is_some() { (u64::MAX, own) } else { (0, current) };
    let claim = epoch.map_or(Claim::None, Claim::Own);
    let reply = driver.open(&site, &Request::TakeOver { name, require, silent_ms, claim }).await.map_err(Stop::Lost)?;
    let opened = OpenedReply::of(reply).and_then(|opened| opened.check(&mut Some(identity)).map(|()| opened));
    let opened = opened.map_err(|why| Stop::Lost(driver.unfit(why)))?;
    // Another writer may have had it in between.
    if let Err(stop) = check_own(driver, index, &opened.state).await {
        let _ = driver.ask(&site, &Request::Close { in_order: false }).await;
        return Err(stop);
    }
    let mark = opened.state.mark;
    let member = driver.adopt(site, &opened).map_err(Stop::Lost)?;
    let epoch = tell_epoch(&*driver.epochs()?, &member, index).await;
    driver.with_known(|known| known.epoch = epoch.or(known.epoch));
    let replica = match epoch {
        Some(_) => driver.open_areas(&member, mark).await,
        None => Err(driver.failure(&member)),
    };
    match replica {
        Ok(replica) => Ok(Attached { replica, boot: driver.boot(&member).await }),
        Err(why) => {
            driver.close(&member).await;
            Err(Stop::Lost(why))
        }
    }
}

/// Whether the state of a member is one that this writer or one before it has left.
async fn check_own<D: Follows>(driver: &D, index: u16, state: &PoolState) -> Stopped<(), D> {
    let apart = driver.epochs()?.lock().await.with(|epochs| driver.rules().apart(&epochs.view, index, state));
    let made = driver.terms().identity.replica_count;
    apart.map_or(Ok(()), |apart| Err(Stop::Rejected(driver.unfit(Reason::Apart { apart, made }))))
}

/// Has the pool be written no more where a pool was made of its asynchronous member: what it acknowledged from here on would be another history of that one.
async fn fence_if_promoted<D: Follows>(driver: &D) {
    let Some(promoted) = driver.promoted().await else { return };
    let Ok(epochs) = driver.epochs() else { return };
    let is_newer = epochs.lock().await.with(|epochs| {
        let own = epochs.membership.roster();
        own.is_some_and(|own| own.age() < promoted.age())
    });
    if is_newer {
        driver.fence();
    }
}

/// Has a member know durably of the epoch in force, which it is behind and which this returns, and of the pool's members. `None`: it did not take that.
pub async fn tell_epoch<M: Members>(members: &M, member: &M::Member, index: u16) -> Option<Uuid> {
    let (roster, epoch, introduction) = members.lock().await.with(|epochs| {
        let roster = epochs.membership.roster().cloned();
        (roster, epochs.view.epoch(), epochs.view.introduction(index, None))
    });
    let Introduction::Tell(to_tell) = introduction? else { return None };
    // First: what it says of epochs counts for the members that it names.
    if let Some(roster) = &roster {
        if !members.give_roster(member, roster).await {
            return None;
        }
    }
    for (request, expected) in &to_tell {
        members.ask_for(member, request, expected, None).await.ok()?;
    }
    epoch
}
