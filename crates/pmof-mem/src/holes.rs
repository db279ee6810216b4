//! Which bytes of a memory were ever stored: a hole of its file is zeros that need not be read.

use std::{
    ops::Range,
    os::fd::{AsFd as _, BorrowedFd},
};

use rustix::{
    fs::{FileType, SeekFrom},
    io::Errno,
};

use crate::{Medium as _, MemError, Memory, check_bounds, flush::Flush, judge::magic_of};

/// File systems that answer `SEEK_DATA` from their extents and from the page cache together, so that what was stored through a
/// mapping and not written yet is data (linux/magic.h): ext4, which shares its number with ext2 and ext3, XFS and tmpfs. FUSE
/// asks its server, which does not know the kernel's pages; btrfs overlooked such pages before Linux 6.2.
const HOLE_MAGICS: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

impl Memory {
    /// The first range at or after `offset` that may hold bytes other than zeros. `None`: all zeros from there to the end.
    ///
    /// Holes are those of the file, and allocated space that was never written. Memory whose holes are not known reliably counts as data
    /// as a whole: anonymous and borrowed memory, devices, and files on other file systems. Consecutive ranges may be adjacent.
    /// There must be no concurrent stores.
    ///
    /// Errors: `OutOfBounds`.
    pub fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, MemError> {
        let len_bytes = self.len_bytes();
        check_bounds(offset, 0, len_bytes)?;
        let all = (offset < len_bytes).then_some(offset..len_bytes);
        Ok(match (self.flush_means(), self.file()) {
            _ if self.is_borrowed() => all,
            (Flush::Parts(parts), _) => parts.iter().filter(|part| part.end > offset).find_map(|part| {
                let (from, shift) = (offset.max(part.start), part.file_offset);
                let in_file = |at: u64| shift + (at - part.start);
                let found = next_in_file(part.file.as_fd(), in_file(from)..in_file(part.end))?;
                Some(found.start - shift + part.start..found.end - shift + part.start)
            }),
            (_, Some(file)) => {
                let shift = self.file_offset();
                next_in_file(file, shift + offset..shift + len_bytes)
                    .map(|found| found.start - shift..found.end - shift)
            }
            (_, None) => all,
        })
    }
}

/// The first contiguous data in a range of a file.
fn next_in_file(file: BorrowedFd<'_>, range: Range<u64>) -> Option<Range<u64>> {
    if range.is_empty() {
        return None;
    }
    if !tells_holes(file, range.end) {
        return Some(range);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(range.start)) {
        Ok(start) if start >= range.end => return None,
        Ok(start) => start.max(range.start),
        // All is a hole from here to the end of the file, which is not before the end of the range.
        Err(Errno::NXIO) => return None,
        Err(_) => return Some(range),
    };
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) if end > start => Some(start..end.min(range.end)),
        _ => Some(start..range.end),
    }
}

/// Whether the file's holes are known. Those of a truncated file are not: bytes behind its end cannot be read.
fn tells_holes(file: BorrowedFd<'_>, end: u64) -> bool {
    let is_whole = rustix::fs::fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size.unsigned_abs() >= end
    });
    is_whole && magic_of(file).is_ok_and(|magic| HOLE_MAGICS.contains(&magic))
}

#[cfg(test)]
mod tests;
