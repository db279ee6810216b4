//! Rings in persistent memory that a connection appends to, and read-after-send.
//!
//! Where the device-DAX of the machine keeps its caches (`persistence_domain` is `cpu_cache`) the rings lie there, else in
//! memory that is declared to be kept.

use std::{
    env,
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{
    Access, AppendRing, CompletionQueue, ConnectError, ConnectOptions, Connection, ConnectionEvent, Declaration,
    Durability, Evidence, Flushed, Medium, Memory, Method, OperationKind, Outcome, Peer, PostError, Promise,
    QueueOptions, RECORD_MAX_BYTES, RemoteRegion, RingError, RingRecord, RingRefusal, Ticket, VerbsOptions, read_ring,
};

use pmof_proto::{Descriptor, RegionKey};

use crate::{
    fabric::Fabric,
    fabrics::{Verbs, peer_at},
    pair::{LONG, Pair, Setup, Side, join, next_request, pair, region, threaded},
    support::{content, pattern},
};

/// Slots that the message stream keeps.
const STREAM_SLOTS: u64 = 16;

fn bytes_of(slots: u64) -> u64 {
    4096 + slots * 8192
}

/// Memory of its own for each ring: all of it lies at offset 0.
struct Place {
    memory: Arc<dyn Medium>,
    evidence: Evidence,
    /// Kept as long as the memory is used.
    directory: Option<tempfile::TempDir>,
}

fn devdax() -> Arc<dyn Medium> {
    let path = env::var_os("PMOF_DEVDAX").expect("the test bed names a device");
    Arc::new(Memory::open(path.as_ref(), None).expect("it opens"))
}

fn keeps_caches(memory: &dyn Medium) -> bool {
    memory.promise(Durability::PowerFailure).is_some_and(Promise::cpu_caches_persist)
}

fn durable(slots: u64) -> Place {
    let device = devdax();
    if keeps_caches(device.as_ref()) {
        device.store(0, &[0; 4096]).unwrap();
        return Place { memory: device, evidence: Evidence::Probed, directory: None };
    }
    let directory = tempfile::tempdir_in(env::var_os("PMOF_TMPFS").expect("the test bed names its media")).unwrap();
    let kept = Some(Declaration::BatteryBacked);
    let memory = Arc::new(Memory::create(&directory.path().join("ring"), bytes_of(slots), kept).unwrap());
    Place { memory, evidence: Evidence::Declared, directory: Some(directory) }
}

fn target() -> Peer {
    peer_at("PMOF_WIRE_B", &VerbsOptions::default())
}

fn named(ring: &AppendRing) -> RemoteRegion {
    RemoteRegion::from_descriptor(&ring.descriptor()).expect("its descriptor")
}

fn appending_to(ring: RemoteRegion, target_queue: QueueOptions) -> Setup {
    let connect = ConnectOptions::default().append_to(Some(ring)).timeout(LONG);
    Setup { connect, target_queue, ..Setup::default() }
}

/// A connection that appends to a new ring of so many slots.
fn appending(place: &Place, slots: u64, target_queue: QueueOptions) -> (Pair, AppendRing, RemoteRegion) {
    let target = target();
    let ring = target.create_ring(Arc::clone(&place.memory), 0, bytes_of(slots)).expect("a ring");
    let remote = named(&ring);
    let peers = (peer_at("PMOF_WIRE_A", &VerbsOptions::default()), target);
    let pair = pair(peers, Verbs::new().listen_address(), &appending_to(remote, target_queue));
    (pair, ring, remote)
}

fn record(number: u64) -> Vec<u8> {
    pattern((number * 613 % (RECORD_MAX_BYTES + 1)) as usize, number)
}

/// Appends a record as soon as there is room to post it.
fn append(pair: &Pair, bytes: &[u8]) -> Ticket {
    when_there_is_room(pair, |connection| connection.append(bytes))
}

fn when_there_is_room(pair: &Pair, post: impl Fn(&Connection) -> Result<Ticket, PostError>) -> Ticket {
    loop {
        match post(&pair.initiator.connection) {
            Err(PostError::QueueFull { .. }) => assert!(pair.initiator.connection.wait_send_room(LONG)),
            posted => return posted.expect("posted"),
        }
    }
}

/// Appends records of these numbers and flushes; the receipt says how.
fn append_and_flush(pair: &Pair, ring: &RemoteRegion, numbers: std::ops::Range<u64>, evidence: Evidence) {
    let connection = &pair.initiator.connection;
    let (method, promise) = connection.flush_method(ring, Durability::PowerFailure).expect("a method");
    assert_eq!((method, promise.evidence), (Method::ReadAfterSend, evidence));
    let appended: Vec<_> = numbers.clone().map(|number| append(pair, &record(number))).collect();
    let flush = when_there_is_room(pair, |connection| connection.flush(ring, .., Durability::PowerFailure));
    for (ticket, number) in appended.into_iter().zip(numbers) {
        let done = pair.initiator.queue.wait_for(connection.id(), ticket, LONG).expect("an outcome in time");
        assert_eq!(done.kind, OperationKind::Append);
        assert_eq!(done.outcome, Ok(Outcome::Done { len_bytes: record(number).len() as u64 }));
    }
    let flushed = Flushed { durability: Durability::PowerFailure, method, promise };
    assert_eq!(pair.initiator.done(flush), Outcome::Flushed(flushed));
}

fn assert_records(found: &[RingRecord], numbers: std::ops::Range<u64>) {
    assert_eq!(found.len() as u64, numbers.end - numbers.start);
    for (record_found, number) in found.iter().zip(numbers) {
        assert!(record_found.bytes == record(number), "record {number}");
    }
    assert!(found.is_sorted_by(|one, next| one.sequence + 1 == next.sequence));
}

fn wait_for(ring: &AppendRing, queue: &CompletionQueue, count: usize) {
    let start = Instant::now();
    while ring.len() < count {
        let _ = queue.poll();
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < LONG, "{} of {count} records in time", ring.len());
    }
}

