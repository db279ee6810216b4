//! Devices, opened.

use std::sync::{Arc, OnceLock, atomic::AtomicUsize};

use pmof_mem::{Memory, causes};
use pmof_verbs::{Device, MemoryRegion, MrAccess, ProtectionDomain, Sge, Transport};

use crate::error::Failure;

/// Bytes that a flush by reading reads, at most.
pub(super) const SINK_BYTES: u64 = 8;

/// Shared state of everything created from a peer: a protection domain.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(super) domain: ProtectionDomain,
    /// Number of memory registrations.
    pub(crate) registrations: AtomicUsize,
    /// The sink of reads whose bytes are discarded: those of flushes, of all connections.
    sink: OnceLock<MemoryRegion>,
}

impl Peer {
    pub(crate) fn open(device_name: &str) -> Result<Arc<Self>, Failure> {
        let domain = Device::by_name(device_name)?.protection_domain()?;
        Ok(Arc::new(Self { domain, registrations: AtomicUsize::new(0), sink: OnceLock::new() }))
    }

    pub(super) fn device(&self) -> &Device {
        self.domain.device()
    }

    pub(super) fn has_native_flush(&self) -> bool {
        let has = self.device().capabilities();
        has.native_flush_global && has.native_flush_persistent
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.device().capabilities().transport == Transport::IWarp
    }

    /// Whether the device serves memory that is not pinned.
    pub(crate) fn pages_on_demand(&self) -> bool {
        self.device().capabilities().on_demand_paging.serves_writes()
    }

    /// A range of the sink of this many bytes, at most [`SINK_BYTES`].
    pub(super) fn sink(&self, len_bytes: u64) -> Result<Sge, Failure> {
        let region = if let Some(region) = self.sink.get() {
            region
        } else {
            let memory =
                Memory::anonymous(SINK_BYTES).map_err(|error| Failure::provider(causes(&error).to_string()))?;
            let made = self.domain.register(Arc::new(memory), 0, SINK_BYTES, MrAccess::LOCAL_WRITE)?;
            self.sink.get_or_init(|| made)
        };
        region.sge(0, len_bytes).ok_or_else(|| Failure::invalid("more bytes than the sink has"))
    }
}
