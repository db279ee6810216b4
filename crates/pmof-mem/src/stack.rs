//! The devices below a block device, and whether a flush reaches them.
//!
//! Only drivers whose flush is known count: a layer or disk that is not in these lists leaves the question open.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    System,
    mapper::passes_flushes,
    region::RegionProbe,
    sysfs::{attribute, numbered, region_above},
};

/// Stacks deeper than this are not followed: real ones have two or three layers.
const STACK_LIMIT: usize = 8;

/// Block drivers that keep their data in the machine's own memory or nowhere.
const MEMORY_DISKS: [&str; 3] = ["ram", "zram", "nullb"];
/// SCSI models that do: the kernel's test disk, and the memory back end of its SCSI target.
const MEMORY_MODELS: [&str; 3] = ["scsi_debug", "RAMDISK-MCP", "RAMDISK-DR"];
/// Block drivers whose flush depends on a server or on a program of this machine.
const SERVED_DISKS: [&str; 5] = ["nbd", "rbd", "rnbd", "ublkb", "drbd"];
/// Transports of `NVMe` controllers that sit in this machine (the controller's attribute `transport`).
const LOCAL_NVME: [&str; 2] = ["pcie", "apple-nvme"];
/// Levels of md whose members hold what was flushed; those with parity need more.
const SOUND_LEVELS: [&str; 4] = ["raid0", "raid1", "raid10", "linear"];
const PARITY_LEVELS: [&str; 3] = ["raid4", "raid5", "raid6"];

/// `queue/write_cache`: the kernel sends the device flushes.
const WRITE_BACK: &str = "write back";
/// `queue/write_cache`: it sends none, since the device has no cache, or since somebody wrote so.
const WRITE_THROUGH: &str = "write through";

/// The lowest device of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A namespace of an nd region.
    Region { device: String, region: RegionProbe },
    /// A disk that is lost with the machine's memory.
    MemoryDisk { device: String },
    /// A file on another file system, as far as the kernel names it.
    Loop { device: String, file: Option<PathBuf> },
    /// A disk whose durability depends on a server or a program.
    Served { device: String },
    /// Any other disk; `write_cache` as its queue says.
    Disk { device: String, write_cache: String },
    /// The kernel does not say.
    Unknown { why: String },
}

/// Why it is not known that a flush passes through a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) why: String,
    /// It is about device-mapper's table. The kernel grants DAX through linear and striped tables only, so where it does,
    /// the table need not be asked for.
    pub(crate) is_of_table: bool,
}

/// A block device from the top to all that it lies on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stack {
    /// The lowest devices, at least one.
    pub(crate) leaves: Vec<Backing>,
    pub(crate) doubts: Vec<Doubt>,
    /// The evidence that layers pass flushes on, if it takes more than their names: sentences.
    pub(crate) evidence: Vec<String>,
}

impl Stack {
    pub(crate) fn unknown(why: String) -> Self {
        Self { leaves: vec![Backing::Unknown { why }], ..Self::default() }
    }

    fn doubt(&mut self, why: String) {
        self.doubts.push(Doubt { why, is_of_table: false });
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.leaves.extend(other.leaves);
        self.doubts.extend(other.doubts);
        self.evidence.extend(other.evidence);
    }
}

/// The stack below the block device `major:minor`.
pub(crate) fn block_stack(system: &System, (major, minor): (u32, u32)) -> Stack {
    let link = system.sysfs_root.join(format!("dev/block/{major}:{minor}"));
    match fs::canonicalize(&link) {
        Ok(directory) => stack_at(system, &directory, STACK_LIMIT),
        Err(error) => Stack::unknown(format!("{}: {error}", link.display())),
    }
}

fn stack_at(system: &System, directory: &Path, depth_left: usize) -> Stack {
    // A partition's directory lies inside its disk's.
    let disk = if directory.join("partition").exists() { directory.parent().unwrap_or(directory) } else { directory };
    let device = disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let lower = lower_devices(disk);
    if lower.is_empty() {
        return lowest(disk, device);
    }
    if depth_left == 0 {
        return Stack::unknown(format!("{device} is on more than {STACK_LIMIT} layers"));
    }
    let mut stack = Stack::default();
    for path in &lower {
        stack.extend(match path {
            Some(path) => stack_at(system, path, depth_left - 1),
            None => Stack::unknown(format!("{device} is on a device that cannot be found")),
        });
    }
    if let Some(why) = layer_holds_flushes(disk, &device, &stack.leaves) {
        stack.doubt(why);
    }
    if disk.join("dm").is_dir() {
        match passes_flushes(system, disk, &device) {
            Ok(sentence) => stack.evidence.push(sentence),
            Err(why) => stack.doubts.push(Doubt { why, is_of_table: true }),
        }
    } else if disk.join("md").is_dir() {
        if let Some(why) = array_doubt(&disk.join("md"), &device) {
            stack.doubt(why);
        }
    } else {
        stack.doubt(format!("what {device}, which is built on other disks, does with a flush is not known here"));
    }
    stack
}

