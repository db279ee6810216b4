//! Two ends of a connection in one process, and regions to move bytes between.

use std::{
    ffi::{c_int, c_void},
    fs::OpenOptions,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd,
    path::PathBuf,
    ptr::{self, NonNull},
    time::{Duration, Instant},
};

use pmof_verbs_sys::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC, IBV_SEND_INLINE, IBV_SEND_SIGNALED, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_PS_TCP, Verbs,
    available_send_ops, ibv_access_flags, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr_ex, ibv_mr, ibv_pd,
    ibv_poll_cq, ibv_post_srq_recv, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_recv_wr, ibv_req_notify_cq, ibv_send_flags,
    ibv_sge, ibv_srq, ibv_srq_init_attr, ibv_wc, ibv_wr_complete, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_get_local_addr,
};

/// No wait of these tests is longer.
const PATIENCE: Duration = Duration::from_secs(20);
const REGION_BYTES: usize = 8192;

/// Where the ends are.
pub(crate) struct Wire {
    pub(crate) device: String,
    target: IpAddr,
    initiator: IpAddr,
}

/// The wire that the environment names; none, with the reason said, where there is no device.
pub(crate) fn wire() -> Option<Wire> {
    let Ok(device) = std::env::var("PMOF_VERBS_DEVICE") else {
        skip_report::skipped!("PMOF_VERBS_DEVICE names no RDMA device");
        return None;
    };
    let address = |name: &str| std::env::var(name).expect(name).parse().expect("an address");
    Some(Wire { device, target: address("PMOF_WIRE_A"), initiator: address("PMOF_WIRE_B") })
}

/// How many reads, atomics and flushes the target answers at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resources {
    None,
    Some,
}

pub(crate) struct Setup {
    /// The kinds of flush that the target's region allows.
    pub(crate) flush_access: ibv_access_flags,
    /// The memory of the target's region, else ordinary memory.
    pub(crate) dax: Option<PathBuf>,
    pub(crate) resources: Resources,
}

impl Default for Setup {
    fn default() -> Self {
        Self { flush_access: IBV_ACCESS_FLUSH_GLOBAL, dax: None, resources: Resources::Some }
    }
}

/// A mapping and its registration.
pub(crate) struct Region {
    verbs: &'static Verbs,
    memory: NonNull<u8>,
    len_bytes: usize,
    mr: *mut ibv_mr,
}

impl Region {
    fn new(verbs: &'static Verbs, pd: *mut ibv_pd, dax: Option<&PathBuf>, access: ibv_access_flags) -> Self {
        let (memory, len_bytes) = map(dax);
        // SAFETY: the mapping lives until `drop`, after the registration; only raw pointers look at it.
        let mr = unsafe { verbs.reg_mr(pd, memory.as_ptr().cast(), len_bytes, access) };
        assert!(!mr.is_null(), "ibv_reg_mr: {}", io::Error::last_os_error());
        Self { verbs, memory, len_bytes, mr }
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: registered until `drop`.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: registered until `drop`.
        unsafe { (*self.mr).rkey }
    }

    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.memory.addr().get() as u64 + offset as u64
    }

    pub(crate) fn range(&self, offset: usize, len_bytes: u32) -> ibv_sge {
        ibv_sge { addr: self.address(offset), length: len_bytes, lkey: self.lkey() }
    }

    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len_bytes);
        // SAFETY: inside the mapping, as was just asserted.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_ptr().add(offset), bytes.len()) };
    }

    pub(crate) fn bytes(&self, offset: usize, len_bytes: usize) -> Vec<u8> {
        assert!(offset + len_bytes <= self.len_bytes);
        let byte = |at| {
            // SAFETY: inside the mapping, as was just asserted; volatile, because the device writes it.
            unsafe { self.memory.as_ptr().add(offset + at).read_volatile() }
        };
        (0..len_bytes).map(byte).collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: both are this region's own; nothing is in flight once its queue pairs are gone.
        unsafe {
            (self.verbs.ibv_dereg_mr)(self.mr);
            libc::munmap(self.memory.as_ptr().cast(), self.len_bytes);
        }
    }
}

