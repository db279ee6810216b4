//! What only RDMA devices show: methods of flush, media that a device cannot reach, shared receives, silent hosts.

use std::{
    env,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, ConnectOptions, ConnectionEvent, DEFAULT_SPIN, DeviceChoice, Durability, Evidence, Flushed,
    Medium, Memory, Method, Outcome, Peer, PostError, Progress, QueueOptions, RegisterError, RemoteRegion, RingError,
    Settings, SetupError, Signal, VerbsOptions, Waiting,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    fabric::Fabric,
    fabrics::{Verbs, capabilities, peer_at, wire_loses},
    pair::{LONG, Pair, Setup, join, listen_options, pair, region},
    support::{content, pattern},
};

const LEN_BYTES: u64 = 1 << 20;

fn opened(initiator: &VerbsOptions, target: &VerbsOptions, connect: ConnectOptions) -> Pair {
    let peers = (peer_at("PMOF_WIRE_A", initiator), peer_at("PMOF_WIRE_B", target));
    pair(peers, Verbs::new().listen_address(), &Setup { connect, ..Setup::default() })
}

/// The first bytes of the device that is persistent memory.
fn devdax() -> Arc<dyn Medium> {
    let path = env::var_os("PMOF_DEVDAX").expect("the test bed names a device");
    Arc::new(Memory::open(path.as_ref(), None).expect("it opens"))
}

fn register(owner: &Peer, memory: &Arc<dyn Medium>) -> (pmof_access::Region, RemoteRegion) {
    let region = owner.register(Arc::clone(memory), 0, LEN_BYTES, Access::all()).expect("a region");
    let remote = RemoteRegion::from_descriptor(&region.descriptor()).expect("its descriptor");
    (region, remote)
}

/// Writes, atomically too, and flushes; the bytes are there and the receipt says what was promised.
fn persists(pair: &Pair, remote: &RemoteRegion, memory: &Arc<dyn Medium>, expected: Method) {
    let connection = &pair.initiator.connection;
    let (method, promise) = connection.flush_method(remote, Durability::PowerFailure).expect("a method");
    assert_eq!(method, expected);
    for (round, len_bytes) in (0..).zip([1, 64, 4096, 100_000]) {
        let bytes = pattern(len_bytes, round);
        let mut batch = connection.batch();
        batch.write(remote, 4096, &bytes).unwrap();
        batch.atomic_write(remote, 8, round).unwrap();
        let flush = batch.flush(remote, .., Durability::PowerFailure).unwrap();
        batch.submit();
        let flushed = Flushed { durability: Durability::PowerFailure, method, promise };
        assert_eq!(pair.initiator.done(flush), Outcome::Flushed(flushed));
        let mut found = vec![0; len_bytes];
        memory.read(4096, &mut found).unwrap();
        assert!(found == bytes);
        memory.read(8, &mut found[..1]).unwrap();
        assert_eq!(u64::from(found[0]), round);
    }
}

#[test]
fn devdax_is_flushed_natively_where_both_ends_have_it() {
    let with = VerbsOptions::default();
    let without = VerbsOptions::default().native_flush(false).atomic_write(false);
    let has = capabilities().native_flush_persistent;
    let best = if has { Method::NativeFlush } else { Method::SendAfterWrite };
    for (initiator, target, expected) in [
        (&with, &with, best),
        (&without, &with, Method::SendAfterWrite),
        (&with, &without, Method::SendAfterWrite),
        (&without, &without, Method::SendAfterWrite),
    ] {
        let pair = opened(initiator, target, ConnectOptions::default());
        let memory = devdax();
        let (owned, remote) = register(&pair.target.peer, &memory);
        assert_eq!(owned.why_not_direct(), None);
        assert_eq!(remote.promise(Durability::PowerFailure).unwrap().evidence, Evidence::Probed);
        persists(&pair, &remote, &memory, expected);
    }
}

