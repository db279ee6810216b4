//! Making connections: what goes along, who says no, and how long anybody waits.

use std::{
    io::ErrorKind,
    iter,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, Capabilities, ConnectError, ConnectOptions, Connection, ConnectionEvent, Durability,
    Location, OperationError, OperationKind, Outcome, Peer, PendingConnection, PostError, QueueOptions, Refusal,
    Settings, SetupError, limits,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    fabric::Fabric,
    messages::is_readable,
    pair::{LONG, Setup, join, listen_options, next_request, region, threaded},
    support::pattern,
};

pub(crate) fn private_data_goes_both_ways<F: Fabric>() {
    for (asked, answered) in [
        (0, 0),
        (1, limits::ACCEPT_PRIVATE_MAX_BYTES),
        (limits::CONNECT_PRIVATE_MAX_BYTES, 1),
        (limits::CONNECT_PRIVATE_MAX_BYTES, limits::ACCEPT_PRIVATE_MAX_BYTES),
    ] {
        let fabric = F::new();
        let (question, answer) = (pattern(asked, 1), pattern(answered, 2));
        let setup = Setup {
            connect: ConnectOptions::default().private_data(question.clone()),
            accept: AcceptOptions::default().private_data(answer.clone()),
            ..Setup::default()
        };
        let pair = fabric.pair_with(&setup);
        assert_eq!(pair.initiator.connection.private_data(), answer);
        assert_eq!(pair.target.connection.private_data(), question);
        assert!(pair.initiator.connection.is_established() && pair.target.connection.is_established());
        assert_ne!(pair.initiator.connection.id(), pair.target.connection.id());
    }
}

pub(crate) fn private_data_is_bounded<F: Fabric>() {
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let too_long = |limit: usize| vec![0; limit + 1];
    let is_bounded = |error: &ConnectError, limit: usize| {
        matches!(error, ConnectError::PrivateData { len_bytes, limit_bytes }
            if *len_bytes == limit + 1 && *limit_bytes == limit)
    };

    let limit = limits::CONNECT_PRIVATE_MAX_BYTES;
    let options = ConnectOptions::default().private_data(too_long(limit));
    let error = peer.start_connect(listener.local_address(), &queue, &options).unwrap_err();
    assert!(is_bounded(&error, limit), "{error}");

    // What the target's application gets wrong is its own error, and a rejection for the other side.
    let limit = limits::ACCEPT_PRIVATE_MAX_BYTES;
    let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    let request = next_request(&queue, &listener);
    let options = AcceptOptions::default().private_data(too_long(limit));
    assert!(is_bounded(&request.accept(&queue, &options).unwrap_err(), limit));
    assert!(matches!(pending.finish().unwrap_err(), ConnectError::Refused { refusal: Refusal::Rejected, .. }));

    let limit = limits::REJECT_PRIVATE_MAX_BYTES;
    let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    let request = next_request(&queue, &listener);
    assert!(is_bounded(&request.reject(Refusal::Rejected, &too_long(limit)).unwrap_err(), limit));
    assert!(matches!(pending.finish().unwrap_err(), ConnectError::Refused { refusal: Refusal::Rejected, .. }));
}

pub(crate) fn a_rejection_says_why<F: Fabric>() {
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    for (refusal, len_bytes) in [
        (Refusal::Rejected, 0),
        (Refusal::TooManyConnections, 7),
        (Refusal::Rejected, limits::REJECT_PRIVATE_MAX_BYTES),
    ] {
        let reason = pattern(len_bytes, 3);
        let options = ConnectOptions::default().private_data(b"please".to_vec());
        let pending = peer.start_connect(listener.local_address(), &queue, &options).unwrap();
        let request = next_request(&queue, &listener);
        assert_eq!(request.private_data(), b"please");
        request.reject(refusal, &reason).unwrap();
        match pending.finish().unwrap_err() {
            ConnectError::Refused { refusal: found, private_data, .. } => {
                assert_eq!((found, private_data), (refusal, reason));
            }
            other => panic!("{other}"),
        }
    }
    // Looking away is a rejection too.
    let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    drop(next_request(&queue, &listener));
    assert!(matches!(pending.finish().unwrap_err(), ConnectError::Refused { refusal: Refusal::Rejected, .. }));
}

/// Where somebody listened, and nobody does any more.
fn address_without_listener<F: Fabric>(fabric: &F, target: &Peer) -> Location {
    target.listen(fabric.listen_address(), listen_options()).unwrap().local_address().clone()
}

