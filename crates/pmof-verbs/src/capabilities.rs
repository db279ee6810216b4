//! What the devices of this machine can do.

use std::{
    ffi::{CStr, c_char},
    fs, io,
    mem::{self, MaybeUninit},
};

use bitflags::bitflags;
use pmof_verbs_sys as sys;
use pmof_verbs_sys::{DeviceList, Verbs};

use crate::VerbsError;

/// Vendor numbers of software devices: none, soft-RoCE's and soft-iWARP's.
const SOFTWARE_VENDORS: [u32; 3] = [0, 0x00FF_FFFF, 0x0062_6D74];

/// More entries than any table of GIDs that was seen.
const GID_ENTRIES_MAX: usize = 1024;

bitflags! {
    /// Which operations of reliable connections a device serves from memory that is not pinned.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OnDemandPaging: u32 {
        /// The source of a send.
        const SEND = sys::IBV_ODP_SUPPORT_SEND;
        /// The buffer of a receive.
        const RECEIVE = sys::IBV_ODP_SUPPORT_RECV;
        /// Either end of a write.
        const WRITE = sys::IBV_ODP_SUPPORT_WRITE;
        /// Either end of a read.
        const READ = sys::IBV_ODP_SUPPORT_READ;
        /// Either end of an atomic operation.
        const ATOMIC = sys::IBV_ODP_SUPPORT_ATOMIC;
        /// The buffer of a receive of a shared queue.
        const SHARED_RECEIVE = sys::IBV_ODP_SUPPORT_SRQ_RECV;
    }
}

impl OnDemandPaging {
    /// True if a region may be registered on demand for reads and writes of peers.
    pub fn serves_writes(self) -> bool {
        self.contains(Self::WRITE | Self::READ)
    }
}

/// The network that a device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// `InfiniBand` with its own link layer.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    RoCe,
    /// RDMA over TCP.
    IWarp,
    /// None of these.
    Other,
}

/// What a port's link is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// `InfiniBand`.
    InfiniBand,
    /// Ethernet.
    Ethernet,
    /// The device does not say.
    Unspecified,
}

/// Whether a port can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// No link: the cable, or the network interface below it (`ip link set dev ... up`).
    Down,
    /// The link is up, the subnet manager has not set the port up yet.
    Initializing,
    /// In use.
    Active,
    /// Anything else.
    Other,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// Ports count from 1.
    pub number: u8,
    /// Whether it can be used.
    pub state: PortState,
    /// What its link is made of.
    pub link_layer: LinkLayer,
    /// The bytes of a packet's payload, 256 to 4096; 0 where the device does not say.
    pub mtu_bytes: u32,
    /// The longest message in bytes.
    pub max_message_bytes: u32,
    /// How many addresses (GIDs) it has; `None` where the library is too old to tell.
    pub gids: Option<u32>,
}

/// A device and what it can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "each is one capability")]
pub struct DeviceInfo {
    /// The kernel's name, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// The firmware's version; empty for software devices.
    pub firmware: String,
    /// The vendor's number.
    pub vendor_id: u32,
    /// The device's number of the vendor.
    pub vendor_part_id: u32,
    /// What it speaks.
    pub transport: Transport,
    /// True for a device made of software: its inbound writes are copies made by the CPU.
    pub is_software: bool,
    /// The device flushes to visibility (`RDMA FLUSH`, global).
    pub native_flush_global: bool,
    /// The device flushes to persistence (`RDMA FLUSH`, persistent).
    pub native_flush_persistent: bool,
    /// The device has `ATOMIC WRITE`.
    pub atomic_write: bool,
    /// Compare-and-swap and fetch-and-add are atomic among the device's own operations at least.
    pub atomics: bool,
    /// What it serves without pinning.
    pub on_demand_paging: OnDemandPaging,
    /// The most ranges of one request.
    pub max_sge: u32,
    /// The most requests of one queue.
    pub max_queue_pair_requests: u32,
    /// The most queue pairs.
    pub max_queue_pairs: u32,
    /// The most entries of a completion queue.
    pub max_completion_entries: u32,
    /// The most receives of a shared queue; 0 where the device has none.
    pub max_shared_receives: u32,
    /// The most reads, flushes and atomics that it serves at once on one connection.
    pub max_responder_resources: u32,
    /// The most reads, flushes and atomics that it has under way at once on one connection.
    pub max_initiator_depth: u32,
    /// The longest region in bytes.
    pub max_region_bytes: u64,
    /// The most regions.
    pub max_regions: u32,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

impl DeviceInfo {
    /// A device that can do nothing.
    #[cfg(test)]
    pub(crate) fn nothing() -> Self {
        // SAFETY: all zeroes are valid attributes.
        describe(String::new(), &unsafe { mem::zeroed() }, sys::IBV_TRANSPORT_UNKNOWN, Vec::new())
    }

