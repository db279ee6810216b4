use core::{
    cell::{Cell, RefCell},
    pin::pin,
    task::{Context, Poll, Waker},
};
use std::{string::String, vec::Vec};

use pmof_control::{Epoch, PoolState, Role};

use super::*;

mod outside;
use crate::{
    keeper::tests::{Either, InMemory},
    lineage::Base,
    member_state::{Event, Link, MemberCell},
    view::Rule,
};

/// Members that answer at once, except one that is set to fail.
struct Members {
    epochs: RefCell<Epochs>,
    states: Vec<MemberCell>,
    told: RefCell<Vec<String>>,
    /// The member that fails when so many questions were asked.
    fails: Cell<Option<(usize, usize)>>,
    /// Another that fails with it.
    fails_too: Cell<Option<usize>>,
    names: Cell<u128>,
    current: Cell<Positions>,
    /// A keeper outside of the members.
    keeper: Option<InMemory>,
    refused: RefCell<Vec<KeeperError>>,
}

fn uuid(index: u16) -> Uuid {
    Uuid::from_u128(1000 + u128::from(index))
}

fn member(index: u16) -> RosterMember {
    RosterMember { index, role: Role::Data, replica_uuid: uuid(index), url: index.to_string(), domain: String::new() }
}

fn members(count: usize) -> Members {
    let epoch = Epoch { id: Uuid::from_u128(1), members: (1 << count) - 1 };
    let indexes = (0..count).map(|index| Some(index as u16)).collect();
    let view = View::new(Rule::of(count), indexes, Base::after(epoch, 1, &[]), 0, (1 << count) - 1);
    let mut membership = Membership::default();
    let all = (0..count).map(|index| member(index as u16)).collect();
    membership.keep(Roster { notes: 1, members: all, ..Roster::made(count as u16) }, (1 << count) - 1);
    Members {
        epochs: RefCell::new(Epochs::new(view, membership)),
        states: (0..count).map(|_| MemberCell::new(MemberState::InSync)).collect(),
        told: RefCell::default(),
        fails: Cell::new(None),
        fails_too: Cell::new(None),
        names: Cell::new(100),
        current: Cell::new(0),
        keeper: None,
        refused: RefCell::default(),
    }
}

impl Members {
    /// What was asked since, in order.
    fn told(&self) -> Vec<String> {
        self.told.take()
    }

    fn version(&self) -> u64 {
        self.with(|epochs| epochs.membership.roster().unwrap().version)
    }
}

impl Driver for Members {
    type Keeper<'k> = Either<MemberQuorum<'k, Self>, &'k InMemory>;

    fn keeper(&self) -> Self::Keeper<'_> {
        match &self.keeper {
            None => Either::Members(MemberQuorum::of(self)),
            Some(outside) => Either::Outside(outside),
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Epochs) -> T) -> T {
        look(&mut self.epochs.borrow_mut())
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        let is_so = self.states.iter().enumerate().filter(|(_, state)| is(state.get()));
        is_so.fold(0, |all, (position, _)| all | 1 << position)
    }

    async fn tell(&self, asked: Positions, request: &Request, expected: &Reply) -> Positions {
        let (name, expected) = (format!("{request:?}"), format!("{expected:?}"));
        assert!(!expected.is_empty());
        self.told.borrow_mut().push(format!("{} {asked:b}", name.split(' ').next().unwrap()));
        let mut answered = asked & self.positions(MemberState::is_connected);
        if let Some((left, position)) = self.fails.get() {
            self.fails.set((left > 0).then(|| (left - 1, position)));
            if left == 0 {
                for position in [Some(position), self.fails_too.take()].into_iter().flatten() {
                    self.states[position].take(Event::Lost);
                    answered &= !(1 << position);
                }
            }
        }
        answered
    }

    fn fresh_name(&self) -> Uuid {
        self.names.set(self.names.get() + 1);
        Uuid::from_u128(self.names.get())
    }

    fn note_current(&self, current: Positions) {
        self.current.set(current);
    }

    fn note_refused(&self, why: &KeeperError) {
        self.refused.borrow_mut().push(why.clone());
    }
}

fn done<T>(step: impl Future<Output = T>) -> T {
    match pin!(step).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it waits for something else"),
    }
}

#[test]
fn an_epoch_is_announced_before_it_is_confirmed() {
    let members = members(3);
    assert!(done(begin(&members)));
    assert_eq!(members.told(), ["Begin 111", "Confirm 111"]);
    assert_eq!(members.current.get(), 0b111);
}

