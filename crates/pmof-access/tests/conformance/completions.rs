//! Completions: one for each operation that wants one, in order, with what was given along.

use std::{
    collections::BTreeMap,
    iter,
    time::{Duration, Instant},
};

use pmof_access::{
    Access, Completion, ConnectOptions, Durability, OperationError, OperationKind, Outcome, PostError, Progress,
    QueueOptions, Refusal, RemoteRegion, Settings, Signal, Ticket, Waiting,
};
use pmof_proto::Descriptor;

use crate::{
    fabric::Fabric,
    messages::is_readable,
    pair::{LONG, Pair, Setup, join, listen_options, region, threaded},
    support::{content, pattern},
};

fn small_queue(send_queue: u32) -> Setup {
    let settings = Settings { send_queue, ..Settings::default() };
    let connect = ConnectOptions::default().settings(settings);
    Setup { connect, listen: listen_options().settings(settings), ..Setup::default() }
}

pub(crate) fn they_come_in_order_with_their_context<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let (local, _) = region(&pair.initiator.peer, 64, Access::empty());
    let mut posted = Vec::new();
    for index in 0..120 {
        let mut batch = pair.initiator.connection.batch();
        batch.context(u64::MAX - index);
        let (kind, ticket) = match index % 6 {
            0 => (OperationKind::Write, batch.write(&remote, 0, b"x")),
            1 => (OperationKind::Read, batch.read(&remote, 0, local.slice(..8).unwrap())),
            2 => (OperationKind::Flush, batch.flush(&remote, .., Durability::Visible)),
            3 => (OperationKind::AtomicWrite, batch.atomic_write(&remote, 8, index)),
            4 => (OperationKind::CompareAndSwap, batch.compare_and_swap(&remote, 16, index, 0)),
            _ => (OperationKind::FetchAndAdd, batch.fetch_and_add(&remote, 24, 1)),
        };
        posted.push((ticket.unwrap(), u64::MAX - index, kind));
    }
    for (ticket, context, kind) in posted {
        let done = pair.initiator.queue.wait(LONG).unwrap();
        assert_eq!((done.connection, done.ticket), (pair.initiator.connection.id(), ticket));
        assert_eq!((done.context, done.kind), (context, kind));
        assert!(done.outcome.is_ok());
    }
    assert_eq!((pair.initiator.queue.poll(), pair.initiator.connection.outstanding()), (None, 0));
}

pub(crate) fn unsignalled_operations_complete_only_in_failure<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair_with(&small_queue(16));
    let (memory, remote) = region(&pair.target.peer, 64, Access::all());
    let connection = &pair.initiator.connection;
    // Many times the queue's length: places come back although nothing completes.
    for index in 0..500_u64 {
        assert!(connection.wait_send_room(LONG), "no room for operation {index}");
        let mut batch = connection.batch();
        batch.signal(Signal::OnError);
        batch.atomic_write(&remote, 0, index).unwrap();
    }
    assert!(connection.wait_send_room(LONG));
    let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
    let done = pair.initiator.queue.wait(LONG).unwrap();
    assert_eq!((done.ticket, done.kind), (ticket, OperationKind::Flush), "the silent ones did not complete");
    assert_eq!(content(&memory, 0, 8), 499_u64.to_le_bytes());
    assert_eq!(connection.outstanding(), 0);

    let mut forged = Descriptor::decode(&memory.descriptor()).unwrap();
    F::forge_key(&mut forged);
    let forged = RemoteRegion::from_descriptor(&forged.encode()).unwrap();
    let mut batch = connection.batch();
    let bad = batch.signal(Signal::OnError).context(5).write(&forged, 0, b"x").unwrap();
    let after = batch.context(6).write(&remote, 0, b"y").unwrap();
    batch.submit();
    let failed = pair.initiator.queue.wait(LONG).unwrap();
    assert_eq!((failed.ticket, failed.context), (bad, 5));
    match failed.outcome {
        Err(error) if F::is_refused_there(&error, Refusal::UnknownRegion) => {}
        other => panic!("{other:?}"),
    }
    let failed = pair.initiator.queue.wait(LONG).unwrap();
    assert_eq!((failed.ticket, failed.context), (after, 6));
    assert!(matches!(failed.outcome, Err(OperationError::ConnectionEnded(_))));
}

