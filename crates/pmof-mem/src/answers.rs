//! Direct queries of devices, for facts that sysfs reports as text that may be outdated, or not at all:
//! the file of a loop device, the table of device-mapper, the number behind a device's name.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::{
    mounts::{Mount, mount_above, mounts},
    sysfs::{attribute, parse_number},
};

/// dm-crypt over a device that begins with the LUKS header that the mapping says it is of.
pub(crate) const CRYPT_WITH_HEADER: &str = "crypt with a LUKS header";

/// `LOOP_GET_STATUS64` (linux/loop.h).
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
/// `DM_TABLE_STATUS`: `_IOWR(0xfd, 12, struct dm_ioctl)` (linux/dm-ioctl.h).
const DM_TABLE_STATUS: libc::Ioctl = 0xc138_fd0c;
const DM_CONTROL: &str = "/dev/mapper/control";
const DM_BUFFER_FULL: u32 = 1 << 8;
/// Room for the answer about a table; longer ones are refused.
const TABLE_BYTES: usize = 256 << 10;
/// `struct dm_ioctl`, `struct dm_target_spec`.
const DM_HEADER_BYTES: usize = 312;
const DM_TARGET_BYTES: usize = 40;

/// LUKS 1 and 2: magic at 0, the uuid at 168 (cryptsetup's on-disk formats).
const LUKS_MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
const LUKS_UUID_AT: usize = 168;
const LUKS_UUID_BYTES: usize = 40;

/// A file by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
}

impl FileId {
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self { device: (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)), inode: stat.st_ino })
    }

    fn parse(text: &str) -> Option<Self> {
        let (device, inode) = text.split_once(' ')?;
        Some(Self { device: parse_number(device)?, inode: inode.parse().ok()? })
    }
}

/// What a path leads to.
#[derive(Debug)]
pub(crate) enum Found {
    /// The open file.
    Open(OwnedFd),
    /// For a copied machine, the mount that it is on.
    Copied(Mount),
}

/// The source of the answers.
#[derive(Clone, Debug)]
pub(crate) enum Answers {
    /// The devices of this machine, as far as this process may ask.
    Devices,
    /// Files in a directory: `loopN` and `dm-N` with the answers, `files` with a line `MAJOR:MINOR INODE PATH` for each
    /// path that was looked at.
    Copied(PathBuf),
    /// No source.
    None,
}

/// Why a table is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// This process lacks the permission, or there is no source to ask.
    NotAllowed(String),
    /// The query was made, but its answer is not usable.
    Failed(String),
}

/// Where udev keeps its database of devices, which every user may read.
const UDEV_DATA: &str = "/run/udev/data";

/// Why there is no answer.
const NOT_ASKED: &str = "nobody was asked on that machine";

impl Answers {
    /// The file that the loop device of this name and number reads and writes.
    pub(crate) fn loop_file(&self, name: &str, number: (u32, u32)) -> Result<FileId, String> {
        match self {
            Self::Devices => loop_status(&open_device(name, number)?)
                .map_err(|error| format!("LOOP_GET_STATUS64 of {name}: {error}")),
            Self::Copied(directory) => attribute(directory, name)
                .and_then(|text| FileId::parse(&text))
                .ok_or_else(|| format!("{name}: {NOT_ASKED}")),
            Self::None => Err(format!("{name}: {NOT_ASKED}")),
        }
    }

    /// The regular file at `path`, if it is `expected`.
    pub(crate) fn file_at(&self, proc_root: &Path, path: &Path, expected: FileId) -> Result<Found, String> {
        let shown = path.display();
        let other =
            || format!("{shown} is not that file: it was mounted over, detached, or is of another mount namespace");
        match self {
            Self::Devices => {
                let file = open_regular(path).map_err(|error| format!("{shown} cannot be opened: {error}"))?;
                let found = FileId::of(file.as_fd()).map_err(|error| format!("{shown}: {error}"))?;
                if found == expected { Ok(Found::Open(file)) } else { Err(other()) }
            }
            Self::Copied(directory) => {
                let files = attribute(directory, "files").unwrap_or_default();
                let same = |line: &str| line.strip_suffix(path.to_str()?)?.strip_suffix(' ').and_then(FileId::parse);
                let found = files.lines().find_map(same).ok_or_else(|| format!("{shown}: {NOT_ASKED}"))?;
                let mounts = mounts(proc_root).map_err(|error| format!("the mount table cannot be read: {error}"))?;
                let mount = mount_above(&mounts, path).filter(|mount| mount.device == found.device);
                let mount = mount.filter(|_| found == expected).ok_or_else(other)?;
                Ok(Found::Copied(mount.clone()))
            }
            Self::None => Err(format!("{shown}: {NOT_ASKED}")),
        }
    }

