use pmof_control::{Epoch, PoolState};

use super::*;

/// How many losses three replicas survive that have such states: whether each is in sync, and whether it is here.
fn survived(replicas: [(bool, bool); 3]) -> Option<usize> {
    let in_sync = (0..3).filter(|index: &u16| replicas[usize::from(*index)].0);
    let epoch = Epoch { id: Uuid::from_u128(2), ..Epoch::new(in_sync) };
    let of = |is_in_sync: bool| PoolState {
        epoch,
        opening: 2,
        is_confirmed: true,
        is_open: true,
        is_behind: !is_in_sync,
        mark: 0,
        ancestors: vec![Epoch { id: Uuid::from_u128(1), members: 0b111 }],
    };
    let states = replicas.map(|(is_in_sync, _)| of(is_in_sync));
    let here = (0..3).filter(|index: &u16| replicas[usize::from(*index)].1);
    let found: Vec<_> = here.map(|index| Found { index, state: &states[usize::from(index)] }).collect();
    losses_survived(&agree(&found, 3).ok()?, &found, &Electorate::of(&[], 3))
}

#[test]
fn one_in_sync_is_left_and_a_majority_votes() {
    let (in_sync, behind, lost) = ((true, true), (false, true), (true, false));
    assert_eq!(survived([in_sync; 3]), Some(1));
    assert_eq!(survived([in_sync, in_sync, behind]), Some(1));
    assert_eq!(survived([in_sync, behind, behind]), Some(0), "nobody else has everything");
    assert_eq!(survived([in_sync, in_sync, lost]), Some(0));
    assert_eq!(survived([in_sync, lost, lost]), None);
    assert_eq!(survived([behind, behind, lost]), None);
}