pub(crate) fn many_are_polled_at_once<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let mut batch = pair.initiator.connection.batch();
    for _ in 0..50 {
        batch.write(&remote, 0, b"x").unwrap();
    }
    let last = batch.flush(&remote, .., Durability::Visible).unwrap();
    batch.submit();
    pair.initiator.done(last);
    let mut found = Vec::new();
    assert_eq!(pair.initiator.queue.poll_many(20, &mut found), 20);
    assert_eq!(pair.initiator.queue.poll_many(0, &mut found), 0);
    assert_eq!(pair.initiator.queue.poll_many(1000, &mut found), 30);
    let tickets: Vec<u64> = found.iter().map(|done| done.ticket.0).collect();
    assert!(tickets.is_sorted() && tickets.len() == 50);
}

pub(crate) fn waiting_ends_in_time<F: Fabric>() {
    const LIMIT: Duration = Duration::from_millis(37);
    for waiting in [Waiting::Adaptive { spin: Duration::ZERO }, QueueOptions::default().waiting, Waiting::BusyPoll] {
        for options in [QueueOptions::default().waiting(waiting), threaded().waiting(waiting)] {
            let fabric = F::new();
            let pair = fabric.pair_with(&Setup { initiator_queue: options, ..Setup::default() });
            let queue = &pair.initiator.queue;
            assert_eq!(fabric.takes(LIMIT, || queue.wait(LIMIT)), None);
            assert_eq!(fabric.takes(Duration::ZERO, || queue.wait(Duration::ZERO)), None);
            let never = Ticket(u64::MAX);
            assert_eq!(fabric.takes(LIMIT, || queue.wait_for(pair.initiator.connection.id(), never, LIMIT)), None);
            queue.interrupt();
            assert_eq!(fabric.takes(Duration::ZERO, || queue.wait(LONG)), None);
            assert_eq!(fabric.takes(LIMIT, || queue.wait(LIMIT)), None, "an interrupt ends one wait");
            assert!(pair.initiator.connection.is_established());
        }
    }
}

pub(crate) fn waiting_no_time_makes_progress_too<F: Fabric>() {
    if F::IS_VIRTUAL {
        // Its time goes on only in waits.
        return;
    }
    let fabric = F::new();
    let initiator_queue = QueueOptions::default().waiting(Waiting::Adaptive { spin: Duration::ZERO });
    let pair = fabric.pair_with(&Setup { initiator_queue, ..Setup::default() });
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let ticket = pair.initiator.connection.write(&remote, 0, b"x").unwrap();
    let start = Instant::now();
    let done = iter::from_fn(|| (start.elapsed() < LONG).then(|| pair.initiator.queue.wait(Duration::ZERO)));
    assert_eq!(done.flatten().next().map(|done| done.ticket), Some(ticket));
}

pub(crate) fn a_queue_is_waited_for_by_its_descriptor<F: Fabric>() {
    if F::IS_VIRTUAL {
        return;
    }
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, 64, Access::all());
    let (connection, queue) = (&pair.initiator.connection, &pair.initiator.queue);
    for round in 0..50_u64 {
        connection.write(&remote, 0, &round.to_le_bytes()).unwrap();
        let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
        let mut done = Vec::new();
        while done.last() != Some(&ticket) {
            match queue.poll() {
                Some(next) => done.push(next.ticket),
                None => assert!(
                    is_readable(&queue.fd().unwrap(), LONG),
                    "round {round}: nothing wakes who waits for the descriptor"
                ),
            }
        }
        assert_eq!(content(&memory, 0, 8), round.to_le_bytes());
    }
}

pub(crate) fn waiting_for_one_leaves_the_others<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let tickets: Vec<Ticket> = (0..5).map(|_| pair.initiator.connection.write(&remote, 0, b"x").unwrap()).collect();
    pair.initiator.done(tickets[3]);
    pair.initiator.done(tickets[4]);
    pair.initiator.done(tickets[1]);
    let id = pair.initiator.connection.id();
    assert_eq!(pair.initiator.queue.wait_for(id, tickets[1], Duration::ZERO), None, "each is given once");
    for ticket in [tickets[0], tickets[2]] {
        assert_eq!(pair.initiator.queue.poll().map(|done| done.ticket), Some(ticket));
    }
    assert_eq!(pair.initiator.queue.poll(), None);
}