/// Posts a batch in which the device gets writes as they are posted, mixed with what ends such a run, and checks every byte and outcome.
#[test]
fn a_batch_of_unsignalled_writes_keeps_its_order_whatever_comes_between() {
    let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), ConnectOptions::default());
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(LEN_BYTES).unwrap());
    let (_owned, remote) = register(&pair.target.peer, &memory);
    let (long, _) = region(&pair.initiator.peer, LEN_BYTES, Access::empty());
    long.store(0, &pattern(8192, 77)).unwrap();
    let mut expected = vec![0; LEN_BYTES as usize];
    for round in 0..40_u64 {
        let mut signalled = Vec::new();
        let mut batch = pair.initiator.connection.batch();
        let mut last = 0;
        for index in 0..100_u64 {
            let which = (round * 31 + index * 7) % 23;
            batch.signal(if which == 3 { Signal::Always } else { Signal::OnError }).context(which / 12);
            // In a row, overlapping, and elsewhere.
            let offset = if which < 16 { index * 32 } else { (index * 4099 + round * 8) % (LEN_BYTES - 8192) };
            let bytes = pattern(if which == 5 { 300 } else { 32 }, round * 100 + index);
            let ticket = match which {
                7 => {
                    expected[offset as usize..][..8192].copy_from_slice(&pattern(8192, 77));
                    batch.write(&remote, offset, long.slice(..8192).unwrap()).unwrap()
                }
                11 => {
                    expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                    let ticket = batch.by_message(true).write(&remote, offset, &bytes).unwrap();
                    batch.by_message(false);
                    ticket
                }
                13 => batch.flush(&remote, .., Durability::Visible).unwrap(),
                _ => {
                    expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                    batch.write(&remote, offset, &bytes).unwrap()
                }
            };
            assert!(ticket.0 > last, "tickets count up");
            last = ticket.0;
            if which == 3 {
                signalled.push(ticket);
            }
        }
        let flush = batch.signal(Signal::Always).flush(&remote, .., Durability::Visible).unwrap();
        if round % 3 == 0 {
            batch.hold();
        } else {
            batch.submit();
        }
        assert!(matches!(pair.initiator.done(flush), Outcome::Flushed(_)));
        for ticket in signalled {
            pair.initiator.done(ticket);
        }
        let mut found = vec![0; LEN_BYTES as usize];
        memory.read(0, &mut found).unwrap();
        assert!(found == expected, "round {round}");
        assert_eq!(pair.initiator.connection.outstanding(), 0);
    }
}

/// Registered memory goes into the device's ring in a row, too, and nobody but the row keeps it.
#[test]
fn registered_memory_in_a_row_is_kept_until_the_device_has_let_go_of_it() {
    const PIECE_BYTES: u64 = 1 << 14;
    let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), ConnectOptions::default());
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(LEN_BYTES).unwrap());
    let (_owned, remote) = register(&pair.target.peer, &memory);
    for round in 0..8_u64 {
        let mut expected = vec![0; LEN_BYTES as usize];
        memory.store(0, &expected).unwrap();
        let mut batch = pair.initiator.connection.batch();
        batch.signal(Signal::OnError);
        for (number, pieces) in [3, 1, 12, 20].into_iter().enumerate() {
            let first = [0, 3, 4, 40][number];
            let (source, _) = region(&pair.initiator.peer, pieces * PIECE_BYTES, Access::empty());
            let bytes = pattern((pieces * PIECE_BYTES) as usize, round * 4 + number as u64);
            source.store(0, &bytes).unwrap();
            for piece in 0..pieces {
                let (from, to) = (piece * PIECE_BYTES, (first + piece) * PIECE_BYTES);
                // The last one is shorter, and some are so short that they go inline.
                let len_bytes = if piece + 1 == pieces { 1000 } else { PIECE_BYTES >> (round % 2 * 8) };
                let part = source.part(from..from + len_bytes).unwrap();
                if piece % 2 == 0 {
                    batch.write(&remote, to, source.slice(from..from + len_bytes).unwrap()).unwrap();
                } else {
                    batch.write(&remote, to, part).unwrap();
                }
                expected[to as usize..][..len_bytes as usize]
                    .copy_from_slice(&bytes[from as usize..][..len_bytes as usize]);
            }
        }
        let flush = batch.signal(Signal::Always).flush(&remote, .., Durability::Visible).unwrap();
        batch.submit();
        pair.initiator.done(flush);
        let mut found = vec![0; LEN_BYTES as usize];
        memory.read(0, &mut found).unwrap();
        assert!(found == expected, "round {round}");
        assert_eq!(pair.initiator.connection.outstanding(), 0);
    }
}

