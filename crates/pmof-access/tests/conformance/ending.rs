//! How connections end, and what everybody is left with.

use std::{any::Any, time::Duration};

use pmof_access::{
    AcceptOptions, Access, ConnectOptions, Connection, ConnectionError, ConnectionEvent, DEFAULT_LOSS_TIMEOUT,
    Durability, OperationError, OperationKind, Outcome, PostError, QueueOptions, Region, RemoteRegion, Settings,
};

use crate::{
    fabric::Fabric,
    pair::{LONG, Pair, Setup, Side, listen_options, next_request, region},
    support::{content, pattern},
};

pub(crate) fn what_was_posted_before_closing_is_delivered<F: Fabric>() {
    for len_bytes in [10, 1 << 20] {
        let fabric = F::new();
        let pair = fabric.pair();
        let (memory, remote) = region(&pair.target.peer, 1 << 20, Access::all());
        let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
        pair.target.connection.receive(inbox.slice(..).unwrap(), 1).unwrap();
        let connection = &pair.initiator.connection;
        let write = connection.write(&remote, 0, &pattern(len_bytes, 1)).unwrap();
        let send = connection.send(b"last words").unwrap();
        connection.disconnect();
        assert_eq!(connection.write(&remote, 0, b"x"), Err(PostError::NotConnected(ConnectionError::ClosedHere)));
        for ticket in [write, send] {
            let outcome = pair.initiator.outcome(ticket);
            let is_known = !F::SERVED_BY_CPU && matches!(outcome, Ok(Outcome::Done { .. }));
            let unknown = Err(OperationError::ConnectionEnded(ConnectionError::ClosedHere));
            assert!(is_known || outcome == unknown, "{outcome:?}");
        }
        assert_eq!(
            [pair.initiator.event(), pair.initiator.event()],
            [ConnectionEvent::Established, ConnectionEvent::Closed]
        );
        assert_eq!(pair.target.event(), ConnectionEvent::Established);
        // Somebody has to drive the initiator until all of it has gone.
        let closed = loop {
            pair.initiator.queue.wait(Duration::from_millis(1));
            if let Some(event) = pair.target.connection.next_event(Duration::from_millis(1)) {
                break event;
            }
        };
        assert_eq!(closed, ConnectionEvent::Closed);
        let done = pair.target.queue.wait(LONG).unwrap();
        assert_eq!(done.outcome, Ok(Outcome::Received { len_bytes: 10, immediate: None }));
        assert!(content(&memory, 0, len_bytes) == pattern(len_bytes, 1));
    }
}

pub(crate) fn what_was_deferred_before_closing_is_delivered<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (memory, remote) = region(&pair.target.peer, 64, Access::all());
    let connection = &pair.initiator.connection;
    let (inbox, _) = region(&pair.target.peer, 64, Access::empty());
    for context in 0..2 {
        pair.target.connection.receive(inbox.slice(..).unwrap(), context).unwrap();
    }
    assert!(connection.prepare(&remote, LONG));
    let mut batch = connection.batch();
    // Where the write after it needs no CPU of the target, it waits until this one, which does, is known to be done.
    let announced = batch.write_with_immediate(&remote, 0, b"old words", 1).unwrap();
    let write = batch.write(&remote, 0, b"new").unwrap();
    let send = batch.send(b"last").unwrap();
    batch.submit();
    connection.disconnect();
    let closed = PostError::NotConnected(ConnectionError::ClosedHere);
    assert_eq!(connection.write(&remote, 0, b"late"), Err(closed.clone()));
    assert_eq!(connection.send(b"late"), Err(closed));
    assert!(!connection.is_established());
    assert_eq!(connection.ended(), Some(ConnectionError::ClosedHere));
    for ticket in [announced, write, send] {
        let outcome = pair.initiator.outcome(ticket);
        let unknown = Err(OperationError::ConnectionEnded(ConnectionError::ClosedHere));
        assert!(matches!(outcome, Ok(Outcome::Done { .. })) || outcome == unknown, "{outcome:?}");
    }
    let events = [pair.initiator.event(), pair.initiator.event()];
    assert_eq!(events, [ConnectionEvent::Established, ConnectionEvent::Closed]);
    assert_eq!(pair.target.event(), ConnectionEvent::Established);
    let closed = loop {
        pair.initiator.queue.wait(Duration::from_millis(1));
        if let Some(event) = pair.target.connection.next_event(Duration::from_millis(1)) {
            break event;
        }
    };
    assert_eq!(closed, ConnectionEvent::Closed);
    assert_eq!(content(&memory, 0, 9), b"new words");
}

