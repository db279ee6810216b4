use proptest::prelude::*;

use super::*;

/// As programs wrote it that kept each state in one slot.
const GOLDEN_2: &[u8] = include_bytes!("../../tests/golden/pool_state_v2.bin");
const GOLDEN_3: &[u8] = include_bytes!("../../tests/golden/pool_state_v3.bin");

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
fn page_of(states: &[(&PoolState, u64)], copies: u8) -> Vec<u8> {
    let mut page = vec![0; STATE_BYTES];
    for (state, sequence) in states {
        let (offset, slot) = state.slot(*sequence, copies);
        page[offset..offset + SLOT_BYTES].copy_from_slice(&slot);
    }
    page
}

fn page(states: &[(&PoolState, u64)]) -> Vec<u8> {
    page_of(states, COPIES)
}

fn old_page(states: &[(&PoolState, u64)]) -> Vec<u8> {
    page_of(states, 0)
}

fn closed() -> PoolState {
    PoolState { is_open: false, ..sample() }
}

fn read(page: &[u8]) -> Result<(PoolState, u64), HeaderError> {
    PoolState::read(PoolFormat::Two, 3, page)
}

#[test]
fn more_than_half_is_a_majority() {
    for (members, made, expected) in
        [(1, 1, true), (1, 2, false), (2, 3, true), (2, 4, false), (3, 4, true), (32, 64, false), (33, 64, true)]
    {
        assert_eq!(Epoch::new(Uuid::new_v4(), 0..members).is_majority(made), expected, "{members} of {made}");
    }
}

#[test]
fn the_golden_pages_are_read_and_written() {
    assert!(old_page(&[(&closed(), 4), (&sample(), 5)]) == GOLDEN_2, "a version is read for ever");
    assert_eq!(read(GOLDEN_2), Ok((sample(), 5)));
    assert!(!PoolState::is_in_both_slots(GOLDEN_2));
    let mut written = vec![0; STATE_BYTES];
    for (offset, slot) in sample().slots(5) {
        written[offset..offset + SLOT_BYTES].copy_from_slice(&slot);
    }
    assert!(written == GOLDEN_3, "the format of the state page changed");
    assert_eq!(read(GOLDEN_3), Ok((sample(), 6)));
    assert!(PoolState::is_in_both_slots(GOLDEN_3));
}

#[test]
fn the_newest_slot_counts() {
    for sequence in 1..10 {
        let both = page(&[(&sample(), sequence), (&closed(), sequence + 1)]);
        assert_eq!(read(&both), Ok((closed(), sequence + 1)));
        assert!(!PoolState::is_in_both_slots(&both), "a crash came between them");
    }
}

/// The first slot of a change is torn, or the second, or neither.
#[test]
fn a_torn_change_leaves_the_state_before_or_the_new_one() {
    let before = page(&[(&closed(), 1), (&closed(), 2)]);
    let next = PoolState { mark: 9, ..closed() };
    let mut torn = before.clone();
    for (written, (offset, slot)) in next.slots(3).into_iter().enumerate() {
        for torn_at in (0..=SLOT_BYTES).step_by(8) {
            torn[offset..offset + torn_at].copy_from_slice(&slot[..torn_at]);
            let (state, sequence) = read(&torn).expect("one slot is whole");
            let written_slot = offset..offset + SLOT_BYTES;
            let is_whole = torn[written_slot.clone()] == slot;
            let is_torn = !is_whole && torn[written_slot.clone()] != before[written_slot];
            assert!(!is_torn || state.is_open, "{written}, {torn_at}: it did not end in order");
            let is_new = written == 1 || is_whole;
            assert_eq!(sequence, 2 + u64::from(is_new) + u64::from(written == 1 && is_whole), "{written}, {torn_at}");
            assert_eq!(PoolState { is_open: false, ..state }, if is_new { next.clone() } else { closed() });
        }
    }
    assert!(PoolState::is_in_both_slots(&torn));
}

#[test]
fn a_flipped_bit_in_a_slot_takes_nothing_back() {
    let whole = page(&[(&sample(), 7), (&sample(), 8)]);
    for at in 0..STATE_BYTES {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        assert_eq!(read(&flipped).map(|(state, _)| state), Ok(sample()), "{at}");
        assert!(!PoolState::is_in_both_slots(&flipped), "{at}");
        flipped[(at + SLOT_BYTES) % STATE_BYTES] ^= 0x10;
        assert_eq!(read(&flipped), Err(HeaderError::BadState), "{at}");
    }
    let both_closed = page(&[(&closed(), 7), (&closed(), 8)]);
    for slot in [0, SLOT_BYTES] {
        let mut zeroed = both_closed.clone();
        zeroed[slot..slot + SLOT_BYTES].fill(0);
        assert_eq!(read(&zeroed).map(|(state, _)| state), Ok(sample()), "as after any end that was not in order");
    }
    assert_eq!(read(&[0; STATE_BYTES]), Err(HeaderError::BadState));
    assert_eq!(read(&whole[..100]), Err(HeaderError::BadState));
}