#[test]
fn a_ring_behind_caches_that_lose_their_contents_is_not_flushed() {
    let memory = devdax();
    memory.store(0, &[0; 4096]).unwrap();
    let keeps = keeps_caches(memory.as_ref());
    let place = Place { memory, evidence: Evidence::Probed, directory: None };
    let (pair, _ring, remote) = appending(&place, 64, threaded());
    let connection = &pair.initiator.connection;
    if keeps {
        assert!(matches!(connection.flush_method(&remote, Durability::PowerFailure), Ok((Method::ReadAfterSend, _))));
        return;
    }
    let error = connection.flush(&remote, .., Durability::PowerFailure).unwrap_err();
    assert!(matches!(error, PostError::MethodRefused { method: "read-after-send", .. }), "{error}");
    assert!(error.to_string().contains("software device"), "{error}");
    // The other levels it does give, and the connection goes on.
    let append = connection.append(b"seen").unwrap();
    let flush = connection.flush(&remote, .., Durability::ProcessCrash).unwrap();
    pair.initiator.done(append);
    assert!(
        matches!(pair.initiator.done(flush), Outcome::Flushed(done) if done.durability == Durability::ProcessCrash)
    );
}

/// The target's queue is driven by nobody from the acceptance on: its program does nothing.
#[test]
fn what_was_flushed_is_there_although_the_target_never_ran() {
    let place = durable(128);
    let (pair, ring, remote) = appending(&place, 128, QueueOptions::default());
    append_and_flush(&pair, &remote, 0..100, place.evidence);
    assert_eq!(ring.len(), 0, "nobody looked");
    let contents = read_ring(&place.memory, 0, bytes_of(128)).unwrap();
    assert_eq!(contents.identity, ring.identity());
    assert_records(&contents.records, 0..100);
    // The target dies without having looked, and comes back.
    drop((pair, ring));
    let target = target();
    let reopened = target.open_ring(Arc::clone(&place.memory), 0, bytes_of(128), Some(contents.identity)).unwrap();
    assert_eq!(reopened.len(), 100);
    assert_eq!(reopened.record(99).unwrap().unwrap(), contents.records[99]);
    assert_eq!(reopened.record(100).unwrap(), None);
    reopened.consume(contents.records[41].sequence).unwrap();
    let error = reopened.consume(contents.records[41].sequence).unwrap_err();
    assert!(matches!(error, RingError::NotThere { .. }), "{error}");
    assert_records(&read_ring(&place.memory, 0, bytes_of(128)).unwrap().records, 42..100);
    reopened.consume(contents.records[99].sequence).unwrap();
    assert!(reopened.is_empty());
    assert_eq!(read_ring(&place.memory, 0, bytes_of(128)).unwrap().records, []);
}

