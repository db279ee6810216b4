//! Which pages of a file behind the page cache were dirtied since they were last flushed, so that short stores to the others may use pwrite(2).
//!
//! A store through the mapping of a page that was flushed causes a page fault, and the next flush write-protects the page again, which interrupts
//! every CPU that runs the process. pwrite(2) costs neither. But the kernel copies its bytes in units of its own choice, so that a write-back
//! that reads the page meanwhile could tear aligned 8 bytes. A write-back begins only under the page's lock, which pwrite(2) holds while it
//! copies, and only of a dirty page. So nothing is torn if the page is clean, and stays clean until the copy.

use std::ops::Range;

use pmof_locks::Mutex;

/// Pages are counted in units of this size: no block of a file system is longer, no folio that a pwrite of at most so many bytes makes, and the
/// device reads whole blocks.
pub(crate) const UNIT_BYTES: u64 = 64 << 10;

/// Units that are remembered one by one. With more, the whole file counts as dirty until the next flush.
const UNITS_MAX: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct DirtyPages(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since the latest flush began.
    dirtied: Units,
    /// Before that, while that flush is in flight.
    flushing: Units,
    /// Stores through the mapping in progress: a flush that begins meanwhile may miss them.
    storing: usize,
}

#[derive(Clone, Debug, Default)]
struct Units {
    numbers: Vec<u64>,
    is_all: bool,
}

/// A store through the mapping in progress.
#[derive(Debug)]
pub(crate) struct Storing<'d>(&'d DirtyPages);

impl DirtyPages {
    /// Those of a file that another process may have left dirty.
    pub(crate) fn all() -> Self {
        let pages = Self::default();
        pages.0.lock().dirtied.is_all = true;
        pages
    }

    /// Has `write` store a range that is clean. `None` without a call if it is not. No other store begins meanwhile, and no flush.
    pub(crate) fn write_clean<T>(&self, offset: u64, len_bytes: u64, write: impl FnOnce() -> T) -> Option<T> {
        let mut state = self.0.lock();
        if state.dirtied.overlaps(offset, len_bytes) || state.flushing.overlaps(offset, len_bytes) {
            return None;
        }
        state.dirtied.add(offset, len_bytes);
        Some(write())
    }

    /// A store through the mapping begins; it ends with the drop of what this returns.
    pub(crate) fn begin_store(&self, offset: u64, len_bytes: u64) -> Storing<'_> {
        let mut state = self.0.lock();
        state.dirtied.add(offset, len_bytes);
        state.storing += 1;
        Storing(self)
    }

    /// A flush of the file begins. One at a time.
    pub(crate) fn begin_flush(&self) {
        let mut state = self.0.lock();
        state.flushing = std::mem::take(&mut state.dirtied);
        state.dirtied.is_all = state.storing > 0;
    }

    /// A flush of a range begins, of [whole units](whole_units). What is not known to be in it stays dirty.
    pub(crate) fn begin_range_flush(&self, range: &Range<u64>) {
        let mut state = self.0.lock();
        state.flushing = Units::default();
        // The flush may miss a store that is in progress, and which units that is in is not known.
        if state.storing > 0 || state.dirtied.is_all {
            return;
        }
        let numbers = std::mem::take(&mut state.dirtied.numbers).into_iter();
        (state.flushing.numbers, state.dirtied.numbers) =
            numbers.partition(|number| range.contains(&(number * UNIT_BYTES)));
    }

    /// Whether the whole file counts as dirty until a flush of all of it.
    pub(crate) fn is_all_dirty(&self) -> bool {
        self.0.lock().dirtied.is_all
    }

    /// It succeeded. After one that failed nothing is known to be clean.
    pub(crate) fn end_flush(&self) {
        self.0.lock().flushing = Units::default();
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        self.0.0.lock().storing -= 1;
    }
}

impl Units {
    fn overlaps(&self, offset: u64, len_bytes: u64) -> bool {
        self.is_all || numbers(offset, len_bytes).any(|number| self.numbers.contains(&number))
    }

    fn add(&mut self, offset: u64, len_bytes: u64) {
        for number in numbers(offset, len_bytes) {
            if self.is_all || self.numbers.contains(&number) {
                continue;
            }
            self.is_all = self.numbers.len() == UNITS_MAX;
            self.numbers.push(number);
        }
    }
}

/// A range extended to the ends of its units.
pub(crate) fn whole_units(range: &Range<u64>) -> Range<u64> {
    range.start / UNIT_BYTES * UNIT_BYTES..range.end.next_multiple_of(UNIT_BYTES)
}