pub(crate) fn what_is_discarded_does_not_come<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let setup = Setup::default();
    let (other, _there) = join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &setup);
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    for _ in 0..3 {
        pair.initiator.connection.write(&remote, 0, b"x").unwrap();
    }
    let last = pair.initiator.connection.write(&remote, 0, b"x").unwrap();
    pair.initiator.done(last);
    let kept = other.write(&remote, 0, b"y").unwrap();
    pair.initiator.queue.discard(pair.initiator.connection.id());
    let done = pair.initiator.queue.wait(LONG).unwrap();
    assert_eq!((done.connection, done.ticket), (other.id(), kept));
}

/// 64 connections, each with a place of its own, on one queue at each side.
fn many_connections<F: Fabric>(initiator_queue: QueueOptions, target_queue: QueueOptions) {
    const WRITES: u64 = 16;
    let fabric = F::new();
    let setup = Setup { initiator_queue, target_queue, ..Setup::default() };
    let pair = fabric.pair_with(&setup);
    let (memory, remote) = region(&pair.target.peer, F::CONNECTIONS * WRITES * 8, Access::all());
    let ends: Vec<_> = (0..F::CONNECTIONS)
        .map(|_| join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &setup))
        .collect();
    let mut awaited = BTreeMap::new();
    for write in 0..WRITES {
        for (place, (connection, _)) in (0..).zip(&ends) {
            let offset = (place * WRITES + write) * 8;
            let mut batch = connection.batch();
            batch.signal(Signal::OnError);
            batch.write(&remote, offset, &(offset + 1).to_le_bytes()).unwrap();
        }
    }
    for (connection, _) in &ends {
        let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
        awaited.insert(connection.id(), ticket);
    }
    while !awaited.is_empty() {
        let done = pair.initiator.queue.wait(LONG).expect("an outcome in time");
        assert_eq!(awaited.remove(&done.connection), Some(done.ticket));
        done.outcome.unwrap();
    }
    for offset in (0..F::CONNECTIONS * WRITES * 8).step_by(8) {
        assert_eq!(content(&memory, offset, 8), (offset + 1).to_le_bytes());
    }
}

pub(crate) fn many_connections_share_a_queue_that_its_caller_drives<F: Fabric>() {
    many_connections::<F>(QueueOptions::default(), threaded());
}

pub(crate) fn many_connections_share_a_queue_that_a_thread_drives<F: Fabric>() {
    many_connections::<F>(threaded(), threaded());
}

pub(crate) fn a_batch_goes_out_at_once<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, 1 << 16, Access::all());
    let id = pair.initiator.connection.id();
    let mut batch = pair.initiator.connection.batch();
    let tickets: Vec<Ticket> =
        (0..100_u64).map(|index| batch.write(&remote, index * 8, &index.to_le_bytes()).unwrap()).collect();
    // While a batch is open, polling its queue moves nothing.
    assert_eq!(pair.initiator.queue.wait_for(id, tickets[0], Duration::from_millis(5)), None);
    assert_eq!(content(&memory, 8, 8), [0; 8]);
    batch.submit();
    pair.initiator.done(tickets[99]);
    for index in 0..100_u64 {
        assert_eq!(content(&memory, index * 8, 8), index.to_le_bytes());
    }
}

pub(crate) fn a_held_batch_goes_out_later<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, 1 << 20, Access::all());
    let hold = |bytes: &[u8]| {
        let mut batch = pair.initiator.connection.batch();
        let ticket = batch.write(&remote, 0, bytes).unwrap();
        batch.hold();
        ticket
    };
    hold(b"held");
    // The target is alive and sees nothing.
    assert_eq!(pair.target.queue.wait(Duration::from_millis(10)), None);
    if !F::IS_VIRTUAL {
        assert_eq!(content(&memory, 0, 4), [0; 4]);
    }
    let next = pair.initiator.connection.write(&remote, 8, b"next").unwrap();
    pair.initiator.done(next);
    assert_eq!(content(&memory, 0, 12), b"held\0\0\0\0next");
    let polled = hold(b"also");
    pair.initiator.done(polled);
    assert_eq!(content(&memory, 0, 4), b"also");
}

