//! The map of write intent: which extents of a pool may differ between its replicas.

use alloc::vec::Vec;

use crate::checksum::{crc32c, crc32c_append};

#[cfg(test)]
mod tests;

/// Where the map begins in the file, in bytes.
pub const INTENT_OFFSET: u64 = 40 << 10;

/// Bytes of the map.
pub const INTENT_BYTES: usize = 24 << 10;

/// Words of the map.
pub const INTENT_WORDS_MAX: usize = INTENT_BYTES / size_of::<u64>();

/// Extents that one word is of.
pub const WORD_EXTENTS: u64 = 32;

const LEAST_EXTENT_BYTES: u64 = 1 << 20;
const EXTENTS_MAX: u64 = INTENT_WORDS_MAX as u64 * WORD_EXTENTS;

/// The map of write intent in the file of one replica, behind its [state](crate::PoolState).
///
/// The pool is divided into extents: of 1 MiB, or of the least larger power of two of which 98,304 hold all of it. Each has a bit. A writer raises it on all
/// replicas in sync, durably, before it writes to the extent, and clears it when all of them have what was written there. So a bit that is clear on
/// the replicas in sync says that they are equal there, whatever became of their writer.
///
/// The map is an array of words of 8 bytes, little-endian, from byte 40,960 of the file on. Word *w* is of extents 32 *w* to 32 *w* + 31:
///
/// | bits | field |
/// |---|---|
/// | 0 to 31 | bit *n* for extent 32 *w* + *n* |
/// | 32 to 63 | CRC32C of *w* as `u32` and of the low half |
///
/// A word changes by one atomic store, so a crash leaves the old or the new one, each of them whole. Zero is no word: of a map that nobody keeps, and where a
/// word was damaged, all 32 extents may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntentLayout {
    extent_bytes: u64,
    size_bytes: u64,
}

impl IntentLayout {
    /// That of a pool with so many bytes of user data.
    pub fn new(size_bytes: u64) -> Self {
        let extent_bytes = size_bytes.div_ceil(EXTENTS_MAX).next_power_of_two().max(LEAST_EXTENT_BYTES);
        Self { extent_bytes, size_bytes }
    }

    /// Bytes of an extent, a power of two; the last one may be shorter.
    pub fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }

    /// Bytes of user data of the pool.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The bytes of an extent.
    pub fn extent_range(&self, extent: u64) -> core::ops::Range<u64> {
        let begin = extent * self.extent_bytes;
        begin..begin.saturating_add(self.extent_bytes).min(self.size_bytes)
    }

    /// Extents of the pool.
    pub fn extent_count(&self) -> u64 {
        self.size_bytes.div_ceil(self.extent_bytes)
    }

    /// Words of the map.
    pub fn word_count(&self) -> usize {
        self.extent_count().div_ceil(WORD_EXTENTS) as usize
    }

    /// The word that lies at this index of the map.
    pub fn encode(index: usize, bits: u32) -> u64 {
        u64::from(bits) | u64::from(check(index, bits)) << 32
    }

    /// The bits of the word at this index; all of them where it is damaged, or nobody keeps the map.
    pub fn decode(index: usize, word: u64) -> u32 {
        let bits = word as u32;
        if Self::encode(index, bits) == word { bits } else { u32::MAX }
    }

    /// The ranges of the pool, in bytes, whose bits are set: in order, those that touch as one.
    pub fn ranges(&self, words: &[u32]) -> Vec<core::ops::Range<u64>> {
        let mut ranges: Vec<core::ops::Range<u64>> = Vec::new();
        let extents = words.iter().zip(0_u64..).flat_map(|(bits, word)| {
            (0..WORD_EXTENTS).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * WORD_EXTENTS + bit)
        });
        for extent in extents.take_while(|extent| *extent < self.extent_count()) {
            let range = self.extent_range(extent);
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges
    }
}

fn check(index: usize, bits: u32) -> u32 {
    crc32c_append(crc32c(&(index as u32).to_le_bytes()), &bits.to_le_bytes())
}
