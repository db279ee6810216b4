#![expect(clippy::single_range_in_vec_init, reason = "there may be one range of pages")]

use proptest::prelude::*;

use super::*;

const COUNT: u64 = 8192;

fn bytes(pages: Range<u64>) -> Range<u64> {
    pages.start * PAGE_BYTES..pages.end * PAGE_BYTES
}

fn raise(pages: &RaisedPages, changing: &mut ChangingPages, range: Range<u64>) -> Vec<Range<u64>> {
    let missing = pages.missing(changing, &range);
    pages.note_raised(&missing);
    assert!(pages.covers(&range));
    missing
}

fn all() -> (RaisedPages, ChangingPages) {
    (RaisedPages::new(COUNT * PAGE_BYTES), ChangingPages::default())
}

#[test]
fn a_write_raises_its_group_and_a_stream_what_comes_next() {
    let (pages, mut changing) = all();
    assert!(!pages.covers(&(5000 * PAGE_BYTES..5000 * PAGE_BYTES + 1)));
    assert_eq!(raise(&pages, &mut changing, 5000 * PAGE_BYTES..5000 * PAGE_BYTES + 1), [4992..5008]);
    assert_eq!(pages.raised_count(), 16);
    assert_eq!(raise(&pages, &mut changing, bytes(4999..5001)), []);
    let mut told = Vec::new();
    for page in 5008..5050 {
        if !pages.covers(&bytes(page..page + 1)) {
            told.push(raise(&pages, &mut changing, bytes(page..page + 1)));
        }
    }
    assert_eq!(told, [[5008..5012], [5012..5020], [5020..5036], [5036..5068]]);
    // One in 64 is spare, and these are.
    while pages.raised_count() < COUNT / SPARE_SHARE {
        let page = pages.raised_count() * 64;
        raise(&pages, &mut changing, bytes(page..page + 1));
    }
    assert_eq!(raise(&pages, &mut changing, bytes(7777..7778)), [7777..7778]);
    assert_eq!(raise(&pages, &mut changing, bytes(COUNT - 1..COUNT)), [COUNT - 1..COUNT]);
}

#[test]
fn pages_are_taken_out_at_the_second_sweep_behind_a_flush() {
    let (pages, mut changing) = all();
    raise(&pages, &mut changing, bytes(0..16));
    raise(&pages, &mut changing, bytes(100..101));
    let mut sweep = |is_flushed| {
        let mut taken = Vec::new();
        let swept = pages.sweep(&mut changing, &bytes(0..256), is_flushed, &mut taken);
        (taken, swept.is_raised, swept.is_hot)
    };
    assert_eq!(sweep(true), (vec![], true, true));
    assert_eq!(sweep(true), (vec![96..100, 101..112], true, false), "those that nothing was written to");
    assert!(pages.covers(&bytes(3..4)), "it is written again");
    assert_eq!(sweep(false), (vec![], true, true), "the flush failed");
    assert_eq!(sweep(true), (vec![0..3, 4..16, 100..101], true, false));
    assert_eq!((pages.raised(), pages.covers(&bytes(4..5))), (vec![3..4], false));
    assert_eq!(sweep(true), (vec![3..4], false, false));
    assert_eq!(pages.raised_count(), 0);
}

proptest! {
    #[test]
    fn ranges_and_words_say_the_same(start in 0..1000_u64, len in 0..300_u64) {
        let pages = start..start + len;
        let found = ranges(words(&pages));
        prop_assert_eq!(found, if len == 0 { vec![] } else { vec![pages] });
    }

    #[test]
    fn what_is_raised_is_told_apart(set in proptest::collection::btree_set(0..500_u64, 0..60)) {
        let (pages, _) = all();
        let single: Vec<_> = set.iter().map(|page| *page..page + 1).collect();
        pages.note_raised(&single);
        let listed: Vec<_> = pages.raised().into_iter().flatten().collect();
        prop_assert_eq!(&listed, &set.iter().copied().collect::<Vec<_>>());
        let left: Vec<_> = pages.without_raised(&[0..500]).into_iter().flatten().collect();
        prop_assert_eq!(left, (0..500).filter(|page| !set.contains(page)).collect::<Vec<_>>());
        prop_assert_eq!(pages.raised_count(), set.len() as u64);
        prop_assert_eq!(pages.take_all().into_iter().flatten().count(), set.len());
        prop_assert_eq!(pages.raised(), vec![]);
    }
}
