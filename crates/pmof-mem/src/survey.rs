//! Surveys the whole machine: every mount, every dax device. Only sysfs and procfs are opened, and nothing is written.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Durability, MediumProbe, MemError, RegionProbe, System,
    judge::{Judgement, judge_devdax, judge_mount},
    mounts::{Mount, mount_above, mounts},
    sysfs::{attribute, devdax_len_bytes, driver_of, region_above},
};

/// File systems that show the kernel's state and hold no user files.
const STATE_FILE_SYSTEMS: [&str; 24] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "devtmpfs",
    "mqueue",
    "debugfs",
    "tracefs",
    "securityfs",
    "pstore",
    "bpf",
    "configfs",
    "autofs",
    "binfmt_misc",
    "fusectl",
    "nsfs",
    "rpc_pipefs",
    "efivarfs",
    "selinuxfs",
    "resctrl",
    "squashfs",
    "iso9660",
    "erofs",
];

/// One file system that is mounted, and what files there would promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountProbe {
    /// Where it is mounted; the first where there are several places.
    pub mount_point: PathBuf,
    /// The other places.
    pub also_at: Vec<PathBuf>,
    /// What is mounted, as `/dev/pmem0`.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
    /// No file can be made there.
    pub is_read_only: bool,
    /// The judgement. As no file is opened, it never says more than [`probe`](crate::probe) of a file there does.
    pub medium: MediumProbe,
}

/// Judges every mounted file system that could hold files, in the order of mounting; what is mounted over is left out.
///
/// Errors: `Io` where the mount table cannot be read.
pub fn probe_mounts(system: &System) -> Result<Vec<MountProbe>, MemError> {
    let table = mounts(&system.proc_root).map_err(|source| MemError::Io {
        call: "read",
        path: system.proc_root.join("self/mountinfo"),
        mend: "mount procfs",
        source,
    })?;
    let mut probes: Vec<((u32, u32), MountProbe)> = Vec::new();
    for mount in &table {
        let is_state = STATE_FILE_SYSTEMS.contains(&mount.file_system.as_str());
        let is_hidden = mount_above(&table, &mount.point).is_none_or(|above| above.id != mount.id);
        let is_kernels = ["/proc", "/sys"].iter().any(|place| mount.point.starts_with(place));
        if is_state || is_hidden || is_kernels {
            continue;
        }
        let probe = probe_mount(system, mount);
        let is_same = |((device, other), new): (&((u32, u32), MountProbe), &MountProbe)| {
            (*device, &other.options, &other.source) == (mount.device, &new.options, &new.source)
        };
        match probes.iter_mut().find(|known| is_same((known, &probe))) {
            Some((_, known)) => known.also_at.push(probe.mount_point),
            None => probes.push((mount.device, probe)),
        }
    }
    Ok(probes.into_iter().map(|(_, probe)| probe).collect())
}

fn probe_mount(system: &System, mount: &Mount) -> MountProbe {
    MountProbe {
        mount_point: mount.point.clone(),
        also_at: Vec::new(),
        source: mount.source.clone(),
        options: mount.options.clone(),
        is_read_only: mount.has("ro"),
        medium: MediumProbe::of(mount.point.clone(), judge_mount(system, mount)),
    }
}

/// A device of the dax bus. What is missing in sysfs is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaxProbe {
    /// The kernel's name, as `dax0.0`.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: Option<u64>,
    /// Offsets and lengths of mappings are multiples of this, in bytes.
    pub align_bytes: Option<u64>,
    /// The NUMA node that it is near to.
    pub numa_node: Option<i64>,
    /// The NUMA node that its memory forms, or would form as system RAM.
    pub target_node: Option<i64>,
    /// The driver: `device_dax` for mapping, `kmem` for use as system RAM.
    pub driver: Option<String>,
    /// The nd region that it lies in.
    pub region: Option<RegionProbe>,
    /// The judgement; `None` where the driver is not `device_dax`, so that nobody can map it.
    pub medium: Option<MediumProbe>,
}

/// Judges every device of the dax bus, sorted by name; empty where there are none.
pub fn probe_dax_devices(system: &System) -> Vec<DaxProbe> {
    let Ok(entries) = fs::read_dir(system.sysfs_root.join("bus/dax/devices")) else { return Vec::new() };
    let mut probes: Vec<_> = entries
        .filter_map(|entry| fs::canonicalize(entry.ok()?.path()).ok())
        .filter_map(|directory| probe_dax(system, &directory))
        .collect();
    probes.sort_by(|left, right| left.name.cmp(&right.name));
    probes
}

fn probe_dax(system: &System, directory: &Path) -> Option<DaxProbe> {
    let name = directory.file_name()?.to_str()?.to_owned();
    let number = |file| attribute(directory, file)?.parse().ok();
    let driver = driver_of(directory);
    let is_device = driver.as_deref() == Some("device_dax");
    Some(DaxProbe {
        size_bytes: devdax_len_bytes(directory),
        align_bytes: attribute(directory, "align").and_then(|text| text.parse().ok()),
        numa_node: number("numa_node"),
        target_node: number("target_node"),
        driver,
        region: region_above(directory),
        medium: is_device.then(|| MediumProbe::of(Path::new("/dev").join(&name), judge_devdax(system, directory))),
        name,
    })
}

/// What memory of a process promises: [`Durability::Visible`].
pub fn probe_anonymous() -> MediumProbe {
    let probe = MediumProbe::of("(anonymous)".into(), Judgement::anonymous());
    debug_assert_eq!(probe.strongest, Durability::Visible);
    probe
}
