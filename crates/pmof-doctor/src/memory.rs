//! Each memory of the machine over each transport: the highest durability, its method, and why not more.

use std::fmt;

use pmof_mem::{Durability, Evidence, Mechanism, MediumKind, MediumProbe, MountProbe, NdBus, RegionProbe};
use serde::{Serialize, Serializer};

use crate::{
    Capabilities, CapabilitiesUnknown, DeviceCapabilities, RdmaDevice,
    advice::{self, Context},
};

/// A memory that can hold a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The device, the mount point, the path that was asked about, or `process memory`.
    pub name: String,
    /// Which kind of memory it is.
    #[serde(rename = "medium", serialize_with = "as_text")]
    pub kind: MediumKind,
    /// The file system, `none` for devices.
    pub file_system: String,
    /// What is mounted there.
    pub source: Option<String>,
    /// Other places where the same is mounted.
    pub also_at: Vec<String>,
    /// Its size, for devices.
    pub size_bytes: Option<u64>,
    /// The nd regions that it lies in.
    pub regions: Vec<String>,
    /// The nodes that it is near to.
    pub numa_nodes: Vec<u32>,
    /// Something can be written there.
    pub is_writable: bool,
    /// The strongest durability that is provided without a declaration.
    #[serde(serialize_with = "as_text")]
    pub durability: Durability,
    /// What must be done after a store.
    #[serde(serialize_with = "as_text")]
    pub mechanism: Mechanism,
    /// Why that is believed.
    #[serde(serialize_with = "as_text")]
    pub evidence: Evidence,
    /// What would keep `PowerFailure` if an operator declared the host battery-backed; `None` where nothing would.
    #[serde(serialize_with = "as_optional_text")]
    pub declared_mechanism: Option<Mechanism>,
    /// What was read, and what it said.
    pub evidence_found: Vec<String>,
    /// The longest direct write that a power cut leaves whole or undone, by what the kernel says of a file there; 0 where it promises none,
    /// `None` where it does not say. Pools are mapped, and have 8 aligned bytes whatever this is.
    pub untorn_direct_write_bytes: Option<u32>,
    /// What keeps it from more.
    #[serde(rename = "reason")]
    pub why: Option<String>,
    /// Commands that would improve it.
    pub improve: Vec<String>,
    /// The judgement over each transport.
    pub routes: Vec<Route>,
}

/// A memory over one transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// How peers reach the memory.
    pub transport: Transport,
    /// The RDMA device, for verbs.
    pub device: Option<String>,
    /// The highest durability; `None` where the memory cannot be reached at all.
    #[serde(serialize_with = "as_optional_text")]
    pub durability: Option<Durability>,
    /// The methods that reach it, best first.
    pub methods: Vec<FlushMethod>,
    /// Why the durability is believed.
    #[serde(serialize_with = "as_optional_text")]
    pub evidence: Option<Evidence>,
    /// The longest region that can be registered now; `None` is as long as the memory.
    pub limit_bytes: Option<u64>,
    /// What keeps it from more.
    #[serde(rename = "reason")]
    pub why: Option<String>,
    /// Commands that would improve it.
    pub improve: Vec<String>,
}

/// Transports of pmof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP: the target's CPU stores and flushes.
    Tcp,
    /// Shared memory of one host: the initiator stores and flushes.
    Shm,
    /// RDMA verbs through a device.
    Verbs,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
        })
    }
}

/// What makes earlier writes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlushMethod {
    /// The device, by the verbs operation FLUSH.
    NativeFlush,
    /// Nothing more is needed: a READ that returns proves that the writes before it are in the CPU's caches or memory, which keep
    /// them.
    ReadAfterWrite,
    /// The target's CPU, asked by a message.
    SendAfterWrite,
    /// The initiator's CPU, which maps the memory.
    LocalFlush,
}

impl fmt::Display for FlushMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NativeFlush => "native-flush",
            Self::ReadAfterWrite => "read-after-write",
            Self::SendAfterWrite => "send-after-write",
            Self::LocalFlush => "local-write-back",
        })
    }
}

fn as_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn as_optional_text<T: fmt::Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

