//! Two sides, joined by a connection.

use std::time::Duration;

use pmof_access::{
    AcceptOptions, Access, CompletionQueue, ConnectOptions, Connection, ConnectionEvent, ListenOptions, Listener,
    OperationError, Outcome, Peer, Progress, QueueOptions, Region, RemoteRegion, Ticket,
};

/// Longer than anything takes that works; virtual time costs nothing.
pub(crate) const LONG: Duration = Duration::from_mins(2);

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
            connect: ConnectOptions { timeout: LONG, ..ConnectOptions::default() },
            listen: ListenOptions::default(),
            accept: AcceptOptions::default(),
            initiator_queue: QueueOptions::default(),
            target_queue: threaded(),
        }
    }
}

/// A queue that makes progress by itself.
pub(crate) fn threaded() -> QueueOptions {
    QueueOptions { progress: Progress::Thread, ..QueueOptions::default() }
}

/// Two sides joined by a connection.
pub(crate) struct Pair {
    pub(crate) initiator: Side,
    pub(crate) target: Side,
    pub(crate) listener: Listener,
}

/// Opens both sides and joins them.
#[track_caller]
pub(crate) fn pair(open: impl Fn() -> Peer, setup: &Setup) -> Pair {
    let (initiator, target) = (open(), open());
    let queue = initiator.completion_queue(setup.initiator_queue).expect("a queue");
    let serving = target.completion_queue(setup.target_queue).expect("a queue");
    let listener = target.listen("127.0.0.1:0".parse().expect("an address"), setup.listen).expect("a listener");
    let (here, there) = join(&initiator, &queue, &listener, &serving, setup);
    let initiator = Side { peer: initiator, queue, connection: here };
    let target = Side { peer: target, queue: serving, connection: there };
    Pair { initiator, target, listener }
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
    let request = listener.next_request(LONG).expect("the listener works").expect("a request in time");
    let there = request.accept(serving, &setup.accept).expect("accepted");
    let here = pending.finish().expect("connected");
    (here, there)
}

/// Memory of `len_bytes` at this side, and how the other side names it.
#[track_caller]
pub(crate) fn region(owner: &Peer, len_bytes: u64, access: Access) -> (Region, RemoteRegion) {
    let region = owner.allocate(len_bytes, access).expect("memory");
    let remote = RemoteRegion::from_descriptor(&region.descriptor()).expect("its own descriptor is valid");
    (region, remote)
}
