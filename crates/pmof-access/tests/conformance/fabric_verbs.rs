//! RDMA devices, over the wire between `PMOF_WIRE_A` (the initiators' side) and `PMOF_WIRE_B` (the targets').

use std::{
    env,
    net::IpAddr,
    process::Command,
    time::{Duration, Instant},
};

use pmof_access::{Access, ConnectionError, DeviceChoice, Location, OperationError, Peer, Refusal, VerbsOptions};

use pmof_proto::{Descriptor, DirectAccess, RegionKey};
use pmof_verbs::{Device, DeviceInfo, Transport};

use crate::fabric::Fabric;

/// The address of one end of the wire.
fn end(name: &str) -> IpAddr {
    let text =
        env::var(name).unwrap_or_else(|_| panic!("{name} names no end of a wire; run this in the test bed's machine"));
    text.parse().unwrap_or_else(|error| panic!("{name} is no address: {error}"))
}

/// A peer at one end of the wire.
pub(crate) fn peer_at(name: &str, options: &VerbsOptions) -> Peer {
    let options = options.clone().device(DeviceChoice::Local(end(name)));
    Peer::open_verbs(&options).expect("a device at this end of the wire")
}

/// What an initiator is told where the target's device does not do it: not which of its checks failed.
fn by_device(expected: Refusal) -> Refusal {
    match expected {
        Refusal::UnknownRegion | Refusal::NoRight | Refusal::OutOfBounds => Refusal::DeviceRefused,
        other => other,
    }
}

/// What the device at the initiators' end can do.
pub(crate) fn capabilities() -> DeviceInfo {
    let device = Device::by_local_address(end("PMOF_WIRE_A")).expect("a device at this end of the wire");
    device.capabilities().clone()
}

/// Soft devices without a switch between them: soft-RoCE, or soft-iWARP where the environment names its addresses.
pub(crate) struct Verbs {
    start: Instant,
}

impl Fabric for Verbs {
    const IS_VIRTUAL: bool = false;
    const SERVED_BY_CPU: bool = false;
    const BINDS_DIRECT_WAY: bool = false;

    fn new() -> Self {
        Self { start: Instant::now() }
    }

    fn peer(&self) -> Peer {
        peer_at("PMOF_WIRE_A", &VerbsOptions::default())
    }

    fn target(&self) -> Peer {
        peer_at("PMOF_WIRE_B", &VerbsOptions::default())
    }

    fn listen_address(&self) -> Location {
        std::net::SocketAddr::new(end("PMOF_WIRE_B"), 0).into()
    }

    fn forge_key(descriptor: &mut Descriptor) {
        descriptor.key = RegionKey([7; 16]);
        if let DirectAccess::Rdma { remote_key, .. } = &mut descriptor.direct {
            // The upper bits choose the region, the lower ones are its password.
            *remote_key ^= 0x7F_FF00;
        }
    }

    fn refusal(expected: Refusal) -> Refusal {
        match env::var("PMOF_MEDIUM").as_deref() {
            // What a device cannot reach is served by the target's CPU, which does say.
            Ok("fsdax" | "file") => expected,
            _ => by_device(expected),
        }
    }

    fn checks(right: Access) -> bool {
        // Soft-iWARP (Linux 6.12) answers a read of any memory that is registered.
        let has = capabilities();
        !(has.is_software && has.transport == Transport::IWarp && right == Access::READ)
    }

    fn is_refused_there(error: &OperationError, expected: Refusal) -> bool {
        let refusals = [expected, by_device(expected)];
        match error {
            OperationError::Refused { refusal, .. } => refusals.contains(refusal),
            // Over iWARP the devices tell both sides only that the queue pair is down.
            OperationError::ConnectionEnded(ConnectionError::Lost { .. }) => capabilities().completes_early(),
            _ => false,
        }
    }

    fn is_refused_here(why: &ConnectionError, expected: Refusal) -> bool {
        match why {
            // The refusing device tells its own side only that the queue pair is in error.
            ConnectionError::Lost { .. } => by_device(expected) == Refusal::DeviceRefused,
            why => [expected, by_device(expected)].iter().any(|refusal| *why == ConnectionError::RefusedHere(*refusal)),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn breakable(&self, target: &Location) -> (Location, Box<dyn FnOnce() + '_>) {
        (target.clone(), Box::new(|| wire_loses("100%")))
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        wire_loses("0%");
    }
}

/// Has the wire lose so many of its packets.
pub(crate) fn wire_loses(share: &str) {
    let device = env::var("PMOF_WIRE_A_NETDEV").expect("PMOF_WIRE_A_NETDEV names the wire's interface");
    let status = Command::new("tc")
        .args(["qdisc", "replace", "dev", &device, "root", "netem", "loss", share])
        .status()
        .expect("tc, from the package iproute2");
    assert!(status.success(), "tc: {status}");
}
