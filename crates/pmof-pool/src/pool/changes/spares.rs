//! Spares: addresses in the roster, where a member is made in the place of one that has been lost for long. They count for nothing.

use std::sync::Arc;

use pmof_control::{Request, Role, Roster, RosterMember};
use uuid::Uuid;

use super::{ChangeError, Changer, LOOK, is_known, outcome, place};
use crate::{
    PoolUrl,
    pool::{Pool, events::Event, opening::undo_creation, returns::LAST_BYTES},
    roster::{free_index, named},
};

impl Pool {
    /// Notes an address where the writer makes a member by itself in the place of one that has been lost for [so long](crate::PoolOptions::spare_after), as
    /// [`replace`](Self::replace) does, when it lacks nothing more. A member that is in sync before that stays. Nothing lies there before; that a replica could be made there, with its room, is tried now.
    ///
    /// [`remove`](Self::remove) takes it away.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn add_spare(&self, url: &str) -> Result<(), ChangeError> {
        self.changer()?.add_spare(&Arc::new(url.parse()?))
    }

    /// Takes a spare in the place of the first member of those at `positions` that is still lost, or goes on where another writer has begun to.
    pub(in crate::pool) fn take_spare(&self, positions: &[usize]) -> Result<(), Arc<ChangeError>> {
        let changer = self.changer_by(|returns| returns.changing.try_lock())?;
        let roster = changer.roster()?;
        if let Some(spare) = roster.spares().find(|spare| !spare.replica_uuid.is_nil()) {
            return Ok(changer.go_on_with(&roster, spare)?);
        }
        let open = self.0.hold().map_err(ChangeError::from)?;
        let are_lost = positions.iter().filter(|position| open.members[**position].state().is_lost());
        // One that nobody has ever found has no name by which the roster could tell whose place is taken. At some positions no member is.
        let known = || roster.with_data().filter(|member| !member.replica_uuid.is_nil());
        let member_at = |position: &usize| {
            known().find(|member| matches!(changer.position(member), Ok(Some(at)) if at == *position))
        };
        let Some(lost) = { are_lost }.find_map(member_at) else { return Ok(()) };
        drop(open);
        let mut outcome = Ok(());
        for spare in roster.spares() {
            outcome = changer.take(spare, lost).map_err(Arc::new);
            let Err(why) = &outcome else { break };
            // That one has to give way says nothing of it.
            if !matches!(**why, ChangeError::UnderWay) && changer.returns.note_tried(spare.index, Some(why)) {
                if let Ok(url) = spare.url.parse() {
                    self.0.events.add(Event::SpareNotTaken { replica: place(&url), why: Arc::clone(why) });
                }
            }
            // The next one may be of use where this one is not.
            if !matches!(
                **why,
                ChangeError::NotMade { .. }
                    | ChangeError::OtherPool { .. }
                    | ChangeError::OtherHistory { .. }
                    | ChangeError::Leftover { .. }
            ) {
                break;
            }
        }
        outcome
    }
}

/// How often a spare's replica that is given back is asked to be removed, for a second each.
const GIVE_BACK_TRIES: usize = 10;

