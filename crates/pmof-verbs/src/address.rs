//! Socket addresses as the connection manager takes and gives them.

use std::{
    mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// The address in the layout of the C library.
pub(crate) fn to_storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all zeroes are an address of no family.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: all zeroes are a valid sockaddr_in.
            let mut c: sockaddr_in = unsafe { mem::zeroed() };
            c.sin_family = libc::AF_INET as libc::sa_family_t;
            c.sin_port = v4.port().to_be();
            c.sin_addr.s_addr = v4.ip().to_bits().to_be();
            // SAFETY: the storage is large enough and aligned for every address.
            unsafe { place.cast::<sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            // SAFETY: all zeroes are a valid sockaddr_in6.
            let mut c: sockaddr_in6 = unsafe { mem::zeroed() };
            c.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            c.sin6_port = v6.port().to_be();
            c.sin6_addr.s6_addr = v6.ip().octets();
            c.sin6_flowinfo = v6.flowinfo();
            c.sin6_scope_id = v6.scope_id();
            // SAFETY: the storage is large enough and aligned for every address.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
        }
    }
    storage
}

/// The address at `address`; `None` where it is of another family, or of none.
///
/// # Safety
///
/// A `sockaddr_storage` can be read at `address`.
pub(crate) unsafe fn from_raw(address: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: a `sockaddr_storage` has room for every family's layout, and the family says which one is there.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let c = ptr::read_unaligned(address.cast::<sockaddr_in>());
                let ip = Ipv4Addr::from_bits(u32::from_be(c.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(c.sin_port)).into())
            }
            libc::AF_INET6 => {
                let c = ptr::read_unaligned(address.cast::<sockaddr_in6>());
                let ip = Ipv6Addr::from(c.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(c.sin6_port), c.sin6_flowinfo, c.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_there_and_back() {
        for text in ["10.77.0.1:18515", "0.0.0.0:0", "[fd00::1]:7", "[::]:65535", "[fe80::5054:ff:fe12:3456%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let storage = to_storage(address);
            // SAFETY: a whole storage is there.
            assert_eq!(unsafe { from_raw((&raw const storage).cast()) }, Some(address), "{text}");
        }
    }

    #[test]
    fn an_address_in_c_has_network_order() {
        let storage = to_storage("10.77.0.1:258".parse().unwrap());
        // SAFETY: the storage holds an IPv4 address.
        let c = unsafe { &*(&raw const storage).cast::<sockaddr_in>() };
        assert_eq!(u32::from_be(c.sin_addr.s_addr), 0x0A4D_0001);
        assert_eq!(u16::from_be(c.sin_port), 0x0102);
    }

    #[test]
    fn no_family_is_no_address() {
        // SAFETY: all zeroes are an address of no family.
        let storage: sockaddr_storage = unsafe { mem::zeroed() };
        // SAFETY: a whole storage is there.
        assert_eq!(unsafe { from_raw((&raw const storage).cast()) }, None);
    }
}
