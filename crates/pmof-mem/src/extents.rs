//! Where the bytes of a file lie on its device (`FS_IOC_FIEMAP`, linux/fiemap.h).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;
/// The last extent of the file.
const LAST: u32 = 1;
/// The extent has no bytes on the device yet: its place is not known, or its blocks are marked as unwritten.
const UNWRITTEN: u32 = 0x2 | 0x4 | 0x800;
/// The place of the extent is not known yet, or is none on the device.
const NO_PLACE: u32 = 0x2 | 0x4 | 0x8 | 0x200;

/// Extents asked for at a time.
const ROOM: usize = 64;

/// Bytes of a file that are contiguous on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// In the file.
    pub(crate) logical: u64,
    /// On the device that the file system lies on.
    pub(crate) physical: u64,
    pub(crate) len_bytes: u64,
}

/// `struct fiemap_extent`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room behind it.
#[derive(Debug)]
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; ROOM],
}

/// All extents of `file` that have a place on a device. File systems in memory have no answer, which is an error.
pub(crate) fn extents(file: BorrowedFd<'_>) -> io::Result<Vec<Extent>> {
    let placed = raw_extents(file)?.into_iter().filter(|extent| extent.flags & NO_PLACE == 0);
    let extent = |RawExtent { logical, physical, length, .. }| Extent { logical, physical, len_bytes: length };
    Ok(placed.map(extent).collect())
}

/// Whether the device has been written to for the byte at `offset`, as far as the file system's own records tell.
pub(crate) fn is_written(file: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    let has = |extent: &RawExtent| extent.logical <= offset && offset - extent.logical < extent.length;
    Ok(raw_extents(file)?.iter().any(|extent| has(extent) && extent.flags & UNWRITTEN == 0))
}

fn raw_extents(file: BorrowedFd<'_>) -> io::Result<Vec<RawExtent>> {
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let mut request = Fiemap {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped_extents: 0,
            extent_count: ROOM as u32,
            reserved: 0,
            extents: [RawExtent::default(); ROOM],
        };
        // SAFETY: the request is a `struct fiemap` with the room for extents that it says, which is all that the kernel
        // writes to.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let filled = &request.extents[..(request.mapped_extents as usize).min(ROOM)];
        found.extend_from_slice(filled);
        match filled.last() {
            Some(last) if last.flags & LAST == 0 && last.logical + last.length > start => {
                start = last.logical + last.length;
            }
            _ => return Ok(found),
        }
    }
}
