//! What is settled of the data of a pool that was not closed.

use std::ops::Range;

use pmof_control::DATA_OFFSET;
use pmof_mem::{Medium as _, MemError, Memory};

/// Ranges that are settled one by one, at most: each costs some system calls.
const SETTLED_RANGES_MAX: usize = 64;

/// Bytes of the largest folio of the page cache, at a multiple of which each begins.
const FOLIO_BYTES: u64 = 2 << 20;

/// Settles ranges of the data, which may have been written since they were durable last.
pub(super) fn settle(memory: &Memory, ranges: &[Range<u64>]) -> Result<(), MemError> {
    let ranges = settled_ranges(ranges, DATA_OFFSET, memory.len_bytes());
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
