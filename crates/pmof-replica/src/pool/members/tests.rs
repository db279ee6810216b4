use pmof_control::{Epoch, PoolState};

use super::*;

/// How many losses so many replicas survive that have such states: whether each is in sync, and whether it is here.
fn survived<const N: usize>(replicas: [(bool, bool); N]) -> Option<usize> {
    let in_sync = (0..N as u16).filter(|index: &u16| replicas[usize::from(*index)].0);
    let epoch = Epoch { id: Uuid::from_u128(2), ..Epoch::new(Uuid::new_v4(), in_sync) };
    let of = |is_in_sync: bool| PoolState {
        epoch,
        opening: 2,
        is_confirmed: true,
        is_open: true,
        is_behind: !is_in_sync,
        mark: 0,
        ancestors: vec![Epoch { id: Uuid::from_u128(1), members: (1 << N) - 1 }],
    };
    let states = replicas.map(|(is_in_sync, _)| of(is_in_sync));
    let here = (0..N as u16).filter(|index: &u16| replicas[usize::from(*index)].1);
    let found: Vec<_> = here.map(|index| Found { index, state: &states[usize::from(index)] }).collect();
    losses_survived(&agree(&found, N as u16).ok()?, &found, &Electorate::of(&[], N as u16))
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

/// Of four, three have to know of an epoch: a fourth survives no more losses than three.
#[test]
fn an_even_number_survives_no_more_than_the_odd_one_below() {
    let (in_sync, behind, lost) = ((true, true), (false, true), (true, false));
    assert_eq!(survived([in_sync; 4]), Some(1));
    assert_eq!(survived([in_sync, in_sync, in_sync, behind]), Some(1));
    assert_eq!(survived([in_sync, in_sync, in_sync, lost]), Some(0));
    assert_eq!(survived([in_sync, in_sync, lost, lost]), None, "it opens for reading only");
    assert_eq!(survived([in_sync; 2]), Some(0));
    assert_eq!(survived([in_sync; 5]), Some(2));
}
