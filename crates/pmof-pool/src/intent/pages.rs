//! Which pages of an open pool have no protection on its members, since they may be written.
//!
//! A write checks whether the page's bit is *hot*: raised on all members, and written since the last sweep. That takes one load, as for an extent.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use pmof_control::{PAGE_BYTES, page_count};

const WORD_PAGES: u64 = 64;

/// Pages that are raised together with one, where few are: writes that are near each other cost one request.
const GROUP_PAGES: u64 = 16;
/// Pages that are raised ahead of a stream, at most.
const AHEAD_PAGES: u64 = 4096;
/// Of so many pages one may be raised without being written: groups end there.
const SPARE_SHARE: u64 = 64;

/// Pages that are raised on all members in sync that keep digests.
#[derive(Debug)]
pub(crate) struct RaisedPages {
    page_count: u64,
    /// Raised, and written since the last sweep.
    hot: Box<[AtomicU64]>,
    raised: Box<[AtomicU64]>,
    raised_count: AtomicU64,
}

/// What changes of them under the lock of the map.
#[derive(Debug, Default)]
pub(crate) struct ChangingPages {
    /// Where a stream would go on, and how many pages behind it were raised last.
    next: u64,
    ahead: u64,
    /// Pages that were cold at the last sweep.
    cold: Vec<u64>,
}

/// What a sweep has found of the pages of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SweptPages {
    /// Some are raised, and stay so.
    pub(crate) is_raised: bool,
    /// Some were written since the last sweep.
    pub(crate) is_hot: bool,
}

impl RaisedPages {
    /// Of a pool with so many bytes: none is raised.
    pub(crate) fn new(size_bytes: u64) -> Self {
        let page_count = page_count(size_bytes);
        let words = || (0..page_count.div_ceil(WORD_PAGES)).map(|_| AtomicU64::new(0)).collect();
        Self { page_count, hot: words(), raised: words(), raised_count: AtomicU64::new(0) }
    }

