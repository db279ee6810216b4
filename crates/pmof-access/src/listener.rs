//! Listening for connection requests.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_mem::forks::Own;
use pmof_proto::{Endpoint, MemoryAccount, OperationCounters, Refusal, Settings, limits};

use crate::{
    CompletionQueue, ConnectError, Connection, DEFAULT_LOSS_TIMEOUT, Location, SetupError, SharedReceives,
    driver::{DrivenAppender, Driver, Waits, next_link_id},
    link::Link,
    peer::PeerShared,
    transport::{Incoming, Listening},
};

/// How often a look for requests is repeated because something came while devices were asked for a notification of what comes next.
const ARMED_TURNS_MAX: u32 = 64;

/// Handshakes under way at once. Beyond it the oldest is dropped: slow clients cannot shut others out.
const HANDSHAKES_MAX: usize = 1024;

/// New connections taken between two looks at the handshakes under way.
const ACCEPTS_PER_TURN: usize = 64;

/// Default time for a client to say what it wants.
pub const DEFAULT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a listener.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// What this side takes.
    pub settings: Settings,
    /// Time for a client to finish its request.
    pub handshake_timeout: Duration,
    /// Listen also where other machines reach it, although nobody is authenticated: everybody who reaches the address may
    /// use the memory that the application hands out.
    pub trust_network: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { settings: Settings::default(), handshake_timeout: DEFAULT_HANDSHAKE_TIMEOUT, trust_network: false }
    }
}

pmof_mem::setters!(ListenOptions { settings: Settings, handshake_timeout: Duration, trust_network: bool });

/// What goes with an acceptance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcceptOptions {
    /// For the other side's application, at most [`limits::ACCEPT_PRIVATE_MAX_BYTES`].
    pub private_data: Vec<u8>,
    /// Time without an answer that is due, after which the connection counts as lost.
    pub loss_timeout: Duration,
    /// Where outcomes of receives go, if not to the queue of the connection. Whoever polls or waits on either of the two
    /// drives the connection.
    pub receive_queue: Option<CompletionQueue>,
    /// Where messages find their receives, if the connection has none of its own.
    pub shared_receives: Option<SharedReceives>,
    /// Receives that may be posted and wait for a message, where they are the connection's own: 1 to
    /// [`limits::RECEIVE_QUEUE_LIMIT`].
    pub receive_limit: usize,
}

impl Default for AcceptOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            loss_timeout: DEFAULT_LOSS_TIMEOUT,
            receive_queue: None,
            shared_receives: None,
            receive_limit: limits::RECEIVE_QUEUE_LIMIT,
        }
    }
}

pmof_mem::setters!(AcceptOptions {
    private_data: Vec<u8>,
    loss_timeout: Duration,
    receive_queue: impl Into<Option<CompletionQueue>>,
    shared_receives: impl Into<Option<SharedReceives>>,
    receive_limit: usize,
});

/// Takes connection requests on one address. Handshakes under way are moved on by [`next_request`](Self::next_request).
#[derive(Debug)]
pub struct Listener {
    peer: Arc<PeerShared>,
    driver: Own<Arc<Driver>>,
    incoming: Own<Box<dyn Incoming>>,
    address: Location,
    options: ListenOptions,
}

impl Listener {
    pub(crate) fn over(
        peer: Arc<PeerShared>,
        Listening { incoming, address }: Listening,
        options: ListenOptions,
    ) -> Result<Self, SetupError> {
        let driver = match incoming.as_fd() {
            Some(incoming) => Driver::of_listener(incoming)?,
            None => Driver::new(&peer.opening.clock(), Waits::default()),
        };
        Ok(Self { peer, driver: Own::new(driver), incoming: Own::new(incoming), address, options })
    }

    /// Where it listens, with the port that was picked.
    pub fn local_address(&self) -> &Location {
        &self.address
    }

    /// The next connection request, waiting for it at most `timeout`.
    ///
    /// # Errors
    /// [`SetupError::System`] when the process is out of file descriptors or memory. Waiting requests stay; call again
    /// after a while. [`SetupError::Forked`].
    pub fn next_request(&self, timeout: Duration) -> Result<Option<ConnectionRequest>, SetupError> {
        self.peer.check_process()?;
        let deadline = self.driver.now().saturating_add(timeout);
        let (mut is_over, mut armed_turns) = (false, 0);
        loop {
            let accepted = self.accept_waiting();
            // Whatever became of it: handshakes that end or are given up are what makes room.
            let moved = self.driver.drive();
            let mut request = self.take_request();
            if request.is_some() {
                return Ok(request);
            }
            let accepted = accepted?;
            let now = self.driver.now();
            is_over |= now >= deadline || self.driver.take_interrupt();
            if is_over {
                // Whoever waits for the descriptor next is to be woken by whatever comes from here on.
                if armed_turns == ARMED_TURNS_MAX || !self.driver.arm() {
                    return Ok(None);
                }
                armed_turns += 1;
                continue;
            }
            if !accepted && !moved {
                self.driver.park(now, deadline, &mut || {
                    request = self.take_request();
                    request.is_some() || self.driver.is_interrupted()
                });
                if request.is_some() {
                    return Ok(request);
                }
            }
        }
    }

    /// Ends the present wait for a request as if its time were up, or else the next one.
    pub fn interrupt(&self) {
        if self.driver.is_here() {
            self.driver.interrupt();
        }
    }

    fn take_request(&self) -> Option<ConnectionRequest> {
        let (link, private_data) = self.driver.take_request()?;
        let peer_address = link.peer_address;
        Some(ConnectionRequest {
            driver: Own::new(Arc::clone(&self.driver)),
            link: Some(link),
            private_data,
            peer_address,
        })
    }

