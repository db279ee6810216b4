//! What only real sockets and threads show: names, readiness, several threads on one queue, silent hosts.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, Address, CompletionQueue, ConnectError, ConnectOptions, ConnectionError, ConnectionEvent,
    Durability, ListenOptions, Method, OperationError, Outcome, Peer, PostError, QueueOptions, RemoteRegion, Transport,
    Waiting,
};
use pmof_proto::frame::{Frame, Opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::pair::{LONG, Pair, Setup, join, loopback, pair, region, threaded};
use crate::support::content;

fn tcp(setup: &Setup) -> Pair {
    let open = || Peer::open(Transport::Tcp).unwrap();
    pair((open(), open()), loopback(), setup)
}

/// Connects to `host` where a listener at `bound` takes one request.
fn connects_by_name(bound: &str, host: &str) {
    let (peer, target) = (Peer::open(Transport::Tcp).unwrap(), Peer::open(Transport::Tcp).unwrap());
    let listener =
        target.listen(format!("{bound}:0").parse::<SocketAddr>().unwrap(), ListenOptions::default()).unwrap();
    let address: Address = format!("tcp://{host}:{}", listener.local_address().port()).parse().unwrap();
    let serving = target.completion_queue(threaded()).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.next_request(LONG).unwrap().unwrap();
            assert!(request.peer_address().unwrap().ip().is_loopback());
            request.accept(&serving, &AcceptOptions::default()).unwrap()
        });
        let connection = peer.connect(&address, &queue, &ConnectOptions::default()).unwrap();
        assert_eq!(connection.peer_address().unwrap().ip(), listener.local_address().socket_address().unwrap().ip());
        let (_memory, remote) = region(&target, 64, Access::all());
        let (method, _) = connection.flush_method(&remote, Durability::Visible).unwrap();
        assert_eq!(method, Method::SendAfterWrite);
        assert!(accepting.join().unwrap().is_established());
    });
}

#[test]
fn numbers_and_names_lead_there() {
    connects_by_name("127.0.0.1", "127.0.0.1");
    // Where the name has an address of the other family first, that one is tried and passed over.
    connects_by_name("127.0.0.1", "localhost");
    if TcpListener::bind("[::1]:0").is_err() {
        skip_report::skipped!("this machine has no IPv6 loopback");
        return;
    }
    connects_by_name("[::1]", "[::1]");
}

#[test]
fn an_unknown_name_says_so() {
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let address: Address = "tcp://no-such-host.invalid:1".parse().unwrap();
    let error = peer.connect(&address, &queue, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(&error, ConnectError::Resolve { host, .. } if host == "no-such-host.invalid"), "{error}");
}

fn is_ready(queue: &CompletionQueue, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut [PollFd::from_borrowed_fd(queue.fd().unwrap(), PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

#[test]
fn a_queue_can_be_waited_for_with_poll() {
    for (initiator_queue, connections) in
        [(QueueOptions::default(), 1), (QueueOptions::default(), 8), (threaded(), 1), (threaded(), 8)]
    {
        let setup = Setup { initiator_queue, ..Setup::default() };
        let pair = tcp(&setup);
        let more: Vec<_> = (1..connections)
            .map(|_| join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &setup))
            .collect();
        let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
        let queue = &pair.initiator.queue;
        let all = more.iter().map(|(here, _)| here).chain([&pair.initiator.connection]);
        for round in 0..50 {
            assert_eq!(queue.poll(), None, "nothing was posted");
            assert!(!is_ready(queue, Duration::ZERO), "an idle queue is not readable (round {round})");
            for connection in all.clone() {
                connection.write(&remote, 0, b"x").unwrap();
            }
            let mut outcomes = 0;
            while outcomes < connections {
                assert!(is_ready(queue, LONG), "no outcome in time");
                while let Some(done) = queue.poll() {
                    done.outcome.unwrap();
                    outcomes += 1;
                }
            }
        }
        // An interrupt is for waits of this library and does not leave the descriptor readable.
        queue.interrupt();
        assert_eq!(queue.wait(LONG), None);
        assert!(!is_ready(queue, Duration::ZERO));
    }
}

#[test]
fn threads_may_share_a_queue() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    let spinning = QueueOptions::default().waiting(Waiting::Adaptive { spin: Duration::ZERO });
    for initiator_queue in [QueueOptions::default(), spinning, threaded()] {
        for connections in [1, 4, 8] {
            let setup = Setup { initiator_queue, ..Setup::default() };
            let pair = tcp(&setup);
            let ends: Vec<_> = (0..connections)
                .map(|_| join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &setup))
                .collect();
            let (memory, remote) = region(&pair.target.peer, THREADS * 8, Access::all());
            let (ends, queue, remote) = (&ends, &pair.initiator.queue, &remote);
            // A thread that missed an outcome because another thread collected it would sleep on.
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    scope.spawn(move || {
                        let connection = &ends[thread as usize % ends.len()].0;
                        for round in 1..=ROUNDS {
                            let mut batch = connection.batch();
                            let ticket = batch.atomic_write(remote, thread * 8, round).unwrap();
                            batch.submit();
                            let done = queue.wait_for(connection.id(), ticket, Duration::MAX).expect("an outcome");
                            assert_eq!(done.outcome, Ok(Outcome::Done { len_bytes: 8 }));
                        }
                    });
                }
            });
            for thread in 0..THREADS {
                assert_eq!(content(&memory, thread * 8, 8), ROUNDS.to_le_bytes());
            }
        }
    }
}

