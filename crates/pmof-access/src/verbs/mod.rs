//! RDMA verbs: reliable connected queue pairs through `rdma_cm`.
//!
//! A connection is one queue pair. Messages of the protocol travel as SENDs into a ring of receives; operations on
//! registered memory go straight to it as WRITE, READ, FLUSH and the atomic operations. Both kinds share the queue pair,
//! so that the device keeps their order.

use std::{
    error::Error as _,
    ffi::c_void,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use pmof_mem::{Evidence, Medium, Memory};
use pmof_proto::{Access, RdmaFeatures};
use pmof_verbs::{Device, DeviceInfo, MemoryRegion, MrAccess, ProtectionDomain, RemoteAddress, VerbsError};

use crate::{
    RegisterError, SetupError,
    ring::{AppendRing, Attached, Hex, RingError, RingRefusal, RingState},
};

mod confirm;
mod connect;
mod direct;
mod listen;
mod memory;
mod receive;
mod send;
mod wire;

pub(crate) use listen::VerbsDoor;
pub(crate) use memory::DeviceMemory;
pub(crate) use wire::{ConnectFailure, VerbsWire};

/// Which RDMA device a peer uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The only one of this machine.
    Only,
    /// The one with this name, as `rdma link` shows it.
    Named(String),
    /// The one that this local address belongs to.
    Local(IpAddr),
    /// The one that leads to a target.
    Towards {
        /// The target.
        target: SocketAddr,
        /// The local address to come from, where routing does not decide it.
        source: Option<IpAddr>,
    },
}

/// How a peer opens verbs.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The device.
    pub device: DeviceChoice,
    /// Use the device's FLUSH where it has it.
    pub native_flush: bool,
    /// Use the device's ATOMIC WRITE where it has it.
    pub atomic_write: bool,
    /// The operator declares that inbound writes reach the persistence domain by themselves, past the CPU caches: a
    /// platform setting that no device can see (DDIO off, and ADR). Refused for a software device, whose inbound writes
    /// are copies made by the CPU.
    pub inbound_declared: bool,
    /// Connections take their receives from one ring of so many buffers of 8 KiB that they share, instead of 16 each.
    pub shared_receives: Option<u32>,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Only,
            native_flush: true,
            atomic_write: true,
            inbound_declared: false,
            shared_receives: None,
        }
    }
}

/// An opened device with what the connections of one peer share.
#[derive(Debug)]
pub(crate) struct Opened {
    device: Device,
    domain: ProtectionDomain,
    options: VerbsOptions,
    /// Where connections come from, if that was said.
    source: Option<IpAddr>,
    shared: Option<receive::SharedRing>,
    /// What the other sides read to learn that something has arrived, where devices complete requests early.
    answer: Option<MemoryRegion>,
    /// Where connections may append, as long as they are there.
    rings: Mutex<Vec<Weak<RingState>>>,
}

impl Opened {
    pub(crate) fn open(options: &VerbsOptions) -> Result<Arc<Self>, SetupError> {
        /// Time to find the way to a target.
        const ROUTE_TIMEOUT: Duration = Duration::from_secs(5);
        let (device, source) = match &options.device {
            DeviceChoice::Only => (Device::only()?, None),
            DeviceChoice::Named(name) => (Device::by_name(name)?, None),
            DeviceChoice::Local(address) => (Device::by_local_address(*address)?, Some(*address)),
            DeviceChoice::Towards { target, source } => (Device::towards(*target, *source, ROUTE_TIMEOUT)?, *source),
        };
        if options.inbound_declared && device.capabilities().is_software {
            return Err(SetupError::InboundContradicted { device: device.name().to_owned() });
        }
        let domain = device.protection_domain()?;
        let shared = options.shared_receives.map(|count| receive::SharedRing::new(&domain, count)).transpose()?;
        let answer = device.capabilities().completes_early().then(|| answer(&domain)).transpose()?;
        let (options, rings) = (options.clone(), Mutex::default());
        Ok(Arc::new(Self { device, domain, options, source, shared, answer, rings }))
    }

