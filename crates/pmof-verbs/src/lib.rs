//! RDMA verbs and the RDMA connection manager, thin and safe.
//!
//! The words are those of the verbs: a [`Device`], its [`ProtectionDomain`]s with registered [`MemoryRegion`]s,
//! [`CompletionQueue`]s, [`SharedReceiveQueue`]s and reliable connected [`QueuePair`]s; of the connection manager an
//! [`EventChannel`] and its [`CmId`]s. Nothing here waits, except where a function says so.
//!
//! The public interface is safe:
//!
//! - The device reaches only memory of a [`pmof_mem::Medium`], of which no reference is ever formed. A region keeps its
//!   medium until the kernel says that the device has let go of it.
//! - A gather entry ([`Sge`]) comes from a region only. One that outlives its region names a key that the device no
//!   longer accepts: its request fails.
//! - Handles may be dropped in any order and on any thread: each keeps what it needs.
//!
//! Posting and polling neither allocate nor lock; where a provider has no extended queue pairs, posting a batch longer than
//! all before it allocates.

mod address;
mod async_event;
mod capabilities;
mod classic;
mod cm;
mod cm_event;
mod completion;
mod descriptor;
mod device;
mod error;
mod int;
mod queue_pair;
mod receive;
mod region;
mod work_request;

pub use async_event::AsyncEvent;
pub use capabilities::{DeviceInfo, LinkLayer, OnDemandPaging, PortInfo, PortState, Transport, devices};
pub use cm::{
    ACCEPT_PRIVATE_DATA_MAX, CONNECT_PRIVATE_DATA_MAX, CmId, ConnectParameters, EventChannel, REJECT_PRIVATE_DATA_MAX,
    RETRY_COUNT_MAX,
};
pub use cm_event::{CmEvent, CmEventKind, REJECT_BY_APPLICATION, REJECT_NO_LISTENER};
pub use completion::{CompletionChannel, CompletionQueue, Opcode, QueueKey, Status, WorkCompletion};
pub use device::{Device, RESOLVE_TIMEOUT, kept_over_forks};
pub use error::{PostFailure, ReceiveFailure, RegisterError, VerbsError};
pub use pmof_verbs_sys::{DeviceError, LoadError};
pub use queue_pair::{QueuePair, QueuePairOptions, QueuePairState};
pub use receive::{Receive, SharedReceiveQueue};
pub use region::{MemoryRegion, MrAccess, ProtectionDomain, Sge};
pub use work_request::{INLINE_BYTES, Operation, Payload, Placement, RemoteAddress, WorkRequest};
