//! The exact commands that would improve what was found.

use pmof_mem::{Durability, MediumKind, MediumProbe, MountProbe, NdBus, RegionPower, RegionProbe, System};
use serde::Serialize;

use crate::{
    Capabilities, CxlMemdev, DaxDevice, Limits, Memory, NumaNode, RdmaDevice, Region, machine::distance, read,
};

/// A smaller limit of locked memory is reported: pools are usually longer.
const LOCKED_MEMORY_AMPLE_BYTES: u64 = 1 << 30;

/// What verdicts on memories depend on in addition to the memory.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) devices: &'a [RdmaDevice],
    pub(crate) regions: &'a [Region],
    /// How much may be locked; `None` is all.
    pub(crate) lockable_bytes: Option<u64>,
    /// `/proc/iomem` names a resource "Persistent Memory".
    pub(crate) has_persistent_resource: bool,
}

impl Context<'_> {
    /// The namespace of a region, if it has only one, and its mode.
    fn namespace(&self, region: &RegionProbe) -> Option<(&str, &str)> {
        match &self.regions.iter().find(|own| own.name == region.name)?.namespaces[..] {
            [only] => Some((&only.name, &only.mode)),
            _ => None,
        }
    }
}

/// What can be done for a memory; commands that destroy its bytes say so.
pub(crate) fn memory(probe: &MediumProbe, mount: Option<&MountProbe>, context: &Context<'_>) -> Vec<String> {
    let mut commands = Vec::new();
    for region in &probe.regions {
        commands.extend(region_commands(region));
    }
    if let Some(mount) = mount {
        commands.extend(mount_commands(probe, mount, context));
    }
    commands
}

fn region_commands(region: &RegionProbe) -> Vec<String> {
    let health = format!("ndctl list --dimms --health --region={}", region.name);
    match (&region.power, &region.bus) {
        (RegionPower::Refused { why }, _) if why.contains("read-only") => {
            vec![format!("echo 0 > /sys/bus/nd/devices/{}/read_only", region.name)]
        }
        (RegionPower::Unproven { why }, NdBus::Nfit) if why.contains("without power") => {
            vec!["on the host of a virtual machine: qemu-system-x86_64 -M q35,nvdimm=on,nvdimm-persistence=mem-ctrl ... \
                  (only where the host's memory really is persistent)"
                .to_owned()]
        }
        (RegionPower::Unproven { .. }, NdBus::Cxl) => {
            vec!["cxl list --memdevs --health (global persistent flush is shown by kernel 6.15 and later)".to_owned()]
        }
        (RegionPower::Refused { .. }, _) | (RegionPower::Unproven { .. }, NdBus::Nfit) => vec![health],
        (RegionPower::Proven(_) | RegionPower::HostFlush | RegionPower::Unproven { .. }, _) => Vec::new(),
    }
}

fn mount_commands(probe: &MediumProbe, mount: &MountProbe, context: &Context<'_>) -> Vec<String> {
    let (point, source) = (mount.mount_point.display(), &mount.source);
    let has = |option: &str| mount.options.iter().any(|own| own == option);
    let mut commands = Vec::new();
    if mount.is_read_only {
        commands.push(format!("mount -o remount,rw {point}"));
    }
    if has("nobarrier") || has("barrier=0") {
        commands.push(format!("mount -o remount,barrier {point}"));
    }
    if mount.medium.file_system == "overlay" && probe.strongest < Durability::PowerFailure {
        commands.push(format!("pmof doctor {point} (opens a file there and asks the kernel about it)"));
    }
    // Only where DAX would give something: not on the host's page cache, nor on ordinary memory.
    let takes_dax = matches!(mount.medium.file_system.as_str(), "ext4" | "xfs");
    let [region] = &probe.regions[..] else { return commands };
    if probe.kind == MediumKind::PageCache && takes_dax && matches!(region.bus, NdBus::Nfit | NdBus::Cxl) {
        match context.namespace(region) {
            Some((_, "fsdax")) => commands.push(format!("umount {point} && mount -o dax=always {source} {point}")),
            Some((name, "raw" | "sector")) => commands
                .push(format!("umount {point} && ndctl create-namespace -f -e {name} -m fsdax (destroys its bytes)")),
            _ => {}
        }
    }
    commands
}

/// How memory on the same region becomes one that RDMA devices can register.
pub(crate) fn pinnable(probe: &MediumProbe) -> Vec<String> {
    let is_pmem = !probe.regions.is_empty() && !probe.regions.iter().any(RegionProbe::is_virtio);
    let regions = probe.regions.iter().filter(|_| is_pmem);
    regions.map(|region| format!("ndctl create-namespace -r {} -m devdax", region.name)).collect()
}

pub(crate) fn lock_memory() -> Vec<String> {
    vec!["ulimit -l unlimited (or LimitMEMLOCK=infinity in the service's unit)".to_owned()]
}

