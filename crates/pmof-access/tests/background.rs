//! Flushes that wait for a device are carried out in the background: who waits for whom, and what they share.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, BackgroundFlushes, BackgroundThreads, Completion, CompletionQueue, ConnectOptions,
    Connection, Durability, ListenOptions, Listener, Medium, Memory, OperationError, Outcome, Peer, Progress,
    QueueOptions, Refusal, Region, RemoteRegion, Ticket, Transport,
};
use pmof_mem::{
    MediumKind, ShadowMedium,
    faults::{FailNth, FaultPoint, HoldFence},
};

const LEN_BYTES: u64 = 4096;
const LIMIT: Duration = Duration::from_secs(20);
/// What is not to come has come by then.
const MOMENT: Duration = Duration::from_millis(50);

type Held = HoldFence<FailNth<Arc<ShadowMedium>>>;

/// A disk of this number, whose fence `failing` fails; with 0 none does.
fn disk(device: u64, failing: u64) -> (Arc<Held>, Arc<ShadowMedium>) {
    let shadow = Arc::new(ShadowMedium::new(LEN_BYTES, MediumKind::PageCache).unwrap());
    let inner = FailNth::new(Arc::clone(&shadow), FaultPoint::Fence, failing);
    (Arc::new(HoldFence::new(inner, device)), shadow)
}

/// A target with one thread that serves, and its initiators.
struct Fixture {
    peer: Peer,
    listener: Listener,
    serving: CompletionQueue,
    queue: CompletionQueue,
}

struct Client {
    connection: Connection,
    remote: RemoteRegion,
    queue: CompletionQueue,
    _served: Connection,
    _region: Region,
}

impl Fixture {
    fn new() -> Self {
        Self::with_inline_flushes(0)
    }

    /// The thread that serves carries out the flushes of a single connection inline, where `inline_max` is more than 0.
    fn with_inline_flushes(inline_max: usize) -> Self {
        let peer = Peer::open(Transport::Tcp).unwrap();
        let threaded = QueueOptions::default().progress(Progress::Thread);
        let serving = peer.completion_queue(threaded).unwrap();
        serving.flush_in_background(&BackgroundFlushes::new(&BackgroundThreads::start().unwrap(), inline_max));
        let queue = peer.completion_queue(QueueOptions::default()).unwrap();
        let listener = peer.listen(SocketAddr::from(([127, 0, 0, 1], 0)), ListenOptions::default()).unwrap();
        Self { peer, listener, serving, queue }
    }

    fn client(&self, medium: Arc<dyn Medium>) -> Client {
        let region = self.peer.register(medium, 0, LEN_BYTES, Access::all()).unwrap();
        let pending =
            self.peer.start_connect(self.listener.local_address(), &self.queue, &ConnectOptions::default()).unwrap();
        let request = self.listener.next_request(LIMIT).unwrap().unwrap();
        let options = AcceptOptions::default().private_data(region.descriptor().to_vec());
        let served = request.accept(&self.serving, &options).unwrap();
        let connection = pending.finish().unwrap();
        let remote = connection.remote_region(connection.private_data()).unwrap();
        Client { connection, remote, queue: self.queue.clone(), _served: served, _region: region }
    }
}

impl Client {
    /// Posts a write and its flush; returns the flush.
    fn persist(&self, offset: u64, bytes: &[u8]) -> Ticket {
        self.connection.write(&self.remote, offset, bytes).unwrap();
        self.connection.flush(&self.remote, .., Durability::PowerFailure).unwrap()
    }

    fn wait(&self, ticket: Ticket, time: Duration) -> Option<Completion> {
        self.queue.wait_for(self.connection.id(), ticket, time)
    }

    #[track_caller]
    fn assert_done(&self, ticket: Ticket) {
        let done = self.wait(ticket, LIMIT).expect("in time");
        assert!(matches!(done.outcome, Ok(Outcome::Flushed(_))), "{done:?}");
    }

