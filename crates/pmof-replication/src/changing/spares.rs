//! Spares: addresses in the roster, where a member is made in the place of one that has been lost for long. They count for nothing.

use alloc::sync::Arc;

use pmof_control::{MeantReplica, Request, Role, Roster, RosterMember};
use uuid::Uuid;

use super::{Change, Changes, News, Why, complete, make, outcome, position, prepare, remove, roster, undo};
use crate::epochs::Driver as _;
use crate::{
    asking::Failure as _,
    epochs,
    member_state::MemberState,
    membership::Changed,
    place::{Place as _, at},
    returning::Members as _,
    roster::free_index,
};

/// How often a replica that is given back is asked to be removed while it is busy.
const GIVE_BACK_LOOKS: usize = 500;

async fn note<D: Changes>(driver: &D, index: u16, member: Option<RosterMember>) -> Change<(), D> {
    let epochs = driver.epochs()?;
    let (changed, age) = {
        let locked = epochs.lock().await;
        let changed = epochs::set_uncounted(&locked, index, member).await;
        (changed, locked.with(|epochs| epochs.membership.roster().map(Roster::age)))
    };
    if let (Changed::Done, Some(age)) = (changed, age) {
        driver.note(News::InForce { age });
    }
    outcome(driver, changed)
}

/// Notes durably an address where a member may be made; that a replica can be made there, with its room, is tried first.
///
/// # Errors
/// [`Why`].
pub async fn add_spare<D: Changes>(driver: &D, place: &Arc<D::Place>) -> Change<(), D> {
    let roster = roster(driver).await?;
    if let Some(known) = at(&roster, &**place) {
        return Err(driver.error(Why::Known { place, known: known.role, wanted: Role::Spare }));
    }
    let made = make(driver, &roster, place, Role::Data).await?;
    undo(driver, &made).await;
    let epochs = driver.epochs()?;
    let index = epochs.lock().await.with(|epochs| free_index(&roster, epochs.view.line()));
    let index = index.ok_or_else(|| driver.error(Why::TooMany { count: roster.members.len() }))?;
    let spare = RosterMember { index, role: Role::Spare, replica_uuid: Uuid::nil(), ..made.of_roster };
    note(driver, index, Some(spare)).await
}

/// Notes durably that a spare is none.
///
/// # Errors
/// [`Why::NotChanged`].
pub async fn remove_spare<D: Changes>(driver: &D, spare: &RosterMember) -> Change<(), D> {
    note(driver, spare.index, None).await
}

/// A spare that has become a member is none.
///
/// # Errors
/// [`Why`].
pub async fn forget_spare<D: Changes>(driver: &D, place: &Arc<D::Place>) -> Change<(), D> {
    let roster = roster(driver).await?;
    match roster.spares().find(|spare| D::Place::parse(&spare.url).is_some_and(|url| url == **place)) {
        Some(spare) => remove_spare(driver, spare).await,
        None => Ok(()),
    }
}

/// Notes which replica's place a spare is about to take; nil: none.
async fn set_taking<D: Changes>(driver: &D, spare: &RosterMember, replica_uuid: Uuid) -> Change<(), D> {
    note(driver, spare.index, Some(RosterMember { replica_uuid, ..spare.clone() })).await
}

/// Takes a spare in the place of the first member at these positions that is still lost, or goes on where another writer has begun to. False: none of the spares was of use.
///
/// # Errors
/// [`Why`]: no spare was tried.
pub async fn take_spare<D: Changes>(driver: &D, positions: &[usize]) -> Change<bool, D> {
    let roster = roster(driver).await?;
    if let Some(spare) = roster.spares().find(|spare| !spare.replica_uuid.is_nil()) {
        return go_on_with(driver, &roster, spare).await.map(|()| true);
    }
    let Some(lost) = lost_member(driver, &roster, positions).await? else { return Ok(true) };
    for spare in roster.spares() {
        match take(driver, spare, lost).await {
            Ok(()) => return Ok(true),
            Err(why) => {
                if !driver.note_not_taken(spare, why) {
                    return Ok(false);
                }
            }
        }
    }
    Ok(false)
}

/// The first member that is lost at one of these positions. One that was never found has no name by which the roster could tell whose place is taken.
async fn lost_member<'r, D: Changes>(
    driver: &D,
    roster: &'r Roster,
    positions: &[usize],
) -> Change<Option<&'r RosterMember>, D> {
    for lost in positions {
        if !driver.epochs()?.state(&driver.member(*lost)?).is_lost() {
            continue;
        }
        for member in roster.with_data().filter(|member| !member.replica_uuid.is_nil()) {
            if position(driver, member).await? == Some(*lost) {
                return Ok(Some(member));
            }
        }
    }
    Ok(None)
}

