use pmof_control::{Epoch, PoolState, RosterMember};
use uuid::Uuid;

use super::*;
use crate::lineage::{Base, agree};

mod model;

fn member(index: u16) -> RosterMember {
    let replica_uuid = Uuid::from_u128(100 + u128::from(index));
    RosterMember { replica_uuid, ..Roster::made(64).members[usize::from(index)].clone() }
}

fn roster(indexes: std::ops::Range<u16>) -> Roster {
    Roster {
        version: 0,
        notes: 1,
        members: indexes.map(member).collect(),
        change: None,
        forced: None,
        is_uncertain: false,
    }
}

fn made(count: u16) -> PoolState {
    PoolState::new(Uuid::new_v4(), count).closed()
}

/// The state of one that was told of an epoch of these members.
fn told(state: &PoolState, index: u16, epoch: Epoch, is_confirmed: bool) -> PoolState {
    let Base { opening, ancestors, .. } = Base::after(state.epoch, state.opening, &state.ancestors);
    let begun = state.begun(index, epoch, opening + 1, &ancestors);
    if is_confirmed { begun.confirmed(index, epoch.id).unwrap() } else { begun }
}

/// What is decided of replicas: which each is, its state, its roster. The members' indexes, and whether they are enough.
fn decided(replicas: &[(u16, &PoolState, &Roster)]) -> (Vec<u16>, bool) {
    let found: Vec<_> = replicas.iter().map(|(index, state, _)| Found { index: *index, state }).collect();
    let words = found.iter().zip(replicas).map(|(found, (.., kept))| Word {
        found: *found,
        replica_uuid: member(found.index).replica_uuid,
        roster: Some(kept),
    });
    let electorate = Electorate::of(&words.collect::<Vec<_>>(), 3);
    let members = found.iter().filter(|found| electorate.has(found.index, member(found.index).replica_uuid));
    let members: Vec<_> = members.copied().collect();
    let is_enough = agree(&members, electorate.count()).is_ok_and(|agreed| electorate.is_enough(&agreed, &members));
    (electorate.roster.members.iter().map(|member| member.index).collect(), is_enough)
}

#[test]
fn without_a_roster_the_members_are_those_that_the_pool_was_made_with() {
    let state = made(3);
    let electorate = Electorate::of(
        &[Word { found: Found { index: 0, state: &state }, replica_uuid: Uuid::nil(), roster: None }],
        3,
    );
    assert_eq!((electorate.count(), electorate.kept()), (3, None));
    assert!(electorate.has(2, Uuid::new_v4()) && !electorate.has(3, Uuid::new_v4()));
}

/// What an earlier program left of a roster, the other slot of which is damaged.
fn uncertain(roster: &Roster) -> Roster {
    Roster { is_uncertain: true, ..roster.clone() }
}

/// The members were 0 to 2, and 1 was removed while 2 was away: 0, which knew that, lost the newer roster.
#[test]
fn a_member_that_lost_the_newer_roster_does_not_vote() {
    let (all, now) = (roster(0..3), Roster { version: 1, ..roster(0..3).removing(1, Uuid::nil()).settled(|_| true) });
    let first = made(3);
    let removed = told(&first, 0, Epoch::new(Uuid::new_v4(), [0, 2]), true);
    let old = uncertain(&all);
    // With 1, which knows nothing of it, two of three would be enough.
    assert!(!decided(&[(0, &removed, &old), (1, &first, &all)]).1);
    assert_eq!(decided(&[(0, &removed, &old), (2, &removed, &now)]), (vec![0, 2], true));
    // The controls: what is certain is believed, and enough others are asked for nothing more.
    assert!(decided(&[(0, &removed, &all), (1, &first, &all)]).1);
    assert!(decided(&[(1, &first, &all), (2, &first, &all)]).1);
    assert!(decided(&[(0, &first, &old), (1, &first, &all), (2, &first, &all)]).1);
    // None of them knows better, and all are here.
    assert!(decided(&[(0, &first, &old), (1, &first, &old), (2, &first, &old)]).1);
}

#[test]
fn a_torn_slot_keeps_no_two_members_from_opening() {
    let (two, first) = (roster(0..2), made(2));
    for [one, other] in [[uncertain(&two), two.clone()], [uncertain(&two), uncertain(&two)]] {
        assert_eq!(decided(&[(0, &first, &one), (1, &first, &other)]), (vec![0, 1], true));
    }
    assert!(!decided(&[(0, &first, &uncertain(&two))]).1);
    // The one went on with a third in the place of the other, which its list of members does not name any more.
    let replaced = told(&first, 0, Epoch::new(Uuid::new_v4(), [0, 2]), true);
    assert!(!decided(&[(0, &replaced, &uncertain(&two)), (1, &first, &two)]).1);
    // It went on alone: it has everything.
    let alone = told(&first, 0, Epoch::new(Uuid::new_v4(), [0]), true);
    assert!(decided(&[(0, &alone, &uncertain(&two)), (1, &first, &two)]).1);
}

