//! A peer: the local opening of one transport.

use std::{ffi::c_void, io, net::IpAddr, sync::Arc, time::Duration};

use pmof_mem::{Medium, Memory, check_bounds};
use pmof_proto::{Access, Endpoint, RegionTable, Scope, Settings, limits};
use pmof_verbs::DeviceInfo;

use crate::{
    Address, CompletionQueue, ConnectError, Connection, ListenOptions, Listener, Location, Method, QueueOptions,
    Region, RegisterError, RemoteRegion, SetupError, SharedReceives, Transport,
    clock::Clock,
    driver::next_link_id,
    link::{Link, LinkList},
    listener::check_private_data,
    region::Reach,
    ring::{AppendRing, Hex, Layout, RingError},
    shm::{self, Shares, ShmWire},
    short::add_nowhere,
    sim::SimNetwork,
    verbs::{ConnectFailure, DeviceChoice, Opened, VerbsOptions, VerbsWire},
    wire::{Wire, tcp::TcpWire},
};

/// Default time without an answer that is due, after which a connection counts as lost: longer than a slow disk's flush.
pub const DEFAULT_LOSS_TIMEOUT: Duration = Duration::from_secs(10);

/// Default time for a connection to stand.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What goes with a connection request.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// For the other side's application, at most [`limits::CONNECT_PRIVATE_MAX_BYTES`].
    pub private_data: Vec<u8>,
    /// Time for the connection to stand.
    pub timeout: Duration,
    /// Time without an answer that is due, after which the connection counts as lost.
    pub loss_timeout: Duration,
    /// What this side wants and takes.
    pub settings: Settings,
    /// The only method of flush to use; else the cheapest that reaches the level asked for.
    pub method: Option<Method>,
    /// The local address to come from, where routing does not decide it. Verbs only.
    pub source: Option<IpAddr>,
    /// The target's ring that [`Connection::append`] appends to: what [`AppendRing::descriptor`](crate::AppendRing::descriptor)
    /// says. Verbs only.
    pub append_to: Option<RemoteRegion>,
    /// Where outcomes of receives go, if not to the queue of the connection. Whoever polls or waits on either of the two
    /// drives the connection.
    pub receive_queue: Option<CompletionQueue>,
    /// Where messages find their receives, if the connection has none of its own.
    pub shared_receives: Option<SharedReceives>,
    /// Receives that may be posted and wait for a message, where they are the connection's own: 1 to
    /// [`limits::RECEIVE_QUEUE_LIMIT`].
    pub receive_limit: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            timeout: DEFAULT_CONNECT_TIMEOUT,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
            settings: Settings::default(),
            method: None,
            source: None,
            append_to: None,
            receive_queue: None,
            shared_receives: None,
            receive_limit: limits::RECEIVE_QUEUE_LIMIT,
        }
    }
}

/// What a ring grants: its bytes are the business of the device that receives into it.
const RING_ACCESS: Access = Access::READ.union(Access::FLUSH_VISIBLE).union(Access::FLUSH_PERSISTENT);

/// The local opening of one transport: owns the regions that its connections share. Handles are cheap to clone.
#[derive(Clone, Debug)]
pub struct Peer {
    shared: Arc<PeerShared>,
}

#[derive(Debug)]
pub(crate) struct PeerShared {
    pub(crate) regions: Arc<RegionTable>,
    pub(crate) links: Arc<LinkList>,
    opening: Opening,
}

#[derive(Debug)]
enum Opening {
    Tcp,
    Shm(Arc<Shares>),
    Sim(Arc<SimNetwork>),
    Verbs(Arc<Opened>),
}

impl Peer {
    /// Opens a transport: for verbs the only RDMA device of this machine.
    pub fn open(transport: Transport) -> Result<Self, SetupError> {
        match transport {
            Transport::Tcp => Ok(Self::new(Opening::Tcp)),
            Transport::Shm => Ok(Self::new(Opening::Shm(Arc::default()))),
            Transport::Verbs => Self::open_verbs(&VerbsOptions::default()),
        }
    }

    /// Opens an RDMA device.
    pub fn open_verbs(options: &VerbsOptions) -> Result<Self, SetupError> {
        Ok(Self::new(Opening::Verbs(Opened::open(options)?)))
    }