pub(crate) fn where_nobody_listens_it_says_so<F: Fabric>() {
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let address = address_without_listener(&fabric, &target);
    let error = peer.start_connect(&address, &queue, &ConnectOptions::default()).and_then(PendingConnection::finish);
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

pub(crate) fn early_receives_come_back_when_there_is_no_connection<F: Fabric>() {
    for has_receive_queue in [false, true] {
        let fabric = F::new();
        let (peer, target) = (fabric.peer(), fabric.target());
        let queue = peer.completion_queue(QueueOptions::default()).unwrap();
        let receives = peer.completion_queue(QueueOptions::default()).unwrap();
        let receives = if has_receive_queue { &receives } else { &queue };
        let address = address_without_listener(&fabric, &target);
        let memory = peer.allocate(4096, Access::empty()).unwrap();
        let options = ConnectOptions::default().receive_queue(Some(receives.clone()));
        let connection = peer.start_connect(&address, &queue, &options).unwrap().without_waiting();
        for context in 1..4 {
            connection.early_receive(memory.slice(..64).unwrap(), context).unwrap();
        }
        assert!(matches!(connection.next_event(LONG), Some(ConnectionEvent::Lost(_))));
        connection.early_receive(memory.slice(..64).unwrap(), 4).unwrap();
        for context in 1..5 {
            let done = receives.wait(LONG).expect("each has its outcome");
            assert_eq!((done.kind, done.context), (OperationKind::Receive, context));
            assert!(matches!(done.outcome, Err(OperationError::ConnectionEnded(_))), "{:?}", done.outcome);
        }
        assert!(connection.is_drained() && receives.poll().is_none());
    }
}

pub(crate) fn shared_receives_stay_when_there_is_no_connection<F: Fabric>() {
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let address = address_without_listener(&fabric, &target);
    let memory = peer.allocate(4096, Access::empty()).unwrap();
    let shared = peer.shared_receive_queue(4);
    shared.post(memory.slice(..64).unwrap(), 1).unwrap();
    let options = ConnectOptions::default().shared_receives(Some(shared.clone()));
    let connection = peer.start_connect(&address, &queue, &options).unwrap().without_waiting();
    assert!(matches!(connection.next_event(LONG), Some(ConnectionEvent::Lost(_))));
    assert_eq!((shared.waiting(), queue.poll()), (1, None));
}

pub(crate) fn a_request_that_nobody_takes_times_out<F: Fabric>() {
    const LIMIT: Duration = Duration::from_millis(60);
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let options = ConnectOptions::default().timeout(LIMIT);
    let pending = peer.start_connect(listener.local_address(), &queue, &options).unwrap();
    let error = fabric.takes(LIMIT, || pending.finish()).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { timeout_ms: 60, .. }), "{error}");

    // Whoever loses patience first says how long it lasted.
    let options = ConnectOptions::default().loss_timeout(LIMIT);
    let pending = peer.start_connect(listener.local_address(), &queue, &options).unwrap();
    let error = fabric.takes(LIMIT, || pending.finish()).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { timeout_ms: 60, .. }), "{error}");

    // The listener is none the worse for it: it comes across those that gave up, and serves the next.
    let serving = target.completion_queue(QueueOptions::default()).unwrap();
    let options = ConnectOptions::default().private_data(b"patient".to_vec());
    let pending = peer.start_connect(listener.local_address(), &queue, &options).unwrap();
    let request = loop {
        let request = next_request(&queue, &listener);
        if request.private_data() == b"patient" {
            break request;
        }
    };
    let _there = request.accept(&serving, &AcceptOptions::default()).unwrap();
    assert!(pending.finish().unwrap().is_established());
}

pub(crate) fn waiting_for_requests_ends_in_time<F: Fabric>() {
    let fabric = F::new();
    let listener = fabric.target().listen(fabric.listen_address(), listen_options()).unwrap();
    let none = fabric.takes(Duration::from_millis(30), || listener.next_request(Duration::from_millis(30)).unwrap());
    assert!(none.is_none());
    listener.interrupt();
    let none = fabric.takes(Duration::ZERO, || listener.next_request(LONG).unwrap());
    assert!(none.is_none());
}

