use proptest::prelude::*;

use super::*;

const GOLDEN: &[u8] = include_bytes!("../../tests/golden/pool_roster_v3.bin");

fn member(index: u16, url: &str) -> RosterMember {
    let replica_uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_0000 + u128::from(index));
    RosterMember { index, role: Role::Data, replica_uuid, url: url.to_owned(), domain: format!("host-{index}") }
}

fn sample() -> Roster {
    let witness = RosterMember { role: Role::Witness, ..member(4, "") };
    Roster {
        version: 7,
        notes: 3,
        members: vec![member(0, "tcp://a:7204/orders"), witness],
        change: None,
        forced: None,
        is_uncertain: false,
    }
}

fn changing() -> Roster {
    sample().adding(member(2, "shm:///run/pmof.sock?pool=orders"), Uuid::from_u128(9))
}

fn is_in_both_slots(slots: &[u8]) -> bool {
    Roster::read_kept(3, slots).is_ok_and(|kept| kept.is_in_all_copies)
}

/// Slots with these rosters by their sequence numbers.
fn slots(rosters: &[(&Roster, u64)]) -> Vec<u8> {
    slots_of(rosters, COPIES)
}

/// As programs wrote them that kept each roster in one slot.
fn old_slots(rosters: &[(&Roster, u64)]) -> Vec<u8> {
    slots_of(rosters, 0)
}

fn slots_of(rosters: &[(&Roster, u64)], copies: u8) -> Vec<u8> {
    let mut slots = vec![0; ROSTER_BYTES];
    for (roster, sequence) in rosters {
        let (offset, slot) = roster.slot(*sequence, copies).unwrap();
        slots[offset..offset + SLOT_BYTES].copy_from_slice(&slot);
    }
    slots
}

#[test]
fn the_golden_slots_are_read_and_written() {
    // Without the zeros between the members and the checksum.
    let expected = old_slots(&[(&sample(), 4), (&changing(), 5)]);
    let brief: Vec<u8> =
        expected.chunks(SLOT_BYTES).flat_map(|slot| [&slot[..256], &slot[CHECKSUM_OFFSET..]].concat()).collect();
    assert!(brief == GOLDEN, "a version is read for ever");
    assert_eq!(Roster::read(3, &expected), Ok((changing(), 5)));
    let mut copied = expected;
    for slot in copied.chunks_mut(SLOT_BYTES) {
        slot[54] = 2;
        let checksum = crc32c::crc32c(&slot[..CHECKSUM_OFFSET]).to_le_bytes();
        slot[CHECKSUM_OFFSET..].copy_from_slice(&checksum);
    }
    assert!(slots(&[(&sample(), 4), (&changing(), 5)]) == copied, "the format of the roster changed");
}

#[test]
fn without_a_roster_the_members_are_those_that_the_pool_was_made_with() {
    let (roster, sequence) = Roster::read(3, &vec![0; ROSTER_BYTES]).unwrap();
    assert_eq!((roster.version, roster.indexes(), sequence), (0, 0b111, 0));
    assert!(roster.member(2).unwrap().is(2, Uuid::from_u128(5)), "whichever replica it is");
}

/// The first slot of a change is torn, or the second, or neither.
#[test]
fn a_torn_change_leaves_the_roster_before_or_the_new_one() {
    let mut torn = slots(&[(&sample(), 1), (&sample(), 2)]);
    let before = torn.clone();
    assert!(is_in_both_slots(&before));
    for (written, (offset, slot)) in changing().slots(3).unwrap().into_iter().enumerate() {
        for torn_at in (0..=SLOT_BYTES).step_by(8) {
            torn[offset..offset + torn_at].copy_from_slice(&slot[..torn_at]);
            let is_new = written == 1 || torn[offset..offset + SLOT_BYTES] == slot;
            let (roster, _) = Roster::read(3, &torn).unwrap();
            assert_eq!(roster, if is_new { changing() } else { sample() }, "{written}, {torn_at}");
        }
    }
    assert!(is_in_both_slots(&torn));
    let mut first = vec![0; ROSTER_BYTES];
    let (offset, slot) = sample().slot(1, COPIES).unwrap();
    first[offset..offset + 64].copy_from_slice(&slot[..64]);
    let uncertain = Roster { is_uncertain: true, ..Roster::made(3) };
    assert_eq!(Roster::read(3, &first), Ok((uncertain, 0)), "the first one was torn");
}

