//! Peers, connections, regions and completion queues: remote memory without pools.
//!
//! A [`Peer`] listens or connects over a [`Transport`]; a [`Connection`] writes, reads and flushes the [`RemoteRegion`] that the other side has registered and
//! described, and its operations are completed in a [`CompletionQueue`].

#[cfg(feature = "rds")]
#[doc(inline)]
pub use pmof_access::RdsError;
#[doc(inline)]
pub use pmof_access::{
    AcceptOptions, Access, Address, AddressError, AppendRing, BackgroundFlushes, BackgroundThreads, Batch,
    Capabilities, Completion, CompletionQueue, ConnectError, ConnectOptions, Connection, ConnectionError,
    ConnectionEvent, ConnectionId, ConnectionRequest, DEFAULT_CONNECT_TIMEOUT, DEFAULT_HANDSHAKE_TIMEOUT,
    DEFAULT_LOSS_TIMEOUT, DEFAULT_PORT, DEFAULT_SPIN, DESCRIPTOR_BYTES, DescriptorError, DeviceChoice,
    DurationCounters, DurationCounts, FabricProvider, Flushed, Hex, ListenOptions, Listener, LocalEnd, Location,
    Medium, Memory, MemoryAccount, MemoryBudget, MemoryUse, Method, OperationCounters, OperationCounts, OperationError,
    OperationKind, Outcome, Peer, PeerProcess, PendingConnection, Place, PostError, Progress, QueueOptions,
    RECORD_MAX_BYTES, ReadyFlag, Refusal, Region, RegionPart, RegionSlice, RegisterError, RemoteRegion, ResolveError,
    RingContents, RingError, RingRecord, RingRefusal, SHORT_DESCRIPTOR_BYTES, Settings, SetupError, SharedReceives,
    ShortDescriptor, Signal, Single, Source, Ticket, Traffic, Transport, TransportDescriptor, VerbsOptions, Waiting,
    has_rdma_device, limits, read_ring, sim,
};
#[cfg(feature = "verbs")]
#[doc(inline)]
pub use pmof_access::{DeviceInfo, LinkLayer, OnDemandPaging, PortInfo, PortState, VerbsError};
#[cfg(feature = "fabric")]
#[doc(inline)]
pub use pmof_access::{FabricEndpointKind, FabricError, FabricFailure};
