//! A thin, safe layer over RDS sockets (`AF_RDS`): reliable datagrams in order and once per pair of sockets, and RDMA by cookies.
//!
//! A [`Socket`] is bound to an IPv4 address of this machine and to a port. The kernel keeps one connection for each pair of hosts, makes it anew
//! where it breaks, and sends what was not acknowledged once more: a datagram arrives once. An RDMA operation is never sent again: where
//! the connection breaks under it, its [`Status`] says that it was dropped, and what became of it is unknown.
//!
//! Memory is made reachable by a datagram that carries its cookie ([`Socket::map`]), as the kernel registers memory with the connection's
//! queue pair. As long as memory is registered the kernel does not make a connection anew: see [`Socket::is_path_up`].
//!
//! Rules of the kernel that this crate keeps: one range has at most [`MAP_MAX_BYTES`]; there are no atomic operations, which the kernel takes
//! and devices refuse, after which nothing passes between the two hosts any more.
//!
//! `rds(7)`, `rds-rdma(7)` and `linux/rds.h` are the references.

mod abi;
mod buffers;
mod error;
mod message;
mod socket;
mod survey;

#[doc(hidden)]
pub use abi::{CONSTANTS, STRUCTURES, Structure};
pub use error::{MapError, RdsError, SendFailure};
pub use socket::{Carrier, Cookie, Direction, Done, Received, Socket, Status};
pub use survey::{Survey, check_kernel, survey};

/// Most bytes that one cookie covers, and that one RDMA operation moves: the kernel registers no longer range (`RDS_MAX_MSG_SIZE`).
pub const MAP_MAX_BYTES: u64 = 1 << 20;
