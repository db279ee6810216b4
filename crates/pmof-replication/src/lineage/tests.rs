use super::*;

/// The state of a pool of `made` replicas when it was made.
fn made(made: u16) -> PoolState {
    PoolState { is_open: false, ..PoolState::new(Uuid::new_v4(), made) }
}

/// What an opening by these replicas leaves on each of them, closed in order.
fn opened(state: &PoolState, members: &[u16]) -> PoolState {
    let Base { opening, ancestors, .. } = Base::after(state.epoch, state.opening, &state.ancestors);
    let epoch = Epoch::new(Uuid::new_v4(), members.iter().copied());
    PoolState { epoch, opening: opening + 1, ancestors, is_confirmed: true, is_open: false, ..state.clone() }
}

fn crashed(state: &PoolState) -> PoolState {
    PoolState { is_open: true, ..state.clone() }
}

fn announced(state: &PoolState, members: &[u16]) -> PoolState {
    PoolState { is_confirmed: false, is_open: true, ..opened(state, members) }
}

fn agree_all(states: &[&PoolState], made: u16) -> Result<Agreement, Vec<(usize, Apart)>> {
    let found: Vec<_> = states.iter().enumerate().map(|(index, state)| Found { index: index as u16, state }).collect();
    agree(&found, made)
}

/// Those that do not belong to the others, whether the others can be told or not.
fn refused(states: &[&PoolState], made: u16) -> Vec<(usize, Apart)> {
    let mut apart = match agree_all(states, made) {
        Ok(Agreement { behind, foreign, .. }) => [behind, foreign].concat(),
        Err(apart) => apart,
    };
    apart.sort_by_key(|(position, _)| *position);
    assert!(!apart.is_empty(), "they belong together");
    apart
}

#[test]
fn replicas_at_one_epoch_belong_together() {
    let first = made(3);
    let last = opened(&opened(&first, &[0, 1, 2]), &[0, 1, 2]);
    let agreement = agree_all(&[&last, &last, &last], 3).unwrap();
    assert!(agreement.is_clean);
    assert_eq!((agreement.base.opening, agreement.base.ancestors[0]), (3, last.epoch));
    assert_eq!(agreement.base.ancestors.last(), Some(&first.epoch));
    assert!(agree_all(&[&first, &first], 3).unwrap().is_clean);
}

#[test]
fn one_that_was_closed_in_order_is_the_source() {
    let state = made(3);
    let open = crashed(&state);
    let agreement = agree_all(&[&open, &state, &open], 3).unwrap();
    assert_eq!((agreement.is_clean, agreement.source), (false, 1));
    assert_eq!(agree_all(&[&open, &open], 2).unwrap().source, 0);
}

#[test]
fn the_one_with_the_highest_mark_is_the_source() {
    let of = |first: u64, second: u64| {
        let state = made(2);
        let [first, second] = [first, second].map(|mark| PoolState { mark, ..crashed(&state) });
        let agreement = agree_all(&[&first, &second], 2).unwrap();
        (agreement.source, agreement.mark, agreement.stale)
    };
    assert_eq!(of(4, 4), (0, 4, vec![]));
    // The writer died while it raised the mark.
    assert_eq!(of(4, 5), (1, 5, vec![]));
    assert_eq!(of(5, 4), (0, 5, vec![]));
    assert_eq!(of(3, 5), (1, 5, vec![(0, Apart::Stale { opening: 1, mark: 3, newest: 5 })]));
    assert_eq!(of(u64::MAX, 0), (0, u64::MAX, vec![(1, Apart::Stale { opening: 1, mark: 0, newest: u64::MAX })]));
    // An epoch that was only announced does not hide it.
    let older = PoolState { mark: 4, ..crashed(&made(2)) };
    let newer = PoolState { mark: 5, ..older.clone() };
    assert_eq!(agree_all(&[&announced(&older, &[0, 1]), &newer], 2).unwrap().source, 1);
    assert_eq!(agree_all(&[&older, &announced(&newer, &[0, 1])], 2).unwrap().source, 1);
}

