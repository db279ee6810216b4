//! The transports that are built in.

use std::{net::IpAddr, sync::Arc};

use super::{DeviceChoice, Opening, VerbsOptions};
use crate::{FabricProvider, SetupError, Transport, shm, wire::tcp};

/// Opens a transport with its defaults: for verbs the only RDMA device of this machine.
pub(crate) fn open(transport: Transport) -> Result<Arc<dyn Opening>, SetupError> {
    match transport {
        Transport::Tcp => Ok(Arc::new(tcp::Tcp)),
        Transport::Shm => Ok(Arc::new(shm::Shm::default())),
        Transport::Verbs => open_verbs(&VerbsOptions::default()),
        Transport::Fabric(provider) => open_fabric(provider, None),
        Transport::Rds => open_rds(),
    }
}

/// Opens a transport at an address of this machine: the device that has it, where the transport has devices.
pub(crate) fn open_at(transport: Transport, local: IpAddr) -> Result<Arc<dyn Opening>, SetupError> {
    match transport {
        Transport::Verbs => open_verbs(&VerbsOptions { device: DeviceChoice::Local(local), ..VerbsOptions::default() }),
        Transport::Fabric(provider) => open_fabric(provider, Some(local)),
        Transport::Tcp | Transport::Shm | Transport::Rds => open(transport),
    }
}

/// Opens an RDMA device.
#[cfg(feature = "verbs")]
pub(crate) fn open_verbs(options: &VerbsOptions) -> Result<Arc<dyn Opening>, SetupError> {
    Ok(crate::verbs::Verbs::open(options)?)
}

/// Says that there are none.
#[cfg(not(feature = "verbs"))]
pub(crate) fn open_verbs(_options: &VerbsOptions) -> Result<Arc<dyn Opening>, SetupError> {
    Err(SetupError::NotBuilt { transport: Transport::Verbs, feature: "verbs" })
}

/// Opens a provider of libfabric.
#[cfg(feature = "fabric")]
fn open_fabric(provider: FabricProvider, local: Option<IpAddr>) -> Result<Arc<dyn Opening>, SetupError> {
    Ok(crate::fabric::LibFabric::open(provider, local)?)
}

/// Says that there are none.
#[cfg(not(feature = "fabric"))]
fn open_fabric(provider: FabricProvider, _: Option<IpAddr>) -> Result<Arc<dyn Opening>, SetupError> {
    Err(SetupError::NotBuilt { transport: Transport::Fabric(provider), feature: "fabric" })
}

/// Opens RDS.
#[cfg(feature = "rds")]
fn open_rds() -> Result<Arc<dyn Opening>, SetupError> {
    Ok(crate::rds::Rds::open()?)
}

/// Says that there is none.
#[cfg(not(feature = "rds"))]
fn open_rds() -> Result<Arc<dyn Opening>, SetupError> {
    Err(SetupError::NotBuilt { transport: Transport::Rds, feature: "rds" })
}

/// Whether this machine has an RDMA device that [`Transport::Verbs`] can use: false without the feature `verbs`, without the
/// libraries of rdma-core, and without a device.
pub fn has_rdma_device() -> bool {
    #[cfg(feature = "verbs")]
    let has = pmof_verbs::devices().is_ok_and(|devices| !devices.is_empty());
    #[cfg(not(feature = "verbs"))]
    let has = false;
    has
}