#[test]
fn one_that_is_lost_in_between_is_left_out() {
    for lost_at in 0..2 {
        let members = members(3);
        members.fails.set(Some((lost_at, 2)));
        assert!(done(begin(&members)));
        let told = members.told();
        assert_eq!(told[told.len() - 2..], ["Begin 11", "Confirm 11"], "{told:?}");
        assert_eq!(members.current.get(), 0b11);
    }
}

#[test]
fn too_few_begin_nothing() {
    let members = members(3);
    members.states[1].take(Event::Lost);
    members.states[2].take(Event::Lost);
    assert!(!done(begin(&members)));
    assert_eq!(members.told(), [""; 0]);
}

#[test]
fn nothing_is_acknowledged_behind_a_loss_before_the_others_know() {
    let members = members(3);
    assert!(done(begin(&members)));
    members.told();
    members.states[2].take(Event::Lost);
    let is_marked = Cell::new(false);
    assert!(done(acknowledge(&members, || true, || is_marked.set(true))));
    assert_eq!(members.told(), ["Begin 11", "Confirm 11", "Mark 11"]);
    assert!(is_marked.get());
    members.states[1].take(Event::Lost);
    assert!(!done(acknowledge(&members, || true, || panic!("no mark is raised"))));
}

#[test]
fn one_that_is_lost_while_the_mark_is_raised_is_left_out_first() {
    let members = members(3);
    assert!(done(begin(&members)));
    members.told();
    members.fails.set(Some((0, 0)));
    assert!(done(acknowledge(&members, || true, || {})));
    assert_eq!(members.told(), ["Mark 111", "Begin 110", "Confirm 110"]);
}

#[test]
fn a_pool_that_is_closed_begins_nothing() {
    let members = members(3);
    assert!(done(begin(&members)));
    members.told();
    members.with(|epochs| epochs.has_ended = true);
    assert!(done(acknowledge(&members, || true, || panic!("no mark is raised"))));
    members.states[2].take(Event::Lost);
    assert!(!done(acknowledge(&members, || true, || {})));
    assert_eq!(done(change(&members, &Planned::Remove(2))), Changed::Ended);
    assert_eq!(done(set_uncounted(&members, 7, None)), Changed::Ended);
    assert_eq!(members.told(), [""; 0]);
}

#[test]
fn a_roster_is_kept_before_the_epoch_of_its_change() {
    let members = members(3);
    assert!(done(begin(&members)));
    members.told();
    assert_eq!(done(change(&members, &Planned::Remove(2))), Changed::Done);
    assert_eq!(members.told(), ["SetRoster 111", "Begin 111", "Confirm 111", "SetRoster 111"]);
    let roster = members.with(|epochs| epochs.membership.settled(&epochs.view)).unwrap();
    assert_eq!(roster.indexes(), 0b11);
    assert!(!members.with(|epochs| epochs.membership.has_change()));
}

#[test]
fn a_change_that_too_few_can_know_is_taken_back() {
    let members = members(3);
    assert!(done(begin(&members)));
    members.states[1].take(Event::Lost);
    assert!(done(begin(&members)));
    let (before, told) = (members.version(), members.told());
    assert!(!told.is_empty());
    // The one of two that are left is lost when it is to keep the roster.
    members.fails.set(Some((0, 2)));
    assert_eq!(done(change(&members, &Planned::Remove(1))), Changed::TooFew);
    assert_eq!(members.version(), before);
    assert!(!members.with(|epochs| epochs.membership.has_change()));
}

/// The one in sync is lost before it has the note: it opens the pool alone, and knows nothing of it.
#[test]
fn of_two_a_note_is_kept_by_all_that_are_in_sync() {
    let members = members(2);
    members.states[1].take(Event::Lost);
    let states = [MemberState::InSync, MemberState::Behind(Link::Connected)].map(MemberCell::new);
    let members = Members { states: states.into(), ..members };
    assert!(done(begin(&members)));
    let spare = RosterMember { role: Role::Spare, ..member(2) };
    assert_eq!(done(set_uncounted(&members, 2, Some(spare.clone()))), Changed::Done);
    members.fails.set(Some((0, 0)));
    assert_eq!(done(set_uncounted(&members, 2, None)), Changed::Undecided, "{:?}", members.told());
}

