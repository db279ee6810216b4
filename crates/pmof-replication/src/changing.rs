//! Changes of an open pool's members: one that comes is made empty, becomes a member, and catches up as any other; one that goes is closed.
//!
//! The steps are futures, which a [`Changes`] drives as [`epochs`] are driven. How a change is made durable is in [`epochs`].

use alloc::sync::Arc;

use pmof_control::{MeantReplica, PoolInfo, PoolName, PoolRefusal, Reply, Request, Role, Roster, RosterMember};

use crate::{
    asking::Failure as _,
    epochs::{self, Driver as _, Introduced},
    lineage::was_never_in_sync,
    member_state::MemberState,
    membership::{Changed, Planned},
    place::{Place as _, at},
    returning::{Members, Placing, introduce},
    roster::free_index,
};

mod driver;
mod spares;

pub use driver::{Changes, Made, News, Why};
pub use spares::{add_spare, forget_spare, remove_spare, take_spare};

/// The result of a step of a change by the driver `D`.
pub type Change<T, D> = Result<T, <D as Changes>::Error>;

/// A replica that was made to become a member, by the driver `D`.
type MadeBy<D> = Made<<D as Changes>::Place, <D as Changes>::Site, <D as Changes>::Member>;

/// Looks in a row at which a new member is lost before it is given up.
const LOST_LOOKS: u32 = 500;

fn outcome<D: Changes>(driver: &D, changed: Changed) -> Change<(), D> {
    match changed {
        Changed::Done => Ok(()),
        other => Err(driver.error(Why::NotChanged(other))),
    }
}

/// The members, where the outcome of each change is known and all connected members can keep a roster.
///
/// # Errors
/// [`Why::NotChanged`], and the driver's.
pub async fn roster<D: Changes>(driver: &D) -> Change<Roster, D> {
    driver.check_members().await?;
    let epochs = driver.epochs()?;
    let locked = epochs.lock().await;
    if !epochs::settle_last(&locked).await {
        return Err(driver.error(Why::NotChanged(Changed::Undecided)));
    }
    let settled = locked.with(|epochs| epochs.membership.settled(&epochs.view));
    settled.ok_or_else(|| driver.error(Why::NotChanged(Changed::TooFew)))
}

async fn change<D: Changes>(driver: &D, planned: &Planned) -> Change<Changed, D> {
    let epochs = driver.epochs()?;
    let (changed, version) = {
        let locked = epochs.lock().await;
        let changed = epochs::change(&locked, planned).await;
        (changed, locked.with(|epochs| epochs.membership.roster().map(|roster| roster.version)))
    };
    // The settled roster, with its notes, may not have come to any member.
    if let (Changed::Done, Some(version)) = (changed, version) {
        driver.note(News::InForce { age: (version, 0) });
    }
    Ok(changed)
}

/// Makes an empty replica, and makes it a member, durably.
///
/// # Errors
/// [`Why`]; all but [`Changed::Undecided`] leave the members as they were.
pub async fn add<D: Changes>(driver: &D, place: &Arc<D::Place>, role: Role) -> Change<(), D> {
    let (made, position) = prepare(driver, place, role).await?;
    complete(driver, &made, position).await
}

/// Makes an empty replica, and gives it a position at which it is no member yet.
async fn prepare<D: Changes>(driver: &D, place: &Arc<D::Place>, role: Role) -> Change<(MadeBy<D>, usize), D> {
    let roster = roster(driver).await?;
    let known = at(&roster, &**place).map(|member| member.role);
    // A spare may become a member that has the bytes, and nothing else.
    if let Some(known) = known.filter(|known| (*known, role) != (Role::Spare, Role::Data)) {
        return Err(driver.error(Why::Known { place, known, wanted: role }));
    }
    let made = make(driver, &roster, place, role).await?;
    if let Err(error) = roster.adding(made.of_roster.clone(), driver.fresh_name()).check() {
        undo(driver, &made).await;
        return Err(driver.error(Why::Roster(error)));
    }
    let position = match driver.admit(&made).await {
        Ok(position) => position,
        Err(error) => {
            undo(driver, &made).await;
            return Err(error);
        }
    };
    let index = made.of_roster.index;
    // It knows that it is behind before it is a member: what it was made with would pass for another line of the pool.
    let epochs = driver.epochs()?;
    let introduced = (index, None, Some(&made.state));
    if introduce(&*epochs, position, introduced, &made.member, &mut Introduced::default()).await != Placing::Given {
        undo(driver, &made).await;
        driver.give_up(position, index).await;
        return Err(driver.error(Why::Lost { place, member: &made.member }));
    }
    Ok((made, position))
}

