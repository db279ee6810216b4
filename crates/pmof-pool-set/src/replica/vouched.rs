//! Decides who owns a part without a header. Its length proves nothing, since any file can have it. Either the first part of its replica vouches for it, or
//! its bytes do.

use std::{fs::File, os::unix::fs::FileExt as _};

use pmof_mem::{Medium as _, Memory, System};

use crate::{
    PoolSetError,
    format::OBJ_RUNTIME,
    part::{Part, next_data, page_bytes},
};

/// Maximum number of pages of a file that are compared.
pub(crate) const SAMPLES: u64 = 64;
/// Minimum number of differing pages that prove that a file is foreign: fewer may all have changed since, or be damaged.
pub(crate) const UNLIKE_PAGES: usize = 4;
/// Bytes read at a time.
const READ_LEN_BYTES: usize = 1 << 20;

/// Whether the replica to copy from holds similar bytes at that offset of the pool.
pub(crate) type Source<'s> = &'s mut dyn FnMut(u64, &[u8]) -> bool;

/// For callers without a replica to compare with.
pub(crate) fn no_source(_: u64, _: &[u8]) -> bool {
    false
}

/// Whether the bytes of a part show that it belongs to the pool, so that overwriting it loses no foreign data: sampled nonzero pages resemble those
/// of the `source`, except for an eighth of them, which libpmemobj may have left in one replica only. `start`: where the file begins in the pool; `None` where that is not known, so that there is nothing to compare with.
///
/// Unreadable pages prove nothing.
pub(super) fn is_expendable(part: &Part, start: Option<i64>, source: Source<'_>) -> Result<bool, PoolSetError> {
    if part.check_bad_blocks(&System::real(), true).is_err() {
        return Ok(false);
    }
    let mut holds = |offset: u64, found: &[u8]| {
        // Bytes behind the last whole page do not belong to the pool.
        let place =
            start.filter(|_| found.len() as u64 == page_bytes()).and_then(|start| start.checked_add_unsigned(offset));
        let place = place.and_then(|place| u64::try_from(place).ok());
        place.is_some_and(|place| source(place, compared(place, found)))
    };
    let (mut pages, mut unlike) = (0, 0);
    sample(part, |offset, found| {
        pages += 1;
        unlike += u64::from(!holds(offset, found));
        true
    })?;
    Ok(unlike * 8 <= pages)
}

/// Whether a quarter of the words that are nonzero in either are equal.
pub(crate) fn resembles(one: &[u8], other: &[u8]) -> bool {
    let words =
        || one.chunks(8).zip(other.chunks(8)).filter(|(one, other)| [*one, *other].iter().any(|word| **word != [0; 8]));
    4 * words().filter(|(one, other)| one == other).count() >= words().count()
}

/// Visits sampled nonzero pages of a part, with their offsets in its file, until `look` returns false.
fn sample(part: &Part, mut look: impl FnMut(u64, &[u8]) -> bool) -> Result<(), PoolSetError> {
    let bytes = Bytes::of(part)?;
    let page = page_bytes();
    let stride = part.len_bytes.div_ceil(SAMPLES).next_multiple_of(page);
    let mut at = 0;
    while at < part.len_bytes {
        let end = part.len_bytes.min(at + stride);
        if let Some((offset, found)) = bytes.first_page_with_data(at, end)? {
            if !look(offset, &found) {
                return Ok(());
            }
        }
        at = end;
    }
    Ok(())
}

/// The bytes of a page at this offset that replicas share, up to the runtime state of a program.
fn compared(place: u64, page: &[u8]) -> &[u8] {
    let until = if place < OBJ_RUNTIME.end { OBJ_RUNTIME.start.saturating_sub(place) } else { u64::MAX };
    &page[..page.len().min(usize::try_from(until).unwrap_or(usize::MAX))]
}

/// The bytes of a file, or of a device, which can only be mapped.
enum Bytes<'p> {
    File(&'p Part, File),
    Device(Box<Memory>),
}

impl<'p> Bytes<'p> {
    fn of(part: &'p Part) -> Result<Self, PoolSetError> {
        if part.devdax_align_bytes.is_none() {
            return Ok(Self::File(part, File::from(part.cloned()?)));
        }
        Ok(Self::Device(Box::new(Memory::concatenate(vec![part.mapped(false)?], false, None)?)))
    }

    /// The first nonzero page of the range, and its offset. Holes are not read.
    fn first_page_with_data(&self, start: u64, end: u64) -> Result<Option<(u64, Vec<u8>)>, PoolSetError> {
        let page = page_bytes();
        let mut at = start;
        while at < end {
            at = self.data_from(at).max(at).min(end);
            at -= at % page;
            let len_bytes = (end - at).min(READ_LEN_BYTES as u64) as usize;
            let bytes = self.read(at, len_bytes)?;
            if let Some(place) = bytes.iter().position(|byte| *byte != 0) {
                let first = place - place % page as usize;
                let last = bytes.len().min(first + page as usize);
                return Ok(Some((at + first as u64, bytes[first..last].to_vec())));
            }
            if bytes.len() < len_bytes {
                return Ok(None);
            }
            at += bytes.len() as u64;
        }
        Ok(None)
    }

    /// As [`next_data`]; a device has no holes.
    fn data_from(&self, at: u64) -> u64 {
        match self {
            Self::File(_, file) => next_data(file, at),
            Self::Device(_) => at,
        }
    }

    fn read(&self, at: u64, len_bytes: usize) -> Result<Vec<u8>, PoolSetError> {
        let mut bytes = vec![0; len_bytes];
        match self {
            Self::File(part, file) => {
                let read = file.read_at(&mut bytes, at);
                let read = read.map_err(|error| PoolSetError::io("pread", &part.path, "", error))?;
                bytes.truncate(read);
            }
            Self::Device(memory) => memory.read(at, &mut bytes)?,
        }
        Ok(bytes)
    }
}
