//! Which bytes of replicas must be compared: what is a hole in all of them is zero in all.

use std::ops::Range;

use pmof_mem::{MemError, Memory};

use crate::DIGEST_BYTES;

/// Bytes that one digest covers.
pub const DIGEST_BLOCK_LEN_BYTES: u64 = 64 << 10;

/// Bytes that are compared, or copied and made durable, in one step.
pub const WINDOW_LEN_BYTES: u64 = 4 << 20;

/// Shorter holes are treated as data: they are smaller than a digest's block.
const HOLE_LEN_BYTES_MIN: u64 = DIGEST_BLOCK_LEN_BYTES;

/// The ranges of `range` that may hold other bytes than zeros, in order, at most `count_max` (at least 1), and the offset up to which
/// they tell: `range.end` unless there are more.
///
/// The rest is durably zero: the file system has recorded the holes of a part that was just created or opened.
///
/// # Errors
/// `OutOfBounds`, where the range does not lie in the memory.
pub fn data_ranges(memory: &Memory, range: Range<u64>, count_max: usize) -> Result<(Vec<Range<u64>>, u64), MemError> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut offset = range.start;
    while offset < range.end {
        let Some(found) = memory.next_data(offset)?.filter(|found| found.start < range.end) else { break };
        let end = found.end.min(range.end);
        let is_full = ranges.len() == count_max;
        match ranges.last_mut() {
            Some(last) if found.start - last.end < HOLE_LEN_BYTES_MIN => last.end = end,
            _ if is_full => return Ok((ranges, found.start)),
            _ => ranges.push(found.start..end),
        }
        offset = end;
    }
    Ok((ranges, range.end))
}

/// A piece of several replicas that is to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where it lies: whole blocks of [`DIGEST_BLOCK_LEN_BYTES`] from the start of the range that it is of, but for the last.
    pub range: Range<u64>,
    /// Whether all of it is a hole, in each of the replicas.
    pub is_hole: Vec<bool>,
}

impl Window {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// What of `range` is to be compared, in order, where the replicas have these data ranges, each in order: holes in all of them are skipped.
pub fn windows(range: Range<u64>, data: &[impl AsRef<[Range<u64>]>]) -> impl Iterator<Item = Window> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let next = data.iter().filter_map(|ranges| next_in(ranges.as_ref(), at..range.end)).min()?;
        // Blocks begin where those of the range do, so that the digests of all replicas are of the same bytes.
        let start = next - (next - range.start) % DIGEST_BLOCK_LEN_BYTES;
        let limit = range.end.min(start + WINDOW_LEN_BYTES);
        let mut end = start;
        while end < limit {
            let block = end..(end + DIGEST_BLOCK_LEN_BYTES).min(range.end);
            if data.iter().all(|ranges| next_in(ranges.as_ref(), block.clone()).is_none()) {
                break;
            }
            end = block.end;
        }
        at = end;
        let is_hole = data.iter().map(|ranges| next_in(ranges.as_ref(), start..end).is_none()).collect();
        Some(Window { range: start..end, is_hole })
    })
}

/// The first byte of `range` that lies in one of `ranges`, which are in order.
fn next_in(ranges: &[Range<u64>], range: Range<u64>) -> Option<u64> {
    let first = ranges.partition_point(|data| data.end <= range.start);
    ranges.get(first).map(|data| data.start.max(range.start)).filter(|next| *next < range.end)
}

/// The digests of a window that is all zeros, as [`digests_of`](crate::digests_of) gives them.
pub fn zero_digests(len_bytes: u64) -> Vec<[u8; DIGEST_BYTES]> {
    static ZEROS: [u8; DIGEST_BLOCK_LEN_BYTES as usize] = [0; DIGEST_BLOCK_LEN_BYTES as usize];
    let digest = |len_bytes: u64| *blake3::hash(&ZEROS[..len_bytes as usize]).as_bytes();
    let (whole, rest) = (len_bytes / DIGEST_BLOCK_LEN_BYTES, len_bytes % DIGEST_BLOCK_LEN_BYTES);
    let mut digests = vec![digest(DIGEST_BLOCK_LEN_BYTES); whole as usize];
    digests.extend((rest > 0).then(|| digest(rest)));
    digests
}

#[cfg(test)]
mod tests;
