//! The conformance suite over RDS: at `PMOF_RDS_ADDRESS`, where the environment names an address of an RDMA device, else over the kernel's loopback. Skipped, with
//! the reason, where the kernel has no RDS.

mod completions;
mod connecting;
mod ending;
mod fabric;
#[path = "fabric_rds.rs"]
mod fabrics;
mod flushing;
mod media;
mod messages;
mod pair;
mod rds_cuts;
mod regions;
mod relay;
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod transfers;

suite::suite!([rds: Rds]);
