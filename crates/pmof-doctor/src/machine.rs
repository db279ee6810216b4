//! CPU, limits, NUMA nodes, swap and power supplies.

use std::path::Path;

use pmof_mem::{CacheWriteBack, System};
use serde::Serialize;

use crate::read;

/// Bit of `CAP_IPC_LOCK` in the capability sets of `/proc/PID/status` (linux/capability.h).
const CAP_IPC_LOCK: u32 = 14;

/// Flags of `/proc/cpuinfo`, and the instructions that they stand for.
const INSTRUCTIONS: [(&str, &str); 5] = [
    ("clwb", "clwb"),
    ("clflushopt", "clflushopt"),
    ("clflush", "clflush"),
    ("dcpop", "dc cvap"),
    ("dcpodp", "dc cvadp"),
];

/// What the CPU can do for persistent memory, by `/proc/cpuinfo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Vendor's name of the model, where the kernel gives one.
    pub model: Option<String>,
    /// Its instructions for cache write-back: `clwb`, `clflushopt`, `clflush`; on `AArch64` `dc cvap` (to the point of
    /// persistence) and `dc cvadp` (to that of deep persistence).
    pub instructions: Vec<&'static str>,
    /// The instruction that pmof uses.
    pub write_back: Option<String>,
    /// The machine is virtual: what its kernel says of memory and disks is what its host lets it say.
    pub is_virtual: bool,
}

impl Cpu {
    pub(crate) fn of(system: &System) -> Self {
        let info = read::text(&system.proc_root().join("cpuinfo")).unwrap_or_default();
        let flags = cpu_flags(&info);
        let has = |flag| flags.contains(&flag);
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            model: model.map(|(_, name)| name.trim().to_owned()).filter(|name| !name.is_empty()),
            instructions: INSTRUCTIONS.iter().filter(|(flag, _)| has(flag)).map(|(_, name)| *name).collect(),
            write_back: system.cpu().map(|instruction| instruction.to_string()),
            is_virtual: has("hypervisor") || system.sysfs_root().join("hypervisor/type").exists(),
        }
    }
}

/// The best write-back instruction that a text of `/proc/cpuinfo` names: what a machine that this is not would use.
pub fn cpu_write_back(cpuinfo: &str) -> Option<CacheWriteBack> {
    let flags = cpu_flags(cpuinfo);
    CacheWriteBack::ALL.into_iter().find(|instruction| {
        let name = instruction.to_string();
        INSTRUCTIONS.iter().any(|(flag, own)| *own == name && flags.contains(flag))
    })
}

/// The flags of the first CPU.
fn cpu_flags(cpuinfo: &str) -> Vec<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    line.and_then(|line| line.split_once(':')).map_or_else(Vec::new, |(_, flags)| flags.split_whitespace().collect())
}

/// A soft limit, which programs may raise up to the hard one. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// In force now.
    pub soft: Option<u64>,
    /// The most that it can be raised to without privilege.
    pub hard: Option<u64>,
}

/// Huge pages of one size that the kernel has reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// Size of one page.
    pub page_bytes: u64,
    /// How many are kept.
    pub total_count: u64,
    /// How many are free.
    pub free_count: u64,
}

/// What this process may use. `None` where the kernel does not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// `RLIMIT_MEMLOCK` in bytes: RDMA registration counts against it, devdax memory too.
    pub locked_memory_bytes: Option<Limit>,
    /// `RLIMIT_NOFILE`: each connection takes one file.
    pub open_files: Option<Limit>,
    /// The process has `CAP_IPC_LOCK`, so that the limit on locked memory does not bind it.
    pub has_cap_ipc_lock: Option<bool>,
    /// Sizes of huge pages.
    pub huge_pages: Vec<HugePages>,
}

impl Limits {
    pub(crate) fn of(system: &System) -> Self {
        let own = system.proc_root().join("self");
        let table = read::text(&own.join("limits")).unwrap_or_default();
        let status = read::text(&own.join("status")).unwrap_or_default();
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self {
            locked_memory_bytes: limit(&table, "Max locked memory"),
            open_files: limit(&table, "Max open files"),
            has_cap_ipc_lock: capabilities
                .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
                .map(|bits| bits >> CAP_IPC_LOCK & 1 == 1),
            huge_pages: huge_pages(&system.sysfs_root().join("kernel/mm/hugepages")),
        }
    }

    /// How much may be locked; `None` is all. Where the kernel does not say it is nothing.
    pub(crate) fn lockable_bytes(&self) -> Option<u64> {
        match (self.has_cap_ipc_lock, self.locked_memory_bytes) {
            (Some(true), _) => None,
            (_, Some(limit)) => limit.soft,
            (_, None) => Some(0),
        }
    }
}