/// Makes it a member, durably, or takes it away.
async fn complete<D: Changes>(driver: &D, made: &MadeBy<D>, position: usize) -> Change<(), D> {
    let changed = change(driver, &Planned::Add(made.of_roster.clone())).await?;
    if matches!(changed, Changed::TooFew | Changed::Disturbed | Changed::Ended) {
        undo(driver, made).await;
        driver.give_up(position, made.of_roster.index).await;
    } else {
        driver.note(News::Added { made, position });
    }
    outcome(driver, changed)
}

/// Makes an empty replica.
///
/// # Errors
/// [`Why`]: it was not made.
pub async fn make<D: Changes>(driver: &D, roster: &Roster, place: &Arc<D::Place>, role: Role) -> Change<MadeBy<D>, D> {
    let epochs = driver.epochs()?;
    let free = epochs.lock().await.with(|epochs| free_index(roster, epochs.view.line()));
    let index = free.filter(|_| driver.has_room());
    let index = index.ok_or_else(|| driver.error(Why::TooMany { count: roster.members.len() }))?;
    let count = (roster.counted().count() as u16 + 1).max(index + 1);
    let create = driver.creation(place, (index, role), count);
    let not_made = |why| driver.error(Why::NotMade { place, why });
    let site = driver.connect(place).await?;
    let reply = match driver.ask(&site, &create).await {
        Err(why) if why.refusal() == Some(PoolRefusal::AlreadyExists) => {
            take_away(driver, roster, place, &site, why).await?;
            driver.ask(&site, &create).await
        }
        reply => reply,
    };
    let reply = reply.map_err(not_made)?;
    let replica_uuid = match &reply {
        Reply::Opened { replica_uuid, .. } => Some(*replica_uuid),
        _ => None,
    };
    let made = driver.adopt(place, site, (index, role), reply).await;
    match (made, replica_uuid) {
        (Ok(made), _) => Ok(made),
        (Err((site, error)), Some(replica_uuid)) => {
            remove_replica(driver, place.pool_name(), &site, MeantReplica::at_any_epoch(replica_uuid)).await;
            Err(error)
        }
        (Err((_, error)), None) => Err(error),
    }
}

/// Removes what an addition left there that was never in sync; anything else of that name stays. `refused`: the refusal to make a replica there.
async fn take_away<D: Changes>(
    driver: &D,
    roster: &Roster,
    place: &Arc<D::Place>,
    site: &D::Site,
    refused: D::Failure,
) -> Change<(), D> {
    let name = place.pool_name().clone();
    let Ok(Reply::Info(info)) = driver.ask(site, &Request::Info { name: name.clone() }).await else {
        return Err(driver.error(Why::NotMade { place, why: refused }));
    };
    let PoolInfo { header, state, open_by, .. } = &*info;
    if header.pool_uuid != driver.pool_uuid() {
        return Err(driver.error(Why::OtherPool { place, found: header.pool_uuid }));
    }
    if roster.members.iter().any(|member| member.is(header.replica_index, header.replica_uuid)) {
        return Err(driver.error(Why::AlreadyMember { place }));
    }
    let epochs = driver.epochs()?;
    if open_by.is_some() || !was_never_in_sync(header.replica_index, state) {
        let line = epochs.lock().await.with(|epochs| (epochs.view.line().to_vec(), epochs.view.opening()));
        return Err(driver.error(Why::InTheWay { place, info: &info, line: &line }));
    }
    // A writer after this one may have made a member of it, which has no holder now.
    if epochs.lock().await.with(|epochs| epochs.view.is_superseded_by(state)) {
        driver.fence();
        return Err(driver.error(Why::Superseded { place }));
    }
    let meant = MeantReplica { uuid: header.replica_uuid, epoch: Some(state.epoch.id) };
    match driver.ask(site, &Request::Remove { name, meant: Some(meant) }).await {
        Ok(_) => {
            driver.note(News::LeftoverRemoved);
            Ok(())
        }
        Err(why) => Err(driver.error(Why::NotMade { place, why })),
    }
}

