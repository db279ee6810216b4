//! The real thing: real devices, a real wire, real media. Runs where `PMOF_WIRE_A` and `PMOF_WIRE_B` name the addresses
//! of two RDMA devices with a wire between them, as in the test bed's guest; elsewhere each test says that it was
//! skipped.

mod connecting;
mod devices;
mod failures;
mod lifetimes;
mod media;
mod operations;
mod support;
