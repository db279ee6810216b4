//! libfabric, thin and safe.
//!
//! [`list`] says what the providers of this machine offer; a [`Domain`] is opened of one offer, memory that peers reach is
//! [registered](Domain::register) with it, and an [`Endpoint`] talks to one peer: messages, and writes and reads of the peer's
//! memory (RMA). Endpoints are reliable datagram endpoints (`FI_EP_RDM`) or connected ones (`FI_EP_MSG`), whose sends and writes take effect
//! in the order posted. Peers exchange the [names](Endpoint::name) of their endpoints, or of a [`PassiveEndpoint`], and the keys of regions by
//! other means.
//!
//! Nothing here waits, except for closing an endpoint, which is given up after 5 seconds. Where a provider makes no progress by
//! itself ([`ProgressMode::Manual`]), an endpoint has to be [polled](Endpoint::poll), also for what peers do to this side's memory.
//!
//! The public interface is safe:
//!
//! - Peers reach only memory of a [`pmof_mem::Medium`], of which no reference is ever formed. A software provider checks a key when
//!   a write begins, and receives the rest without looking again. So the domain keeps the memory of a dropped region until the
//!   endpoints of that moment are closed, and memory that is lent is not registered at all.
//! - This side's operations use [`Bytes`], which the endpoint owns while they are under way: buffers of their own, or parts of a medium, which
//!   is kept mapped and of which no reference is formed.
//! - A provider that cannot close an endpoint keeps the memory that the endpoint may use.
//!
//! Not here yet: memory bound to endpoints (`FI_MR_ENDPOINT`, which cxi asks for), atomics.

mod buffer;
mod close;
mod connecting;
mod domain;
mod endpoint;
mod error;
mod info;
mod kind;
mod lacks;

pub use buffer::{Buffer, Bytes, MemoryPart};
pub use connecting::{ConnectionRequest, PassiveEndpoint};
pub use domain::{Domain, MemoryRegion, MrAccess};
pub use endpoint::{Completion, Endpoint, EndpointOptions, Operation, RemoteAddress};
pub use error::{FabricError, Failure, PostFailure, RegisterError};
pub use info::{Info, IpFamily, MrMode, Offer, ProgressMode, Query, Survey, list, survey};
pub use kind::EndpointKind;
pub use pmof_fabric_sys::LoadError;