/// Nobody can tell whether its writer died while it raised the mark, or its file was put back.
#[test]
fn a_writer_has_one_that_lacks_the_last_mark_catch_up_and_vote() {
    let state = made(3);
    let of = |marks: [u64; 2]| {
        let states = marks.map(|mark| PoolState { mark, ..crashed(&state) });
        let found = [0, 1].map(|index| Found { index: index as u16, state: &states[index] });
        let mut agreement = agree(&found, 3).unwrap();
        agreement.put_stale_behind(&found);
        agreement.put_late_behind();
        let behind: Vec<_> = agreement.behind.iter().map(|(position, _)| *position).collect();
        (agreement.is_enough(&found, 0b111, true), agreement.in_sync, behind)
    };
    assert_eq!(of([5, 5]), (true, vec![0, 1], vec![]));
    assert_eq!(of([4, 5]), (true, vec![1], vec![0]));
    assert_eq!(of([5, 4]), (true, vec![0], vec![1]));
    assert_eq!(of([3, 5]), (false, vec![1], vec![0]), "an older copy does not vote");
}

#[test]
fn two_replicas_written_in_turn_have_diverged() {
    let state = made(2);
    let (one, other) = (opened(&state, &[0]), opened(&state, &[1]));
    let apart = Apart::Diverged { opening: 2, others: 2, majority: false };
    assert_eq!(refused(&[&one, &other], 2), [(0, apart), (1, apart)]);
    // However often the one is opened.
    let often = opened(&opened(&one, &[0]), &[0]);
    assert_eq!(refused(&[&often, &other], 2)[1], (1, Apart::Diverged { opening: 2, others: 4, majority: false }));
    // One that neither of them went on from alone is no third line: whichever is kept, it is behind.
    let state = made(4);
    let (one, other) = (opened(&state, &[0]), opened(&state, &[1]));
    assert_eq!(refused(&[&one, &other, &state], 4), [(0, apart), (1, apart)]);
}

