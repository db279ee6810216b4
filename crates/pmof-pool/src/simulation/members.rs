//! Changes of the pool's members, as `pool/changes.rs`, `pool/changes/spares.rs` and `pool/epochs/change.rs` have them, with their own decisions.

use std::rc::Rc;

use pmof_control::{PoolState, Request, Role, Roster, RosterMember};
use pmof_replication::{epochs, member_state::Event, returning::introduce};
use uuid::Uuid;

use super::{
    faults::Fault,
    names::ReplicaId,
    plan::Control,
    session::{Member, Open, Session, ask, encoded, fail},
    target::{Answer, Message},
    tasks::sleep,
};
use crate::{
    lineage::was_never_in_sync,
    membership::{Changed, Planned},
    roster::free_index,
};

/// A replica that was made to become a member.
struct Made {
    member: Rc<Member>,
    state: PoolState,
    of_roster: RosterMember,
}

impl Session {
    /// As `Changer::roster`: the members, where no change is under way whose outcome is not known.
    async fn roster(&self) -> Option<Roster> {
        let _guard = self.view_lock.lock().await;
        if !epochs::settle_last(self).await {
            return None;
        }
        self.membership().settled(&self.view())
    }

    async fn note(&self, index: u16, member: Option<RosterMember>) -> Changed {
        let _guard = self.view_lock.lock().await;
        let changed = epochs::set_uncounted(self, index, member).await;
        if let (Changed::Done, Some(roster)) = (changed, self.membership().roster()) {
            self.world.borrow_mut().truth.confirm_roster(roster.age());
        }
        changed
    }

    /// As `Epochs::change`.
    async fn change_members(&self, planned: &Planned) -> Changed {
        let _guard = self.view_lock.lock().await;
        let notes = self.membership().roster().map_or(0, |roster| roster.notes);
        let changed = epochs::change(self, planned).await;
        match changed {
            // By the epoch that it was announced with. The settled roster, whose notes have that epoch's number, may not have come to any member.
            Changed::Done => {
                let version = self.membership().roster().map_or(0, |roster| roster.version);
                self.world.borrow_mut().truth.confirm_roster((version, notes));
            }
            Changed::Undecided => self.world.borrow_mut().count(Fault::ChangeUndecided),
            _ => self.world.borrow_mut().count(Fault::ChangeNotMade),
        }
        changed
    }

