//! The target service: accepts connections, and opens, makes and removes pools for them.
//!
//! Reads, writes and flushes of an open pool never come here: the access layer serves them, on the same thread.

use std::{
    collections::{HashMap, HashSet},
    io, mem,
    net::IpAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pmof_access::{
    Address, BackgroundFlushes, BackgroundThreads, CompletionQueue, ConnectionId, ConnectionRequest, DeviceChoice,
    Listener, LocalEnd, Location, MemoryBudget, MemoryUse, OperationCounters, Peer, Place, QueueOptions, Refusal,
    SetupError, Transport, VerbsOptions, local_user,
};
use pmof_control::{PoolFormat, SpokenVersions, TargetStatus};
use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::{causes, forks::Process};
use pmof_pool_set::boot_of_this_machine;
use rustix::process::geteuid;

use crate::{PoolStore, StoreError, domain::failure_domain, events, refused::Refused, sets::SetStore};
use authentication::Authenticator;
use digests::Digests;
use health::Scrubs;
use leases::Leases;
use mailbox::Mailbox;
use metrics::Counters;
use root_watch::RootWatch;
use session::{Host, Session, Stores, TakeError, accept_options};

mod attend;
mod authentication;
mod digests;
mod health;
mod identity;
mod leases;
mod mailbox;
mod metrics;
mod observer;
mod options;
mod root_watch;
mod session;
mod takeover;
mod working;

pub use authentication::Admission;
pub use health::{PoolCounts, PoolHealth};
pub use identity::Identity;
pub use metrics::{RequestCounts, TargetMetrics};
pub use observer::Observer;
pub use options::{DEFAULT_MAX_CONNECTIONS, DEFAULT_MEMORY_BUDGET_BYTES, ServiceOptions};

/// How long an idle thread sleeps at a stretch; stopping interrupts it.
const NAP: Duration = Duration::from_secs(3600);

/// Rest after the system refused a new connection for want of file descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Time for a connection to prove the secret, where one is asked for.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How often it is looked for connections whose time for the proof is up.
const ADMISSION_LOOK: Duration = Duration::from_secs(1);

/// Time for connections to end that were told that the target stops.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often it is looked for those.
const GOODBYE_LOOK: Duration = Duration::from_millis(1);

/// A worker that has waited so long for a disk gets no new connections: many times what a disk in order takes.
const STUCK_AFTER: Duration = Duration::from_millis(20);

/// The [share](BackgroundThreads::run) of what connections ask of the service, which may wait for any disk: no device has this number.
const REQUESTS_SHARE: u64 = u64::MAX;

/// Why a target did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The root directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address, or a resource of the system.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A name that stands for no address here.
    #[error("cannot listen on {address}; name an address of this machine")]
    Resolve {
        /// The address.
        address: Address,
        /// The resolver's answer.
        source: io::Error,
    },
    /// No address was given.
    #[error("no address to listen on: give at least one, such as tcp://127.0.0.1:7204")]
    NoAddress,
    /// The budget of memory is for no connection.
    #[error(
        "a memory budget of {given_bytes} bytes is too small for one connection, which takes {least_bytes}: give more (pmof serve --memory-budget)"
    )]
    MemoryBudget {
        /// Bytes asked for.
        given_bytes: u64,
        /// Bytes needed.
        least_bytes: u64,
    },
    /// A thread did not start.
    #[error("cannot start a thread; see the limit of processes (ulimit -u)")]
    Thread {
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A running target. Dropping it stops it: connections end, pools are closed, acknowledged bytes stay. In a child of `fork()` dropping it does nothing.
#[derive(Debug)]
pub struct Service {
    acceptors: Vec<Arc<Acceptor>>,
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    process: Process,
}

/// Where connections come in, and the peer that they belong to.
#[derive(Debug)]
struct Acceptor {
    transport: Transport,
    listener: Listener,
    peer: Peer,
}

/// What all threads of a service share.
#[derive(Debug)]
struct Shared {
    stores: Stores,
    authenticator: Authenticator,
    memory: Arc<MemoryBudget>,
    options: ServiceOptions,
    workers: Vec<Worker>,
    /// Where flushes wait for disks, and requests are carried out.
    background: BackgroundThreads,
    /// As the options say, or as it was changed since.
    max_connections: AtomicUsize,
    /// No connection is accepted and nothing is opened any more.
    is_draining: AtomicBool,
    stop: AtomicBool,
    started: Instant,
    counters: Counters,
    flushes: BackgroundFlushes,
    scrubs: Scrubs,
    digests: Arc<Digests>,
    root_watch: RootWatch,
    /// A connection ended with a pool open for writing.
    was_left_open: AtomicBool,
}

/// One thread's connections.
#[derive(Debug)]
struct Worker {
    queue: CompletionQueue,
    /// What its connections have asked for.
    operations: Arc<OperationCounters>,
    sessions: Mutex<HashMap<ConnectionId, Arc<Mailbox>>>,
}

impl Service {
    /// Starts a target for the pools under `root` on these addresses, of one or several transports; port 0 picks a free
    /// one. It listens on all addresses that a name stands for. Addresses that other machines reach need [`ServiceOptions::trust_network`].
    pub fn start(root: &Path, listen: &[Address], mut options: ServiceOptions) -> Result<Self, ServiceError> {
        if listen.is_empty() {
            return Err(ServiceError::NoAddress);
        }
        let given_bytes = options.memory_budget_bytes;
        let least_bytes = listen.iter().map(|address| reserve_bytes(Some(address.transport))).max().unwrap_or(0);
        if given_bytes < least_bytes {
            return Err(ServiceError::MemoryBudget { given_bytes, least_bytes });
        }
        // The authenticator alone knows the secret, and forgets it.
        let authenticator = Authenticator::new(mem::take(&mut options.admission));
        let pools = PoolStore::open(root, options.store.clone())?;
        let sets = SetStore::open(root, options.store.declaration);
        let sets = sets.map_err(|source| StoreError::Io { call: "open", path: root.to_owned(), source })?;
        let boot = options.boot.or_else(boot_of_this_machine);
        let domain = failure_domain(options.failure_domain.clone());
        let stores = Stores { pools, sets, leases: Leases::default(), boot, domain };
        let acceptors = open_acceptors(listen, &options)?;
        let addresses = acceptors.iter().map(|acceptor| acceptor.address()).collect();
        let queue_options = QueueOptions::default().waiting(options.waiting);
        let background = BackgroundThreads::start()?;
        let worker_count = options.worker_count();
        // Where there are several workers one always has time for whoever connects next.
        let flushes = BackgroundFlushes::new(&background, (worker_count - 1).max(1));
        let workers = (0..worker_count).map(|_| {
            let queue = acceptors[0].peer.completion_queue(queue_options)?;
            queue.flush_in_background(&flushes);
            Ok(Worker { queue, sessions: Mutex::default(), operations: Arc::default() })
        });
        let workers = workers.collect::<Result<Vec<_>, SetupError>>()?;
        let memory = MemoryBudget::new(options.memory_budget_bytes);
        let shared = Arc::new(Shared {
            stores,
            authenticator,
            memory,
            max_connections: AtomicUsize::new(options.max_connections),
            options,
            workers,
            background,
            is_draining: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            started: Instant::now(),
            counters: Counters::new(),
            flushes,
            scrubs: Scrubs::default(),
            digests: Arc::default(),
            root_watch: RootWatch::default(),
            was_left_open: AtomicBool::new(false),
        });
        let mut service = Self {
            acceptors: acceptors.clone(),
            addresses,
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            process: Process::current(),
        };
        for index in 0..shared.workers.len() {
            let shared = Arc::clone(&shared);
            service.spawn("pmof-worker", move || shared.work(index))?;
        }
        for acceptor in acceptors {
            let shared = Arc::clone(&shared);
            service.spawn("pmof-listener", move || shared.accept_from(&acceptor))?;
        }
        let watched = shared.root_watch.start(Arc::clone(&shared), |shared| &shared.stores.pools);
        watched.map_err(|source| ServiceError::Thread { source })?;
        service.addresses.iter().for_each(|address| events::listening(address, root));
        Ok(service)
    }

    /// The addresses that it listens on, in the order given, with the ports that were picked: several of a name that stands for several.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// How much of the memory budget is in use.
    pub fn memory_use(&self) -> MemoryUse {
        self.shared.memory.in_use()
    }

    /// What sees how this target does.
    pub fn observer(&self) -> Observer {
        Observer { shared: Arc::clone(&self.shared) }
    }

    /// Changes how many connections are taken. Those that are there stay.
    pub fn set_max_connections(&self, max_connections: usize) {
        self.shared.max_connections.store(max_connections, Ordering::Relaxed);
    }

    /// Begins to stop: listens no more, and refuses to open pools. Connections stay, so that their initiators may close what they have open.
    pub fn drain(&mut self) {
        self.shared.is_draining.store(true, Ordering::Release);
        self.acceptors.drain(..).for_each(|acceptor| acceptor.listener.interrupt());
        events::draining(self.shared.stores.pools.root(), self.shared.open_count());
    }

    /// Whether no initiator has a pool open any more.
    pub fn is_drained(&self) -> bool {
        self.shared.open_count() == 0
    }

    /// Whether the one connection that was admitted is over; never of a service that admits anyone.
    pub(crate) fn has_served(&self) -> bool {
        self.shared.authenticator.is_used_up() && self.shared.workers.iter().all(|worker| worker.sessions().is_empty())
    }

    /// Whether somebody was admitted by the secret.
    pub(crate) fn has_admitted(&self) -> bool {
        self.shared.authenticator.is_used_up()
    }

    /// Whether an initiator ended, or is about to, without closing its pool.
    pub(crate) fn was_left_open(&self) -> bool {
        self.shared.was_left_open.load(Ordering::Acquire) || self.shared.open_count() > 0
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ServiceError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(thread.map_err(|source| ServiceError::Thread { source })?);
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A child has none of its threads, and its pools are open in the parent.
            mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.say_goodbye();
        self.shared.stop.store(true, Ordering::Release);
        self.shared.workers.iter().for_each(|worker| worker.queue.interrupt());
        self.acceptors.iter().for_each(|acceptor| acceptor.listener.interrupt());
        self.shared.root_watch.end();
        for thread in self.threads.drain(..) {
            // A panic was reported by the thread itself; the others are to be stopped all the same.
            let _ = thread.join();
        }
        // Pools are closed when what has them open is over.
        self.shared.background.finish();
        events::stopped(self.shared.stores.pools.root());
    }
}

impl Host for Shared {
    fn stores(&self) -> &Stores {
        &self.stores
    }

    fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    fn is_appliance(&self, transport: Option<Transport>) -> bool {
        transport.is_some_and(has_devices) && self.options.verbs.inbound_declared
    }

    fn count_lost_file(&self) {
        self.counters.lost_file();
    }

    fn scrubs(&self) -> &Scrubs {
        &self.scrubs
    }

    fn count(&self, request: &'static str, took: Duration, refused: Option<u16>) {
        self.counters.answered(request, took, refused);
    }

    fn status(&self) -> Result<TargetStatus, Refused> {
        let memory = self.memory.in_use();
        let pools = &self.stores.pools;
        let (free_bytes, total_bytes) = pools.free_and_total_bytes()?;
        Ok(TargetStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: pmof_access::limits::VERSION_MAX,
            control_versions: SpokenVersions::OURS,
            pool_format: PoolFormat::Three.major(),
            is_draining: self.is_draining(),
            is_root_writable: pools.is_root_writable(),
            is_root_attached: pools.check_attached().is_ok(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            connections: self.connections(),
            max_connections: self.max_connections.load(Ordering::Relaxed) as u64,
            memory_bytes: memory.reserved_bytes + memory.borrowed_bytes,
            memory_budget_bytes: self.options.memory_budget_bytes,
            free_bytes,
            total_bytes,
            root: pools.root().display().to_string(),
        })
    }
}

/// Who asks for a connection, by the kernel's word.
enum Client {
    Admitted,
    /// It closed the connection before it was asked about, as one that gave up while the target was stopped.
    Gone,
    /// Another user of this machine, or one that the kernel does not tell; why.
    Foreign(String),
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.workers.iter().flat_map(|worker| worker.sessions().values().cloned().collect::<Vec<_>>()).collect()
    }

    fn connections(&self) -> u64 {
        self.workers.iter().map(|worker| worker.sessions().len() as u64).sum()
    }

    /// Connections that have a pool open.
    fn open_count(&self) -> usize {
        self.mailboxes().iter().filter(|mailbox| mailbox.session().has_open()).count()
    }

    /// Ends all connections, tells why, and gives their wires time to say so.
    fn say_goodbye(&self) {
        self.mailboxes().iter().for_each(|mailbox| mailbox.session().stop());
        let start = Instant::now();
        while !self.mailboxes().is_empty() && start.elapsed() < GOODBYE_TIMEOUT {
            std::thread::sleep(GOODBYE_LOOK);
        }
    }

    fn accept_from(&self, acceptor: &Acceptor) {
        let mut is_short = false;
        while !self.stopped() && !self.is_draining() {
            match acceptor.listener.next_request(NAP) {
                Ok(request) => {
                    is_short = false;
                    // A client that vanished meanwhile is no loss.
                    let _ = request.map(|request| self.take(acceptor, request));
                }
                Err(error) => {
                    if !mem::replace(&mut is_short, true) {
                        events::cannot_accept(&causes(&error));
                    }
                    std::thread::sleep(ACCEPT_REST);
                }
            }
        }
    }

    /// Gives a new connection to the worker that has fewest, of those that do not wait for a disk that is slow.
    fn take(&self, acceptor: &Acceptor, request: ConnectionRequest) -> Result<(), TakeError> {
        let peer = &acceptor.peer;
        let counts = self.workers.iter().map(|worker| worker.sessions().len()).collect::<Vec<_>>();
        let is_full = counts.iter().sum::<usize>() >= self.max_connections.load(Ordering::Relaxed);
        match self.check_user(acceptor, &request) {
            Client::Admitted => {}
            // Dropped, it fails as others do whose clients break off.
            Client::Gone => return Ok(()),
            Client::Foreign(reason) => {
                events::connection_refused(peer.transport(), &reason);
                self.counters.turned_away("foreign_user");
                return Ok(request.reject(Refusal::ForeignUser, &[])?);
            }
        }
        let refuse = |request: ConnectionRequest, refusal, kind, reason: &str| {
            events::connection_refused(peer.transport(), reason);
            self.counters.turned_away(kind);
            Ok(request.reject(refusal, &[])?)
        };
        let too_many = Refusal::TooManyConnections;
        if self.authenticator.is_used_up() {
            return refuse(
                request,
                too_many,
                "session_used",
                "the one initiator of this session has connected already",
            );
        }
        if is_full && !self.drop_oldest_unauthenticated() {
            return refuse(request, too_many, "too_many", "as many are open as --max-connections allows");
        }
        let needed_bytes = reserve_bytes(peer.transport());
        let Some(account) = self.memory.open(needed_bytes) else {
            let in_use_bytes = self.memory.in_use().reserved_bytes;
            let reason = format!(
                "it takes {} KiB of --memory-budget, of which {} of {} KiB are in use",
                needed_bytes >> 10,
                in_use_bytes >> 10,
                self.options.memory_budget_bytes >> 10
            );
            return refuse(request, Refusal::NoMemory, "memory_budget", &reason);
        };
        request.count_against(account);
        let has_time = |worker: &Worker| worker.queue.is_flushing_for().is_none_or(|time| time < STUCK_AFTER);
        let least = counts.iter().zip(&self.workers).min_by_key(|(count, worker)| (!has_time(worker), **count));
        let Some((_, worker)) = least else { return Ok(()) };
        let options = accept_options(self.options.loss_timeout);
        request.count_operations(Arc::clone(&worker.operations));
        let mut sessions = worker.sessions();
        let connection = request.accept(&worker.queue, &options)?;
        let id = connection.id();
        // The session is known before its first receive can complete.
        sessions.insert(id, Arc::new(Mailbox::new(Session::start(peer, connection, self.authenticator.begin())?)));
        self.counters.accepted(peer.transport().map_or("other", Transport::scheme));
        Ok(())
    }

    /// Whether it is the target's own user or root who connects within this machine; else why not.
    fn check_user(&self, acceptor: &Acceptor, request: &ConnectionRequest) -> Client {
        let is_asked = self.authenticator.admits_anyone() && !self.options.trust_network && !self.options.trust_host;
        let at = acceptor.listener.local_address().socket_address();
        let (true, Some(at), Some(from)) = (is_asked, at, request.peer_address()) else { return Client::Admitted };
        match local_user::user_of(from, at) {
            Ok(user) if user == 0 || user == geteuid().as_raw() => Client::Admitted,
            Ok(user) => {
                Client::Foreign(format!("{} connects from {from}, who needs --trust-host", local_user::user_name(user)))
            }
            // The kernel forgets whose a closed socket was.
            Err(_) if request.is_abandoned() => Client::Gone,
            Err(error) => {
                Client::Foreign(format!("who connects from {from} is not known (sock_diag: {error}); see --trust-host"))
            }
        }
    }

    /// Makes room among those that are not authenticated. False: there are none.
    fn drop_oldest_unauthenticated(&self) -> bool {
        if self.authenticator.admits_anyone() {
            return false;
        }
        let candidates = self.workers.iter().flat_map(|worker| {
            let sessions = worker.sessions();
            let candidates = sessions.iter().filter_map(|(id, mailbox)| {
                let session = mailbox.try_session()?;
                session.identity().is_none().then(|| (session.since(), *id))
            });
            candidates.map(|candidate| (candidate, worker)).collect::<Vec<_>>()
        });
        let oldest = candidates.min_by_key(|((since, _), _)| *since);
        oldest.is_some_and(|((_, id), worker)| worker.sessions().remove(&id).is_some())
    }

    fn work(self: &Arc<Self>, index: usize) {
        let worker = &self.workers[index];
        while !self.stopped() {
            let nap = if self.authenticator.admits_anyone() { NAP } else { ADMISSION_LOOK };
            let done = worker.queue.wait(nap);
            if !self.authenticator.admits_anyone() {
                let limit = if self.authenticator.is_used_up() { Duration::ZERO } else { ADMISSION_TIMEOUT };
                // One that is being served is in time.
                let is_in_time =
                    |mailbox: &Mailbox| mailbox.try_session().is_none_or(|session| session.is_in_time(limit));
                worker.sessions().retain(|_, mailbox| is_in_time(mailbox));
            }
            let Some(done) = done else { continue };
            let Some(mailbox) = worker.sessions().get(&done.connection).cloned() else { continue };
            if mailbox.add(done) {
                let shared = Arc::clone(self);
                self.background.run(REQUESTS_SHARE, move || shared.attend(index, &mailbox));
            }
        }
        // Those that are being served end with that.
        let sessions = mem::take(&mut *worker.sessions());
        drop(sessions);
    }
}

