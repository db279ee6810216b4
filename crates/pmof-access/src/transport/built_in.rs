//! The transports that are built in.

use std::{net::IpAddr, sync::Arc};

use super::{DeviceChoice, Opening, VerbsOptions};
use crate::{SetupError, Transport, shm, wire::tcp};

/// Opens a transport at an address of this machine, where one is given: the device or domain that has it, where the transport has such; else its default.
pub(crate) fn open(transport: Transport, local: Option<IpAddr>) -> Result<Arc<dyn Opening>, SetupError> {
    match transport {
        Transport::Tcp => Ok(Arc::new(tcp::Tcp)),
        Transport::Shm => Ok(Arc::new(shm::Shm::default())),
        Transport::Verbs => {
            let options = VerbsOptions::default();
            open_verbs(&local.map_or(options.clone(), |local| options.device(DeviceChoice::Local(local))))
        }
        #[cfg(feature = "fabric")]
        Transport::Fabric(provider) => Ok(crate::fabric::LibFabric::open(provider, local)?),
        #[cfg(feature = "rds")]
        Transport::Rds => Ok(crate::rds::Rds::open()?),
        #[cfg(not(all(feature = "fabric", feature = "rds")))]
        absent => Err(not_built(absent)),
    }
}

/// Opens an RDMA device.
pub(crate) fn open_verbs(options: &VerbsOptions) -> Result<Arc<dyn Opening>, SetupError> {
    #[cfg(feature = "verbs")]
    return Ok(crate::verbs::Verbs::open(options)?);
    #[cfg(not(feature = "verbs"))]
    {
        let _ = options;
        Err(not_built(Transport::Verbs))
    }
}

#[cfg(not(all(feature = "fabric", feature = "rds", feature = "verbs")))]
fn not_built(transport: Transport) -> SetupError {
    SetupError::NotBuilt { transport, feature: transport.descriptor().feature.unwrap_or_default() }
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
