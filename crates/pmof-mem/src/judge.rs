//! The judgement of a file or device: which kind of medium it is, and what can honestly be promised.
//!
//! Only what the kernel says counts as probed. Where it does not say, `PowerFailure` is undecided: refused unless an
//! operator declares the host battery-backed.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use crate::{
    CacheWriteBack, Durability, Evidence, Mechanism, MediumKind, PersistenceDomain, Promise, SYSFS_ROOT,
    sysfs::{Backing, block_backing, region_above},
};

/// A loop device over a file on a loop device and so on is followed this far.
const LOOP_LIMIT: usize = 4;

/// Mount options after which fsync does not flush the device, or is skipped.
const UNSAFE_OPTIONS: [&str; 5] = ["nobarrier", "barrier=0", "fsync_mode=nobarrier", "volatile", "fsync=volatile"];

/// `statfs` magics of file systems in memory: tmpfs, ramfs, hugetlbfs (linux/magic.h).
const MEMORY_MAGICS: [u64; 3] = [0x0102_1994, 0x8584_58f6, HUGETLBFS_MAGIC];
/// hugetlbfs: lengths must be multiples of its page size.
pub(crate) const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// overlayfs: fsync reaches the upper file system.
const OVERLAY_MAGIC: u64 = 0x794c_7630;
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
/// Local file systems whose files show no block device of their own, but whose mount does: btrfs, bcachefs.
const DEVICELESS_MAGICS: [u64; 2] = [0x9123_683e, 0xca45_1a4e];

/// What is asked: the machine's own, or a fixture's.
#[derive(Debug)]
pub(crate) struct System {
    pub(crate) sysfs_root: PathBuf,
    pub(crate) proc_root: PathBuf,
    pub(crate) cpu: Option<CacheWriteBack>,
}

impl System {
    pub(crate) fn real() -> Self {
        Self { sysfs_root: SYSFS_ROOT.into(), proc_root: "/proc".into(), cpu: CacheWriteBack::detect() }
    }
}

/// How `PowerFailure` can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// The kernel's answers imply it.
    Probed(Mechanism),
    /// Only an operator can say; then by this mechanism.
    Undecided { mechanism: Mechanism, why: String },
    /// By nothing.
    Never { why: String },
}

/// What a medium is, how that is known, and what follows.
#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    pub(crate) kind: MediumKind,
    pub(crate) file_system: String,
    pub(crate) power: Power,
    /// Sentences: what was asked, and what the kernel said.
    pub(crate) evidence: Vec<String>,
}

impl Judgement {
    pub(crate) fn anonymous() -> Self {
        Self {
            kind: MediumKind::Anonymous,
            file_system: "none".into(),
            power: Power::Never { why: "anonymous memory dies with its process".into() },
            evidence: vec!["the memory belongs to no file".into()],
        }
    }

    /// How `level` is kept; `declared`: an operator said that the host's memory survives loss of power.
    pub(crate) fn promise(&self, level: Durability, declared: bool) -> Option<Promise> {
        let store = Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed };
        match level {
            Durability::Visible => Some(store),
            Durability::ProcessCrash => (self.kind != MediumKind::Anonymous).then_some(store),
            Durability::PowerFailure => match self.power {
                Power::Probed(mechanism) => Some(Promise { mechanism, evidence: Evidence::Probed }),
                Power::Undecided { mechanism, .. } if declared => {
                    Some(Promise { mechanism, evidence: Evidence::Declared })
                }
                Power::Undecided { .. } | Power::Never { .. } => None,
            },
        }
    }

    /// What keeps this medium from `PowerFailure`, and what would give it; `None` if nothing does.
    pub(crate) fn mend(&self) -> Option<String> {
        let better = "keep it in a file on a local disk or on persistent memory";
        match &self.power {
            Power::Probed(_) => None,
            Power::Undecided { why, .. } => Some(format!(
                "{why}; {better}, or declare the host battery-backed if its memory survives loss of power"
            )),
            Power::Never { why } => Some(format!("{why}; {better}")),
        }
    }
}

/// Judges an open regular file; `map_sync`: the kernel granted `MAP_SYNC` on it.
pub(crate) fn judge_file(system: &System, file: BorrowedFd<'_>, map_sync: bool) -> io::Result<Judgement> {
    Ok(judge_facts(system, &Facts::of(system, file)?, map_sync))
}

/// Judges the devdax device whose sysfs directory this is.
pub(crate) fn judge_devdax(system: &System, directory: &Path) -> Judgement {
    let mut evidence = vec![format!("{} is a dax device", directory.display())];
    let power = match region_above(directory) {
        Some(region) => domain_power(system, &[(region.name, region.domain)], &mut evidence),
        None => undecided(Mechanism::CacheLineWriteBack, "the device lies in no nd region".into()),
    };
    Judgement { kind: MediumKind::DevDax, file_system: "none".into(), power, evidence }
}

