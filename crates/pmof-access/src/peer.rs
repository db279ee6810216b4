//! A peer: the local opening of one transport.

use std::{
    ffi::c_void,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use pmof_mem::{Medium, causes, check_bounds, forks::Own};
use pmof_proto::{Access, Endpoint, RegionTable, Scope, limits};

use crate::{
    Address, CompletionQueue, ConnectError, ConnectOptions, Connection, DeviceChoice, ListenOptions, Listener,
    LocalEnd, Location, QueueOptions, Region, RegisterError, SetupError, SharedReceives, Transport, VerbsOptions,
    attempts::Attempts,
    driver::next_link_id,
    link::{Link, LinkList},
    listener::{check_private_data, check_reach},
    queue::QueuesShared,
    ring::{AppendRing, Hex, Layout, RingError},
    short::add_nowhere,
    sim::{Sim, SimNetwork},
    transport::{self, Opening, Rings},
    wire::{Wire, unmade::UnmadeWire},
};

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
    pub(crate) opening: Own<Arc<dyn Opening>>,
    queues: QueuesShared,
}

/// A port for looking up routes.
const DISCARD_PORT: u16 = 9;

impl Peer {
    /// Opens a transport: for verbs the only RDMA device of this machine.
    ///
    /// # Errors
    /// [`SetupError::NotBuilt`] where this crate was built without the feature of the transport.
    pub fn open(transport: Transport) -> Result<Self, SetupError> {
        Ok(Self::over(transport::open(transport, None)?))
    }

    /// Opens an RDMA device.
    ///
    /// # Errors
    /// [`SetupError::NotBuilt`] where this crate was built without the feature `verbs`.
    pub fn open_verbs(options: &VerbsOptions) -> Result<Self, SetupError> {
        Ok(Self::over(transport::open_verbs(options)?))
    }

    /// Opens a transport at an address of this machine: for verbs the RDMA device that has it, for libfabric the domain that has it,
    /// with addresses of its family.
    ///
    /// # Errors
    /// As [`open`](Self::open); an address that no device has.
    pub fn open_at(transport: Transport, local: IpAddr) -> Result<Self, SetupError> {
        Ok(Self::over(transport::open(transport, Some(local))?))
    }

    /// Opens what leads to a target: for verbs the device, and for libfabric the domain, that the network's routes name, coming from
    /// `source`, if given. Of a name's addresses libfabric takes those of IPv4, where there are some.
    pub fn towards(address: &Address, source: Option<IpAddr>) -> Result<Self, ConnectError> {
        let resolve = |source| ConnectError::Resolve { host: address.place.host(), source };
        match address.transport.descriptor().local_end {
            LocalEnd::Device => {}
            LocalEnd::Domain => {
                let targets = address.resolve().map_err(resolve)?;
                let mut targets: Vec<_> = targets.iter().filter_map(Location::socket_address).collect();
                targets.sort_by_key(SocketAddr::is_ipv6);
                let local = source.or_else(|| targets.into_iter().find_map(route_to));
                let opened = local.map(|local| Self::open_at(address.transport, local));
                return Ok(opened.unwrap_or_else(|| Self::open(address.transport))?);
            }
            LocalEnd::Path | LocalEnd::Any | LocalEnd::Bound => return Ok(Self::open(address.transport)?),
        }
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
        Self::over(Arc::new(Sim(Arc::clone(network))))
    }

    fn over(opening: Arc<dyn Opening>) -> Self {
        let regions = Arc::default();
        add_nowhere(&regions);
        let (opening, queues) = (Own::new(opening), QueuesShared::default());
        Self { shared: Arc::new(PeerShared { regions, links: Arc::default(), opening, queues }) }
    }

    pub(crate) fn opening(&self) -> &dyn Opening {
        &**self.shared.opening
    }

    /// The transport; `None` for a simulated network.
    pub fn transport(&self) -> Option<Transport> {
        self.opening().transport()
    }

