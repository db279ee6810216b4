//! The conformance suite over libfabric's providers tcp and net, and over verbs where there are RDMA devices. Skipped, with the reason,
//! where the library is not installed.

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

suite::suite!([fabric_tcp: FabricTcp, fabric_net: FabricNet, fabric_tcp_msg: FabricTcpMsg]);

/// These need RDMA devices: `cargo xtask vm test` brings some.
mod on_devices {
    crate::suite::suite!([fabric_verbs: FabricVerbs, fabric_verbs_msg: FabricVerbsMsg]);
}