/// Where a memory was found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// A device of the dax bus, with its length in bytes.
    Device(Option<u64>),
    /// A mount.
    Mount(&'a MountProbe),
    /// A path that was asked about.
    Path,
    /// No place: memory of processes.
    Process,
}

impl Memory {
    pub(crate) fn of(probe: &MediumProbe, place: Place<'_>, context: &Context<'_>) -> Self {
        let mount = match place {
            Place::Mount(mount) => Some(mount),
            _ => None,
        };
        let mut numa_nodes: Vec<_> =
            probe.regions.iter().filter_map(|region| crate::read::numa_node(&region.directory)).collect();
        numa_nodes.dedup();
        let mut memory = Self {
            name: match place {
                Place::Process => "process memory".to_owned(),
                _ => probe.path.display().to_string(),
            },
            kind: probe.kind,
            file_system: probe.file_system.clone(),
            source: mount.map(|mount| mount.source.clone()),
            also_at: mount
                .map_or_else(Vec::new, |mount| mount.also_at.iter().map(|p| p.display().to_string()).collect()),
            size_bytes: if let Place::Device(size_bytes) = place { size_bytes } else { None },
            regions: probe.regions.iter().map(|region| region.name.clone()).collect(),
            numa_nodes,
            is_writable: mount.is_none_or(|mount| !mount.is_read_only),
            durability: probe.strongest,
            mechanism: probe.promise.mechanism,
            evidence: probe.promise.evidence,
            declared_mechanism: probe.declared.map(|promise| promise.mechanism),
            evidence_found: probe.evidence.clone(),
            untorn_direct_write_bytes: probe.untorn.map(|untorn| untorn.max_bytes),
            why: probe.mend.clone(),
            improve: advice::memory(probe, mount, context),
            routes: Vec::new(),
        };
        memory.routes = routes(&memory, probe, context);
        memory
    }
}

fn routes(memory: &Memory, probe: &MediumProbe, context: &Context<'_>) -> Vec<Route> {
    let mut routes = vec![
        local(memory, Transport::Tcp, FlushMethod::SendAfterWrite),
        local(memory, Transport::Shm, FlushMethod::LocalFlush),
    ];
    routes.extend(context.devices.iter().map(|device| verbs(memory, probe, device, context)));
    routes
}

/// A route that does not exist.
fn closed(transport: Transport, device: Option<&RdmaDevice>, why: String) -> Route {
    Route {
        transport,
        device: device.map(|device| device.name.clone()),
        durability: None,
        methods: Vec::new(),
        evidence: None,
        limit_bytes: None,
        why: Some(why),
        improve: Vec::new(),
    }
}

fn read_only(memory: &Memory) -> Option<String> {
    (!memory.is_writable).then(|| format!("{} is mounted read-only", memory.name))
}

/// A route on which a CPU stores and flushes: as good as the memory itself.
fn local(memory: &Memory, transport: Transport, method: FlushMethod) -> Route {
    if let Some(why) = read_only(memory) {
        return closed(transport, None, why);
    }
    Route {
        durability: Some(memory.durability),
        methods: vec![method],
        evidence: Some(memory.evidence),
        why: None,
        ..closed(transport, None, String::new())
    }
}

fn verbs(memory: &Memory, probe: &MediumProbe, device: &RdmaDevice, context: &Context<'_>) -> Route {
    let closed = |why: String, improve| Route { improve, ..closed(Transport::Verbs, Some(device), why) };
    if let Some(why) = read_only(memory) {
        return closed(why, Vec::new());
    }
    if !device.has_reliable_connections() {
        return closed(format!("{} has no reliable connections, which pmof needs", device.name), Vec::new());
    }
    let known = match &device.capabilities {
        Capabilities::Known(known) => known,
        Capabilities::Unknown(unknown) => return closed(unknown.why(device), unknown.improve()),
    };
    if !device.ports.iter().any(crate::RdmaPort::is_active) {
        return closed(format!("no port of {} is active", device.name), advice::inactive_port(device));
    }
    let is_pinned = !known.has_on_demand_paging;
    if is_pinned {
        if let Some(why) = refuses_pinning(memory.kind) {
            return closed(format!("{why}, and {} has no on-demand paging", device.name), advice::pinnable(probe));
        }
    }
    let lockable_bytes = if is_pinned { context.lockable_bytes } else { None };
    if lockable_bytes == Some(0) {
        return closed("this process may lock no memory".to_owned(), advice::lock_memory());
    }
    let limits = [lockable_bytes, known.max_mr_bytes];
    let limit_bytes =
        limits.into_iter().flatten().min().filter(|limit| memory.size_bytes.is_none_or(|size| *limit < size));
    let is_locked_short = lockable_bytes.is_some() && limit_bytes == lockable_bytes;
    let (methods, why) = methods(memory, probe, known, context);
    Route {
        durability: Some(memory.durability),
        methods,
        evidence: Some(memory.evidence),
        limit_bytes,
        why,
        improve: if is_locked_short { advice::lock_memory() } else { Vec::new() },
        ..closed(String::new(), Vec::new())
    }
}

