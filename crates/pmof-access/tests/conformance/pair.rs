//! Two sides, joined by a connection.

use std::time::{Duration, Instant};

use crate::media;
use pmof_access::{
    AcceptOptions, Access, CompletionQueue, ConnectOptions, Connection, ConnectionEvent, ConnectionRequest,
    ListenOptions, Listener, Location, OperationError, Outcome, Peer, Progress, QueueOptions, Region, RemoteRegion,
    Ticket,
};

/// Longer than anything takes that works; virtual time costs nothing.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// One side of a connection.
pub(crate) struct Side {
    pub(crate) peer: Peer,
    pub(crate) queue: CompletionQueue,
    pub(crate) connection: Connection,
}

impl Side {
    /// The outcome of one operation.
    #[track_caller]
    pub(crate) fn outcome(&self, ticket: Ticket) -> Result<Outcome, OperationError> {
        self.queue.wait_for(self.connection.id(), ticket, LONG).expect("an outcome in time").outcome
    }

    /// The outcome of an operation that succeeds.
    #[track_caller]
    pub(crate) fn done(&self, ticket: Ticket) -> Outcome {
        self.outcome(ticket).expect("the operation succeeds")
    }

    /// The next event of the connection.
    #[track_caller]
    pub(crate) fn event(&self) -> ConnectionEvent {
        self.connection.next_event(LONG).expect("an event in time")
    }
}

/// How two sides are joined.
pub(crate) struct Setup {
    pub(crate) connect: ConnectOptions,
    pub(crate) listen: ListenOptions,
    pub(crate) accept: AcceptOptions,
    pub(crate) initiator_queue: QueueOptions,
    pub(crate) target_queue: QueueOptions,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            connect: ConnectOptions::default().timeout(LONG),
            listen: listen_options(),
            accept: AcceptOptions::default(),
            initiator_queue: QueueOptions::default(),
            target_queue: threaded(),
        }
    }
}

/// Those of every listener: the transports that are reached from other machines are under test here alone.
pub(crate) fn listen_options() -> ListenOptions {
    ListenOptions::default().trust_network(true)
}

/// Any port of the loopback interface.
pub(crate) fn loopback() -> Location {
    std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()
}

/// A queue that makes progress by itself.
pub(crate) fn threaded() -> QueueOptions {
    QueueOptions::default().progress(Progress::Thread)
}

/// Two sides joined by a connection.
pub(crate) struct Pair {
    pub(crate) initiator: Side,
    pub(crate) target: Side,
    pub(crate) listener: Listener,
}

/// Opens both sides and joins them.
#[track_caller]
pub(crate) fn pair((initiator, target): (Peer, Peer), address: Location, setup: &Setup) -> Pair {
    let queue = initiator.completion_queue(setup.initiator_queue).expect("a queue");
    let serving = target.completion_queue(setup.target_queue).expect("a queue");
    let listener = target.listen(address, setup.listen).expect("a listener");
    let (here, there) = join(&initiator, &queue, &listener, &serving, setup);
    let initiator = Side { peer: initiator, queue, connection: here };
    let target = Side { peer: target, queue: serving, connection: there };
    Pair { initiator, target, listener }
}

/// The next connection request, while the initiator's queue is driven too: some transports ask step by step.
#[track_caller]
pub(crate) fn next_request(queue: &CompletionQueue, listener: &Listener) -> ConnectionRequest {
    let start = Instant::now();
    loop {
        if let Some(request) = listener.next_request(Duration::from_millis(1)).expect("the listener works") {
            return request;
        }
        assert_eq!(queue.poll(), None, "nothing is under way");
        assert!(start.elapsed() < LONG, "no request in time");
    }
}

/// One more connection; the initiator's end comes first.
#[track_caller]
pub(crate) fn join(
    initiator: &Peer,
    queue: &CompletionQueue,
    listener: &Listener,
    serving: &CompletionQueue,
    setup: &Setup,
) -> (Connection, Connection) {
    let pending = initiator.start_connect(listener.local_address(), queue, &setup.connect).expect("started");
    let request = next_request(queue, listener);
    let there = request.accept(serving, &setup.accept).expect("accepted");
    let here = pending.finish().expect("connected");
    (here, there)
}

/// Memory of `len_bytes` at this side, and how the other side names it.
#[track_caller]
pub(crate) fn region(owner: &Peer, len_bytes: u64, access: Access) -> (Region, RemoteRegion) {
    let region = match media::chosen() {
        Some(chosen) if !access.is_empty() => chosen.register(owner, len_bytes, access),
        _ => owner.allocate(len_bytes, access).expect("memory"),
    };
    let remote = RemoteRegion::from_descriptor(&region.descriptor()).expect("its own descriptor is valid");
    (region, remote)
}
