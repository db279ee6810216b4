//! The `ibv_context`s that applications were given.

use std::{ffi::c_char, mem, net::IpAddr};

use pmof_access::{Peer as AccessPeer, Transport};
use pmof_mem::forks::Kept;
use pmof_verbs_sys as sys;

/// A stand-in for the device if there is none: the parts of an `ibv_context` that programs read.
#[repr(C)]
struct SoftwareContext {
    context: sys::ibv_context,
    device: sys::ibv_device,
}

/// An `ibv_context` that was given to the application; it stays valid for the life of the process, like those of librdmacm.
#[derive(Debug)]
pub(crate) struct Known {
    address: usize,
    transport: Transport,
    /// The address of this host that chose it, where one did.
    local: Option<IpAddr>,
    /// The device, opened: what `address` points to is its own.
    _device: Option<AccessPeer>,
}

pub(crate) static KNOWN: Kept<Vec<Known>> = Kept::new(Vec::new());

/// Gives out the context of a transport that has no device.
pub(crate) fn software_context(transport: Transport, local: Option<IpAddr>) -> usize {
    let mut known = KNOWN.lock();
    if let Some(found) = known.iter().find(|known| known.transport == transport && known.local == local) {
        return found.address;
    }
    // SAFETY: all zeros are valid values of both.
    let mut made: Box<SoftwareContext> = unsafe { Box::new(mem::zeroed()) };
    let name = format!("pmof_{transport}");
    for (to, from) in made.device.name.iter_mut().zip(name.bytes()) {
        *to = c_char::from_le_bytes([from]);
    }
    made.device.dev_name = made.device.name;
    made.context.cmd_fd = -1;
    made.context.async_fd = -1;
    let made = Box::leak(made);
    made.context.device = &raw mut made.device;
    let address = (&raw mut made.context).expose_provenance();
    known.push(Known { address, transport, local, _device: None });
    address
}

/// Gives out the context of an RDMA device.
pub(crate) fn device_context(device: AccessPeer) -> Option<usize> {
    let address = device.device_context()?.expose_provenance();
    let mut known = KNOWN.lock();
    if !known.iter().any(|known| known.address == address) {
        known.push(Known { address, transport: Transport::Verbs, local: None, _device: Some(device) });
    }
    Some(address)
}

/// What the context at this address was given out for, and the address of this host that chose it.
pub(crate) fn transport_of(address: usize) -> Option<(Transport, Option<IpAddr>)> {
    KNOWN.lock().iter().find(|known| known.address == address).map(|known| (known.transport, known.local))
}