#[test]
fn one_thread_posts_while_others_collect() {
    const OPERATIONS: u64 = 3000;
    for initiator_queue in [QueueOptions::default(), threaded()] {
        let pair = tcp(&Setup { initiator_queue, ..Setup::default() });
        let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
        let (queue, connection) = (&pair.initiator.queue, &pair.initiator.connection);
        let collected = std::sync::atomic::AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    use std::sync::atomic::Ordering::SeqCst;
                    while collected.load(SeqCst) < OPERATIONS {
                        if let Some(done) = queue.wait(Duration::MAX) {
                            done.outcome.unwrap();
                            collected.fetch_add(1, SeqCst);
                        }
                    }
                    // The others may have gone to sleep before the last one came.
                    queue.interrupt();
                });
            }
            for _ in 0..OPERATIONS {
                while let Err(error) = connection.write(&remote, 0, b"x") {
                    assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
                    assert!(connection.wait_send_room(Duration::MAX));
                }
            }
        });
        assert_eq!(connection.outstanding(), 0);
    }
}

#[test]
fn another_thread_ends_a_wait() {
    for options in [QueueOptions::default(), threaded()] {
        let peer = Peer::open(Transport::Tcp).unwrap();
        let queue = peer.completion_queue(options).unwrap();
        let listener = peer.listen(loopback(), ListenOptions::default()).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.wait(Duration::MAX));
            let listening = scope.spawn(|| listener.next_request(Duration::MAX).unwrap().is_none());
            queue.interrupt();
            listener.interrupt();
            assert_eq!(waiting.join().unwrap(), None);
            assert!(listening.join().unwrap());
        });
    }
}

#[test]
fn a_queue_with_a_thread_tells_everything_at_once() {
    let pair = tcp(&Setup { initiator_queue: threaded(), ..Setup::default() });
    assert_eq!(pair.initiator.event(), ConnectionEvent::Established);
    // Nobody receives, so the queue fills; every receive makes room.
    while pair.initiator.connection.wait_send_room(Duration::from_millis(100)) {
        pair.initiator.connection.send(b"x").unwrap();
    }
    let (inbox, _) = region(&pair.target.peer, 8, Access::empty());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| pair.initiator.connection.wait_send_room(Duration::MAX));
        pair.target.connection.receive(inbox.slice(..).unwrap(), 0).unwrap();
        assert!(waiting.join().unwrap());
    });
    drop(pair.target.connection);
    assert_eq!(pair.initiator.event(), ConnectionEvent::Closed);
}

/// The answer of a target that accepts, written by hand from the protocol's tables.
fn welcome() -> [u8; 64] {
    let mut frame = Frame::new(Opcode::Welcome, 1 | 1 << 16);
    frame.flags = 2;
    frame.immediate = u32::from_le_bytes(*b"PMOF");
    frame.key[8..12].copy_from_slice(&65536_u32.to_le_bytes());
    frame.key[12..].copy_from_slice(&64_u32.to_le_bytes());
    frame.offset = 1 << 30;
    frame.operand = 1024;
    frame.encode()
}

#[test]
fn a_target_that_accepts_and_says_nothing_times_out() {
    const LIMIT: Duration = Duration::from_millis(150);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::open(Transport::Tcp).unwrap();
    for options in [QueueOptions::default(), threaded()] {
        let queue = peer.completion_queue(options).unwrap();
        let connect = ConnectOptions::default().timeout(LIMIT);
        let start = Instant::now();
        let pending = peer.start_connect(silent.local_addr().unwrap(), &queue, &connect).unwrap();
        let _accepted = silent.accept().unwrap();
        let error = pending.finish().unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut { timeout_ms: 150, .. }), "{error}");
        assert!(start.elapsed() >= LIMIT);
    }
}

