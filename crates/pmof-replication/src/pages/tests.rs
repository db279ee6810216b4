use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const SIZE_BYTES: u64 = 3 * CHUNK_BYTES - 1000;

/// The pages of the map, in order.
fn pages(map: &PageMap) -> Vec<u64> {
    let (mut pages, mut from) = (Vec::new(), 0);
    while let Some(page) = map.next(from) {
        pages.push(page);
        from = page + 1;
    }
    pages
}

#[test]
fn a_byte_marks_its_page() {
    let map = PageMap::new(SIZE_BYTES);
    assert!(map.is_empty() && map.take(0, u64::MAX).is_none());
    for range in [0..1, 4095..4097, CHUNK_BYTES..CHUNK_BYTES, CHUNK_BYTES - 1..CHUNK_BYTES + 1] {
        map.mark(range);
    }
    map.mark(SIZE_BYTES - 1..SIZE_BYTES + 9000);
    let chunk_pages = CHUNK_BYTES / PAGE_BYTES;
    assert_eq!(pages(&map), [0, 1, chunk_pages - 1, chunk_pages, 3 * chunk_pages - 1]);
    assert_eq!(map.count_bytes(), 5 * PAGE_BYTES);
    assert_eq!(map.take(0, u64::MAX), Some(0..8192));
    assert_eq!(map.take(0, u64::MAX), Some(CHUNK_BYTES - PAGE_BYTES..CHUNK_BYTES + PAGE_BYTES));
    assert_eq!(map.take(0, u64::MAX), Some(SIZE_BYTES / PAGE_BYTES * PAGE_BYTES..SIZE_BYTES));
    assert!(map.is_empty());
}

#[test]
fn a_full_map_has_every_byte_once() {
    let map = PageMap::full(SIZE_BYTES);
    let mut end = 0;
    while let Some(range) = map.take(0, 1 << 20) {
        assert_eq!(range.start, end);
        end = range.end;
    }
    assert_eq!(end, SIZE_BYTES);
}

proptest! {
    #[test]
    fn it_is_a_set_of_pages(
        ranges in proptest::collection::vec((0..SIZE_BYTES, 0_u64..3 << 20), 0..20),
        from in 0..SIZE_BYTES,
        limit_bytes in 0_u64..2 << 20,
    ) {
        let (map, mut model) = (PageMap::new(SIZE_BYTES), BTreeSet::new());
        for (begin, len_bytes) in ranges {
            let end = (begin + len_bytes).min(SIZE_BYTES);
            map.mark(begin..end);
            if begin < end {
                model.extend(begin / PAGE_BYTES..=(end - 1) / PAGE_BYTES);
            }
        }
        prop_assert_eq!(map.count_bytes(), model.len() as u64 * PAGE_BYTES);
        let probe = from..from + limit_bytes.max(1);
        let pages_of = |range: &Range<u64>| range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        prop_assert_eq!(map.meets(&probe), model.range(pages_of(&probe)).next().is_some());
        let others = PageMap::new(SIZE_BYTES);
        others.add(&map);
        others.unmark(&probe);
        let is_other = |page: &u64| !pages_of(&probe).contains(page);
        prop_assert_eq!(pages(&others), model.iter().copied().filter(is_other).collect::<Vec<_>>());
        others.clear();
        prop_assert!(others.is_empty());
        let copy = PageMap::new(SIZE_BYTES);
        copy.add(&map);
        prop_assert_eq!(pages(&copy), model.iter().copied().collect::<Vec<_>>());
        let taken = map.take(from, limit_bytes);
        let first = model.range(from / PAGE_BYTES..).next().copied();
        prop_assert_eq!(taken.as_ref().map(|range| range.start / PAGE_BYTES), first);
        if let Some(range) = taken {
            for page in range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) {
                prop_assert!(model.remove(&page));
            }
            prop_assert!(range.end - range.start <= limit_bytes.max(PAGE_BYTES));
        }
        prop_assert_eq!(pages(&map), model.into_iter().collect::<Vec<_>>());
    }
}