/// Makes a member of a spare, in the place of one that is lost, unless that comes back before the spare has what it lacks. An opening after a crash in the middle goes on: the roster says
/// whose place is taken.
async fn take<D: Changes>(driver: &D, spare: &RosterMember, lost: &RosterMember) -> Change<(), D> {
    let Some(place) = D::Place::parse(&spare.url).map(Arc::new) else {
        return Err(driver.error(Why::NoAddress { spare }));
    };
    set_taking(driver, spare, lost.replica_uuid).await?;
    if let Err(error) = make_member(driver, (&place, spare.index), lost).await {
        // One that may have been added is looked for when the pool is opened, or at the next try.
        if !driver.is_undecided(&error) {
            set_taking(driver, spare, Uuid::nil()).await?;
        }
        return Err(error);
    }
    let roster = roster(driver).await?;
    let Some(taking) = roster.spares().find(|other| other.index == spare.index) else {
        return Err(driver.error(Why::NotChanged(Changed::Undecided)));
    };
    go_on_with(driver, &roster, taking).await
}

/// Makes a replica, which is copied to while it is no member and counts for nothing, and adds it when it lacks little. It is taken away where the lost one is in sync before that, and where
/// someone else wants to change the members.
async fn make_member<D: Changes>(
    driver: &D,
    (place, spare): (&Arc<D::Place>, u16),
    lost: &RosterMember,
) -> Change<(), D> {
    let (made, made_at) = prepare(driver, place, Role::Data).await?;
    let learning = driver.learn(made_at, spare);
    let outcome = loop {
        if driver.epochs()?.state(&driver.member(made_at)?).is_lost() {
            break Err(driver.error(Why::Lost { place, member: &made.member }));
        }
        let of_lost = position(driver, lost).await?.map(|at| driver.member(at)).transpose()?;
        let of_lost = of_lost.map(|member| Ok(driver.epochs()?.state(&member))).transpose()?;
        if of_lost.is_some_and(MemberState::is_in_sync) {
            driver.note(News::SpareNotNeeded { place, lost });
            break Ok(false);
        }
        if driver.gives_way(&learning) {
            break Err(driver.error(Why::GivesWay));
        }
        if driver.lacks_little(made_at)? {
            break Ok(true);
        }
        driver.pause().await?;
    };
    if matches!(outcome, Ok(true)) {
        let completed = complete(driver, &made, made_at).await;
        // It was lost while the others were told of it, and counts all the same, or may.
        let counts = completed.as_ref().map_or_else(|error| driver.is_undecided(error), |()| true);
        if driver.end(learning) && counts {
            driver.bring_in(made_at);
        }
        return completed;
    }
    drop(learning);
    driver.give_up(made_at, made.of_roster.index).await;
    let meant = MeantReplica::at_any_epoch(made.of_roster.replica_uuid);
    drop(made);
    give_back(driver, place, meant).await;
    outcome.map(drop)
}

/// Removes a replica that was copied to. What cannot be removed now is removed when the spare is tried again.
async fn give_back<D: Changes>(driver: &D, place: &Arc<D::Place>, meant: MeantReplica) {
    let Ok(site) = driver.connect(place).await else { return };
    let remove = Request::Remove { name: place.pool_name().clone(), meant: Some(meant) };
    for _ in 0..GIVE_BACK_LOOKS {
        // The thread that copied to it lets go of it only when its window is done, on a busy machine after seconds.
        let is_busy = |refusal| refusal == Some(pmof_control::PoolRefusal::Busy);
        if !driver.ask(&site, &remove).await.is_err_and(|why| is_busy(why.refusal())) || driver.pause().await.is_err() {
            return;
        }
    }
}

/// Removes the member whose place a spare has taken, and the spare from the list; or takes back what was begun.
async fn go_on_with<D: Changes>(driver: &D, known: &Roster, spare: &RosterMember) -> Change<(), D> {
    if !known.with_data().any(|member| member.url == spare.url) {
        return set_taking(driver, spare, Uuid::nil()).await;
    }
    let lost = known.with_data().find(|member| member.replica_uuid == spare.replica_uuid);
    if let Some(lost) = lost {
        let roster = roster(driver).await?;
        if let Some(of_roster) = roster.member(lost.index) {
            remove(driver, &roster, of_roster).await?;
        }
    }
    remove_spare(driver, spare).await?;
    if let Some(lost) = lost {
        driver.note(News::SpareTaken { spare, lost });
    }
    Ok(())
}