pub(crate) fn a_port_is_taken_once<F: Fabric>() {
    let fabric = F::new();
    let target = fabric.peer();
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let again = target.listen(listener.local_address(), listen_options());
    assert!(matches!(again.unwrap_err(), SetupError::Listen { address, .. } if address == *listener.local_address()));
    let address = listener.local_address().clone();
    drop(listener);
    assert_eq!(*target.listen(&address, listen_options()).unwrap().local_address(), address);
}

pub(crate) fn settings_are_agreed_on<F: Fabric>() {
    let fabric = F::new();
    let small = Settings { message_max_bytes: 100, send_queue: 8, payload_max_bytes: 1000, ..Settings::default() };
    let setup = Setup { listen: listen_options().settings(small), ..Setup::default() };
    let pair = fabric.pair_with(&setup);
    let (_memory, remote) = region(&pair.target.peer, 4096, Access::all());
    let connection = &pair.initiator.connection;
    assert!(connection.send(&[0; 100]).is_ok());
    assert_eq!(connection.send(&[0; 101]), Err(PostError::TooLong { len_bytes: 101, limit_bytes: 100 }));
    assert!(connection.write(&remote, 0, &[0; 1000]).is_ok());
    assert_eq!(
        connection.write(&remote, 0, &[0; 1001]),
        Err(PostError::TooLong { len_bytes: 1001, limit_bytes: 1000 })
    );
    // The other direction is bounded by what the initiator takes.
    let (_memory, remote) = region(&pair.initiator.peer, 4096, Access::all());
    assert!(pair.target.connection.write(&remote, 0, &[0; 1001]).is_ok());
    let mut posted = 1;
    while pair.target.connection.write(&remote, 0, b"x").is_ok() {
        posted += 1;
    }
    assert!(posted >= 8, "the queue agreed on holds 8 operations, {posted} were taken");
}

pub(crate) fn checksums_change_nothing_visible<F: Fabric>() {
    let with = Settings { capabilities: Capabilities::PAYLOAD_CRC, ..Settings::default() };
    for (here, there) in [(with, with), (with, Settings::default()), (Settings::default(), with)] {
        let fabric = F::new();
        let setup = Setup {
            connect: ConnectOptions::default().settings(here),
            listen: listen_options().settings(there),
            ..Setup::default()
        };
        let pair = fabric.pair_with(&setup);
        let (memory, remote) = region(&pair.target.peer, 1 << 20, Access::all());
        let (local, _) = region(&pair.initiator.peer, 1 << 20, Access::empty());
        for len_bytes in [0, 1, 4096, 100_000] {
            let bytes = pattern(len_bytes, 9);
            let connection = &pair.initiator.connection;
            connection.write(&remote, 5, &bytes).unwrap();
            let into = local.slice(..len_bytes as u64).unwrap();
            let ticket = connection.read(&remote, 5, into).unwrap();
            assert_eq!(pair.initiator.done(ticket), Outcome::Done { len_bytes: len_bytes as u64 });
            assert_eq!(crate::support::content(&local, 0, len_bytes), bytes);
            assert_eq!(crate::support::content(&memory, 5, len_bytes), bytes);
        }
    }
}

pub(crate) fn events_come_once_and_in_order<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    for side in [&pair.initiator, &pair.target] {
        assert_eq!(side.event(), ConnectionEvent::Established);
        let none = fabric.takes(Duration::from_millis(5), || side.connection.next_event(Duration::from_millis(5)));
        assert_eq!(none, None);
    }
    pair.target.connection.disconnect();
    pair.target.connection.disconnect();
    for side in [&pair.target, &pair.initiator] {
        assert_eq!(side.event(), ConnectionEvent::Closed);
        assert_eq!(side.connection.next_event(Duration::from_millis(5)), None);
        assert!(!side.connection.is_established());
        assert!(side.connection.ended().is_some());
    }
}

pub(crate) fn one_listener_serves_many<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let more: Vec<_> = (0..20)
        .map(|_| {
            join(&pair.initiator.peer, &pair.initiator.queue, &pair.listener, &pair.target.queue, &Setup::default())
        })
        .collect();
    for (connection, _) in &more {
        let ticket = connection.flush(&remote, .., Durability::Visible).unwrap();
        let done = pair.initiator.queue.wait_for(connection.id(), ticket, LONG).unwrap();
        assert!(matches!(done.outcome, Ok(Outcome::Flushed(_))));
    }
}

