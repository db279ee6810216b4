use super::*;

/// The view of a pool of `made` members, all of them in sync by the first epoch.
fn view(made: u16) -> View {
    let base = Base { opening: 1, ancestors: vec![Epoch::new(Uuid::new_v4(), 0..made)], announced: Vec::new() };
    let indexes = (0..made).map(Some).collect();
    View::new(Rule::of(made.into()), indexes, base, 0, (1 << made) - 1)
}

fn begun(step: Step) -> (Epoch, Vec<Epoch>) {
    let Step::TellAll(question) = step else { panic!("nothing is announced: {step:?}") };
    let (Request::Begin { epoch, ancestors, .. }, Reply::Begun) = *question else { panic!("{question:?}") };
    (epoch, ancestors)
}

fn confirmed(step: Step) -> Uuid {
    let Step::TellAll(question) = step else { panic!("nothing is confirmed: {step:?}") };
    let (Request::Confirm { epoch }, Reply::Confirmed) = *question else { panic!("{question:?}") };
    epoch
}

/// A change that nothing disturbs.
fn begin(view: &mut View, connected: Positions, in_use: Positions) -> Epoch {
    let mut change = Change::default();
    let (epoch, _) = begun(view.step(&mut change, connected, in_use, Uuid::new_v4()));
    assert_eq!(confirmed(view.step(&mut change, connected, in_use, Uuid::new_v4())), epoch.id);
    assert!(matches!(view.step(&mut change, connected, in_use, Uuid::new_v4()), Step::Done(true)));
    epoch
}

#[test]
fn an_epoch_is_in_force_when_all_it_was_announced_to_confirmed_it() {
    let mut view = view(3);
    let first = view.line()[0];
    let mut change = Change::default();
    let (epoch, ancestors) = begun(view.step(&mut change, 0b111, 0b011, Uuid::new_v4()));
    assert_eq!((epoch.members, ancestors), (0b011, vec![first]));
    assert_eq!(confirmed(view.step(&mut change, 0b111, 0b011, Uuid::new_v4())), epoch.id);
    assert_eq!((view.current(), view.epoch()), (0b111, Some(first.id)), "not before they have answered");
    assert!(matches!(view.step(&mut change, 0b111, 0b011, Uuid::new_v4()), Step::Done(true)));
    assert_eq!((view.current(), view.line(), view.opening()), (0b011, &[epoch, first][..], 2));
}

#[test]
fn one_lost_before_it_is_confirmed_makes_it_another_epoch() {
    let mut view = view(3);
    let first = view.line()[0];
    let mut change = Change::default();
    let (abandoned, _) = begun(view.step(&mut change, 0b111, 0b111, Uuid::new_v4()));
    let (epoch, ancestors) = begun(view.step(&mut change, 0b011, 0b011, Uuid::new_v4()));
    assert_ne!(epoch.id, abandoned.id);
    assert_eq!((epoch.members, ancestors), (0b011, vec![first]));
}

#[test]
fn nothing_is_acknowledged_under_an_epoch_that_not_all_have_confirmed() {
    let mut view = view(3);
    let mut change = Change::default();
    let (half, _) = begun(view.step(&mut change, 0b111, 0b111, Uuid::new_v4()));
    confirmed(view.step(&mut change, 0b111, 0b111, Uuid::new_v4()));
    // One of them may have confirmed it: it is an ancestor, with its members.
    let (_, ancestors) = begun(view.step(&mut change, 0b011, 0b011, Uuid::new_v4()));
    assert_eq!(ancestors[0], half);
    assert!(view.current() == 0 && !view.is_settled(0b011));
    // Too few are left.
    assert!(matches!(view.step(&mut change, 0b001, 0b001, Uuid::new_v4()), Step::Done(false)));
    assert!(!view.is_settled(0b001));
}

