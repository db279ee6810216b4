//! Access to remote memory: peers, connections, regions, completion queues and the transports that carry them.
//!
//! Posting never blocks; outcomes are collected from a [`CompletionQueue`] by polling, by waiting with a time limit, or
//! when its file descriptor becomes readable. Operations of one connection take effect in the order posted; nothing is
//! promised across connections. An operation that the target refuses ends its connection, so that no later flush can
//! vouch for it.
//!
//! Transports, the same interface on each:
//!
//! - [`Transport::Tcp`]: every operation is a message that the target's CPU carries out.
//! - [`Transport::Shm`]: processes of one host. The initiator maps the target's memory, stores, and flushes by itself.
//! - [`Transport::Verbs`]: RDMA devices carry out reads, writes, atomics and, where both have it, the flush. Memory that a
//!   device cannot reach, and what devices lack, goes as messages over the same queue pair. The libraries of rdma-core are
//!   loaded when first asked for; without them, or without a device, opening says what to install or set up.
//! - [`Transport::Fabric`]: providers of libfabric, as verbs: RMA where it can be, messages else. The library is loaded when first
//!   asked for. The cargo feature `fabric`, on by default.
//! - [`Transport::Rds`]: reliable datagrams of the kernel between the hosts of RDMA devices; every operation is a message. What was under way while the
//!   wire was down arrives once when it is up again. The cargo feature `rds`, on by default.
//! - [`sim`]: a network in one process, with a virtual clock and faults on demand.
//!
//! Verbs is the cargo feature `verbs`, on by default. Without it a verbs address is still an address, and opening it is
//! [`SetupError::NotBuilt`].
//!
//! A flush uses the cheapest [`Method`] that gives the [`Durability`] asked for; [`Connection::flush_method`] tells which,
//! [`ConnectOptions::method`] forces one. A flush covers what was posted before it. A plain write posted after it may take
//! effect before the flush is done, over shm and verbs; an atomic write waits, except behind a read-after-write.
//!
//! Over verbs a target can lend a ring in persistent memory ([`Peer::create_ring`]): its device receives there what other
//! hosts [`append`](Connection::append), and a flush of the ring makes it durable without the target's CPU.
//!
//! # Log
//!
//! What goes on behind the calls is told to the crate [`log`](https://docs.rs/log), and so to the program's logger if it has
//! one. Errors that a call returns are not repeated there. The key `event` names what happened; `connection`, `peer` and `reason` are keys too.
//!
//! | target | level | what |
//! |---|---|---|
//! | `pmof::connection` | info | a connection is established; one was closed in order |
//! | | warn | one was lost, or was not made (nobody listens, or a side refused), and why |
//! | `pmof::flush` | debug | by which method flushes go, when that is another than last time, and why by no cheaper one |
//! | `pmof::region` | debug | a region that devices do not reach, and why |
//! | `pmof::memory` | error | memory of this side failed; the other side is told no more than that |
//!
//! ```
//! use std::time::Duration;
//! use pmof_access::{Access, Durability, Outcome, Peer, Progress, QueueOptions, Transport};
//!
//! let peer = Peer::open(Transport::Tcp)?;
//! // The target's side, here in the same process: a thread of its queue serves remote operations.
//! let serving = peer.completion_queue(QueueOptions::default().progress(Progress::Thread))?;
//! let memory = peer.allocate(4096, Access::WRITE | Access::READ | Access::FLUSH_VISIBLE)?;
//! let address: std::net::SocketAddr = "127.0.0.1:0".parse()?;
//! let listener = peer.listen(address, Default::default())?;
//!
//! // The initiator's side.
//! let queue = peer.completion_queue(Default::default())?;
//! let pending = peer.start_connect(listener.local_address(), &queue, &Default::default())?;
//! let request = listener.next_request(Duration::from_secs(1))?.expect("a request");
//! let accepted = pmof_access::AcceptOptions::default().private_data(memory.descriptor().to_vec());
//! let _served = request.accept(&serving, &accepted)?;
//! let connection = pending.finish()?;
//!
//! let remote = connection.remote_region(connection.private_data())?;
//! connection.write(&remote, 128, b"hello")?;
//! let ticket = connection.flush(&remote, .., Durability::Visible)?;
//! let done = queue.wait_for(connection.id(), ticket, Duration::from_secs(1)).expect("in time");
//! assert!(matches!(done.outcome?, Outcome::Flushed(flushed) if flushed.durability == Durability::Visible));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "verbs"),
    allow(dead_code, unused_imports, reason = "rings and the fast path are for devices")
)]

