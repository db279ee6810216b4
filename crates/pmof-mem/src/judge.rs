//! The judgement of a file or device: which kind of medium it is, and what can honestly be promised.
//!
//! Only what the kernel says counts as probed. Where it does not say, `PowerFailure` is undecided: refused unless an
//! operator declares the host battery-backed.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use crate::{
    Durability, Evidence, Mechanism, MediumKind, PersistenceDomain, Promise, RegionPower, RegionProbe, System,
    answers::{Answers, Found},
    members::{BtrfsId, Members, btrfs_id, btrfs_members, ext_members, xfs_members},
    mounts::{FileSystemClass, Mount},
    overlay::upper_file,
    stack::{Backing, Stack, block_stack},
    sync_calls::{self, Unflushed},
    sysfs::{attribute, parse_number, region_above},
};

/// A loop device over a file on a loop device and so on is followed this far.
const LOOP_LIMIT: usize = 4;

/// Mount options after which fsync does not flush the device, or is skipped.
const UNSAFE_OPTIONS: [&str; 8] = [
    "nobarrier",
    "barrier=0",
    "barrier=none",
    "fsync_mode=nobarrier",
    "nointegrity",
    "journal_flush_disabled",
    "volatile",
    "fsync=volatile",
];

/// How `PowerFailure` can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// The kernel's answers imply it.
    Probed(Mechanism),
    /// Only an operator can declare it; then by this mechanism.
    Undecided { mechanism: Mechanism, why: String },
    /// Not at all.
    Never { why: String },
}

impl Power {
    /// How both are reached together: not at all if one is not; by declaration if one is; with everything that either needs.
    fn and(self, other: Self) -> Self {
        let more = |one: Mechanism, other: Mechanism| if one as u8 >= other as u8 { one } else { other };
        match (self, other) {
            (Self::Never { why }, _) | (_, Self::Never { why }) => Self::Never { why },
            (Self::Undecided { mechanism, why }, Self::Undecided { mechanism: other, .. } | Self::Probed(other))
            | (Self::Probed(other), Self::Undecided { mechanism, why }) => {
                Self::Undecided { mechanism: more(mechanism, other), why }
            }
            (Self::Probed(one), Self::Probed(other)) => Self::Probed(more(one, other)),
        }
    }

    /// The same, with the file named.
    fn because_of(self, path: &Path) -> Self {
        let named = |why| format!("{}: {why}", path.display());
        match self {
            Self::Probed(mechanism) => Self::Probed(mechanism),
            Self::Undecided { mechanism, why } => Self::Undecided { mechanism, why: named(why) },
            Self::Never { why } => Self::Never { why: named(why) },
        }
    }

    /// The order, weakest first: never, undecided, write-back, fence.
    fn rank(&self) -> u8 {
        match self {
            Self::Never { .. } => 0,
            Self::Undecided { .. } => 1,
            Self::Probed(Mechanism::CacheLineWriteBack) => 2,
            Self::Probed(_) => 3,
        }
    }
}

/// The weaker of two kinds, for memory that is on both.
fn weaker_kind(one: MediumKind, other: MediumKind) -> MediumKind {
    use MediumKind::{Anonymous, DevDax, FsDax, PageCache, Tmpfs, VirtioPmem};
    let kinds = [Anonymous, Tmpfs, PageCache, VirtioPmem, FsDax, DevDax];
    kinds.into_iter().find(|kind| *kind == one || *kind == other).unwrap_or(one)
}

/// The judgement of a medium: its kind, the evidence, and the resulting promise.
#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    pub(crate) kind: MediumKind,
    pub(crate) file_system: String,
    pub(crate) power: Power,
    /// Sentences: what was asked, and what the kernel said.
    pub(crate) evidence: Vec<String>,
    /// The nd regions below.
    pub(crate) regions: Vec<RegionProbe>,
    /// What is in doubt is whether the calls that flush files reach the kernel.
    pub(crate) is_filtered: bool,
}

impl Judgement {
    pub(crate) fn anonymous() -> Self {
        Self {
            kind: MediumKind::Anonymous,
            file_system: "none".into(),
            power: Power::Never { why: "anonymous memory dies with its process".into() },
            evidence: vec!["the memory belongs to no file".into()],
            regions: Vec::new(),
            is_filtered: false,
        }
    }