pub(crate) fn closing_does_not_wait_for_receives<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let connection = &pair.initiator.connection;
    assert!(connection.prepare(&remote, LONG));
    let mut batch = connection.batch();
    let announced = batch.write_with_immediate(&remote, 0, b"old words", 1).unwrap();
    let write = batch.write(&remote, 0, b"new").unwrap();
    batch.submit();
    connection.disconnect();
    for ticket in [announced, write] {
        let unknown = OperationError::ConnectionEnded(ConnectionError::ClosedHere);
        assert_eq!(pair.initiator.outcome(ticket), Err(unknown));
    }
}

/// Long reads and writes of the same bytes, in turn: a target takes no write in before the answers to the reads before it have gone.
/// The memory that they use comes along, with how many they are.
fn post_much<F: Fabric>(side: &Side, remote: &RemoteRegion) -> (Region, usize) {
    // More than sockets hold. Devices of software in an emulated machine take their time.
    let (pairs, len_bytes) = if F::SERVED_BY_CPU { (10, 1 << 20) } else { (2, 256 << 10) };
    let (own, _) = region(&side.peer, 2 * len_bytes, Access::empty());
    for _ in 0..pairs {
        side.connection.read(remote, 0, own.slice(..len_bytes).unwrap()).unwrap();
        side.connection.write(remote, 0, own.slice(len_bytes..).unwrap()).unwrap();
    }
    (own, 2 * pairs)
}

pub(crate) fn an_end_is_reported_when_all_that_was_posted_has_its_outcome<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 1 << 20, Access::all());
    let Side { connection, queue, .. } = &pair.initiator;
    let (own, count) = post_much::<F>(&pair.initiator, &remote);
    connection.receive(own.slice(..64).unwrap(), 0).unwrap();
    connection.disconnect();
    let events = [pair.initiator.event(), pair.initiator.event()];
    assert_eq!(events, [ConnectionEvent::Established, ConnectionEvent::Closed]);
    assert!(connection.is_drained(), "{} are outstanding", connection.outstanding());
    let mut tickets: Vec<_> = std::iter::from_fn(|| queue.poll()).map(|done| done.ticket).collect();
    tickets.sort();
    tickets.dedup();
    assert_eq!(tickets.len(), count + 1);
    assert_eq!(queue.wait(Duration::from_millis(2)), None, "no operation has two outcomes");
    // All of it has gone in order: the two sides did not wait for each other until one gave the other up.
    assert_eq!(pair.target.event(), ConnectionEvent::Established);
    let closed = loop {
        queue.wait(Duration::from_millis(1));
        if let Some(event) = pair.target.connection.next_event(Duration::from_millis(1)) {
            break event;
        }
    };
    assert_eq!(closed, ConnectionEvent::Closed);
}

pub(crate) fn both_sides_may_close_at_once<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_there, remote) = region(&pair.target.peer, 1 << 20, Access::all());
    let (_here, back) = region(&pair.initiator.peer, 1 << 20, Access::all());
    let posted =
        [(&pair.initiator, remote), (&pair.target, back)].map(|(side, remote)| (side, post_much::<F>(side, &remote)));
    let from = fabric.now();
    for (side, _) in &posted {
        side.connection.disconnect();
    }
    for (side, (_memory, count)) in &posted {
        assert_eq!(side.event(), ConnectionEvent::Established);
        let end = side.event();
        // A device may find the other one gone before it hears of the end.
        let is_lost = !F::SERVED_BY_CPU && matches!(end, ConnectionEvent::Lost(_));
        assert!(is_lost || end == ConnectionEvent::Closed, "{end:?}");
        all_outcomes(side, *count);
    }
    let took = fabric.now().saturating_sub(from);
    assert!(took < DEFAULT_LOSS_TIMEOUT || !F::SERVED_BY_CPU, "the two sides waited for each other: {took:?}");
}

