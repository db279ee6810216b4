//! The machine and the software that a report was measured with.

use std::{fs, path::Path};

use pmof_mem::{probe, probe_cpu};
use serde::{Deserialize, Serialize};

/// What matters for the numbers; nothing in it names the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of pmof.
    pub pmof: String,
    /// `release`, or `debug`, whose numbers say little.
    pub build: String,
    /// The CPU's model.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The machine is virtual.
    pub is_virtual: bool,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution.
    pub system: String,
    /// What sets the CPU's clock.
    pub governor: Option<String>,
    /// The load of one minute before the first cell.
    pub load_average: f64,
    /// What pools lay on.
    pub media: Vec<Lies>,
    /// RDMA devices.
    pub rdma_devices: Vec<String>,
}

/// What a medium of the report is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lies {
    /// The word of `--medium`.
    pub medium: String,
    /// Its directory.
    pub directory: String,
    /// The kernel's name of the file system.
    pub file_system: String,
    /// The strongest level that it gives, and by what.
    pub durability: String,
    /// What makes bytes durable.
    pub mechanism: String,
}

impl Machine {
    /// Asks the kernel. What it does not say is empty.
    pub(crate) fn of_this(media: &[(&str, &Path)]) -> Self {
        let cpu_info = text("/proc/cpuinfo");
        let system = text("/etc/os-release");
        let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let mut rdma_devices: Vec<String> = fs::read_dir("/sys/class/infiniband")
            .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        rdma_devices.sort();
        Self {
            pmof: env!("CARGO_PKG_VERSION").to_owned(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            cpu: probe_cpu().model,
            cpus: pmof_console::limits::allowed_cpus().map_or(0, |cpus| cpus.len()),
            is_virtual: is_virtual(&cpu_info),
            memory_bytes: memory_bytes(&text("/proc/meminfo")).unwrap_or_default(),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: system.unwrap_or_default().trim_matches('"').to_owned(),
            governor: fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .ok()
                .map(|governor| governor.trim().to_owned()),
            load_average: load_average(&text("/proc/loadavg")).unwrap_or_default(),
            media: media.iter().filter_map(|(medium, directory)| Lies::of(medium, directory)).collect(),
            rdma_devices,
        }
    }

    /// What differs from another machine, if its numbers cannot be mixed with this one's.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let pairs = [
            ("pmof", &self.pmof, &other.pmof),
            ("build", &self.build, &other.build),
            ("CPU", &self.cpu, &other.cpu),
            ("kernel", &self.kernel, &other.kernel),
        ];
        let (what, one, two) = pairs.into_iter().find(|(_, one, two)| one != two)?;
        Some(format!("{what} {one} there, {two} here"))
    }
}

impl Lies {
    fn of(medium: &str, directory: &Path) -> Option<Self> {
        let found = probe(directory).ok()?;
        Some(Self {
            medium: medium.to_owned(),
            directory: directory.display().to_string(),
            file_system: found.file_system,
            durability: found.strongest.to_string(),
            mechanism: found.promise.mechanism.to_string(),
        })
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn is_virtual(cpu_info: &str) -> bool {
    let flags = cpu_info.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

fn load_average(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        assert!(is_virtual("processor : 0\nflags\t\t: fpu hypervisor avx\n"));
        assert!(!is_virtual("flags\t\t: fpu hypervisors\n") && !is_virtual(""));
        assert_eq!(memory_bytes("MemTotal:        8 kB\n"), Some(8192));
        assert_eq!(memory_bytes("MemFree: 8 kB\n"), None);
        assert_eq!(load_average("0.25 1.0 2.0 1/2 3\n"), Some(0.25));
        assert_eq!(load_average(""), None);
    }

    #[test]
    fn another_kernel_or_build_is_named() {
        let machine = Machine::of_this(&[("tmpfs", Path::new("/dev/shm"))]);
        assert_eq!(machine.difference(&machine), None);
        let other = Machine { kernel: "1.0".to_owned(), ..machine.clone() };
        assert!(machine.difference(&other).unwrap().contains("kernel"));
        let busy = Machine { load_average: 99.0, ..machine.clone() };
        assert_eq!(machine.difference(&busy), None, "a load is no other machine");
    }
}