    /// True if messages and writes may carry a number. iWARP has no place for one (RFC 5040).
    pub fn has_immediate(&self) -> bool {
        self.transport != Transport::IWarp
    }

    /// True if the completion of a write or a message says only that this side's device has handed it over, not that it has
    /// arrived: iWARP leaves the rest to TCP. The completion of a read says that everything before it has arrived.
    pub fn completes_early(&self) -> bool {
        self.transport == Transport::IWarp
    }

    /// True if a port can be used.
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(|port| port.state == PortState::Active)
    }
}

/// The devices of this machine; empty where there are none. Opens each for a moment.
pub fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let verbs = Verbs::load()?;
    let list = DeviceList::get(verbs)?;
    list.devices()
        .map(|device| {
            let context = device.open()?;
            // SAFETY: the context is open.
            let info = unsafe { query(verbs, context.as_ptr()) };
            // SAFETY: the context was opened above and nothing was made on it.
            unsafe { (verbs.ibv_close_device)(context.as_ptr()) };
            info
        })
        .collect()
}

/// The name of a context's device.
///
/// # Safety
///
/// `context` is open.
pub(crate) unsafe fn name_of(verbs: &Verbs, context: *mut sys::ibv_context) -> String {
    // SAFETY: an open context keeps its device, whose name is a C string inside it.
    unsafe { CStr::from_ptr((verbs.ibv_get_device_name)((*context).device)) }.to_string_lossy().into_owned()
}

/// Asks the device.
///
/// # Safety
///
/// `context` is open.
pub(crate) unsafe fn query(verbs: &Verbs, context: *mut sys::ibv_context) -> Result<DeviceInfo, VerbsError> {
    // SAFETY: `context` is open.
    let name = unsafe { name_of(verbs, context) };
    let mut attributes = MaybeUninit::<sys::ibv_device_attr_ex>::uninit();
    // SAFETY: `context` is open; the call writes all of the attributes or fails.
    let attributes = unsafe {
        let errno = verbs.query_device_ex(context, attributes.as_mut_ptr());
        if errno != 0 {
            return Err(VerbsError::call("ibv_query_device_ex", name, io::Error::from_raw_os_error(errno)));
        }
        attributes.assume_init()
    };
    // SAFETY: `context` is open, and keeps its device.
    let (gids, transport) = unsafe { (gid_counts(verbs, context), (*(*context).device).transport_type) };
    let ports = (1..=attributes.orig_attr.phys_port_cnt)
        // SAFETY: `context` is open.
        .map(|number| unsafe { query_port(verbs, context, number, &name, gids.as_deref()) })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(describe(name, &attributes, transport, ports))
}