impl Worker {
    fn sessions(&self) -> MutexGuard<'_, HashMap<ConnectionId, Arc<Mailbox>>> {
        self.sessions.lock()
    }
}

/// What a connection takes of the budget.
fn reserve_bytes(transport: Option<Transport>) -> u64 {
    transport.unwrap_or(Transport::Tcp).descriptor().connection_bytes
}

impl Acceptor {
    fn address(&self) -> Address {
        let place = match self.listener.local_address() {
            Location::Ip(address) => Place::Host { host: address.ip().to_string(), port: address.port() },
            Location::Path(path) => Place::Path(path.clone()),
        };
        Address { transport: self.transport, place }
    }
}

/// Listens on all addresses, through one peer a transport and device.
/// Listens on all addresses that each name stands for, but for those of a kind that this machine does not have.
fn open_acceptors(listen: &[Address], options: &ServiceOptions) -> Result<Vec<Arc<Acceptor>>, ServiceError> {
    let mut peers = Vec::new();
    let mut acceptors = Vec::with_capacity(listen.len());
    for address in listen {
        let resolve = |source| ServiceError::Resolve { address: address.clone(), source };
        let mut locations = address.resolve().map_err(resolve)?;
        let mut seen = HashSet::new();
        locations.retain(|location| seen.insert(location.clone()));
        let (mut found, mut missing) = (Vec::new(), None);
        for location in locations {
            match open_acceptor(address.transport, location, &mut peers, options) {
                Ok(acceptor) => found.push(Arc::new(acceptor)),
                Err(ServiceError::Setup(error)) if has_no_such_address(&error) => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        match missing {
            Some(error) if found.is_empty() => return Err(error.into()),
            _ => acceptors.extend(found),
        }
    }
    Ok(acceptors)
}

type OpenPeer = (Transport, Option<DeviceChoice>, Peer);

fn open_acceptor(
    transport: Transport,
    location: Location,
    peers: &mut Vec<OpenPeer>,
    options: &ServiceOptions,
) -> Result<Acceptor, ServiceError> {
    let device = device_of(transport, &location, &options.verbs);
    let known = peers.iter().find(|(other, chosen, _)| *other == transport && *chosen == device);
    let peer = match (known, &device) {
        (Some((.., peer)), _) => peer.clone(),
        (None, None) => Peer::open(transport)?,
        (None, Some(DeviceChoice::Local(local))) if !has_devices(transport) => Peer::open_at(transport, *local)?,
        (None, Some(device)) => Peer::open_verbs(&options.verbs.clone().device(device.clone()))?,
    };
    peers.push((transport, device, peer.clone()));
    let listener = peer.listen(location, options.listening())?;
    Ok(Acceptor { transport, listener, peer })
}

/// The name has an address of IPv6, say, and the machine none.
fn has_no_such_address(error: &SetupError) -> bool {
    let SetupError::Listen { source, .. } = error else { return false };
    let no_family = Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
    source.kind() == io::ErrorKind::AddrNotAvailable || source.raw_os_error() == no_family
}

/// The device that serves a local address, where the transport has devices. libfabric has domains of either family of addresses.
fn device_of(transport: Transport, location: &Location, options: &VerbsOptions) -> Option<DeviceChoice> {
    let address = location.socket_address().map(|address| address.ip());
    let local = address.filter(|address| !address.is_unspecified()).map(DeviceChoice::Local);
    match transport.descriptor().local_end {
        LocalEnd::Device => Some(local.unwrap_or_else(|| options.device.clone())),
        LocalEnd::Domain => local.or_else(|| address.filter(IpAddr::is_ipv6).map(DeviceChoice::Local)),
        _ => None,
    }
}

/// Whether RDMA devices write past this machine's CPU.
fn has_devices(transport: Transport) -> bool {
    transport.descriptor().local_end == LocalEnd::Device
}