#[test]
fn a_read_after_write_that_makes_nothing_durable_is_refused() {
    let connect = ConnectOptions::default().method(Some(Method::ReadAfterWrite));
    let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), connect);
    let (_owned, remote) = register(&pair.target.peer, &devdax());
    let error = pair.initiator.connection.flush(&remote, .., Durability::PowerFailure).unwrap_err();
    assert!(matches!(error, PostError::MethodRefused { method: "read-after-write", .. }), "{error}");
    assert!(error.to_string().contains("software device"), "{error}");
    // It does make visible.
    let flush = pair.initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
    assert!(matches!(pair.initiator.done(flush), Outcome::Flushed(_)));
    // Nor does an operator's word help, where the device itself proves it wrong.
    let declared = VerbsOptions::default()
        .device(DeviceChoice::Named(pair.target.peer.device_name().unwrap().to_owned()))
        .inbound_declared(true);
    assert!(matches!(Peer::open_verbs(&declared).unwrap_err(), SetupError::InboundContradicted { .. }));
}

#[test]
fn memory_that_a_device_cannot_reach_is_served_by_messages() {
    for (variable, why) in [("PMOF_FSDAX", "pin"), ("PMOF_FILE", "pin")] {
        let directory = env::var_os(variable).expect("the test bed names its media");
        let directory = tempfile::tempdir_in(directory).unwrap();
        let memory: Arc<dyn Medium> = Arc::new(Memory::create(&directory.path().join("a"), LEN_BYTES, None).unwrap());
        let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), ConnectOptions::default());
        let (owned, remote) = register(&pair.target.peer, &memory);
        let reason = owned.why_not_direct().expect("a reason");
        assert!(reason.contains(why), "{reason}");
        persists(&pair, &remote, &memory, Method::SendAfterWrite);
    }
}

#[test]
fn what_is_not_durable_stays_refused() {
    let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), ConnectOptions::default());
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(LEN_BYTES).unwrap());
    let (_owned, remote) = register(&pair.target.peer, &memory);
    let error = pair.initiator.connection.flush(&remote, .., Durability::PowerFailure).unwrap_err();
    assert!(matches!(error, PostError::NotDurable { .. }), "{error}");
    let (method, _) = pair.initiator.connection.flush_method(&remote, Durability::Visible).unwrap();
    let has = capabilities().native_flush_global;
    assert_eq!(method, if has { Method::NativeFlush } else { Method::ReadAfterWrite });
}

#[test]
fn many_connections_share_receives() {
    let options = VerbsOptions::default().shared_receives(Some(64));
    let pair = opened(&VerbsOptions::default(), &options, ConnectOptions::default());
    let (memory, remote) = region(&pair.target.peer, 64 << 10, Access::all());
    let (inbox, _) = region(&pair.target.peer, 4096, Access::empty());
    let setup = Setup::default();
    let more: Vec<_> = (0..12)
        .map(|_| join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &setup))
        .collect();
    for round in 0..5 {
        for (index, (here, there)) in (0..).zip(&more) {
            there.receive(inbox.slice(..).unwrap(), index).unwrap();
            here.write(&remote, index * 4096, &pattern(4096, index + round)).unwrap();
            // More messages than one connection's own ring has.
            here.send(&pattern(4000, index)).unwrap();
        }
        for _ in &more {
            let done = pair.target.queue.wait(LONG).expect("a message in time");
            assert_eq!(done.outcome, Ok(Outcome::Received { len_bytes: 4000, immediate: None }));
        }
        for _ in 0..2 * more.len() {
            assert!(pair.initiator.queue.wait(LONG).expect("an outcome in time").outcome.is_ok());
        }
        for index in 0..12 {
            assert!(content(&memory, index * 4096, 4096) == pattern(4096, index + round));
        }
    }
    drop(more);
    // What the others held comes back to those that stay.
    for _ in 0..40 {
        pair.target.connection.receive(inbox.slice(..).unwrap(), 1).unwrap();
        let sent = pair.initiator.connection.send(&pattern(4000, 1)).unwrap();
        assert!(pair.target.queue.wait(LONG).expect("a message in time").outcome.is_ok());
        pair.initiator.done(sent);
    }
}

