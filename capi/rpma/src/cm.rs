//! Making connections: endpoints that listen, and requests of both directions.

use std::{
    env,
    ffi::{CStr, c_int, c_void},
    fs, mem,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    ptr,
    sync::{Arc, atomic::AtomicPtr},
    time::Duration,
};

use pmof_access::{
    AcceptOptions, CompletionQueue, ConnectOptions, Connection, ConnectionRequest, Location, Progress, QueueOptions,
    RegionSlice, Settings, SharedReceives, Transport, limits,
};
use pmof_locks::Mutex;

use crate::{
    argument::{Object, Out, Slot, Text},
    call::call,
    configuration::ConnCfg,
    connection::{AccessConn, Conn},
    context::{Peer, PeerShared, check_address, resolve},
    endpoint::AccessEp,
    error::Failure,
    handle::{Deletion, Handle, kind},
    limits::{LOSS_TIMEOUT, receives},
    memory::{MrLocal, slice},
    on::On,
    private_data::{PrivateData, REQUEST_BYTES, as_carried},
    queue::{Channel, Cq},
    settings::settings,
    shared::Srq,
    verbs,
};

/// Added to twice the requested send queue. Programs for librpma count requests of verbs, whose queues are longer than
/// requested, and treat a slot as free when its completion arrives; here the slot of an unsignalled completion is free when
/// a later completion is collected.
const SEND_QUEUE_MIN: u32 = 64;

/// The minimum time for the other host to answer: a packet may be lost and sent again.
const REACH_MIN: Duration = Duration::from_secs(3);

/// A program's address and port.
fn socket_address(host: &str, port: &str) -> Result<SocketAddr, Failure> {
    let number = port.parse().map_err(|_| Failure::provider(format!("{port:?} is not a port: write 0 to 65535")))?;
    resolve(host, number)
}

/// Where they are on the peer's transport.
pub(crate) fn location(peer: &PeerShared, host: &str, port: &str) -> Result<Location, Failure> {
    let address = socket_address(host, port)?;
    if peer.transport != Transport::Shm {
        return Ok(address.into());
    }
    // Its sockets would take any, but both sides are on this host.
    check_address(address.ip(), false)?;
    let directory = env::var_os("XDG_RUNTIME_DIR").map_or_else(
        // SAFETY: the call takes nothing.
        || env::temp_dir().join(format!("pmof-{}", unsafe { libc::getuid() })),
        |directory| PathBuf::from(directory).join("pmof"),
    );
    let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(&directory);
    made.map_err(|error| Failure::provider(format!("cannot make {}: {error}", directory.display())))?;
    Ok(directory.join(format!("rpma-{}-{}.sock", address.ip(), address.port())).as_path().into())
}

/// `rpma_ep`.
#[derive(Debug)]
pub struct Ep(On<AccessEp, verbs::Ep>);
kind!(Ep, 9, "rpma_ep", Ep::end_waits);

impl Ep {
    fn end_waits(&self) {
        if let On::Access(ep) = &self.0 {
            ep.end_waits();
        }
    }
}

/// Listens.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_ep_listen(peer: Object<Peer>, addr: Text, port: Text, made: Out<*mut Handle<Ep>>) -> c_int {
    call(c"rpma_ep_listen", || {
        let peer = peer.get()?;
        let (host, port) = (addr.as_str("addr")?, port.as_str("port")?);
        made.need("ep_ptr")?;
        let ep = match &peer.0 {
            On::Access(peer) => On::Access(AccessEp::listen(peer, host, port)?),
            On::Verbs(peer) => On::Verbs(verbs::Ep::listen(peer, socket_address(host, port)?)?),
        };
        made.put(Handle::create(Ep(ep)));
        Ok(())
    })
}

/// Stops listening; existing connections are kept.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_ep_shutdown(ep: Slot<Ep>) -> c_int {
    call(c"rpma_ep_shutdown", || ep.delete())
}

/// Returns a descriptor that is readable while a request waits. Setting it not to block has the next function not block.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_ep_get_fd(ep: Object<Ep>, fd: Out<c_int>) -> c_int {
    call(c"rpma_ep_get_fd", || {
        let ep = ep.get()?;
        fd.need("fd")?;
        let number = match &ep.0 {
            On::Access(ep) => ep.descriptor()?,
            On::Verbs(ep) => ep.descriptor(),
        };
        fd.put(number);
        Ok(())
    })
}

