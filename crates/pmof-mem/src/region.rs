//! What an nd region keeps without power (Documentation/ABI/testing/sysfs-bus-nd, sysfs-bus-nfit, sysfs-bus-cxl).
//!
//! Every fact that a proof needs must be read: a file that is missing, cannot be read or says something unknown leaves
//! the region unproven.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::sysfs::{attribute, driver_of, numbered};

/// A region is interleaved over at most this many modules (the kernel's own bound).
const MODULES_MAX: usize = 32;

/// Words of `nfit/flags` after which the module does not save its bytes when power is lost, or did not the last time.
const MODULE_FAILURES: [&str; 5] = ["not_armed", "save_fail", "restore_fail", "flush_fail", "map_fail"];

/// Words of `nfit/flags` that say nothing about that.
const MODULE_NOTICES: [&str; 2] = ["smart_event", "smart_notify"];

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

/// The source of an nd region: the `provider` attribute of its bus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NdBus {
    /// The firmware's NFIT table: NVDIMMs.
    Nfit,
    /// The memory map, or `memmap=` of the kernel's command line: ordinary memory called persistent.
    E820,
    /// A virtio-pmem device: the host's page cache.
    VirtioPmem,
    /// CXL persistent memory.
    Cxl,
    /// Another provider, by its name.
    Other(String),
    /// The kernel does not say.
    Unknown,
}

impl NdBus {
    fn of(region: &Path) -> Self {
        let provider = region.parent().and_then(|bus| attribute(bus, "provider"));
        match provider.as_deref() {
            // The driver's name replaces the provider if the host hides the attribute.
            _ if region.ancestors().any(|path| driver_of(path).as_deref() == Some("virtio_pmem")) => Self::VirtioPmem,
            Some("ACPI.NFIT") => Self::Nfit,
            Some("e820") => Self::E820,
            Some("virtio-pmem" | "virtio_pmem") => Self::VirtioPmem,
            Some("CXL") => Self::Cxl,
            Some(other) if !other.is_empty() => Self::Other(other.to_owned()),
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for NdBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nfit => "ACPI.NFIT",
            Self::E820 => "e820",
            Self::VirtioPmem => "virtio-pmem",
            Self::Cxl => "CXL",
            Self::Other(name) => name,
            Self::Unknown => "unknown",
        })
    }
}

/// What the kernel's answers prove about a region, taken together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionPower {
    /// The region keeps what reached this domain.
    Proven(PersistenceDomain),
    /// The region is page cache of the host (virtio-pmem): fsync has the host write it, nothing else does.
    HostFlush,
    /// The kernel neither confirms nor denies it; only an operator can say.
    Unproven {
        /// Which answer is missing.
        why: String,
    },
    /// The kernel's answers contradict it.
    Refused {
        /// Which answer.
        why: String,
    },
}

/// One nd region of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionProbe {
    /// The kernel's name, as `region0`.
    pub name: String,
    /// Its directory in sysfs.
    pub directory: PathBuf,
    /// Its source.
    pub bus: NdBus,
    /// What the region itself claims to keep: not yet a proof, see [`power`](Self::power).
    pub domain: PersistenceDomain,
    /// What it keeps according to all answers of the kernel.
    pub power: RegionPower,
    /// The modules that it lies on, as `nmem0`.
    pub modules: Vec<String>,
    /// What was read and what it said, one sentence each.
    pub evidence: Vec<String>,
}

impl RegionProbe {
    /// Durable by fsync only, which asks the host to flush.
    pub fn is_virtio(&self) -> bool {
        self.bus == NdBus::VirtioPmem
    }
}

/// Whether `path` is the directory of an nd region: CXL has regions of the same name, which lie on no nd bus.
pub(crate) fn is_region(path: &Path) -> bool {
    let name_is = |path: &Path, prefix| path.file_name().is_some_and(|name| numbered(&name.to_string_lossy(), prefix));
    name_is(path, "region") && path.parent().is_some_and(|bus| name_is(bus, "ndbus"))
}

/// The region at `directory`, which must be free of links.
pub(crate) fn region_at(directory: &Path) -> RegionProbe {
    let mut evidence = Vec::new();
    let bus = NdBus::of(directory);
    evidence.push(format!("bus provider: {bus}"));
    let domain = match attribute(directory, "persistence_domain").as_deref() {
        Some("memory_controller") => PersistenceDomain::MemoryController,
        Some("cpu_cache") => PersistenceDomain::CpuCache,
        _ => PersistenceDomain::Unknown,
    };
    evidence.push(match domain {
        PersistenceDomain::Unknown => "persistence_domain: absent or unknown".to_owned(),
        known => format!("persistence_domain: {known}"),
    });
    let modules = modules(directory);
    let power = own_power(directory, &mut evidence)
        .and_then(|()| bus_power(directory, &bus, domain, modules.as_deref(), &mut evidence));
    RegionProbe {
        name: directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        directory: directory.into(),
        bus,
        domain,
        power: power.map_or_else(|power| power, RegionPower::Proven),
        modules: modules.unwrap_or_default(),
        evidence,
    }
}

