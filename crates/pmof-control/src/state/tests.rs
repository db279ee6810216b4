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