/// Takes the next connection request; waits for it, unless the descriptor was set not to block.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_ep_next_conn_req(
    ep: Object<Ep>,
    cfg: Object<ConnCfg>,
    made: Out<*mut Handle<ConnReq>>,
) -> c_int {
    call(c"rpma_ep_next_conn_req", || {
        let ep = ep.get()?;
        made.need("req_ptr")?;
        let deletion = ep.deletion();
        let next = |cfg: &ConnCfg, srq: Option<&Srq>| {
            let request = match &ep.0 {
                On::Access(ep) => On::Access(AccessConnReq::incoming(ep, Wants::of(cfg, srq)?, deletion)?),
                On::Verbs(ep) => On::Verbs(ep.next_request(&verbs_wants(cfg, srq)?, deletion)?),
            };
            Ok(ConnReq::new(request, srq))
        };
        let request = with_configuration(cfg, next)?;
        made.put(Handle::create(request));
        Ok(())
    })
}

/// Runs a function that starts a thread, such that the thread receives none of the program's signals.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: all zeros are a valid set, which the calls fill; the mask is this thread's own, and is put back.
    unsafe {
        let (mut all, mut before) = (mem::zeroed::<libc::sigset_t>(), mem::zeroed::<libc::sigset_t>());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        started
    }
}

/// The configuration when the request was created.
#[derive(Debug)]
struct Wants {
    timeout: Duration,
    sq_size: u32,
    rq_size: usize,
    has_receive_queue: bool,
    is_channel_shared: bool,
    srq: Option<WantedSrq>,
}

#[derive(Debug)]
struct WantedSrq {
    receives: SharedReceives,
    queue: Option<CompletionQueue>,
}