    /// The judgement of memory that consists of several files: that of the weakest.
    pub(crate) fn of_parts<'a>(parts: impl Iterator<Item = (&'a Path, &'a Self)>) -> Self {
        let mut whole: Option<Self> = None;
        for (path, part) in parts {
            let evidence = part.evidence.iter().map(|sentence| format!("{}: {sentence}", path.display()));
            let power = part.power.clone().because_of(path);
            let Some(whole) = &mut whole else {
                whole = Some(Self { evidence: evidence.collect(), power, ..part.clone() });
                continue;
            };
            whole.evidence.extend(evidence);
            whole.kind = weaker_kind(whole.kind, part.kind);
            if !whole.file_system.split('+').any(|name| name == part.file_system) {
                whole.file_system = format!("{}+{}", whole.file_system, part.file_system);
            }
            whole.power = whole.power.clone().and(power);
            whole.is_filtered |= part.is_filtered;
            let new = part.regions.iter().filter(|region| !whole.regions.contains(region)).cloned().collect::<Vec<_>>();
            whole.regions.extend(new);
        }
        whole.unwrap_or_else(Self::anonymous)
    }

    /// How `level` is provided; `declared`: the operator's declaration about the host's memory.
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
        let better = if self.is_filtered {
            "run this where no filter answers fsync, fdatasync and msync"
        } else {
            "keep it in a file on a local disk or on persistent memory"
        };
        match &self.power {
            Power::Probed(_) => None,
            Power::Undecided { why, .. } => Some(format!(
                "{why}; {better}, or declare the host battery-backed if its memory survives loss of power"
            )),
            Power::Never { why } => Some(format!("{why}; {better}")),
        }
    }

    /// The same, where what is promised rests on calls that flush files: in doubt where they were `checked` and are not believed.
    fn with_syncs(mut self, system: &System, check: impl FnOnce() -> Result<Option<String>, Unflushed>) -> Self {
        // Of another machine only its files are here.
        if let (Power::Probed(mechanism), Answers::Devices) = (&self.power, &system.answers) {
            match check() {
                Ok(evidence) => self.evidence.extend(evidence),
                Err(Unflushed { why }) => {
                    self.power = undecided(*mechanism, why);
                    self.is_filtered = true;
                }
            }
        }
        self
    }
}

/// Judges an open regular file, which is at `path`; `map_sync`: the kernel granted `MAP_SYNC` on it.
///
/// Files on DAX need fsync too: what the file system knows of them and their names are flushed by it.
pub(crate) fn judge_file(system: &System, path: &Path, file: BorrowedFd<'_>, map_sync: bool) -> io::Result<Judgement> {
    let judgement = judge_facts(system, &Facts::of(system, file)?, MapSync::Asked(map_sync));
    Ok(judgement.with_syncs(system, || sync_calls::check_for(file, path)))
}

/// Judges what files of a mounted file system would promise, without opening one.
pub(crate) fn judge_mount(system: &System, mount: &Mount) -> Judgement {
    let facts = Facts::of_mount(mount);
    let foretold = foretells_map_sync(system, &facts);
    judge_facts(system, &facts, MapSync::Foretold(foretold)).with_syncs(system, || sync_calls::check().map(|()| None))
}

/// Judges the devdax device whose sysfs directory this is.
pub(crate) fn judge_devdax(system: &System, directory: &Path) -> Judgement {
    let mut evidence = vec![format!("{} is a dax device", directory.display())];
    let region = region_above(directory);
    let power = match &region {
        Some(region) if region.is_virtio() => Power::Never {
            why: format!("{} is page cache of the host, and a devdax device has no fsync that asks it", region.name),
        },
        Some(region) => domain_power(system, std::slice::from_ref(region), &mut evidence),
        None => undecided(Mechanism::CacheLineWriteBack, "the device lies in no nd region".into()),
    };
    let regions = region.into_iter().collect();
    Judgement { kind: MediumKind::DevDax, file_system: "none".into(), power, evidence, regions, is_filtered: false }
}

/// Whether the kernel grants `MAP_SYNC`.
#[derive(Clone, Copy, Debug)]
enum MapSync {
    /// It was asked and answered.
    Asked(bool),
    /// It was not asked; by the mount options and the devices it would answer so.
    Foretold(bool),
}

/// What the kernel says about one open file or one mount.
#[derive(Debug)]
struct Facts {
    class: FileSystemClass,
    device: (u32, u32),
    mount: Option<Mount>,
    /// The evidence for the class.
    known_by: String,
    /// Of a file on overlayfs, the file of the upper file system that it is, or why that is not known.
    upper: Option<Result<Box<Facts>, String>>,
    /// Of a file on btrfs, which one.
    btrfs: Option<BtrfsId>,
}