    /// Opens what leads to a target: for verbs the device that the network's routes name, coming from `source`, if given.
    pub fn towards(address: &Address, source: Option<IpAddr>) -> Result<Self, ConnectError> {
        if address.transport != Transport::Verbs {
            return Ok(Self::open(address.transport)?);
        }
        let resolve = |source| ConnectError::Resolve { host: address.place.host(), source };
        let targets = address.resolve().map_err(resolve)?;
        let mut last = resolve(io::ErrorKind::NotFound.into());
        for target in targets.iter().filter_map(Location::socket_address) {
            let device = DeviceChoice::Towards { target, source };
            match Self::open_verbs(&VerbsOptions { device, ..VerbsOptions::default() }) {
                Ok(peer) => return Ok(peer),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    /// Opens a simulated network.
    pub fn simulated(network: &Arc<SimNetwork>) -> Self {
        Self::new(Opening::Sim(Arc::clone(network)))
    }

    fn new(opening: Opening) -> Self {
        let regions = Arc::default();
        add_nowhere(&regions);
        Self { shared: Arc::new(PeerShared { regions, links: Arc::default(), opening }) }
    }

    /// The transport; `None` for a simulated network.
    pub fn transport(&self) -> Option<Transport> {
        match &self.shared.opening {
            Opening::Tcp => Some(Transport::Tcp),
            Opening::Shm(_) => Some(Transport::Shm),
            Opening::Sim(_) => None,
            Opening::Verbs(_) => Some(Transport::Verbs),
        }
    }

    /// The name of the RDMA device, where there is one.
    pub fn device_name(&self) -> Option<&str> {
        match &self.shared.opening {
            Opening::Verbs(opened) => Some(opened.device_name()),
            _ => None,
        }
    }

    /// What the RDMA device can do, where there is one.
    pub fn device_info(&self) -> Option<&DeviceInfo> {
        match &self.shared.opening {
            Opening::Verbs(opened) => Some(opened.device_info()),
            _ => None,
        }
    }

    /// The device's `ibv_context`, where there is a device: for programs that ask libibverbs themselves. It stays open as long
    /// as the peer or anything made from it lives.
    pub fn device_context(&self) -> Option<*mut c_void> {
        match &self.shared.opening {
            Opening::Verbs(opened) => Some(opened.device_context()),
            _ => None,
        }
    }

    /// Makes a queue for the connections of this peer.
    pub fn completion_queue(&self, options: QueueOptions) -> Result<CompletionQueue, SetupError> {
        let clock = match &self.shared.opening {
            Opening::Sim(network) => Clock::Virtual(Arc::clone(network)),
            _ => Clock::real(),
        };
        CompletionQueue::new(&clock, options)
    }

    /// Makes a queue of receives that connections share, of at most `limit` receives that no message took yet.
    pub fn shared_receive_queue(&self, limit: usize) -> SharedReceives {
        SharedReceives::new(limit)
    }

    /// Registers `len_bytes` bytes at `offset` of `memory`, shared by all connections of this peer: whoever learns the
    /// descriptor over one of them may use the region on each. `access` is what the other sides may do. Where one other side
    /// alone is meant, see [`register_for`](Self::register_for).
    ///
    /// Over verbs the device reaches the region directly where it can; where the memory does not allow that (a file of the
    /// page cache; fsdax without on-demand paging), operations become messages that the target's CPU carries out, and
    /// [`Region::why_not_direct`] says why. Over shm the other sides map what has a file: all of the file or device that the
    /// region is a part of, since the descriptor cannot be narrowed; private anonymous memory is reached by messages.
    pub fn register(
        &self,
        memory: Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        self.register_scoped(memory, (offset, len_bytes), (access, Scope::Peer))
    }

    /// Registers as [`register`](Self::register) does, for what comes over `connection`, which must be one of this peer, and
    /// for nothing else: on other connections the key is unknown, for messages and for the mappings of shm alike, whoever
    /// knows it. What a device of verbs carries out by itself it checks by its own key, which holds for every connection of the
    /// peer; see the safety model in `docs/design.md`.
    pub fn register_for(
        &self,
        connection: &Connection,
        memory: Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        self.register_scoped(memory, (offset, len_bytes), (access, Scope::Connection(connection.id().number())))
    }

    fn register_scoped(
        &self,
        memory: Arc<dyn Medium>,
        (offset, len_bytes): (u64, u64),
        (access, scope): (Access, Scope),
    ) -> Result<Region, RegisterError> {
        check_bounds(offset, len_bytes, memory.len_bytes())?;
        let reach = match &self.shared.opening {
            Opening::Verbs(opened) => Reach::Device(Box::new(opened.register(&memory, offset, len_bytes, access)?)),
            Opening::Shm(shares) => Reach::Shared(Arc::clone(shares)),
            Opening::Tcp | Opening::Sim(_) => Reach::None,
        };
        let PeerShared { regions, links, .. } = &*self.shared;
        Region::register((regions, links), memory, (offset, len_bytes), (access, scope), reach)
    }

    /// Allocates and registers zeroed anonymous memory; over shm it is shared, so that others can map it, and takes a file
    /// descriptor.
    pub fn allocate(&self, len_bytes: u64, access: Access) -> Result<Region, RegisterError> {
        let memory = match &self.shared.opening {
            Opening::Shm(_) => shm::allocate(len_bytes, access)?,
            _ => Memory::anonymous(len_bytes)?,
        };
        self.register(Arc::new(memory), 0, len_bytes, access)
    }

    /// The device, where rings are to be had: over iWARP they are not.
    fn opened_with_rings(&self) -> Option<&Arc<Opened>> {
        match &self.shared.opening {
            Opening::Verbs(opened) if opened.has_rings() => Some(opened),
            _ => None,
        }
    }

    /// Makes a ring that other hosts append to in `len_bytes` bytes at `offset` (a multiple of 4096) of `memory`, whose first
    /// 8 bytes there are zero: 4096 bytes of header, and 32 to 16,384 slots of 8 KiB. Over verbs only. It is durable on
    /// return, as far as the medium goes.
    pub fn create_ring(&self, memory: Arc<dyn Medium>, offset: u64, len_bytes: u64) -> Result<AppendRing, RingError> {
        let opened = self.opened_with_rings().ok_or(RingError::NotVerbs)?;
        let mut identity = [0; 16];
        getrandom::fill(&mut identity)
            .map_err(|error| RingError::Random { source: io::Error::other(error.to_string()) })?;
        opened.offer((identity, Layout::slots_in(len_bytes)), || {
            let region = self.register(Arc::clone(&memory), offset, len_bytes, RING_ACCESS)?;
            AppendRing::over(Layout::create(memory, offset, len_bytes, identity)?, region)
        })
    }

    /// Opens the ring that lies there, with the records that were not consumed; `identity` is the one that it has to have,
    /// if that is known. At most one process has it open: whoever shares the memory sees to that.
    pub fn open_ring(
        &self,
        memory: Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        identity: Option<[u8; 16]>,
    ) -> Result<AppendRing, RingError> {
        let opened = self.opened_with_rings().ok_or(RingError::NotVerbs)?;
        let layout = Layout::open(Arc::clone(&memory), offset, len_bytes)?;
        let found = layout.identity();
        if let Some(expected) = identity.filter(|expected| *expected != found) {
            return Err(RingError::OtherRing { found: Hex(found), expected: Hex(expected) });
        }
        opened.offer((found, layout.slots()), || {
            AppendRing::over(layout, self.register(memory, offset, len_bytes, RING_ACCESS)?)
        })
    }

    /// Listens; port 0 picks a free one. Addresses that other machines reach need
    /// [`ListenOptions::trust_network`].
    pub fn listen(&self, address: impl Into<Location>, options: ListenOptions) -> Result<Listener, SetupError> {
        let shared = Arc::clone(&self.shared);
        let address = address.into();
        match (&self.shared.opening, &address) {
            (Opening::Tcp, Location::Ip(address)) => Listener::tcp(shared, *address, options),
            (Opening::Shm(offered), Location::Path(path)) => Listener::shm(shared, offered, path, options),
            (Opening::Sim(network), Location::Ip(address)) => Listener::sim(shared, network, address.port(), options),
            (Opening::Verbs(opened), Location::Ip(address)) => Listener::verbs(shared, opened, *address, options),
            _ => Err(self.wrong_address(address)),
        }
    }

    /// Connects to a target and waits until the connection stands, at most the options' timeout for all addresses of
    /// the host together.
    pub fn connect(
        &self,
        to: &Address,
        queue: &CompletionQueue,
        options: &ConnectOptions,
    ) -> Result<Connection, ConnectError> {
        let resolve = |source| ConnectError::Resolve { host: to.place.host(), source };
        let mut last = Err(resolve(io::ErrorKind::NotFound.into()));
        let deadline = queue.shared.driver.now().saturating_add(options.timeout);
        for address in to.resolve().map_err(resolve)? {
            let timeout = deadline.saturating_sub(queue.shared.driver.now());
            let options = ConnectOptions { timeout, ..options.clone() };
            last = self.start_connect(address, queue, &options).and_then(PendingConnection::finish);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Starts to connect without waiting.
    pub fn start_connect(
        &self,
        address: impl Into<Location>,
        queue: &CompletionQueue,
        options: &ConnectOptions,
    ) -> Result<PendingConnection, ConnectError> {
        let address = address.into();
        check_private_data(&options.private_data, limits::CONNECT_PRIVATE_MAX_BYTES)?;
        let wire = self.start_wire(&address, options)?;
        let endpoint = Endpoint::initiator(options.settings, Arc::clone(&self.shared.regions), &options.private_data);
        let peer_address = address.socket_address();
        let link = Link::new(next_link_id(), endpoint, wire, options.loss_timeout, peer_address);
        self.shared.links.add(&link);
        let mut core = link.lock();
        core.force_method(options.method);
        core.endpoint.limit_receives(options.receive_limit);
        drop(core);
        let receive_queue = options.receive_queue.as_ref();
        queue.attach(&link, receive_queue, options.shared_receives.as_ref())?;
        queue.take_over(&link, receive_queue)?;
        // Where connecting is quick, the request is on its way before anyone waits for its answer.
        link.lock().drive(|| queue.shared.driver.now());
        let connection = Connection::requested(link, queue.clone(), receive_queue.cloned(), address);
        Ok(PendingConnection { connection, timeout: options.timeout })
    }

    fn start_wire(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        if options.append_to.is_some() && self.opened_with_rings().is_none() {
            return Err(ConnectError::NoRings);
        }
        let unreachable = |error: io::Error| unreachable(address, &error);
        Ok(match (&self.shared.opening, address) {
            (Opening::Tcp, Location::Ip(address)) => {
                // A host that does not answer at all is given up in time; once the connection stands the other limit holds.
                let wire = TcpWire::connect(*address, options.timeout.min(options.loss_timeout));
                Box::new(wire.map_err(|errno| unreachable(errno.into()))?)
            }
            (Opening::Shm(shares), Location::Path(path)) => {
                Box::new(ShmWire::connect(path, Arc::clone(shares)).map_err(unreachable)?)
            }
            (Opening::Sim(network), Location::Ip(address)) => {
                Box::new(network.connect(address.port()).map_err(unreachable)?)
            }
            (Opening::Verbs(opened), Location::Ip(address)) => {
                let send_queue = options.settings.send_queue.clamp(1, limits::SEND_QUEUE_LIMIT);
                let append_to = options.append_to.map(|ring| ring.key().0);
                let (source, loss_timeout) = (options.source, options.loss_timeout);
                let wire = VerbsWire::connecting(opened, *address, source, append_to, send_queue, loss_timeout);
                Box::new(wire.map_err(|failure| match failure {
                    ConnectFailure::Network(error) => unreachable(error),
                    ConnectFailure::Setup(error) => error.into(),
                })?)
            }
            _ => return Err(self.wrong_address(address.clone()).into()),
        })
    }

    fn wrong_address(&self, address: Location) -> SetupError {
        SetupError::WrongAddress { address, transport: self.transport().unwrap_or(Transport::Tcp) }
    }
}

/// A connection whose handshake is under way.
#[derive(Debug)]
pub struct PendingConnection {
    connection: Connection,
    timeout: Duration,
}

impl PendingConnection {
    /// Waits for the handshake's end, at most the timeout that was given when connecting.
    pub fn finish(self) -> Result<Connection, ConnectError> {
        match self.connection.wait_established(self.timeout) {
            Some(Ok(())) => Ok(self.connection),
            None => {
                let address = self.connection.requested_address();
                Err(ConnectError::TimedOut { address, timeout_ms: self.timeout.as_millis() as u64 })
            }
            Some(Err(why)) => Err(self.connection.why_not_established(why)),
        }
    }

    /// The connection as it is: its first [event](Connection::next_event) tells that it stands, or that it was lost. Over TCP the
    /// timeout given when connecting bounds how long the other host may be silent; for the rest the loss timeout holds.
    pub fn without_waiting(self) -> Connection {
        self.connection
    }
}

pub(crate) fn unreachable(address: &Location, error: &io::Error) -> ConnectError {
    ConnectError::Unreachable { address: address.to_string(), why: error.to_string(), kind: error.kind() }
}