/// Gives `body` the configuration, or the defaults, and the shared receives that it names.
fn with_configuration<T>(
    cfg: Object<ConnCfg>,
    body: impl FnOnce(&ConnCfg, Option<&Srq>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let defaults = ConnCfg::default();
    let cfg = cfg.get_if_any()?;
    let cfg = cfg.as_deref().unwrap_or(&defaults);
    let srq = cfg.srq().get_if_any()?;
    let srq = srq.as_deref();
    if cfg.is_channel_shared() && srq.is_some_and(Srq::has_queue) {
        return Err(Failure::invalid(
            "a shared completion channel and a shared receive queue with a completion queue of its own exclude each other",
        ));
    }
    body(cfg, srq)
}

impl Wants {
    fn of(cfg: &ConnCfg, srq: Option<&Srq>) -> Result<Self, Failure> {
        let srq = srq.map(|srq| srq.on.access()).transpose()?;
        Ok(Self {
            timeout: cfg.timeout(),
            sq_size: cfg.sq_size(),
            rq_size: cfg.rq_size() as usize,
            has_receive_queue: cfg.rcq_size() > 0,
            is_channel_shared: cfg.is_channel_shared(),
            srq: srq.map(|srq| WantedSrq { receives: srq.receives.clone(), queue: srq.queue.clone() }),
        })
    }
}

fn verbs_wants(cfg: &ConnCfg, srq: Option<&Srq>) -> Result<verbs::Wants, Failure> {
    Ok(verbs::Wants {
        timeout: cfg.timeout(),
        cq_size: cfg.cq_size(),
        rcq_size: cfg.rcq_size(),
        sq_size: cfg.sq_size(),
        rq_size: cfg.rq_size(),
        is_channel_shared: cfg.is_channel_shared(),
        shared: srq.map(|srq| srq.on.verbs().map(verbs::Srq::receives)).transpose()?,
    })
}

/// The limits of this side; `send_queue`: operations that the application wants to post.
pub(crate) fn own_settings(send_queue: u32) -> Settings {
    Settings {
        message_max_bytes: limits::MESSAGE_LIMIT_BYTES,
        // A target does not know the requested size yet.
        send_queue: if send_queue == 0 {
            limits::SEND_QUEUE_LIMIT
        } else {
            send_queue.saturating_mul(2).saturating_add(SEND_QUEUE_MIN)
        },
        ..Settings::default()
    }
}

/// The queues of one connection, on pmof's side and on the application's.
#[derive(Debug)]
struct Queues {
    queue: CompletionQueue,
    receive_queue: Option<CompletionQueue>,
    shared_receives: Option<SharedReceives>,
    channel: Option<Arc<Channel>>,
    cq: Cq,
    /// A receive queue that belongs to the connection.
    own_rcq: Option<Cq>,
}

impl Queues {
    fn make(peer: &PeerShared, wants: &Wants) -> Result<Self, Failure> {
        let options = QueueOptions::default().progress(Progress::Assisted);
        let queue = without_signals(|| peer.peer.completion_queue(options))?;
        let shared_queue = wants.srq.as_ref().and_then(|srq| srq.queue.clone());
        let is_separate = wants.has_receive_queue && shared_queue.is_none();
        let beacons = &peer.beacons;
        let channel = wants.is_channel_shared.then(|| Channel::new(queue.clone(), is_separate, beacons));
        let (cq, receive_queue, own_rcq) = match &channel {
            Some(channel) => (Cq::of_channel(channel, false), None, is_separate.then(|| Cq::of_channel(channel, true))),
            None if is_separate => {
                let receives = peer.peer.completion_queue(receives())?;
                (Cq::own(queue.clone(), beacons), Some(receives.clone()), Some(Cq::own(receives, beacons)))
            }
            None => (Cq::own(queue.clone(), beacons), shared_queue, None),
        };
        let shared_receives = wants.srq.as_ref().map(|srq| srq.receives.clone());
        Ok(Self { queue, receive_queue, shared_receives, channel, cq, own_rcq })
    }

    /// The connection, its queue of operations, and that of its receives.
    /// `private_data`: what is known of the other side's; empty where it comes with the answer.
    fn into_connection(
        self,
        connection: Connection,
        peer: &Arc<PeerShared>,
        private_data: Vec<u8>,
    ) -> (AccessConn, Cq, Option<Cq>) {
        let Self { cq, own_rcq, channel, .. } = self;
        let connection = Arc::new(connection);
        for queue in [Some(&cq), own_rcq.as_ref()].into_iter().flatten() {
            queue.set_connection(Arc::downgrade(&connection));
        }
        (AccessConn::new(connection, Arc::clone(peer), channel, private_data), cq, own_rcq)
    }
}

/// `rpma_conn_req`: a request to or from the other side.
#[derive(Debug)]
pub struct ConnReq {
    on: On<AccessConnReq, verbs::ConnReq>,
    /// The queue of its shared receives, if these have one.
    shared_rcq: AtomicPtr<Handle<Cq>>,
}
kind!(ConnReq, 10, "rpma_conn_req");

impl ConnReq {
    fn new(on: On<AccessConnReq, verbs::ConnReq>, srq: Option<&Srq>) -> Self {
        Self { on, shared_rcq: AtomicPtr::new(srq.map_or(ptr::null_mut(), Srq::rcq)) }
    }

    fn connect(self, private_data: Vec<u8>) -> Result<Conn, Failure> {
        let (on, cq, own_rcq) = match self.on {
            On::Access(request) => {
                let (conn, cq, own_rcq) = request.connect(private_data)?;
                (On::Access(conn), cq, own_rcq)
            }
            On::Verbs(request) => {
                let conn = request.connect(&private_data)?;
                let (cq, own_rcq) = conn.queues();
                (On::Verbs(conn), Cq::of_verbs(cq), own_rcq.map(Cq::of_verbs))
            }
        };
        Ok(Conn::new(on, cq, own_rcq, self.shared_rcq.into_inner()))
    }
}

/// One on a connection of pmof.
#[derive(Debug)]
struct AccessConnReq {
    peer: Arc<PeerShared>,
    wants: Wants,
    way: Way,
    private_data: Vec<u8>,
    queues: Queues,
    /// Receives to post before anything can arrive.
    receives: Mutex<Vec<(RegionSlice, u64)>>,
}

#[derive(Debug)]
enum Way {
    Out(Location),
    In(Mutex<Option<ConnectionRequest>>),
}

impl AccessConnReq {
    fn new(peer: Arc<PeerShared>, wants: Wants, way: Way, private_data: Vec<u8>) -> Result<Self, Failure> {
        let queues = Queues::make(&peer, &wants)?;
        Ok(Self { peer, wants, way, private_data, queues, receives: Mutex::default() })
    }

    fn incoming(endpoint: &AccessEp, wants: Wants, deletion: Deletion<'_>) -> Result<Self, Failure> {
        let request = endpoint.next_request(deletion)?;
        let private_data = as_carried(request.private_data(), REQUEST_BYTES);
        Self::new(Arc::clone(endpoint.peer()), wants, Way::In(Mutex::new(Some(request))), private_data)
    }

    fn connect(self, private_data: Vec<u8>) -> Result<(AccessConn, Cq, Option<Cq>), Failure> {
        let queues = self.queues;
        let connection = match self.way {
            Way::In(request) => {
                let request = request.into_inner();
                let request = request.ok_or_else(|| Failure::provider("the request is gone"))?;
                let options = AcceptOptions::default()
                    .private_data(private_data)
                    .loss_timeout(LOSS_TIMEOUT)
                    .receive_queue(queues.receive_queue.clone())
                    .shared_receives(queues.shared_receives.clone())
                    .receive_limit(self.wants.rq_size);
                request.accept(&queues.queue, &options)?
            }
            Way::Out(address) => {
                let options = ConnectOptions::default()
                    .private_data(private_data)
                    .loss_timeout(LOSS_TIMEOUT)
                    .settings(own_settings(self.wants.sq_size))
                    .receive_queue(queues.receive_queue.clone())
                    .shared_receives(queues.shared_receives.clone())
                    .receive_limit(self.wants.rq_size)
                    .trust_host(settings().trusts_host)
                    .timeout(self.wants.timeout.max(REACH_MIN));
                self.peer.peer.start_connect(address, &queues.queue, &options)?.without_waiting()
            }
        };
        for (into, context) in self.receives.into_inner() {
            connection.early_receive(into, context)?;
        }
        Ok(queues.into_connection(connection, &self.peer, self.private_data))
    }
}

/// Creates a request to connect.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_req_new(
    peer: Object<Peer>,
    addr: Text,
    port: Text,
    cfg: Object<ConnCfg>,
    made: Out<*mut Handle<ConnReq>>,
) -> c_int {
    call(c"rpma_conn_req_new", || {
        let peer = peer.get()?;
        let (host, port) = (addr.as_str("addr")?, port.as_str("port")?);
        made.need("req_ptr")?;
        let request = |cfg: &ConnCfg, srq: Option<&Srq>| {
            let request = match &peer.0 {
                On::Access(peer) => {
                    let way = Way::Out(location(peer, host, port)?);
                    On::Access(AccessConnReq::new(Arc::clone(peer), Wants::of(cfg, srq)?, way, Vec::new())?)
                }
                On::Verbs(peer) => {
                    let wants = verbs_wants(cfg, srq)?;
                    On::Verbs(verbs::ConnReq::to(peer, socket_address(host, port)?, &wants)?)
                }
            };
            Ok(ConnReq::new(request, srq))
        };
        let request = with_configuration(cfg, request)?;
        made.put(Handle::create(request));
        Ok(())
    })
}

