//! The report for people.

use std::fmt::{self, Display, Formatter, Write};

use pmof_mem::{Durability, Mechanism};

use crate::{Capabilities, Libfabric, Limit, Memory, RdmaDevice, Rds, Report, Route};

/// What each level means.
fn meaning(level: Durability) -> &'static str {
    match level {
        Durability::Visible => "others read the new bytes, no failure survived",
        Durability::ProcessCrash => "the bytes survive the death of the target",
        Durability::PowerFailure => "the bytes survive loss of power",
    }
}

/// What each mechanism does.
fn doing(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Store => "a store is enough",
        Mechanism::Fence => "store and fence, the CPU's caches survive too",
        Mechanism::CacheLineWriteBack => "cache-line write-back by the CPU",
        Mechanism::FileSync => "file sync (msync, fdatasync) by the kernel",
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "What this machine can promise\n")?;
        self.verdicts(f)?;
        self.cpu(f)?;
        self.persistent_memory(f)?;
        self.rdma(f)?;
        self.libfabric(f)?;
        self.rds(f)?;
        self.limits(f)?;
        self.flush_times.iter().try_for_each(|times| write!(f, "\n{times}"))?;
        writeln!(f, "\nWhy, and what to do")?;
        for memory in &self.memories {
            details(memory, f)?;
        }
        if !self.findings.is_empty() {
            writeln!(f, "  the machine")?;
        }
        for finding in &self.findings {
            writeln!(f, "    note    {}", finding.what)?;
            if let Some(command) = &finding.command {
                writeln!(f, "    to do   {command}")?;
            }
        }
        Ok(())
    }
}