/// Many times around, among messages and writes of the same connection, consumed by the target's program as they come.
#[test]
fn slots_go_around_and_records_come_in_order() {
    const RECORDS: u64 = 400;
    let place = durable(32);
    let (pair, ring, remote) = appending(&place, 32, threaded());
    let (memory, written) = region(&pair.target.peer, 4096, Access::all());
    let (inbox, _) = region(&pair.target.peer, 4096, Access::empty());
    let consumer = {
        let (ring, queue) = (ring.clone(), pair.target.queue.clone());
        std::thread::spawn(move || {
            let mut last = None;
            for number in 0..RECORDS {
                assert!(ring.wait(&queue, LONG), "record {number} in time");
                let found = ring.record(0).unwrap().expect("it is there");
                assert!(found.bytes == record(number), "record {number}");
                assert!(last.is_none_or(|last| found.sequence == last + 1));
                last = Some(found.sequence);
                ring.consume(found.sequence).unwrap();
            }
        })
    };
    let connection = &pair.initiator.connection;
    for number in 0..RECORDS {
        let append = connection.append(&record(number)).unwrap();
        if number % 7 == 0 {
            pair.target.connection.receive(inbox.slice(..).unwrap(), number).unwrap();
            connection.write(&written, 8, &number.to_le_bytes()).unwrap();
            pair.initiator.done(connection.send(&pattern(3000, number)).unwrap());
            let mut found = [0; 8];
            memory.read(8, &mut found).unwrap();
            assert_eq!(found, number.to_le_bytes());
        }
        if number % 5 == 0 {
            let flush = connection.flush(&remote, .., Durability::PowerFailure).unwrap();
            assert!(matches!(pair.initiator.done(flush), Outcome::Flushed(_)));
        }
        pair.initiator.done(append);
    }
    consumer.join().unwrap();
    assert!(ring.is_empty());
}

#[test]
fn what_is_not_consumed_is_never_overwritten() {
    let place = durable(32);
    let (pair, ring, remote) = appending(&place, 32, threaded());
    let connection = &pair.initiator.connection;
    let fit = 32 - STREAM_SLOTS;
    // As many as fit, fewer by what the stream has under way; then some wait, and so does the flush behind them.
    let appended: Vec<_> = (0..fit + 4).map(|number| connection.append(&record(number)).unwrap()).collect();
    let flush = connection.flush(&remote, .., Durability::PowerFailure).unwrap();
    wait_for(&ring, &pair.target.queue, fit as usize - 8);
    assert_eq!(pair.initiator.queue.wait_for(connection.id(), flush, Duration::from_millis(300)), None);
    let held = ring.len() as u64;
    assert!((fit - 8..=fit).contains(&held), "{held}");
    assert_records(&read_ring(&place.memory, 0, bytes_of(32)).unwrap().records, 0..held);
    // Each that is consumed lets others come.
    let first = ring.record(0).unwrap().unwrap().sequence;
    ring.consume(first + held - 1).unwrap();
    for ticket in appended {
        pair.initiator.done(ticket);
    }
    assert!(matches!(pair.initiator.done(flush), Outcome::Flushed(_)));
    assert_records(&read_ring(&place.memory, 0, bytes_of(32)).unwrap().records, held..fit + 4);
}

