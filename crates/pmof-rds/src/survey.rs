//! What this machine has of RDS.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use crate::{Carrier, RdsError, socket::probe};

/// What this machine has of RDS.
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The kernel's RDS modules that are loaded.
    pub modules: Vec<&'static str>,
    /// The addresses that were asked for, with what carries RDS there.
    pub addresses: Vec<(Ipv4Addr, Carrier)>,
}

/// Looks for RDS at these addresses of this machine. An error where the kernel has none.
pub fn survey(addresses: impl IntoIterator<Item = Ipv4Addr>) -> Result<Survey, RdsError> {
    // That of the loopback shows whether there is RDS at all: with the module it has a transport of its own.
    if let Err(error @ RdsError::NoModule { .. }) = probe(Ipv4Addr::LOCALHOST.into()) {
        return Err(error);
    }
    let carried = |address: Ipv4Addr| Some((address, probe(IpAddr::from(address)).ok()?));
    let addresses = addresses.into_iter().filter(|address| !address.is_loopback()).filter_map(carried).collect();
    let is_loaded = |name: &&str| Path::new("/sys/module").join(name).exists();
    let modules = ["rds", "rds_rdma", "rds_tcp"].into_iter().filter(is_loaded).collect();
    Ok(Survey { modules, addresses })
}