/// The units that a range lies in: up to one more than are remembered one by one.
fn numbers(offset: u64, len_bytes: u64) -> impl Iterator<Item = u64> {
    let end = offset.saturating_add(len_bytes.max(1));
    (offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES)).take(UNITS_MAX + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = UNIT_BYTES;

    /// Whether a write may begin. Leaves everything as it was.
    fn is_clean(pages: &DirtyPages, offset: u64, len_bytes: u64) -> bool {
        let before = pages.0.lock().dirtied.clone();
        let may_write = pages.write_clean(offset, len_bytes, || ()).is_some();
        pages.0.lock().dirtied = before;
        may_write
    }

    #[test]
    fn a_range_is_clean_once_a_flush_that_began_after_its_stores_has_succeeded() {
        let pages = DirtyPages::all();
        assert!(!is_clean(&pages, 5 * UNIT, 8));
        pages.begin_flush();
        assert!(!is_clean(&pages, 0, 8), "the flush is in flight");
        pages.end_flush();
        assert_eq!(pages.write_clean(UNIT - 8, 16, || 7), Some(7));
        assert_eq!(pages.write_clean(0, 8, || 7), None, "it was dirtied");
        assert!(!is_clean(&pages, 2 * UNIT - 1, 1) && is_clean(&pages, 2 * UNIT, UNIT));
        pages.begin_flush();
        // What is stored while the flush is in flight, it may miss.
        drop(pages.begin_store(3 * UNIT, 1));
        assert!(!is_clean(&pages, 0, 8) && !is_clean(&pages, 3 * UNIT, 8) && is_clean(&pages, 2 * UNIT, 8));
        pages.end_flush();
        assert!(is_clean(&pages, 0, 2 * UNIT) && !is_clean(&pages, 3 * UNIT, 8));
    }

    #[test]
    fn a_failed_flush_cleans_nothing() {
        let pages = DirtyPages::default();
        drop(pages.begin_store(0, 8));
        pages.begin_flush();
        assert!(!is_clean(&pages, 0, 8) && is_clean(&pages, UNIT, 8));
    }

    #[test]
    fn a_flush_that_begins_during_a_store_through_the_mapping_cleans_nothing() {
        let pages = DirtyPages::default();
        let storing = pages.begin_store(UNIT, 8);
        pages.begin_flush();
        pages.end_flush();
        assert!(!is_clean(&pages, UNIT, 8));
        drop(storing);
        assert!(!is_clean(&pages, UNIT, 8));
        pages.begin_flush();
        pages.end_flush();
        assert!(is_clean(&pages, UNIT, 8));
    }

    #[test]
    fn a_range_flush_cleans_its_own_units_only() {
        let pages = DirtyPages::default();
        for number in [1, 2, 5] {
            drop(pages.begin_store(number * UNIT, 8));
        }
        assert_eq!(whole_units(&(UNIT + 7..2 * UNIT + 1)), UNIT..3 * UNIT);
        pages.begin_range_flush(&(UNIT..3 * UNIT));
        drop(pages.begin_store(2 * UNIT + 8, 8));
        assert!(!is_clean(&pages, UNIT, 8), "the flush is in flight");
        pages.end_flush();
        assert!(is_clean(&pages, UNIT, 8), "it was flushed");
        assert!(!is_clean(&pages, 2 * UNIT, 8), "it was stored to meanwhile");
        assert!(!is_clean(&pages, 5 * UNIT, 8), "it was not flushed");
    }

    #[test]
    fn a_range_flush_during_a_store_or_of_a_dirty_file_cleans_nothing() {
        let pages = DirtyPages::default();
        let storing = pages.begin_store(UNIT, 8);
        pages.begin_range_flush(&(0..4 * UNIT));
        pages.end_flush();
        drop(storing);
        assert!(!is_clean(&pages, UNIT, 8) && is_clean(&pages, 2 * UNIT, 8) && !pages.is_all_dirty());
        let all = DirtyPages::all();
        all.begin_range_flush(&(0..4 * UNIT));
        all.end_flush();
        assert!(!is_clean(&all, 0, 8) && all.is_all_dirty());
    }

    #[test]
    fn with_too_many_units_the_whole_file_is_dirty() {
        let pages = DirtyPages::default();
        for number in 0..UNITS_MAX as u64 {
            drop(pages.begin_store(number * UNIT, 8));
        }
        assert!(is_clean(&pages, 1000 * UNIT, 8));
        drop(pages.begin_store(100 * UNIT, 8));
        assert!(!is_clean(&pages, 1000 * UNIT, 8));
        let long = DirtyPages::default();
        drop(long.begin_store(0, u64::MAX));
        assert!(!is_clean(&long, 1000 * UNIT, 8));
    }
}