pub(crate) fn connecting_need_not_be_waited_for<F: Fabric>() {
    if F::IS_VIRTUAL {
        return;
    }
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let serving = target.completion_queue(QueueOptions::default()).unwrap();
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let address = listener.local_address().clone();
    let connection = peer.start_connect(&address, &queue, &ConnectOptions::default()).unwrap().without_waiting();
    assert!(connection.private_data().is_empty() && connection.connect_error().is_none());
    let is_readable = |connection: &Connection| {
        let events = connection.events_fd().unwrap();
        poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    };
    assert!(!is_readable(&connection));
    let accepted = AcceptOptions::default().private_data(b"hello".to_vec());
    let there = next_request(&queue, &listener).accept(&serving, &accepted).unwrap();
    let start = Instant::now();
    let told = iter::repeat_with(|| {
        // Over some transports both sides have a part in it.
        there.next_event(Duration::ZERO);
        connection.next_event(Duration::from_millis(1))
    });
    let event = told.take_while(|_| start.elapsed() < LONG).flatten().next();
    assert_eq!(event, Some(ConnectionEvent::Established));
    assert_eq!(connection.private_data(), b"hello");
    assert!(!is_readable(&connection), "there is one event only");
    drop(there);
    let is_told = || {
        serving.poll();
        queue.poll();
        is_readable(&connection)
    };
    let start = Instant::now();
    while !is_told() {
        assert!(start.elapsed() < LONG, "the end is told in time");
        std::thread::sleep(Duration::from_micros(100));
    }
    assert_eq!(connection.next_event(LONG), Some(ConnectionEvent::Closed));
    assert!(connection.connect_error().is_none(), "it was established");

    drop(listener);
    let connection = peer.start_connect(&address, &queue, &ConnectOptions::default()).unwrap().without_waiting();
    assert!(matches!(connection.next_event(LONG), Some(ConnectionEvent::Lost(_))));
    let refused = connection.connect_error().expect("it was never established");
    let ConnectError::Unreachable { kind, .. } = refused else { panic!("{refused}") };
    assert!(matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound), "{kind:?}");
}

pub(crate) fn a_listener_is_waited_for_by_its_descriptor<F: Fabric>() {
    if F::IS_VIRTUAL {
        return;
    }
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queues = [&peer, &target].map(|peer| peer.completion_queue(threaded()).unwrap());
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    for round in 0..20 {
        assert!(listener.next_request(Duration::ZERO).unwrap().is_none());
        assert!(!is_readable(&listener, Duration::ZERO), "round {round}: an idle listener is not readable");
        let pending = peer.start_connect(listener.local_address(), &queues[0], &ConnectOptions::default()).unwrap();
        let request = loop {
            match listener.next_request(Duration::ZERO).unwrap() {
                Some(request) => break request,
                None => assert!(is_readable(&listener, LONG), "round {round}: nothing wakes who waits for requests"),
            }
        };
        let _there = request.accept(&queues[1], &AcceptOptions::default()).unwrap();
        assert!(pending.finish().unwrap().is_established());
    }
}

pub(crate) fn requests_that_come_together_show_until_the_last_is_taken<F: Fabric>() {
    const CLIENTS: usize = 16;
    if F::IS_VIRTUAL {
        return;
    }
    let fabric = F::new();
    let (peer, target) = (fabric.peer(), fabric.target());
    let queues = [&peer, &target].map(|peer| peer.completion_queue(threaded()).unwrap());
    let listener = target.listen(fabric.listen_address(), listen_options()).unwrap();
    let options = ConnectOptions::default().timeout(LONG);
    let start = || peer.start_connect(listener.local_address(), &queues[0], &options).unwrap();
    let pending: Vec<_> = (0..CLIENTS).map(|_| start()).collect();
    let mut there = Vec::new();
    while there.len() < CLIENTS {
        assert!(is_readable(&listener, LONG), "{} of {CLIENTS} were served", there.len());
        let request = listener.next_request(Duration::ZERO).unwrap();
        there.extend(request.map(|request| request.accept(&queues[1], &AcceptOptions::default()).unwrap()));
    }
    for pending in pending {
        assert!(pending.finish().unwrap().is_established());
    }
    assert!(listener.next_request(Duration::ZERO).unwrap().is_none());
    // What a provider still has to do for the connections may wake a sleeper in vain, but not for ever.
    let start = Instant::now();
    while is_readable(&listener, Duration::ZERO) {
        assert!(listener.next_request(Duration::ZERO).unwrap().is_none());
        assert!(start.elapsed() < LONG, "nothing is left");
    }
}
