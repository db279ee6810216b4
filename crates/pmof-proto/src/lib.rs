//! The protocol of pmof without any input or output: bytes and operations in, bytes and completions out.
//!
//! An [`Endpoint`] is one end of a connection, initiator and target in one. It owns no socket, clock or thread. The
//! transport asks it where the next bytes belong ([`Endpoint::input_place`]), so that a payload goes from the socket
//! directly into its region, and what to send ([`Endpoint::output_view`]).
#![forbid(unsafe_code)]

mod budget;
mod counters;
mod endpoint;
pub mod frame;
mod handshake;
pub mod limits;
mod method;
mod output;
mod refusal;
mod region;

pub use budget::{GUARANTEED_BYTES, MemoryAccount, MemoryBudget, MemoryUse};
pub use counters::{OperationCounters, OperationCounts};
pub use endpoint::{
    Completion, DeferredFlush, Endpoint, Event, FlushTicket, InputPlace, Operation, OperationKind, Outcome, Payload,
    SharedReceives, Signal, Ticket,
};
pub use handshake::{Capabilities, Settings};
pub use method::Method;
pub use output::{LocalSlice, OutputView};
pub use refusal::{ConnectionError, Flushed, OperationError, PostError, Refusal};
pub use region::{
    Access, DESCRIPTOR_BYTES, Descriptor, DescriptorError, DirectAccess, RdmaFeatures, RegionKey, RegionTable,
    RegisteredRegion, Scope,
};
