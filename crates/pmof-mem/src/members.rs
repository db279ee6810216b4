//! Every block device that holds a part of a file system: data, journals and logs.

use std::{
    ffi::OsString,
    fs, io,
    os::fd::{AsRawFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use crate::{
    System,
    mounts::Mount,
    sysfs::{attribute, block_number, numbered, parse_number},
};

/// `BTRFS_IOC_FS_INFO`: `_IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)` (linux/btrfs.h).
const BTRFS_IOC_FS_INFO: libc::Ioctl = 0x8400_941f;

/// Profiles of btrfs whose stripes, once a device is missing, may lose what was flushed when an update is cut short.
const PARITY_PROFILES: [&str; 2] = ["raid5", "raid6"];

/// The oldest Linux on which fsync was seen to flush the data of ext4 whose journal lies on another device. Before
/// "jbd2: add a missing data flush during file and fs synchronization" (Zhang Yi, 2025) it often flushes the journal's
/// device only: on 6.12.107, 0 of 30 times after writes to preallocated space.
const EXTERNAL_JOURNAL_SINCE: (u32, u32) = (6, 18);

/// Device numbers of a file system, and what was read to know them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    pub(crate) numbers: Vec<(u32, u32)>,
    pub(crate) evidence: Vec<String>,
}

/// The identity and size of a btrfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BtrfsId {
    pub(crate) uuid: String,
    pub(crate) device_count: u64,
}

/// Asks the btrfs that `file` lies on.
pub(crate) fn btrfs_id(file: BorrowedFd<'_>) -> io::Result<BtrfsId> {
    /// `struct btrfs_ioctl_fs_info_args`.
    #[repr(C)]
    struct Info {
        max_id: u64,
        device_count: u64,
        uuid: [u8; 16],
        rest: [u64; 124],
    }
    let mut info = Info { max_id: 0, device_count: 0, uuid: [0; 16], rest: [0; 124] };
    // SAFETY: the kernel reads and writes one `struct btrfs_ioctl_fs_info_args`, 1024 bytes, which `info` has.
    if unsafe { libc::ioctl(file.as_raw_fd(), BTRFS_IOC_FS_INFO, &raw mut info) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(BtrfsId { uuid: uuid_text(&info.uuid), device_count: info.device_count })
}

/// A UUID as sysfs writes it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let digit = |digit: u8| char::from_digit(digit.into(), 16).unwrap_or_default();
    let digits: String = uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| digits[part].to_owned()).join("-")
}

/// The devices of ext2, ext3 or ext4 on the block device `number`: its own, and that of its journal.
pub(crate) fn ext_members(system: &System, mount: &Mount, number: (u32, u32)) -> Result<Members, String> {
    let own = |evidence: &str| Members { numbers: vec![number], evidence: vec![evidence.into()] };
    if mount.file_system == "ext2" {
        return Ok(own("mountinfo: ext2 has no journal"));
    }
    let name = block_name(system, number).ok_or("the kernel does not name the file system's device")?;
    let task = attribute(&system.sysfs_root.join("fs/ext4").join(&name), "journal_task");
    if task.as_deref() == Some("<none>") {
        return Ok(own("sysfs: the file system has no journal"));
    }
    let listed = |error| format!("the kernel does not say where the journal of {name} lies (/proc/fs/jbd2: {error})");
    let journals = fs::read_dir(system.proc_root.join("fs/jbd2")).map_err(listed)?;
    // A journal inside is named after the device and its inode, one outside after its own device (fs/jbd2/journal.c).
    let (mut outside, inside) = (Vec::new(), format!("{name}-"));
    for journal in journals {
        let journal = journal.map_err(listed)?.file_name().to_string_lossy().into_owned();
        if numbered(&journal, &inside) && number_of_name(system, &journal).is_none() {
            return Ok(own("procfs: the file system's journal lies on its own device"));
        }
        if let Some(text) = number_of_name(system, &journal) {
            outside.push((parse_number(&text).ok_or("a journal's device has no number")?, journal));
        }
    }
    if outside.is_empty() {
        return Err(format!("the kernel does not say where the journal of {name} lies"));
    }
    let release = attribute(&system.proc_root, "sys/kernel/osrelease").unwrap_or_default();
    if parse_release(&release).is_none_or(|release| release < EXTERNAL_JOURNAL_SINCE) {
        let (major, minor) = EXTERNAL_JOURNAL_SINCE;
        return Err(format!(
            "Linux before {major}.{minor} may not flush {name} at fsync, since its journal lies on another device"
        ));
    }
    // Whose journal is whose is not said, so all have to keep what they are given.
    let mut members = own("procfs: the file system's journal lies on another device");
    for (number, journal) in outside {
        members.numbers.push(number);
        members.evidence.push(format!("procfs: {journal} holds a journal"));
    }
    Ok(members)
}

