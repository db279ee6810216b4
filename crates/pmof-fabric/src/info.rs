//! What providers offer.

use std::{
    ffi::{CStr, CString, c_char},
    fmt,
    net::IpAddr,
    ptr::{self, NonNull},
};

use bitflags::bitflags;
use pmof_fabric_sys as sys;
use pmof_fabric_sys::Fabric;

use crate::{
    FabricError,
    kind::{EndpointKind, NAME_BYTES_MAX},
    lacks::{ORDER, lacks},
};

bitflags! {
    /// What a provider asks of registered memory: the bits of `mr_mode` (fi_mr(3)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MrMode: i32 {
        /// The memory of this side's own operations is registered too.
        const LOCAL = sys::FI_MR_LOCAL;
        /// Peers name bytes by their virtual address, else by their offset in the region.
        const VIRTUAL_ADDRESS = sys::FI_MR_VIRT_ADDR;
        /// Pages are there when they are registered.
        const ALLOCATED = sys::FI_MR_ALLOCATED;
        /// The provider chooses keys, else whoever registers.
        const PROVIDER_KEY = sys::FI_MR_PROV_KEY;
    }
}

/// Who moves data when this side's program does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgressMode {
    /// The provider, by itself.
    Auto,
    /// Nobody: completions have to be polled for, also where only peers have operations under way.
    Manual,
}

/// The family of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Whether the address is one of them.
    pub fn has(self, address: IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// What is looked for.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// The provider, such as `tcp` or `verbs;ofi_rxm`; any where it is `None`.
    pub provider: Option<String>,
    /// What kind of endpoints.
    pub kind: EndpointKind,
    /// The address of this machine that the endpoint is at.
    pub source: Option<IpAddr>,
    /// Only what writes to persistent memory with `FI_COMMIT_COMPLETE` (`FI_RMA_PMEM`).
    pub persistent: bool,
}

/// One offer of a provider: endpoints with messages and RMA, whose sends and writes stay in order.
pub struct Info {
    raw: NonNull<sys::fi_info>,
    fabric: &'static Fabric,
}

// SAFETY: this is the only handle of a structure that nothing changes.
unsafe impl Send for Info {}
// SAFETY: nothing changes the structure.
unsafe impl Sync for Info {}

/// Providers that are not used, and why.
const REFUSED: [(&str, &str); 2] = [
    ("sockets", "its progress thread sleeps, so that a write takes 10 ms; use tcp, which speaks to the same network"),
    (
        "shm",
        "in libfabric 1.17 it crashes the target when an initiator closes with a long write under way; use shm://, which maps the memory itself",
    ),
];

/// Why connections over `verbs;ofi_rxm` need shared receives.
const RXM_USE_AFTER_FREE: &str = "up to libfabric 2.1 its layer ofi_rxm uses an endpoint after it was freed where a message comes while it is closed, \
     unless FI_OFI_RXM_USE_SRX=1 is set before the program starts; use fabric+verbs-msg, which has no such layer";

/// Whether `ofi_rxm` was told to share receives.
fn rxm_shares_receives() -> bool {
    let value = std::env::var("FI_OFI_RXM_USE_SRX").unwrap_or_default();
    ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str())
}

/// Why a provider is not used; `None`: it may be.
fn refusal(provider: &str) -> Option<&'static str> {
    refusal_of_layers(provider)
        .or_else(|| (provider == "verbs;ofi_rxm" && !rxm_shares_receives()).then_some(RXM_USE_AFTER_FREE))
}

/// The same of what no setting helps.
fn refusal_of_layers(provider: &str) -> Option<&'static str> {
    let mut layers = provider.split(';');
    layers.find_map(|layer| REFUSED.iter().find(|(name, _)| *name == layer)).map(|(_, why)| *why)
}

