//! RDMA devices: facts from sysfs, and capabilities from the caller.

use std::path::Path;

use pmof_mem::System;
use serde::{Deserialize, Serialize};

use crate::read;

/// Ports beyond this are not looked at: verbs count them in 8 bits.
const PORTS_MAX: usize = 255;

/// A source of RDMA device capabilities: the access layer asks libibverbs, tests read files.
pub trait RdmaCapabilities {
    /// What `device` (as `mlx5_0`) can do.
    fn of(&self, device: &str) -> Result<DeviceCapabilities, CapabilitiesUnknown>;
}

/// What a device can do, by `ibv_query_device_ex` (rdma-core) and, for the length of inline sends, by a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent capability")]
pub struct DeviceCapabilities {
    /// Native FLUSH with global visibility.
    pub has_flush_global: bool,
    /// Native FLUSH with persistence.
    pub has_flush_persistent: bool,
    /// ATOMIC WRITE of 8 bytes.
    pub has_atomic_write: bool,
    /// On-demand paging for RC with write, so that memory need not stay in place.
    pub has_on_demand_paging: bool,
    /// The longest send whose bytes travel in the work request.
    pub max_inline_bytes: Option<u64>,
    /// READs and atomics outstanding per queue pair.
    pub max_qp_rd_atom: Option<u64>,
    /// Pieces per work request.
    pub max_sge: Option<u64>,
    /// Entries per completion queue.
    pub max_cqe: Option<u64>,
    /// The longest memory region.
    pub max_mr_bytes: Option<u64>,
}

/// Why nobody can say what a device can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CapabilitiesUnknown {
    /// The library that drives RDMA devices is not installed.
    LibraryMissing,
    /// This program does not ask.
    NotAsked,
    /// The device did not answer.
    Failed {
        /// The call and its error.
        #[serde(rename = "reason")]
        why: String,
    },
}

/// Answers for programs that do not speak verbs: nothing is known.
#[derive(Clone, Copy, Debug)]
pub struct NotAsked;

impl RdmaCapabilities for NotAsked {
    fn of(&self, _device: &str) -> Result<DeviceCapabilities, CapabilitiesUnknown> {
        Err(CapabilitiesUnknown::NotAsked)
    }
}

/// What is known of a device's capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Capabilities {
    /// The device was asked.
    Known(DeviceCapabilities),
    /// It was not.
    Unknown(CapabilitiesUnknown),
}

/// One RDMA device. What sysfs does not say is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RdmaDevice {
    /// The kernel's name, as `mlx5_0`.
    pub name: String,
    /// The driver of the device, or what a device without hardware must be: `rxe` or `siw`.
    pub driver: Option<String>,
    /// There is no hardware: the CPU carries every byte.
    pub is_soft: bool,
    /// `1: CA` for InfiniBand and RoCE, `4: RNIC` for iWARP.
    pub node_type: Option<String>,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// The node it is near to.
    pub numa_node: Option<u32>,
    /// Its ports.
    pub ports: Vec<RdmaPort>,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RdmaPort {
    /// Counted from 1.
    pub port: u32,
    /// `4: ACTIVE` where it carries traffic.
    pub state: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
    /// As `100 Gb/sec (4X EDR)`.
    pub rate: Option<String>,
    /// The network interface below, for Ethernet.
    pub network_interface: Option<String>,
    /// Addresses; empty entries are left out.
    pub gids: Vec<String>,
}

impl RdmaPort {
    /// Carries traffic.
    pub(crate) fn is_active(&self) -> bool {
        self.state.as_deref().is_some_and(|state| state.starts_with("4:"))
    }
}

impl RdmaDevice {
    /// iWARP: TCP below, no GIDs.
    pub(crate) fn is_iwarp(&self) -> bool {
        self.node_type.as_deref().is_some_and(|kind| kind.starts_with("4:"))
    }

    /// Whether the device carries reliable connections, which pmof needs: InfiniBand, RoCE and iWARP do, EFA and usNIC
    /// do not.
    pub(crate) fn has_reliable_connections(&self) -> bool {
        let kind = self.node_type.as_deref().unwrap_or_default();
        (kind.starts_with("1:") || kind.starts_with("4:")) && self.driver.as_deref() != Some("efa")
    }
}

/// All RDMA devices, sorted by name.
pub(crate) fn rdma_devices(system: &System, capabilities: &dyn RdmaCapabilities) -> Vec<RdmaDevice> {
    let devices = read::entries(&system.sysfs_root().join("class/infiniband")).into_iter();
    devices.map(|(name, path)| device(name, &path, capabilities)).collect()
}

fn device(name: String, directory: &Path, capabilities: &dyn RdmaCapabilities) -> RdmaDevice {
    let node_type = read::text(&directory.join("node_type"));
    let driver = read::link_name(&directory.join("device/driver"));
    let is_soft = driver.is_none();
    let soft_driver = || match node_type.as_deref()?.split(':').next()? {
        "1" => Some("rxe".to_owned()),
        "4" => Some("siw".to_owned()),
        _ => None,
    };
    RdmaDevice {
        driver: driver.or_else(soft_driver),
        is_soft,
        firmware: read::text(&directory.join("fw_ver")),
        numa_node: read::numa_node(&directory.join("device")),
        ports: ports(&directory.join("ports")),
        capabilities: match capabilities.of(&name) {
            Ok(known) => Capabilities::Known(known),
            Err(unknown) => Capabilities::Unknown(unknown),
        },
        node_type,
        name,
    }
}

fn ports(directory: &Path) -> Vec<RdmaPort> {
    let ports = read::entries(directory).into_iter().take(PORTS_MAX);
    ports
        .filter_map(|(name, path)| {
            let gids = read::entries(&path.join("gids")).into_iter().filter_map(|(_, gid)| read::text(&gid));
            Some(RdmaPort {
                port: name.parse().ok()?,
                state: read::text(&path.join("state")),
                link_layer: read::text(&path.join("link_layer")),
                rate: read::text(&path.join("rate")),
                network_interface: read::entries(&path.join("gid_attrs/ndevs"))
                    .into_iter()
                    .find_map(|(_, interface)| read::text(&interface)),
                gids: gids.filter(|gid| gid.chars().any(|digit| !matches!(digit, '0' | ':'))).collect(),
            })
        })
        .collect()
}