pub(crate) fn closing_waits_for_the_other_side<F: Fabric>() {
    for len_bytes in [10, 1 << 20] {
        let fabric = F::new();
        let Pair { initiator, target, .. } = fabric.pair();
        let (memory, remote) = region(&target.peer, 1 << 20, Access::all());
        initiator.connection.write(&remote, 0, &pattern(len_bytes, 1)).unwrap();
        assert!(initiator.connection.close(LONG));
        // Nothing of the initiator is driven any more.
        assert_eq!([target.event(), target.event()], [ConnectionEvent::Established, ConnectionEvent::Closed]);
        assert!(content(&memory, 0, len_bytes) == pattern(len_bytes, 1));
    }
}

/// Every order of `len` things.
fn orders(len: usize) -> Vec<Vec<usize>> {
    match len {
        0 => vec![Vec::new()],
        _ => orders(len - 1)
            .into_iter()
            .flat_map(|order| {
                (0..len).map(move |at| {
                    let mut longer = order.clone();
                    longer.insert(at, len - 1);
                    longer
                })
            })
            .collect(),
    }
}

/// Collects outcomes until there are `count`, none of them twice.
#[track_caller]
fn all_outcomes(side: &Side, count: usize) -> Vec<Result<Outcome, OperationError>> {
    let mut tickets = Vec::new();
    let outcomes = (0..count)
        .map(|_| {
            let done = side.queue.wait(LONG).expect("every operation has an outcome");
            tickets.push(done.ticket);
            done.outcome
        })
        .collect();
    tickets.sort();
    tickets.dedup();
    assert_eq!(tickets.len(), count);
    assert_eq!(side.queue.wait(Duration::from_millis(2)), None, "no operation has two outcomes");
    assert_eq!(side.connection.outstanding(), 0);
    outcomes
}