    /// Whether all pages of a range of bytes are raised; then they count as written.
    #[inline]
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        words(&pages_of(range)).all(|(word, mask)| {
            // Most writes go where others went before.
            if self.hot[word].load(Ordering::Acquire) & mask == mask {
                return true;
            }
            let is_raised = self.raised[word].load(Ordering::Acquire) & mask == mask;
            if is_raised {
                self.hot[word].fetch_or(mask, Ordering::AcqRel);
            }
            is_raised
        })
    }

    /// The pages that have to be raised before a range of bytes is written, and some more. Empty: none.
    pub(crate) fn missing(&self, changing: &mut ChangingPages, range: &Range<u64>) -> Vec<Range<u64>> {
        let written = pages_of(range);
        if self.not_raised(&written).is_empty() {
            return Vec::new();
        }
        let (first, mut end) = (written.start, written.end);
        let spare = (self.page_count / SPARE_SHARE).saturating_sub(self.raised_count.load(Ordering::Relaxed));
        let mut begin = first;
        if first == changing.next && first > 0 {
            changing.ahead = (2 * changing.ahead + 1).min(AHEAD_PAGES);
            end += changing.ahead.min(spare);
        } else {
            changing.ahead = end - first;
            if spare >= GROUP_PAGES {
                begin = first / GROUP_PAGES * GROUP_PAGES;
                end = end.next_multiple_of(GROUP_PAGES);
            }
        }
        end = end.min(self.page_count);
        changing.next = end;
        self.not_raised(&(begin..end))
    }

    fn not_raised(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        ranges(words(pages).map(|(word, mask)| (word, mask & !self.raised[word].load(Ordering::Acquire))))
    }

    /// All members in sync have raised these.
    pub(crate) fn note_raised(&self, pages: &[Range<u64>]) {
        for (word, mask) in pages.iter().flat_map(words) {
            let before = self.raised[word].fetch_or(mask, Ordering::AcqRel);
            self.raised_count.fetch_add(u64::from((mask & !before).count_ones()), Ordering::Relaxed);
        }
    }

    /// Pages that are raised.
    pub(crate) fn raised_count(&self) -> u64 {
        self.raised_count.load(Ordering::Relaxed)
    }

    /// All that are raised.
    pub(crate) fn raised(&self) -> Vec<Range<u64>> {
        self.raised_in(&(0..self.page_count))
    }

    /// Those of these that are raised.
    pub(crate) fn raised_in(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        ranges(words(pages).map(|(word, mask)| (word, mask & self.raised[word].load(Ordering::Acquire))))
    }

    /// Those of these that are not raised.
    pub(crate) fn without_raised(&self, pages: &[Range<u64>]) -> Vec<Range<u64>> {
        pages.iter().flat_map(|pages| self.not_raised(pages)).collect()
    }

    /// Cools the pages of a range of bytes, while no write is posted, and takes out the pages that were cold before. `is_flushed`: everything posted before the last sweep is durable. What is
    /// taken out is added to `taken`.
    pub(crate) fn sweep(
        &self,
        changing: &mut ChangingPages,
        bytes: &Range<u64>,
        is_flushed: bool,
        taken: &mut Vec<Range<u64>>,
    ) -> SweptPages {
        changing.cold.resize(self.raised.len(), 0);
        let mut swept = SweptPages { is_raised: false, is_hot: false };
        for (word, mask) in words(&pages_of(bytes)) {
            let hot = self.hot[word].fetch_and(!mask, Ordering::AcqRel) & mask;
            let raised = self.raised[word].load(Ordering::Acquire) & mask;
            let cold = changing.cold[word] & raised & !hot;
            let out = if is_flushed { cold } else { 0 };
            if out != 0 {
                self.take_out(word, out);
                for range in ranges(std::iter::once((word, out))) {
                    match taken.last_mut() {
                        Some(last) if last.end == range.start => last.end = range.end,
                        _ => taken.push(range),
                    }
                }
            }
            let stays = raised & !out;
            changing.cold[word] = (changing.cold[word] & !mask) | (stays & !hot);
            swept.is_raised |= stays != 0;
            swept.is_hot |= hot != 0;
        }
        swept
    }

    /// Takes out all raised pages of a pool that is not written any more.
    pub(crate) fn take_all(&self) -> Vec<Range<u64>> {
        let raised = self.raised();
        for (word, mask) in raised.iter().flat_map(words) {
            self.take_out(word, mask);
            self.hot[word].fetch_and(!mask, Ordering::AcqRel);
        }
        raised
    }

    fn take_out(&self, word: usize, mask: u64) {
        self.raised[word].fetch_and(!mask, Ordering::AcqRel);
        self.raised_count.fetch_sub(mask.count_ones().into(), Ordering::Relaxed);
    }
}

/// The pages that a range of bytes touches.
pub(crate) fn pages_of(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / PAGE_BYTES..(range.end - 1) / PAGE_BYTES + 1
}

/// Words of a bitmap of pages, and the bits of these there.
#[inline]
fn words(pages: &Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (pages.start, pages.end);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, bit) = (at / WORD_PAGES, at % WORD_PAGES);
        let count = (end - at).min(WORD_PAGES - bit);
        at += count;
        Some((word as usize, (u64::MAX >> (WORD_PAGES - count)) << bit))
    })
}

/// The pages of bits, in order; adjacent ones form one range.
fn ranges(bits: impl Iterator<Item = (usize, u64)>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (word, mut bits) in bits {
        let mut at = word as u64 * WORD_PAGES;
        while bits != 0 {
            let skipped = bits.trailing_zeros();
            bits >>= skipped;
            at += u64::from(skipped);
            let run = bits.trailing_ones();
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += u64::from(run),
                _ => ranges.push(at..at + u64::from(run)),
            }
            bits = bits.checked_shr(run).unwrap_or(0);
            at += u64::from(run);
        }
    }
    ranges
}

#[cfg(test)]
mod tests;