#[test]
fn the_one_that_others_went_on_without_is_left_behind() {
    let state = made(3);
    let others = opened(&state, &[1, 2]);
    let left = [(0, Apart::LeftBehind { opening: 1, newest: 2 })];
    assert_eq!(refused(&[&state, &others, &others], 3), left);
    assert_eq!(refused(&[&crashed(&state), &others, &crashed(&others)], 3), left);
    // One after the other.
    let last = opened(&others, &[2]);
    assert_eq!(refused(&[&state, &others, &last], 3).iter().map(|(position, _)| *position).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn an_older_copy_of_a_member_was_rolled_back() {
    let state = made(3);
    let last = opened(&opened(&state, &[0, 1, 2]), &[0, 1, 2]);
    assert_eq!(refused(&[&last, &state, &last], 3), [(1, Apart::RolledBack { opening: 1, newest: 3 })]);
    // In between the others went on without it, and it had come back since.
    let back = opened(&opened(&opened(&state, &[0, 2]), &[0, 1, 2]), &[0, 2]);
    assert_eq!(refused(&[&back, &state, &back], 3), [(1, Apart::RolledBack { opening: 1, newest: 4 })]);
}

#[test]
fn a_minority_never_outranks_a_majority() {
    let state = made(3);
    let majority = opened(&state, &[0, 1]);
    let mut minority = opened(&state, &[2]);
    for _ in 0..2 * ANCESTORS_MAX {
        let apart = refused(&[&majority, &majority, &minority], 3);
        assert_eq!(apart.len(), 1);
        assert!(matches!(apart[0], (2, Apart::Diverged { majority: true, .. })), "{apart:?}");
        minority = opened(&minority, &[2]);
    }
    // Also where the majority has done nothing since.
    let alone = opened(&opened(&state, &[2]), &[2]);
    let expected = Apart::WithoutMajority { opening: 3, others: 1, members: 1 };
    assert_eq!(refused(&[&state, &state, &alone], 3), [(2, expected)]);
    // Half of four is no majority, and nor is the other half.
    let four = made(4);
    let half = opened(&four, &[0, 1]);
    let apart = refused(&[&half, &half, &four, &four], 4);
    assert_eq!(apart.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [2, 3]);
}

/// One that was left behind and an older copy of a member are most of the pool, and yet most of it went on.
#[test]
fn older_copies_do_not_outvote_what_a_majority_wrote() {
    let state = made(3);
    let newer = opened(&state, &[0, 1]);
    let expected = [(1, Apart::RolledBack { opening: 1, newest: 2 }), (2, Apart::LeftBehind { opening: 1, newest: 2 })];
    assert_eq!(refused(&[&newer, &state, &state], 3), expected);
}

#[test]
fn what_members_are_not_here_decides_nothing() {
    // So long ago that the one does not know the other any more, which had all as members when it was written.
    let state = made(2);
    let mut often = opened(&state, &[0]);
    for _ in 0..2 * ANCESTORS_MAX {
        often = opened(&often, &[0]);
        let apart = refused(&[&often, &state], 2);
        assert!(apart.iter().all(|(_, apart)| !matches!(apart, Apart::Diverged { majority: true, .. })), "{apart:?}");
    }
    assert_eq!(refused(&[&often, &state], 2).len(), 2, "none is known to be newer");

    // An opening of all three that one alone heard to be confirmed, and two that went on without it.
    let state = made(3);
    let heard = opened(&state, &[0, 1, 2]);
    let others = opened(&state, &[0, 2]);
    for order in [[&others, &heard, &others], [&heard, &others, &others], [&others, &others, &heard]] {
        let apart = refused(&order, 3);
        let place = order.iter().position(|state| *state == &heard).unwrap();
        assert!(matches!(apart[..], [(position, Apart::Diverged { majority: true, .. })] if position == place));
    }
}

#[test]
fn an_epoch_that_was_only_announced_leaves_nobody_behind() {
    let state = made(2);
    let begun = announced(&state, &[0, 1]);
    let agreement = agree_all(&[&begun, &state], 2).unwrap();
    assert_eq!((agreement.is_clean, agreement.source), (false, 1));
    let given_up = Epoch { members: 0, ..begun.epoch };
    assert_eq!(
        agreement.base,
        Base { opening: 1, ancestors: vec![state.epoch, given_up], announced: vec![begun.epoch] }
    );
    // Nor do two announcements, one after the other.
    let again = announced(&state, &[0, 1]);
    assert!(agree_all(&[&begun, &again], 2).is_ok());
    // Confirmed by one member, all have it.
    let confirmed = PoolState { is_confirmed: true, ..begun.clone() };
    assert_eq!(agree_all(&[&begun, &confirmed], 2).unwrap().base.ancestors[0], begun.epoch);
    // One that does not have it then is an older copy.
    assert_eq!(refused(&[&confirmed, &state], 2), [(1, Apart::RolledBack { opening: 1, newest: 2 })]);
}

#[test]
fn a_survivor_that_missed_the_news_of_a_loss_is_not_refused() {
    let state = crashed(&made(3));
    let told = announced(&state, &[0, 1]);
    assert!(!agree_all(&[&told, &state, &state], 3).unwrap().is_clean);
    let confirmed = PoolState { is_confirmed: true, ..told.clone() };
    assert_eq!(refused(&[&confirmed, &told, &state], 3), [(2, Apart::LeftBehind { opening: 1, newest: 2 })]);
}

#[test]
fn generations_of_the_first_format_are_in_order() {
    let [old, new] = [3, 5].map(|generation| PoolState::of_generation(generation, 2));
    assert_eq!(refused(&[&new, &old], 2), [(1, Apart::LeftBehind { opening: 3, newest: 5 })]);
    assert!(agree_all(&[&new, &new], 2).is_ok());
}

/// What it is told of the epoch of others makes a replica behind a witness of theirs, and no source.
#[test]
fn one_that_is_behind_votes_and_is_no_source() {
    let state = made(3);
    let last = opened(&state, &[0]);
    let voter = PoolState { is_behind: true, ..last.clone() };
    let catching_up = Apart::CatchingUp { opening: 2 };
    let agreement = agree_all(&[&last, &state, &voter], 3).unwrap();
    assert_eq!((agreement.in_sync, agreement.foreign), (vec![0], vec![]));
    assert_eq!(agreement.behind, [(1, Apart::LeftBehind { opening: 1, newest: 2 }), (2, catching_up)]);
    assert!(agreement.behind.iter().all(|(_, apart)| apart.may_catch_up() && apart.votes()));
    // Without the one that has everything, nobody is opened: the voter knows that the other lacks something.
    assert!(agree_all(&[&voter], 3).is_err() && agree_all(&[&state, &voter], 3).is_err());
}

#[test]
fn older_copies_catch_up_and_do_not_vote() {
    let state = made(3);
    let last = opened(&state, &[0, 1, 2]);
    let agreement = agree_all(&[&last, &state, &last], 3).unwrap();
    assert_eq!(agreement.in_sync, [0, 2]);
    assert!(agreement.behind[0].1.may_catch_up() && !agreement.behind[0].1.votes());
}

/// An epoch of which one replica alone heard that it was confirmed: nothing was acknowledged under it, and it catches up.
#[test]
fn the_only_one_that_knows_an_epoch_comes_back() {
    let state = crashed(&made(3));
    let announced = announced(&state, &[0, 2]);
    let heard = PoolState { is_confirmed: true, ..announced.clone() };
    // The next opening meets one that was told of the epoch, and one that was not.
    let Base { opening, ancestors, .. } = agree_all(&[&state, &state, &announced], 3).unwrap().base;
    let next =
        PoolState { epoch: Epoch::new(Uuid::new_v4(), [1, 2]), opening: opening + 1, ancestors, ..heard.clone() };
    let agreement = agree_all(&[&heard, &next, &next], 3).unwrap();
    assert_eq!(agreement.in_sync, [1, 2]);
    assert!(matches!(agreement.behind[..], [(0, Apart::LeftBehind { .. })]), "{agreement:?}");
    let found = Found { index: 0, state: &heard };
    let line: Vec<_> = std::iter::once(next.epoch).chain(next.ancestors.iter().copied()).collect();
    assert!(matches!(of_returning(&found, &line, next.opening), Some(Apart::LeftBehind { .. })));
}

/// An opening of both gave the epoch up that it found announced, and died before its own was in force: the other may have confirmed the one before.
#[test]
fn of_two_one_that_an_opening_has_told_of_an_epoch_given_up_opens_nothing_alone() {
    let alone = opened(&made(2), &[1]);
    let given_up = Epoch::new(Uuid::new_v4(), [0, 1]);
    let first = told(1, &alone, given_up, &[]);
    let then = told(1, &alone, Epoch::new(Uuid::new_v4(), [1]), &[given_up]);
    for state in [first, then] {
        let found = [Found { index: 1, state: &state }];
        let agreement = agree(&found, 2).unwrap();
        assert!(agreement.in_sync == [0] && !agreement.is_enough(&found, 0b11, true), "{agreement:?}");
        let other = told_and_confirmed(0, &made(2), Epoch::new(Uuid::new_v4(), [0]));
        let other =
            PoolState { epoch: state.ancestors[0], ancestors: state.ancestors[1..].to_vec(), is_behind: true, ..other };
        let both = [Found { index: 0, state: &other }, found[0]];
        assert!(agree(&both, 2).unwrap().is_enough(&both, 0b11, true));
    }
}

/// The state of a replica that was told of an epoch, and of which others it was a sibling.
fn told(index: u16, parent: &PoolState, epoch: Epoch, abandoned: &[Epoch]) -> PoolState {
    let Base { opening, mut ancestors, .. } = Base::after(parent.epoch, parent.opening, &parent.ancestors);
    ancestors.splice(1..1, abandoned.iter().map(|epoch| Epoch { members: 0, ..*epoch }));
    parent.begun(index, epoch, opening + 1, &ancestors)
}

fn told_and_confirmed(index: u16, parent: &PoolState, epoch: Epoch) -> PoolState {
    told(index, parent, epoch, &[]).confirmed(index, epoch.id).unwrap()
}

/// Its writer died while two were told that it is confirmed. An opening that found neither went on without it, and died as well.
#[test]
fn an_abandoned_epoch_that_some_have_confirmed_is_no_head() {
    let state = crashed(&made(5));
    let (abandoned, next) = (Epoch::new(Uuid::new_v4(), [3]), Epoch::new(Uuid::new_v4(), [2, 3]));
    let heard = |index| told_and_confirmed(index, &state, abandoned);
    let others = |index| told(index, &state, next, &[abandoned]);
    let states = [heard(0), heard(1), others(2), others(3), others(4)];
    let agreement = agree_all(&states.each_ref(), 5).unwrap();
    assert_eq!((&agreement.in_sync[..], agreement.base.opening), (&[2, 3, 4][..], 1));
    assert!(agreement.behind.iter().all(|(_, apart)| apart.votes()) && agreement.foreign.is_empty());
    // Those that come back later are known by it.
    let named = agreement.base.ancestors.iter().filter(|epoch| epoch.members == 0).map(|epoch| epoch.id);
    assert_eq!(named.collect::<BTreeSet<_>>(), BTreeSet::from([abandoned.id, next.id]));
    // Its writer announced another one to one of them: that builds upon nothing.
    let built = told(0, &heard(0), Epoch::new(Uuid::new_v4(), [3, 0]), &[]);
    let states = [built, heard(1), others(2), others(3), others(4)];
    assert_eq!(agree_all(&states.each_ref(), 5).unwrap().in_sync, [2, 3, 4]);
}

#[test]
fn an_epoch_that_was_built_upon_is_not_abandoned() {
    let state = crashed(&made(3));
    let (first, next) = (Epoch::new(Uuid::new_v4(), [0, 1]), Epoch::new(Uuid::new_v4(), [0]));
    let heard = |index| told_and_confirmed(index, &state, first);
    // One was told that the first is abandoned, by a writer that came no further.
    let mistaken = told(2, &state, Epoch::new(Uuid::new_v4(), [2]), &[first]);
    let states = [told_and_confirmed(0, &heard(0), next), told_and_confirmed(1, &heard(1), next), mistaken];
    let agreement = agree_all(&states.each_ref(), 3).unwrap();
    assert_eq!((&agreement.in_sync[..], agreement.base.ancestors[0]), (&[0][..], next));
}

/// What one replica wrote alone, with others that knew of it, is no minority's: they are behind, and an older copy stands for nobody.
#[test]
fn those_that_are_behind_are_no_majority() {
    let alone = |epoch: Epoch, parent: &PoolState| told_and_confirmed(0, parent, epoch);
    let state = crashed(&made(3));
    let (first, next) = (Epoch::new(Uuid::new_v4(), [0]), Epoch::new(Uuid::new_v4(), [0]));
    let behind = |index| told_and_confirmed(index, &state, first);
    let newest = alone(next, &alone(first, &state));
    assert_eq!(agree_all(&[&newest, &behind(1), &behind(2)], 3).unwrap().in_sync, [0]);
    // One that was a member since, and was rolled back.
    let most = alone(next, &alone(Epoch::new(Uuid::new_v4(), [0, 1]), &state));
    assert_eq!(agree_all(&[&most, &state, &state], 3).unwrap().in_sync, [0]);
    // One whose mark says that it is an older copy of one that was left.
    let left = PoolState { mark: 3, ..state.clone() };
    assert_eq!(agree_all(&[&alone(first, &left), &state, &left], 3).unwrap().in_sync, [0]);
    assert!(agree_all(&[&alone(first, &left), &left, &left], 3).is_err(), "a minority's");
}

/// One that is behind was told the mark: it tells an older copy from the replica where nobody else is left who could.
#[test]
fn one_that_is_behind_tells_an_older_copy() {
    let state = crashed(&made(3));
    let of = |behind_mark: u64| {
        let epoch = Epoch::new(Uuid::new_v4(), [1, 2]);
        let behind = PoolState { mark: behind_mark, ..told_and_confirmed(0, &state, epoch) };
        let copy = told_and_confirmed(1, &state, epoch);
        let found = [Found { index: 0, state: &behind }, Found { index: 1, state: &copy }];
        let mut agreement = agree(&found, 3).unwrap();
        agreement.put_stale_behind(&found);
        (agreement.is_enough(&found, 0b111, true), agreement.in_sync, agreement.mark)
    };
    assert_eq!(of(0), (true, vec![1], 0));
    // The writer died while it raised the mark.
    assert_eq!(of(1), (true, vec![1], 1));
    assert_eq!(of(2), (false, vec![], 2));
}

#[test]
fn whom_a_promotion_left_out_may_have_what_the_members_lack() {
    let first = made(2);
    let before = opened(&first, &[0, 1]);
    let outside = |state: &PoolState, member: &PoolState| Outsider::of(1, state, &[line(member)]);
    // It was removed.
    assert_eq!(outside(&before, &opened(&opened(&before, &[0]), &[0, 2])), Outsider::Left);
    let promoted = opened(&before, &[2]);
    let since = opened(&opened(&promoted, &[2, 3]), &[3]);
    for member in [&promoted, &since, &opened(&announced(&before, &[]), &[2])] {
        assert_eq!(outside(&before, member), Outsider::Superseded);
    }
    assert_eq!(outside(&opened(&before, &[1]), &since), Outsider::WentOn);
    assert_eq!(outside(&first, &since), Outsider::Superseded);
    assert_eq!(outside(&before, &opened(&made(2), &[0])), Outsider::Unrelated);
    // A later member, of which the promotion tells nothing.
    let added = opened(&promoted, &[1, 2]);
    assert_eq!(outside(&added, &opened(&added, &[2])), Outsider::Left);
}
