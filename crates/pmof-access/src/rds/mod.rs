//! RDS: reliable datagrams between the hosts of RDMA devices.
//!
//! A TCP connection makes the acquaintance: both sides tell the address and port of an RDS socket made for this connection, and from then on the
//! TCP connection says only that the other process is there. Messages of the protocol travel as datagrams, in order and once, also where the kernel
//! makes its connection between the hosts anew. Datagrams of others are dropped.

mod greeting;
mod lane;
mod opening;
mod stream;
mod wire;

pub(crate) use opening::Rds;