impl Facts {
    fn of(system: &System, file: BorrowedFd<'_>) -> io::Result<Self> {
        let magic = magic_of(file)?;
        let device = rustix::fs::fstat(file)?.st_dev;
        let mount = Mount::of(&system.proc_root, file);
        // The name is the driver's; the magic may be handed on from elsewhere: 9p shows that of the server's file system.
        let class = match &mount {
            Some(mount) => FileSystemClass::of_name(&mount.file_system),
            None => FileSystemClass::of_magic(magic),
        };
        let upper = (class == FileSystemClass::Overlay).then(|| {
            let mount = mount.as_ref().ok_or("/proc does not say how the overlay is mounted")?;
            let upper = upper_file(system, mount, file)?;
            Ok(Box::new(Self::of(system, upper.as_fd()).map_err(|error| error.to_string())?))
        });
        Ok(Self {
            class,
            device: (rustix::fs::major(device), rustix::fs::minor(device)),
            mount,
            known_by: format!("statfs: magic {magic:#x}"),
            upper,
            btrfs: if class == FileSystemClass::Btrfs { Some(btrfs_id(file)?) } else { None },
        })
    }

    fn of_mount(mount: &Mount) -> Self {
        Self {
            class: FileSystemClass::of_name(&mount.file_system),
            device: mount.device,
            known_by: format!("mountinfo: {}", mount.point.display()),
            mount: Some(mount.clone()),
            upper: None,
            btrfs: None,
        }
    }

    fn file_system(&self) -> &str {
        self.mount.as_ref().map_or("an unknown file system", |mount| mount.file_system.as_str())
    }

    /// The mount option that keeps the file system from flushing, if any.
    fn unsafe_option(&self) -> Option<&str> {
        let options = self.mount.as_ref().map(|mount| &mount.options)?;
        options.iter().map(String::as_str).find(|option| UNSAFE_OPTIONS.contains(option))
    }

    /// The stacks below the file system's devices, with the evidence.
    fn stack(&self, system: &System) -> (Stack, Vec<String>) {
        match self.members(system) {
            Ok(Members { numbers, mut evidence }) => {
                let mut stack = Stack::default();
                for number in numbers {
                    stack.extend(block_stack(system, number));
                }
                evidence.append(&mut stack.evidence);
                (stack, evidence)
            }
            Err(why) => (Stack::unknown(why), Vec::new()),
        }
    }

    /// Every block device that holds a part of the file system; at least one.
    fn members(&self, system: &System) -> Result<Members, String> {
        let mount = self.mount.as_ref().ok_or("/proc does not say how the file system is mounted")?;
        match self.class {
            FileSystemClass::Btrfs => btrfs_members(system, mount, self.btrfs.as_ref()),
            _ if self.device.0 == 0 => Err(format!("{} names no block device", self.file_system())),
            FileSystemClass::Local if mount.file_system == "xfs" => xfs_members(system, mount, self.device),
            FileSystemClass::Local => ext_members(system, mount, self.device),
            _ => Ok(Members { numbers: vec![self.device], evidence: Vec::new() }),
        }
    }
}

/// The `statfs` magic of the file system that `file` lies on.
pub(crate) fn magic_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    // The magic is a 32-bit number; some architectures sign-extend it.
    let [a, b, c, d, ..] = rustix::fs::fstatfs(file)?.f_type.to_le_bytes();
    Ok(u32::from_le_bytes([a, b, c, d]).into())
}

/// Whether the kernel would grant `MAP_SYNC` on a new file: ext4 and xfs do where DAX is on for the whole mount and all
/// below is persistent memory that needs no fsync. DAX of single files is not foreseen.
fn foretells_map_sync(system: &System, facts: &Facts) -> bool {
    let Some(mount) = &facts.mount else { return false };
    let is_dax = matches!(mount.file_system.as_str(), "ext4" | "xfs") && (mount.has("dax") || mount.has("dax=always"));
    let is_synchronous = |leaf: &Backing| matches!(leaf, Backing::Region { region, .. } if !region.is_virtio());
    is_dax && block_stack(system, facts.device).leaves.iter().all(is_synchronous)
}