/// Should one that joins be lost while its epoch is confirmed, the others would acknowledge what it lacks under the epoch before, and it would be a member of the next.
#[test]
fn nothing_is_acknowledged_without_one_that_an_epoch_is_about_to_count() {
    let mut view = view(3);
    begin(&mut view, 0b111, 0b001);
    let mut change = Change::default();
    begun(view.announce(&mut change, 0b111, 0b011, Uuid::new_v4()));
    assert!(view.is_settled(0b001), "it is not in sync yet");
    confirmed(view.step(&mut change, 0b111, 0b011, Uuid::new_v4()));
    assert!(!view.is_settled(0b001));
    // In sync, and no member of an epoch since too few are left to know of that: nothing was confirmed.
    let mut view = self::view(3);
    begin(&mut view, 0b111, 0b001);
    let mut change = Change::default();
    begun(view.step(&mut change, 0b111, 0b011, Uuid::new_v4()));
    assert!(!view.is_settled(0b001));
    assert!(matches!(view.step(&mut change, 0b001, 0b001, Uuid::new_v4()), Step::Done(false)));
    assert!(view.is_settled(0b001));
}

#[test]
fn of_two_the_one_that_caught_up_goes_on_alone_only_if_the_other_hears_of_it() {
    let mut view = view(2);
    begin(&mut view, 0b11, 0b01);
    // The second has caught up, and the first is lost before it hears: it would open the pool alone.
    assert!(matches!(view.step(&mut Change::default(), 0b10, 0b10, Uuid::new_v4()), Step::Done(false)));
    begin(&mut view, 0b11, 0b11);
    begin(&mut view, 0b10, 0b10);
}

/// Two openings took over from each other, and each has one: neither goes on alone.
#[test]
fn of_two_an_opening_has_both_until_its_epoch_is_in_force() {
    let (mut lost, mut kept) = (view(2), view(2));
    let mut change = Change::default();
    begun(lost.step(&mut change, 0b11, 0b11, Uuid::new_v4()));
    assert!(matches!(lost.step(&mut change, 0b01, 0b01, Uuid::new_v4()), Step::Done(false)));
    let mut change = Change::default();
    begun(lost.step(&mut change, 0b11, 0b11, Uuid::new_v4()));
    confirmed(lost.step(&mut change, 0b11, 0b11, Uuid::new_v4()));
    assert!(matches!(lost.step(&mut change, 0b01, 0b01, Uuid::new_v4()), Step::Done(false)));
    begin(&mut kept, 0b11, 0b11);
    begin(&mut kept, 0b01, 0b01);
    let mut new = view(2);
    new.note_equal(0b11);
    begin(&mut new, 0b01, 0b01);
    // Two of three are a quorum, which another opening cannot have as well.
    begin(&mut view(3), 0b011, 0b011);
}

/// The one that is in sync was told of an epoch of both. The other had not confirmed it when it was found, and may have since, if another took it over.
#[test]
fn of_two_an_opening_has_both_that_an_announced_epoch_names() {
    let of_one = Epoch::new(Uuid::new_v4(), [1]);
    for announced in [Epoch::new(Uuid::new_v4(), [0, 1]), Epoch { members: 0, ..Epoch::new(Uuid::new_v4(), [0, 1]) }] {
        let base = Base {
            opening: 2,
            ancestors: vec![of_one, Epoch::new(Uuid::new_v4(), [0, 1])],
            announced: vec![announced],
        };
        let mut view = View::new(Rule::of(2), vec![Some(0), Some(1)], base, 0, 0b10);
        let mut change = Change::default();
        begun(view.step(&mut change, 0b11, 0b10, Uuid::new_v4()));
        assert!(matches!(view.step(&mut change, 0b10, 0b10, Uuid::new_v4()), Step::Done(false)), "{announced:?}");
        begin(&mut view, 0b11, 0b10);
        begin(&mut view, 0b10, 0b10);
    }
}

#[test]
fn without_a_member_in_sync_no_mark_is_raised() {
    let mut view = view(2);
    assert!(view.is_settled(0b11) && !view.is_settled(0b01));
    begin(&mut view, 0b11, 0b11);
    // The last is lost while an epoch is confirmed to it.
    let mut change = Change::default();
    begun(view.step(&mut change, 0b01, 0b01, Uuid::new_v4()));
    confirmed(view.step(&mut change, 0b01, 0b01, Uuid::new_v4()));
    assert!(matches!(view.step(&mut change, 0, 0, Uuid::new_v4()), Step::Done(false)));
    assert!(view.current() == 0 && !view.is_settled(0));
}