impl Report {
    fn verdicts(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "Memory that pools can lie on, best first")?;
        for level in Durability::ALL.into_iter().rev() {
            writeln!(f, "  {level:<13}  {}", meaning(level))?;
        }
        writeln!(f)?;
        let width = self.memories.iter().map(|memory| memory.name.chars().count()).max().unwrap_or(0).min(40);
        for memory in &self.memories {
            let kind = match memory.file_system.as_str() {
                "none" => memory.kind.to_string(),
                file_system if memory.kind.to_string() == file_system => file_system.to_owned(),
                file_system => format!("{} ({file_system})", memory.kind),
            };
            let verdict = if memory.is_writable {
                format!("{:<13}  {}", memory.durability, doing(memory.mechanism))
            } else {
                "mounted read-only".to_owned()
            };
            writeln!(f, "  {:<width$}  {kind:<28}  {verdict}", memory.name)?;
        }
        if let Some(error) = &self.mounts_error {
            writeln!(f, "  file systems cannot be listed: {error}")?;
        }
        Ok(())
    }

    fn cpu(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let cpu = &self.cpu;
        writeln!(f, "\nCPU\n  {}", cpu.model.as_deref().unwrap_or("of unknown model"))?;
        match &cpu.write_back {
            Some(instruction) => writeln!(f, "  writes cache lines back with {instruction}")?,
            None => writeln!(f, "  has no instruction to write cache lines back, which persistent memory needs")?,
        }
        if cpu.is_virtual {
            writeln!(f, "  is virtual: the machine runs under a hypervisor")?;
        }
        Ok(())
    }

    fn persistent_memory(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nPersistent memory (memory that keeps its bytes without power)")?;
        if let Some(error) = &self.regions_error {
            writeln!(f, "  cannot be listed: {error}")?;
        } else if self.regions.is_empty() && self.cxl_memdevs.is_empty() && self.dax_devices.is_empty() {
            writeln!(f, "  the kernel reports none")?;
        }
        for region in &self.regions {
            write!(f, "  {}  {}, bus {}, ", region.name, size(region.size_bytes), region.bus)?;
            match (&region.why, region.persistence_domain.as_str()) {
                (Some(why), _) => writeln!(f, "not proven: {why}")?,
                (None, domain) => writeln!(f, "proven, domain {domain}")?,
            }
            for namespace in &region.namespaces {
                writeln!(f, "    {}  {}, {}", namespace.name, namespace.mode, size(namespace.size_bytes))?;
            }
        }
        for device in &self.dax_devices {
            writeln!(f, "  {}  {}, {}", device.name, device.mode, size(device.size_bytes))?;
        }
        for memdev in &self.cxl_memdevs {
            let flush = match memdev.dirty_shutdown_count {
                Some(count) => format!("global persistent flush armed, {count} dirty shutdowns"),
                None => "global persistent flush not proven".to_owned(),
            };
            writeln!(f, "  {}  CXL, {} persistent, {flush}", memdev.name, size(memdev.persistent_bytes))?;
        }
        Ok(())
    }

    fn rdma(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nRDMA devices")?;
        if self.rdma_devices.is_empty() {
            writeln!(f, "  the kernel reports none")?;
        }
        for device in &self.rdma_devices {
            rdma_device(device, f)?;
        }
        Ok(())
    }

    fn libfabric(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.libfabric {
            Libfabric::NotAsked => Ok(()),
            Libfabric::Unusable { why } => writeln!(f, "\nlibfabric\n  cannot be used: {why}"),
            Libfabric::Found { version, providers } => {
                writeln!(f, "\nlibfabric {version}")?;
                if providers.is_empty() {
                    writeln!(f, "  has no provider here")?;
                }
                let width = providers.iter().map(|provider| provider.name.chars().count()).max().unwrap_or(0);
                providers
                    .iter()
                    .try_for_each(|provider| writeln!(f, "  {:<width$}  {}", provider.name, provider.verdict()))
            }
        }
    }

    fn rds(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.rds {
            Rds::NotAsked => Ok(()),
            Rds::Unusable { why } => writeln!(f, "\nRDS\n  cannot be used: {why}"),
            Rds::Found { modules, addresses } => {
                writeln!(
                    f,
                    "\nRDS (modules loaded: {})",
                    if modules.is_empty() { "none".to_owned() } else { modules.join(", ") }
                )?;
                if addresses.is_empty() {
                    writeln!(f, "  no address of an RDMA device; is rds_rdma loaded?")?;
                }
                addresses.iter().try_for_each(|address| writeln!(f, "  {:<15}  {}", address.address, address.verdict()))
            }
        }
    }

    fn limits(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let limits = &self.limits;
        writeln!(f, "\nLimits and surroundings")?;
        writeln!(f, "  open files     {}; each connection takes one", limit(limits.open_files, ""))?;
        let free = match limits.has_cap_ipc_lock {
            Some(true) => ", but CAP_IPC_LOCK lifts the limit",
            Some(false) => "; RDMA registers no more than that",
            None => "",
        };
        writeln!(f, "  locked memory  {}{free}", limit(limits.locked_memory_bytes, " bytes"))?;
        for pages in limits.huge_pages.iter().filter(|pages| pages.total_count > 0) {
            let page = size(Some(pages.page_bytes));
            writeln!(f, "  huge pages     {} of {page}, {} free", pages.total_count, pages.free_count)?;
        }
        if self.numa_nodes.len() > 1 {
            for node in &self.numa_nodes {
                let distances: Vec<_> = node.distances.iter().map(ToString::to_string).collect();
                writeln!(f, "  node {}         CPUs {}; distances {}", node.node, node.cpus, distances.join(" "))?;
            }
        }
        for area in &self.swap_areas {
            writeln!(f, "  swap           {}, {}", area.path, size(Some(area.size_bytes)))?;
        }
        for supply in &self.power_supplies {
            let kind = supply.kind.as_deref().unwrap_or("of unknown kind");
            writeln!(f, "  power supply   {}, {kind} (no evidence that memory survives)", supply.name)?;
        }
        Ok(())
    }
}