/// The offers of this machine's providers, best first as libfabric orders them. Not those of `sockets` and `shm`.
pub fn list(query: &Query) -> Result<Vec<Info>, FabricError> {
    let fabric = Fabric::load()?;
    let provider = query.provider.as_deref();
    let unsupported = |why| FabricError::Unsupported { provider: provider.unwrap_or_default().to_owned(), why };
    if let Some(why) = provider.and_then(refusal_of_layers) {
        return Err(unsupported(why));
    }
    let hints = Hints::new(fabric, query)?;
    let node = query.source.and_then(|address| CString::new(address.to_string()).ok());
    let (node, flags) = match &node {
        Some(node) => (node.as_ptr(), sys::FI_SOURCE | sys::FI_NUMERICHOST),
        None => (ptr::null(), 0),
    };
    let (major, minor) = fabric.version();
    let nothing = || FabricError::NoProvider {
        provider: provider.unwrap_or("provider").to_owned(),
        kind: query.kind,
        address: query.source,
        major,
        minor,
    };
    // SAFETY: the node is a C string or null, and the hints are whole.
    let infos = unsafe { offers(fabric, (node, flags), hints.raw.as_ptr()) };
    let mut infos = infos.map_err(|status| match -status {
        // SAFETY: the node is a C string or null.
        sys::FI_ENODATA => unsafe { unfit(fabric, (node, flags), query) }.unwrap_or_else(nothing),
        _ => FabricError::call(fabric, "fi_getinfo", provider.unwrap_or("all providers"), status.into()),
    })?;
    // A setting that is missing matters where there is a device only.
    if let Some(why) = provider.and_then(refusal) {
        return Err(unsupported(why));
    }
    infos.retain(|info| refusal(&info.provider()).is_none());
    if infos.is_empty() { Err(nothing()) } else { Ok(infos) }
}

/// What the provider that is asked for lacks, by the offer that lacks least; `None`: it has no offer here, or lacks nothing that is known.
///
/// # Safety
///
/// The node is a C string or null.
unsafe fn unfit(fabric: &'static Fabric, node_and_flags: (*const c_char, u64), query: &Query) -> Option<FabricError> {
    let provider = query.provider.as_deref()?;
    // SAFETY: the node is a C string or null, as this function asks of its caller, and there are no hints.
    let infos = unsafe { offers(fabric, node_and_flags, ptr::null()) }.ok()?;
    let is_of_provider = |name: &str| name == provider || name.split(';').next() == Some(provider);
    let known = infos.iter().filter(|info| is_of_provider(&info.provider()));
    let lacks = known.map(|info| lacks(info, query.kind)).min_by_key(Vec::len).filter(|lacks| !lacks.is_empty())?;
    let (major, minor) = fabric.version();
    Some(FabricError::Lacking {
        provider: provider.to_owned(),
        lacks: lacks.join(", "),
        kind: query.kind,
        major,
        minor,
    })
}

/// What the library says of one provider of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The provider, with what lies over it: `tcp;ofi_rxm`.
    pub provider: String,
    /// Why it is not used; `None`: it is.
    pub why_not: Option<String>,
    /// Whether it is used by connected endpoints (`FI_EP_MSG`); the others by reliable datagram endpoints.
    pub is_connected: bool,
    /// Whether it says that writes may be asked to reach a persistence domain (`FI_RMA_PMEM`).
    pub claims_persistence: bool,
}

/// What libfabric has on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The library's version: major and minor.
    pub version: (u16, u16),
    /// Its providers, those first that are used: each once for each kind of endpoints that it is used by, else once.
    pub offers: Vec<Offer>,
}