/// Fills the queue, checks the refusal, and that there is room again.
fn fill(pair: &Pair, remote: &RemoteRegion, limit: u32) {
    let connection = &pair.initiator.connection;
    let mut posted = 0;
    let error = loop {
        match connection.write(remote, 0, b"x") {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, PostError::QueueFull { limit });
    // Where operations finish when they are posted, the outcome of the first waits elsewhere.
    assert!(posted == limit || posted == limit + 1, "{posted} operations were taken");
    assert_eq!(connection.outstanding(), limit as usize);
    assert!(connection.wait_send_room(LONG));
    connection.write(remote, 0, b"y").unwrap();
    let completions: Vec<Completion> =
        (0..=posted).map(|_| pair.initiator.queue.wait(LONG).expect("an outcome in time")).collect();
    assert!(completions.iter().all(|done| done.outcome.is_ok()));
    assert!(completions.is_sorted_by_key(|done| done.ticket));
    assert_eq!(pair.initiator.queue.poll(), None);
}

pub(crate) fn a_full_queue_says_so_and_recovers<F: Fabric>() {
    for limit in [4, 5, 64, 1024] {
        let fabric = F::new();
        let pair = fabric.pair_with(&small_queue(limit));
        let (memory, remote) = region(&pair.target.peer, 8, Access::all());
        for _ in 0..3 {
            fill(&pair, &remote, limit);
        }
        assert_eq!(content(&memory, 0, 1), b"y");
    }
}

pub(crate) fn much_posted_at_once_is_bounded<F: Fabric>() {
    if !F::SERVED_BY_CPU {
        // The bytes go whatever the target does; how many may wait for the device is the transport's own test.
        return;
    }
    let fabric = F::new();
    let pair = fabric.pair_with(&Setup { target_queue: QueueOptions::default(), ..Setup::default() });
    let (memory, remote) = region(&pair.target.peer, 8 << 20, Access::all());
    let bytes = pattern(8 << 20, 1);
    let connection = &pair.initiator.connection;
    let mut posted = 0;
    // Nobody drives the target, so what the socket does not take is kept, up to a limit far below the queue's length.
    let error = loop {
        match connection.write(&remote, 0, &bytes) {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PostError::QueueFull { .. }), "{error}");
    assert!((2..40).contains(&posted), "{posted} writes of 8 MiB were kept");
    assert!(!connection.wait_send_room(Duration::ZERO));
    while connection.outstanding() > 0 {
        pair.target.queue.poll();
        assert!(pair.initiator.queue.wait(Duration::from_millis(1)).is_none_or(|done| done.outcome.is_ok()));
    }
    assert!(connection.wait_send_room(Duration::ZERO));
    assert!(content(&memory, 0, 8 << 20) == bytes);
}

pub(crate) fn a_queue_is_assisted_while_its_caller_sleeps<F: Fabric>() {
    if F::IS_VIRTUAL {
        return;
    }
    let fabric = F::new();
    let assisted = QueueOptions::default().progress(Progress::Assisted);
    let pair = fabric.pair_with(&Setup { initiator_queue: assisted, target_queue: assisted, ..Setup::default() });
    let (memory, remote) = region(&pair.target.peer, 64, Access::all());
    let (connection, queue) = (&pair.initiator.connection, &pair.initiator.queue);
    let persist = |number: u64| {
        connection.write(&remote, 0, &number.to_le_bytes()).unwrap();
        connection.flush(&remote, .., Durability::Visible).unwrap()
    };
    // The target's caller never does anything. This side's waits, then polls, then waits for the descriptor.
    for number in 0..50 {
        assert!(matches!(pair.initiator.done(persist(number)), Outcome::Flushed(_)));
        assert_eq!(content(&memory, 0, 8), number.to_le_bytes());
    }
    iter::from_fn(|| queue.poll()).for_each(drop);
    let start = Instant::now();
    let polled = persist(50);
    while queue.poll().is_none_or(|done| done.ticket != polled) {
        assert!(start.elapsed() < LONG, "polling drives");
    }
    // It rests for longer than the thread waits, and what comes meanwhile is there.
    // On a machine that has others to run the rest is longer.
    let is_there = |rest_ms: u64| {
        let rested = persist(51);
        std::thread::sleep(Duration::from_millis(rest_ms));
        let found = iter::from_fn(|| queue.poll()).any(|done| done.ticket == rested);
        if !found {
            pair.initiator.done(rested);
        }
        found
    };
    assert!([20, 40, 80, 160, 320, 640, 1280].into_iter().any(is_there));
    for number in 52..100 {
        let last = persist(number);
        let mut done = None;
        while done != Some(last) {
            assert!(is_readable(&queue.fd().unwrap(), LONG), "{number}: nothing wakes who waits for the descriptor");
            done = iter::from_fn(|| queue.poll()).map(|done| done.ticket).last();
        }
    }
}