    /// The targets of a device-mapper device; `lower`: the kernel's names of the devices below it.
    pub(crate) fn table(&self, name: &str, number: (u32, u32), lower: &[String]) -> Result<Vec<String>, Unanswered> {
        match self {
            Self::Devices => asked_table(number, lower),
            Self::Copied(directory) if directory.join(name).exists() => attribute(directory, name)
                .map(|text| text.lines().map(str::to_owned).collect())
                .ok_or_else(|| Unanswered::Failed(format!("{name}: the answer is no text"))),
            Self::Copied(_) | Self::None => Err(Unanswered::NotAllowed(NOT_ASKED.into())),
        }
    }

    /// The udev database entry of the block device with that number.
    pub(crate) fn udev(&self, (major, minor): (u32, u32)) -> Option<String> {
        let directory = match self {
            Self::Devices => Path::new(UDEV_DATA),
            Self::Copied(directory) => directory,
            Self::None => return None,
        };
        attribute(directory, &format!("b{major}:{minor}"))
    }

    /// Checks that the name of a block device in a mount option still leads to that device. A copy cannot tell.
    pub(crate) fn is_device(&self, source: &str, number: (u32, u32)) -> bool {
        let Self::Devices = self else { return true };
        let stat = rustix::fs::stat(source);
        stat.is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
                && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == number
        })
    }
}