/// Deletes a request; one of the other side is rejected.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_req_delete(request: Slot<ConnReq>) -> c_int {
    call(c"rpma_conn_req_delete", || {
        if let Some(ConnReq { on: On::Verbs(request), .. }) = request.take()? {
            request.reject();
        }
        Ok(())
    })
}

/// Connects, or accepts the other side's request; the request is consumed in any case.
///
/// # Safety
///
/// `request` is null or points at null or at a request that no other call uses; `data` is null or valid private data; `made` is
/// null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_conn_req_connect(
    request: Slot<ConnReq>,
    data: *const PrivateData,
    made: Out<*mut Handle<Conn>>,
) -> c_int {
    call(c"rpma_conn_req_connect", || {
        let request = request.take()?.ok_or_else(|| Failure::invalid("*req_ptr is NULL"))?;
        made.need("conn_ptr")?;
        // SAFETY: null or private data of the application's, which stays during the call, by the contract of this function.
        let private_data = unsafe { PrivateData::read(data) }?;
        let connection = request.connect(private_data)?;
        made.put(Handle::create(connection));
        Ok(())
    })
}

/// Posts a receive before the first message can arrive.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_req_recv(
    request: Object<ConnReq>,
    dst: Object<MrLocal>,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_conn_req_recv", || {
        let request = request.get()?;
        if dst.is_null() {
            return Err(Failure::invalid("dst is NULL"));
        }
        let request = match &request.on {
            On::Access(request) => request,
            On::Verbs(request) => {
                let dst = dst.get()?;
                return request.receive(dst.verbs()?, offset, len, op_context);
            }
        };
        if request.wants.srq.is_some() {
            return Err(Failure::invalid("the connection takes its receives from a shared queue: post it there"));
        }
        let into = slice(&request.peer, dst, offset, len)?;
        let mut receives = request.receives.lock();
        receives.push((into, op_context.addr() as u64));
        Ok(())
    })
}

/// Returns the private data that the other side's program sent with its request. The bytes stay until the request is consumed.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_req_get_private_data(request: Object<ConnReq>, data: Out<PrivateData>) -> c_int {
    const NAME: &CStr = c"rpma_conn_req_get_private_data";
    call(NAME, || {
        let request = request.get()?;
        data.need("pdata")?;
        let bytes = match &request.on {
            On::Access(request) => &request.private_data,
            On::Verbs(request) => request.private_data(),
        };
        data.put(PrivateData::of(bytes));
        Ok(())
    })
}
