//! Persistent memory as the kernel lists it: regions, namespaces, dax devices, CXL memory devices.

use std::path::Path;

use pmof_mem::{DaxProbe, NdBus, RegionPower, RegionProbe, System, causes, probe_dax_devices, probe_regions};
use serde::Serialize;

use crate::read;

/// An nd region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// The kernel's name, as `region0`.
    pub name: String,
    /// Its source: `ACPI.NFIT`, `e820`, `virtio-pmem`, `CXL`, another, or `unknown`.
    pub bus: String,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// What it claims to keep: `memory_controller`, `cpu_cache` or `unknown`.
    pub persistence_domain: String,
    /// Whether the kernel's answers together prove that it keeps its bytes without power.
    pub is_proven: bool,
    /// What keeps it from being proven.
    #[serde(rename = "reason")]
    pub why: Option<String>,
    /// `deep_flush` as the kernel says it: 1 where it can flush the module's own write buffers.
    pub deep_flush: Option<String>,
    /// The modules that it lies on.
    pub modules: Vec<String>,
    /// The node it is near to.
    pub numa_node: Option<u32>,
    /// Namespaces that have bytes.
    pub namespaces: Vec<Namespace>,
    /// What was read.
    #[serde(rename = "evidence_found")]
    pub evidence: Vec<String>,
}

/// A part of a region, and how it is offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Namespace {
    /// The kernel's name, as `namespace0.0`.
    pub name: String,
    /// `raw`, `fsdax`, `devdax`, `sector`, or as the kernel says.
    pub mode: String,
    /// Its size.
    pub size_bytes: Option<u64>,
}

/// All regions; the error is why they could not be listed.
pub(crate) fn regions(system: &System) -> (Vec<Region>, Option<String>) {
    match probe_regions(system.sysfs_root()) {
        Ok(probes) => (probes.iter().map(Region::of).collect(), None),
        Err(error) => (Vec::new(), Some(causes(&error).to_string())),
    }
}

impl Region {
    fn of(probe: &RegionProbe) -> Self {
        let directory = &probe.directory;
        let why = match &probe.power {
            RegionPower::Proven(_) => None,
            RegionPower::HostFlush => {
                Some("it is page cache of the host, which only fsync has the host write".to_owned())
            }
            RegionPower::Unproven { why } | RegionPower::Refused { why } => Some(why.clone()),
        };
        Self {
            name: probe.name.clone(),
            bus: probe.bus.to_string(),
            size_bytes: read::number(&directory.join("size")),
            persistence_domain: probe.domain.to_string(),
            is_proven: why.is_none(),
            why,
            deep_flush: read::text(&directory.join("deep_flush")),
            modules: probe.modules.clone(),
            numa_node: read::numa_node(directory),
            namespaces: namespaces(directory),
            evidence: probe.evidence.clone(),
        }
    }
}

fn namespaces(region: &Path) -> Vec<Namespace> {
    // Beside them lies the attribute namespace_seed.
    let is_numbered = |name: &str| {
        name.strip_prefix("namespace").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let namespaces = read::entries(region).into_iter().filter(|(name, _)| is_numbered(name));
    namespaces
        .map(|(name, path)| Namespace {
            name,
            mode: mode_name(read::text(&path.join("mode")).as_deref()),
            size_bytes: read::number(&path.join("size")),
        })
        .filter(|namespace| namespace.size_bytes != Some(0))
        .collect()
}

/// The kernel's words for the modes, in those of ndctl.
fn mode_name(kernel: Option<&str>) -> String {
    match kernel {
        Some("memory") => "fsdax",
        Some("dax") => "devdax",
        Some("safe") => "sector",
        Some(other) => other,
        None => "unknown",
    }
    .to_owned()
}

/// A device of the dax bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DaxDevice {
    /// The kernel's name, as `dax0.0`.
    pub name: String,
    /// `devdax` for mapping, `system-ram` for ordinary memory, `none` where no driver has it.
    pub mode: String,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// Mappings are multiples of this.
    pub align_bytes: Option<u64>,
    /// The node it is near to.
    pub numa_node: Option<i64>,
    /// The node that its memory forms.
    pub target_node: Option<i64>,
    /// The nd region it lies in.
    pub region: Option<String>,
}

/// All dax devices, with what `pmof-mem` found.
pub(crate) fn dax_devices(system: &System) -> Vec<(DaxDevice, DaxProbe)> {
    let describe = |probe: DaxProbe| {
        let mode = match probe.driver.as_deref() {
            Some("device_dax") => "devdax",
            Some("kmem") => "system-ram",
            Some(other) => other,
            None => "none",
        };
        let device = DaxDevice {
            name: probe.name.clone(),
            mode: mode.to_owned(),
            size_bytes: probe.size_bytes,
            align_bytes: probe.align_bytes,
            numa_node: probe.numa_node,
            target_node: probe.target_node,
            region: probe.region.as_ref().map(|region| region.name.clone()),
        };
        (device, probe)
    };
    probe_dax_devices(system).into_iter().map(describe).collect()
}

/// A CXL memory device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CxlMemdev {
    /// The kernel's name, as `mem0`.
    pub name: String,
    /// Its serial number.
    pub serial: Option<String>,
    /// How much of it is persistent.
    pub persistent_bytes: Option<u64>,
    /// How much of it is not.
    pub volatile_bytes: Option<u64>,
    /// The node it is near to.
    pub numa_node: Option<u32>,
    /// How often it lost power without having saved its bytes. The kernel (6.15 and later) shows it where it has armed
    /// global persistent flush; `None` is not armed, or not known.
    pub dirty_shutdown_count: Option<u64>,
    /// An nd region lies on it.
    pub has_region: bool,
}

pub(crate) fn cxl_memdevs(system: &System, regions: &[Region]) -> Vec<CxlMemdev> {
    let nd = system.sysfs_root().join("bus/nd/devices");
    let modules: Vec<_> = read::entries(&nd).into_iter().filter(|(name, _)| name.starts_with("nmem")).collect();
    let devices = read::entries(&system.sysfs_root().join("bus/cxl/devices")).into_iter();
    devices
        .filter_map(|(name, path)| {
            let number: u32 = name.strip_prefix("mem")?.parse().ok()?;
            // The kernel calls the persistent part of memN pmemN, and names it as the module's provider.
            let provider = format!("pmem{number}");
            let own =
                modules.iter().find(|(_, module)| read::text(&module.join("cxl/provider")).as_ref() == Some(&provider));
            Some(CxlMemdev {
                serial: read::text(&path.join("serial")),
                persistent_bytes: size(&path.join("pmem/size")),
                volatile_bytes: size(&path.join("ram/size")),
                numa_node: read::numa_node(&path),
                dirty_shutdown_count: own.and_then(|(_, module)| read::number(&module.join("cxl/dirty_shutdown"))),
                has_region: own.is_some_and(|(module, _)| {
                    let cxl = NdBus::Cxl.to_string();
                    regions.iter().any(|region| region.bus == cxl && region.modules.contains(module))
                }),
                name,
            })
        })
        .collect()
}

/// CXL writes sizes in hexadecimal.
fn size(path: &Path) -> Option<u64> {
    let text = read::text(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