/// Writes behind a record that waits for its slot are copied until they may go, however many bytes they are.
#[test]
fn what_waits_behind_a_record_keeps_its_bytes() {
    const PART_BYTES: u64 = 24 << 10;
    const PARTS: u64 = 40;
    let place = durable(32);
    let (pair, ring, _) = appending(&place, 32, threaded());
    let (memory, written) = region(&pair.target.peer, PARTS * PART_BYTES, Access::all());
    let connection = &pair.initiator.connection;
    for number in 0..=32 - STREAM_SLOTS {
        connection.append(&record(number)).unwrap();
    }
    let write = |part| connection.write(&written, part * PART_BYTES, &pattern(PART_BYTES as usize, part));
    let writes: Vec<_> = (0..PARTS).map(|part| write(part).expect("it is copied")).collect();
    let last = writes[PARTS as usize - 1];
    assert_eq!(pair.initiator.queue.wait_for(connection.id(), last, Duration::from_millis(100)), None);
    wait_for(&ring, &pair.target.queue, 8);
    ring.consume(ring.record(7).unwrap().unwrap().sequence).unwrap();
    pair.initiator.done(last);
    for part in 0..PARTS {
        assert!(
            content(&memory, part * PART_BYTES, PART_BYTES as usize) == pattern(PART_BYTES as usize, part),
            "{part}"
        );
    }
}

#[test]
fn closing_waits_for_no_slot() {
    let place = durable(32);
    let (pair, _ring, _) = appending(&place, 32, QueueOptions::default());
    for number in 0..32 {
        pair.initiator.connection.append(&record(number)).unwrap();
    }
    pair.initiator.connection.disconnect();
    while pair.initiator.connection.next_event(Duration::from_secs(10)).expect("an end in time")
        == ConnectionEvent::Established
    {}
}

#[test]
fn one_connection_at_a_time_and_only_to_an_empty_ring() {
    let place = durable(64);
    let (pair, ring, remote) = appending(&place, 64, threaded());
    append_and_flush(&pair, &remote, 0..3, place.evidence);
    let Pair { initiator: Side { peer, queue, connection: here }, target, listener } = pair;
    let setup = appending_to(remote, threaded());
    let refused = |setup: &Setup| {
        let pending = peer.start_connect(listener.local_address(), &queue, &setup.connect).unwrap();
        let outcome = std::thread::scope(|scope| {
            let served = scope.spawn(|| listener.next_request(LONG).unwrap().is_none());
            let outcome = pending.finish();
            listener.interrupt();
            assert!(served.join().unwrap(), "the program is not asked");
            outcome
        });
        match outcome {
            Err(ConnectError::RingRefused { refusal, .. }) => refusal,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&setup), RingRefusal::InUse);
    let mut forged = Descriptor::decode(&ring.descriptor()).unwrap();
    forged.key = RegionKey([7; 16]);
    let forged = RemoteRegion::from_descriptor(&forged.encode()).unwrap();
    assert_eq!(refused(&appending_to(forged, threaded())), RingRefusal::Unknown);
    // The connection ends; its records stay.
    drop(here);
    let start = Instant::now();
    while ring.is_attached() {
        let _ = queue.poll();
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < LONG);
    }
    assert_eq!(refused(&setup), RingRefusal::NotConsumed);
    assert_eq!(ring.len(), 3);
    let last = ring.record(2).unwrap().unwrap().sequence;
    ring.consume(last).unwrap();
    let pending = peer.start_connect(listener.local_address(), &queue, &setup.connect).unwrap();
    let request = next_request(&queue, &listener);
    assert_eq!(request.ring_identity(), Some(ring.identity()));
    let _there = request.accept(&target.queue, &setup.accept).unwrap();
    let here = pending.finish().unwrap();
    let append = here.append(b"of another life").unwrap();
    assert!(queue.wait_for(here.id(), append, LONG).unwrap().outcome.is_ok());
    assert!(ring.wait(&target.queue, LONG));
    let found = ring.record(0).unwrap().unwrap();
    assert_eq!(found.bytes, b"of another life");
    assert!(found.sequence > last + 1, "numbers that the life before may have given are not given again");
}