/// Removes a replica that did not become a member, if it is still that one: as soon as it is closed another writer may make one in its place, or open it.
pub async fn undo<D: Changes>(driver: &D, made: &MadeBy<D>) {
    // It knows that it is behind, so that no program opens it alone.
    let meant = MeantReplica::at_any_epoch(made.of_roster.replica_uuid);
    remove_replica(driver, made.place.pool_name(), &made.site, meant).await;
}

async fn remove_replica<D: Changes>(driver: &D, name: &PoolName, site: &D::Site, meant: MeantReplica) {
    // What cannot be undone ends with the connection; the caller reports the first failure.
    let _ = driver.ask(site, &Request::Close { in_order: false }).await;
    let _ = driver.ask(site, &Request::Remove { name: name.clone(), meant: Some(meant) }).await;
}

/// Makes a counted member no member, durably.
///
/// # Errors
/// [`Why`]; all but [`Changed::Undecided`] leave the members as they were.
pub async fn remove<D: Changes>(driver: &D, roster: &Roster, of_roster: &RosterMember) -> Change<(), D> {
    let index = of_roster.index;
    let position = position(driver, of_roster).await?;
    if !driver.has_other_in_sync(position)? {
        return Err(driver.error(Why::LastInSync { of_roster, position }));
    }
    driver.check_promise(roster, index, position)?;
    let changed = change(driver, &Planned::Remove(index)).await?;
    if matches!(changed, Changed::Done | Changed::Undecided) {
        if let Some(position) = position {
            driver.let_go(position, index).await;
        }
        driver.note(News::Removed { of_roster });
    }
    outcome(driver, changed)
}

/// Where a member is, or is awaited since the pool was opened without it. `None`: it is not awaited.
async fn position<D: Changes>(driver: &D, of_roster: &RosterMember) -> Change<Option<usize>, D> {
    let at = driver.positions_at(&of_roster.url)?;
    let epochs = driver.epochs()?;
    let locked = epochs.lock().await;
    Ok(locked.with(|epochs| {
        let is_unknown = |position: &usize| epochs.view.index(*position).is_none();
        epochs.view.position(of_roster.index).or_else(|| at.into_iter().find(is_unknown))
    }))
}

/// Whether a lost replica at a position has never said which one it is.
pub fn was_never_found(view: &crate::view::View, position: usize, state: MemberState) -> bool {
    state.is_lost() && view.index(position).is_none()
}

/// Waits until the member at `new` is in sync, where `old` has something to lose, and removes that.
///
/// # Errors
/// [`Why`]: both may be members.
pub async fn replace<D: Changes>(driver: &D, old: u16, new: &Arc<D::Place>) -> Change<(), D> {
    let mut lost_looks = 0;
    loop {
        let roster = roster(driver).await?;
        let of = |index: Option<u16>| async move {
            let Some(index) = index else { return Ok(None) };
            let epochs = driver.epochs()?;
            let position = epochs.lock().await.with(|epochs| epochs.view.position(index));
            position.map(|position| driver.member(position)).transpose()
        };
        let state = |member: &Option<D::Member>| {
            member.as_ref().map_or(Ok(None), |member| Ok(Some(driver.epochs()?.state(member))))
        };
        let (old_member, new_member) =
            (of(Some(old)).await?, of(at(&roster, &**new).map(|member| member.index)).await?);
        let is_in_use = |state: Option<MemberState>| state.is_some_and(MemberState::is_in_sync);
        let new_state = state(&new_member)?;
        if !is_in_use(state(&old_member)?) || is_in_use(new_state) {
            let Some(of_roster) = roster.member(old) else { return Ok(()) };
            return remove(driver, &roster, of_roster).await;
        }
        let lost = new_member.filter(|_| new_state.is_some_and(MemberState::is_lost));
        lost_looks = if lost.is_some() { lost_looks + 1 } else { 0 };
        if let Some(member) = lost.filter(|_| lost_looks >= LOST_LOOKS) {
            return Err(driver.error(Why::NewMemberLost { place: new, member: &member }));
        }
        driver.pause().await?;
    }
}
