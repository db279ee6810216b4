//! The members of an open pool as its writer has them keep it, and a change of them: decided without input or output.
//!
//! First the members keep the roster with the change, then an epoch makes it, then they keep the roster after it.

use pmof_control::{Role, Roster, RosterMember};
use uuid::Uuid;

use crate::{
    roster::{has_after, settled},
    view::{Positions, View},
};

/// What the members keep of each other.
#[derive(Debug, Default)]
pub struct Membership {
    /// The pool's members, and the change of them that may be under way. `None`: no target keeps one.
    roster: Option<Roster>,
    /// Members that keep that roster, or never will, by their positions.
    kept: Positions,
    /// Members that a change under way leaves out, while they have all that the others have.
    leaving: Positions,
    /// The change, while it is not known whether the keeper has put its epoch in force.
    unsure: Option<Plan>,
}

/// A change of the members.
#[derive(Clone, Debug)]
pub enum Planned {
    /// This one comes.
    Add(RosterMember),
    /// The one of this index goes.
    Remove(u16),
}

/// What has come of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It holds: enough of the members before and after it know.
    Done,
    /// Nothing was changed: too few are connected, so many of so many that are needed.
    TooFew,
    /// Members were lost or came back meanwhile, and nothing was changed.
    Disturbed,
    /// Some may have confirmed it, and not enough: it holds if the next opening finds one that has.
    Undecided,
    /// The pool is being closed.
    Ended,
}

/// A change that is about to be made.
#[derive(Debug)]
pub struct Plan {
    /// The epoch that makes it.
    pub epoch: Uuid,
    before: Roster,
}

impl Membership {
    /// The roster that the members keep, or are to keep; `None` where no target keeps one.
    pub fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref()
    }

    /// What the members are to keep, and do at these positions. Others are told before they are told of an epoch.
    pub fn keep(&mut self, roster: Roster, kept: Positions) {
        (self.roster, self.kept) = (Some(roster), kept);
    }

    /// The members without a change under way. `None`: no target keeps them.
    pub fn settled(&self, view: &View) -> Option<Roster> {
        Some(self.roster.as_ref()?.settled(|epoch| view.has_begun(epoch)))
    }

    /// Whether a change is under way whose outcome is not known.
    pub fn has_change(&self) -> bool {
        self.roster.as_ref().is_some_and(|roster| roster.change.is_some())
    }

    /// Whether a replica may come back: a member, or one that is about to come. Not one that is about to go: whether it goes may be unknown, and epochs that count
    /// it must not come behind that. Where no target keeps the members, all may.
    pub fn may_return(&self, index: u16, replica_uuid: Uuid) -> bool {
        self.roster.as_ref().is_none_or(|roster| has_after(roster, index, replica_uuid))
    }

    /// Whether a replica is a member that has no data, or is about to be one.
    pub fn is_witness(&self, index: u16, replica_uuid: Uuid) -> bool {
        let is = |member: &RosterMember| member.role == Role::Witness && member.is(index, replica_uuid);
        self.roster.as_ref().is_some_and(|roster| roster.members.iter().any(is))
    }

    /// Members that a change under way removes.
    pub fn leaving(&self) -> Positions {
        self.leaving
    }

    /// Nobody is at this position any more.
    pub fn remove_place(&mut self, position: usize) {
        self.leaving &= !(1 << position);
    }

    /// Another is at this position, which may keep anything.
    pub fn note_replaced(&mut self, position: usize) {
        self.kept &= !(1 << position);
    }

    /// These keep the roster, or never will.
    pub fn note_kept(&mut self, positions: Positions) {
        self.kept |= positions;
    }

    /// Those of the connected members that are to be told the roster before they are told of an epoch: whoever knows of that knows which members it makes.
    pub fn lacking(&self, connected: Positions) -> Positions {
        if self.roster.is_some() { connected & !self.kept } else { 0 }
    }

    /// Those of the connected members that are told of epochs.
    pub fn informed(&self, connected: Positions) -> Positions {
        if self.roster.is_some() { connected & self.kept } else { connected }
    }

    /// Has all be told a roster. False: it cannot be kept.
    pub fn replace(&mut self, roster: Roster) -> bool {
        let is_one = roster.check().is_ok();
        if is_one {
            self.keep(roster, 0);
        }
        is_one
    }

    /// Begins a change: from now on an epoch needs enough members both as they are and as they will be. Returns the roster with it, which is to be
    /// [kept](Self::replace) by all before its epoch begins, whose name is `epoch`. `None`: no target keeps the members.
    pub fn plan(&mut self, view: &mut View, planned: &Planned, epoch: Uuid) -> Option<(Plan, Roster)> {
        let before = self.roster.clone()?;
        let (next, position, is_added) = match planned {
            Planned::Add(member) => (before.adding(member.clone(), epoch), view.position(member.index), true),
            Planned::Remove(index) => (before.removing(*index, epoch), view.position(*index), false),
        };
        view.plan(position, is_added);
        // It is no member of the epoch. Until that is in force what is acknowledged is on it too, as on all that are in use.
        self.leaving = position.filter(|_| !is_added).map_or(0, |position| 1 << position);
        Some((Plan { epoch, before }, next))
    }

    /// What has come of a change whose epoch was to begin. `is_in_force`: an epoch is, as far as enough members know.
    pub fn outcome(view: &View, plan: &Plan, is_in_force: bool) -> Changed {
        match (view.has_begun(plan.epoch), is_in_force) {
            (true, true) => Changed::Done,
            (true, false) => Changed::Undecided,
            (false, _) if view.is_unsure(plan.epoch) => Changed::Undecided,
            (false, _) => Changed::Disturbed,
        }
    }

    /// Takes back what was planned, if it was not made: its epoch was confirmed by nobody. Whether all are to be told the roster before it.
    pub fn take_back(&mut self, view: &mut View, plan: Plan, changed: Changed) -> bool {
        if view.is_unsure(plan.epoch) {
            self.unsure = Some(plan);
            return false;
        }
        let is_not_made = matches!(changed, Changed::TooFew | Changed::Disturbed);
        is_not_made && self.give_up(view, plan)
    }

    fn give_up(&mut self, view: &mut View, plan: Plan) -> bool {
        self.leaving = 0;
        view.give_up_plan();
        self.replace(plan.before)
    }

    /// A change of the members whose epoch is in force holds in each opening from now on: they keep it as they keep what they were made with. One whose epoch can never be in force
    /// is taken back. Whether there is either.
    pub fn settle(&mut self, view: &mut View) -> bool {
        let unsure = self.unsure.take();
        let holds = |roster: &&Roster| roster.change.is_some_and(|change| view.has_begun(change.epoch));
        let Some(settled) = self.roster.as_ref().filter(holds).map(|roster| settled(roster, view.opening())) else {
            return unsure.is_some_and(|plan| self.give_up(view, plan));
        };
        view.adopt();
        self.replace(settled)
    }
}