#[test]
fn what_a_member_lacks_is_known_by_the_mark_at_which_it_was_left() {
    let mut view = view(3);
    assert!(!view.knows_what_lacks(2, u64::MAX), "it was not left");
    begin(&mut view, 0b011, 0b011);
    assert!(!view.knows_what_lacks(2, u64::MAX), "it was not in sync while the pool was open");
    begin(&mut view, 0b111, 0b111);
    view.note_equal(0b111);
    let epoch = view.epoch();
    view.raise_mark();
    view.raise_mark();
    begin(&mut view, 0b011, 0b011);
    view.raise_mark();
    assert_eq!([0, 1, 2, 3].map(|mark| view.knows_what_lacks(2, mark)), [false, true, true, true]);
    assert_eq!(view.epoch_of(2), epoch);
}

#[test]
fn what_was_copied_to_an_older_copy_is_not_believed() {
    let mut view = view(2);
    assert!(view.has_kept(1, 0), "it was told no mark");
    view.note_marked(1, &Request::Mark { mark: 5 });
    assert_eq!([4, 5, 6].map(|mark| view.has_kept(1, mark)), [false, true, true]);
    assert!(view.has_kept(0, 0));
}

#[test]
fn a_returning_replica_learns_that_it_is_behind() {
    let mut view = view(3);
    let state = PoolState::new(view.line()[0].id, 3);
    assert!(
        matches!(view.introduction(2, Some(&state)), Some(Introduction::ByChange)),
        "a member of the epoch in force"
    );
    let epoch = begin(&mut view, 0b011, 0b011);
    let Some(Introduction::Tell(told)) = view.introduction(2, Some(&state)) else { panic!("it is no member") };
    assert!(matches!(&told[0], (Request::Begin { epoch: of, opening: 2, .. }, Reply::Begun) if *of == epoch));
    assert!(matches!(told[1], (Request::Confirm { epoch: of }, Reply::Confirmed) if of == epoch.id));
}

/// Another writer was beginning an epoch, and one of its members may have confirmed it. Whoever knows of it has to remember it.
#[test]
fn an_epoch_of_another_writer_is_named_once_it_cannot_come_in_force() {
    let mut view = view(3);
    let ours = begin(&mut view, 0b111, 0b111);
    let state = PoolState::new(view.line()[1].id, 3).begun(2, ours, 2, &view.line()[1..]);
    let theirs = Epoch::new(Uuid::new_v4(), [1]);
    let state = state.confirmed(2, ours.id).unwrap().begun(2, theirs, 3, view.line());
    assert!(matches!(view.introduction(2, Some(&state)), Some(Introduction::ByChange)));
    let mut change = Change::default();
    let (next, ancestors) = begun(view.step(&mut change, 0b101, 0b001, Uuid::new_v4()));
    assert!(ancestors.iter().all(|epoch| epoch.id != theirs.id), "it may be in force as long as few know of this one");
    confirmed(view.step(&mut change, 0b101, 0b001, Uuid::new_v4()));
    let (_, ancestors) = begun(view.step(&mut change, 0b101, 0b001, Uuid::new_v4()));
    assert_eq!(ancestors[..3], [next, ours, Epoch { members: 0, ..theirs }]);
    confirmed(view.step(&mut change, 0b101, 0b001, Uuid::new_v4()));
    assert!(matches!(view.step(&mut change, 0b101, 0b001, Uuid::new_v4()), Step::Done(true)));
    assert!(matches!(view.introduction(2, Some(&state)), Some(Introduction::Tell(_))));
}

/// A change of the members by this epoch, in which nothing is lost.
fn change(view: &mut View, connected: Positions, in_use: Positions) -> Epoch {
    let id = Uuid::new_v4();
    let mut change = Change::Named(id);
    let (epoch, _) = begun(view.step(&mut change, connected, in_use, Uuid::new_v4()));
    assert_eq!((epoch.id, confirmed(view.step(&mut change, connected, in_use, Uuid::new_v4()))), (id, id));
    assert!(matches!(view.step(&mut change, connected, in_use, Uuid::new_v4()), Step::Done(true)));
    assert!(view.has_begun(id));
    epoch
}