#[test]
fn ipv6_leads_there_too() {
    let address: IpAddr = env::var("PMOF_IPV6").expect("the test bed names an address").parse().unwrap();
    let open = || {
        let device = DeviceChoice::Local(address);
        Peer::open_verbs(&VerbsOptions::default().device(device)).expect("a device")
    };
    let listen = std::net::SocketAddr::new(address, 0).into();
    let pair = pair((open(), open()), listen, &Setup::default());
    let (memory, remote) = region(&pair.target.peer, 4096, Access::all());
    let ticket = pair.initiator.connection.write(&remote, 0, b"by IPv6").unwrap();
    pair.initiator.done(ticket);
    assert_eq!(content(&memory, 0, 7), b"by IPv6");
    assert!(pair.initiator.connection.peer_address().unwrap().is_ipv6());
}

#[test]
fn a_cut_cable_is_noticed_even_where_nobody_does_anything() {
    let limit = Duration::from_secs(3);
    let fabric = Verbs::new();
    let connect = ConnectOptions::default().loss_timeout(limit);
    let accept = AcceptOptions::default().loss_timeout(limit);
    let pair = fabric.pair_with(&Setup { connect, accept, ..Setup::default() });
    assert_eq!(pair.initiator.event(), ConnectionEvent::Established);
    wire_loses("100%");
    assert!(matches!(pair.initiator.event(), ConnectionEvent::Lost(_)));
}

#[test]
fn who_did_nothing_for_long_is_not_taken_for_stuck() {
    let loss_timeout = Duration::from_secs(1);
    let fabric = Verbs::new();
    let connect = ConnectOptions::default().loss_timeout(loss_timeout);
    let pair = fabric.pair_with(&Setup { connect, ..Setup::default() });
    let (_memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    for _ in 0..3 {
        let ticket = pair.initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
        pair.initiator.done(ticket);
        std::thread::sleep(3 * loss_timeout);
    }
}

/// Waits on a queue of one device connection begin without the clock, also where nothing comes and where they are told to end.
#[test]
fn a_wait_in_which_nothing_comes_ends_in_time() {
    let timeout = Duration::from_secs(1);
    let fabric = Verbs::new();
    for waiting in
        [Waiting::Adaptive { spin: Duration::ZERO }, Waiting::Adaptive { spin: DEFAULT_SPIN }, Waiting::BusyPoll]
    {
        let initiator_queue = QueueOptions::default().waiting(waiting);
        let pair = fabric.pair_with(&Setup { initiator_queue, ..Setup::default() });
        let (_memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
        let (connection, queue) = (&pair.initiator.connection, &pair.initiator.queue);
        // Polls tell the connection the time, and set no alarm.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(60) {
            assert!(queue.poll().is_none());
        }
        let start = Instant::now();
        assert!(queue.wait(timeout).is_none());
        assert!(start.elapsed() < 2 * timeout, "{waiting:?}: {:?}", start.elapsed());
        for _ in 0..3 {
            // The last sleep leaves its alarm.
            for _ in 0..20 {
                let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
                pair.initiator.done(ticket);
            }
            let start = Instant::now();
            assert!(queue.wait(timeout).is_none());
            let lasted = start.elapsed();
            assert!(lasted >= timeout && lasted < timeout + Duration::from_millis(500), "{waiting:?}: {lasted:?}");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                queue.interrupt();
            });
            let start = Instant::now();
            assert!(queue.wait(LONG).is_none());
            assert!(start.elapsed() < timeout, "{waiting:?}: {:?}", start.elapsed());
        });
    }
}