fn rdma_device(device: &RdmaDevice, f: &mut Formatter<'_>) -> fmt::Result {
    let soft = if device.is_soft { "soft: the CPU copies every byte" } else { "hardware" };
    let driver = device.driver.as_deref().unwrap_or("of unknown driver");
    let kind = if device.is_iwarp() { ", iWARP" } else { "" };
    writeln!(f, "  {}  {driver}, {soft}{kind}", device.name)?;
    for port in &device.ports {
        let words = [&port.state, &port.link_layer, &port.rate, &port.network_interface];
        let words: Vec<_> = words.into_iter().flatten().map(String::as_str).collect();
        writeln!(f, "    port {}  {}", port.port, words.join(", "))?;
    }
    match &device.capabilities {
        Capabilities::Unknown(unknown) => writeln!(f, "    capabilities {}", unknown.why(device)),
        Capabilities::Known(known) => {
            let yes = |has: bool| if has { "yes" } else { "no" };
            writeln!(
                f,
                "    native flush: persistent {}, global {}; atomic write {}; on-demand paging {}",
                yes(known.has_flush_persistent),
                yes(known.has_flush_global),
                yes(known.has_atomic_write),
                yes(known.has_on_demand_paging)
            )
        }
    }
}

fn details(memory: &Memory, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "  {}", memory.name)?;
    if let Some(source) = &memory.source {
        let others =
            if memory.also_at.is_empty() { String::new() } else { format!(", also at {}", memory.also_at.join(", ")) };
        writeln!(f, "    from    {source}{others}")?;
    }
    for route in &memory.routes {
        writeln!(f, "    {}", route_line(route))?;
        for command in &route.improve {
            writeln!(f, "            to do: {command}")?;
        }
    }
    for sentence in &memory.evidence_found {
        writeln!(f, "    known   {sentence}")?;
    }
    if let Some(bytes) = memory.untorn_direct_write_bytes {
        writeln!(f, "    untorn  {}", untorn(bytes))?;
    }
    if let Some(why) = &memory.why {
        writeln!(f, "    no more {why}")?;
    }
    if let (Some(mechanism), true) = (memory.declared_mechanism, memory.durability < Durability::PowerFailure) {
        writeln!(f, "    if an operator declares the host battery-backed: power-failure, {}", doing(mechanism))?;
    }
    for command in &memory.improve {
        writeln!(f, "    to do   {command}")?;
    }
    writeln!(f)
}

/// What a power cut leaves whole or undone.
fn untorn(direct_write_bytes: u32) -> String {
    match direct_write_bytes {
        0 => "8 aligned bytes; the file system promises no longer write, not even a direct one".to_owned(),
        bytes => format!(
            "8 aligned bytes; direct writes (RWF_ATOMIC) up to {bytes} bytes, but stores to a pool are none: it is mapped"
        ),
    }
}

fn route_line(route: &Route) -> String {
    let mut line = format!("{:<7}", route.transport);
    if let Some(device) = &route.device {
        let _ = write!(line, " {device}:");
    }
    let _ = match (route.durability, route.evidence) {
        (Some(durability), Some(evidence)) => {
            let methods: Vec<_> = route.methods.iter().map(ToString::to_string).collect();
            write!(line, " {durability} by {} ({evidence})", methods.join(" or "))
        }
        _ => write!(line, " none"),
    };
    if let Some(limit) = route.limit_bytes {
        let _ = write!(line, ", regions up to {}", size(Some(limit)));
    }
    if let Some(why) = &route.why {
        let _ = write!(line, "; {why}");
    }
    line
}

fn limit(limit: Option<Limit>, unit: &str) -> String {
    let one = |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |limit| format!("{limit}{unit}"));
    match limit {
        Some(Limit { soft, hard }) if soft == hard => one(soft),
        Some(Limit { soft, hard }) => format!("{}, at most {}", one(soft), one(hard)),
        None => "the kernel does not say".to_owned(),
    }
}

/// A size for people.
fn size(len_bytes: Option<u64>) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some(len_bytes) = len_bytes else { return "of unknown size".to_owned() };
    match UNITS.iter().find(|(shift, _)| len_bytes >> shift > 0) {
        Some((shift, unit)) => format!("{:.1} {unit}", len_bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{len_bytes} bytes"),
    }
}
