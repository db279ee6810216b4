//! Changes of a pool's members, one at a time: the roster with the change first, then the epoch that makes it, then the roster after it.

use std::sync::Arc;

use pmof_control::{Reply, Request, Roster, RosterMember, RosterPart};
use uuid::Uuid;

use super::{Epochs, State};
use crate::{
    ReplicaError,
    member::{Control, Member},
    membership::{Changed, Membership, Plan, Planned},
    roster::with_uncounted,
    view::{Change, Introduction, Positions, Rule},
};

/// How often a change is tried that members disturb which are lost or come back.
const ATTEMPTS: usize = 3;

impl Epochs {
    /// The pool's members, without a change under way. `None`: no target keeps them.
    pub(in crate::pool) fn roster(&self) -> Option<Roster> {
        let state = self.state.lock();
        state.membership.settled(&state.view)
    }

    /// Whether a replica may come back.
    pub(in crate::pool) fn may_return(&self, index: u16, replica_uuid: Uuid) -> bool {
        self.state.lock().membership.may_return(index, replica_uuid)
    }

    /// Whether a replica is a member that has no data, or is about to be one.
    pub(in crate::pool) fn is_witness(&self, index: u16, replica_uuid: Uuid) -> bool {
        self.state.lock().membership.is_witness(index, replica_uuid)
    }

    /// What the members are to keep, and do at these positions. Others are told before they are told of an epoch.
    pub(in crate::pool) fn keep_roster(&self, roster: Roster, kept: Positions) {
        let mut state = self.state.lock();
        state.membership.keep(roster, kept);
        self.note_counts(&state);
    }

    /// Has all that are connected keep the roster.
    pub(in crate::pool) fn tell_roster(&self) {
        let _ = self.state.lock().informed();
    }

    /// A place for a member that is to come, which is told of epochs from now on. Its position: the `free` one, where nobody is who has been a member, or a new one.
    pub(in crate::pool) fn add_place(&self, free: Option<usize>, index: u16, member: &Arc<dyn Member>) -> usize {
        let mut state = self.state.lock();
        // Those who are told of an epoch are others than before.
        state.changes += 1;
        if let Some(position) = free {
            state.members[position] = Arc::clone(member);
            state.membership.note_replaced(position);
            state.view.reuse_place(position, index);
            return position;
        }
        state.members.push(Arc::clone(member));
        state.view.add_place(index);
        state.members.len() - 1
    }

    /// Whether no change is under way whose outcome is not known, after an epoch behind it that settles it where there was one.
    pub(in crate::pool) fn is_decided(&self) -> bool {
        self.settle_last(&mut self.state.lock())
    }

    fn settle_last(&self, state: &mut State) -> bool {
        !state.membership.has_change() || self.begin_in(state)
    }

    /// Notes durably that the asynchronous member or the spare of an index is there, or is none any more. It counts for nothing, so that no epoch comes of it.
    pub(in crate::pool) fn set_uncounted(&self, index: u16, member: Option<RosterMember>) -> Changed {
        let mut state = self.state.lock();
        if !self.settle_last(&mut state) {
            return Changed::Undecided;
        }
        state.note(|roster| with_uncounted(roster, index, member))
    }

    /// Notes durably that it is known that the pool was forced.
    pub(in crate::pool) fn clear_forced(&self) -> Changed {
        let mut state = self.state.lock();
        if !self.settle_last(&mut state) {
            return Changed::Undecided;
        }
        let changed = state.note(Roster::cleared);
        self.note_counts(&state);
        changed
    }

    /// Has an asynchronous member know durably of the epoch in force, which it is behind and which this returns, and of the pool's members. `None`: it did not take
    /// that.
    pub(in crate::pool) fn tell_asynchronous(&self, control: &Control, index: u16) -> Option<Uuid> {
        let (roster, epoch, introduction) = {
            let mut state = self.state.lock();
            (state.membership.roster().cloned(), state.view.epoch()?, state.view.introduction(index, None)?)
        };
        let Introduction::Tell(to_tell) = introduction else { return None };
        // First: what it says of epochs counts for the members that it names.
        let is_told = roster.as_ref().is_none_or(|roster| give_roster(control, roster))
            && to_tell.iter().all(|(request, expected)| control.ask_for(request, expected).is_ok());
        is_told.then_some(epoch)
    }

    /// Changes the members durably, while nobody else changes an epoch. What is posted meanwhile is acknowledged behind it.
    pub(in crate::pool) fn change(&self, planned: &Planned) -> Changed {
        let mut state = self.state.lock();
        if !self.settle_last(&mut state) {
            return Changed::Undecided;
        }
        let mut changed = Changed::Disturbed;
        for _ in 0..ATTEMPTS {
            changed = self.try_to_change(&mut state, planned);
            if changed != Changed::Disturbed {
                break;
            }
        }
        changed
    }

