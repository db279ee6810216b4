//! Devices for programs of librpma, and the peers opened on them.

use std::{
    ffi::{CStr, c_int},
    net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use pmof_access::{Access, DeviceChoice, Peer as AccessPeer, Region, RegionSlice, Transport, VerbsOptions};
use pmof_verbs_sys as sys;

use crate::{
    argument::{Out, Slot, Text},
    call::{call, need},
    contexts::{device_context, software_context, transport_of},
    error::Failure,
    handle::{Handle, kind},
    log::{Level, listen, log},
    on::On,
    settings::{Wire, settings},
    shown::Beacons,
    verbs,
};

/// The port for looking up the route to a target; nothing is sent there.
const ANY_PORT: u16 = 9;

/// The addresses of a host, with a port.
pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    let mut found =
        (host, port).to_socket_addrs().map_err(|error| Failure::provider(format!("cannot resolve {host}: {error}")))?;
    found.next().ok_or_else(|| Failure::provider(format!("{host} has no address")))
}

fn choice(address: IpAddr, is_remote: bool) -> DeviceChoice {
    if is_remote {
        DeviceChoice::Towards { target: SocketAddr::new(address, ANY_PORT), source: None }
    } else {
        DeviceChoice::Local(address)
    }
}

fn open_device(address: IpAddr, is_remote: bool) -> Result<AccessPeer, Failure> {
    let device = choice(address, is_remote);
    Ok(AccessPeer::open_verbs(&VerbsOptions::default().device(device))?)
}

/// Fails if the address is not of this host (or there is no route to it), as looking up its device would; the address of this host.
pub(crate) fn check_address(address: IpAddr, is_remote: bool) -> Result<IpAddr, Failure> {
    let local = if is_remote && address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let tried = if is_remote {
        UdpSocket::bind(local).and_then(|socket| {
            socket.connect((address, ANY_PORT))?;
            socket.local_addr()
        })
    } else {
        UdpSocket::bind((address, 0)).and_then(|socket| socket.local_addr())
    };
    tried.map(|local| local.ip()).map_err(|error| {
        if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) {
            return Failure::provider(format!("cannot look for {address}: {error}; see ulimit -n"));
        }
        let what = if is_remote { "there is no route to it" } else { "it is not an address of this host" };
        Failure::provider(format!("{address}: {what}: {error}"))
    })
}

/// Finds the device that an address of this host belongs to (type 0), or that leads to an address (type 1): an RDMA device
/// if there is one, otherwise a stand-in for TCP. `PMOF_TRANSPORT` overrides that, with a stand-in for shm or a provider of libfabric too.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_utils_get_ibv_context(
    addr: Text,
    context_type: c_int,
    found: Out<*mut sys::ibv_context>,
) -> c_int {
    const NAME: &CStr = c"rpma_utils_get_ibv_context";
    call(NAME, || {
        let host = addr.as_str("addr")?;
        found.need("ibv_ctx_ptr")?;
        let is_remote = match context_type {
            0 => false,
            1 => true,
            _ => return Err(Failure::invalid(format!("there is no context type {context_type}"))),
        };
        listen();
        let address = resolve(host, ANY_PORT)?.ip();
        let device = match settings().transport {
            Some(Transport::Verbs) => Some(open_device(address, is_remote)?),
            Some(_) => None,
            None => match open_device(address, is_remote) {
                Ok(device) => Some(device),
                Err(failure) => {
                    log(
                        Level::Info,
                        NAME,
                        &format!("{address}: TCP, since RDMA is not available there: {}", failure.why()),
                    );
                    None
                }
            },
        };
        let context = if let Some(device) = device {
            let name = device.device_name().unwrap_or_default().to_owned();
            log(Level::Info, NAME, &format!("{address}: RDMA device {name}"));
            device_context(device).ok_or_else(|| Failure::provider("the device has no context"))?
        } else {
            let local = check_address(address, is_remote)?;
            let transport = settings().transport.unwrap_or(Transport::Tcp);
            // Of libfabric's domains the address chooses one.
            software_context(transport, matches!(transport, Transport::Fabric(_)).then_some(local))
        };
        found.put(ptr::with_exposed_provenance_mut(context));
        Ok(())
    })
}