#[test]
fn a_member_that_comes_needs_most_of_those_before_and_of_those_after_it() {
    let mut view = view(3);
    view.add_place(3);
    // Before it is one it counts for nothing.
    assert!(!view.is_quorum(0b1001) && view.is_quorum(0b0011));
    view.plan(Some(3), true);
    assert!(!view.is_quorum(0b0011), "two of four are no majority");
    assert!(view.is_quorum(0b1011));
    let epoch = change(&mut view, 0b1011, 0b0011);
    assert_eq!(epoch.members, 0b0011);
    view.adopt();
    assert_eq!(view.counts(), (4, 3));
    assert!(view.is_quorum(0b1101) && !view.is_quorum(0b0011));
}

#[test]
fn a_member_that_goes_needs_most_of_those_before_it_and_of_those_after_it() {
    let mut view = view(4);
    view.plan(Some(3), false);
    assert!(!view.is_quorum(0b0011), "two are a majority of three, and none of four");
    assert!(!view.is_quorum(0b1001), "nor is the one that goes one of the three");
    assert!(view.is_quorum(0b1011));
    change(&mut view, 0b1011, 0b0011);
    view.adopt();
    view.remove_place(3);
    assert_eq!(view.counts(), (3, 2));
    assert!(view.is_quorum(0b0011) && !view.is_quorum(0b1001));
}

#[test]
fn a_change_that_is_disturbed_before_it_is_confirmed_is_not_made() {
    let mut view = view(3);
    view.plan(Some(2), false);
    let id = Uuid::new_v4();
    let mut change = Change::Named(id);
    begun(view.step(&mut change, 0b111, 0b011, Uuid::new_v4()));
    // One is lost: the epoch that follows is another one.
    let (epoch, _) = begun(view.step(&mut change, 0b011, 0b011, Uuid::new_v4()));
    assert!(epoch.id != id && !view.has_begun(id));
    view.give_up_plan();
    assert_eq!(view.counts(), (3, 2));
}

#[test]
fn a_change_that_was_found_needs_most_of_those_before_it_until_it_is_settled() {
    let mut view = view(3);
    view.add_place(3);
    view.found_changed(Rule::of(4));
    assert!(!view.is_quorum(0b0011) && view.is_quorum(0b1011));
    view.adopt();
    assert!(view.is_quorum(0b0011));
}

/// The state of a replica that was told of an epoch, and not that all were.
fn told_of(epoch: Epoch, ancestors: &[Epoch]) -> PoolState {
    PoolState::new(Uuid::nil(), 3).begun(0, epoch, 9, ancestors)
}

#[test]
fn whoever_was_told_of_an_epoch_behind_an_own_one_has_met_the_successor() {
    let mut view = view(3);
    let found = view.line()[0];
    let abandoned = begun(view.step(&mut Change::default(), 0b111, 0b111, Uuid::new_v4())).0;
    let own = begin(&mut view, 0b111, 0b011);
    let other = Epoch::new(Uuid::new_v4(), 0..2);
    assert!(view.is_superseded_by(&told_of(other, &[own, found])));
    assert!(
        !view.is_superseded_by(&told_of(other, &[found])),
        "whoever wrote before, and died while it began an epoch"
    );
    assert!(!view.is_superseded_by(&told_of(abandoned, &[found])), "it has announced that itself");
    assert!(!view.is_superseded_by(&told_of(own, &[found])));
    view.note_made();
    assert!(!view.is_superseded_by(&told_of(abandoned, &[own, found])));
    assert!(
        view.is_superseded_by(&told_of(other, &[abandoned, found])),
        "the successor may have met what was given up"
    );
}

#[test]
fn of_a_new_pool_the_first_epoch_is_its_writers() {
    let mut view = view(3);
    let told = told_of(Epoch::new(Uuid::new_v4(), 0..3), view.line());
    assert!(!view.is_superseded_by(&told));
    view.note_made();
    assert!(view.is_superseded_by(&told));
}