    /// An operator's program: it changes the members now and then.
    pub(super) async fn operate(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let (pause, kind) = {
                let random = &mut self.world.borrow_mut().random;
                (5 + random.below(80), random.below(10))
            };
            sleep(&self.world, pause).await;
            if self.is_stopping.get() {
                return;
            }
            if self.changing.is_held() {
                self.world.borrow_mut().count(Fault::SecondOperatorRefused);
                continue;
            }
            let _changing = self.changing.lock().await;
            self.world.borrow_mut().is_changing[self.writer] = true;
            let control = self.world.borrow().control;
            let is_about_witnesses = matches!(control, Some(Control::WitnessJoins | Control::WitnessCaughtUp));
            match kind {
                _ if is_about_witnesses && kind % 2 == 0 => _ = self.add(None, Role::Witness).await,
                0..=2 => _ = self.add(None, Role::Data).await,
                3 | 4 => _ = self.add(None, Role::Witness).await,
                5 | 6 => self.remove_somebody().await,
                7 | 8 => self.replace_somebody().await,
                _ => self.add_spare().await,
            }
            self.world.borrow_mut().is_changing[self.writer] = false;
        }
    }

    /// As `Returns::look_for_spares`.
    pub(super) async fn look_for_spares(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let (is_begun, is_any) = {
                let membership = self.membership();
                let mut spares = membership.roster().into_iter().flat_map(Roster::spares);
                (spares.clone().any(|spare| !spare.replica_uuid.is_nil()), spares.next().is_some())
            };
            let is_out = |member: &Rc<Member>| member.state().is_lost() && member.state().is_data_member();
            let is_wanted = is_begun || (is_any && self.members.borrow().iter().any(is_out));
            if is_wanted && !self.changing.is_held() {
                let _changing = self.changing.lock().await;
                self.take_spare().await;
            }
            sleep(&self.world, 30).await;
        }
    }

    /// A machine that is no member's, as far as is known, and mostly one with nothing on it.
    fn some_machine(&self, roster: &Roster) -> Option<usize> {
        let mut world = self.world.borrow_mut();
        let is_taken =
            |machine: usize| roster.members.iter().any(|member| member.url == world.urls[machine].to_string());
        let free: Vec<_> = (0..world.targets.len()).filter(|machine| !is_taken(*machine)).collect();
        if free.is_empty() { None } else { Some(free[world.random.below(free.len())]) }
    }

    /// As `Pool::add`. Whether there is a new member, or may be.
    async fn add(&self, machine: Option<usize>, role: Role) -> bool {
        let Some(roster) = self.roster().await else { return false };
        let Some(machine) = machine.or_else(|| self.some_machine(&roster)) else { return false };
        let Some(made) = self.make_replica(&roster, machine, role).await else { return false };
        let index = made.of_roster.index;
        let Some(position) = self.admit_new(&made).await else { return false };
        if !introduce(self, position, (index, None, Some(&made.state)), &made.member).await {
            self.undo_creation(&made).await;
            self.take_out(position).await;
            return false;
        }
        let changed = self.change_members(&Planned::Add(made.of_roster.clone())).await;
        if matches!(changed, Changed::TooFew | Changed::Disturbed | Changed::Ended) {
            self.undo_creation(&made).await;
            self.take_out(position).await;
            return false;
        }
        made.member.take(Event::MadeMember);
        self.attended.borrow_mut()[position] = false;
        let added = if role == Role::Witness { Fault::WitnessAdded } else { Fault::MemberAdded };
        self.world.borrow_mut().count(added);
        true
    }

    /// As `Changer::make`.
    async fn make_replica(&self, roster: &Roster, machine: usize, role: Role) -> Option<Made> {
        let index = free_index(roster, self.view().line())?;
        if self.members.borrow().len() >= 64 {
            return None;
        }
        let connection = self.world.borrow_mut().connect(self.writer, machine)?;
        let is_witness = role == Role::Witness;
        let member = Rc::new(Member::candidate(machine, connection).of_witness(is_witness));
        let count = (roster.counted().count() as u16 + 1).max(index + 1);
        let create = Message::Create { index, count, is_witness };
        let mut answer = ask(&self.world, &member, create.clone()).await;
        if matches!(answer, Some(Answer::AlreadyThere)) {
            let is_taken_away = self.take_away(roster, &member).await;
            answer = if is_taken_away { ask(&self.world, &member, create).await } else { None };
        }
        let Some(Answer::Opened(replica)) = answer else {
            fail(&self.world, &member);
            return None;
        };
        let url = {
            let mut world = self.world.borrow_mut();
            world.known[machine] = true;
            world.urls[machine].to_string()
        };
        let replica_uuid = replica.uuid;
        let of_roster = RosterMember { index, role, replica_uuid, url, domain: String::new() };
        Some(Made { member, state: replica.state, of_roster })
    }

    /// As `Changer::take_away`.
    async fn take_away(&self, roster: &Roster, member: &Rc<Member>) -> bool {
        let Some(Answer::Info { replica, is_open }) = ask(&self.world, member, Message::Info).await else {
            return false;
        };
        let is_member = roster.members.iter().any(|of| of.is(replica.index, replica.uuid));
        if is_member || is_open || !was_never_in_sync(replica.index, &replica.state) {
            return false;
        }
        if self.view().is_superseded_by(&replica.state) {
            self.world.borrow_mut().count(Fault::SuccessorMet);
            self.give_up();
            return false;
        }
        let is_removed =
            matches!(ask(&self.world, member, Message::Remove(ReplicaId(replica.uuid))).await, Some(Answer::Removed));
        if is_removed {
            self.world.borrow_mut().count(Fault::LeftoverTakenAway);
        }
        is_removed
    }

    async fn undo_creation(&self, made: &Made) {
        let _ = ask(&self.world, &made.member, encoded(&self.world, &made.member, &Request::Close { in_order: false }))
            .await;
        let _ = ask(&self.world, &made.member, Message::Remove(ReplicaId(made.of_roster.replica_uuid))).await;
    }

    /// As `Changer::admit`.
    async fn admit_new(&self, made: &Made) -> Option<usize> {
        let _hold = self.hold_all().await?;
        self.attended.borrow_mut().push(true);
        let position = {
            let _guard = self.view_lock.lock().await;
            self.forget_never_found(made.member.target);
            self.members.borrow_mut().push(Rc::clone(&made.member));
            self.epochs.borrow_mut().note_change();
            self.epochs.borrow_mut().view.add_place(made.of_roster.index);
            self.members.borrow().len() - 1
        };
        let open = Rc::clone(&self.open.borrow());
        let members = open.members.iter().chain([&made.member]).cloned().collect();
        *self.open.borrow_mut() = Rc::new(Open { members, ..Open::clone(&open) });
        Some(position)
    }

    /// As `Changer::never_found`.
    fn forget_never_found(&self, target: usize) {
        let open = Rc::clone(&self.open.borrow());
        let mut members = open.members.clone();
        for (at, member) in open.members.iter().enumerate() {
            let is_lost = member.state().is_lost() && self.view().index(at).is_none();
            if is_lost && member.target == target {
                members[at] = Rc::new(Member::none(target));
                self.members.borrow_mut()[at] = Rc::clone(&members[at]);
                let mut epochs = self.epochs.borrow_mut();
                epochs.membership.remove_place(at);
                epochs.view.remove_place(at);
                drop(epochs);
                self.world.borrow_mut().count(Fault::NeverFoundForgotten);
            }
        }
        *self.open.borrow_mut() = Rc::new(Open { members, ..Open::clone(&open) });
    }

    /// As `Pool::remove`. Whether it is gone, or may be.
    async fn remove(&self, index: u16) -> bool {
        let Some(roster) = self.roster().await else { return false };
        let Some(of_roster) = roster.member(index) else { return false };
        let position = self.position(of_roster);
        let is_other = |at: usize| Some(at) != position;
        let others_in_use = {
            let open = self.open.borrow();
            let mut others =
                open.members.iter().enumerate().filter(|(at, member)| is_other(*at) && !member.state().is_witness());
            others.any(|(_, member)| member.state().is_in_sync())
        };
        if !others_in_use {
            return false;
        }
        let changed = self.change_members(&Planned::Remove(index)).await;
        let is_gone = matches!(changed, Changed::Done | Changed::Undecided);
        if is_gone {
            if let Some(position) = position {
                self.take_out_held(position).await;
            }
            self.world.borrow_mut().count(Fault::MemberRemoved);
        }
        is_gone
    }

    /// As `Changer::position`.
    fn position(&self, of_roster: &RosterMember) -> Option<usize> {
        let (view, world, members) = (self.view(), self.world.borrow(), self.members.borrow());
        let is_looked_for =
            |at: &usize| view.index(*at).is_none() && world.urls[members[*at].target].to_string() == of_roster.url;
        view.position(of_roster.index).or_else(|| (0..members.len()).find(is_looked_for))
    }

    /// As `Changer::let_go`.
    async fn take_out_held(&self, position: usize) {
        let Some(_hold) = self.hold_all().await else { return };
        self.take_out(position).await;
    }

    /// As `Open::without`.
    pub(super) async fn take_out(&self, position: usize) {
        let member = Rc::clone(&self.open.borrow().members[position]);
        let _ = ask(&self.world, &member, encoded(&self.world, &member, &Request::Close { in_order: false })).await;
        fail(&self.world, &member);
        let none = Rc::new(Member::none(member.target));
        {
            let _guard = self.view_lock.lock().await;
            self.members.borrow_mut()[position] = Rc::clone(&none);
            self.epochs.borrow_mut().membership.remove_place(position);
            self.epochs.borrow_mut().note_change();
            self.epochs.borrow_mut().view.remove_place(position);
        }
        let open = Rc::clone(&self.open.borrow());
        let mut members = open.members.clone();
        members[position] = none;
        let catching_up = open.catching_up.iter().filter(|(of, _)| *of != position).cloned().collect();
        *self.open.borrow_mut() = Rc::new(Open { members, catching_up, written: std::sync::Arc::clone(&open.written) });
    }

    fn somebody(&self, roster: &Roster) -> u16 {
        let counted: Vec<_> = roster.counted().map(|member| member.index).collect();
        counted[self.world.borrow_mut().random.below(counted.len())]
    }

    async fn remove_somebody(&self) {
        let Some(roster) = self.roster().await else { return };
        let index = self.somebody(&roster);
        let _ = self.remove(index).await;
    }

    /// As `Pool::replace`.
    async fn replace_somebody(&self) {
        let Some(roster) = self.roster().await else { return };
        let old = self.somebody(&roster);
        let role = roster.member(old).map_or(Role::Data, |member| member.role);
        let Some(machine) = self.some_machine(&roster) else { return };
        if !self.add(Some(machine), role).await {
            return;
        }
        for _ in 0..20 {
            let is_in_use = |at: usize| self.members.borrow().get(at).is_some_and(|member| member.state().is_in_sync());
            let old_position = self.view().position(old);
            let new_position = self.members.borrow().iter().rposition(|member| member.target == machine);
            if !old_position.is_some_and(is_in_use) || new_position.is_some_and(is_in_use) {
                if self.remove(old).await {
                    self.world.borrow_mut().count(Fault::MemberReplaced);
                }
                return;
            }
            if self.is_stopping.get() {
                return;
            }
            sleep(&self.world, 10).await;
        }
    }

    /// As `Pool::add_spare`.
    async fn add_spare(&self) {
        let Some(roster) = self.roster().await else { return };
        let Some(machine) = self.some_machine(&roster).filter(|_| roster.spares().next().is_none()) else { return };
        let Some(index) = free_index(&roster, self.view().line()) else { return };
        let url = self.world.borrow().urls[machine].to_string();
        let spare = RosterMember { index, role: Role::Spare, replica_uuid: Uuid::nil(), url, domain: String::new() };
        if self.note(index, Some(spare)).await == Changed::Done {
            self.world.borrow_mut().count(Fault::SpareNoted);
        }
    }

    /// As `Pool::take_spare`: in the place of one that is lost, or where another writer has begun to.
    pub(super) async fn take_spare(&self) {
        let Some(roster) = self.roster().await else { return };
        if let Some(spare) = roster.spares().find(|spare| !spare.replica_uuid.is_nil()) {
            self.world.borrow_mut().count(Fault::SpareGoneOnWith);
            return self.go_on_with(&roster, spare).await;
        }
        let is_lost = |member: &&RosterMember| {
            self.position(member).is_some_and(|at| !self.members.borrow()[at].state().is_connected())
        };
        let (Some(spare), Some(lost)) = (roster.spares().next(), roster.with_data().find(is_lost)) else { return };
        let taking = |replica_uuid| Some(RosterMember { replica_uuid, ..spare.clone() });
        if self.note(spare.index, taking(lost.replica_uuid)).await != Changed::Done {
            return;
        }
        let machine = self.world.borrow().urls.iter().position(|url| url.to_string() == spare.url);
        if !self.add(machine, Role::Data).await {
            let _ = self.note(spare.index, taking(Uuid::nil())).await;
            return;
        }
        let Some(roster) = self.roster().await else { return };
        let begun = roster.spares().find(|other| other.index == spare.index).cloned();
        if let Some(begun) = begun {
            self.go_on_with(&roster, &begun).await;
        }
    }

    /// As `Changer::go_on_with`.
    async fn go_on_with(&self, roster: &Roster, spare: &RosterMember) {
        if !roster.with_data().any(|member| member.url == spare.url) {
            let none = RosterMember { replica_uuid: Uuid::nil(), ..spare.clone() };
            let _ = self.note(spare.index, Some(none)).await;
            return;
        }
        let lost = roster.with_data().find(|member| member.replica_uuid == spare.replica_uuid);
        if let Some(lost) = lost {
            if !self.remove(lost.index).await {
                return;
            }
        }
        if self.note(spare.index, None).await == Changed::Done && lost.is_some() {
            self.world.borrow_mut().count(Fault::SpareTaken);
        }
    }
}