/// A device-DAX maps in multiples of its alignment, 2 MiB unless made otherwise.
fn map(dax: Option<&PathBuf>) -> (NonNull<u8>, usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let (len_bytes, mapped) = match dax {
        None => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping touches nothing that is there.
            (REGION_BYTES, unsafe { libc::mmap(ptr::null_mut(), REGION_BYTES, protection, flags, -1, 0) })
        }
        Some(path) => {
            let file = OpenOptions::new().read(true).write(true).open(path).expect("the device-DAX");
            // SAFETY: a new mapping, at an address that the kernel chooses, touches nothing that is there.
            (2 << 20, unsafe {
                libc::mmap(ptr::null_mut(), 2 << 20, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
            })
        }
    };
    assert_ne!(mapped, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    (NonNull::new(mapped.cast()).unwrap(), len_bytes)
}

/// One end: an identifier with its queue pair, and what that needs.
pub(crate) struct End {
    verbs: &'static Verbs,
    channel: *mut rdma_event_channel,
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    events: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    pub(crate) qp_ex: *mut ibv_qp_ex,
    /// The builders of work requests that the queue pair has.
    send_ops: u64,
}

impl End {
    /// An end whose identifier is not yet connected, with a queue pair.
    fn new(verbs: &'static Verbs, channel: *mut rdma_event_channel, id: *mut rdma_cm_id, shared_receive: bool) -> Self {
        let mut end = Self {
            verbs,
            channel,
            id,
            pd: ptr::null_mut(),
            events: ptr::null_mut(),
            cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            qp_ex: ptr::null_mut(),
            send_ops: 0,
        };
        // SAFETY: the identifier is bound to a device; every object is made from ones that are alive.
        unsafe {
            let context = (*id).verbs;
            end.pd = made((verbs.ibv_alloc_pd)(context));
            end.events = made((verbs.ibv_create_comp_channel)(context));
            end.cq = made((verbs.ibv_create_cq)(context, 64, ptr::null_mut(), end.events, 0));
            if shared_receive {
                let mut attributes = ibv_srq_init_attr::default();
                attributes.attr.max_wr = 16;
                attributes.attr.max_sge = 1;
                end.srq = made((verbs.ibv_create_srq)(end.pd, &raw mut attributes));
            }
        }
        let common = IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_SEND_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_READ
            | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        let native = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
        let accepted = [common | native, common].map(u64::from).into_iter().find(|&flags| end.create_qp(flags));
        let accepted = accepted.unwrap_or_else(|| panic!("rdma_create_qp_ex: {}", io::Error::last_os_error()));
        // SAFETY: the identifier has a queue pair, made with these flags.
        unsafe {
            end.qp_ex = made((verbs.ibv_qp_to_qp_ex)((*id).qp));
            end.send_ops = available_send_ops(end.qp_ex, accepted).unwrap();
        }
        end
    }

    /// Whether the provider makes a queue pair that posts in these ways.
    fn create_qp(&self, send_ops_flags: u64) -> bool {
        let mut attributes = ibv_qp_init_attr_ex {
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: self.srq,
            qp_type: IBV_QPT_RC,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.pd,
            send_ops_flags,
            ..ibv_qp_init_attr_ex::default()
        };
        attributes.cap.max_send_wr = 16;
        attributes.cap.max_recv_wr = 1;
        attributes.cap.max_send_sge = 2;
        attributes.cap.max_recv_sge = 1;
        attributes.cap.max_inline_data = 64;
        // SAFETY: the identifier and all that the attributes name are alive.
        unsafe { (self.verbs.rdma_create_qp_ex)(self.id, &raw mut attributes) == 0 }
    }

    fn completions(&self, count: usize) -> Vec<ibv_wc> {
        let (mut completions, start) = (Vec::new(), Instant::now());
        while completions.len() < count {
            let mut one = ibv_wc::default();
            // SAFETY: the queue is alive, and there is room for one completion.
            match unsafe { ibv_poll_cq(self.cq, 1, &raw mut one) } {
                0 => assert!(start.elapsed() < PATIENCE, "{} of {count} completions", completions.len()),
                1 => completions.push(one),
                error => panic!("ibv_poll_cq: {error}"),
            }
        }
        completions
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: all are this end's own, and go in the reverse of the order in which they were made.
        unsafe {
            (self.verbs.rdma_disconnect)(self.id);
            (self.verbs.rdma_destroy_qp)(self.id);
            if !self.srq.is_null() {
                assert_eq!((self.verbs.ibv_destroy_srq)(self.srq), 0);
            }
            assert_eq!((self.verbs.ibv_destroy_cq)(self.cq), 0);
            assert_eq!((self.verbs.ibv_destroy_comp_channel)(self.events), 0);
            assert_eq!((self.verbs.ibv_dealloc_pd)(self.pd), 0);
            assert_eq!((self.verbs.rdma_destroy_id)(self.id), 0);
            (self.verbs.rdma_destroy_event_channel)(self.channel);
        }
    }
}

/// A connection, both ends of it, and a region at each. Fields go in their order: the regions before the ends whose
/// protection domains they are in.
pub(crate) struct Pair {
    pub(crate) local: Region,
    pub(crate) remote: Region,
    pub(crate) initiator: End,
    target: End,
    pub(crate) attributes: ibv_device_attr_ex,
}

impl Pair {
    pub(crate) fn connect(wire: &Wire, setup: &Setup) -> Self {
        let verbs = Verbs::load().unwrap();
        // SAFETY: the calls are made in the order of `man 7 rdma_cm`, each with the objects of those before.
        unsafe {
            let (listener_channel, listener) = new_id(verbs);
            let mut address = Sockaddr::new(SocketAddr::new(wire.target, 0));
            zero((verbs.rdma_bind_addr)(listener, address.as_mut_ptr()), "rdma_bind_addr");
            zero((verbs.rdma_listen)(listener, 1), "rdma_listen");
            assert_eq!((*rdma_get_local_addr(listener)).sa_family, address.0.ss_family);
            let port = u16::from_be((verbs.rdma_get_src_port)(listener));

            let (channel, id) = new_id(verbs);
            let mut from = Sockaddr::new(SocketAddr::new(wire.initiator, 0));
            let mut to = Sockaddr::new(SocketAddr::new(wire.target, port));
            let resolved = (verbs.rdma_resolve_addr)(id, from.as_mut_ptr(), to.as_mut_ptr(), 5000);
            zero(resolved, "rdma_resolve_addr");
            expect(verbs, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
            zero((verbs.rdma_resolve_route)(id, 5000), "rdma_resolve_route");
            expect(verbs, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
            let initiator = End::new(verbs, channel, id, false);

            let depth = u8::from(setup.resources == Resources::Some);
            let mut parameters = rdma_conn_param {
                responder_resources: depth,
                initiator_depth: depth,
                retry_count: 6,
                rnr_retry_count: 6,
                ..rdma_conn_param::default()
            };
            zero((verbs.rdma_connect)(id, &raw mut parameters), "rdma_connect");
            let accepted = expect(verbs, listener_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
            // The listener is dropped; its channel stays with the accepted connection.
            zero((verbs.rdma_destroy_id)(listener), "rdma_destroy_id");
            let target = End::new(verbs, listener_channel, accepted, true);
            zero((verbs.rdma_accept)(accepted, &raw mut parameters), "rdma_accept");
            expect(verbs, channel, RDMA_CM_EVENT_ESTABLISHED);
            expect(verbs, listener_channel, RDMA_CM_EVENT_ESTABLISHED);

            let mut attributes = ibv_device_attr_ex::default();
            let context: *mut ibv_context = (*accepted).verbs;
            zero(verbs.query_device_ex(context, &raw mut attributes), "ibv_query_device_ex");
            // A device that does not know a kind of flush may refuse the access bit.
            let flush = if target.has_native_flush() { setup.flush_access } else { 0 };
            let access =
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            Self {
                local: Region::new(verbs, initiator.pd, None, IBV_ACCESS_LOCAL_WRITE),
                remote: Region::new(verbs, target.pd, setup.dax.as_ref(), access | flush),
                initiator,
                target,
                attributes,
            }
        }
    }

    pub(crate) fn has_native_flush(&self) -> bool {
        self.initiator.has_native_flush()
    }

    /// None, with the reason said, where the device has no native flush.
    pub(crate) fn with_native_flush(&self) -> Option<&Self> {
        if !self.has_native_flush() {
            skip_report::skipped!("the device has no native flush and atomic write");
            return None;
        }
        Some(self)
    }

    /// Registers the target's memory once more, for a moment.
    pub(crate) fn register_again(&self, flush_access: ibv_access_flags) -> io::Result<()> {
        let (verbs, remote) = (self.target.verbs, &self.remote);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | flush_access;
        // SAFETY: the mapping outlives this registration.
        unsafe {
            let mr = verbs.reg_mr(self.target.pd, remote.memory.as_ptr().cast(), remote.len_bytes, access);
            if mr.is_null() {
                return Err(io::Error::last_os_error());
            }
            zero((verbs.ibv_dereg_mr)(mr), "ibv_dereg_mr");
        }
        Ok(())
    }

    /// Names the next request of the batch, which is to be signalled.
    pub(crate) fn next(&self, wr_id: u64) {
        self.next_with(wr_id, IBV_SEND_SIGNALED);
    }

    /// As [`Self::next`], for a request whose data is copied.
    pub(crate) fn next_inline(&self, wr_id: u64) {
        self.next_with(wr_id, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    }

    fn next_with(&self, wr_id: u64, flags: ibv_send_flags) {
        // SAFETY: the queue pair is alive, and only this thread posts.
        unsafe {
            (*self.initiator.qp_ex).wr_id = wr_id;
            (*self.initiator.qp_ex).wr_flags = flags;
        }
    }

    /// Posts the batch that is begun and waits for its completions.
    pub(crate) fn complete(&self, count: usize) -> Vec<ibv_wc> {
        // SAFETY: the queue pair lives as long as `self`, and each test calls this between ibv_wr_start and the next, as the call asks.
        zero(unsafe { ibv_wr_complete(self.initiator.qp_ex) }, "ibv_wr_complete");
        self.initiator.completions(count)
    }

    pub(crate) fn post_shared_receive(&self, wr_id: u64, offset: usize, len_bytes: u32) {
        let mut range = self.remote.range(offset, len_bytes);
        let mut receive = ibv_recv_wr { wr_id, sg_list: &raw mut range, num_sge: 1, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the lists are read by this call; the memory stays registered.
        let posted = unsafe { ibv_post_srq_recv(self.target.srq, &raw mut receive, &raw mut bad) };
        zero(posted, "ibv_post_srq_recv");
    }

    pub(crate) fn ask_for_receive_event(&self) {
        // SAFETY: the queue is alive.
        zero(unsafe { ibv_req_notify_cq(self.target.cq, 0) }, "ibv_req_notify_cq");
    }

    pub(crate) fn wait_for_receive_event(&self) {
        let (mut cq, mut context): (_, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive; the event is acknowledged once.
        unsafe {
            wait_readable((*self.target.events).fd);
            let result = (self.target.verbs.ibv_get_cq_event)(self.target.events, &raw mut cq, &raw mut context);
            zero(result, "ibv_get_cq_event");
            assert!(ptr::eq(cq, self.target.cq));
            (self.target.verbs.ibv_ack_cq_events)(cq, 1);
        }
    }

    pub(crate) fn received(&self, count: usize) -> Vec<ibv_wc> {
        self.target.completions(count)
    }
}

impl End {
    fn has_native_flush(&self) -> bool {
        let native = u64::from(IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE);
        self.send_ops & native == native
    }
}

/// A socket address in C's form.
struct Sockaddr(libc::sockaddr_storage);

impl Sockaddr {
    fn new(address: SocketAddr) -> Self {
        // SAFETY: all zero is a valid value of these structures, and the storage is large and aligned enough for both.
        unsafe {
            let mut storage: libc::sockaddr_storage = std::mem::zeroed();
            match address {
                SocketAddr::V4(v4) => {
                    let to = (&raw mut storage).cast::<libc::sockaddr_in>();
                    (*to).sin_family = libc::AF_INET as u16;
                    (*to).sin_port = v4.port().to_be();
                    (*to).sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                }
                SocketAddr::V6(v6) => {
                    let to = (&raw mut storage).cast::<libc::sockaddr_in6>();
                    (*to).sin6_family = libc::AF_INET6 as u16;
                    (*to).sin6_port = v6.port().to_be();
                    (*to).sin6_addr.s6_addr = v6.ip().octets();
                }
            }
            Self(storage)
        }
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// An identifier with a channel of its own.
fn new_id(verbs: &'static Verbs) -> (*mut rdma_event_channel, *mut rdma_cm_id) {
    let mut id = ptr::null_mut();
    // SAFETY: the identifier is made on a channel that is alive.
    unsafe {
        let channel = made((verbs.rdma_create_event_channel)());
        zero((verbs.rdma_create_id)(channel, &raw mut id, ptr::null_mut(), RDMA_PS_TCP), "rdma_create_id");
        (channel, id)
    }
}

/// Takes the next event, which must be this one, and gives the identifier it is about.
fn expect(verbs: &Verbs, channel: *mut rdma_event_channel, expected: rdma_cm_event_type) -> *mut rdma_cm_id {
    let mut event = ptr::null_mut();
    // SAFETY: the channel is alive; the event is acknowledged once, after its last use.
    unsafe {
        wait_readable((*channel).fd);
        zero((verbs.rdma_get_cm_event)(channel, &raw mut event), "rdma_get_cm_event");
        let (kind, status, id) = ((*event).event, (*event).status, (*event).id);
        assert_eq!(kind, expected, "status {status}");
        zero((verbs.rdma_ack_cm_event)(event), "rdma_ack_cm_event");
        id
    }
}

fn wait_readable(fd: c_int) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as said.
    let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as c_int) };
    assert_eq!(ready, 1, "nothing within {PATIENCE:?}");
}

/// A pointer that is not null, else `errno` in words.
fn made<T>(object: *mut T) -> *mut T {
    assert!(!object.is_null(), "{}", io::Error::last_os_error());
    object
}

/// 0, else -1 with `errno`, or an `errno` value.
fn zero(result: c_int, call: &str) {
    match result {
        0 => {}
        -1 => panic!("{call}: {}", io::Error::last_os_error()),
        errno => panic!("{call}: {}", io::Error::from_raw_os_error(errno)),
    }
}
