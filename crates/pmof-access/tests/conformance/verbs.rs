//! The conformance suite on real RDMA devices: over the wire between the addresses `PMOF_WIRE_A` and `PMOF_WIRE_B`.
//!
//! Run where there are devices: `cargo xtask vm test` brings some.

mod completions;
mod connecting;
mod ending;
mod fabric;
#[path = "fabric_verbs.rs"]
mod fabrics;
mod flushing;
mod media;
mod messages;
mod pair;
mod regions;
mod rings;
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod transfers;
mod verbs_only;

suite::suite!([verbs: Verbs]);
