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

/// An attribute is at most a page long.
const ATTRIBUTE_MAX_BYTES: u64 = 64 << 10;

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
    // The link of a name that leads to another device's directory says nothing.
    let found = fs::canonicalize(&directory).ok()?;
    (found.file_name() == directory.file_name()).then(|| parse_number(&attribute(&found, "dev")?))?
}

/// `major:minor`.
pub(crate) fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
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
