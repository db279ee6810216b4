//! How a peer opens an RDMA device. They are here without the feature `verbs` too: what is said of a device that nobody can open.

use std::net::{IpAddr, SocketAddr};

/// Which RDMA device a peer uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The only one of this machine.
    Only,
    /// The one with this name, as `rdma link` shows it.
    Named(String),
    /// The one that this local address belongs to.
    Local(IpAddr),
    /// The one that leads to a target.
    Towards {
        /// The target.
        target: SocketAddr,
        /// The local address to come from, where routing does not decide it.
        source: Option<IpAddr>,
    },
}

/// How a peer opens verbs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerbsOptions {
    /// The device.
    pub device: DeviceChoice,
    /// Use the device's FLUSH where it has it.
    pub native_flush: bool,
    /// Use the device's ATOMIC WRITE where it has it.
    pub atomic_write: bool,
    /// The operator declares that inbound writes reach the persistence domain by themselves, past the CPU caches: a
    /// platform setting that no device can see (DDIO off, and ADR). Refused for a software device, whose inbound writes
    /// are copies made by the CPU.
    pub inbound_declared: bool,
    /// Connections take their receives from one ring of so many buffers of 8 KiB that they share, instead of 16 each.
    pub shared_receives: Option<u32>,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Only,
            native_flush: true,
            atomic_write: true,
            inbound_declared: false,
            shared_receives: None,
        }
    }
}

pmof_mem::setters!(VerbsOptions {
    device: DeviceChoice,
    native_flush: bool,
    atomic_write: bool,
    inbound_declared: bool,
    shared_receives: impl Into<Option<u32>>,
});
