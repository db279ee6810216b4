use super::*;

mod model;

const MIB: u64 = 1 << 20;

fn kept(extent_count: u64) -> Intent {
    let intent = Intent::new(extent_count * MIB);
    intent.keep(&vec![0; intent.layout().word_count()]);
    intent
}

fn raise(intent: &Intent, range: Range<u64>) -> Option<Words> {
    let mut changing = intent.lock();
    let missing = intent.missing(&mut changing, &range);
    intent.note_raised(&missing);
    missing.words
}

fn sweep(intent: &Intent) -> Swept {
    intent.sweep(&mut intent.lock())
}

fn words(first: usize, bits: &[u32]) -> Words {
    Words { first, bits: bits.to_vec() }
}

#[test]
fn a_range_is_covered_once_all_of_its_extents_are_raised() {
    let intent = kept(70);
    let range = 31 * MIB + 5..32 * MIB + 1;
    assert!(!intent.covers(&range));
    assert_eq!(raise(&intent, range.clone()), Some(words(0, &[1 << 31, 1])));
    assert!(intent.covers(&range) && intent.covers(&(31 * MIB..33 * MIB)));
    assert!(!intent.covers(&(30 * MIB..33 * MIB)) && !intent.covers(&(33 * MIB..33 * MIB + 1)));
    assert_eq!(raise(&intent, range), None);
    assert_eq!(intent.all(), words(0, &[1 << 31, 1, 0]));
    // The last extent is a short one.
    let short = Intent::new(5);
    assert!(!short.covers(&(0..5)));
    assert_eq!(raise(&short, 0..5), Some(words(0, &[1])));
}

#[test]
fn what_is_raised_already_is_not_raised_again() {
    let intent = kept(70);
    raise(&intent, MIB..2 * MIB);
    assert_eq!(raise(&intent, 0..3 * MIB), Some(words(0, &[0b101])));
}

#[test]
fn ahead_of_a_stream_more_is_raised_each_time() {
    let intent = kept(200);
    let mut told = Vec::new();
    for extent in 0..100 {
        if !intent.covers(&(extent * MIB..(extent + 1) * MIB)) {
            let words = raise(&intent, extent * MIB..(extent + 1) * MIB).expect("missing");
            told.push(words.bits.iter().map(|bits| bits.count_ones()).sum::<u32>());
        }
    }
    assert_eq!(told, [2, 4, 8, 16, 17, 17, 17, 17, 17]);
    // Another place is no stream; at the end of the pool there is nothing behind it.
    assert_eq!(raise(&intent, 150 * MIB..151 * MIB), Some(words(4, &[1 << 22])));
    assert_eq!(raise(&intent, 199 * MIB..200 * MIB), Some(words(6, &[1 << 7])));
    assert_eq!(raise(&intent, 198 * MIB..200 * MIB), Some(words(6, &[1 << 6])));
}

#[test]
fn what_stays_cold_and_was_flushed_is_cleared() {
    let intent = kept(70);
    raise(&intent, 2 * MIB..3 * MIB);
    raise(&intent, 40 * MIB..41 * MIB);
    assert!(intent.covers(&(2 * MIB..3 * MIB)) && intent.covers(&(40 * MIB..41 * MIB)));
    assert_eq!(sweep(&intent), Swept::default(), "both were written");
    let Swept { cleared: None, cold: Some(cold), .. } = sweep(&intent) else { panic!("both are cold") };
    assert_eq!(cold, [4, 1 << 8, 0]);
    // Without a flush nothing is cleared, however cold.
    assert_eq!(sweep(&intent).cleared, None);
    let cold = sweep(&intent).cold.expect("cold");
    intent.note_flushed(cold);
    // One of them is written again.
    assert!(intent.covers(&(2 * MIB..3 * MIB)));
    assert_eq!(sweep(&intent), Swept { cleared: Some(words(1, &[0])), cold: None, taken: vec![] });
    assert!(intent.covers(&(2 * MIB..3 * MIB)) && !intent.covers(&(40 * MIB..41 * MIB)));
    assert_eq!(intent.all(), words(0, &[4, 0, 0]));
    assert!(!intent.is_clear());
}

#[test]
fn a_flush_vouches_for_one_sweep_only() {
    let intent = kept(70);
    raise(&intent, 0..MIB);
    let cold = sweep(&intent).cold.expect("raised and never written");
    intent.note_flushed(cold);
    // Raised and written behind that flush.
    raise(&intent, MIB..2 * MIB);
    assert!(intent.covers(&(MIB..2 * MIB)));
    assert_eq!(sweep(&intent), Swept { cleared: Some(words(0, &[0b10])), cold: None, taken: vec![] });
    assert_eq!(sweep(&intent), Swept { cleared: None, cold: Some(vec![0b10, 0, 0]), taken: vec![] });
    assert!(!intent.is_clear());
}

#[test]
fn without_maps_nothing_is_raised() {
    let intent = Intent::new(70 * MIB);
    intent.give_up();
    assert!(intent.covers(&(0..70 * MIB)) && !intent.is_kept());
}

#[test]
fn words_go_by_pages() {
    let all = Words { first: 3, bits: (0..INTENT_MESSAGE_WORDS_MAX as u32 + 2).collect() };
    let pages: Vec<_> = all.pages().collect();
    assert_eq!(pages.len(), 2);
    assert_eq!((pages[0].0, pages[0].1.len()), (3, INTENT_MESSAGE_WORDS_MAX));
    let last = INTENT_MESSAGE_WORDS_MAX as u32;
    assert_eq!(pages[1], (3 + INTENT_MESSAGE_WORDS_MAX as u16, vec![last, last + 1]));
}