/// A line of `/proc/PID/limits`: name, soft, hard, unit.
fn limit(table: &str, name: &str) -> Option<Limit> {
    let mut values = table.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    let mut value = || match values.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Limit { soft: value()?, hard: value()? })
}

fn huge_pages(directory: &Path) -> Vec<HugePages> {
    let sizes = read::entries(directory).into_iter();
    let of = |(name, path): (String, std::path::PathBuf)| {
        let page_kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some(HugePages {
            page_bytes: page_kib.checked_mul(1024)?,
            total_count: read::number(&path.join("nr_hugepages"))?,
            free_count: read::number(&path.join("free_hugepages"))?,
        })
    };
    sizes.filter_map(of).collect()
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// The kernel's number.
    pub node: u32,
    /// Its CPUs, as `0-3,8`; empty for memory without CPUs.
    pub cpus: String,
    /// Distance to each node in the order of their numbers: 10 is itself, 20 twice as far (ACPI SLIT).
    pub distances: Vec<u32>,
}

pub(crate) fn numa_nodes(system: &System) -> Vec<NumaNode> {
    let nodes = read::entries(&system.sysfs_root().join("devices/system/node")).into_iter();
    nodes
        .filter_map(|(name, path)| {
            let distances = read::text(&path.join("distance")).unwrap_or_default();
            Some(NumaNode {
                node: name.strip_prefix("node")?.parse().ok()?,
                cpus: read::text(&path.join("cpulist")).unwrap_or_default(),
                distances: distances.split_whitespace().filter_map(|distance| distance.parse().ok()).collect(),
            })
        })
        .collect()
}

/// The distance from one node to another; `None` where the kernel does not say.
pub(crate) fn distance(nodes: &[NumaNode], from: u32, to: u32) -> Option<u32> {
    let column = nodes.iter().position(|node| node.node == to)?;
    nodes.iter().find(|node| node.node == from)?.distances.get(column).copied()
}

/// A swap area: process memory and tmpfs may be written there, persistent memory never.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwapArea {
    /// File or device.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
}

pub(crate) fn swap_areas(system: &System) -> Vec<SwapArea> {
    let table = read::text(&system.proc_root().join("swaps")).unwrap_or_default();
    let area = |line: &str| {
        let mut fields = line.split_whitespace();
        let (path, _kind) = (fields.next()?.to_owned(), fields.next()?);
        Some(SwapArea { path, size_bytes: fields.next()?.parse::<u64>().ok()?.checked_mul(1024)? })
    };
    table.lines().skip(1).filter_map(area).collect()
}

/// A battery, a mains adapter or a UPS that the kernel knows. Never evidence: it does not show what the machine does with
/// its memory when power is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PowerSupply {
    /// The kernel's name.
    pub name: String,
    /// `Battery`, `Mains`, `UPS`, ...
    pub kind: Option<String>,
}

pub(crate) fn power_supplies(system: &System) -> Vec<PowerSupply> {
    let supplies = read::entries(&system.sysfs_root().join("class/power_supply")).into_iter();
    supplies.map(|(name, path)| PowerSupply { name, kind: read::text(&path.join("type")) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_lines_of_a_table() {
        let table = "Limit                     Soft Limit           Hard Limit           Units     \n\
                     Max locked memory         8388608              unlimited            bytes     \n\
                     Max open files            1024                 nonsense             files     \n";
        assert_eq!(limit(table, "Max locked memory"), Some(Limit { soft: Some(8 << 20), hard: None }));
        assert_eq!((limit(table, "Max open files"), limit(table, "Max nice")), (None, None));
    }

    #[test]
    fn the_best_instruction_is_taken_from_cpuinfo() {
        for (text, expected) in [
            ("flags\t\t: fpu clflush clflushopt clwb\n", Some(CacheWriteBack::Clwb)),
            ("flags\t\t: fpu clflush clflushopt clwb_not\n", Some(CacheWriteBack::Clflushopt)),
            ("flags : clflush", Some(CacheWriteBack::Clflush)),
            ("Features\t: fp asimd dcpop dcpodp\n", Some(CacheWriteBack::DcCvap)),
            ("flags : fpu\nbugs : clwb\n", None),
            ("", None),
        ] {
            assert_eq!(cpu_write_back(text), expected, "{text}");
        }
    }

    #[test]
    fn this_machine_says_the_same_as_its_cpu() {
        let system = System::real();
        let text = read::text(Path::new("/proc/cpuinfo")).unwrap();
        assert_eq!(cpu_write_back(&text), system.cpu());
        let (cpu, asked) = (Cpu::of(&system), pmof_mem::probe_cpu());
        let has = |name| cpu.instructions.contains(&name);
        assert_eq!((has("clwb"), has("clflushopt")), (asked.has_clwb, asked.has_clflushopt));
    }
}
