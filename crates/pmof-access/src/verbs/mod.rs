//! RDMA verbs: reliable connected queue pairs through `rdma_cm`.
//!
//! A connection is one queue pair. Messages of the protocol travel as SENDs into a ring of receives; operations on
//! registered memory go directly to it as WRITE, READ, FLUSH and the atomic operations. Both kinds share the queue pair,
//! so that the device keeps their order.

mod confirm;
mod connect;
mod device_info;
mod direct;
mod incoming;
mod memory;
mod opened;
mod opening;
mod receive;
mod send;
mod wire;

pub(crate) use opening::Verbs;