/// Reports whether a device supports memory that is not pinned.
///
/// # Safety
///
/// `context` is null or a context of an open device; `is_capable` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_utils_ibv_context_is_odp_capable(
    context: *mut sys::ibv_context,
    is_capable: Out<c_int>,
) -> c_int {
    call(c"rpma_utils_ibv_context_is_odp_capable", || {
        need(context, "ibv_ctx")?;
        is_capable.need("is_odp_capable")?;
        // SAFETY: not null, so a context of an open device, or a stand-in for TCP, shm or libfabric, by the contract of this function.
        let peer = unsafe { open(context) }?;
        let capable = match &peer.0 {
            On::Access(peer) => peer.peer.device_info().is_some_and(|info| info.on_demand_paging.serves_writes()),
            On::Verbs(peer) => peer.pages_on_demand(),
        };
        is_capable.put(c_int::from(capable));
        Ok(())
    })
}

/// `rpma_peer`.
#[derive(Debug)]
pub struct Peer(pub(crate) On<Arc<PeerShared>, Arc<verbs::Peer>>);
kind!(Peer, 4, "rpma_peer");

/// Shared state of everything created from a peer of pmof's own connections.
#[derive(Debug)]
pub(crate) struct PeerShared {
    pub(crate) peer: AccessPeer,
    pub(crate) transport: Transport,
    /// Number of memory registrations.
    pub(crate) registrations: AtomicUsize,
    nothing: OnceLock<Region>,
    pub(crate) beacons: Arc<Beacons>,
}

impl PeerShared {
    /// No bytes of this side.
    pub(crate) fn nothing(&self) -> Result<RegionSlice, Failure> {
        let region = if let Some(region) = self.nothing.get() {
            region
        } else {
            let made = self.peer.allocate(8, Access::empty())?;
            self.nothing.get_or_init(|| made)
        };
        Ok(region.slice(..0)?)
    }
}

/// Opens the device of a context.
///
/// # Safety
///
/// `context` is not null, and a context that the library gave out or of an open device.
unsafe fn open(context: *mut sys::ibv_context) -> Result<Peer, Failure> {
    let known = transport_of(context.addr());
    let transport = known.map(|(transport, _)| transport);
    let peer = if let Some((transport @ Transport::Fabric(_), Some(local))) = known {
        AccessPeer::open_at(transport, local)?
    } else if let Some(transport @ (Transport::Tcp | Transport::Shm)) = transport {
        AccessPeer::open(transport)?
    } else {
        // SAFETY: a context of a device, whose first word points to the device.
        let device = unsafe { (*context).device };
        need(device, "the device of ibv_ctx")?;
        // SAFETY: a device has a name, which ends within its array.
        let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned();
        if settings().wire == Wire::Librpma {
            return Ok(Peer(On::Verbs(verbs::Peer::open(&name)?)));
        }
        AccessPeer::open_verbs(&VerbsOptions::default().device(DeviceChoice::Named(name)))?
    };
    let transport = transport.unwrap_or(Transport::Verbs);
    let (registrations, nothing) = (AtomicUsize::new(0), OnceLock::new());
    let shared = PeerShared { peer, transport, registrations, nothing, beacons: Arc::default() };
    Ok(Peer(On::Access(Arc::new(shared))))
}

/// Opens a device.
///
/// # Safety
///
/// `context` is null or a context of an open device; `made` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_peer_new(context: *mut sys::ibv_context, made: Out<*mut Handle<Peer>>) -> c_int {
    call(c"rpma_peer_new", || {
        need(context, "ibv_ctx")?;
        made.need("peer_ptr")?;
        // SAFETY: not null, so a context of an open device, or a stand-in for TCP or shm, by the contract of this function.
        let peer = unsafe { open(context) }?;
        made.put(Handle::create(peer));
        Ok(())
    })
}

/// Closes a peer; connections and endpoints created from it continue to work. A peer with registered memory stays, and the call fails
/// (`RPMA_E_PROVIDER`), like that for a device's protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_peer_delete(peer: Slot<Peer>) -> c_int {
    call(c"rpma_peer_delete", || {
        if let Some(peer) = peer.object() {
            let peer = peer.get()?;
            let registrations = match &peer.0 {
                On::Access(peer) => &peer.registrations,
                On::Verbs(peer) => &peer.registrations,
            };
            let registrations = registrations.load(Ordering::Relaxed);
            if registrations > 0 {
                let why =
                    format!("{registrations} memory registrations of the peer are there: rpma_mr_dereg them first");
                return Err(Failure::provider(why));
            }
        }
        peer.delete()
    })
}