/// A queue of one device connection has a short way to wait: threads on it lose no outcome to each other, nor a wake-up.
#[test]
fn threads_may_share_the_queue_of_a_single_device() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 500;
    // A round that waited until the connections are told the time would take 20 ms.
    const PROMPT: Duration = Duration::from_secs(20);
    let fabric = Verbs::new();
    for spin in [Duration::ZERO, DEFAULT_SPIN] {
        let initiator_queue = QueueOptions::default().waiting(Waiting::Adaptive { spin });
        let pair = fabric.pair_with(&Setup { initiator_queue, ..Setup::default() });
        let (memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
        let (connection, queue, start) = (&pair.initiator.connection, &pair.initiator.queue, Instant::now());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        let mut batch = connection.batch();
                        batch.signal(Signal::OnError);
                        batch.write(&remote, thread * 8, &round.to_le_bytes()).unwrap();
                        batch.signal(Signal::Always);
                        let ticket = batch.flush(&remote, thread * 8..thread * 8 + 8, Durability::Visible).unwrap();
                        batch.submit();
                        let done = queue.wait_for(connection.id(), ticket, LONG).expect("in time");
                        assert!(matches!(done.outcome, Ok(Outcome::Flushed(_))), "{done:?}");
                    }
                });
            }
        });
        assert!(start.elapsed() < PROMPT, "{:?} with {spin:?}", start.elapsed());
        for thread in 0..THREADS {
            assert_eq!(content(&memory, thread * 8, 8), ROUNDS.to_le_bytes());
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.wait(LONG));
            std::thread::sleep(Duration::from_millis(5));
            queue.interrupt();
            assert_eq!(waiting.join().unwrap(), None, "nothing was posted");
        });
        assert!(start.elapsed() < LONG, "an interrupt ends the wait");
    }
}

/// A write that follows a read waits for it, also where the device has to send one of them again.
#[test]
fn a_wire_that_loses_packets_keeps_the_order() {
    const PART_BYTES: u64 = 128 << 10;
    const ROUNDS: u64 = 60;
    let fabric = Verbs::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, PART_BYTES, Access::all());
    let (local, _) = region(&pair.initiator.peer, ROUNDS * PART_BYTES, Access::empty());
    wire_loses("1%");
    let connection = &pair.initiator.connection;
    for round in 0..ROUNDS {
        connection.write(&remote, 0, &pattern(PART_BYTES as usize, round)).unwrap();
        connection.read(&remote, 0, local.slice(round * PART_BYTES..(round + 1) * PART_BYTES).unwrap()).unwrap();
    }
    let flushed = connection.flush(&remote, .., Durability::Visible).unwrap();
    assert!(matches!(pair.initiator.done(flushed), Outcome::Flushed(_)));
    for round in 0..ROUNDS {
        let read = content(&local, round * PART_BYTES, PART_BYTES as usize);
        assert!(read == pattern(PART_BYTES as usize, round), "read {round}");
    }
    assert_eq!(content(&memory, 0, PART_BYTES as usize), pattern(PART_BYTES as usize, ROUNDS - 1));
}

#[test]
fn over_iwarp_there_are_no_rings() {
    let target = peer_at("PMOF_WIRE_B", &VerbsOptions::default());
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(1 << 20).unwrap());
    let made = target.create_ring(Arc::clone(&memory), 0, 1 << 20);
    if capabilities().completes_early() {
        assert!(matches!(made, Err(RingError::NotVerbs)), "{made:?}");
    } else {
        assert!(made.is_ok(), "{made:?}");
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let open = |device| Peer::open_verbs(&VerbsOptions::default().device(device)).unwrap_err().to_string();
    let missing = open(DeviceChoice::Named("mlx5_99".into()));
    assert!(missing.contains("mlx5_99") && missing.contains("rxe0"), "{missing}");
    let several = open(DeviceChoice::Only);
    assert!(several.contains("rxe0") && several.contains("rxe1"), "{several}");
    let elsewhere = open(DeviceChoice::Local("127.0.0.1".parse().unwrap()));
    assert!(elsewhere.contains("127.0.0.1"), "{elsewhere}");
}

#[test]
fn other_machines_reach_only_those_who_trust_the_network() {
    let fabric = Verbs::new();
    let careful = listen_options().trust_network(false);
    let refused = fabric.target().listen(fabric.listen_address(), careful).unwrap_err();
    assert!(matches!(refused, SetupError::NotLoopback { .. }), "{refused}");
}

#[test]
fn too_little_lockable_memory_is_named() {
    let old = getrlimit(Resource::Memlock);
    let peer = peer_at("PMOF_WIRE_A", &VerbsOptions::default());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    // The superuser is bound by it only without the capability, which the test bed's shell may drop.
    setrlimit(Resource::Memlock, Rlimit { current: Some(1 << 20), maximum: old.maximum }).unwrap();
    let outcome = peer.allocate(64 << 20, Access::all());
    setrlimit(Resource::Memlock, old).unwrap();
    drop(queue);
    match outcome {
        // With CAP_IPC_LOCK there is no limit.
        Ok(_) => skip_report::skipped!("this process may lock all it wants"),
        Err(RegisterError::Device(error)) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
        Err(other) => panic!("{other}"),
    }
}

