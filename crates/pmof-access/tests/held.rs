//! A held batch on a queue with a thread of its own: nobody polls that queue, so the thread sends what was held.

use std::net::SocketAddr;
use std::time::Duration;

use pmof_access::{
    AcceptOptions, Access, ConnectOptions, ListenOptions, Peer, Progress, QueueOptions, Transport, Waiting,
};

/// Less than the longest sleep of a thread, so that being told late does not pass.
const IN_TIME: Duration = Duration::from_millis(500);

#[test]
fn the_thread_of_a_queue_sends_what_was_held() {
    let peer = Peer::open(Transport::Tcp).unwrap();
    // The thread is asleep whenever something is posted.
    let options =
        QueueOptions::default().progress(Progress::Thread).waiting(Waiting::Adaptive { spin: Duration::ZERO });
    let serving = peer.completion_queue(options).unwrap();
    let queue = peer.completion_queue(options).unwrap();
    let memory = peer.allocate(4096, Access::all()).unwrap();
    let listener = peer.listen(SocketAddr::from(([127, 0, 0, 1], 0)), ListenOptions::default()).unwrap();
    let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    let request = listener.next_request(Duration::from_secs(5)).unwrap().unwrap();
    let accepted = AcceptOptions::default().private_data(memory.descriptor().to_vec());
    let _served = request.accept(&serving, &accepted).unwrap();
    let connection = pending.finish().unwrap();
    let remote = connection.remote_region(connection.private_data()).unwrap();
    for round in 0..20_u64 {
        std::thread::sleep(Duration::from_millis(1));
        let mut batch = connection.batch();
        let ticket = batch.write(&remote, round * 8, &round.to_le_bytes()).unwrap();
        batch.hold();
        let done = queue.wait_for(connection.id(), ticket, IN_TIME);
        assert!(done.is_some_and(|done| done.outcome.is_ok()), "round {round}");
    }
}

#[test]
fn polling_a_queue_of_many_connections_sends_what_was_held() {
    let peer = Peer::open(Transport::Tcp).unwrap();
    let threaded = QueueOptions::default().progress(Progress::Thread);
    let serving = peer.completion_queue(threaded).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let memory = peer.allocate(4096, Access::all()).unwrap();
    let listener = peer.listen(SocketAddr::from(([127, 0, 0, 1], 0)), ListenOptions::default()).unwrap();
    let mut served = Vec::new();
    let mut connections = Vec::new();
    for _ in 0..8 {
        let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
        let request = listener.next_request(Duration::from_secs(5)).unwrap().unwrap();
        let accepted = AcceptOptions::default().private_data(memory.descriptor().to_vec());
        served.push(request.accept(&serving, &accepted).unwrap());
        connections.push(pending.finish().unwrap());
    }
    for connection in &connections {
        let remote = connection.remote_region(connection.private_data()).unwrap();
        let mut batch = connection.batch();
        let ticket = batch.write(&remote, 0, b"held").unwrap();
        batch.hold();
        let done = queue.wait_for(connection.id(), ticket, Duration::from_secs(5));
        assert!(done.is_some_and(|done| done.outcome.is_ok()));
    }
}