fn judge_facts(system: &System, facts: &Facts, map_sync: MapSync) -> Judgement {
    let file_system = facts.file_system().to_owned();
    let mut evidence = vec![format!("{}: {file_system}", facts.known_by)];
    let (stack, members) = facts.stack(system);
    let (granted, sentence) = match map_sync {
        MapSync::Asked(true) => (true, "mmap: the kernel grants MAP_SYNC"),
        MapSync::Asked(false) => (false, "mmap: the kernel refuses MAP_SYNC"),
        MapSync::Foretold(true) => (true, "mountinfo: mounted with dax, so the kernel would grant MAP_SYNC"),
        MapSync::Foretold(false) => (false, "mountinfo: by options and device the kernel would refuse MAP_SYNC"),
    };
    let (kind, power) = if facts.class == FileSystemClass::Memory {
        (MediumKind::Tmpfs, undecided(Mechanism::Store, format!("{file_system} lives in memory and dies with power")))
    } else if granted {
        evidence.push(sentence.into());
        evidence.extend(members);
        (MediumKind::FsDax, dax_power(system, facts, &stack, &mut evidence))
    } else {
        evidence.push(sentence.into());
        let is_virtio = |backing: &Backing| matches!(backing, Backing::Region { region, .. } if region.is_virtio());
        let kind = if stack.leaves.iter().any(is_virtio) { MediumKind::VirtioPmem } else { MediumKind::PageCache };
        let power = sync_power(system, facts, LOOP_LIMIT, &mut evidence);
        (kind, power.map_or_else(|power| power, |()| Power::Probed(Mechanism::FileSync)))
    };
    let regions = stack.leaves.into_iter().filter_map(|backing| match backing {
        Backing::Region { region, .. } => Some(region),
        _ => None,
    });
    Judgement { kind, file_system, power, evidence, regions: regions.collect(), is_filtered: false }
}

fn undecided(mechanism: Mechanism, why: String) -> Power {
    Power::Undecided { mechanism, why }
}

/// Stores reach the regions without the file system, but where the bytes are is written to its journal, and flushed.
fn dax_power(system: &System, facts: &Facts, stack: &Stack, evidence: &mut Vec<String>) -> Power {
    let doubt = |why: String| undecided(Mechanism::CacheLineWriteBack, why);
    let file_system = facts.file_system();
    if facts.class != FileSystemClass::Local {
        return doubt(format!("how {file_system} keeps its files is not known here"));
    }
    if let Some(option) = facts.unsafe_option() {
        return doubt(format!("{file_system} is mounted with {option}, so what it says of its files may be lost"));
    }
    let mut regions = Vec::new();
    for backing in &stack.leaves {
        match backing {
            Backing::Region { region, .. } => regions.push(region.clone()),
            other => {
                return doubt(format!("the device below the DAX file system is in no nd region ({})", describe(other)));
            }
        }
    }
    match stack.doubts.iter().find(|doubt| !doubt.is_of_table) {
        Some(found) => doubt(found.why.clone()),
        None => domain_power(system, &regions, evidence),
    }
}