/// Drops everything of one side in one order; the other side learns of it, and all that it posted has an outcome.
fn drop_one_side(pair: Pair, order: &[usize], is_target: bool) {
    const OPERATIONS: usize = 20;
    let Pair { initiator, target, listener } = pair;
    let (gone, left) = if is_target { (target, initiator) } else { (initiator, target) };
    let (memory, remote) = region(&gone.peer, 4096, Access::all());
    let (inbox, _) = region(&gone.peer, 64, Access::empty());
    gone.connection.receive(inbox.slice(..).unwrap(), 0).unwrap();
    for index in 0..OPERATIONS {
        left.connection.write(&remote, index as u64, b"x").unwrap();
    }
    // Something of its own is under way too.
    gone.connection.send(b"hello").unwrap();
    let Side { peer, queue, connection } = gone;
    let mut things: Vec<Option<Box<dyn Any>>> = vec![
        Some(Box::new(connection)),
        Some(Box::new(queue)),
        Some(Box::new(peer)),
        Some(Box::new(memory)),
        Some(Box::new(inbox)),
    ];
    if is_target {
        things.push(Some(Box::new(listener)));
    }
    for index in order {
        if let Some(thing) = things.get_mut(*index) {
            drop(thing.take());
        }
    }
    assert_eq!(left.event(), ConnectionEvent::Established);
    match left.event() {
        ConnectionEvent::Closed | ConnectionEvent::Lost(_) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(left.connection.next_event(Duration::from_millis(2)), None);
    all_outcomes(&left, OPERATIONS);
}

pub(crate) fn handles_may_be_dropped_in_any_order<F: Fabric>() {
    for is_target in [true, false] {
        for order in orders(5 + usize::from(is_target)).iter().step_by(if is_target { 13 } else { 3 }) {
            drop_one_side(F::new().pair(), order, is_target);
        }
    }
}

pub(crate) fn a_pending_connection_may_be_dropped<F: Fabric>() {
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let serving = target.completion_queue(QueueOptions::default()).unwrap();
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    drop(pending);
    // Its request may still come; accepting it gives a connection that ends.
    if let Some(request) = listener.next_request(Duration::from_millis(50)).unwrap() {
        let connection = request.accept(&serving, &AcceptOptions::default()).unwrap();
        assert_eq!(connection.next_event(LONG), Some(ConnectionEvent::Established));
        assert!(matches!(connection.next_event(LONG), Some(ConnectionEvent::Lost(_) | ConnectionEvent::Closed)));
    }
    let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    let request = next_request(&queue, &listener);
    let _there = request.accept(&serving, &AcceptOptions::default()).unwrap();
    assert!(pending.finish().unwrap().is_established());
}

/// A connection that can be broken from outside, with one message kept at the other side.
fn fragile<F: Fabric>(fabric: &F, check: impl FnOnce(&Side, Connection, Box<dyn FnOnce() + '_>)) {
    let (peer, target) = (fabric.peer(), fabric.target());
    let setup = Setup::default();
    let queue = peer.completion_queue(setup.initiator_queue).unwrap();
    let serving = target.completion_queue(setup.target_queue).unwrap();
    let settings = Settings { inbox_messages: 1, ..Settings::default() };
    let listen = listen_options().settings(settings);
    let listener = target.listen(fabric.listen_address(), listen).unwrap();
    let (address, cut) = fabric.breakable(listener.local_address());
    let pending = peer.start_connect(address, &queue, &setup.connect).unwrap();
    let request = next_request(&queue, &listener);
    let there = request.accept(&serving, &setup.accept).unwrap();
    let connection = pending.finish().unwrap();
    check(&Side { peer, queue, connection }, there, cut);
}

pub(crate) fn a_killed_target_leaves_outcomes_unknown<F: Fabric>() {
    let fabric = F::new();
    fragile(&fabric, |side, there, cut| {
        assert_eq!(side.event(), ConnectionEvent::Established);
        for _ in 0..10 {
            side.connection.send(b"message").unwrap();
        }
        // They wait for a receive or for room, so they cannot have an outcome before the cut.
        let (inbox, _) = region(&side.peer, 64, Access::empty());
        side.connection.receive(inbox.slice(..).unwrap(), 7).unwrap();
        cut();
        for side in [&side.connection, &there] {
            let why = loop {
                match side.next_event(LONG).expect("an event in time") {
                    ConnectionEvent::Established => {}
                    ConnectionEvent::Lost(why) => break why,
                    other => panic!("{other:?}"),
                }
            };
            assert!(matches!(why, ConnectionError::Lost { .. }), "{why}");
            assert_eq!(side.next_event(Duration::from_millis(2)), None);
            assert!(matches!(side.send(b"x"), Err(PostError::NotConnected(ConnectionError::Lost { .. }))));
        }
        assert_eq!(side.connection.outstanding(), 0);
        for _ in 0..11 {
            let done = side.queue.wait(LONG).expect("an outcome in time");
            assert!(matches!(done.outcome, Err(OperationError::ConnectionEnded(ConnectionError::Lost { .. }))));
            assert!(done.kind == OperationKind::Send || (done.kind, done.context) == (OperationKind::Receive, 7));
        }
        assert_eq!(side.queue.wait(Duration::from_millis(2)), None);
    });
}

pub(crate) fn one_connection_lost_harms_no_other<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let mut others = Vec::new();
    for _ in 0..10 {
        let setup = Setup::default();
        others.push(crate::pair::join(
            &pair.initiator.peer,
            &pair.initiator.queue,
            &pair.listener,
            &pair.target.queue,
            &setup,
        ));
    }
    while let Some((here, there)) = others.pop() {
        if others.len() % 2 == 0 {
            drop(here);
        } else {
            drop(there);
        }
        for (connection, _) in &others {
            let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
            let done = pair.initiator.queue.wait_for(connection.id(), ticket, LONG).expect("in time");
            assert!(done.outcome.is_ok());
        }
    }
}

pub(crate) fn an_idle_connection_stays<F: Fabric>() {
    let idle = if F::IS_VIRTUAL { Duration::from_secs(3600) } else { Duration::from_millis(1500) };
    let fabric = F::new();
    let limit = Duration::from_secs(1);
    let connect = ConnectOptions::default().loss_timeout(limit);
    let accept = AcceptOptions::default().loss_timeout(limit);
    let pair = fabric.pair_with(&Setup { connect, accept, ..Setup::default() });
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    assert_eq!(fabric.takes(idle, || pair.initiator.queue.wait(idle)), None);
    let ticket = pair.initiator.connection.write(&remote, 0, b"still here").unwrap();
    pair.initiator.done(ticket);
}