    fn answer_place(&self) -> Option<RemoteAddress> {
        self.answer.as_ref().map(|region| RemoteAddress { address: region.address(), rkey: region.rkey() })
    }

    /// True where the messages of a connection may go to a ring: an iWARP device puts nothing but the stream in order.
    pub(crate) fn has_rings(&self) -> bool {
        !self.device.capabilities().completes_early()
    }

    pub(crate) fn device_name(&self) -> &str {
        self.device.name()
    }

    pub(crate) fn device_info(&self) -> &DeviceInfo {
        self.device.capabilities()
    }

    pub(crate) fn device_context(&self) -> *mut c_void {
        self.device.raw_context()
    }

    /// Makes memory reachable for the device, as far as it can be.
    pub(crate) fn register(
        &self,
        memory: &Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        access: Access,
    ) -> Result<DeviceMemory, RegisterError> {
        DeviceMemory::register(self, memory, offset, len_bytes, access)
    }

    /// Makes the handle of a ring and offers it to those who have its key, unless it is offered already.
    pub(crate) fn offer(
        &self,
        (identity, slots): ([u8; 16], u32),
        make: impl FnOnce() -> Result<AppendRing, RingError>,
    ) -> Result<AppendRing, RingError> {
        let most = self.device.capabilities().max_queue_pair_requests;
        if slots > most {
            return Err(RingError::TooManySlots { slots, most });
        }
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|ring| ring.strong_count() > 0);
        if rings.iter().filter_map(Weak::upgrade).any(|other| other.layout().identity() == identity) {
            return Err(RingError::OpenAlready { identity: Hex(identity) });
        }
        let ring = make()?;
        rings.push(Arc::downgrade(ring.state()));
        Ok(ring)
    }

    /// Takes the ring with this key for a connection.
    fn attach(&self, key: [u8; 16]) -> Result<Attached, RingRefusal> {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = rings.iter().filter_map(Weak::upgrade).find(|ring| ring.key() == key);
        drop(rings);
        ring.ok_or(RingRefusal::Unknown)?.attach()
    }

    /// What the device does with a region on which it was granted native flush to this degree.
    fn features(&self, flush_visible: bool, flush_persistent: bool) -> RdmaFeatures {
        let mut features = RdmaFeatures::empty();
        features.set(RdmaFeatures::FLUSH_VISIBLE, flush_visible);
        features.set(RdmaFeatures::FLUSH_PERSISTENT, flush_persistent);
        features.set(RdmaFeatures::ATOMIC_WRITE, self.options.atomic_write && self.device.capabilities().atomic_write);
        features.set(RdmaFeatures::INBOUND_DECLARED, self.options.inbound_declared);
        features
    }
}

/// A few bytes for the other sides to read.
fn answer(domain: &ProtectionDomain) -> Result<MemoryRegion, SetupError> {
    let failed = |error: String| SetupError::System { call: "ibv_reg_mr", source: io::Error::other(error) };
    let memory: Arc<dyn Medium> =
        Arc::new(Memory::anonymous(confirm::ANSWER_BYTES).map_err(|error| failed(error.to_string()))?);
    domain.register(memory, 0, confirm::ANSWER_BYTES, MrAccess::REMOTE_READ).map_err(|error| failed(error.to_string()))
}

/// Who vouches for inbound writes reaching the persistence domain by themselves, as a region's descriptor has it.
fn inbound_evidence(features: RdmaFeatures) -> Option<Evidence> {
    features.contains(RdmaFeatures::INBOUND_DECLARED).then_some(Evidence::Declared)
}

/// Why the device library could not do what it was asked for, as an error of a system call.
fn io_error(error: VerbsError) -> io::Error {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, Other, TimedOut};
    let system = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    // Over iWARP it is TCP that is refused, in connecting. Other kinds mean something else to whoever moves bytes.
    let kind = system.filter(|kind| [ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut].contains(kind));
    io::Error::new(kind.unwrap_or(Other), error)
}
