//! Bounds of ranges.

use crate::MemError;

/// Checks that `len_bytes` at `offset` lie inside `size_bytes`, without overflow.
pub fn check_bounds(offset: u64, len_bytes: u64, size_bytes: u64) -> Result<(), MemError> {
    match offset.checked_add(len_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(MemError::OutOfBounds { offset, len_bytes, size_bytes }),
    }
}
