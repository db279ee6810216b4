//! The health of the modules below a file or device: unsafe shutdowns, bad blocks.

use std::{
    ops::Range,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use crate::{
    MemError, System,
    extents::{Extent, extents},
    file::io_error,
    sysfs::{attribute, devdax_directory, devdax_len_bytes, region_above},
};

/// The unit of the kernel's lists of bad blocks (`badblocks` in sysfs).
const SECTOR_BYTES: u64 = 512;

/// The modules that a file or devdax device lies on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modules {
    /// How often they lost power with writes in flight, summed (`nfit/dirty_shutdown`). A module that does not
    /// tell counts as 0.
    pub unsafe_shutdowns: u64,
    /// Their identities (`nfit/id`), in the order of their numbers.
    pub identities: Vec<String>,
}

/// Ranges of a file or device that cannot be read, in bytes from its start, sorted.
pub type BadBlocks = Vec<Range<u64>>;

/// The modules below a file on a whole persistent memory disk, or below a devdax device; none where there are none, or the
/// kernel does not name them. Partitions and stacks count as none, as they do for PMDK.
pub fn modules_below(system: &System, file: BorrowedFd<'_>) -> Modules {
    let region = match place(system, file) {
        Some(Place::Devdax { directory }) => region_above(&directory),
        Some(Place::Disk { directory }) if !directory.join("partition").exists() => region_above(&directory),
        _ => None,
    };
    let Some(region) = region else { return Modules::default() };
    let mut modules: Vec<_> = region.modules.iter().map(|name| region.directory.with_file_name(name)).collect();
    modules.sort_by_key(|path| number(path));
    let count = |module: &PathBuf| attribute(module, "nfit/dirty_shutdown")?.parse::<u64>().ok();
    Modules {
        unsafe_shutdowns: modules.iter().filter_map(count).fold(0, u64::wrapping_add),
        identities: modules.iter().filter_map(|module| attribute(module, "nfit/id")).collect(),
    }
}

/// The ranges of a file or devdax device that the kernel reports as unreadable; empty if it reports none. For a file on a disk with bad
/// blocks: those in the file's extents.
///
/// Errors: `Io`, where there are bad blocks and the file system does not say whether they are the file's. `path` is for
/// messages.
pub fn bad_blocks(system: &System, file: BorrowedFd<'_>, path: &Path) -> Result<BadBlocks, MemError> {
    match place(system, file) {
        Some(Place::Devdax { directory }) => Ok(bad_blocks_of_device(&directory)),
        Some(Place::Disk { directory }) => {
            let (disk, start) = disk_of(&directory);
            let bad = listed(&disk);
            if bad.is_empty() {
                return Ok(Vec::new());
            }
            let mend = "its disk has bad blocks, and whether the file lies on them is not known";
            let extents = extents(file).map_err(|error| io_error("FS_IOC_FIEMAP", path, mend, error))?;
            Ok(bad_in_file(&bad, start, &extents))
        }
        None => Ok(Vec::new()),
    }
}

/// Where a file lies, by its directory in sysfs.
#[derive(Debug)]
enum Place {
    Devdax { directory: PathBuf },
    Disk { directory: PathBuf },
}

fn place(system: &System, file: BorrowedFd<'_>) -> Option<Place> {
    let stat = rustix::fs::fstat(file).ok()?;
    let number = |device| (rustix::fs::major(device), rustix::fs::minor(device));
    let root = system.sysfs_root();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => {
            let (major, minor) = number(stat.st_rdev);
            Some(Place::Devdax { directory: devdax_directory(root, major, minor)? })
        }
        FileType::RegularFile => {
            let (major, minor) = number(stat.st_dev);
            let directory = std::fs::canonicalize(root.join(format!("dev/block/{major}:{minor}"))).ok()?;
            Some(Place::Disk { directory })
        }
        _ => None,
    }
}

/// The whole disk, and where on it the block device begins, in bytes.
fn disk_of(directory: &Path) -> (PathBuf, u64) {
    if !directory.join("partition").exists() {
        return (directory.into(), 0);
    }
    let start = attribute(directory, "start").and_then(|start| start.parse::<u64>().ok()).unwrap_or(0);
    (directory.parent().unwrap_or(directory).into(), start.saturating_mul(SECTOR_BYTES))
}

fn bad_blocks_of_device(directory: &Path) -> BadBlocks {
    let Some(region) = region_above(directory) else { return Vec::new() };
    let bad = listed(&region.directory);
    let address = |directory: &Path| {
        let text = attribute(directory, "resource")?;
        u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    // Only root may read where they begin: else every bad block of the region counts.
    let (Some(device), Some(start), Some(len_bytes)) =
        (address(directory), address(&region.directory), devdax_len_bytes(directory))
    else {
        return bad;
    };
    let own = Extent { logical: 0, physical: device.saturating_sub(start), len_bytes };
    bad_in_file(&bad, 0, &[own])
}

/// The bad blocks that a disk or region lists: a line `SECTOR COUNT` for each range.
fn listed(directory: &Path) -> BadBlocks {
    let text = attribute(directory, "badblocks").unwrap_or_default();
    let range = |line: &str| {
        let (sector, count) = line.split_once(' ')?;
        let (sector, count): (u64, u64) = (sector.parse().ok()?, count.parse().ok()?);
        let start = sector.checked_mul(SECTOR_BYTES)?;
        Some(start..start.checked_add(count.checked_mul(SECTOR_BYTES)?)?)
    };
    text.lines().filter_map(range).collect()
}

/// The bad ranges of a disk that are in a file; `start`: where the file system begins on the disk.
fn bad_in_file(bad: &[Range<u64>], start: u64, extents: &[Extent]) -> BadBlocks {
    let mut found: BadBlocks = Vec::new();
    for extent in extents {
        let place = extent.physical.saturating_add(start);
        for range in bad {
            let from = range.start.max(place);
            let to = range.end.min(place.saturating_add(extent.len_bytes));
            if from < to {
                found.push(extent.logical + (from - place)..extent.logical + (to - place));
            }
        }
    }
    found.sort_by_key(|range| range.start);
    found
}

/// The number at the end of a module's name.
fn number(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("nmem")?.parse().ok()
}

#[cfg(test)]
mod tests;