/// Why a layer's own queue keeps flushes from what is below: the kernel sends none to a queue that says write through,
/// which is harmless only where nothing below has a cache either.
fn layer_holds_flushes(disk: &Path, device: &str, leaves: &[Backing]) -> Option<String> {
    let is_without_cache =
        |leaf: &Backing| matches!(leaf, Backing::Disk { write_cache, .. } if write_cache == WRITE_THROUGH);
    match attribute(disk, "queue/write_cache").as_deref() {
        Some(WRITE_BACK) => None,
        Some(WRITE_THROUGH) if leaves.iter().all(is_without_cache) => None,
        Some(WRITE_THROUGH) => Some(format!("{device} says write through, so the kernel passes no flush on below it")),
        _ => Some(format!("{device} does not say whether it passes flushes on (queue/write_cache)")),
    }
}

fn array_doubt(md: &Path, device: &str) -> Option<String> {
    let said = |name| attribute(md, name).unwrap_or_default();
    let (level, version) = (said("level"), said("metadata_version"));
    if version.is_empty() || version == "none" {
        return Some(format!("{device} is an array without metadata, which nobody finds after a restart"));
    }
    if !matches!(said("bitmap/backlog").as_str(), "" | "0") {
        return Some(format!("{device} writes to some members behind the others (bitmap/backlog)"));
    }
    if SOUND_LEVELS.contains(&level.as_str()) {
        return None;
    }
    if !PARITY_LEVELS.contains(&level.as_str()) {
        return Some(format!("{device} is an array of a level that is not known here: {level}"));
    }
    // A degraded stripe whose update is cut short loses what was flushed to its missing member.
    let closes_hole = ["journal", "ppl"].contains(&said("consistency_policy").as_str());
    (!closes_hole && said("degraded") != "0")
        .then(|| format!("{device} is a degraded array with parity and no journal"))
}

/// A device that has no other below it that the kernel names.
fn lowest(disk: &Path, device: String) -> Stack {
    let write_cache = attribute(disk, "queue/write_cache");
    let is_written_back = write_cache.as_deref() == Some(WRITE_BACK);
    let one = |leaf| Stack { leaves: vec![leaf], ..Stack::default() };
    if let Some(region) = region_above(disk) {
        // The block translation table (pmemNs) waits for each write, and has no cache to flush.
        let is_sector = device.starts_with("pmem") && device.ends_with('s');
        let doubt = format!("{device} does not say write back, so the kernel does not flush it");
        let mut stack = one(Backing::Region { device, region });
        let is_sound = is_written_back || (is_sector && write_cache.as_deref() == Some(WRITE_THROUGH));
        if !is_sound {
            stack.doubt(doubt);
        }
        stack
    } else if numbered(&device, "loop") {
        let file = attribute(disk, "loop/backing_file").map(PathBuf::from);
        let doubt = format!("{device} does not say write back, so no flush reaches its file");
        let mut stack = one(Backing::Loop { device, file });
        if !is_written_back {
            stack.doubt(doubt);
        }
        stack
    } else if MEMORY_DISKS.iter().any(|name| numbered(&device, name)) || has_memory_model(disk) {
        one(Backing::MemoryDisk { device })
    } else if SERVED_DISKS.iter().any(|name| numbered(&device, name)) {
        one(Backing::Served { device })
    } else {
        one(hardware(disk, device, write_cache))
    }
}