    /// The address of this machine that libfabric's domain was opened at ([`open_at`](Self::open_at), [`towards`](Self::towards));
    /// `None` over other transports.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.opening().local()
    }

    /// The name of the RDMA device, where there is one.
    pub fn device_name(&self) -> Option<&str> {
        Some(self.opening().device()?.name())
    }

    /// The device's `ibv_context`, where there is a device: for programs that ask libibverbs themselves. It stays open as long
    /// as the peer or anything made from it lives.
    pub fn device_context(&self) -> Option<*mut c_void> {
        Some(self.opening().device()?.context())
    }

    /// Makes a queue for the connections of this peer.
    pub fn completion_queue(&self, options: QueueOptions) -> Result<CompletionQueue, SetupError> {
        self.shared.check_process()?;
        CompletionQueue::new(&self.opening().clock(), options, &self.shared.queues)
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
        self.check_registers()?;
        check_bounds(offset, len_bytes, memory.len_bytes())?;
        let reach = self.opening().reach(&memory, (offset, len_bytes), access)?;
        let PeerShared { regions, links, .. } = &*self.shared;
        Region::register((regions, links.clone()), memory, (offset, len_bytes), (access, scope), reach)
    }

    /// Allocates and registers zeroed anonymous memory; over shm it is shared, so that others can map it, and takes a file
    /// descriptor.
    pub fn allocate(&self, len_bytes: u64, access: Access) -> Result<Region, RegisterError> {
        self.check_registers()?;
        let memory = self.opening().allocate(len_bytes, access)?;
        self.register(Arc::new(memory), 0, len_bytes, access)
    }

    fn check_registers(&self) -> Result<(), RegisterError> {
        self.shared.check_process().map_err(|_| RegisterError::Forked)
    }

    /// What keeps its rings, where they are to be had: over iWARP they are not.
    fn rings(&self) -> Result<&dyn Rings, RingError> {
        self.check_registers()?;
        self.opening().rings().ok_or(RingError::NotVerbs)
    }

    /// Makes a ring that other hosts append to in `len_bytes` bytes at `offset` (a multiple of 4096) of `memory`, whose first
    /// 8 bytes there are zero: 4096 bytes of header, and 32 to 16,384 slots of 8 KiB. Over verbs only. It is durable on
    /// return, as far as the medium goes.
    pub fn create_ring(&self, memory: Arc<dyn Medium>, offset: u64, len_bytes: u64) -> Result<AppendRing, RingError> {
        let rings = self.rings()?;
        let mut identity = [0; 16];
        getrandom::fill(&mut identity)
            .map_err(|error| RingError::Random { source: io::Error::other(causes(&error).to_string()) })?;
        let make = || {
            let region = self.register(Arc::clone(&memory), offset, len_bytes, RING_ACCESS)?;
            AppendRing::over(Layout::create(memory, offset, len_bytes, identity)?, region)
        };
        rings.offer((identity, Layout::slots_in(len_bytes)), Box::new(make))
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
        let rings = self.rings()?;
        let layout = Layout::open(Arc::clone(&memory), offset, len_bytes)?;
        let found = layout.identity();
        if let Some(expected) = identity.filter(|expected| *expected != found) {
            return Err(RingError::OtherRing { found: Hex(found), expected: Hex(expected) });
        }
        let slots = layout.slots();
        let make = || AppendRing::over(layout, self.register(memory, offset, len_bytes, RING_ACCESS)?);
        rings.offer((found, slots), Box::new(make))
    }

    /// Listens; port 0 picks a free one. Addresses that other machines reach need
    /// [`ListenOptions::trust_network`].
    pub fn listen(&self, address: impl Into<Location>, options: ListenOptions) -> Result<Listener, SetupError> {
        self.shared.check_process()?;
        let address = address.into();
        if let (Location::Ip(address), true) = (&address, self.opening().is_networked()) {
            check_reach(*address, options)?;
        }
        Listener::over(Arc::clone(&self.shared), self.opening().listen(&address)?, options)
    }

    /// Connects to a target and waits until the connection is established, at most the options' timeout for all addresses of
    /// the host together. Where a name has several, each attempt begins a quarter of a second after the one before, or when that has failed, and
    /// the first that is established is taken (RFC 8305).
    pub fn connect(
        &self,
        to: &Address,
        queue: &CompletionQueue,
        options: &ConnectOptions,
    ) -> Result<Connection, ConnectError> {
        self.shared.check_process()?;
        let resolve = |source| ConnectError::Resolve { host: to.place.host(), source };
        let found = to.resolve().map_err(resolve)?;
        Attempts::new(self, queue, options).first_of(&to.place.host(), found)
    }

    /// Starts to connect without waiting. An address that cannot be reached is no error here: that is how the connection ends.
    pub fn start_connect(
        &self,
        address: impl Into<Location>,
        queue: &CompletionQueue,
        options: &ConnectOptions,
    ) -> Result<PendingConnection, ConnectError> {
        self.shared.check_process()?;
        let address = address.into();
        check_private_data(&options.private_data, limits::CONNECT_PRIVATE_MAX_BYTES)?;
        let (wire, unreachable) = match self.start_wire(&address, options) {
            // Some transports know at once what others learn later.
            Err(ConnectError::Unreachable { why, kind, .. }) => {
                let name = self.transport().map_or("a simulated network", Transport::scheme);
                (Box::new(UnmadeWire { name }) as Box<dyn Wire>, Some(io::Error::new(kind, why)))
            }
            started => (started?, None),
        };
        let endpoint = Endpoint::initiator(options.settings, Arc::clone(&self.shared.regions), &options.private_data);
        let peer_address = address.socket_address();
        let link = Link::new(next_link_id(), endpoint, wire, options.loss_timeout, peer_address);
        self.shared.links.add(&link);
        let mut core = link.lock();
        core.force_method(options.method);
        core.endpoint.limit_receives(options.receive_limit);
        if let Some(why) = unreachable {
            core.end_unmade(why);
        }
        drop(core);
        let receive_queue = options.receive_queue.as_ref();
        queue.attach(&link, receive_queue, options.shared_receives.as_ref())?;
        queue.take_over(&link, receive_queue)?;
        // Where connecting is quick, the request is on its way before anyone waits for its answer.
        let driver = &queue.shared.driver;
        let mut core = link.lock();
        core.drive(|| driver.now());
        driver.tell_interest(&mut core);
        drop(core);
        let connection = Connection::requested(link, queue.clone(), receive_queue.cloned(), address);
        Ok(PendingConnection { connection, timeout: options.timeout })
    }

    fn start_wire(&self, address: &Location, options: &ConnectOptions) -> Result<Box<dyn Wire>, ConnectError> {
        if options.append_to.is_some() && self.opening().rings().is_none() {
            return Err(ConnectError::NoRings);
        }
        self.opening().connect(address, options)
    }
}