    fn try_to_change(&self, state: &mut State, planned: &Planned) -> Changed {
        if state.has_ended {
            return Changed::Ended;
        }
        let Some((plan, next)) = state.membership.plan(&mut state.view, planned, Uuid::new_v4()) else {
            return Changed::Ended;
        };
        let changed = self.make(state, next, &plan);
        if state.membership.take_back(&mut state.view, plan, changed) {
            let _ = state.informed();
        }
        changed
    }

    /// Makes a change that is planned. `next`: the roster with it.
    fn make(&self, state: &mut State, next: Roster, plan: &Plan) -> Changed {
        let may_go_on = |state: &State| state.view.may_go_on_with(state.connected(), state.in_use());
        if !may_go_on(state) {
            return Changed::TooFew;
        }
        // Whoever knows of the epoch knows which members it makes.
        if !state.keep_everywhere(next) || !may_go_on(state) {
            return Changed::TooFew;
        }
        let is_in_force = self.go_on(state, Change::Named(plan.epoch));
        Membership::outcome(&state.view, plan, is_in_force)
    }

    /// A change was made before the pool was opened, and `rule` was in force before it.
    pub(in crate::pool) fn found_changed(&self, rule: Rule) {
        self.state.lock().view.found_changed(rule);
    }

    /// Puts the place of nobody where a member was that has gone, or never came.
    pub(in crate::pool) fn remove_place(&self, position: usize, absent: &Arc<dyn Member>) {
        let mut state = self.state.lock();
        state.members[position] = Arc::clone(absent);
        state.membership.remove_place(position);
        state.changes += 1;
        state.view.remove_place(position);
    }
}

impl State {
    /// Has all that are connected keep a roster of the same members that count, of which no epoch comes.
    fn note(&mut self, noted: impl FnOnce(&Roster) -> Roster) -> Changed {
        let Some(roster) = self.membership.roster().cloned().filter(|_| !self.has_ended) else { return Changed::Ended };
        let may_go_on = self.view.may_go_on_with(self.connected(), self.in_use());
        if !may_go_on || !self.keep_everywhere(noted(&roster)) {
            return Changed::TooFew;
        }
        let informed = self.informed();
        if self.view.is_quorum(informed) { Changed::Done } else { Changed::Undecided }
    }

    /// Has all that are connected keep a roster, durably. One that does not is lost. False: it cannot be kept.
    fn keep_everywhere(&mut self, roster: Roster) -> bool {
        let is_one = self.membership.replace(roster);
        if is_one {
            let _ = self.informed();
        }
        is_one
    }

    /// Those that are told of an epoch, each of which keeps the roster by now.
    pub(super) fn informed(&mut self) -> Positions {
        let connected = self.connected();
        let lacking = self.membership.lacking(connected);
        let encoded = self.membership.roster().filter(|_| lacking != 0).and_then(|roster| roster.encode().ok());
        let Some(encoded) = encoded else { return connected };
        let told = |told, request| self.tell(lacking & told, &request, &Reply::RosterSet);
        let kept = RosterPart::requests(&encoded).fold(lacking, told);
        self.membership.note_kept(kept);
        self.membership.informed(self.connected())
    }

    /// A change of the members whose epoch is in force holds: has them keep it so.
    pub(super) fn settle_members(&mut self) {
        if self.membership.settle(&mut self.view) {
            let _ = self.informed();
        }
    }
}

/// Has a replica that comes back keep the roster; one that does already is not kept waiting for its disk. A target that is too old keeps none, and is not
/// asked again. False: it is lost.
pub(in crate::pool) fn give_roster(control: &Control, roster: &Roster) -> bool {
    let Ok(encoded) = roster.encode() else { return true };
    let tell = || RosterPart::requests(&encoded).try_for_each(|request| control.ask_for(&request, &Reply::RosterSet));
    let given = keeps(control, &encoded).and_then(|keeps| if keeps { Ok(()) } else { tell() });
    given.map_or_else(|why| matches!(*why, ReplicaError::Refused { .. }), |()| true)
}

/// Whether a replica keeps this roster already.
fn keeps(control: &Control, encoded: &[u8]) -> Result<bool, Arc<ReplicaError>> {
    let mut offset = 0;
    while offset < encoded.len() {
        match control.ask(&Request::Roster { offset: offset as u16 })? {
            Reply::Roster(part) if !part.bytes.is_empty() && encoded[offset..].starts_with(&part.bytes) => {
                if usize::from(part.len_bytes) != encoded.len() {
                    return Ok(false);
                }
                offset += part.bytes.len();
            }
            Reply::Roster(_) => return Ok(false),
            _ => return Err(control.fail(ReplicaError::Unexpected)),
        }
    }
    Ok(true)
}
