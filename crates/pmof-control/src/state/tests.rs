use proptest::prelude::*;

use super::*;

const GOLDEN: &[u8] = include_bytes!("../../tests/golden/pool_state_v2.bin");

fn sample() -> PoolState {
    let epoch = |number: u128, members| Epoch { id: Uuid::from_u128(number), members };
    PoolState {
        epoch: epoch(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff, 0b101),
        opening: 0x0102_0304_0506_0708,
        is_confirmed: true,
        is_open: true,
        is_behind: false,
        mark: 0x0a0b_0c0d,
        ancestors: vec![epoch(7, 0b111), epoch(6, 0b11)],
    }
}

/// A page with these states in the slots of their sequence numbers.
fn page(states: &[(&PoolState, u64)]) -> Vec<u8> {
    let mut page = vec![0; STATE_BYTES];
    for (state, sequence) in states {
        let (offset, slot) = state.slot(*sequence);
        page[offset..offset + SLOT_BYTES].copy_from_slice(&slot);
    }
    page
}

fn read(page: &[u8]) -> Result<(PoolState, u64), HeaderError> {
    PoolState::read(PoolFormat::Two, 3, page)
}

#[test]
fn more_than_half_is_a_majority() {
    for (members, made, expected) in
        [(1, 1, true), (1, 2, false), (2, 3, true), (2, 4, false), (3, 4, true), (32, 64, false), (33, 64, true)]
    {
        assert_eq!(Epoch::new(0..members).is_majority(made), expected, "{members} of {made}");
    }
}

#[test]
fn the_golden_page_is_read_and_written() {
    let older = PoolState { is_open: false, ..sample() };
    assert!(page(&[(&older, 4), (&sample(), 5)]) == GOLDEN, "the format of the state page changed");
    assert_eq!(read(GOLDEN), Ok((sample(), 5)));
}

#[test]
fn the_newest_slot_counts() {
    let closed = PoolState { is_open: false, ..sample() };
    for sequence in 1..10 {
        let both = page(&[(&sample(), sequence), (&closed, sequence + 1)]);
        assert_eq!(read(&both), Ok((closed.clone(), sequence + 1)));
        assert_eq!(read(&page(&[(&closed, sequence)])), Ok((closed.clone(), sequence)));
    }
}

#[test]
fn a_torn_change_leaves_the_state_before_and_says_that_it_did_not_end_in_order() {
    let closed = PoolState { is_open: false, ..sample() };
    let before = page(&[(&closed, 1), (&closed, 2)]);
    let (offset, slot) = sample().slot(3);
    for torn_at in (0..SLOT_BYTES).step_by(8) {
        let mut torn = before.clone();
        torn[offset..offset + torn_at].copy_from_slice(&slot[..torn_at]);
        let (state, sequence) = read(&torn).expect("one slot is whole");
        let is_whole = torn[offset..offset + SLOT_BYTES] == slot || torn == before;
        assert!(is_whole || (state.is_open && sequence == 2), "{torn_at}");
        assert_eq!(PoolState { is_open: false, ..state }, closed, "{torn_at}");
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let whole = page(&[(&sample(), 1)]);
    for at in SLOT_BYTES..STATE_BYTES {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        assert_eq!(read(&flipped), Err(HeaderError::BadState), "{at}");
    }
    assert_eq!(read(&[0; STATE_BYTES]), Err(HeaderError::BadState));
    assert_eq!(read(&whole[..100]), Err(HeaderError::BadState));
}

/// What a target keeps of epochs that its writers begin.
#[test]
fn an_epoch_that_is_only_announced_leaves_a_replica_where_it_was() {
    let epoch = |number: u128, members| Epoch { id: Uuid::from_u128(number), members };
    let (parent, with, without) = (epoch(1, 0b111), epoch(2, 0b111), epoch(3, 0b011));
    let in_sync = PoolState::new(parent.id, 3);
    let behind = in_sync.begun(2, without, 2, &[parent]).confirmed(2, without.id).unwrap();
    assert!(!in_sync.begun(2, without, 2, &[parent]).is_behind && behind.is_behind);
    assert_eq!(in_sync.begun(2, without, 2, &[parent]).confirmed(2, with.id), None);
    // One that is behind is so until an epoch with it is confirmed, however many were announced.
    let joining = behind.begun(2, with, 3, &[without, parent]);
    let again = joining.begun(2, epoch(4, 0b111), 3, &[without, parent]);
    assert!(joining.is_behind && again.is_behind);
    assert!(!again.confirmed(2, Uuid::from_u128(4)).unwrap().is_behind);
    // One in sync is so, beside what was announced.
    assert!(!in_sync.begun(2, without, 2, &[parent]).begun(2, epoch(4, 0b011), 2, &[parent]).is_behind);
    // Of a parent that it does not know it has nothing.
    assert!(in_sync.begun(2, with, 3, &[without, parent]).is_behind);
}

#[test]
fn what_is_confirmed_stays_so_when_it_is_announced_again() {
    let parent = PoolState::new(Uuid::from_u128(1), 3);
    let epoch = Epoch { id: Uuid::from_u128(2), members: 0b011 };
    let state = parent.begun(2, epoch, 2, &[parent.epoch]).confirmed(2, epoch.id).unwrap();
    assert_eq!(state.closed().begun(2, epoch, 2, &[parent.epoch]), state);
}

/// A member that was to join was told of the epoch to come, and is told of the one in force again: should its writer die before it confirms that again, others would go on
/// from the epoch before.
#[test]
fn what_is_confirmed_stays_so_when_what_was_announced_behind_it_is_given_up() {
    let parent = PoolState::new(Uuid::from_u128(1), 3);
    let (epoch, next) = ([2, 3].map(Uuid::from_u128), [0b011, 0b111]);
    let [epoch, next] = [0, 1].map(|at| Epoch { id: epoch[at], members: next[at] });
    let state = parent.begun(2, epoch, 2, &[parent.epoch]).confirmed(2, epoch.id).unwrap();
    let joining = state.begun(2, next, 3, &[epoch, parent.epoch]);
    assert!(!joining.is_confirmed);
    assert_eq!(joining.begun(2, epoch, 2, &[parent.epoch]), state);
    // One that was given up as well is no parent.
    let given_up = Epoch { members: 0, ..epoch };
    let beside = parent.begun(2, next, 2, &[given_up, parent.epoch]);
    assert!(!beside.begun(2, epoch, 2, &[parent.epoch]).is_confirmed);
}

#[test]
fn marks_only_grow() {
    let state = sample();
    assert_eq!([state.mark - 1, state.mark].map(|mark| state.raised(mark)), [None, None]);
    assert_eq!(state.raised(state.mark + 1).map(|state| state.mark), Some(state.mark + 1));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        epoch: (u128, u64),
        opening: u64,
        sequence in 1_u64..,
        is_confirmed: bool,
        is_open: bool,
        is_behind: bool,
        mark: u64,
        ancestors in proptest::collection::vec(any::<(u128, u64)>(), 0..=ANCESTORS_MAX),
    ) {
        let of = |(number, members)| Epoch { id: Uuid::from_u128(number), members };
        let ancestors = ancestors.into_iter().map(of).collect();
        let state = PoolState { epoch: of(epoch), opening, is_confirmed, is_open, is_behind, mark, ancestors };
        prop_assert_eq!(read(&page(&[(&state, sequence)])), Ok((state, sequence)));
    }

    #[test]
    fn any_bytes_give_a_state_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..STATE_BYTES + 9)) {
        let _ = read(&bytes);
    }
}