/// What the kernel says about one open file.
#[derive(Debug)]
struct Facts {
    magic: u64,
    device: u64,
    mount: Option<Mount>,
    /// Whether the file system names the file's extents: asked on overlayfs only.
    has_extents: bool,
}

impl Facts {
    fn of(system: &System, file: BorrowedFd<'_>) -> io::Result<Self> {
        let magic = magic_of(file)?;
        let device = rustix::fs::fstat(file)?.st_dev;
        let has_extents = magic == OVERLAY_MAGIC && answers_fiemap(file);
        Ok(Self { magic, device, mount: Mount::of(system, file), has_extents })
    }

    fn file_system(&self) -> String {
        self.mount.as_ref().map_or_else(|| format!("{:#x}", self.magic), |mount| mount.file_system.clone())
    }

    fn backing(&self, system: &System) -> Vec<Backing> {
        let own = (rustix::fs::major(self.device) != 0).then_some(self.device);
        let source = || {
            let source = &self.mount.as_ref().filter(|_| DEVICELESS_MAGICS.contains(&self.magic))?.source;
            fs::metadata(source).ok().filter(|found| found.file_type().is_block_device()).map(|found| found.rdev())
        };
        match own.or_else(source) {
            Some(device) => block_backing(&system.sysfs_root, rustix::fs::major(device), rustix::fs::minor(device)),
            None => vec![Backing::Unknown { why: format!("{} names no block device", self.file_system()) }],
        }
    }
}

/// The `statfs` magic of the file system that `file` lies on.
pub(crate) fn magic_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    // The magic is a 32-bit number; some architectures sign-extend it.
    Ok(rustix::fs::fstatfs(file)?.f_type.cast_unsigned() & u64::from(u32::MAX))
}

/// One line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    file_system: String,
    source: PathBuf,
    options: Vec<String>,
}

impl Mount {
    fn of(system: &System, file: BorrowedFd<'_>) -> Option<Self> {
        let own = system.proc_root.join("self");
        let info = fs::read_to_string(own.join(format!("fdinfo/{}", file.as_raw_fd()))).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
        Self::parse(&fs::read_to_string(own.join("mountinfo")).ok()?, id)
    }

    /// Finds mount `id` in a mountinfo text; proc(5) names the fields.
    fn parse(mountinfo: &str, id: &str) -> Option<Self> {
        let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(id))?;
        let (place, device) = line.split_once(" - ")?;
        let mut fields = device.split(' ');
        let (file_system, source) = (fields.next()?.to_owned(), PathBuf::from(fields.next()?));
        let own_options = place.split(' ').nth(5)?;
        let options = own_options.split(',').chain(fields.next().unwrap_or_default().split(','));
        Some(Self { file_system, source, options: options.map(str::to_owned).collect() })
    }
}

fn judge_facts(system: &System, facts: &Facts, map_sync: bool) -> Judgement {
    let file_system = facts.file_system();
    let mut evidence = vec![format!("statfs: {file_system} (magic {:#x})", facts.magic)];
    let (kind, power) = if MEMORY_MAGICS.contains(&facts.magic) {
        (MediumKind::Tmpfs, undecided(Mechanism::Store, format!("{file_system} lives in memory and dies with power")))
    } else if map_sync {
        evidence.push("mmap: the kernel grants MAP_SYNC".into());
        (MediumKind::FsDax, dax_power(system, facts, &mut evidence))
    } else {
        evidence.push("mmap: the kernel refuses MAP_SYNC".into());
        let mut is_virtio = false;
        let power = match sync_reaches_device(system, facts, LOOP_LIMIT, &mut evidence, &mut is_virtio) {
            Ok(()) => Power::Probed(Mechanism::FileSync),
            Err(why) => undecided(Mechanism::FileSync, why),
        };
        (if is_virtio { MediumKind::VirtioPmem } else { MediumKind::PageCache }, power)
    };
    Judgement { kind, file_system, power, evidence }
}

fn undecided(mechanism: Mechanism, why: String) -> Power {
    Power::Undecided { mechanism, why }
}

fn dax_power(system: &System, facts: &Facts, evidence: &mut Vec<String>) -> Power {
    let mut regions = Vec::new();
    for backing in facts.backing(system) {
        match backing {
            Backing::Region { region, .. } => regions.push((region.name, region.domain)),
            other => {
                let why = format!("what the DAX file system stands on is in no nd region ({})", describe(&other));
                return undecided(Mechanism::CacheLineWriteBack, why);
            }
        }
    }
    domain_power(system, &regions, evidence)
}

