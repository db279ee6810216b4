//! A peer: the local opening of one transport.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use pmof_mem::{Medium, Memory};
use pmof_proto::{Access, ConnectionError, Endpoint, RegionTable, Settings, limits};

use crate::{
    Address, CompletionQueue, ConnectError, Connection, ListenOptions, Listener, QueueOptions, Region, RegisterError,
    SetupError, Transport,
    clock::Clock,
    driver::next_link_id,
    link::Link,
    listener::check_private_data,
    sim::SimNetwork,
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
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            timeout: DEFAULT_CONNECT_TIMEOUT,
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
            settings: Settings::default(),
        }
    }
}

/// The local opening of one transport: owns the regions that its connections share. Handles are cheap to clone.
#[derive(Clone, Debug)]
pub struct Peer {
    shared: Arc<PeerShared>,
}

#[derive(Debug)]
pub(crate) struct PeerShared {
    pub(crate) regions: Arc<RegionTable>,
    opening: Opening,
}

#[derive(Debug)]
enum Opening {
    Tcp,
    Sim(Arc<SimNetwork>),
}

impl Peer {
    /// Opens a transport.
    pub fn open(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::new(Opening::Tcp),
        }
    }

    /// Opens a simulated network.
    pub fn simulated(network: &Arc<SimNetwork>) -> Self {
        Self::new(Opening::Sim(Arc::clone(network)))
    }

    fn new(opening: Opening) -> Self {
        Self { shared: Arc::new(PeerShared { regions: Arc::default(), opening }) }
    }

    /// Makes a queue for the connections of this peer.
    pub fn completion_queue(&self, options: QueueOptions) -> Result<CompletionQueue, SetupError> {
        let clock = match &self.shared.opening {
            Opening::Tcp => Clock::real(),
            Opening::Sim(network) => Clock::Virtual(Arc::clone(network)),
        };
        CompletionQueue::new(&clock, options)
    }

    /// Registers `len_bytes` bytes at `offset` of `memory`; `access` is what the other sides may do.
    pub fn register(
        &self,
        memory: Arc<dyn Medium>,
        offset: u64,
        len_bytes: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        Region::register(&self.shared.regions, memory, offset, len_bytes, access)
    }

    /// Allocates and registers zeroed anonymous memory.
    pub fn allocate(&self, len_bytes: u64, access: Access) -> Result<Region, RegisterError> {
        self.register(Arc::new(Memory::anonymous(len_bytes)?), 0, len_bytes, access)
    }

    /// Listens on a loopback address; port 0 picks a free one.
    pub fn listen(&self, address: SocketAddr, options: ListenOptions) -> Result<Listener, SetupError> {
        let shared = Arc::clone(&self.shared);
        match &self.shared.opening {
            Opening::Tcp => Listener::tcp(shared, address, options),
            Opening::Sim(network) => Listener::sim(shared, network, address.port(), options),
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
        let resolve = |source| ConnectError::Resolve { host: to.host.clone(), source };
        let addresses: Vec<_> = (to.host.as_str(), to.port).to_socket_addrs().map_err(resolve)?.collect();
        let mut last = Err(resolve(io::ErrorKind::NotFound.into()));
        let deadline = queue.shared.driver.now().saturating_add(options.timeout);
        for address in addresses {
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
        address: SocketAddr,
        queue: &CompletionQueue,
        options: &ConnectOptions,
    ) -> Result<PendingConnection, ConnectError> {
        check_private_data(&options.private_data, limits::CONNECT_PRIVATE_MAX_BYTES)?;
        let unreachable =
            |error: io::Error| ConnectError::Unreachable { address: address.to_string(), why: error.to_string() };
        let wire: Box<dyn Wire> = match &self.shared.opening {
            Opening::Tcp => {
                let wire = TcpWire::connect(address, options.loss_timeout);
                Box::new(wire.map_err(|errno| unreachable(errno.into()))?)
            }
            Opening::Sim(network) => Box::new(network.connect(address.port()).map_err(unreachable)?),
        };
        let endpoint = Endpoint::initiator(options.settings, Arc::clone(&self.shared.regions), &options.private_data);
        let link = Link::new(next_link_id(), endpoint, wire, options.loss_timeout, Some(address));
        queue.shared.driver.add(&link)?;
        // Where connecting is quick, the request is on its way before anyone waits for its answer.
        link.lock().drive(|| queue.shared.driver.now());
        let connection = Connection::new(link, queue.clone(), Some(address), Vec::new());
        Ok(PendingConnection { connection, address, timeout: options.timeout })
    }
}

/// A connection whose handshake is under way.
#[derive(Debug)]
pub struct PendingConnection {
    connection: Connection,
    address: SocketAddr,
    timeout: Duration,
}

impl PendingConnection {
    /// Waits for the handshake's end, at most the timeout that was given when connecting.
    pub fn finish(mut self) -> Result<Connection, ConnectError> {
        let address = self.address.to_string();
        match self.connection.wait_established(self.timeout) {
            Some(Ok(())) => Ok(self.connection),
            None => Err(ConnectError::TimedOut { address, timeout_ms: self.timeout.as_millis() as u64 }),
            Some(Err(ConnectionError::TimedOut { limit_ms, .. })) => {
                Err(ConnectError::TimedOut { address, timeout_ms: limit_ms })
            }
            Some(Err(ConnectionError::Refused { refusal, private_data })) => {
                Err(ConnectError::Refused { address, refusal, private_data })
            }
            Some(Err(why)) => Err(match self.connection.take_wire_error() {
                Some(error) => ConnectError::Unreachable { address, why: error.to_string() },
                None => ConnectError::Ended { address, why },
            }),
        }
    }
}