/// Power by the weakest of `regions`.
fn domain_power(system: &System, regions: &[RegionProbe], evidence: &mut Vec<String>) -> Power {
    let mut power = Power::Probed(Mechanism::Fence);
    for region in regions {
        evidence.extend(region.evidence.iter().map(|sentence| format!("sysfs: {}: {sentence}", region.name)));
        let name = &region.name;
        let own = match &region.power {
            RegionPower::Proven(PersistenceDomain::CpuCache) => Power::Probed(Mechanism::Fence),
            RegionPower::Proven(PersistenceDomain::MemoryController) => Power::Probed(Mechanism::CacheLineWriteBack),
            RegionPower::Proven(PersistenceDomain::Unknown) => {
                undecided(Mechanism::CacheLineWriteBack, format!("{name} does not say what it keeps without power"))
            }
            RegionPower::HostFlush => Power::Never { why: format!("{name}: only fsync has the host write it") },
            RegionPower::Unproven { why } => undecided(Mechanism::CacheLineWriteBack, format!("{name}: {why}")),
            RegionPower::Refused { why } => Power::Never { why: format!("{name}: {why}") },
        };
        if own.rank() < power.rank() {
            power = own;
        }
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

/// Whether fsync brings the file's bytes to a medium that keeps them without power; if not, what remains.
fn sync_power(system: &System, facts: &Facts, loops_left: usize, evidence: &mut Vec<String>) -> Result<(), Power> {
    let doubt = |why: String| Err(undecided(Mechanism::FileSync, why));
    let file_system = facts.file_system();
    match facts.class {
        FileSystemClass::Served => {
            return doubt(format!("what fsync on {file_system} promises is up to the server or program behind it"));
        }
        FileSystemClass::Memory => return doubt(format!("it is on {file_system}, which lives in memory")),
        FileSystemClass::Unknown => return doubt(format!("what fsync on {file_system} does is not known here")),
        FileSystemClass::Overlay | FileSystemClass::Btrfs | FileSystemClass::Local => {}
    }
    if facts.mount.is_none() {
        return doubt("/proc does not say how the file system is mounted".into());
    }
    if let Some(option) = facts.unsafe_option() {
        return doubt(format!("{file_system} is mounted with {option}, so fsync does not flush the device"));
    }
    if facts.class == FileSystemClass::Overlay {
        return match &facts.upper {
            Some(Ok(upper)) => {
                evidence.push(format!("fchmod: the overlay's upper file was seen, on {}", upper.file_system()));
                sync_power(system, upper, loops_left, evidence)
            }
            Some(Err(why)) => doubt(why.clone()),
            None => doubt("which file system an overlay writes to is seen once a file of it is opened".into()),
        };
    }
    let (stack, members) = facts.stack(system);
    evidence.extend(members);
    for backing in &stack.leaves {
        backing_power(system, backing, loops_left, evidence)?;
    }
    match stack.doubts.into_iter().next() {
        Some(found) => doubt(found.why),
        None => Ok(()),
    }
}

/// Whether what is flushed to one device is kept without power.
fn backing_power(
    system: &System,
    backing: &Backing,
    loops_left: usize,
    evidence: &mut Vec<String>,
) -> Result<(), Power> {
    let doubt = |why: String| Err(undecided(Mechanism::FileSync, why));
    evidence.push(format!("sysfs: {}", describe(backing)));
    match backing {
        Backing::Disk { .. } => Ok(()),
        Backing::Region { region, .. } => match &region.power {
            RegionPower::Refused { why } => Err(Power::Never { why: format!("{}: {why}", region.name) }),
            RegionPower::Proven(_) | RegionPower::HostFlush => Ok(()),
            RegionPower::Unproven { why } => doubt(format!("{}: {why}", region.name)),
        },
        Backing::Loop { device, file: Some(path) } => {
            let lower =
                loop_facts(system, device, path, loops_left).map_err(|why| undecided(Mechanism::FileSync, why))?;
            sync_power(system, &lower, loops_left - 1, evidence)
        }
        Backing::Loop { file: None, .. }
        | Backing::MemoryDisk { .. }
        | Backing::Served { .. }
        | Backing::Unknown { .. } => doubt(describe(backing)),
    }
}

/// Facts about the file below a loop device; refuses to go deeper than `loops_left`.
fn loop_facts(system: &System, device: &str, path: &Path, loops_left: usize) -> Result<Facts, String> {
    let shown = path.display();
    if loops_left == 0 {
        return Err(format!("more than {LOOP_LIMIT} loop devices are stacked on each other"));
    }
    if path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
        return Err(format!("the file {shown} below a loop device is deleted and gone at the next start"));
    }
    let number = attribute(&system.sysfs_root.join("block").join(device), "dev").and_then(|text| parse_number(&text));
    let number = number.ok_or_else(|| format!("{device} has no number"))?;
    let file = system.answers.loop_file(device, number)?;
    match system.answers.file_at(&system.proc_root, path, file)? {
        Found::Open(file) => Facts::of(system, file.as_fd()).map_err(|error| format!("{shown}: {error}")),
        Found::Copied(mount) => Ok(Facts::of_mount(&mount)),
    }
}

fn describe(backing: &Backing) -> String {
    match backing {
        Backing::Region { device, region } => {
            format!("{device} lies in {}, bus {}, domain {}", region.name, region.bus, region.domain)
        }
        Backing::MemoryDisk { device } => format!("{device} is a disk in memory"),
        Backing::Loop { device, file: Some(path) } => format!("{device} is the file {}", path.display()),
        Backing::Loop { device, file: None } => format!("{device} is a loop device over a file that is not named"),
        Backing::Served { device } => format!("{device} is a disk that a server or a program behind it decides for"),
        Backing::Disk { device, write_cache } => {
            format!("{device} is a disk, which the kernel flushes at fsync (write_cache: {write_cache})")
        }
        Backing::Unknown { why } => why.clone(),
    }
}

#[cfg(test)]
mod tests;
