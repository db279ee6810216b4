//! Memory that the caller mapped. The kernel's table of the process's mappings tells what it is on.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufReader},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags};

use crate::{
    Declaration, MemError, Memory, System,
    file::{NO_PATH, io_error, suitable},
    judge::{Judgement, judge_devdax, judge_file},
    mapping::Mapping,
    memory::check_len,
};

impl Memory {
    /// Memory that the caller mapped or allocated, at `address` of this process, judged by what the kernel reports:
    /// a shared mapping of a file or devdax device promises what [`open`](Self::open) would, if the file can be opened once
    /// more; everything else, and what two mappings share, promises what anonymous memory does.
    ///
    /// `len_bytes`: 1 to [`LEN_BYTES_MAX`](crate::LEN_BYTES_MAX). Errors: `BadLength`, also if the process has no such memory;
    /// `Io` if the kernel does not tell.
    ///
    /// # Safety
    ///
    /// All of the range stays mapped, readable, and writable if it is so now, at this address and to this file, as long as
    /// the value or anything made from it lives, or, in a [`Lent`](crate::Lent), until it was taken back and calls that had
    /// begun are over; other threads of the process access it as racing with a device.
    pub unsafe fn borrow(address: u64, len_bytes: u64, declaration: Option<Declaration>) -> Result<Self, MemError> {
        check_len(len_bytes)?;
        let lacking = || MemError::BadLength { len_bytes, why: "the process has no memory there, or less" };
        let end = address.checked_add(len_bytes).ok_or_else(lacking)?;
        let found = whole(address, end);
        let found = found.map_err(|error| io_error("read /proc/self/smaps", NO_PATH.as_ref(), "", error))?;
        let areas = found.ok_or_else(lacking)?;
        let Some(first) = areas.first() else { return Err(lacking()) };
        let writable = areas.iter().all(Area::is_writable);
        // SAFETY: the kernel says that the whole range is mapped, and with which rights; it stays so as long as the value lives or, lent, until it
        // was taken back.
        let mapping = unsafe { Mapping::borrowed(address, len_bytes as usize, writable) };
        let mapping = mapping.ok_or_else(lacking)?;
        let system = System::real();
        let Some((fd, judgement)) = judge_areas(&system, &areas) else {
            return Ok(Self::assemble(NO_PATH.into(), None, mapping, Judgement::anonymous(), declaration));
        };
        let file_offset = first.file_offset + (address - first.start);
        let path = first.path.clone();
        Ok(Self::assemble(path, Some(fd), mapping, judgement, declaration).at_file_offset(file_offset))
    }
}

/// A range of addresses with the same mapping.
#[derive(Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    /// The kernel's notation: `rwxp`, with `-` for a missing permission and `s` at the end for a shared mapping.
    permissions: [u8; 4],
    /// Where it begins in the file.
    file_offset: u64,
    /// Major and minor number, inode; inode 0: no file.
    file: (u32, u32, u64),
    path: PathBuf,
    /// Mapped with `MAP_SYNC`.
    is_sync: bool,
}

impl Area {
    fn is_writable(&self) -> bool {
        self.permissions[1] == b'w'
    }
}

/// The areas that overlap the range, if they cover it and are readable.
fn whole(start: u64, end: u64) -> io::Result<Option<Vec<Area>>> {
    /// The kernel writes the table piece by piece, while other threads map and unmap: areas that grow or join meanwhile may
    /// seem to leave a gap.
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let areas = areas(start, end)?;
        let has_gap = areas.windows(2).any(|pair| pair[0].end != pair[1].start);
        let covers =
            areas.first().is_some_and(|first| first.start <= start) && areas.last().is_some_and(|last| last.end >= end);
        if covers && !has_gap && areas.iter().all(|area| area.permissions[0] == b'r') {
            return Ok(Some(areas));
        }
    }
    Ok(None)
}

/// The areas that overlap the range.
fn areas(start: u64, end: u64) -> io::Result<Vec<Area>> {
    parse(BufReader::new(File::open("/proc/self/smaps")?), start, end)
}

/// Reads smaps (proc(5)): a line of maps for each area, then lines `Name: value`, of which `VmFlags` has `sf` for `MAP_SYNC`.
fn parse(lines: impl io::BufRead, start: u64, end: u64) -> io::Result<Vec<Area>> {
    let mut found: Vec<Area> = Vec::new();
    let mut is_wanted = false;
    for line in lines.split(b'\n') {
        let line = line?;
        // Paths may hold any bytes; the rest is ASCII.
        let (path, text) = (path_of(&line), String::from_utf8_lossy(&line));
        if let Some(area) = parse_area(&text, path) {
            if area.start >= end {
                break;
            }
            is_wanted = area.end > start;
            if is_wanted {
                found.push(area);
            }
        } else if is_wanted {
            if let (Some(flags), Some(area)) = (text.strip_prefix("VmFlags:"), found.last_mut()) {
                area.is_sync = flags.split_whitespace().any(|flag| flag == "sf");
            }
        }
    }
    Ok(found)
}

/// What follows the five fields of a line and the spaces behind them.
fn path_of(line: &[u8]) -> &Path {
    let path = line.splitn(6, |byte| *byte == b' ').nth(5).unwrap_or(&[]);
    Path::new(OsStr::from_bytes(path.trim_ascii_start()))
}

/// `start-end perms offset major:minor inode path`; all numbers but the inode are hexadecimal.
fn parse_area(line: &str, path: &Path) -> Option<Area> {
    let mut fields = line.splitn(6, ' ');
    let (range, permissions, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (device, inode) = (fields.next()?, fields.next()?);
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    Some(Area {
        start: hexadecimal(start)?,
        end: hexadecimal(end)?,
        permissions: *permissions.as_bytes().first_chunk()?,
        file_offset: hexadecimal(offset)?,
        file: (hexadecimal(major)? as u32, hexadecimal(minor)? as u32, inode.parse().ok()?),
        path: path.into(),
        is_sync: false,
    })
}

/// The file of the areas, opened once more, and its judgement. `None` where they are not one shared mapping of one file that
/// this process can open.
fn judge_areas(system: &System, areas: &[Area]) -> Option<(OwnedFd, Judgement)> {
    let first = areas.first()?;
    let is_one = areas.iter().all(|area| {
        area.permissions[3] == b's'
            && area.file == first.file
            && area.start - first.start == area.file_offset.wrapping_sub(first.file_offset)
    });
    if first.file.2 == 0 || !is_one {
        return None;
    }
    let fd = open_again(first)?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    let judgement = match suitable(system, &first.path, &stat).ok()? {
        Some(directory) => judge_devdax(system, &directory),
        // A file without a name is lost with the process, like anonymous memory.
        None if stat.st_nlink == 0 => return None,
        None => judge_file(system, &first.path, fd.as_fd(), areas.iter().all(|area| area.is_sync)).ok()?,
    };
    Some((fd, judgement))
}

/// The kernel's own link to the mapped file needs a capability; else the path that it names, if the same file is there.
fn open_again(area: &Area) -> Option<OwnedFd> {
    let access = if area.is_writable() { OFlags::RDWR } else { OFlags::RDONLY };
    let open = |path: &Path, more| rustix::fs::openat(CWD, path, access | OFlags::CLOEXEC | more, Mode::empty()).ok();
    let link = format!("/proc/self/map_files/{:x}-{:x}", area.start, area.end);
    open(link.as_ref(), OFlags::empty()).or_else(|| {
        let fd = open(&area.path, OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        (area.file == (device.0, device.1, stat.st_ino)).then_some(fd)
    })
}

#[cfg(test)]
mod tests;