#[test]
fn what_cannot_be_appended_or_be_a_ring_is_refused() {
    let place = durable(64);
    let (pair, ring, remote) = appending(&place, 64, threaded());
    let connection = &pair.initiator.connection;
    let error = connection.append(&vec![0; RECORD_MAX_BYTES as usize + 1]).unwrap_err();
    assert!(matches!(error, PostError::TooLong { limit_bytes: RECORD_MAX_BYTES, .. }), "{error}");
    let plain =
        join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &Setup::default()).0;
    assert_eq!(plain.append(b"nowhere"), Err(PostError::NoRing));
    // A ring is no region to write to, and of another connection's appends it knows nothing.
    assert!(matches!(connection.write(&remote, 0, b"x"), Err(PostError::NoRight { .. })));
    let forced = ConnectOptions::default().method(Some(Method::ReadAfterSend)).timeout(LONG);
    let setup = Setup { connect: forced, ..Setup::default() };
    let plain = join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &setup).0;
    let error = plain.flush(&remote, .., Durability::PowerFailure).unwrap_err();
    assert!(matches!(error, PostError::MethodRefused { method: "read-after-send", .. }), "{error}");
    let peer = &pair.target.peer;
    let open = |identity| peer.open_ring(Arc::clone(&place.memory), 0, bytes_of(64), identity).map(drop).unwrap_err();
    assert!(matches!(open(None), RingError::OpenAlready { .. }));
    assert!(matches!(open(Some([9; 16])), RingError::OtherRing { .. }));
    let error = peer.create_ring(Arc::clone(&place.memory), 0, bytes_of(64)).unwrap_err();
    assert!(matches!(error, RingError::Occupied { offset: 0 }), "{error}");
    drop((pair, ring));
    // A file of the page cache cannot be received into, one that is read-only neither.
    let directory = tempfile::tempdir_in(env::var_os("PMOF_FILE").unwrap()).unwrap();
    let path = directory.path().join("ring");
    let file = Arc::new(Memory::create(&path, bytes_of(64), None).unwrap());
    let error = target().create_ring(file, 0, bytes_of(64)).unwrap_err();
    assert!(matches!(error, RingError::Unreachable { .. }), "{error}");
    if let Some(directory) = &place.directory {
        let memory = Memory::open_read_only(&directory.path().join("ring"), None).unwrap();
        let error = target().open_ring(Arc::new(memory), 0, bytes_of(64), None).unwrap_err();
        assert!(matches!(error, RingError::Unreachable { .. } | RingError::Memory(_)), "{error}");
        assert!(error.to_string().contains("read"), "{error}");
    }
}

/// Slots of the ring of the power-cut test.
const CUT_SLOTS: u64 = 4096;

/// Appends until the power is cut, and writes the number of flushed records to what `PMOF_RING_LEDGER` names. The target's
/// program does nothing. Part of `cargo xtask vm test --only ring-cuts`.
#[test]
#[ignore = "runs until the power is cut"]
fn load_until_the_power_is_cut() {
    let mut ledger = std::fs::OpenOptions::new()
        .write(true)
        .open(env::var_os("PMOF_RING_LEDGER").expect("PMOF_RING_LEDGER names a port"))
        .expect("it opens");
    let place = durable(CUT_SLOTS);
    let (pair, _ring, remote) = appending(&place, CUT_SLOTS, QueueOptions::default());
    for number in 0..CUT_SLOTS - STREAM_SLOTS - 16 {
        append_and_flush(&pair, &remote, number..number + 1, Evidence::Probed);
        ledger.write_all(format!("{}\n", number + 1).as_bytes()).expect("the ledger takes it");
    }
    std::thread::sleep(LONG);
}

/// Fails if fewer records are there than `PMOF_RING_FLUSHED` says.
#[test]
#[ignore = "needs a ring that a power cut left"]
fn what_was_flushed_is_there_after_the_power_cut() {
    let flushed: usize = env::var("PMOF_RING_FLUSHED").expect("PMOF_RING_FLUSHED says how many").parse().unwrap();
    let records = match read_ring(&devdax(), 0, bytes_of(CUT_SLOTS)) {
        Ok(contents) => contents.records,
        Err(error) => panic!("LOST all {flushed}: {error}"),
    };
    assert!(records.len() >= flushed, "LOST {} of {flushed}", flushed - records.len());
    assert_records(&records, 0..records.len() as u64);
}