/// Why the kernel does not let a device keep pages of this memory in place for long while it writes them.
fn refuses_pinning(kind: MediumKind) -> Option<&'static str> {
    match kind {
        MediumKind::FsDax => Some("the kernel pins no pages of a DAX file system, whose blocks may move"),
        MediumKind::PageCache | MediumKind::VirtioPmem => {
            Some("the kernel pins no pages of a file for writing, since their write-back would not be noticed")
        }
        MediumKind::Anonymous | MediumKind::Tmpfs | MediumKind::DevDax => None,
    }
}

/// The methods that reach the memory's durability, best first, and why not all do.
fn methods(
    memory: &Memory,
    probe: &MediumProbe,
    known: &DeviceCapabilities,
    context: &Context<'_>,
) -> (Vec<FlushMethod>, Option<String>) {
    let is_durable = memory.durability == Durability::PowerFailure && memory.evidence == Evidence::Probed;
    if !is_durable {
        return (vec![FlushMethod::SendAfterWrite], None);
    }
    let mut methods = Vec::new();
    let mut reasons = Vec::new();
    match refuses_native_flush(memory.kind, &probe.regions, known, context) {
        None => methods.push(FlushMethod::NativeFlush),
        Some(why) => reasons.push(format!("no native flush: {why}")),
    }
    if probe.promise.cpu_caches_persist() {
        methods.push(FlushMethod::ReadAfterWrite);
    } else {
        reasons.push(
            "no read-after-write: inbound writes may stay in the CPU's caches, which lose them without power"
                .to_owned(),
        );
    }
    methods.push(FlushMethod::SendAfterWrite);
    (methods, (!reasons.is_empty()).then(|| reasons.join("; ")))
}

/// Why a region there cannot be registered for persistent FLUSH; the kernel (rxe) demands that every page lie in a resource
/// called "Persistent Memory".
fn refuses_native_flush(
    kind: MediumKind,
    regions: &[RegionProbe],
    known: &DeviceCapabilities,
    context: &Context<'_>,
) -> Option<&'static str> {
    let is_real = |region: &RegionProbe| matches!(region.bus, NdBus::Nfit | NdBus::Cxl);
    if !known.has_flush_persistent {
        Some("the device has no persistent FLUSH")
    } else if kind != MediumKind::DevDax {
        Some("it needs a devdax device")
    } else if regions.is_empty() || !regions.iter().all(is_real) {
        Some("the memory is of no NVDIMM and no CXL device")
    } else if !context.has_persistent_resource {
        Some("/proc/iomem shows no resource called Persistent Memory")
    } else {
        None
    }
}

impl CapabilitiesUnknown {
    pub(crate) fn why(&self, device: &RdmaDevice) -> String {
        match self {
            Self::LibraryMissing => "unknown: libibverbs1 is not installed".to_owned(),
            Self::NotAsked => format!("unknown: this program does not ask what {} can do", device.name),
            Self::Failed { why } => format!("unknown: {} does not answer: {why}", device.name),
        }
    }

    pub(crate) fn improve(&self) -> Vec<String> {
        match self {
            Self::LibraryMissing => vec!["apt install libibverbs1 ibverbs-providers".to_owned()],
            Self::NotAsked => Vec::new(),
            Self::Failed { .. } => vec!["ibv_devinfo -v".to_owned()],
        }
    }
}