#[test]
fn a_change_holds_once_its_epoch_is_confirmed_somewhere() {
    let (first, epoch) = (made(3), Epoch::new(Uuid::new_v4(), 0..2));
    let (old, next) = (roster(0..3), roster(0..3).adding(member(3), epoch.id));
    let announced = [0, 1, 2].map(|index| told(&first, index, epoch, false));
    let confirmed = [0, 1, 2].map(|index| told(&first, index, epoch, true));
    // Announced only, on whomever: none of it.
    assert_eq!(decided(&[(0, &announced[0], &next), (1, &announced[1], &next)]), (vec![0, 1, 2], true));
    assert_eq!(decided(&[(0, &announced[0], &next), (2, &first, &old)]), (vec![0, 1, 2], true));
    // Confirmed on one of those that are here.
    assert_eq!(decided(&[(0, &confirmed[0], &next), (1, &announced[1], &next)]), (vec![0, 1, 2, 3], true));
    assert_eq!(decided(&[(0, &confirmed[0], &next), (2, &first, &old)]), (vec![0, 1, 2, 3], true));
}

#[test]
fn a_replica_that_is_no_member_confirms_no_change() {
    let (first, epoch) = (made(3), Epoch::new(Uuid::new_v4(), 0..2));
    let next = roster(0..3).removing(2, epoch.id);
    let announced = [0, 1].map(|index| told(&first, index, epoch, false));
    let other = told(&first, 5, epoch, true);
    let all = [(0, &announced[0], &next), (1, &announced[1], &next), (5, &other, &roster(0..3))];
    assert_eq!(decided(&all).0, vec![0, 1, 2]);
}

#[test]
fn before_a_change_is_settled_most_of_the_members_before_it_are_needed_too() {
    let (first, epoch) = (made(3), Epoch::new(Uuid::new_v4(), 0..3));
    let next = roster(0..3).adding(member(3), epoch.id);
    let one = told(&first, 0, epoch, true);
    let new = told(&PoolState::new(Uuid::new_v4(), 4), 3, epoch, true);
    let new = PoolState { ancestors: one.ancestors.clone(), opening: one.opening, ..new };
    // Two of four are as many as an opening needs of those; of the three before it is one, and the others may have given the change up.
    assert_eq!(decided(&[(0, &one, &next), (3, &new, &next)]), (vec![0, 1, 2, 3], false));
    let settled = next.settled(|_| true);
    assert_eq!(decided(&[(0, &one, &next), (3, &new, &settled)]), (vec![0, 1, 2, 3], true));
}

/// One that was all of an epoch before a change of which those knew who are gone.
#[test]
fn a_member_that_was_away_during_a_change_opens_nothing_alone() {
    let first = made(2);
    let alone = told(&first, 1, Epoch { id: Uuid::new_v4(), members: 0b10 }, true);
    let kept = Roster { version: 1, ..roster(1..3) };
    assert_eq!(decided(&[(1, &alone, &kept)]), (vec![1, 2], true), "it went on alone since the change");
    let later = crate::roster::settled(&kept, alone.opening + 1);
    assert_eq!(decided(&[(1, &alone, &later)]), (vec![1, 2], false));
}

#[test]
fn a_member_that_was_removed_has_no_vote() {
    let (first, epoch) = (made(3), Epoch::new(Uuid::new_v4(), 0..2));
    let (old, next) = (roster(0..3), roster(0..3).removing(2, epoch.id).settled(|_| true));
    let gone = told(&first, 2, epoch, true);
    let one = told(&told(&first, 0, epoch, true), 0, Epoch::new(Uuid::new_v4(), 0..2), true);
    assert_eq!(decided(&[(0, &one, &next), (2, &gone, &old)]), (vec![0, 1], false));
    assert_eq!(decided(&[(2, &gone, &next)]), (vec![0, 1], false));
    let both = told(&told(&first, 1, epoch, true), 1, one.epoch, true);
    let both = PoolState { ancestors: one.ancestors.clone(), ..both };
    assert_eq!(decided(&[(0, &one, &next), (1, &both, &next)]), (vec![0, 1], true));
}

#[test]
fn another_replica_in_the_place_of_a_member_is_none() {
    let state = made(3);
    let kept = roster(0..3);
    let electorate = Electorate::of(
        &[Word { found: Found { index: 0, state: &state }, replica_uuid: Uuid::nil(), roster: Some(&kept) }],
        3,
    );
    assert!(electorate.has(1, member(1).replica_uuid) && !electorate.has(1, Uuid::new_v4()));
}