/// A disk of hardware in this machine whose driver is known to pass a flush on.
fn hardware(disk: &Path, device: String, write_cache: Option<String>) -> Backing {
    let is_scsi = is_lettered(&device, "sd");
    let is_nvme = device.starts_with("nvme");
    let is_other = ["vd", "xvd"].iter().any(|name| is_lettered(&device, name)) || numbered(&device, "mmcblk");
    if is_nvme {
        let transports = nvme_transports(disk);
        if transports.is_empty() {
            return Backing::Unknown { why: format!("{device} does not say how it is reached (transport)") };
        }
        if let Some(far) = transports.iter().find(|transport| !LOCAL_NVME.contains(&transport.as_str())) {
            return Backing::Served { device: format!("{device}, reached by NVMe over {far},") };
        }
    } else if is_scsi {
        if let Some(why) = scsi_far(disk) {
            return Backing::Served { device: format!("{device}, reached by {why},") };
        }
    }
    if !is_nvme && (!(is_scsi || is_other) || has_part(disk, |part| part == "virtual")) {
        return Backing::Unknown { why: format!("{device} is of a driver of which it is not known what it keeps") };
    }
    match write_cache {
        Some(cache) if cache == WRITE_BACK => Backing::Disk { device, write_cache: cache },
        Some(cache) if cache == WRITE_THROUGH && driver_says_write_through(disk, &device) => {
            Backing::Disk { device, write_cache: cache }
        }
        Some(cache) if cache == WRITE_THROUGH => Backing::Unknown {
            why: format!(
                "{device} says write through, which its driver does not confirm: its cache may not be flushed"
            ),
        },
        _ => Backing::Unknown { why: format!("{device} does not say whether it has a write cache to flush") },
    }
}

/// `queue/write_cache` can be written by root, which only ends the kernel's flushes (Documentation/ABI/stable/sysfs-block):
/// that a disk has no cache is believed where its driver says so elsewhere.
fn driver_says_write_through(disk: &Path, device: &str) -> bool {
    let is_said = |text: Option<String>| text.as_deref() == Some(WRITE_THROUGH);
    if device.starts_with("nvme") {
        // The driver sets both, or neither where the device has no volatile cache.
        return attribute(disk, "queue/fua").as_deref() == Some("0");
    }
    if is_lettered(device, "vd") {
        return is_said(attribute(disk, "cache_type"));
    }
    if is_lettered(device, "sd") {
        let Ok(entries) = fs::read_dir(disk.join("device/scsi_disk")) else { return false };
        let said: Vec<_> =
            entries.map(|entry| entry.ok().and_then(|entry| attribute(&entry.path(), "cache_type"))).collect();
        return !said.is_empty() && said.into_iter().all(is_said);
    }
    false
}

/// How the controllers of an `NVMe` disk are reached; empty where one does not say.
fn nvme_transports(disk: &Path) -> Vec<String> {
    let Some(parent) = disk.parent() else { return Vec::new() };
    if let Some(transport) = attribute(parent, "transport") {
        return vec![transport];
    }
    // Of a subsystem with several paths, whose directory has a link to each controller.
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let is_controller = |path: &PathBuf| path.file_name().is_some_and(|name| numbered(&name.to_string_lossy(), "nvme"));
    let controllers = entries.map_while(Result::ok).map(|entry| entry.path()).filter(is_controller);
    controllers.map(|path| attribute(&path, "transport")).collect::<Option<_>>().unwrap_or_default()
}

/// By which fabric a SCSI disk is reached, or which part of the kernel plays it; `None` for one of this machine.
fn scsi_far(disk: &Path) -> Option<&'static str> {
    let is_numbered = |part: &str, prefix: &str| {
        part.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    if has_part(disk, |part| is_numbered(part, "session")) {
        Some("iSCSI")
    } else if has_part(disk, |part| part.starts_with("rport-")) {
        Some("a fabric (Fibre Channel, SRP)")
    } else if has_part(disk, |part| is_numbered(part, "pseudo_") || part.starts_with("tcm_loop")) {
        Some("the kernel's own SCSI target")
    } else {
        None
    }
}

/// Whether a part of the directory's path is like that.
fn has_part(directory: &Path, is: impl Fn(&str) -> bool) -> bool {
    directory.components().any(|part| part.as_os_str().to_str().is_some_and(&is))
}

/// Whether `name` is `prefix` and small letters.
fn is_lettered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_lowercase()))
}

fn has_memory_model(disk: &Path) -> bool {
    attribute(disk, "device/model").is_some_and(|model| MEMORY_MODELS.contains(&model.trim()))
}

/// The devices below this one, by name; `None` for one that cannot be found.
fn lower_devices(disk: &Path) -> Vec<Option<PathBuf>> {
    let mut found: Vec<_> = match fs::read_dir(disk.join("slaves")) {
        Ok(entries) => entries.map(|entry| fs::canonicalize(entry.ok()?.path()).ok()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(_) => vec![None],
    };
    found.sort();
    found
}

#[cfg(test)]
mod tests;
