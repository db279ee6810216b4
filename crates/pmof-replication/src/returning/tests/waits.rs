//! How long a return waits, for what, and what it waits with.

use super::*;

#[test]
fn pauses_are_doubled_and_go_on_where_a_member_has_not_recovered() {
    let pauses = Pauses::default();
    let mut backoff = Backoff::new(&pauses);
    let (later, slow) = (Halt::<Refused>::Later, Halt::<Refused>::Slow);
    let began = Duration::from_secs(100);
    backoff.begin(&pauses, began, false);
    assert_eq!(backoff.pause(), pauses.first);
    for _ in 0..20 {
        let before = backoff.pause();
        backoff.halted(&pauses, &later);
        assert_eq!(backoff.pause(), (2 * before).min(pauses.longest));
    }
    backoff.came_back(&pauses, began);
    backoff.begin(&pauses, began + pauses.recovered_after, false);
    assert_eq!(backoff.pause(), pauses.longest, "lost again before it has recovered");
    backoff.begin(&pauses, began + 2 * pauses.recovered_after, false);
    assert_eq!(backoff.pause(), pauses.first);
    backoff.begin(&pauses, began, true);
    assert_eq!(backoff.pause(), pauses.misbehaved);
    for _ in 0..20 {
        backoff.halted(&pauses, &slow);
    }
    assert_eq!(backoff.pause(), pauses.longest_slow);
    backoff.came_back(&pauses, began);
    assert_eq!(backoff.pause(), pauses.longest_slow, "one that was slow is tried as seldom");
    backoff.halted(&pauses, &Halt::<Refused>::Rejected(Rejection::NotAMember { index: 1 }));
    assert_eq!(backoff.pause(), pauses.rejected);
}

#[test]
fn a_candidate_that_is_lost_while_it_becomes_a_member_is_brought_back() {
    let run = |looks| {
        let pool = Rc::new(pool());
        pool.candidate_looks.set(looks);
        pool.lost.borrow_mut().push("candidate");
        *pool.opened.borrow_mut() = [Ok(opened(left_at_first())), Ok(opened(left_at_first()))].into();
        let returned = bring_back(&pool);
        (returned.is_some(), pool.state_of(POSITION).is_in_sync())
    };
    assert_eq!(run(1), (true, true), "it became one between two looks");
    assert_eq!(run(2), (false, false), "one that is still none is given up");
}

/// A candidate that is given up, or a member that is removed, while its return waits for the writers.
#[test]
fn one_that_is_removed_while_it_returns_is_not_admitted() {
    let pool = Rc::new(pool());
    pool.lost.borrow_mut().push("removed");
    *pool.opened.borrow_mut() = [Ok(opened(left_at_first())), Ok(opened(left_at_first()))].into();
    assert!(bring_back(&pool).is_none());
    let steps = pool.steps();
    assert_eq!((steps.last().map(String::as_str), pool.opened.borrow().len()), (Some("hold"), 1), "{steps:?}");
}

#[test]
fn one_that_is_back_below_the_quorum_waits_connected_for_another() {
    let pool = Rc::new(whole(5));
    (1..5).for_each(|position| _ = pool.members.borrow()[position].take(Event::Lost));
    assert!(!done(epochs::begin(&Locked(&pool))), "one of five is no quorum");
    assert!(bring_back(&pool).is_some());
    let steps = pool.steps();
    let at = |step: &str| steps.iter().position(|of| of == step);
    assert!(at("1 is back").is_some() && at("1 is back") < at("all 111: Begin"), "{steps:?}");
    assert!(at("give up").is_none() && pool.state_of(POSITION).is_in_sync(), "{steps:?}");
}

/// Its target may have it, though the reply was lost. An older copy that comes back in its place has an older one, and is not taken for what it was left.
#[test]
fn a_mark_that_is_sent_to_a_member_behind_counts_as_told() {
    let pool = Rc::new(pool());
    for (lost_at, mark) in [("Mark", 1), ("needed", 2)] {
        done(epochs::raise_mark(&Locked(&pool)));
        *pool.opened.borrow_mut() = [Ok(opened(left_at_first()))].into();
        pool.lost.borrow_mut().push(lost_at);
        assert!(bring_back(&pool).is_none());
        let has_kept = |mark| pool.epochs.borrow().view.has_kept(POSITION, mark);
        assert_eq!((has_kept(mark - 1), has_kept(mark)), (false, true), "{:?}", pool.steps());
    }
}
