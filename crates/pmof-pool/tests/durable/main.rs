//! What makes pools, sets and replicas durable, by the system calls themselves.

mod epochs;
mod sets;
mod shared_flushes;
mod store;
mod support;