mod address;
mod attempts;
mod clock;
mod completion;
mod connect_options;
mod connection;
mod driver;
mod durations;
mod error;
#[cfg(feature = "fabric")]
mod fabric;
mod link;
mod listener;
#[doc(hidden)]
pub mod local_user;
mod logging;
#[cfg(any(feature = "fabric", feature = "rds"))]
mod messages;
mod method;
mod peer;
mod progress;
mod queue;
#[cfg(feature = "rds")]
mod rds;
mod region;
#[cfg(any(feature = "fabric", feature = "rds"))]
mod rendezvous;
mod request;
mod ring;
mod shared;
mod shm;
mod short;
pub mod sim;
#[cfg(any(feature = "fabric", feature = "rds"))]
mod sleeping;
mod spoken;
mod sync;
mod traffic;
mod transport;
#[cfg(feature = "verbs")]
mod verbs;
mod wire;

pub use address::{Address, AddressError, DEFAULT_PORT, FabricProvider, Location, Place, Transport};
pub use completion::{Completion, ConnectionId};
pub use connect_options::{ConnectOptions, DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOSS_TIMEOUT};
pub use connection::{Batch, Connection, ConnectionEvent, Single, Source};
pub use durations::{DurationCounters, DurationCounts};
pub use error::{ConnectError, RegisterError, RingRefusal, SetupError};
pub use listener::{AcceptOptions, ConnectionRequest, DEFAULT_HANDSHAKE_TIMEOUT, ListenOptions, Listener};
pub use method::Method;
pub use peer::{Peer, PendingConnection};
#[cfg(feature = "fabric")]
pub use pmof_fabric::{
    EndpointKind as FabricEndpointKind, FabricError, Failure as FabricFailure, Offer as FabricOffer,
    Survey as FabricSurvey, survey as fabric_survey,
};
pub use pmof_mem::{Declaration, Durability, Evidence, Lent, Mechanism, Medium, MediumKind, MemError, Memory, Promise};
pub use pmof_proto::{
    Access, Capabilities, ConnectionError, DESCRIPTOR_BYTES, DescriptorError, Flushed, MemoryAccount, MemoryBudget,
    MemoryUse, OperationCounters, OperationCounts, OperationError, OperationKind, Outcome, PostError, Refusal,
    Settings, Signal, Ticket, limits,
};
#[cfg(feature = "rds")]
pub use pmof_rds::{Carrier as RdsCarrier, RdsError, Survey as RdsSurvey, survey as rds_survey};
#[cfg(feature = "verbs")]
pub use pmof_verbs::{DeviceInfo, LinkLayer, OnDemandPaging, PortInfo, PortState, VerbsError, devices as rdma_devices};
pub use progress::{BackgroundThreads, DEFAULT_SPIN, Progress, ReadyFlag, Waiting};
pub use queue::{BackgroundFlushes, CompletionQueue, QueueOptions};
pub use region::{Region, RegionPart, RegionSlice, RemoteRegion};
pub use ring::{AppendRing, Hex, RECORD_MAX_BYTES, RingContents, RingError, RingRecord, read_ring};
pub use shared::SharedReceives;
pub use shm::PeerProcess;
pub use short::{ResolveError, SHORT_DESCRIPTOR_BYTES, ShortDescriptor};
pub use traffic::Traffic;
pub use transport::{DeviceChoice, LocalEnd, TransportDescriptor, VerbsOptions, has_rdma_device};
