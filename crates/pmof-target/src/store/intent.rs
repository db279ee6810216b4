//! The map of write intent in a pool's file: kept by the writer, and believed by the next opening.
//!
//! A writer that keeps no map says so by beginning an epoch without having touched it: the map is then wiped, and all of the pool may differ.

use std::ops::Range;

use pmof_control::{INTENT_OFFSET, IntentLayout, OpenFor};
use pmof_mem::{Durability, Medium, MemError, Memory};

use super::{OpenPool, StoreError};

/// Ranges that are settled one by one, at most: each costs some system calls.
const SETTLED_RANGES_MAX: usize = 64;

/// Bytes of the largest folio of the page cache, at a multiple of which each begins.
const FOLIO_BYTES: u64 = 2 << 20;

const WORD_BYTES: usize = size_of::<u64>();

impl OpenPool {
    /// The bits of the map from the word `first` on, at most `limit` words. All are set where nobody keeps the map.
    pub fn intent(&self, first: u16, limit: usize) -> Result<Vec<u32>, StoreError> {
        let words = read(&*self.memory, self.header.size_bytes).map_err(|error| self.intent_error(error))?;
        Ok(words.into_iter().skip(first.into()).take(limit).collect())
    }

    /// Sets bits, as durably as the medium can.
    pub fn raise_intent(&mut self, first: u16, bits: &[u32]) -> Result<(), StoreError> {
        self.check_writable()?;
        raise(&*self.memory, self.header.size_bytes, first, bits).map_err(|error| self.intent_error(error))?;
        self.keeps_intent = true;
        Ok(())
    }

    /// Clears bits but those that are given, where what was written there is as durable as the medium can make it.
    pub fn clear_intent(&mut self, level: Durability, first: u16, bits: &[u32]) -> Result<(), StoreError> {
        self.check_writable()?;
        let strongest = Durability::ALL.into_iter().rfind(|level| self.memory.promise(*level).is_some());
        if strongest.is_some_and(|strongest| level < strongest) {
            return self.raise_intent(first, bits);
        }
        clear(&*self.memory, self.header.size_bytes, first, bits).map_err(|error| self.intent_error(error))?;
        self.keeps_intent = true;
        Ok(())
    }

    /// Before an epoch begins: whether its writer keeps the map.
    pub(super) fn forget_intent_of_others(&mut self) -> Result<(), StoreError> {
        if self.keeps_intent || self.access == OpenFor::Read {
            return Ok(());
        }
        wipe(&*self.memory, self.header.size_bytes).map_err(|error| self.intent_error(error))
    }

    fn check_writable(&self) -> Result<(), StoreError> {
        if self.access == OpenFor::Read { Err(StoreError::ReadOnly { name: self.name.clone() }) } else { Ok(()) }
    }

    fn intent_error(&self, source: MemError) -> StoreError {
        StoreError::Memory { name: self.name.clone(), source }
    }
}

/// Settles what may have been written since it was durable last; the pages before the data are settled already.
pub(super) fn settle(memory: &Memory, size_bytes: u64, data_offset: u64) -> Result<(), MemError> {
    let words = read(memory, size_bytes)?;
    let ranges = settled_ranges(&IntentLayout::new(size_bytes).ranges(&words), data_offset, memory.len_bytes());
    if ranges.len() > SETTLED_RANGES_MAX || ranges.first().is_some_and(|range| *range == (0..memory.len_bytes())) {
        return memory.settle().map(drop);
    }
    for range in ranges {
        match memory.settle_range(range.start, range.end - range.start) {
            // Some page is held together with others, outside of the range.
            Err(MemError::Unverified { .. }) => return memory.settle().map(drop),
            settled => settled.map(drop)?,
        }
    }
    Ok(())
}

/// Where these ranges of the data lie in the file, widened so that none cuts what the page cache keeps and drops as one.
pub(super) fn settled_ranges(ranges: &[Range<u64>], data_offset: u64, len_bytes: u64) -> Vec<Range<u64>> {
    let mut settled: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let begin = (data_offset + range.start) / FOLIO_BYTES * FOLIO_BYTES;
        let end = (data_offset + range.end).next_multiple_of(FOLIO_BYTES).min(len_bytes);
        match settled.last_mut() {
            Some(last) if last.end >= begin => last.end = end,
            _ => settled.push(begin..end),
        }
    }
    settled
}

/// The bits of all words.
pub(super) fn read(medium: &dyn Medium, size_bytes: u64) -> Result<Vec<u32>, MemError> {
    let words = read_words(medium, size_bytes)?;
    Ok(words.into_iter().enumerate().map(|(index, word)| IntentLayout::decode(index, word)).collect())
}

/// Sets bits, durably. A crash leaves any of the words changed, and none of those that is answered for unchanged.
pub(super) fn raise(medium: &dyn Medium, size_bytes: u64, first: u16, bits: &[u32]) -> Result<(), MemError> {
    let changed = change(medium, size_bytes, first, bits, |index, word, bits| {
        IntentLayout::encode(index, IntentLayout::decode(index, word) | bits)
    })?;
    changed.map_or(Ok(()), |range| medium.sync_range(range.start, range.end - range.start))
}

/// Leaves no other bits than these. It need not be durable: a crash may leave more bits.
pub(super) fn clear(medium: &dyn Medium, size_bytes: u64, first: u16, bits: &[u32]) -> Result<(), MemError> {
    let changed = change(medium, size_bytes, first, bits, |index, _, bits| IntentLayout::encode(index, bits))?;
    changed.map_or(Ok(()), |range| medium.write_back(range.start, range.end - range.start))
}

/// Makes it a map that nobody keeps, durably.
pub(super) fn wipe(medium: &dyn Medium, size_bytes: u64) -> Result<(), MemError> {
    let bits = vec![0; IntentLayout::new(size_bytes).word_count()];
    let changed = change(medium, size_bytes, 0, &bits, |_, _, _| 0)?;
    changed.map_or(Ok(()), |range| medium.sync_range(range.start, range.end - range.start))
}

/// Puts `new` words in place of those that differ, each by one atomic store. Returns the range from the first to the last of them.
fn change(
    medium: &dyn Medium,
    size_bytes: u64,
    first: u16,
    bits: &[u32],
    new: impl Fn(usize, u64, u32) -> u64,
) -> Result<Option<Range<u64>>, MemError> {
    let words = read_words(medium, size_bytes)?;
    let mut changed: Option<Range<u64>> = None;
    for (index, bits) in (usize::from(first)..words.len()).zip(bits) {
        let (word, offset) = (new(index, words[index], *bits), INTENT_OFFSET + (index * WORD_BYTES) as u64);
        if word != words[index] {
            medium.atomic_store(offset, word)?;
            let end = offset + WORD_BYTES as u64;
            changed = Some(changed.map_or(offset..end, |range| range.start..end));
        }
    }
    Ok(changed)
}

fn read_words(medium: &dyn Medium, size_bytes: u64) -> Result<Vec<u64>, MemError> {
    let mut bytes = vec![0; IntentLayout::new(size_bytes).word_count() * WORD_BYTES];
    medium.read(INTENT_OFFSET, &mut bytes)?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok(bytes.chunks_exact(WORD_BYTES).map(word).collect())
}
