//! What the kernel says about block devices and nd regions (Documentation/ABI/testing/sysfs-bus-nd).
//!
//! The root is a parameter, so that fixture trees can be judged as the real `/sys` is.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{
    MemError,
    region::{RegionProbe, is_region, region_at},
};

/// Where sysfs is mounted.
pub const SYSFS_ROOT: &str = "/sys";

/// Device-mapper and md stacks deeper than this are not followed: real ones have two or three layers.
const STACK_LIMIT: usize = 8;

/// An attribute is at most a page long.
const ATTRIBUTE_MAX_BYTES: u64 = 64 << 10;

/// Block drivers that keep their data in the machine's own memory or nowhere.
const MEMORY_DISKS: [&str; 3] = ["ram", "zram", "nullb"];
/// SCSI models that do: the kernel's test disk, and the memory back end of its SCSI target.
const MEMORY_MODELS: [&str; 3] = ["scsi_debug", "RAMDISK-MCP", "RAMDISK-DR"];
/// Block drivers whose flush is a promise of a server or of a program of this machine.
const SERVED_DISKS: [&str; 4] = ["nbd", "rbd", "rnbd", "ublkb"];

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
        // A link whose device went away meanwhile is no region any more.
        let Ok(path) = fs::canonicalize(entry.map_err(failed)?.path()) else { continue };
        if is_region(&path) {
            regions.push(region_at(&path));
        }
    }
    regions.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(regions)
}

/// What `queue/write_cache` says of a disk whose cache the kernel flushes, or which has none.
const WRITE_CACHES: [&str; 2] = ["write back", "write through"];

/// What a block device finally stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A namespace of an nd region.
    Region { device: String, region: RegionProbe },
    /// A disk that is lost with the machine's memory.
    MemoryDisk { device: String },
    /// A file on another file system, as far as the kernel names it.
    Loop { device: String, file: Option<PathBuf> },
    /// A disk that a server or a program behind it decides for.
    Served { device: String },
    /// Any other disk; `write_cache` as its queue says.
    Disk { device: String, write_cache: String },
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

/// What every block device of the machine stands on that could hold a file system now.
///
/// `None` where they cannot be listed. Devices without bytes, such as loop devices over nothing, hold none.
pub(crate) fn all_disks(sysfs_root: &Path) -> Option<Vec<Backing>> {
    let mut backings = Vec::new();
    for entry in fs::read_dir(sysfs_root.join("block")).ok()? {
        let directory = fs::canonicalize(entry.ok()?.path()).ok()?;
        if attribute(&directory, "size").as_deref() != Some("0") {
            backings.extend(stack_backing(&directory, STACK_LIMIT));
        }
    }
    Some(backings)
}

/// The number of the block device that a mount names as its source, `/dev/NAME` or `/dev/mapper/NAME`.
pub(crate) fn block_number(sysfs_root: &Path, source: &str) -> Option<(u32, u32)> {
    let class = sysfs_root.join("class/block");
    let device = source.strip_prefix("/dev/")?;
    let directory = match device.strip_prefix("mapper/") {
        Some(name) => fs::read_dir(&class)
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| attribute(path, "dm/name").as_deref() == Some(name))?,
        None if device.contains('/') => return None,
        None => class.join(device),
    };
    parse_number(&attribute(&directory, "dev")?)
}

/// `major:minor`.
pub(crate) fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The numbers of all devices of the btrfs that holds block device `major:minor`.
pub(crate) fn btrfs_members(sysfs_root: &Path, number: (u32, u32)) -> Option<Vec<(u32, u32)>> {
    for file_system in fs::read_dir(sysfs_root.join("fs/btrfs")).ok()? {
        let Ok(devices) = fs::read_dir(file_system.ok()?.path().join("devices")) else { continue };
        let members: Option<Vec<_>> =
            devices.map(|device| parse_number(&attribute(&device.ok()?.path(), "dev")?)).collect();
        if let Some(members) = members.filter(|members| members.contains(&number)) {
            return Some(members);
        }
    }
    None
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

/// What mappings of a devdax device must begin and end at a multiple of, in bytes. A page where the kernel does not say.
pub(crate) fn devdax_align_bytes(directory: &Path) -> u64 {
    let said = attribute(directory, "align").and_then(|align| align.parse::<u64>().ok());
    said.filter(|align| align.is_power_of_two()).unwrap_or_else(|| rustix::param::page_size() as u64)
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
        let below = |path: &Option<PathBuf>| match path {
            Some(path) => stack_backing(path, depth_left - 1),
            None => vec![Backing::Unknown { why: format!("{device} stands on a device that cannot be found") }],
        };
        return lower.iter().flat_map(below).collect();
    }
    vec![if let Some(region) = region_above(disk) {
        Backing::Region { device, region }
    } else if numbered(&device, "loop") {
        let file = attribute(disk, "loop/backing_file").map(PathBuf::from);
        Backing::Loop { device, file }
    } else if MEMORY_DISKS.iter().any(|name| numbered(&device, name)) || has_memory_model(disk) {
        Backing::MemoryDisk { device }
    } else if SERVED_DISKS.iter().any(|name| numbered(&device, name)) {
        Backing::Served { device }
    } else if numbered(&device, "dm-") || numbered(&device, "md") {
        Backing::Unknown { why: format!("{device} names no device that it stands on") }
    } else {
        match attribute(disk, "queue/write_cache") {
            Some(write_cache) if WRITE_CACHES.contains(&write_cache.as_str()) => Backing::Disk { device, write_cache },
            _ => Backing::Unknown { why: format!("{device} does not say whether it has a write cache to flush") },
        }
    }]
}

fn has_memory_model(disk: &Path) -> bool {
    attribute(disk, "device/model").is_some_and(|model| MEMORY_MODELS.contains(&model.trim()))
}

/// The devices that this one stands on; `None` for one that cannot be found.
fn lower_devices(directory: &Path) -> Vec<Option<PathBuf>> {
    match fs::read_dir(directory.join("slaves")) {
        Ok(entries) => entries.map(|entry| fs::canonicalize(entry.ok()?.path()).ok()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(_) => vec![None],
    }
}

/// The name of the driver that is bound to the device.
pub(crate) fn driver_of(directory: &Path) -> Option<String> {
    Some(fs::read_link(directory.join("driver")).ok()?.file_name()?.to_str()?.to_owned())
}

/// Whether `name` is `prefix` and a number.
pub(crate) fn numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The text of an attribute without the newline at its end; `None` where it is missing, unreadable, without a byte (the
/// kernel ends even an empty answer with a newline), too long or no text.
pub(crate) fn attribute(directory: &Path, name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(directory.join(name)).ok()?;
    file.take(ATTRIBUTE_MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
    if bytes.is_empty() || bytes.len() as u64 > ATTRIBUTE_MAX_BYTES {
        return None;
    }
    String::from_utf8(bytes).ok().map(|text| text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