    #[track_caller]
    fn assert_waits(&self, ticket: Ticket) {
        let done = self.wait(ticket, MOMENT);
        assert!(done.is_none(), "{done:?}");
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let from = Instant::now();
    while !is_so() {
        assert!(from.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whoever_serves_a_single_connection_carries_out_its_flushes() {
    let fixture = Fixture::with_inline_flushes(1);
    let (slow, _) = disk(1, 0);
    let first = fixture.client(Arc::clone(&slow) as _);
    let ticket = first.persist(0, b"alone");
    wait_until("it is carried out", || slow.begun() == 1);
    assert!(fixture.serving.is_flushing_for().is_some(), "by the thread that serves");
    first.assert_waits(ticket);
    slow.let_pass(1);
    first.assert_done(ticket);
    wait_until("it is over", || fixture.serving.is_flushing_for().is_none());
    // With two connections neither waits for the other's disk.
    let (sound, _) = disk(2, 0);
    sound.let_pass(u64::MAX);
    let second = fixture.client(sound);
    let ticket = first.persist(8, b"together");
    wait_until("it is carried out", || slow.begun() == 2);
    assert_eq!(fixture.serving.is_flushing_for(), None);
    second.assert_done(second.persist(0, b"at once"));
    first.assert_waits(ticket);
    slow.let_pass(2);
    first.assert_done(ticket);
}

#[test]
fn a_disk_that_hangs_delays_only_its_own_clients() {
    let fixture = Fixture::new();
    // More of them than a device has threads.
    let hanging: Vec<_> = (0..20)
        .map(|_| {
            let (disk, _) = disk(1, 0);
            let client = fixture.client(Arc::clone(&disk) as _);
            let ticket = client.persist(0, b"hangs");
            (disk, client, ticket)
        })
        .collect();
    wait_until("its threads are all taken", || hanging.iter().filter(|(disk, ..)| disk.begun() > 0).count() == 16);
    let (sound, shadow) = disk(2, 0);
    sound.let_pass(u64::MAX);
    let client = fixture.client(sound);
    for round in 0..50_u64 {
        let bytes = round.to_le_bytes();
        client.assert_done(client.persist(round * 8, &bytes));
        let is_there = |image: Vec<u8>| image[round as usize * 8..][..8] == bytes;
        assert!(shadow.crash_images(16).all(is_there), "round {round} survives every crash");
    }
    // What waits for no device does not wait for those that do either.
    let memory = fixture.client(Arc::new(Memory::anonymous(LEN_BYTES).unwrap()));
    memory.connection.write(&memory.remote, 0, b"seen").unwrap();
    let ticket = memory.connection.flush(&memory.remote, .., Durability::Visible).unwrap();
    memory.assert_done(ticket);
    for (_, client, ticket) in &hanging {
        client.assert_waits(*ticket);
    }
    for (disk, ..) in &hanging {
        disk.let_pass(u64::MAX);
    }
    for (_, client, ticket) in &hanging {
        client.assert_done(*ticket);
    }
}

#[test]
fn all_who_come_while_a_disk_is_busy_share_the_fence_that_begins_after_them() {
    let fixture = Fixture::new();
    let (disk, shadow) = disk(1, 0);
    let clients: Vec<_> = (0..5).map(|_| fixture.client(Arc::clone(&disk) as _)).collect();
    let first = clients[0].persist(0, b"first");
    wait_until("the first fence begins", || disk.begun() == 1);
    let late: Vec<_> = clients[1..].iter().zip(1..).map(|(client, at)| client.persist(at * 64, b"later")).collect();
    // All of them were taken in: the writes before the flushes are answered.
    wait_until("the others are stored", || {
        let mut found = [0; 5];
        (1..5).all(|at| shadow.read(at * 64, &mut found).is_ok() && &found == b"later")
    });
    std::thread::sleep(MOMENT);
    disk.let_pass(1);
    clients[0].assert_done(first);
    wait_until("the second fence begins", || disk.begun() == 2);
    for (client, ticket) in clients[1..].iter().zip(&late) {
        client.assert_waits(*ticket);
    }
    disk.let_pass(2);
    for (client, ticket) in clients[1..].iter().zip(&late) {
        client.assert_done(*ticket);
    }
    assert_eq!(disk.begun(), 2, "one for all");
    let is_whole = |image: Vec<u8>| (1..5).all(|at| &image[at * 64..][..5] == b"later");
    assert!(shadow.crash_images(64).all(is_whole), "each was vouched for by a fence after its write");
}

#[test]
fn a_fence_that_fails_fails_for_all_who_waited_and_for_all_after_them() {
    let fixture = Fixture::new();
    let (disk, _) = disk(1, 2);
    let clients: Vec<_> = (0..4).map(|_| fixture.client(Arc::clone(&disk) as _)).collect();
    let first = clients[0].persist(0, b"first");
    wait_until("the first fence begins", || disk.begun() == 1);
    let late: Vec<_> = clients[1..3].iter().map(|client| client.persist(64, b"later")).collect();
    std::thread::sleep(MOMENT);
    disk.let_pass(u64::MAX);
    clients[0].assert_done(first);
    let last = clients[3].persist(128, b"last");
    for (client, ticket) in clients[1..].iter().zip(late.into_iter().chain([last])) {
        let done = client.wait(ticket, LIMIT).expect("in time");
        let is_refused = matches!(done.outcome, Err(OperationError::Refused { refusal: Refusal::MediumFailed, .. }));
        // The write before it may be what was refused first.
        let is_over = matches!(done.outcome, Err(OperationError::ConnectionEnded(_)));
        assert!(is_refused || is_over, "{done:?}");
    }
}

#[test]
fn clients_that_leave_meanwhile_leave_the_target_in_order() {
    let fixture = Fixture::new();
    let (disk, _) = disk(1, 0);
    let leaving = fixture.client(Arc::clone(&disk) as _);
    let staying = fixture.client(Arc::clone(&disk) as _);
    leaving.persist(0, b"leaves");
    wait_until("its fence begins", || disk.begun() == 1);
    let ticket = staying.persist(64, b"stays");
    drop(leaving);
    disk.let_pass(u64::MAX);
    staying.assert_done(ticket);
    staying.assert_done(staying.persist(64, b"again"));
}

#[test]
fn many_operations_behind_a_flush_are_carried_out_in_order() {
    let fixture = Fixture::new();
    let (disk, _) = disk(1, 0);
    let client = fixture.client(Arc::clone(&disk) as _);
    let mut tickets = vec![client.persist(0, b"held")];
    wait_until("its fence begins", || disk.begun() == 1);
    // More than the target stages.
    for round in 0..100_u64 {
        tickets.push(client.persist(8, &[round as u8; 512]));
    }
    client.assert_waits(tickets[0]);
    disk.let_pass(u64::MAX);
    for ticket in tickets {
        client.assert_done(ticket);
    }
    let mut found = [0; 512];
    disk.read(8, &mut found).unwrap();
    assert_eq!(found, [99; 512]);
}
