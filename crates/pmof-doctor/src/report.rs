//! The examination of a machine.

use std::path::Path;

use pmof_mem::{MediumProbe, MountProbe, System, causes, probe_anonymous, probe_mounts};
use serde::Serialize;

use crate::{
    Cpu, CxlMemdev, DaxDevice, FlushTimes, Libfabric, Limits, Memory, NumaNode, PowerSupply, RdmaCapabilities,
    RdmaDevice, Rds, Region, SwapArea,
    advice::{self, Context, Finding, Whole},
    machine,
    memory::Place,
    pmem, rdma, read,
};

/// What is examined.
#[derive(Clone, Debug)]
pub struct Platform {
    /// The kernel's answers.
    pub system: System,
    /// Judgements of open files, by [`pmof_mem::probe`], that belong into the report.
    pub paths: Vec<MediumProbe>,
    /// What libfabric says of its providers.
    pub libfabric: Libfabric,
    /// What the kernel has of RDS.
    pub rds: Rds,
}

/// All that was found. Its JSON form has the same names, but `reason` for `why` and `why_not`, `medium` for the kind of a memory, and `evidence_found` everywhere; units are in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The CPU.
    pub cpu: Cpu,
    /// Everything that a pool's bytes can lie on, best first.
    pub memories: Vec<Memory>,
    /// Why the mounted file systems could not be listed.
    pub mounts_error: Option<String>,
    /// nd regions.
    pub regions: Vec<Region>,
    /// Why they could not be listed.
    pub regions_error: Option<String>,
    /// Devices of the dax bus.
    pub dax_devices: Vec<DaxDevice>,
    /// CXL memory devices.
    pub cxl_memdevs: Vec<CxlMemdev>,
    /// RDMA devices.
    pub rdma_devices: Vec<RdmaDevice>,
    /// libfabric and its providers.
    pub libfabric: Libfabric,
    /// RDS and its addresses.
    pub rds: Rds,
    /// Limits of this process.
    pub limits: Limits,
    /// NUMA nodes.
    pub numa_nodes: Vec<NumaNode>,
    /// Swap areas.
    pub swap_areas: Vec<SwapArea>,
    /// Batteries and the like: information, never evidence.
    pub power_supplies: Vec<PowerSupply>,
    /// How long flushes took where they were measured.
    pub flush_times: Vec<FlushTimes>,
    /// What concerns the machine as a whole.
    pub findings: Vec<Finding>,
}

/// Examines a machine. What cannot be read is missing from the report or named in it; it never fails and never counts as
/// proof.
pub fn examine(platform: &Platform, capabilities: &dyn RdmaCapabilities) -> Report {
    let system = &platform.system;
    let cpu = Cpu::of(system);
    let (regions, regions_error) = pmem::regions(system);
    let rdma_devices = rdma::rdma_devices(system, capabilities);
    let limits = Limits::of(system);
    let dax = pmem::dax_devices(system);
    let (mounts, mounts_error) = match probe_mounts(system) {
        Ok(mounts) => (mounts, None),
        Err(error) => (Vec::new(), Some(causes(&error).to_string())),
    };
    let context = Context {
        devices: &rdma_devices,
        regions: &regions,
        lockable_bytes: limits.lockable_bytes(),
        has_persistent_resource: has_persistent_resource(system.proc_root()),
    };
    let of = |probe, place| Memory::of(probe, place, &context);
    // Where a file system is mounted on a path that was asked about, the open file's judgement is the mount's.
    let probe_at = |mount: &MountProbe| platform.paths.iter().find(|probe| probe.path == mount.mount_point);
    let elsewhere = platform.paths.iter().filter(|probe| mounts.iter().all(|mount| mount.mount_point != probe.path));
    let mut memories: Vec<_> = elsewhere.map(|probe| of(probe, Place::Path)).collect();
    let devices = dax.iter().filter_map(|(_, probe)| Some((probe.medium.as_ref()?, probe.size_bytes)));
    memories.extend(devices.map(|(medium, size_bytes)| of(medium, Place::Device(size_bytes))));
    memories.extend(mounts.iter().map(|mount| of(probe_at(mount).unwrap_or(&mount.medium), Place::Mount(mount))));
    memories.push(of(&probe_anonymous(), Place::Process));
    // The sort is stable: within a level the order in which they were asked about or mounted stays.
    memories.sort_by_key(|memory| std::cmp::Reverse((memory.is_writable, memory.durability)));
    let dax_devices: Vec<_> = dax.into_iter().map(|(device, _)| device).collect();
    let cxl_memdevs = pmem::cxl_memdevs(system, &regions);
    let numa_nodes = machine::numa_nodes(system);
    let findings = advice::findings(&Whole {
        system,
        is_virtual: cpu.is_virtual,
        regions: &regions,
        dax_devices: &dax_devices,
        cxl_memdevs: &cxl_memdevs,
        rdma_devices: &rdma_devices,
        limits: &limits,
        nodes: &numa_nodes,
        memories: &memories,
    });
    Report {
        cpu,
        memories,
        mounts_error,
        regions,
        regions_error,
        dax_devices,
        cxl_memdevs,
        rdma_devices,
        libfabric: platform.libfabric.clone(),
        rds: platform.rds.clone(),
        limits,
        numa_nodes,
        swap_areas: machine::swap_areas(system),
        power_supplies: machine::power_supplies(system),
        flush_times: Vec::new(),
        findings,
    }
}

/// The name is exact: "Persistent Memory (legacy)" is ordinary memory.
fn has_persistent_resource(proc_root: &Path) -> bool {
    let resources = read::text(&proc_root.join("iomem")).unwrap_or_default();
    resources.lines().any(|line| line.split_once(" : ").is_some_and(|(_, name)| name == "Persistent Memory"))
}
