//! The mount table (proc(5), `/proc/PID/mountinfo`), and which file systems need which care.

use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// `statfs` magics of file systems in memory: tmpfs, ramfs, hugetlbfs (linux/magic.h).
const MEMORY_MAGICS: [u64; 3] = [0x0102_1994, 0x8584_58f6, HUGETLBFS_MAGIC];
const MEMORY_NAMES: [&str; 4] = ["tmpfs", "ramfs", "hugetlbfs", "devtmpfs"];
/// hugetlbfs: lengths must be multiples of its page size.
pub(crate) const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// overlayfs: fsync reaches the upper file system.
pub(crate) const OVERLAY_MAGIC: u64 = 0x794c_7630;
/// File systems that a server or program behind them decides for: NFS, FUSE, 9p, CIFS, SMB2, SMB, Ceph, AFS, Coda,
/// Lustre, vboxsf, vmhgfs.
const SERVED_MAGICS: [u64; 12] = [
    0x6969,
    0x6573_5546,
    0x0102_1997,
    0xff53_4d42,
    0xfe53_4d42,
    0x517b,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
    0x0bd0_0bd0,
    0x786f_4256,
    0xbacb_acbc,
];
const SERVED_NAMES: [&str; 17] = [
    "nfs", "nfs4", "fuse", "fuseblk", "virtiofs", "9p", "cifs", "smb3", "smbfs", "ceph", "afs", "coda", "lustre",
    "vboxsf", "vmhgfs", "orangefs", "beegfs",
];
/// File systems whose fsync is known to write and flush what a file needs: ext2, ext3 and ext4, which share a magic, XFS,
/// and btrfs, whose files show no block device. All others, JFS and F2FS among them, are not judged: JFS never flushes its
/// disk, F2FS does not say which disks it lies on.
const LOCAL_MAGICS: [u64; 2] = [0xef53, 0x5846_5342];
const LOCAL_NAMES: [&str; 4] = ["ext2", "ext3", "ext4", "xfs"];
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// How the promises of a file system come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystemClass {
    /// It lives in memory.
    Memory,
    /// It passes fsync on to the file system above the others.
    Overlay,
    /// A server or a program decides.
    Served,
    /// It lies on several block devices, which its files do not show.
    Btrfs,
    /// It lies on the block device that its files show, and its fsync is known.
    Local,
    /// What its fsync does is not known here.
    Unknown,
}

impl FileSystemClass {
    /// By what the kernel answers to statfs.
    pub(crate) fn of_magic(magic: u64) -> Self {
        match magic {
            OVERLAY_MAGIC => Self::Overlay,
            magic if MEMORY_MAGICS.contains(&magic) => Self::Memory,
            magic if SERVED_MAGICS.contains(&magic) => Self::Served,
            BTRFS_MAGIC => Self::Btrfs,
            magic if LOCAL_MAGICS.contains(&magic) => Self::Local,
            _ => Self::Unknown,
        }
    }