pub(crate) fn inactive_port(device: &RdmaDevice) -> Vec<String> {
    let port = device.ports.first();
    match port.and_then(|port| port.network_interface.as_ref()) {
        Some(interface) => vec![format!("ip link set {interface} up")],
        None if port.is_some_and(|port| port.link_layer.as_deref() == Some("InfiniBand")) => {
            vec![
                "systemctl start opensm (a subnet manager somewhere on the fabric, and the cable plugged in)"
                    .to_owned(),
            ]
        }
        None => vec!["rdma link show".to_owned()],
    }
}

/// Soft-RoCE on the first network interface with a device below, or else the first that is no loopback.
fn soft_device(system: &System) -> Vec<String> {
    let interfaces = read::entries(&system.sysfs_root().join("class/net"));
    let is_ethernet = |path: &std::path::Path| read::text(&path.join("type")).as_deref() == Some("1");
    let has_device = |path: &std::path::Path| path.join("device").exists();
    let usable = || interfaces.iter().filter(|(_, path)| is_ethernet(path));
    match usable().find(|(_, path)| has_device(path)).or_else(|| usable().next()) {
        Some((name, _)) => vec![format!("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {name}")],
        None => Vec::new(),
    }
}

/// Something about the machine as a whole that the operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was found, and what it means.
    pub what: String,
    /// The command that fixes it.
    pub command: Option<String>,
}

/// Everything about the machine as a whole.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    pub(crate) system: &'a System,
    pub(crate) is_virtual: bool,
    pub(crate) regions: &'a [Region],
    pub(crate) dax_devices: &'a [DaxDevice],
    pub(crate) cxl_memdevs: &'a [CxlMemdev],
    pub(crate) rdma_devices: &'a [RdmaDevice],
    pub(crate) limits: &'a Limits,
    pub(crate) nodes: &'a [NumaNode],
    pub(crate) memories: &'a [Memory],
}

pub(crate) fn findings(whole: &Whole<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |what: String, command: Option<String>| findings.push(Finding { what, command });
    if whole.is_virtual {
        find(
            "the machine is virtual: what its kernel says of disks and persistent memory is what its host lets it say"
                .to_owned(),
            None,
        );
    }
    for region in whole.regions {
        if region.namespaces.is_empty() {
            let command = format!("ndctl create-namespace -r {} -m devdax (or -m fsdax for files)", region.name);
            find(format!("{} has no namespace, so nothing can use it", region.name), Some(command));
        }
        for namespace in region.namespaces.iter().filter(|namespace| namespace.mode == "raw") {
            let command = format!("ndctl create-namespace -f -e {} -m fsdax (destroys its bytes)", namespace.name);
            find(format!("{} is raw: a block device without DAX", namespace.name), Some(command));
        }
    }
    for device in whole.dax_devices.iter().filter(|device| device.mode == "system-ram") {
        let command = format!("daxctl reconfigure-device --mode=devdax {}", device.name);
        find(format!("{} serves as ordinary memory, so nothing in it is kept", device.name), Some(command));
    }
    cxl_findings(whole.cxl_memdevs, &mut find);
    rdma_findings(whole, &mut find);
    if whole.rdma_devices.is_empty() {
        find("the machine has no RDMA device, so no verbs".to_owned(), soft_device(whole.system).pop());
    }
    findings
}

fn cxl_findings(memdevs: &[CxlMemdev], find: &mut impl FnMut(String, Option<String>)) {
    for memdev in memdevs {
        let name = &memdev.name;
        if memdev.persistent_bytes.is_some_and(|size| size > 0) && !memdev.has_region {
            let command = format!("cxl create-region -t pmem -d decoder0.0 -w 1 -m {name}");
            find(format!("{name} has persistent memory in no region"), Some(command));
        }
        if let Some(count) = memdev.dirty_shutdown_count.filter(|count| *count > 0) {
            find(format!("{name} lost power {count} times without having saved its bytes"), None);
        }
    }
}

fn rdma_findings(whole: &Whole<'_>, find: &mut impl FnMut(String, Option<String>)) {
    for device in whole.rdma_devices {
        if let Capabilities::Unknown(unknown) = &device.capabilities {
            let command = unknown.improve().first().cloned();
            find(format!("{}: capabilities {}", device.name, unknown.why(device)), command);
        }
        for memory in whole.memories {
            for node in &memory.numa_nodes {
                if let Some(own) = device.numa_node.filter(|own| own != node) {
                    let far =
                        distance(whole.nodes, own, *node).map_or_else(String::new, |far| format!(", distance {far}"));
                    let what = format!("{} is on node {own} and {} on node {node}{far}", device.name, memory.name);
                    find(format!("{what}: every byte crosses between the nodes"), None);
                }
            }
        }
    }
    let lockable_bytes = whole.limits.lockable_bytes();
    if let Some(bytes) = lockable_bytes.filter(|bytes| *bytes < LOCKED_MEMORY_AMPLE_BYTES) {
        if !whole.rdma_devices.is_empty() {
            let what =
                format!("only {bytes} bytes of memory can be locked, and RDMA registers no more (devdax counts too)");
            find(what, lock_memory().pop());
        }
    }
}
