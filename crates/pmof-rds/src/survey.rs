//! What this machine has of RDS.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    ptr,
};

use crate::{Carrier, RdsError, Socket};

/// What this machine has of RDS.
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The kernel's RDS modules that are loaded.
    pub modules: Vec<&'static str>,
    /// Addresses of this machine that sockets can be bound to, but those of the loopback, with what carries RDS there.
    pub addresses: Vec<(Ipv4Addr, Carrier)>,
}

/// Whether the kernel has RDS.
///
/// # Errors
/// [`RdsError::NoModule`] where it has not.
pub fn check_kernel() -> Result<(), RdsError> {
    // That of the loopback is always there with the module; what else it may say is said again where it matters.
    match carrier_at(Ipv4Addr::LOCALHOST) {
        Err(error @ RdsError::NoModule { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Looks for RDS on this machine.
///
/// # Errors
/// [`RdsError::NoModule`] where the kernel has none.
pub fn survey() -> Result<Survey, RdsError> {
    check_kernel()?;
    let carried = |address: Ipv4Addr| Some((address, carrier_at(address).ok()?));
    let addresses = own_addresses().into_iter().filter(|address| !address.is_loopback()).filter_map(carried).collect();
    let is_loaded = |name: &&str| Path::new("/sys/module").join(name).exists();
    let modules = ["rds", "rds_rdma", "rds_tcp"].into_iter().filter(is_loaded).collect();
    Ok(Survey { modules, addresses })
}

fn carrier_at(address: Ipv4Addr) -> Result<Carrier, RdsError> {
    Socket::bind(SocketAddr::from((address, 0))).map(|socket| socket.carrier())
}

/// The IPv4 addresses of this machine; none where the kernel does not say.
fn own_addresses() -> Vec<Ipv4Addr> {
    let mut first = ptr::null_mut();
    // SAFETY: the pointer lives through the call, which fills it in where it returns 0.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut next: *const libc::ifaddrs = first;
    // SAFETY: the list is valid until it is freed, and its end is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: an address is null, or valid at least as far as its family goes, and an IPv4 address is one of the structure for that; the list is
        // still there.
        let address = unsafe {
            let family = entry.ifa_addr.as_ref().map(|address| i32::from(address.sa_family));
            (family == Some(libc::AF_INET)).then(|| entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned())
        };
        addresses.extend(address.map(|name| Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr))));
    }
    // SAFETY: it came from getifaddrs, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback() {
        assert!(own_addresses().contains(&Ipv4Addr::LOCALHOST));
    }
}