    /// Takes new connections in. True if there were any.
    fn accept_waiting(&self) -> Result<bool, SetupError> {
        let mut any = false;
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((wire, peer_address)) = self.incoming.accept()? else { break };
            if self.driver.len() >= HANDSHAKES_MAX {
                self.driver.remove_oldest();
            }
            let endpoint = Endpoint::target(self.options.settings, Arc::clone(&self.peer.regions));
            let link = Link::new(next_link_id(), endpoint, wire, self.options.handshake_timeout, peer_address);
            self.peer.links.add(&link);
            self.driver.add(&link)?;
            any = true;
        }
        Ok(any)
    }
}

/// Readable while a request waits, and when [`next_request`](Listener::next_request) has a handshake to move on, after which there
/// may be none yet. That also notices limits of time, so wait for no longer than a handshake may be late.
impl AsFd for Listener {
    /// # Panics
    /// On the simulated network, which the kernel does not know.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.driver.poller() {
            Some(poller) => poller.as_fd(),
            None => panic!("a simulated network has no file descriptors"),
        }
    }
}

/// Someone asks for a connection. Dropping it rejects.
#[derive(Debug)]
pub struct ConnectionRequest {
    driver: Own<Arc<Driver>>,
    link: Option<Arc<Link>>,
    private_data: Vec<u8>,
    peer_address: Option<SocketAddr>,
}

impl ConnectionRequest {
    /// Has what the connection holds for the other side count against a [budget](crate::MemoryBudget): while that is short, its
    /// operations wait until their answers are taken. The account is given back when the connection is gone.
    pub fn count_against(&self, account: MemoryAccount) {
        if let Some(link) = &self.link {
            link.lock().endpoint.count_against(account);
        }
    }

    /// Has the operations that the other side asks for counted there.
    pub fn count_operations(&self, counters: Arc<OperationCounters>) {
        if let Some(link) = &self.link {
            link.lock().endpoint.count_operations(counters);
        }
    }

    /// What the other side's application sent along.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The identity of the ring of this side that the other side wants to append to, if it named one.
    pub fn ring_identity(&self) -> Option<[u8; 16]> {
        let core = self.link.as_ref()?.lock();
        core.ring().map(|ring| ring.layout().identity())
    }

    /// Where the request comes from.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address
    }

    /// Whether the other side has closed its end already, over transports whose sockets tell.
    pub fn is_abandoned(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.lock().is_closed_there())
    }

    /// Takes the request; the connection's outcomes go to `queue`. Operations may be posted at once.
    pub fn accept(mut self, queue: &CompletionQueue, options: &AcceptOptions) -> Result<Connection, ConnectError> {
        self.check_process()?;
        check_private_data(&options.private_data, limits::ACCEPT_PRIVATE_MAX_BYTES)?;
        let Some(link) = self.link.take() else {
            let (why, kind) = ("the request is gone".into(), std::io::ErrorKind::NotConnected);
            return Err(ConnectError::Unreachable { address: String::new(), why, kind });
        };
        let receive_queue = options.receive_queue.as_ref();
        queue.attach(&link, receive_queue, options.shared_receives.as_ref())?;
        {
            let mut core = link.lock();
            core.set_loss_timeout(options.loss_timeout);
            core.endpoint.limit_receives(options.receive_limit);
            if let Some(ring) = core.ring() {
                ring.belongs_to(DrivenAppender::new(&link, &queue.shared.driver));
            }
            core.endpoint.accept(&options.private_data);
            core.flush_output();
        }
        queue.take_over(&link, receive_queue)?;
        Ok(Connection::accepted(
            link,
            queue.clone(),
            receive_queue.cloned(),
            self.peer_address,
            std::mem::take(&mut self.private_data),
        ))
    }

    /// Refuses it; `private_data` (at most [`limits::REJECT_PRIVATE_MAX_BYTES`]) tells the other side why.
    pub fn reject(mut self, refusal: Refusal, private_data: &[u8]) -> Result<(), ConnectError> {
        self.check_process()?;
        check_private_data(private_data, limits::REJECT_PRIVATE_MAX_BYTES)?;
        self.reject_now(refusal, private_data);
        Ok(())
    }

    fn check_process(&self) -> Result<(), SetupError> {
        if self.driver.is_here() { Ok(()) } else { Err(SetupError::Forked) }
    }

    fn reject_now(&mut self, refusal: Refusal, private_data: &[u8]) {
        // In a child its parent decides.
        if let Some(link) = self.link.take().filter(|link| link.is_here()) {
            let mut core = link.lock();
            if core.is_closed_there() {
                core.endpoint.wire_lost("the other side had gone before its request was taken".to_owned());
            } else {
                core.endpoint.reject(refusal, private_data);
            }
            core.drive(|| self.driver.now());
            drop(core);
            // The listener sees to it that the answer is read; where it cannot watch one more, the connection just ends.
            let _ = self.driver.add(&link);
        }
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        self.reject_now(Refusal::Rejected, &[]);
    }
}

/// Refuses addresses that other machines reach, unless that is wanted.
pub(crate) fn check_reach(address: SocketAddr, options: ListenOptions) -> Result<(), SetupError> {
    if address.ip().to_canonical().is_loopback() || options.trust_network {
        Ok(())
    } else {
        Err(SetupError::NotLoopback { address })
    }
}

pub(crate) fn check_private_data(private_data: &[u8], limit_bytes: usize) -> Result<(), ConnectError> {
    let len_bytes = private_data.len();
    if len_bytes > limit_bytes { Err(ConnectError::PrivateData { len_bytes, limit_bytes }) } else { Ok(()) }
}