fn describe(
    name: String,
    attributes: &sys::ibv_device_attr_ex,
    transport: sys::ibv_transport_type,
    ports: Vec<PortInfo>,
) -> DeviceInfo {
    let orig = &attributes.orig_attr;
    let has = |flag: sys::ib_uverbs_device_cap_flags| attributes.device_cap_flags_ex & flag != 0;
    // The kernel's numbers are not negative where they are valid.
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let odp = &attributes.odp_caps;
    let on_demand = if odp.general_caps & u64::from(sys::IBV_ODP_SUPPORT) == 0 {
        OnDemandPaging::empty()
    } else {
        OnDemandPaging::from_bits_truncate(odp.per_transport_caps.rc_odp_caps)
    };
    let ethernet = ports.iter().any(|port| port.link_layer == LinkLayer::Ethernet);
    DeviceInfo {
        is_software: is_software(&name, orig.vendor_id),
        name,
        firmware: text(&orig.fw_ver),
        vendor_id: orig.vendor_id,
        vendor_part_id: orig.vendor_part_id,
        transport: match transport {
            sys::IBV_TRANSPORT_IB if ethernet => Transport::RoCe,
            sys::IBV_TRANSPORT_IB => Transport::InfiniBand,
            sys::IBV_TRANSPORT_IWARP => Transport::IWarp,
            _ => Transport::Other,
        },
        native_flush_global: has(sys::IB_UVERBS_DEVICE_FLUSH_GLOBAL),
        native_flush_persistent: has(sys::IB_UVERBS_DEVICE_FLUSH_PERSISTENT),
        atomic_write: has(sys::IB_UVERBS_DEVICE_ATOMIC_WRITE),
        atomics: orig.atomic_cap != sys::IBV_ATOMIC_NONE,
        on_demand_paging: on_demand,
        max_sge: count(orig.max_sge),
        max_queue_pair_requests: count(orig.max_qp_wr),
        max_queue_pairs: count(orig.max_qp),
        max_completion_entries: count(orig.max_cqe),
        max_shared_receives: count(orig.max_srq_wr),
        max_responder_resources: count(orig.max_qp_rd_atom),
        max_initiator_depth: count(orig.max_qp_init_rd_atom),
        max_region_bytes: orig.max_mr_size,
        max_regions: count(orig.max_mr),
        ports,
    }
}

/// How many GIDs each port has, counted by port number from 0; `None` where the library cannot tell.
///
/// # Safety
///
/// `context` is open.
unsafe fn gid_counts(verbs: &Verbs, context: *mut sys::ibv_context) -> Option<Vec<u32>> {
    // SAFETY: all zeroes are a valid entry.
    let mut entries = vec![unsafe { mem::zeroed::<sys::ibv_gid_entry>() }; GID_ENTRIES_MAX];
    // SAFETY: `context` is open.
    let written = unsafe { verbs.query_gid_table(context, &mut entries) };
    let written = entries.get(..usize::try_from(written).ok()?)?;
    let mut counts = vec![0; 256];
    for entry in written {
        if let Some(count) = counts.get_mut(entry.port_num as usize) {
            *count += 1;
        }
    }
    Some(counts)
}

/// # Safety
///
/// `context` is open.
unsafe fn query_port(
    verbs: &Verbs,
    context: *mut sys::ibv_context,
    number: u8,
    device: &str,
    gids: Option<&[u32]>,
) -> Result<PortInfo, VerbsError> {
    let mut attributes = MaybeUninit::<sys::ibv_port_attr>::zeroed();
    // SAFETY: `context` is open; all zeroes are valid attributes.
    let attributes = unsafe {
        let errno = verbs.query_port(context, number, attributes.as_mut_ptr());
        if errno != 0 {
            let on = format!("port {number} of {device}");
            return Err(VerbsError::call("ibv_query_port", on, io::Error::from_raw_os_error(errno)));
        }
        attributes.assume_init()
    };
    Ok(PortInfo {
        number,
        state: match attributes.state {
            sys::IBV_PORT_DOWN => PortState::Down,
            sys::IBV_PORT_INIT | sys::IBV_PORT_ARMED => PortState::Initializing,
            sys::IBV_PORT_ACTIVE | sys::IBV_PORT_ACTIVE_DEFER => PortState::Active,
            _ => PortState::Other,
        },
        link_layer: match u32::from(attributes.link_layer) {
            sys::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        },
        mtu_bytes: match attributes.active_mtu {
            mtu @ sys::IBV_MTU_256..=sys::IBV_MTU_4096 => 128 << mtu,
            _ => 0,
        },
        max_message_bytes: attributes.max_msg_sz,
        gids: gids.and_then(|gids| gids.get(usize::from(number)).copied()),
    })
}