fn unproven(why: impl Into<String>) -> RegionPower {
    RegionPower::Unproven { why: why.into() }
}

fn refused(why: impl Into<String>) -> RegionPower {
    RegionPower::Refused { why: why.into() }
}

/// What the region claims, whatever its bus.
fn own_power(directory: &Path, evidence: &mut Vec<String>) -> Result<(), RegionPower> {
    let uevent = attribute(directory, "uevent").unwrap_or_default();
    let kind = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    match attribute(directory, "read_only").as_deref() {
        Some("0") => evidence.push("read_only: 0".into()),
        Some("1") => return Err(refused("the region is read-only")),
        _ => return Err(unproven("the kernel does not say whether the region is writable (read_only)")),
    }
    match kind {
        Some("nd_pmem") => evidence.push("uevent: DEVTYPE=nd_pmem".into()),
        Some("nd_volatile") => return Err(refused("the firmware says that the region is volatile")),
        _ => return Err(unproven("the kernel does not say that the region is persistent (uevent)")),
    }
    Ok(())
}

fn bus_power(
    directory: &Path,
    bus: &NdBus,
    domain: PersistenceDomain,
    modules: Option<&[String]>,
    evidence: &mut Vec<String>,
) -> Result<PersistenceDomain, RegionPower> {
    match bus {
        NdBus::Nfit | NdBus::Cxl => {}
        NdBus::E820 => return Err(unproven("it is ordinary memory that the memory map or memmap= calls persistent")),
        NdBus::VirtioPmem => return Err(RegionPower::HostFlush),
        NdBus::Other(name) => return Err(unproven(format!("what the bus provider {name} keeps is not known"))),
        NdBus::Unknown => return Err(unproven("the kernel does not say who provides the region")),
    }
    let Some(modules) = modules.filter(|modules| !modules.is_empty()) else {
        return Err(unproven("the kernel names no module of the region that could be asked about its energy source"));
    };
    // Every module is asked, so that one which failed outweighs one which cannot be asked.
    let answers: Vec<_> =
        modules.iter().map(|module| module_power(&directory.with_file_name(module), bus, evidence)).collect();
    let is_refused = |answer: &Result<(), RegionPower>| matches!(answer, Err(RegionPower::Refused { .. }));
    if let Some(answer) = answers.iter().find(|answer| is_refused(answer)).or(answers.iter().find(|a| a.is_err())) {
        answer.clone()?;
    }
    match (bus, domain) {
        (_, PersistenceDomain::Unknown) => Err(unproven("the kernel does not say what it keeps without power")),
        // Global persistent flush empties the device, not the CPU's caches.
        (NdBus::Cxl, _) => Ok(PersistenceDomain::MemoryController),
        (_, domain) => Ok(domain),
    }
}

/// Whether one module saves its bytes when power is lost.
fn module_power(module: &Path, bus: &NdBus, evidence: &mut Vec<String>) -> Result<(), RegionPower> {
    let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if *bus == NdBus::Cxl {
        // The kernel shows the count only after it has armed the device's dirty-shutdown tracking.
        return match attribute(module, "cxl/dirty_shutdown").and_then(|count| count.parse::<u64>().ok()) {
            Some(count) => {
                evidence.push(format!("{name}/cxl/dirty_shutdown: {count}, so global persistent flush is armed"));
                Ok(())
            }
            None => Err(unproven(format!("global persistent flush of {name} is not proven (no cxl/dirty_shutdown)"))),
        };
    }
    let Some(flags) = attribute(module, "nfit/flags") else {
        return Err(unproven(format!("the kernel does not say whether {name} is armed (nfit/flags)")));
    };
    let words = || flags.split_ascii_whitespace();
    if let Some(failure) = words().find(|word| MODULE_FAILURES.contains(word)) {
        return Err(refused(format!("{name} says {failure}: it does not save its bytes when power is lost")));
    }
    if let Some(word) = words().find(|word| !MODULE_NOTICES.contains(word)) {
        return Err(unproven(format!("{name} says {word}, which is not known")));
    }
    evidence.push(format!("{name}/nfit/flags: no failure"));
    Ok(())
}

/// The modules that the region lies on; `None` where the kernel does not name them all.
fn modules(directory: &Path) -> Option<Vec<String>> {
    let count: usize = attribute(directory, "mappings")?.parse().ok().filter(|count| *count <= MODULES_MAX)?;
    (0..count)
        .map(|index| {
            let mapping = attribute(directory, &format!("mapping{index}"))?;
            let name = mapping.split(',').next()?;
            numbered(name, "nmem").then(|| name.to_owned())
        })
        .collect()
}
