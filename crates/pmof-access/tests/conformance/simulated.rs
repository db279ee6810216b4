//! What only a virtual clock shows: the exact moment at which a silent peer counts as lost.

use std::{sync::Arc, time::Duration};

use pmof_access::{
    AcceptOptions, Access, ConnectError, ConnectOptions, ConnectionError, ConnectionEvent, Durability, ListenOptions,
    OperationError, Peer, QueueOptions, Settings,
    sim::{Faults, SimNetwork},
};

use crate::pair::{Pair, Setup, loopback, pair, region};

const LIMIT: Duration = Duration::from_millis(250);
const NONE: Faults =
    Faults { delay: Duration::ZERO, chunk_bytes: 0, cut_after_bytes: None, silent_after_bytes: None, corrupt: None };

fn silent_after(bytes: u64) -> Faults {
    Faults { silent_after_bytes: Some(bytes), ..NONE }
}

fn joined(network: &Arc<SimNetwork>) -> Pair {
    let connect = ConnectOptions::default().loss_timeout(LIMIT);
    let accept = AcceptOptions::default().loss_timeout(LIMIT);
    pair(
        (Peer::simulated(network), Peer::simulated(network)),
        loopback(),
        &Setup { connect, accept, ..Setup::default() },
    )
}

fn since(network: &SimNetwork, start: Duration) -> Duration {
    network.now().saturating_sub(start)
}

#[test]
fn a_target_that_falls_silent_is_lost_after_the_limit() {
    // The welcome has 64 bytes; a reply 64 more, of which nothing, a part, or all but one byte comes.
    for heard in [64, 65, 100, 127] {
        let network = SimNetwork::new();
        network.set_faults(NONE, silent_after(heard));
        let pair = joined(&network);
        let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
        // Idle time does not count.
        assert_eq!(pair.initiator.queue.wait(10 * LIMIT), None);
        let start = network.now();
        let write = pair.initiator.connection.write(&remote, 0, b"x").unwrap();
        let flush = pair.initiator.connection.flush(&remote, .., Durability::Visible).unwrap();
        for ticket in [write, flush] {
            let error = pair.initiator.outcome(ticket).unwrap_err();
            let OperationError::ConnectionEnded(ConnectionError::TimedOut { limit_ms: 250, .. }) = error else {
                panic!("{error}");
            };
        }
        assert_eq!(since(&network, start), LIMIT, "after {heard} bytes");
        assert_eq!(pair.initiator.event(), ConnectionEvent::Established);
        assert!(matches!(pair.initiator.event(), ConnectionEvent::Lost(ConnectionError::TimedOut { .. })));
        assert_eq!(since(&network, start), LIMIT);
    }
}

#[test]
fn an_answer_restarts_the_timeout() {
    const DELAY: Duration = Duration::from_millis(200);
    let network = SimNetwork::new();
    network.set_faults(NONE, Faults { delay: DELAY, silent_after_bytes: Some(128), ..NONE });
    let pair = joined(&network);
    let (_memory, remote) = region(&pair.target.peer, 64, Access::all());
    let start = network.now();
    let first = pair.initiator.connection.write(&remote, 0, b"x").unwrap();
    let second = pair.initiator.connection.write(&remote, 0, b"x").unwrap();
    pair.initiator.done(first);
    assert_eq!(since(&network, start), DELAY);
    pair.initiator.outcome(second).unwrap_err();
    assert_eq!(since(&network, start), DELAY + LIMIT);
}

#[test]
fn an_initiator_that_stops_within_a_frame_is_lost_too() {
    // Hello 64, header 64, and a part of the payload.
    for heard in [65, 127, 128, 200] {
        let network = SimNetwork::new();
        network.set_faults(silent_after(heard), NONE);
        let pair = joined(&network);
        let (_memory, remote) = region(&pair.target.peer, 4096, Access::all());
        pair.initiator.connection.write(&remote, 0, &[1; 1000]).unwrap();
        assert_eq!(pair.target.event(), ConnectionEvent::Established);
        let start = network.now();
        assert!(matches!(pair.target.event(), ConnectionEvent::Lost(ConnectionError::TimedOut { .. })));
        assert_eq!(since(&network, start), LIMIT, "after {heard} bytes");
    }
}

#[test]
fn a_silent_handshake_ends_on_both_sides() {
    for (to_target, to_initiator) in [(0, u64::MAX), (1, u64::MAX), (63, u64::MAX), (u64::MAX, 0), (u64::MAX, 63)] {
        let network = SimNetwork::new();
        network.set_faults(silent_after(to_target), silent_after(to_initiator));
        let (peer, target) = (Peer::simulated(&network), Peer::simulated(&network));
        let queue = peer.completion_queue(QueueOptions::default()).unwrap();
        let serving = target.completion_queue(QueueOptions::default()).unwrap();
        let options = ListenOptions::default().handshake_timeout(LIMIT);
        let listener = target.listen(loopback(), options).unwrap();
        let options = ConnectOptions::default().timeout(3 * LIMIT);
        let pending = peer.start_connect(listener.local_address(), &queue, &options).unwrap();
        let request = listener.next_request(2 * LIMIT).unwrap();
        assert_eq!(request.is_some(), to_target == u64::MAX);
        let _there = request.map(|request| request.accept(&serving, &AcceptOptions::default()).unwrap());
        let start = network.now();
        match pending.finish().unwrap_err() {
            ConnectError::TimedOut { timeout_ms: 750, .. } => assert_eq!(since(&network, start), 3 * LIMIT),
            // The target gave up on the request first, and closed.
            ConnectError::Ended { .. } => assert_ne!(to_target, u64::MAX),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn messages_that_wait_for_room_wait_for_ever() {
    let network = SimNetwork::new();
    let settings = Settings { inbox_messages: 1, ..Settings::default() };
    let connect = ConnectOptions::default().loss_timeout(LIMIT);
    let listen = ListenOptions::default().settings(settings);
    let pair = pair(
        (Peer::simulated(&network), Peer::simulated(&network)),
        loopback(),
        &Setup { connect, listen, ..Setup::default() },
    );
    let sends = [b"1", b"2"].map(|message| pair.initiator.connection.send(message).unwrap());
    let hour = Duration::from_secs(3600);
    assert_eq!(pair.initiator.queue.wait(hour), None, "how long the receiver takes is its own affair");
    let (inbox, _) = region(&pair.target.peer, 8, Access::empty());
    for send in sends {
        pair.target.connection.receive(inbox.slice(..).unwrap(), 0).unwrap();
        pair.initiator.done(send);
    }
}