    /// By the name in the mount table.
    pub(crate) fn of_name(name: &str) -> Self {
        match name {
            "overlay" => Self::Overlay,
            name if MEMORY_NAMES.contains(&name) => Self::Memory,
            name if SERVED_NAMES.contains(&name) || name.starts_with("fuse.") => Self::Served,
            "btrfs" => Self::Btrfs,
            name if LOCAL_NAMES.contains(&name) => Self::Local,
            _ => Self::Unknown,
        }
    }
}

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) id: String,
    /// Major and minor number of the device that its files show.
    pub(crate) device: (u32, u32),
    /// Which part of the file system is mounted.
    pub(crate) root: PathBuf,
    pub(crate) point: PathBuf,
    pub(crate) file_system: String,
    pub(crate) source: String,
    /// Those of the mount, then those of the file system.
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// The mount that `file` was opened on.
    pub(crate) fn of(proc_root: &Path, file: BorrowedFd<'_>) -> Option<Self> {
        let info = fs::read_to_string(proc_root.join(format!("self/fdinfo/{}", file.as_raw_fd()))).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
        mounts(proc_root).ok()?.into_iter().find(|mount| mount.id == id)
    }

    /// The value of the option `name=value`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }

    fn parse(line: &str) -> Option<Self> {
        let (place, device) = line.split_once(" - ")?;
        let mut place = place.split(' ');
        let (id, _parent, number) = (place.next()?, place.next()?, place.next()?);
        let (root, point, own_options) = (place.next()?, place.next()?, place.next()?);
        let mut fields = device.split(' ');
        let (file_system, source) = (fields.next()?.to_owned(), unescape(fields.next()?));
        let options = own_options.split(',').chain(fields.next().unwrap_or_default().split(','));
        Some(Self {
            id: id.to_owned(),
            device: crate::sysfs::parse_number(number)?,
            root: unescape(root).into(),
            point: unescape(point).into(),
            file_system,
            source,
            options: options.map(unescape).collect(),
        })
    }
}

/// Every mount that this process sees, in the order of mounting; lines that cannot be understood are left out.
pub(crate) fn mounts(proc_root: &Path) -> io::Result<Vec<Mount>> {
    let bytes = fs::read(proc_root.join("self/mountinfo"))?;
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(Mount::parse).collect())
}

/// The mount that `path` lies on: the deepest, and of several on one point the last.
pub(crate) fn mount_above<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain += before;
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii);
        rest = if let Some(code) = code {
            plain.push(char::from(code));
            &after[3..]
        } else {
            plain.push('\\');
            after
        };
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        27 1 254:0 / / rw,noatime shared:1 master:2 - ext4 /dev/vda rw,nobarrier\n\
        28 27 254:1 / /a\\040b rw - xfs /dev/vdb rw,dax=always\n\
        nonsense\n\
        29 27 254:2 / /a\\040b rw - xfs /dev/vdc rw,logdev=/dev/ram0\n";

    fn table() -> Vec<Mount> {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("self")).unwrap();
        fs::write(directory.path().join("self/mountinfo"), TEXT).unwrap();
        mounts(directory.path()).unwrap()
    }

    #[test]
    fn lines_are_taken_apart() {
        let mounts = table();
        assert_eq!(mounts.len(), 4);
        let root = &mounts[1];
        assert_eq!((root.file_system.as_str(), root.source.as_str(), root.device), ("ext4", "/dev/vda", (254, 0)));
        assert_eq!(root.options, ["rw", "noatime", "rw", "nobarrier"]);
        assert_eq!(mounts[2].point, Path::new("/a b"));
        assert_eq!((mounts[3].option("logdev"), mounts[3].has("rw")), (Some("/dev/ram0"), true));
        assert_eq!(Mount::parse("27 1 254:0\n"), None);
    }

    #[test]
    fn a_path_lies_on_the_deepest_and_last_mount() {
        let mounts = table();
        let above = |path: &str| mount_above(&mounts, path.as_ref()).map(|mount| mount.source.as_str());
        assert_eq!(above("/a b/c"), Some("/dev/vdc"));
        assert_eq!(above("/a/b"), Some("/dev/vda"));
        assert_eq!(above("relative"), None);
    }

    #[test]
    fn names_and_magics_agree() {
        for (magic, name) in [
            (0x0102_1994, "tmpfs"),
            (0xef53, "ext4"),
            (0x6969, "nfs4"),
            (0x6573_5546, "fuse.sshfs"),
            (0x9123_683e, "btrfs"),
            (0x5846_5342, "xfs"),
            (0x3153_464a, "jfs"),
            (0xf2f5_2010, "f2fs"),
            (OVERLAY_MAGIC, "overlay"),
        ] {
            assert_eq!(FileSystemClass::of_magic(magic), FileSystemClass::of_name(name), "{name}");
        }
    }
}