/// The witness and the removed member are lost while the removal is confirmed: they can open the pool, and neither knows that the removal holds.
#[test]
fn nothing_is_acknowledged_while_a_removal_is_undecided() {
    let members = members(3);
    members.states[1].take(Event::Lost);
    let witness = MemberCell::new(MemberState::InSync.of_witness());
    let states = [MemberCell::new(MemberState::InSync), witness, MemberCell::new(MemberState::InSync)];
    let members = Members { states: states.into(), ..members };
    assert!(done(begin(&members)));
    let is_enough = |lacks_any, is_acknowledged| members.with(|epochs| epochs.is_enough(lacks_any, is_acknowledged));
    assert!(is_enough(false, false) && is_enough(true, true) && !is_enough(true, false));
    members.fails.set(Some((2, 1)));
    members.fails_too.set(Some(2));
    assert_eq!(done(change(&members, &Planned::Remove(2))), Changed::Undecided, "{:?}", members.told());
    assert!(!done(acknowledge(&members, || false, || {})));
    assert!(!is_enough(false, false));
}

#[test]
fn a_member_joins_by_the_epoch_that_was_announced() {
    let members = members(3);
    members.states[2].take(Event::Lost);
    assert!(done(begin(&members)));
    members.told();
    let back = MemberCell::new(MemberState::Behind(Link::Connected));
    let members = Members { states: members.states.into_iter().take(2).chain([back]).collect(), ..members };
    let mark = members.with(|epochs| epochs.view.mark());
    let joining = done(announce_with(&members, 2, mark.clone())).unwrap();
    assert!(!joining.lacks(&mark));
    members.states[2].take(Event::CaughtUp);
    done(join(&members, &joining));
    assert_eq!(members.told(), ["Begin 111", "Confirm 111"], "no epoch but the announced one");
    assert_eq!(members.current.get(), 0b111);
}

#[test]
fn a_member_that_was_removed_does_not_join() {
    let members = members(3);
    members.states[2].take(Event::Lost);
    assert!(done(begin(&members)));
    let back = MemberCell::new(MemberState::Behind(Link::Connected));
    let members = Members { states: members.states.into_iter().take(2).chain([back]).collect(), ..members };
    assert_eq!(done(change(&members, &Planned::Remove(2))), Changed::Done);
    members.told();
    // Its position is taken from it when nothing is posted.
    let mark = members.with(|epochs| epochs.view.mark());
    assert!(done(announce_with(&members, 2, mark)).is_none());
    assert_eq!(members.told(), [""; 0]);
}

#[test]
fn an_announcement_is_void_behind_another() {
    let members = members(3);
    members.states[2].take(Event::Lost);
    assert!(done(begin(&members)));
    let back = MemberCell::new(MemberState::Behind(Link::Connected));
    let members = Members { states: members.states.into_iter().take(2).chain([back]).collect(), ..members };
    let mark = members.with(|epochs| epochs.view.mark());
    let joining = done(announce_with(&members, 2, mark)).unwrap();
    members.with(Epochs::note_change);
    members.told();
    members.states[2].take(Event::CaughtUp);
    done(join(&members, &joining));
    assert_eq!(members.told(), ["Begin 111", "Confirm 111"]);
}

#[test]
fn a_member_that_returns_keeps_the_roster_first() {
    let members = members(3);
    members.states[2].take(Event::Lost);
    assert!(done(begin(&members)));
    let state = PoolState::new(Uuid::from_u128(1), 3);
    let mut so_far = Introduced::default();
    let mut introduce = |known| members.with(|epochs| epochs.introduce(2, (2, known, Some(&state)), &mut so_far));
    assert!(matches!(introduce(Some(uuid(2))), Introducing::Give(_)));
    let Introducing::Tell(to_tell) = introduce(Some(uuid(2))) else { panic!() };
    assert!(matches!(&to_tell[..], [(Request::Begin { .. }, _), (Request::Confirm { .. }, _)]));
    assert!(matches!(introduce(Some(uuid(2))), Introducing::Placed { needs_change: false }));
    // A replica that is no member gets no place.
    assert!(matches!(introduce(Some(uuid(7))), Introducing::Refused));
}

#[test]
fn one_that_is_told_too_late_is_told_again() {
    let members = members(3);
    members.states[2].take(Event::Lost);
    assert!(done(begin(&members)));
    let mut so_far = Introduced::default();
    let mut introduce = || members.with(|epochs| epochs.introduce(2, (2, None, None), &mut so_far));
    assert!(matches!(introduce(), Introducing::Give(_)));
    assert!(matches!(introduce(), Introducing::Tell(_)));
    // Another epoch is in force before it has its place.
    assert!(done(begin(&members)));
    assert!(matches!(introduce(), Introducing::Tell(_)));
    assert!(matches!(introduce(), Introducing::Placed { .. }));
}