/// Power by the weakest domain of `regions`.
fn domain_power(system: &System, regions: &[(String, PersistenceDomain)], evidence: &mut Vec<String>) -> Power {
    let mut power = Power::Probed(Mechanism::Fence);
    for (name, domain) in regions {
        evidence.push(format!("sysfs: the persistence domain of {name} is {domain}"));
        power = match (domain, power) {
            (PersistenceDomain::Unknown, _) => {
                let why = format!("the kernel does not say what {name} keeps without power");
                undecided(Mechanism::CacheLineWriteBack, why)
            }
            (PersistenceDomain::MemoryController, Power::Probed(_)) => Power::Probed(Mechanism::CacheLineWriteBack),
            (_, power) => power,
        };
    }
    let by_lines = matches!(
        power,
        Power::Probed(Mechanism::CacheLineWriteBack)
            | Power::Undecided { mechanism: Mechanism::CacheLineWriteBack, .. }
    );
    match system.cpu {
        None if by_lines => Power::Never { why: "this CPU has no cache-line write-back that programs may use".into() },
        Some(instruction) if by_lines => {
            evidence.push(format!("CPU: cache lines are written back by {instruction}"));
            power
        }
        _ => power,
    }
}

/// Whether fsync carries the file's bytes to something that keeps them without power; if not, why.
fn sync_reaches_device(
    system: &System,
    facts: &Facts,
    loops_left: usize,
    evidence: &mut Vec<String>,
    is_virtio: &mut bool,
) -> Result<(), String> {
    let file_system = facts.file_system();
    if SERVED_MAGICS.contains(&facts.magic) {
        return Err(format!("what fsync on {file_system} promises is up to the server or program behind it"));
    }
    if MEMORY_MAGICS.contains(&facts.magic) {
        return Err(format!("it stands on {file_system}, which lives in memory"));
    }
    let Some(mount) = &facts.mount else {
        return Err("/proc does not say how the file system is mounted".into());
    };
    if let Some(option) = mount.options.iter().find(|option| UNSAFE_OPTIONS.contains(&option.as_str())) {
        return Err(format!("{file_system} is mounted with {option}, so fsync does not flush the device"));
    }
    if facts.magic == OVERLAY_MAGIC {
        if !facts.has_extents {
            return Err("the overlay's upper file system names no extents, so it is on no known disk".into());
        }
        evidence.push("FIEMAP: the overlay's upper file system keeps extents, so fsync reaches a disk".into());
        return Ok(());
    }
    for backing in facts.backing(system) {
        evidence.push(format!("sysfs: {}", describe(&backing)));
        match &backing {
            Backing::Disk { .. } => {}
            Backing::Region { region, .. } if region.is_virtio => *is_virtio = true,
            Backing::Region { region, .. } if region.domain != PersistenceDomain::Unknown => {}
            Backing::Region { region, .. } => {
                return Err(format!("the kernel does not say what {} keeps without power", region.name));
            }
            Backing::Loop { file: Some(path), .. } => {
                let lower = loop_facts(system, path, loops_left)?;
                sync_reaches_device(system, &lower, loops_left - 1, evidence, &mut false)?;
            }
            Backing::Loop { file: None, .. } | Backing::MemoryDisk { .. } | Backing::Unknown { .. } => {
                return Err(describe(&backing));
            }
        }
    }
    Ok(())
}

/// Facts about the file below a loop device; refuses to go deeper than `loops_left`.
fn loop_facts(system: &System, path: &Path, loops_left: usize) -> Result<Facts, String> {
    if loops_left == 0 {
        return Err(format!("more than {LOOP_LIMIT} loop devices stand on each other"));
    }
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    opened
        .and_then(|file| Facts::of(system, file.as_fd()))
        .map_err(|error| format!("the file {} below a loop device cannot be judged: {error}", path.display()))
}

fn describe(backing: &Backing) -> String {
    match backing {
        Backing::Region { device, region } => format!("{device} lies in {}, domain {}", region.name, region.domain),
        Backing::MemoryDisk { device } => format!("{device} is a disk in memory"),
        Backing::Loop { device, file: Some(path) } => format!("{device} is the file {}", path.display()),
        Backing::Loop { device, file: None } => format!("{device} is a loop device over a file that is not named"),
        Backing::Disk { device } => format!("{device} is a disk, which the kernel flushes at fsync"),
        Backing::Unknown { why } => why.clone(),
    }
}

/// Whether the file system below keeps extents (`FS_IOC_FIEMAP`, linux/fiemap.h); those in memory do not.
fn answers_fiemap(file: BorrowedFd<'_>) -> bool {
    /// `struct fiemap` without room for extents: start, length, flags, mapped, room, reserved.
    #[repr(C)]
    struct Fiemap {
        start: u64,
        length: u64,
        flags: u32,
        mapped_extents: u32,
        extent_count: u32,
        reserved: u32,
    }
    /// `_IOWR('f', 11, struct fiemap)`.
    const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;
    let mut request = Fiemap { start: 0, length: u64::MAX, flags: 0, mapped_extents: 0, extent_count: 0, reserved: 0 };
    // SAFETY: the request is a `struct fiemap` with room for 0 extents, which is all that the kernel writes to.
    unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut request) == 0 }
}

#[cfg(test)]
mod tests;
