use std::ops::Range;

use pmof_mem::{Medium as _, Memory, NewFile};
use proptest::prelude::*;
use tempfile::tempdir_in;

use super::{WINDOW_LEN_BYTES, data_ranges, windows, zero_digests};
use crate::{DIGEST_BLOCK_LEN_BYTES, digests_of};

const BLOCK: u64 = DIGEST_BLOCK_LEN_BYTES;

/// Ranges in order and apart, from lengths of holes and data.
fn ranges(start: u64, end: u64, lens: &[(u64, u64)]) -> Vec<Range<u64>> {
    let mut at = start;
    let mut ranges = Vec::new();
    for (hole, data) in lens {
        let from = (at + hole).min(end);
        at = (from + data).min(end);
        ranges.push(from..at);
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}

fn has(ranges: &[Range<u64>], byte: u64) -> bool {
    ranges.iter().any(|range| range.contains(&byte))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn windows_have_all_data_and_no_common_hole(
        start in 0_u64..200_000,
        len in 0_u64..20 << 20,
        one in prop::collection::vec((1_u64..5 << 20, 1_u64..5 << 20), 0..8),
        other in prop::collection::vec((1_u64..1 << 20, 1_u64..200_000), 0..30),
    ) {
        let end = start + len;
        let data = [ranges(start, end, &one), ranges(start, end, &other)];
        let found: Vec<_> = windows(start..end, &data).collect();
        let mut before = start;
        for window in &found {
            let Range { start: from, end: to } = window.range.clone();
            prop_assert!(before <= from && from < to && to <= end && to - from <= WINDOW_LEN_BYTES);
            prop_assert!((from - start) % BLOCK == 0 && (to == end || (to - start) % BLOCK == 0));
            for block in (from..to).step_by(BLOCK as usize) {
                let block = block..(block + BLOCK).min(to);
                let is_data = data.each_ref().map(|ranges| ranges.iter().any(|one| one.start < block.end && block.start < one.end));
                prop_assert!(is_data[0] || is_data[1], "{block:?} is a hole of both");
                for side in [0, 1] {
                    prop_assert!(!(window.is_hole[side] && is_data[side]), "{block:?} is no hole of {side}");
                }
            }
            for side in [0, 1] {
                prop_assert_eq!(window.is_hole[side], !(from..to).step_by(1000).chain([to - 1]).any(|byte| has(&data[side], byte))
                    && !data[side].iter().any(|one| one.start < to && from < one.end));
            }
            before = to;
        }
        let covered: Vec<_> = found.into_iter().map(|window| window.range).collect();
        for range in data.iter().flatten() {
            for byte in [range.start, range.end - 1, range.start.midpoint(range.end)] {
                prop_assert!(has(&covered, byte), "byte {byte} of data");
            }
        }
    }
}

#[test]
fn digests_of_zeros_are_those_of_zeros() {
    let memory = Memory::anonymous(WINDOW_LEN_BYTES).unwrap();
    for len_bytes in [0, 1, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, WINDOW_LEN_BYTES - 4096, WINDOW_LEN_BYTES] {
        assert_eq!(zero_digests(len_bytes), digests_of(&memory, 0, len_bytes, BLOCK).unwrap(), "{len_bytes}");
    }
}

#[test]
fn data_is_listed_page_by_page() {
    const LEN_BYTES: u64 = 8 << 20;
    let directory = tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("part");
    NewFile::create(&path, LEN_BYTES).unwrap().keep();
    let memory = Memory::open(&path, None).unwrap();
    assert_eq!(data_ranges(&memory, 4096..LEN_BYTES, 9).unwrap(), (vec![], LEN_BYTES));
    let stored = [5000, 1 << 20, (1 << 20) + 30_000, 3 << 20, LEN_BYTES - 1];
    for offset in stored {
        memory.store(offset, b"x").unwrap();
    }
    let (all, end) = data_ranges(&memory, 4096..LEN_BYTES, usize::MAX).unwrap();
    assert!(end == LEN_BYTES && stored.iter().all(|offset| has(&all, *offset)), "{all:?}");
    assert!(all.is_sorted_by(|one, next| one.end + BLOCK <= next.start), "{all:?}");
    let mut paged = Vec::new();
    let mut at = 4096;
    while at < LEN_BYTES {
        let (page, end) = data_ranges(&memory, at..LEN_BYTES, 1).unwrap();
        assert!(page.len() <= 1 && end > at);
        paged.extend(page);
        at = end;
    }
    assert_eq!(paged, all);
    assert_eq!(data_ranges(&memory, 0..4096, 9).unwrap(), (vec![], 4096), "not behind the range");
    let (all, _) = data_ranges(&Memory::anonymous(4096).unwrap(), 10..20, 9).unwrap();
    assert!(all.len() == 1 && all[0] == (10..20), "{all:?}");
}