/// Major and minor number of a kernel, as `6.12.107+deb13-amd64`.
fn parse_release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The devices of XFS on the block device `number`: its own, and those that it was told to keep its log and the bytes of
/// real-time files on.
pub(crate) fn xfs_members(system: &System, mount: &Mount, number: (u32, u32)) -> Result<Members, String> {
    let mut members = Members { numbers: vec![number], evidence: Vec::new() };
    for option in ["logdev", "rtdev"] {
        if let Some(source) = mount.option(option) {
            let found =
                block_number(&system.sysfs_root, source).filter(|found| system.answers.is_device(source, *found));
            members.numbers.push(found.ok_or_else(|| format!("{option}={source} names no block device now"))?);
            members.evidence.push(format!("mountinfo: {option}={source}"));
        }
    }
    Ok(members)
}

/// The devices of the btrfs that was asked, or, where none was, that the mount's source is one of.
pub(crate) fn btrfs_members(system: &System, mount: &Mount, asked: Option<&BtrfsId>) -> Result<Members, String> {
    let unnamed = || "the kernel does not name all devices of the btrfs".to_owned();
    let root = system.sysfs_root.join("fs/btrfs");
    let directory = if let Some(id) = asked {
        root.join(&id.uuid)
    } else {
        let source = block_number(&system.sysfs_root, &mount.source).ok_or("btrfs names no block device")?;
        let entries = fs::read_dir(&root).map_err(|_| unnamed())?;
        let mut known = entries.map_while(Result::ok).map(|entry| entry.path());
        let has_source = |path: &PathBuf| member_numbers(path).is_some_and(|numbers| numbers.contains(&source));
        known.find(has_source).ok_or_else(unnamed)?
    };
    let numbers = member_numbers(&directory).filter(|numbers| !numbers.is_empty()).ok_or_else(unnamed)?;
    if asked.is_some_and(|id| id.device_count != numbers.len() as u64) {
        return Err("sysfs names another number of devices of the btrfs than it has".into());
    }
    for kind in ["data", "metadata", "system"] {
        if PARITY_PROFILES.iter().any(|profile| directory.join("allocation").join(kind).join(profile).exists()) {
            return Err(format!("the btrfs keeps its {kind} with parity, which a cut update may leave unreadable"));
        }
    }
    Ok(Members { numbers, evidence: Vec::new() })
}

fn member_numbers(directory: &Path) -> Option<Vec<(u32, u32)>> {
    let devices = fs::read_dir(directory.join("devices")).ok()?;
    devices.map(|device| parse_number(&attribute(&device.ok()?.path(), "dev")?)).collect()
}

/// The kernel's name of a block device.
fn block_name(system: &System, (major, minor): (u32, u32)) -> Option<String> {
    let directory = fs::canonicalize(system.sysfs_root.join(format!("dev/block/{major}:{minor}"))).ok()?;
    directory.file_name().map(OsString::from)?.into_string().ok()
}

/// The number, as text, of the block device of that name.
fn number_of_name(system: &System, name: &str) -> Option<String> {
    let directory = fs::canonicalize(system.sysfs_root.join("class/block").join(name)).ok()?;
    if directory.file_name()? == name { attribute(&directory, "dev") } else { None }
}

#[cfg(test)]
mod tests;