/// Posts writes of pages of this content, one by one and none to be heard of.
fn write_silently(pair: &Pair, remote: &RemoteRegion, pages: usize) -> Vec<u8> {
    let bytes = pattern(pages * 4096, 7);
    let (source, _) = region(&pair.initiator.peer, bytes.len() as u64, Access::empty());
    source.store(0, &bytes).unwrap();
    for page in 0..pages as u64 {
        let part = source.part(page * 4096..(page + 1) * 4096).unwrap();
        pair.initiator.connection.single().signal(Signal::OnError).write(remote, page * 4096, part).unwrap();
    }
    bytes
}

#[test]
fn unsignalled_writes_are_asked_after() {
    let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), ConnectOptions::default());
    let (memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    let bytes = write_silently(&pair, &remote, 3);
    let start = Instant::now();
    while pair.initiator.connection.outstanding() > 0 {
        assert_eq!(pair.initiator.queue.poll(), None, "nothing is to be heard");
        assert!(start.elapsed() < LONG, "they stay under way");
    }
    assert!(content(&memory, 0, bytes.len()) == bytes);
}

#[test]
fn unsignalled_writes_never_fill_the_queue() {
    let settings = Settings { send_queue: 8, ..Settings::default() };
    let connect = ConnectOptions::default().settings(settings);
    let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), connect);
    let (_memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    let (source, _) = region(&pair.initiator.peer, 4096, Access::empty());
    for number in 0..500 {
        let post = || {
            let single = pair.initiator.connection.single().signal(Signal::OnError);
            single.write(&remote, number * 512, source.part(..512).unwrap())
        };
        while let Err(error) = post() {
            assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
            assert!(pair.initiator.connection.wait_send_room(LONG));
        }
    }
    assert!(pair.initiator.connection.wait_send_room(LONG));
    let flush = pair.initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
    assert!(matches!(pair.initiator.done(flush), Outcome::Flushed(_)));
    assert_eq!(pair.initiator.connection.outstanding(), 0);
}

#[test]
fn unsignalled_writes_before_the_other_side_closes_are_no_failures() {
    let pair = opened(&VerbsOptions::default(), &VerbsOptions::default(), ConnectOptions::default());
    let (memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    let bytes = write_silently(&pair, &remote, 3);
    let start = Instant::now();
    while content(&memory, 0, bytes.len()) != bytes {
        assert!(start.elapsed() < LONG, "they do not arrive");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The acknowledgements are there too, and this side has not looked.
    std::thread::sleep(Duration::from_millis(20));
    let Pair { initiator, target, listener } = pair;
    drop(target);
    assert_eq!([initiator.event(), initiator.event()], [ConnectionEvent::Established, ConnectionEvent::Closed]);
    let settled = Instant::now();
    while settled.elapsed() < Duration::from_secs(2) {
        assert_eq!(initiator.queue.poll(), None, "a write that arrived is told as failed");
    }
    assert_eq!(initiator.connection.outstanding(), 0);
    drop(listener);
}

#[test]
fn the_queue_of_receives_takes_no_other_outcomes() {
    let verbs = VerbsOptions::default();
    let (here, there) = (peer_at("PMOF_WIRE_A", &verbs), peer_at("PMOF_WIRE_B", &verbs));
    let assisted = QueueOptions::default().progress(Progress::Assisted);
    let receives = here.completion_queue(assisted).unwrap();
    let connect = ConnectOptions::default().receive_queue(Some(receives.clone())).timeout(LONG);
    let setup = Setup { connect, initiator_queue: assisted, ..Setup::default() };
    let pair = pair((here, there), Verbs::new().listen_address(), &setup);
    let (_memory, remote) = region(&pair.target.peer, LEN_BYTES, Access::all());
    for _ in 0..20 {
        let flush = pair.initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
        for _ in 0..200 {
            assert_eq!(receives.poll(), None);
        }
        assert_eq!(receives.wait(Duration::from_millis(1)), None);
        assert!(matches!(pair.initiator.done(flush), Outcome::Flushed(_)));
    }
}
