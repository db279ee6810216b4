//! Access to remote memory: peers, connections, regions, completion queues and the transports that carry them.
//!
//! Posting never blocks; outcomes are collected from a [`CompletionQueue`] by polling, by waiting with a time limit, or
//! when its file descriptor becomes readable. Operations of one connection take effect in the order posted; nothing is
//! promised across connections. An operation that the target refuses ends its connection, so that no later flush can
//! vouch for it.
//!
//! ```
//! use std::time::Duration;
//! use pmof_access::{Access, Durability, Outcome, Peer, Progress, QueueOptions, Transport};
//!
//! let peer = Peer::open(Transport::Tcp);
//! // The target's side, here in the same process: a thread of its queue serves remote operations.
//! let serving = peer.completion_queue(QueueOptions { progress: Progress::Thread, ..Default::default() })?;
//! let memory = peer.allocate(4096, Access::WRITE | Access::READ | Access::FLUSH_VISIBLE)?;
//! let listener = peer.listen("127.0.0.1:0".parse()?, Default::default())?;
//!
//! // The initiator's side.
//! let queue = peer.completion_queue(Default::default())?;
//! let pending = peer.start_connect(listener.local_address(), &queue, &Default::default())?;
//! let request = listener.next_request(Duration::from_secs(1))?.expect("a request");
//! let accepted = pmof_access::AcceptOptions { private_data: memory.descriptor().to_vec(), ..Default::default() };
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

mod address;
mod clock;
mod connection;
mod driver;
mod error;
mod link;
mod listener;
mod method;
mod peer;
mod poller;
mod queue;
mod region;
mod rest;
pub mod sim;
mod wire;

pub use address::{Address, Transport};
pub use connection::{Batch, Connection, ConnectionEvent, Source};
pub use error::{AddressError, ConnectError, RegisterError, SetupError};
pub use listener::{AcceptOptions, ConnectionRequest, DEFAULT_HANDSHAKE_TIMEOUT, ListenOptions, Listener};
pub use method::Method;
pub use peer::{ConnectOptions, DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOSS_TIMEOUT, Peer, PendingConnection};
pub use pmof_mem::{Declaration, Durability, Evidence, Mechanism, Medium, MediumKind, Memory, Promise};
pub use pmof_proto::{
    Access, Capabilities, ConnectionError, DESCRIPTOR_BYTES, DescriptorError, Flushed, OperationError, OperationKind,
    Outcome, PostError, Refusal, Settings, Signal, Ticket, limits,
};
pub use queue::{Completion, CompletionQueue, ConnectionId, DEFAULT_SPIN, Progress, QueueOptions, Waiting};
pub use region::{Region, RegionSlice, RemoteRegion};