#[test]
fn a_target_that_stalls_after_the_handshake_is_lost() {
    const LIMIT: Duration = Duration::from_millis(150);
    let owner = Peer::open(Transport::Tcp).unwrap();
    let (_memory, remote) = region(&owner, 64, Access::all());
    for options in [QueueOptions::default(), threaded()] {
        let stalling = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = Peer::open(Transport::Tcp).unwrap();
        let queue = peer.completion_queue(options).unwrap();
        let connect = ConnectOptions::default().loss_timeout(LIMIT);
        let pending = peer.start_connect(stalling.local_addr().unwrap(), &queue, &connect).unwrap();
        let (mut stream, _) = stalling.accept().unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        stream.write_all(&welcome()).unwrap();
        let connection = pending.finish().unwrap();
        let start = Instant::now();
        let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
        let outcome = queue.wait_for(connection.id(), ticket, LONG).expect("an outcome in time").outcome;
        let lost = OperationError::ConnectionEnded(ConnectionError::TimedOut {
            limit_ms: 150,
            awaited: "the reply to a posted operation",
        });
        assert_eq!(outcome, Err(lost));
        assert!(start.elapsed() >= LIMIT, "{:?}", start.elapsed());
        assert_eq!(connection.next_event(LONG), Some(ConnectionEvent::Established));
        assert!(matches!(connection.next_event(LONG), Some(ConnectionEvent::Lost(ConnectionError::TimedOut { .. }))));
    }
}

#[test]
fn whoever_only_polls_learns_of_a_loss_too() {
    const LIMIT: Duration = Duration::from_millis(100);
    let stalling = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let connect = ConnectOptions::default().loss_timeout(LIMIT);
    let pending = peer.start_connect(stalling.local_addr().unwrap(), &queue, &connect).unwrap();
    let (mut stream, _) = stalling.accept().unwrap();
    stream.write_all(&welcome()).unwrap();
    let connection = pending.finish().unwrap();
    connection.send(b"anybody there?").unwrap();
    let start = Instant::now();
    // As an event loop does: sleep on the descriptor for a while, then poll once.
    let done = loop {
        is_ready(&queue, Duration::from_millis(10));
        if let Some(done) = queue.poll() {
            break done;
        }
        assert!(start.elapsed() < LONG, "the loss went unnoticed");
    };
    assert!(matches!(done.outcome, Err(OperationError::ConnectionEnded(ConnectionError::TimedOut { .. }))));
}

#[test]
fn a_stream_that_ends_early_is_no_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    for answer in
        [&b""[..], b"HTTP/1.1 400 Bad Request\r\nServer: something-else\r\nContent-Length: 0\r\n\r\n", &welcome()[..63]]
    {
        let address = listener.local_addr().unwrap();
        let pending = peer.start_connect(address, &queue, &ConnectOptions::default()).unwrap();
        let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        stream.write_all(answer).unwrap();
        drop(stream);
        let error = pending.finish().unwrap_err();
        assert!(matches!(error, ConnectError::Ended { .. }), "{error}");
    }
}

#[test]
fn time_limits_may_be_long_or_short() {
    for loss_timeout in
        [Duration::from_millis(1), Duration::from_secs(60), Duration::from_secs(3_600_000), Duration::MAX]
    {
        let connect = ConnectOptions::default().loss_timeout(loss_timeout).timeout(Duration::MAX);
        let accept = AcceptOptions::default().loss_timeout(loss_timeout);
        let pair = tcp(&Setup { connect, accept, ..Setup::default() });
        let memory = pair.target.peer.allocate(64, Access::all()).unwrap();
        let remote = RemoteRegion::from_descriptor(&memory.descriptor()).unwrap();
        let ticket = pair.initiator.connection.write(&remote, 0, b"x").unwrap();
        let id = pair.initiator.connection.id();
        let done = pair.initiator.queue.wait_for(id, ticket, Duration::MAX).unwrap();
        if loss_timeout > Duration::from_millis(1) {
            done.outcome.unwrap();
        }
    }
}

/// Whoever saw that a request waits, and asks for it without a limit of time, would otherwise wait for the next client.
#[test]
fn a_request_is_reported_although_its_client_has_gone() {
    let open = || Peer::open(Transport::Tcp).unwrap();
    let (peer, target) = (open(), open());
    let listener = target.listen(loopback(), ListenOptions::default()).unwrap();
    let serving = target.completion_queue(QueueOptions::default()).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let start = |_| peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    drop((0..4).map(start).collect::<Vec<_>>());
    drop(queue);
    // The first look reads all requests, the next sees that their clients have gone.
    for _ in 0..4 {
        let request = listener.next_request(LONG).unwrap().expect("a request");
        let connection = request.accept(&serving, &AcceptOptions::default()).unwrap();
        let ended = std::iter::repeat_with(|| connection.next_event(LONG).expect("an event"));
        assert!(ended.take(2).any(|event| event != ConnectionEvent::Established));
    }
}
