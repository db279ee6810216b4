use std::sync::Arc;

use super::*;
use crate::pages::PAGE_BYTES;

const SIZE_BYTES: u64 = 64 * PAGE_BYTES;
const ALL: Positions = 0b111;

fn written(page: u64) -> Arc<PageMap> {
    let pages = PageMap::new(SIZE_BYTES);
    pages.mark(page * PAGE_BYTES..(page + 1) * PAGE_BYTES);
    Arc::new(pages)
}

/// The pages that a member may lack.
fn lacked(older: &OlderPages) -> Vec<u64> {
    let missing = PageMap::new(SIZE_BYTES);
    older.add_to(&missing);
    (0..64).filter(|page| missing.meets(&(page * PAGE_BYTES..(page + 1) * PAGE_BYTES))).collect()
}

#[test]
fn pages_that_all_members_have_flushed_are_forgotten() {
    let mut older = OlderPages::default();
    older.set_aside(written(3), ALL);
    assert_eq!(lacked(&older), [3]);
    older.note_flushed(ALL);
    assert!(lacked(&older).is_empty());
}

/// The others alone do not say what it has.
#[test]
fn a_member_that_was_lost_before_the_flush_keeps_the_pages() {
    let mut older = OlderPages::default();
    older.set_aside(written(3), ALL);
    older.note_flushed(0b011);
    assert_eq!(lacked(&older), [3]);
}

#[test]
fn pages_that_are_not_forgotten_are_kept_with_those_behind_them() {
    let mut older = OlderPages::default();
    older.set_aside(written(3), ALL);
    older.note_flushed(0b011);
    older.set_aside(written(5), ALL);
    // What the first two have flushed of page 3 says nothing of page 5.
    older.note_flushed(0b100);
    assert_eq!(lacked(&older), [3, 5]);
    older.note_flushed(0b011);
    assert!(lacked(&older).is_empty());
}
