//! Memory of this side.

use pmof_mem::MemError;

use crate::{LocalSlice, PostError};

/// Checks that a slice of this side's memory lies inside it.
pub(super) fn check_local(slice: &LocalSlice) -> Result<(), PostError> {
    if slice.is_inside() { Ok(()) } else { Err(outside_local(slice)) }
}

pub(super) fn outside_local(slice: &LocalSlice) -> PostError {
    let LocalSlice { memory, offset, len_bytes } = slice;
    PostError::OutOfBounds { offset: *offset, len_bytes: *len_bytes, size_bytes: memory.len_bytes() }
}

/// The other side learns only that the medium failed: the rest is for whoever runs this one.
pub(super) fn tell_failed(error: &MemError) {
    log::error!(target: "pmof::memory", event = "memory_failed", reason:% = error; "{error}");
}
