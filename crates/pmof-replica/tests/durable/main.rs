//! What makes pools, sets and replicas durable, by the system calls themselves.

mod epochs;
mod sets;
mod store;
mod support;
