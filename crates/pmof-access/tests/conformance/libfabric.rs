//! The conformance suite over libfabric's providers tcp and net. Skipped, with the reason, where the library is not installed.

mod completions;
mod connecting;
mod ending;
mod fabric;
#[path = "fabric_libfabric.rs"]
mod fabrics;
mod flushing;
mod media;
mod messages;
mod pair;
mod regions;
mod relay;
mod suite;
#[path = "../support/mod.rs"]
mod support;
mod transfers;

suite::suite!([fabric_tcp: FabricTcp, fabric_net: FabricNet]);