impl PeerShared {
    /// A child has no use for its parent's devices and threads.
    pub(crate) fn check_process(&self) -> Result<(), SetupError> {
        if self.opening.is_here() { Ok(()) } else { Err(SetupError::Forked) }
    }
}

/// A connection whose handshake is under way.
#[derive(Debug)]
pub struct PendingConnection {
    connection: Connection,
    timeout: Duration,
}

impl PendingConnection {
    /// Its outcome, if it has one within this time; `None` while it is pending.
    pub(crate) fn poll(&self, timeout: Duration) -> Option<Result<(), ConnectError>> {
        let outcome = self.connection.wait_established(timeout)?;
        Some(outcome.map_err(|why| self.connection.why_not_established(why)))
    }

    /// The error for one that was given up.
    pub(crate) fn timed_out(&self, after: Duration) -> ConnectError {
        let address = self.connection.requested_address();
        ConnectError::TimedOut { address, timeout_ms: after.as_millis() as u64 }
    }

    /// Waits for the handshake's end, at most the timeout that was given when connecting.
    pub fn finish(self) -> Result<Connection, ConnectError> {
        match self.connection.wait_established(self.timeout) {
            Some(Ok(())) => Ok(self.connection),
            None => Err(self.timed_out(self.timeout)),
            Some(Err(why)) => Err(self.connection.why_not_established(why)),
        }
    }

    /// The connection as it is: its first [event](Connection::next_event) tells that it is established, or that it was lost. Over TCP the
    /// timeout given when connecting bounds how long the other host may be silent; for the rest the loss timeout holds.
    pub fn without_waiting(self) -> Connection {
        self.connection
    }
}

/// The address of this machine from which the network's routes lead to a target; nothing is sent.
fn route_to(target: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((target.ip(), DISCARD_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