/// All providers of this machine, those too that are not used.
pub fn survey() -> Result<Survey, FabricError> {
    let fabric = Fabric::load()?;
    let mut usable = Vec::new();
    for kind in [EndpointKind::Datagram, EndpointKind::Connected] {
        match list(&Query { kind, ..Query::default() }) {
            Ok(infos) => usable.extend(infos),
            Err(FabricError::NoProvider { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: no address is asked for, and nothing in particular.
    let others = match unsafe { offers(fabric, (ptr::null(), 0), ptr::null()) } {
        Ok(infos) => infos,
        Err(status) if -status == sys::FI_ENODATA => Vec::new(),
        Err(status) => return Err(FabricError::call(fabric, "fi_getinfo", "all providers", status.into())),
    };
    let mut offers: Vec<Offer> = Vec::new();
    let used = usable.iter().map(|info| (info, true));
    for (info, is_used) in used.chain(others.iter().map(|info| (info, false))) {
        let provider = info.provider();
        let claims_persistence = info.claims_persistence();
        let is_connected = is_used && info.kind() == EndpointKind::Connected;
        let is_known =
            |offer: &&mut Offer| offer.provider == provider && (!is_used || offer.is_connected == is_connected);
        if let Some(known) = offers.iter_mut().find(is_known) {
            // What it has with other endpoints than ours it does not promise to us.
            known.claims_persistence |= claims_persistence && known.why_not.is_some();
            continue;
        }
        let why_not = (!is_used).then(|| refusal(&provider).map_or_else(|| without(info), ToOwned::to_owned));
        offers.push(Offer { provider, why_not, is_connected, claims_persistence });
    }
    Ok(Survey { version: fabric.version(), offers })
}

/// Why an offer of a provider that is not refused is not used.
fn without(info: &Info) -> String {
    match lacks(info, EndpointKind::Datagram) {
        lacks if lacks.is_empty() => {
            "it wants a mode, or memory registered in a way, that pmof does not have".to_owned()
        }
        lacks => format!("it lacks {}", lacks.join(", ")),
    }
}

/// What `fi_getinfo` finds, or its status.
///
/// # Safety
///
/// The node is a C string or null, and the hints are whole or null.
pub(crate) unsafe fn offers(
    fabric: &'static Fabric,
    (node, flags): (*const c_char, u64),
    hints: *const sys::fi_info,
) -> Result<Vec<Info>, i32> {
    let mut found = ptr::null_mut();
    // SAFETY: the node is a C string or null and the hints are whole or null, as this function asks of its caller; `found` is a place for the list.
    let status = unsafe { (fabric.fi_getinfo)(sys::API_VERSION, node, ptr::null(), flags, hints, &raw mut found) };
    if status != 0 {
        return Err(status);
    }
    let mut infos = Vec::new();
    let mut at = found;
    while let Some(entry) = NonNull::new(at) {
        // SAFETY: an entry of the list, which is whole; its copy points to none of it.
        let copy = unsafe {
            at = (*entry.as_ptr()).next;
            (fabric.fi_dupinfo)(entry.as_ptr())
        };
        infos.extend(NonNull::new(copy).map(|raw| Info { raw, fabric }));
    }
    // SAFETY: the list is the library's, and nothing refers to it any more.
    unsafe { (fabric.fi_freeinfo)(found) };
    Ok(infos)
}

/// What `fi_getinfo` is asked for.
struct Hints {
    raw: NonNull<sys::fi_info>,
    fabric: &'static Fabric,
}

impl Hints {
    fn new(fabric: &'static Fabric, query: &Query) -> Result<Self, FabricError> {
        // SAFETY: null asks for an empty structure.
        let raw = unsafe { (fabric.fi_dupinfo)(ptr::null()) };
        let failed = || FabricError::call(fabric, "fi_dupinfo", "an empty structure", i64::from(libc::ENOMEM));
        let hints = Self { raw: NonNull::new(raw).ok_or_else(failed)?, fabric };
        let persistent = if query.persistent { sys::FI_RMA_PMEM } else { 0 };
        let modes = MrMode::all().bits();
        // SAFETY: the library allocates an empty structure with all its parts. It frees the name with `free`, of whose allocator
        // `strdup` is.
        unsafe {
            let hints = raw;
            (*hints).caps = sys::FI_MSG | sys::FI_RMA | persistent;
            (*hints).mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
            (*(*hints).ep_attr).type_ = query.kind.number();
            (*(*hints).tx_attr).msg_order = ORDER;
            (*(*hints).rx_attr).msg_order = ORDER;
            let domain = (*hints).domain_attr;
            (*domain).mr_mode = modes;
            (*domain).threading = sys::FI_THREAD_SAFE;
            (*domain).resource_mgmt = sys::FI_RM_ENABLED;
            if let Some(name) = query.provider.as_deref().and_then(|name| CString::new(name).ok()) {
                (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        Ok(hints)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        // SAFETY: the structure is the library's, and this is its only handle.
        unsafe { (self.fabric.fi_freeinfo)(self.raw.as_ptr()) };
    }
}

impl Info {
    /// Takes over a structure of the library.
    pub(crate) fn of_raw(raw: NonNull<sys::fi_info>, fabric: &'static Fabric) -> Self {
        Self { raw, fabric }
    }

    /// What a request for a connection is known by.
    pub(crate) fn handle(&self) -> *mut sys::fid {
        self.info().handle
    }

    /// The same offer, for a connection to this address, which is in the offer's format.
    pub(crate) fn towards(&self, address: &[u8]) -> Option<Self> {
        // SAFETY: the structure is whole, and its copy points to none of it.
        let copy = NonNull::new(unsafe { (self.fabric.fi_dupinfo)(self.raw.as_ptr()) })?;
        let copy = Self { raw: copy, fabric: self.fabric };
        // SAFETY: the address is memory of `malloc`, as the library frees it with `free`, and as long as the longest one that is known: what
        // is short is continued with zeros. Nobody else has the copy yet.
        unsafe {
            let room = libc::calloc(1, NAME_BYTES_MAX).cast::<u8>();
            if room.is_null() || address.len() > NAME_BYTES_MAX {
                libc::free(room.cast());
                return None;
            }
            ptr::copy_nonoverlapping(address.as_ptr(), room, address.len());
            let raw = copy.raw.as_ptr();
            libc::free((*raw).dest_addr);
            (*raw).dest_addr = room.cast();
            (*raw).dest_addrlen = address.len();
        }
        Some(copy)
    }

    /// What kind of endpoints it has.
    pub fn kind(&self) -> EndpointKind {
        if self.kind_number() == sys::FI_EP_MSG { EndpointKind::Connected } else { EndpointKind::Datagram }
    }

    pub(crate) fn kind_number(&self) -> u32 {
        // SAFETY: an info that the library made has all its parts, and nothing changes them.
        unsafe { (*self.info().ep_attr).type_ }
    }

    pub(crate) fn capabilities(&self) -> u64 {
        self.info().caps
    }

    /// The orders that it keeps, of what is sent and of what is received.
    pub(crate) fn orders(&self) -> (u64, u64) {
        // SAFETY: an info that the library made has all its parts, and nothing changes them.
        (self.transmit().msg_order, unsafe { (*self.info().rx_attr).msg_order })
    }

    pub(crate) fn raw(&self) -> *mut sys::fi_info {
        self.raw.as_ptr()
    }

    pub(crate) fn fabric(&self) -> &'static Fabric {
        self.fabric
    }

    fn info(&self) -> &sys::fi_info {
        // SAFETY: the structure is whole, and nothing changes it.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn domain_attributes(&self) -> &sys::fi_domain_attr {
        // SAFETY: an info that the library made has all its parts, and nothing changes them.
        unsafe { &*self.info().domain_attr }
    }

    pub(crate) fn transmit(&self) -> &sys::fi_tx_attr {
        // SAFETY: an info that the library made has all its parts, and nothing changes them.
        unsafe { &*self.info().tx_attr }
    }

    /// The provider, with what lies over it: `tcp;ofi_rxm`.
    pub fn provider(&self) -> String {
        // SAFETY: an info that the library made has all its parts, and nothing changes them.
        unsafe { text((*self.info().fabric_attr).prov_name) }
    }

    /// The domain, such as the network interface or the device.
    pub fn domain(&self) -> String {
        // SAFETY: the name is a C string or null.
        unsafe { text(self.domain_attributes().name) }
    }

    /// Which family of IP addresses its endpoints have; `None`: the provider has addresses of its own.
    pub fn ip_family(&self) -> Option<IpFamily> {
        match self.info().addr_format {
            sys::FI_SOCKADDR_IN => Some(IpFamily::V4),
            sys::FI_SOCKADDR_IN6 => Some(IpFamily::V6),
            _ => None,
        }
    }

    /// Whether its domain is a device, which serves its own addresses alone; those of others are all of this machine.
    pub fn is_of_device(&self) -> bool {
        self.provider().split(';').next() == Some("verbs")
    }

    /// What it asks of registered memory.
    pub fn mr_mode(&self) -> MrMode {
        MrMode::from_bits_truncate(self.domain_attributes().mr_mode)
    }

    /// Who moves data.
    pub fn data_progress(&self) -> ProgressMode {
        if self.domain_attributes().data_progress == sys::FI_PROGRESS_AUTO {
            ProgressMode::Auto
        } else {
            ProgressMode::Manual
        }
    }

    /// Whether writes may be asked to reach a persistence domain (`FI_RMA_PMEM`). What the provider does then is its own matter.
    pub fn claims_persistence(&self) -> bool {
        self.info().caps & sys::FI_RMA_PMEM != 0
    }

    /// Whether it has atomic operations.
    pub fn has_atomics(&self) -> bool {
        self.info().caps & sys::FI_ATOMIC != 0
    }

    /// Operations that may be under way, each way.
    pub fn queue_lengths(&self) -> (usize, usize) {
        // SAFETY: an info that the library made has all its parts, and nothing changes them.
        (self.transmit().size, unsafe { (*self.info().rx_attr).size })
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("provider", &self.provider())
            .field("domain", &self.domain())
            .field("mr_mode", &self.mr_mode())
            .field("data_progress", &self.data_progress())
            .finish_non_exhaustive()
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the structure is the library's, and this is its only handle.
        unsafe { (self.fabric.fi_freeinfo)(self.raw.as_ptr()) };
    }
}

/// The text of a C string.
///
/// # Safety
///
/// It is a C string, or null.
unsafe fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: a pointer that is not null is a C string, by the contract of this function.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
