//! An opened device, with what the connections of one peer share.

use std::{
    error::Error as _,
    io,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_mem::{Evidence, Medium, Memory, causes};
use pmof_proto::RdmaFeatures;
use pmof_verbs::{Device, MemoryRegion, MrAccess, ProtectionDomain, RemoteAddress, VerbsError};

use super::{confirm, receive};
use crate::{
    DeviceChoice, RingRefusal, SetupError, VerbsOptions,
    ring::{AppendRing, Attached, Hex, RingError, RingState},
};

/// An opened device with what the connections of one peer share.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) device: Device,
    pub(super) domain: ProtectionDomain,
    pub(super) options: VerbsOptions,
    /// Where connections come from, if that was said.
    pub(super) source: Option<IpAddr>,
    pub(super) shared: Option<receive::SharedRing>,
    /// What the other sides read to learn that something has arrived, where devices complete requests early.
    pub(super) answer: Option<MemoryRegion>,
    /// Where connections may append, as long as they are there.
    rings: Mutex<Vec<Weak<RingState>>>,
}

impl Opened {
    pub(super) fn open(options: &VerbsOptions) -> Result<Arc<Self>, SetupError> {
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

    pub(super) fn answer_place(&self) -> Option<RemoteAddress> {
        self.answer.as_ref().map(|region| RemoteAddress { address: region.address(), rkey: region.rkey() })
    }

    /// True where the messages of a connection may go to a ring: an iWARP device puts nothing but the stream in order.
    pub(super) fn has_rings(&self) -> bool {
        !self.device.capabilities().completes_early()
    }

    /// Makes the handle of a ring and offers it to those who have its key, unless it is offered already.
    pub(super) fn offer(
        &self,
        (identity, slots): ([u8; 16], u32),
        make: impl FnOnce() -> Result<AppendRing, RingError>,
    ) -> Result<AppendRing, RingError> {
        let most = self.device.capabilities().max_queue_pair_requests;
        if slots > most {
            return Err(RingError::TooManySlots { slots, most });
        }
        let mut rings = self.rings.lock();
        rings.retain(|ring| ring.strong_count() > 0);
        if rings.iter().filter_map(Weak::upgrade).any(|other| other.layout().identity() == identity) {
            return Err(RingError::OpenAlready { identity: Hex(identity) });
        }
        let ring = make()?;
        rings.push(Arc::downgrade(ring.state()));
        Ok(ring)
    }

    /// Takes the ring with this key for a connection.
    pub(super) fn attach(&self, key: [u8; 16]) -> Result<Attached, RingRefusal> {
        let rings = self.rings.lock();
        let ring = rings.iter().filter_map(Weak::upgrade).find(|ring| ring.key() == key);
        drop(rings);
        ring.ok_or(RingRefusal::Unknown)?.attach()
    }

    /// What the device does with a region on which it was granted native flush to this degree.
    pub(super) fn features(&self, flush_visible: bool, flush_persistent: bool) -> RdmaFeatures {
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
        Arc::new(Memory::anonymous(confirm::ANSWER_BYTES).map_err(|error| failed(causes(&error).to_string()))?);
    domain
        .register(memory, 0, confirm::ANSWER_BYTES, MrAccess::REMOTE_READ)
        .map_err(|error| failed(causes(&error).to_string()))
}

/// Who vouches for inbound writes reaching the persistence domain by themselves, as a region's descriptor has it.
pub(super) fn inbound_evidence(features: RdmaFeatures) -> Option<Evidence> {
    features.contains(RdmaFeatures::INBOUND_DECLARED).then_some(Evidence::Declared)
}

/// Why the device library could not do what it was asked for, as an error of a system call.
pub(super) fn io_error(error: VerbsError) -> io::Error {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, Other, TimedOut};
    let system = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    // Over iWARP it is TCP that is refused, in connecting. Other kinds mean something else to whoever moves bytes.
    let kind = system.filter(|kind| [ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut].contains(kind));
    io::Error::new(kind.unwrap_or(Other), error)
}