/// Opens a regular file, without following links and without blocking.
pub(crate) fn open_regular(path: &Path) -> io::Result<OwnedFd> {
    // Checked before it is opened: opening some devices and pipes has side effects.
    let is_regular = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
    let not_regular = || io::Error::other("it is no regular file");
    let place = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if !is_regular(rustix::fs::fstat(&place)?.st_mode) {
        return Err(not_regular());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    if is_regular(rustix::fs::fstat(&file)?.st_mode) { Ok(file) } else { Err(not_regular()) }
}

/// Opens the block device that the kernel calls `name`, which must have that number.
fn open_device(name: &str, number: (u32, u32)) -> Result<File, String> {
    // The kernel writes `!` in sysfs for a slash.
    let path = Path::new("/dev").join(name.replace('!', "/"));
    let shown = path.display();
    let stat = rustix::fs::stat(&path).map_err(|error| format!("{shown}: {error}"))?;
    let found = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice || found != number {
        return Err(format!("{shown} is not the block device of that name"));
    }
    File::open(&path).map_err(|error| format!("{shown} cannot be asked: {error}"))
}

fn loop_status(device: &File) -> io::Result<FileId> {
    /// `struct loop_info64`.
    #[repr(C)]
    struct Info {
        device: u64,
        inode: u64,
        rest: [u64; 27],
    }
    let mut info = Info { device: 0, inode: 0, rest: [0; 27] };
    // SAFETY: the kernel writes one `struct loop_info64`, 232 bytes, which `info` has.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(FileId { device: decode_number(info.device as u32), inode: info.inode })
}

/// A device's number as the kernel codes it for programs (`huge_encode_dev`, `linux/kdev_t.h`).
fn encode_number((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn decode_number(number: u32) -> (u32, u32) {
    ((number & 0xf_ff00) >> 8, (number & 0xff) | ((number >> 12) & 0xf_ff00))
}

/// Asks device-mapper, without the keys that a table may have.
fn asked_table(number: (u32, u32), lower: &[String]) -> Result<Vec<String>, Unanswered> {
    use io::ErrorKind::{NotFound, PermissionDenied};
    let unanswered = |call: &str, error: io::Error| {
        let why = format!("{call}: {error}");
        // A container has no such node: there is no source, as for a user who is not root.
        let is_refusal = matches!(error.kind(), PermissionDenied | NotFound);
        if is_refusal { Unanswered::NotAllowed(why) } else { Unanswered::Failed(why) }
    };
    let control = File::options().read(true).write(true).open(DM_CONTROL);
    let control = control.map_err(|error| unanswered(DM_CONTROL, error))?;
    // u64 words, so that the kernel's structures are aligned.
    let mut buffer = vec![0_u64; TABLE_BYTES / 8];
    let mut put = |word: usize, low: u32, high: u32| buffer[word] = u64::from(low) | (u64::from(high) << 32);
    put(0, 4, 0);
    put(1, 0, TABLE_BYTES as u32);
    put(2, DM_HEADER_BYTES as u32, 0);
    buffer[5] = u64::from(encode_number(number));
    // SAFETY: the buffer is a `struct dm_ioctl` that says how long it is, and the kernel writes no more than that.
    if unsafe { libc::ioctl(control.as_raw_fd(), DM_TABLE_STATUS, buffer.as_mut_ptr()) } != 0 {
        return Err(unanswered("DM_TABLE_STATUS", io::Error::last_os_error()));
    }
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let targets = parse_table(&bytes);
    let targets = targets.ok_or_else(|| Unanswered::Failed("device-mapper's answer cannot be understood".into()))?;
    let uuid = text_at(&bytes, 48 + 128, 129);
    Ok(targets
        .into_iter()
        .map(
            |target| {
                if target == "crypt" && has_luks_header(&uuid, lower) { CRYPT_WITH_HEADER.to_owned() } else { target }
            },
        )
        .collect())
}

/// The names of the targets in the answer to `DM_TABLE_STATUS`.
fn parse_table(bytes: &[u8]) -> Option<Vec<String>> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (start, count, flags) = (word(16)? as usize, word(20)?, word(28)?);
    if flags & DM_BUFFER_FULL != 0 {
        return None;
    }
    let (mut targets, mut at) = (Vec::new(), start);
    for _ in 0..count {
        bytes.get(at..at + DM_TARGET_BYTES)?;
        targets.push(text_at(bytes, at + 24, 16));
        at = start.checked_add(word(at + 20)? as usize)?;
    }
    Some(targets)
}

fn text_at(bytes: &[u8], at: usize, len_bytes: usize) -> String {
    let field = bytes.get(at..at + len_bytes).unwrap_or_default();
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// Whether the one device below begins with the LUKS header that the mapping's uuid names: `CRYPT-LUKSn-UUID-name`, the
/// uuid without hyphens. Otherwise the key may have been generated at boot, and is lost at the next one.
fn has_luks_header(uuid: &str, lower: &[String]) -> bool {
    let [device] = lower else { return false };
    let number = attribute(&Path::new(crate::SYSFS_ROOT).join("class/block").join(device), "dev");
    let Some(number) = number.and_then(|number| parse_number(&number)) else { return false };
    let mut header = [0; LUKS_UUID_AT + LUKS_UUID_BYTES];
    let is_read = open_device(device, number).is_ok_and(|file| file.read_exact_at(&mut header, 0).is_ok());
    is_read && is_header_of(&header, uuid)
}

/// Whether `header`, the first bytes of a device, is the LUKS header that the mapping's uuid names.
fn is_header_of(header: &[u8], uuid: &str) -> bool {
    let named = ["CRYPT-LUKS1-", "CRYPT-LUKS2-"].iter().find_map(|prefix| uuid.strip_prefix(prefix));
    let Some(named) = named.and_then(|named| named.split('-').next()) else { return false };
    let own = text_at(header, LUKS_UUID_AT, LUKS_UUID_BYTES).replace('-', "");
    header.starts_with(LUKS_MAGIC) && !own.is_empty() && named == own
}

#[cfg(test)]
mod tests;