/// The damaged slot may hold a newer state than the other, by which this replica alone has what was acknowledged; or it was torn by a crash.
#[test]
fn a_damaged_slot_of_an_earlier_program_is_not_guessed_at() {
    let old = old_page(&[(&closed(), 7), (&sample(), 8)]);
    for at in 0..STATE_BYTES {
        let mut flipped = old.clone();
        flipped[at] ^= 0x10;
        assert_eq!(read(&flipped), Err(HeaderError::UncertainState), "{at}");
    }
    // A pool that never had another replica has none that could be taken for the newer one.
    let alone = PoolState::new(Uuid::from_u128(1), 1);
    let mut flipped = old_page(&[(&alone, 1), (&PoolState { mark: 1, ..alone.clone() }, 2)]);
    flipped[10] ^= 1;
    assert_eq!(PoolState::read(PoolFormat::Three, 1, &flipped), Ok((alone.clone(), 1)));
    assert_eq!(PoolState::read(PoolFormat::Three, 2, &flipped), Err(HeaderError::UncertainState));
    let with_other = PoolState { ancestors: vec![Epoch { members: 0b11, ..alone.epoch }], ..alone };
    let mut flipped = old_page(&[(&with_other, 1), (&with_other, 2)]);
    flipped[10] ^= 1;
    assert_eq!(PoolState::read(PoolFormat::Three, 1, &flipped), Err(HeaderError::UncertainState));
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

/// Two threads of its writer told it of two epochs, and the first comes last.
#[test]
fn what_is_confirmed_stays_so_when_an_older_one_comes_late() {
    let epoch = |number: u128, members| Epoch { id: Uuid::from_u128(number), members };
    let (first, next) = (epoch(2, 0b011), epoch(3, 0b001));
    let parent = PoolState::new(Uuid::from_u128(1), 3);
    let at_first = parent.begun(2, first, 2, &[parent.epoch]).confirmed(2, first.id).unwrap();
    let at_next = at_first.begun(2, next, 3, &[first, parent.epoch]).confirmed(2, next.id).unwrap();
    let late = at_next.begun(2, first, 2, &[parent.epoch]);
    assert_eq!((&late, late.confirmed(2, first.id)), (&at_next, None));
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

/// An opener had seen this replica before that epoch was confirmed here, and told another one that it was given up. This one may be the only member that has everything.
#[test]
fn a_confirmed_epoch_that_others_give_up_leaves_a_replica_where_it_was() {
    let epoch = |number: u128, members| Epoch { id: Uuid::from_u128(number), members };
    let (parent, own, next) = (epoch(1, 0b111), epoch(2, 0b001), epoch(3, 0b001));
    let given_up = Epoch { members: 0, ..own };
    let begun = |index, ancestors: &[Epoch]| {
        let confirmed = PoolState::new(parent.id, 3).begun(index, own, 2, &[parent]).confirmed(index, own.id).unwrap();
        confirmed.begun(index, next, 2, ancestors)
    };
    assert!(!begun(0, &[parent, given_up]).is_behind);
    assert!(begun(1, &[parent, given_up]).is_behind, "it was behind by its own");
    assert!(begun(0, &[parent]).is_behind, "the others know nothing of it");
    assert!(begun(0, &[parent, epoch(4, 0b110), given_up]).is_behind, "it was given up before");
    // With one that was announced behind it, too.
    let own = PoolState::new(parent.id, 3).begun(0, own, 2, &[parent]).confirmed(0, own.id).unwrap();
    let behind_own = own.begun(0, epoch(5, 0b001), 3, &[own.epoch, parent]);
    let both = [parent, Epoch { members: 0, ..behind_own.epoch }, given_up];
    assert!(!behind_own.begun(0, next, 2, &both).is_behind);
    assert!(behind_own.begun(0, next, 2, &both[..2]).is_behind, "its parent is not given up");
    assert!(begun(0, &[epoch(4, 0b110), parent, given_up]).is_behind, "they went on without it");
}

/// Before the next mark is raised nothing else says that this replica has what an older copy lacks.
#[test]
fn a_mark_outlives_each_announcement() {
    let epoch = |number: u128, members| Epoch { id: Uuid::from_u128(number), members };
    let (parent, own, next, sibling) = (epoch(1, 0b111), epoch(2, 0b011), epoch(3, 0b111), epoch(4, 0b011));
    let in_sync = PoolState { mark: 9, ..PoolState::new(parent.id, 3) };
    let begun = in_sync.begun(1, own, 2, &[parent]);
    let told_again = begun.confirmed(1, own.id).unwrap();
    let announced = told_again.begun(1, next, 3, &[own, parent]);
    let given_up = announced.begun(1, own, 2, &[parent]);
    assert!(given_up.is_confirmed);
    let of_another_line = in_sync.begun(1, next, 5, &[epoch(7, 0b100)]);
    let states = [
        ("announced", begun.clone()),
        ("beside one that was announced", begun.begun(1, sibling, 2, &[parent])),
        ("confirmed", told_again.clone()),
        ("announced again", told_again.begun(1, own, 2, &[parent])),
        ("given up", given_up.clone()),
        ("given up and announced", given_up.begun(1, sibling, 3, &[own, parent])),
        ("of another line", of_another_line),
        ("closed", given_up.closed()),
    ];
    for (what, state) in states {
        assert_eq!(state.mark, 9, "{what}");
    }
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
        sequence in 1..u64::MAX,
        is_confirmed: bool,
        is_open: bool,
        is_behind: bool,
        mark: u64,
        ancestors in proptest::collection::vec(any::<(u128, u64)>(), 0..=ANCESTORS_MAX),
    ) {
        let of = |(number, members)| Epoch { id: Uuid::from_u128(number), members };
        let ancestors = ancestors.into_iter().map(of).collect();
        let state = PoolState { epoch: of(epoch), opening, is_confirmed, is_open, is_behind, mark, ancestors };
        prop_assert_eq!(read(&page(&[(&state, sequence), (&state, sequence + 1)])), Ok((state, sequence + 1)));
    }

    #[test]
    fn any_bytes_give_a_state_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..STATE_BYTES + 9)) {
        let _ = read(&bytes);
    }
}
