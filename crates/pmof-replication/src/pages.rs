//! Which pages of a pool were written: one bit a page, set by any number of threads without a lock.

use alloc::boxed::Box;
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use once_cell::race::OnceBox;

#[cfg(test)]
mod tests;

/// Bytes of a page: what is copied of a pool where one byte of it was written.
pub const PAGE_BYTES: u64 = 4096;

const WORD_PAGES: u64 = 64;
const CHUNK_WORDS: usize = 256;
/// Bytes of the pool that a chunk of the map stands for: 64 MiB. A chunk is allocated when its first page is marked.
const CHUNK_BYTES: u64 = CHUNK_WORDS as u64 * WORD_PAGES * PAGE_BYTES;

type Chunk = [AtomicU64; CHUNK_WORDS];

/// A set of pages. Whoever relies on a mark being seen is ordered behind whoever marked by other means, such as the pool's lock.
#[derive(Debug)]
pub struct PageMap {
    chunks: Box<[OnceBox<Chunk>]>,
    size_bytes: u64,
}

impl PageMap {
    /// No page of a pool of this size.
    pub fn new(size_bytes: u64) -> Self {
        let chunk_count = size_bytes.div_ceil(CHUNK_BYTES) as usize;
        Self { chunks: (0..chunk_count).map(|_| OnceBox::new()).collect(), size_bytes }
    }

    /// All pages of a pool of this size.
    pub fn full(size_bytes: u64) -> Self {
        let map = Self::new(size_bytes);
        map.mark(0..size_bytes);
        map
    }

    /// Bytes of the pool that it is of.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Adds the pages that a range of bytes lies on.
    #[inline]
    pub fn mark(&self, range: Range<u64>) {
        for (word, bits) in self.words_of(&range) {
            let marked = self.word(word);
            // Most writes go where others went before.
            if marked.load(Ordering::Relaxed) & bits != bits {
                marked.fetch_or(bits, Ordering::AcqRel);
            }
        }
    }

    /// Takes out the pages that a range of bytes lies on.
    pub fn unmark(&self, range: &Range<u64>) {
        for (word, bits) in self.words_of(range) {
            if let Some(marked) = self.known_word(word) {
                marked.fetch_and(!bits, Ordering::AcqRel);
            }
        }
    }

    /// Whether a page that a range of bytes lies on is in the map.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        let marked = |word| self.known_word(word).map_or(0, |word| word.load(Ordering::Acquire));
        self.words_of(range).any(|(word, bits)| marked(word) & bits != 0)
    }

    /// Adds the pages of another map of the same pool.
    pub fn add(&self, other: &Self) {
        for (chunk, bits) in other.chunks.iter().enumerate() {
            let Some(bits) = bits.get() else { continue };
            for (index, bits) in bits.iter().enumerate() {
                let bits = bits.load(Ordering::Acquire);
                if bits != 0 {
                    self.word((chunk * CHUNK_WORDS + index) as u64).fetch_or(bits, Ordering::AcqRel);
                }
            }
        }
    }

    /// Takes out the first pages at `from` or later, as many in a row as fit into `limit_bytes`. `None`: there are none from there on.
    pub fn take(&self, from: u64, limit_bytes: u64) -> Option<Range<u64>> {
        let first = self.next(from / PAGE_BYTES)?;
        let limit = first.saturating_add((limit_bytes / PAGE_BYTES).max(1));
        let mut page = first;
        while page < limit && self.remove(page) {
            page += 1;
        }
        Some(first * PAGE_BYTES..(page * PAGE_BYTES).min(self.size_bytes))
    }

    /// Takes all pages out.
    pub fn clear(&self) {
        let words = self.chunks.iter().filter_map(OnceBox::get).flat_map(|chunk| chunk.iter());
        for word in words.filter(|word| word.load(Ordering::Relaxed) != 0) {
            word.store(0, Ordering::Release);
        }
    }

    /// Bytes of the pages in the map.
    pub fn count_bytes(&self) -> u64 {
        let words = self.chunks.iter().filter_map(OnceBox::get).flat_map(|chunk| chunk.iter());
        words.map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum::<u64>() * PAGE_BYTES
    }

    /// Whether no page is in the map.
    pub fn is_empty(&self) -> bool {
        let mut words = self.chunks.iter().filter_map(OnceBox::get).flat_map(|chunk| chunk.iter());
        words.all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// The pages that a range of bytes lies on: words by their numbers, and the bits in each.
    #[inline]
    fn words_of(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
        let end = range.end.min(self.size_bytes);
        let pages = range.start / PAGE_BYTES..end.div_ceil(PAGE_BYTES).max(range.start / PAGE_BYTES);
        let words = if range.start < end { pages.start / WORD_PAGES..pages.end.div_ceil(WORD_PAGES) } else { 0..0 };
        words.map(move |word| {
            let low = pages.start.saturating_sub(word * WORD_PAGES);
            let high = (pages.end - 1 - word * WORD_PAGES).min(WORD_PAGES - 1);
            (word, (u64::MAX >> (WORD_PAGES - 1 - high)) & (u64::MAX << low))
        })
    }

    fn known_word(&self, word: u64) -> Option<&AtomicU64> {
        let chunk = self.chunks.get(word as usize / CHUNK_WORDS)?.get()?;
        Some(&chunk[word as usize % CHUNK_WORDS])
    }

    #[inline]
    fn word(&self, word: u64) -> &AtomicU64 {
        let chunk = self.chunks[word as usize / CHUNK_WORDS]
            .get_or_init(|| Box::new([const { AtomicU64::new(0) }; CHUNK_WORDS]));
        &chunk[word as usize % CHUNK_WORDS]
    }

    /// The first page of the map at `page` or later.
    fn next(&self, page: u64) -> Option<u64> {
        let mut from = page;
        for chunk in page / (CHUNK_WORDS as u64 * WORD_PAGES)..self.chunks.len() as u64 {
            let begin = chunk * CHUNK_WORDS as u64;
            if let Some(words) = self.chunks[chunk as usize].get() {
                for (index, word) in words.iter().enumerate() {
                    let base = (begin + index as u64) * WORD_PAGES;
                    if base + WORD_PAGES <= from {
                        continue;
                    }
                    let bits = word.load(Ordering::Acquire) & (u64::MAX << from.saturating_sub(base));
                    if bits != 0 {
                        return Some(base + u64::from(bits.trailing_zeros()));
                    }
                }
            }
            from = from.max((begin + CHUNK_WORDS as u64) * WORD_PAGES);
        }
        None
    }

    /// Takes a page out; whether it was there.
    fn remove(&self, page: u64) -> bool {
        let Some(word) = self.known_word(page / WORD_PAGES) else { return false };
        let bit = 1 << (page % WORD_PAGES);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }
}
