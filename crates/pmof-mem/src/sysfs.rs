//! What the kernel says about block devices and nd regions (Documentation/ABI/testing/sysfs-bus-nd).
//!
//! The root is a parameter, so that fixture trees can be judged as the real `/sys` is.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use crate::MemError;

/// Where sysfs is mounted.
pub const SYSFS_ROOT: &str = "/sys";

/// Device-mapper and md stacks deeper than this are not followed: real ones have two or three layers.
const STACK_LIMIT: usize = 8;

/// Block drivers that keep their data in the machine's own memory or nowhere.
const MEMORY_DISKS: [&str; 3] = ["ram", "zram", "nullb"];

/// What survives loss of power in an nd region, as its `persistence_domain` attribute says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PersistenceDomain {
    /// The memory controller: cache lines must be written back.
    MemoryController,
    /// The CPU caches too (eADR): a fence is enough.
    CpuCache,
    /// The kernel does not say.
    Unknown,
}

impl fmt::Display for PersistenceDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::MemoryController => "memory_controller",
            Self::CpuCache => "cpu_cache",
            Self::Unknown => "unknown",
        })
    }
}

/// One nd region of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionProbe {
    /// The kernel's name, as `region0`.
    pub name: String,
    /// What survives loss of power there.
    pub domain: PersistenceDomain,
    /// The region is a virtio-pmem device: durable by fsync only.
    pub is_virtio: bool,
}

/// The nd regions below `sysfs_root` (normally [`SYSFS_ROOT`]), sorted by name; empty where there are none.
pub fn probe_regions(sysfs_root: &Path) -> Result<Vec<RegionProbe>, MemError> {
    let directory = sysfs_root.join("bus/nd/devices");
    let failed = |source| MemError::Io { call: "readdir", path: directory.clone(), mend: "", source };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut regions = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if is_region(&path) {
            regions.push(region_at(&fs::canonicalize(&path).unwrap_or(path)));
        }
    }
    regions.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(regions)
}

/// What a block device finally stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A namespace of an nd region.
    Region { device: String, region: RegionProbe },
    /// A disk that is lost with the machine's memory.
    MemoryDisk { device: String },
    /// A file on another file system, as far as the kernel names it.
    Loop { device: String, file: Option<PathBuf> },
    /// Any other disk.
    Disk { device: String },
    /// The kernel does not say.
    Unknown { why: String },
}

/// What the block device `major:minor` stands on: one entry for each lowest device of its stack, at least one.
pub(crate) fn block_backing(sysfs_root: &Path, major: u32, minor: u32) -> Vec<Backing> {
    let link = sysfs_root.join(format!("dev/block/{major}:{minor}"));
    match fs::canonicalize(&link) {
        Ok(directory) => stack_backing(&directory, STACK_LIMIT),
        Err(error) => vec![Backing::Unknown { why: format!("{}: {error}", link.display()) }],
    }
}

/// The directory of the devdax device `major:minor`, if it is one.
pub(crate) fn devdax_directory(sysfs_root: &Path, major: u32, minor: u32) -> Option<PathBuf> {
    let directory = fs::canonicalize(sysfs_root.join(format!("dev/char/{major}:{minor}"))).ok()?;
    let subsystem = fs::read_link(directory.join("subsystem")).ok()?;
    (subsystem.file_name()? == "dax").then_some(directory)
}

/// Size of a devdax device in bytes.
pub(crate) fn devdax_len_bytes(directory: &Path) -> Option<u64> {
    attribute(directory, "size")?.parse().ok()
}

/// The nd region above a device's directory.
pub(crate) fn region_above(directory: &Path) -> Option<RegionProbe> {
    directory.ancestors().find(|path| is_region(path)).map(region_at)
}

fn stack_backing(directory: &Path, depth_left: usize) -> Vec<Backing> {
    // A partition's directory lies inside its disk's.
    let disk = if directory.join("partition").exists() { directory.parent().unwrap_or(directory) } else { directory };
    let device = disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let lower = lower_devices(directory);
    if !lower.is_empty() {
        if depth_left == 0 {
            return vec![Backing::Unknown { why: format!("{device} stands on more than {STACK_LIMIT} layers") }];
        }
        return lower.iter().flat_map(|path| stack_backing(path, depth_left - 1)).collect();
    }
    vec![if let Some(region) = region_above(disk) {
        Backing::Region { device, region }
    } else if numbered(&device, "loop") {
        let file = attribute(disk, "loop/backing_file").map(PathBuf::from);
        Backing::Loop { device, file }
    } else if MEMORY_DISKS.iter().any(|name| numbered(&device, name)) {
        Backing::MemoryDisk { device }
    } else if numbered(&device, "dm-") || numbered(&device, "md") {
        Backing::Unknown { why: format!("{device} names no device that it stands on") }
    } else {
        Backing::Disk { device }
    }]
}

fn lower_devices(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory.join("slaves")) else { return Vec::new() };
    entries.filter_map(|entry| fs::canonicalize(entry.ok()?.path()).ok()).collect()
}

fn region_at(directory: &Path) -> RegionProbe {
    let domain = match attribute(directory, "persistence_domain").as_deref() {
        Some("memory_controller") => PersistenceDomain::MemoryController,
        Some("cpu_cache") => PersistenceDomain::CpuCache,
        _ => PersistenceDomain::Unknown,
    };
    let is_virtio = directory.ancestors().any(|path| {
        fs::read_link(path.join("driver"))
            .is_ok_and(|driver| driver.file_name().is_some_and(|name| name == "virtio_pmem"))
    });
    RegionProbe { name: directory.file_name().unwrap_or_default().to_string_lossy().into_owned(), domain, is_virtio }
}

fn is_region(path: &Path) -> bool {
    path.file_name().is_some_and(|name| numbered(&name.to_string_lossy(), "region"))
}

/// Whether `name` is `prefix` and a number.
fn numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn attribute(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
