//! A member's state under many schedules of the threads that change it: no event is overwritten by another.
//!
//! The file under test is the library's own, with shuttle's atomics in the place of the real ones.

use std::sync::Arc;

use member_state::{Event, Link, MemberCell, MemberState};
use shuttle_locks::thread;

mod sync {
    pub(crate) use shuttle_locks::atomic;
}

#[path = "../../src/member_state.rs"]
#[allow(dead_code, unreachable_pub, reason = "the library's own, of which this uses a part")]
mod member_state;

const SCHEDULES: usize = 2_000;
/// Changes of threads at places that matter.
const DEPTH: usize = 3;

/// The state in which events that meet leave a member.
fn after_all(state: MemberState, events: &[Event]) -> MemberState {
    let cell = Arc::new(MemberCell::new(state));
    let take = |event: Event| {
        let cell = Arc::clone(&cell);
        thread::spawn(move || {
            let transition = cell.take(event);
            assert_eq!(transition.from.after(event), Some(transition.to));
        })
    };
    for thread in events.iter().copied().map(take).collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    cell.get()
}

fn check(state: MemberState, events: &'static [Event], is_right: fn(MemberState) -> bool) {
    let run = move || {
        let left = after_all(state, events);
        assert!(is_right(left), "{state:?} after {events:?} is {left:?}");
    };
    shuttle_locks::check_random(run, SCHEDULES);
    shuttle_locks::check_pct(run, SCHEDULES, DEPTH);
}

/// A loss is never undone by the thread that copies to the member, nor by writers that do not wait for it any more.
#[test]
fn a_loss_stays_whatever_it_meets() {
    let events = &[Event::CaughtUp, Event::Lost, Event::LeftBehind];
    let is_lost = |state: MemberState| state.is_lost() && !state.is_in_sync();
    check(MemberState::Behind(Link::Connected), events, is_lost);
    check(MemberState::Behind(Link::Slow), &[Event::Admitted, Event::Lost, Event::LeftBehind], is_lost);
    check(MemberState::InSync, &[Event::Lost, Event::Lost, Event::LeftBehind], is_lost);
}

/// Either it was in sync before it was left behind, or it was left behind and is not in sync.
#[test]
fn one_left_behind_is_not_in_sync() {
    let events = &[Event::CaughtUp, Event::LeftBehind];
    check(MemberState::Behind(Link::Connected), events, |state| state == MemberState::Behind(Link::Slow));
}

#[test]
fn one_removed_stays_removed() {
    let events = &[Event::CaughtUp, Event::Removed, Event::Lost];
    check(MemberState::Behind(Link::Connected), events, MemberState::is_removed);
    check(MemberState::Candidate(Link::Connected), &[Event::MadeMember, Event::Removed], MemberState::is_removed);
}

/// A candidate that is lost or slow when the epoch makes it a member is a lost, or slow, member.
#[test]
fn a_candidate_becomes_a_member_as_it_is() {
    let candidate = MemberState::Candidate(Link::Connected);
    check(candidate, &[Event::MadeMember, Event::Lost], |state| state == MemberState::Behind(Link::Lost));
    check(candidate, &[Event::MadeMember, Event::LeftBehind], |state| state == MemberState::Behind(Link::Slow));
}
