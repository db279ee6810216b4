//! libfabric: reliable datagram endpoints of any provider that has them.
//!
//! A TCP connection makes the acquaintance: both sides tell the provider and the name of an endpoint made for this connection,
//! and from then on the TCP connection says only that the other process is there. Messages of the protocol travel as sends
//! between the endpoints; writes and reads of registered memory go to it directly (RMA). The provider keeps sends and writes in
//! the order posted; what follows a read is held back on this side until the read is done.

mod greeting;
mod items;
mod lane;
mod meeting;
mod memory;
mod opened;
mod opening;
mod stream;
mod wire;

pub(crate) use opening::LibFabric;