impl Changer<'_> {
    pub(super) fn add_spare(&self, url: &Arc<PoolUrl>) -> Result<(), ChangeError> {
        let roster = self.roster()?;
        if let Some(known) = named(&roster, &url.to_string()) {
            return Err(is_known(url, known.role, Role::Spare));
        }
        let made = self.make(&roster, url, Role::Data)?;
        undo_creation(url, made.meant(), &made.site);
        let too_many = || ChangeError::TooMany { count: roster.members.len() };
        let index = free_index(&roster, self.epochs.lock().view().line()).ok_or_else(too_many)?;
        let spare = RosterMember { index, role: Role::Spare, replica_uuid: Uuid::nil(), ..made.of_roster };
        outcome(self.epochs.set_uncounted(index, Some(spare)))
    }

    pub(super) fn remove_spare(&self, spare: &RosterMember) -> Result<(), ChangeError> {
        outcome(self.epochs.set_uncounted(spare.index, None))
    }

    /// What has become a member is a spare no more.
    pub(super) fn forget_spare(&self, url: &PoolUrl) -> Result<(), ChangeError> {
        let (roster, url) = (self.roster()?, url.to_string());
        roster.spares().find(|spare| spare.url == url).map_or(Ok(()), |spare| self.remove_spare(spare))
    }

    /// Notes whose place a spare is about to take; nobody's: nil.
    fn set_taking(&self, spare: &RosterMember, replica_uuid: Uuid) -> Result<(), ChangeError> {
        let spare = RosterMember { replica_uuid, ..spare.clone() };
        outcome(self.epochs.set_uncounted(spare.index, Some(spare)))
    }

    /// Makes a member of a spare, in the place of one that is lost, unless that comes back before the spare has what it lacks. Whoever opens the pool after a crash in the middle goes on: the roster says whose
    /// place is taken.
    fn take(&self, spare: &RosterMember, lost: &RosterMember) -> Result<(), ChangeError> {
        let url: Arc<PoolUrl> = Arc::new(spare.url.parse()?);
        self.set_taking(spare, lost.replica_uuid)?;
        if let Err(error) = self.make_spare_a_member((&url, spare.index), lost) {
            // One that may have been added is looked for when the pool is opened, or at the next try.
            if !matches!(error, ChangeError::Undecided) {
                self.set_taking(spare, Uuid::nil())?;
            }
            return Err(error);
        }
        let roster = self.roster()?;
        let taking = spare_of(&roster, spare.index).ok_or(ChangeError::Undecided)?;
        self.go_on_with(&roster, &taking)
    }

    /// Makes a replica, which is copied to while it is no member and counts for nothing, and adds it when it lacks little. It is taken away where the lost one is in sync before that, and where
    /// somebody else wants to change the members.
    fn make_spare_a_member(&self, (url, spare): (&Arc<PoolUrl>, u16), lost: &RosterMember) -> Result<(), ChangeError> {
        let (made, position) = self.prepare(url, Role::Data)?;
        self.returns.note_tried(spare, None);
        let learning = self.returns.learn(position, spare);
        let outcome = loop {
            let open = self.shared.hold()?;
            let failure = open.members[position].standing().failure().map(Arc::clone);
            let is_back = self.position(lost)?.is_some_and(|at| open.members[at].state().is_in_sync());
            let missing_bytes = open.missing_bytes(position);
            drop(open);
            if let Some(source) = failure {
                break Err(ChangeError::NotMade { replica: place(url), source });
            }
            if is_back {
                log::info!("{} is in sync again, and the spare {url} is left as it was", lost.url);
                break Ok(false);
            }
            // Whoever had the pool open has let go of it.
            if learning.has_to_give_way() || Arc::strong_count(&self.pool.0) == 1 {
                break Err(ChangeError::UnderWay);
            }
            if missing_bytes.is_some_and(|bytes| bytes <= LAST_BYTES) {
                break Ok(true);
            }
            std::thread::sleep(LOOK);
        };
        if matches!(outcome, Ok(true)) {
            let completed = self.complete(&made, position, Role::Data);
            // It was lost while the others were told of it, and counts all the same, or may.
            if learning.end() && matches!(completed, Ok(()) | Err(ChangeError::Undecided)) {
                self.returns.bring_in(position);
            }
            return completed;
        }
        drop(learning);
        self.give_up(position, made.of_roster.index);
        let meant = Some(made.meant());
        drop(made);
        // What cannot be removed now is when it is tried again.
        if let Ok(site) = self.returns.site(url) {
            let remove = Request::Remove { name: url.name.clone(), meant };
            // The thread that copied to it lets go of it only when its window is done, on a busy machine after seconds.
            let is_answered = |_| site.ask_when_free(&remove).map_or_else(|error| !error.is_busy(), |_| true);
            let _ = (0..GIVE_BACK_TRIES).any(|tried| is_answered(tried) || self.returns.is_stopping());
        }
        outcome.map(drop)
    }

    /// Removes the member whose place a spare has taken, and the spare from the list; or takes back what was begun.
    fn go_on_with(&self, roster: &Roster, spare: &RosterMember) -> Result<(), ChangeError> {
        let is_member = roster.with_data().any(|member| member.url == spare.url);
        let lost = roster.with_data().find(|member| member.replica_uuid == spare.replica_uuid);
        if !is_member {
            return self.set_taking(spare, Uuid::nil());
        }
        if let Some(lost) = lost {
            self.remove(&lost.index.to_string())?;
        }
        self.remove_spare(spare)?;
        let place_of = |text: &str| text.parse().ok().map(|url| place(&Arc::new(url)));
        if let (Some(lost), Some(replica)) = (lost, place_of(&spare.url)) {
            self.shared.events.add(Event::SpareTaken { replica, lost: place_of(&lost.url), index: lost.index });
        }
        Ok(())
    }
}

fn spare_of(roster: &Roster, index: u16) -> Option<RosterMember> {
    roster.spares().find(|spare| spare.index == index).cloned()
}