/// A device without hardware lies below no bus, or has the vendor number of a software device.
fn is_software(name: &str, vendor_id: u32) -> bool {
    let place = fs::canonicalize(format!("/sys/class/infiniband/{name}"));
    SOFTWARE_VENDORS.contains(&vendor_id) || place.is_ok_and(|path| path.starts_with("/sys/devices/virtual"))
}

/// A C string in a field, as far as it goes.
fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|c| c.to_le_bytes()[0]).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> sys::ibv_device_attr_ex {
        // SAFETY: all zeroes are valid attributes.
        unsafe { mem::zeroed() }
    }

    fn port(link_layer: LinkLayer) -> PortInfo {
        PortInfo {
            number: 1,
            state: PortState::Active,
            link_layer,
            mtu_bytes: 1024,
            max_message_bytes: 1 << 30,
            gids: Some(2),
        }
    }

    #[test]
    fn soft_roce_is_described() {
        let mut attributes = attributes();
        // As soft-RoCE of Linux 6.12 answers.
        attributes.device_cap_flags_ex = 0x1C0_0122_3C76;
        attributes.orig_attr.vendor_id = 0x00FF_FFFF;
        attributes.orig_attr.atomic_cap = sys::IBV_ATOMIC_HCA;
        attributes.orig_attr.max_qp_rd_atom = 128;
        let ports = vec![port(LinkLayer::Ethernet)];
        let info = describe("rxe-nowhere".into(), &attributes, sys::IBV_TRANSPORT_IB, ports);
        assert!(info.native_flush_global && info.native_flush_persistent && info.atomic_write && info.atomics);
        assert!(info.is_software && info.is_active());
        assert_eq!((info.transport, info.max_responder_resources), (Transport::RoCe, 128));
        assert!(info.on_demand_paging.is_empty() && !info.on_demand_paging.serves_writes());
    }

    #[test]
    fn on_demand_paging_counts_only_where_the_device_says_so_in_general() {
        let mut attributes = attributes();
        attributes.orig_attr.vendor_id = 0x02C9;
        attributes.odp_caps.per_transport_caps.rc_odp_caps = 0x2F;
        let of = |attributes: &_| describe("none".into(), attributes, sys::IBV_TRANSPORT_IB, vec![]).on_demand_paging;
        assert_eq!(of(&attributes), OnDemandPaging::empty());
        attributes.odp_caps.general_caps = u64::from(sys::IBV_ODP_SUPPORT);
        assert_eq!(of(&attributes), OnDemandPaging::all() - OnDemandPaging::ATOMIC);
        assert!(of(&attributes).serves_writes());
        let info = describe("none".into(), &attributes, sys::IBV_TRANSPORT_IB, vec![port(LinkLayer::InfiniBand)]);
        assert!(!info.native_flush_global && !info.native_flush_persistent && !info.atomic_write && !info.is_software);
        assert_eq!(info.transport, Transport::InfiniBand);
    }

    #[test]
    fn a_version_ends_at_its_zero_byte() {
        let mut field = [0; 64];
        field[..3].copy_from_slice(&[b'1', b'.', b'2'].map(|byte| c_char::from_le_bytes([byte])));
        assert_eq!(text(&field), "1.2");
        assert_eq!(text(&[c_char::from_le_bytes([b'x']); 4]), "xxxx");
    }
}
