//! What many connections of one process cost it: descriptors and threads.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use pmof_access::{
    AcceptOptions, Access, CompletionQueue, ConnectOptions, Connection, Durability, ListenOptions, Location, Memory,
    Outcome, Peer, Progress, QueueOptions, Transport,
};
use rustix::process::{Resource, getrlimit, setrlimit};

const CONNECTIONS: usize = 1000;
const LONG: Duration = Duration::from_secs(120);

/// Beyond those of connections: standard ones, a listener's, queues' and the threads', memory.
const OTHER_DESCRIPTORS: usize = 40;
/// The test's own threads, and those that all queues of a peer share.
const THREADS_MAX: usize = 2 + 4;

fn entries(path: &str) -> usize {
    fs::read_dir(path).expect("procfs").count()
}

/// Both ends' queues for one connection: that of all others too, or one of its own.
type Queues<'a> = &'a dyn Fn(&Peer) -> (CompletionQueue, CompletionQueue);

/// Makes the connections, both ends here, uses each, and counts. `each`: descriptors of one end.
fn check_many(transport: Transport, address: impl Into<Location>, queues: Queues<'_>, each: usize) {
    let peer = Peer::open(transport).unwrap();
    let memory = std::sync::Arc::new(Memory::anonymous(4096).unwrap());
    let region = peer.register(memory, 0, 4096, Access::all()).unwrap();
    let listener = peer.listen(address, ListenOptions::default()).unwrap();
    let accept = AcceptOptions::default().private_data(region.descriptor().to_vec());
    let mut ends: Vec<(Connection, Connection)> = Vec::new();
    for _ in 0..CONNECTIONS {
        let (queue, serving) = queues(&peer);
        let connect = ConnectOptions::default().timeout(LONG);
        let pending = peer.start_connect(listener.local_address(), &queue, &connect).unwrap();
        let request = listener.next_request(LONG).unwrap().expect("a request");
        let served = request.accept(&serving, &accept).unwrap();
        ends.push((pending.finish().unwrap(), served));
    }
    for (number, (connection, _)) in ends.iter().enumerate() {
        let remote = connection.remote_region(connection.private_data()).unwrap();
        connection.write(&remote, 0, &number.to_le_bytes()).unwrap();
        let flush = connection.flush(&remote, .., Durability::Visible).unwrap();
        let done = connection.queue().wait_for(connection.id(), flush, LONG).expect("nobody else serves the other end");
        assert!(matches!(done.outcome, Ok(Outcome::Flushed(_))));
    }
    let (descriptors, threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
    println!("{transport}: {CONNECTIONS} connections, both ends: {descriptors} descriptors, {threads} threads");
    let most = 2 * each * CONNECTIONS + OTHER_DESCRIPTORS;
    assert!(descriptors <= most, "{descriptors} descriptors of {CONNECTIONS} connections, {each} each end");
    assert!(threads <= THREADS_MAX, "{threads} threads");
}

#[test]
fn connections_have_their_sockets_and_no_thread_each() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What the process may open is its own to raise.
    let _ = setrlimit(Resource::Nofile, limit);
    let needed = (6 * CONNECTIONS + OTHER_DESCRIPTORS) as u64;
    if limit.maximum.is_some_and(|limit| limit < needed) {
        skip_report::skipped!("this needs {needed} descriptors, the limit is less: see ulimit -Hn");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let assisted = QueueOptions::default().progress(Progress::Assisted);
    let own = |peer: &Peer| {
        let queue = || peer.completion_queue(assisted).unwrap();
        (queue(), queue())
    };
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    check_many(Transport::Tcp, local, &own, 1);
    // The control channel is a socket more.
    check_many(Transport::Shm, Path::new(&path), &own, 2);
    let shared = std::cell::OnceCell::new();
    let of_all = |peer: &Peer| {
        let threaded = QueueOptions::default().progress(Progress::Thread);
        let make =
            || (peer.completion_queue(QueueOptions::default()).unwrap(), peer.completion_queue(threaded).unwrap());
        shared.get_or_init(make).clone()
    };
    check_many(Transport::Tcp, local, &of_all, 1);
}