#[test]
fn damage_of_one_slot_takes_nothing_back_and_of_both_is_detected() {
    let whole = slots(&[(&sample(), 1), (&sample(), 2)]);
    for at in [0, 8, 16, 24, 51, 56, 68, 200, CHECKSUM_OFFSET] {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        assert_eq!(Roster::read(3, &flipped), Ok((sample(), 1)), "{at}");
        assert!(!is_in_both_slots(&flipped));
        flipped[SLOT_BYTES + at] ^= 0x10;
        assert_eq!(Roster::read(3, &flipped), Err(HeaderError::BadRoster), "{at}");
    }
    assert_eq!(Roster::read(3, &whole[..100]), Err(HeaderError::BadRoster));
}

/// The damaged slot may have held a newer roster than the other, or it was torn by a crash.
#[test]
fn a_damaged_slot_of_an_earlier_program_makes_the_other_uncertain() {
    let old = old_slots(&[(&sample(), 1), (&changing(), 2)]);
    assert_eq!(Roster::read(3, &old), Ok((changing(), 2)));
    assert!(!is_in_both_slots(&old_slots(&[(&sample(), 1), (&sample(), 2)])), "it has yet to say so");
    for at in [0, 8, 16, 24, 51, COPIES_OFFSET, 56, 68, 200, CHECKSUM_OFFSET] {
        for (slot, other) in [(0, (sample(), 1)), (1, (changing(), 2))] {
            let mut flipped = old.clone();
            flipped[slot * SLOT_BYTES + at] ^= 0x10;
            let expected = (Roster { is_uncertain: true, ..other.0 }, other.1);
            assert_eq!(Roster::read(3, &flipped), Ok(expected), "{slot}, {at}");
        }
    }
    // It stays so when it is copied, until a roster is set that is believed.
    let uncertain = Roster { is_uncertain: true, ..sample() };
    let copied = slots(&[(&uncertain, 3), (&uncertain, 4)]);
    assert_eq!(Roster::read(3, &copied), Ok((uncertain.clone(), 4)));
    assert_eq!(Roster::decode(&uncertain.encode().unwrap()), Ok(uncertain.clone()));
    assert_eq!(uncertain.certain(), sample());
}

#[test]
fn a_change_holds_once_its_epoch_is_confirmed() {
    let adding = changing();
    assert_eq!((adding.indexes(), adding.next_indexes()), (0b10001, 0b10101));
    let added = adding.settled(|epoch| epoch == Uuid::from_u128(9));
    assert_eq!((added.version, added.indexes(), added.change), (8, 0b10101, None));
    assert_eq!(adding.settled(|_| false), sample());
    let removing = added.removing(4, Uuid::from_u128(10));
    assert_eq!((removing.indexes(), removing.next_indexes()), (0b10101, 0b00101));
    let removed = removing.settled(|_| true);
    assert_eq!((removed.version, removed.indexes(), removed.member(4)), (9, 0b00101, None));
    assert_eq!(removing.settled(|_| false), added);
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let none = Roster { members: Vec::new(), ..sample() };
    assert_eq!(none.encode(), Err(RosterError::Empty));
    let long = Roster { members: vec![member(0, &"u".repeat(MAX_MEMBER_URL_BYTES + 1))], ..sample() };
    assert_eq!(long.encode(), Err(RosterError::TooLong { members: 1 }));
    let members = |count, url_bytes| (0..count).map(|index| member(index, &"u".repeat(url_bytes))).collect();
    let full = Roster { members: members(64, 200), ..sample() };
    assert_eq!(Roster::decode(&full.encode().unwrap()), Ok(full));
    let too_much = Roster { members: members(64, 240), ..sample() };
    assert_eq!(too_much.encode(), Err(RosterError::TooLong { members: 64 }));
    let twice = Roster { members: vec![member(1, ""), member(1, "")], ..sample() };
    assert!(matches!(twice.encode(), Err(RosterError::Malformed { .. })));
}

