//! The map of write intent: what a crash leaves of a change, and when it is believed.

use pmof_control::{INTENT_OFFSET, IntentLayout};

use super::*;
use crate::{
    engine::{Change, bits_of, read_map},
    store::{settle, state::perform},
};

const MIB: u64 = 1 << 20;
/// Three words of extents.
const SIZE_BYTES: u64 = 80 * MIB;

/// The maps that crashes may leave of a change of `old`, `keep` of whose events take place, and those that they may leave at its end.
fn maps_left(
    old: [u32; 3],
    (change, new): (Change, [u32; 3]),
    keep: impl Fn(&Event) -> bool,
) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let mut image = vec![0; DATA_OFFSET as usize];
    for (index, bits) in old.into_iter().enumerate() {
        let at = INTENT_OFFSET as usize + 8 * index;
        image[at..at + 8].copy_from_slice(&IntentLayout::encode(index, bits).to_le_bytes());
    }
    let recorded = ShadowMedium::from_image(image.clone(), MediumKind::DevDax).expect("a medium");
    let outputs = change.outputs(PoolFormat::Three, &map(&recorded), 0, &new);
    for output in &outputs {
        perform(&recorded, output).expect("changed");
    }
    let replayed = ShadowMedium::from_image(image, MediumKind::DevDax).expect("a medium");
    let (mut all, mut last) = (Vec::new(), Vec::new());
    for event in recorded.trace().iter().filter(|event| keep(event)) {
        replay(&replayed, event);
        let map_of = |image: Vec<u8>| {
            let medium = ShadowMedium::from_image(image, MediumKind::DevDax).expect("a medium");
            bits_of(&map(&medium))
        };
        last = replayed.crash_images(500).map(map_of).collect();
        all.extend(last.iter().cloned());
    }
    (all, last)
}

fn map(medium: &dyn Medium) -> Vec<u8> {
    perform(medium, &read_map(&new_header(&new_pool(SIZE_BYTES)).expect("it fits"))).expect("a map")
}

fn has_all(map: &[u32], bits: [u32; 3]) -> bool {
    map.iter().zip(bits).all(|(have, bits)| have & bits == bits)
}

#[test]
fn a_crash_takes_back_no_bit_that_was_raised() {
    let raise = (Change::Raise, [2, 0, 8]);
    let (old, new) = ([1, 1 << 31, 0], [3, 1 << 31, 8]);
    let (all, last) = maps_left(old, raise, |_| true);
    assert!(all.iter().all(|map| has_all(map, old)), "{all:?}");
    assert!(all.contains(&old.to_vec()) && all.contains(&vec![3, 1 << 31, 0]), "some crash comes in between");
    assert!(!last.is_empty() && last.iter().all(|map| *map == new), "{last:?}");
    // The controls: without write-back or fence it is not durable when it is answered.
    for step in [|event: &Event| matches!(event, Event::WriteBack { .. }), |event: &Event| *event == Event::Fence] {
        let (_, last) = maps_left(old, raise, |event| !step(event));
        assert!(last.contains(&old.to_vec()), "{last:?}");
    }
}

#[test]
fn a_crash_in_clearing_leaves_at_least_what_is_to_stay() {
    let (old, stay) = ([7, u32::MAX, 8], [4, 0, 8]);
    let (all, _) = maps_left(old, (Change::Clear, [4, 0, 8]), |_| true);
    assert!(all.iter().all(|map| has_all(map, stay)), "{all:?}");
    assert!(all.contains(&old.to_vec()) && all.contains(&stay.to_vec()));
}

#[test]
fn a_wiped_map_says_that_all_may_differ() {
    let (all, last) = maps_left([7, 0, 8], (Change::Wipe, [0; 3]), |_| true);
    assert!(all.iter().all(|map| has_all(map, [7, 0, 8])), "{all:?}");
    assert!(last.iter().all(|map| *map == [u32::MAX; 3]), "{last:?}");
}

fn big(store: &PoolStore) -> OpenPool {
    store.create(&name("orders"), &new_pool(SIZE_BYTES), "the test".to_owned()).expect("a pool")
}

fn epoch(number: u128) -> Epoch {
    Epoch { id: Uuid::from_u128(number), members: 0b10 }
}

const ALL: [u32; 3] = [u32::MAX; 3];

#[test]
fn a_map_is_believed_of_a_writer_that_keeps_it() {
    let (_root, store) = fresh();
    let mut pool = big(&store);
    assert_eq!(pool.intent(0), ALL, "no writer keeps it");
    drop(pool);
    let mut pool = open(&store, "orders", OpenFor::Write).expect("the pool");
    pool.clear_intent(Durability::PowerFailure, 0, &[0; 3]).expect("cleared");
    pool.begin(epoch(2), 2, &[]).expect("begun");
    pool.raise_intent(1, &[4, 1, 77]).expect("raised");
    assert_eq!(pool.intent(0), [0, 4, 1]);
    assert_eq!((pool.intent(1), pool.intent(3)), (vec![4, 1], vec![]));
    drop(pool);
    // The next opening sees it, until it writes without keeping it.
    let mut pool = open(&store, "orders", OpenFor::Write).expect("the pool");
    assert_eq!(pool.intent(0), [0, 4, 1]);
    pool.begin(epoch(3), 3, &[]).expect("begun");
    assert_eq!(pool.intent(0), ALL);
    drop(pool);
    let mut reader = open(&store, "orders", OpenFor::Read).expect("the pool");
    assert!(matches!(reader.raise_intent(0, &[1]), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(reader.clear_intent(Durability::PowerFailure, 0, &[1]), Err(StoreError::ReadOnly { .. })));
}

#[test]
fn what_is_less_durable_than_the_medium_can_make_it_keeps_its_bits() {
    let (_root, store) = fresh();
    let mut pool = big(&store);
    pool.clear_intent(Durability::PowerFailure, 0, &[3; 3]).expect("cleared");
    pool.clear_intent(Durability::Visible, 0, &[4, 0, 0]).expect("kept");
    assert_eq!(pool.intent(0), [7, 3, 3]);
}

#[test]
fn settling_a_range_cuts_no_folio() {
    let settled = |ranges: &[std::ops::Range<u64>]| settle::settled_ranges(ranges, DATA_OFFSET, 81 * MIB);
    assert_eq!(settled(&[]), []);
    assert_eq!(settled(&[3 * MIB..4 * MIB, 9 * MIB..10 * MIB]), [2 * MIB..6 * MIB, 8 * MIB..12 * MIB]);
    assert_eq!(settled(&[0..MIB, 2 * MIB..3 * MIB, 79 * MIB..80 * MIB]), [0..4 * MIB, 78 * MIB..81 * MIB]);
}