#[test]
fn a_forced_opening_lies_behind_the_members() {
    let forced = Forced { opening: 9, unix_ms: 10, epoch: Uuid::from_u128(11), went_on: 1, left_out: 2 };
    let marked = Roster { forced: Some(forced), ..sample() };
    let (plain, encoded) = (sample().encode().unwrap(), marked.encode().unwrap());
    assert_eq!((encoded.len(), encoded[35], plain[35]), (plain.len() + 48, 1, 0));
    assert_eq!(encoded[plain.len()..][..16], [9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded[plain.len() + 32..], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Roster::decode(&encoded), Ok(marked.clone()));
    // A change of the members keeps it.
    let changed = marked.adding(member(2, ""), Uuid::from_u128(3)).settled(|_| true);
    assert_eq!(changed.forced, Some(forced));
    // As a promotion leaves it: one member, without three.
    let promoted = Roster { members: vec![member(3, "")], ..sample() }.forced_by(Forced { left_out: 0b111, ..forced });
    assert_eq!((promoted.forgone_count(), promoted.cleared().forgone_count(), marked.forgone_count()), (2, 0, 0));
    // Witnesses keep no bytes.
    let witness = |index| RosterMember { role: Role::Witness, ..member(index, "") };
    let watched = Roster { members: vec![member(3, ""), witness(4), witness(5)], ..promoted };
    assert_eq!(watched.forgone_count(), 2);
    // One that is cut off, or of another kind, is no roster at all: the slot before counts.
    for garbled in [&encoded[..encoded.len() - 1], &[&encoded[..35], &[5], &encoded[36..]].concat()] {
        assert!(matches!(Roster::decode(garbled), Err(RosterError::Malformed { .. })));
    }
    let mut slots = slots(&[(&sample(), 1), (&marked, 2)]);
    slots[16 + plain.len() + 40] ^= 1;
    assert_eq!(Roster::read(3, &slots), Ok((sample(), 1)));
}

#[test]
fn a_spare_and_an_asynchronous_member_count_for_nothing() {
    let mut roster = sample();
    roster
        .members
        .extend([Role::Asynchronous, Role::Spare].map(|role| RosterMember { role, ..member(5 + role as u16, "") }));
    assert_eq!((roster.indexes(), roster.counted().count()), (0b10001, 2));
    assert_eq!(Roster::decode(&roster.encode().unwrap()), Ok(roster));
}

fn any_roster() -> impl Strategy<Value = Roster> {
    let one = (0..64_u16, 0..4_u8, any::<u128>(), "[a-z:/]{0,100}", "[a-z]{0,20}");
    let members = proptest::collection::vec(one, 1..20);
    let change = proptest::option::of((any::<u128>(), any::<bool>()));
    let forced = proptest::option::of((any::<u64>(), any::<u128>(), any::<u64>()));
    (any::<(u64, u64, bool)>(), members, change, forced).prop_map(|(numbers, members, change, forced)| {
        let (version, notes, is_uncertain) = numbers;
        let of = |(index, role, uuid, url, domain)| {
            let role = [Role::Data, Role::Witness, Role::Asynchronous, Role::Spare][usize::from(role)];
            RosterMember { index, role, replica_uuid: Uuid::from_u128(uuid), url, domain }
        };
        let mut members: Vec<RosterMember> = members.into_iter().map(of).collect();
        members.sort_by_key(|member| member.index);
        members.dedup_by_key(|member| member.index);
        let index = members[0].index;
        let change = change.map(|(epoch, is_added)| RosterChange { epoch: Uuid::from_u128(epoch), index, is_added });
        let forced = forced.map(|(opening, epoch, went_on)| Forced {
            opening,
            unix_ms: opening ^ 1,
            epoch: Uuid::from_u128(epoch),
            went_on,
            left_out: !went_on,
        });
        Roster { version, notes, members, change, forced, is_uncertain }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(roster in any_roster(), sequence in 1_u64..) {
        prop_assert_eq!(Roster::decode(&roster.encode().unwrap()), Ok(roster.clone()));
        prop_assert_eq!(Roster::read(3, &slots(&[(&roster, sequence)])), Ok((roster, sequence)));
    }

    #[test]
    fn any_bytes_give_a_roster_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(roster) = Roster::decode(&bytes) {
            prop_assert_eq!(Roster::decode(&roster.encode().unwrap()), Ok(roster));
        }
    }
}
