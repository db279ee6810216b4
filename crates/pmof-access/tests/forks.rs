//! Connections, queues, listeners and regions in a child of `fork()`: the child is refused at once, and the parent goes on.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use forked_child::fork;
use pmof_access::{
    AcceptOptions, Access, Address, BackgroundThreads, CompletionQueue, ConnectError, ConnectOptions, Connection,
    ConnectionError, ConnectionEvent, Durability, ListenOptions, Listener, Memory, Outcome, Peer, PostError, Progress,
    QueueOptions, Refusal, Region, RegisterError, RemoteRegion, SetupError, Transport,
};

#[path = "support/mod.rs"]
mod support;

use support::{content, pattern};

const LONG: Duration = Duration::from_secs(60);
const LEN_BYTES: u64 = 4096;
const ROUNDS: u64 = 20;

const WAYS: [(Transport, Progress); 6] = [
    (Transport::Tcp, Progress::Caller),
    (Transport::Tcp, Progress::Thread),
    (Transport::Tcp, Progress::Assisted),
    (Transport::Shm, Progress::Caller),
    (Transport::Shm, Progress::Thread),
    (Transport::Shm, Progress::Assisted),
];

/// Two ends of a connection in this process, and what they were made of.
struct Joined {
    /// Not dropped with the rest, in a child.
    directory: Arc<tempfile::TempDir>,
    target: Peer,
    listener: Listener,
    address: Address,
    serving: CompletionQueue,
    region: Region,
    there: Connection,
    peer: Peer,
    queue: CompletionQueue,
    here: Connection,
    remote: RemoteRegion,
}

impl Joined {
    fn new(transport: Transport, progress: Progress) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let listen: Address = match transport {
            Transport::Shm => format!("shm://{}/s", directory.path().display()).parse().unwrap(),
            _ => "tcp://127.0.0.1:0".parse().unwrap(),
        };
        let [target, peer] = [(), ()].map(|()| Peer::open(transport).unwrap());
        let place = listen.resolve().unwrap().remove(0);
        let listener = target.listen(place, ListenOptions::default()).unwrap();
        let address: Address = format!("{}://{}", transport.scheme(), listener.local_address()).parse().unwrap();
        let serving = target.completion_queue(QueueOptions::default().progress(Progress::Thread)).unwrap();
        let region = target.allocate(LEN_BYTES, Access::all()).unwrap();
        let queue = peer.completion_queue(QueueOptions::default().progress(progress)).unwrap();
        let options = AcceptOptions::default().private_data(region.descriptor().to_vec());
        let (here, there) = thread::scope(|scope| {
            let asking = scope.spawn(|| peer.connect(&address, &queue, &ConnectOptions::default()).unwrap());
            let request = listener.next_request(LONG).unwrap().expect("a request");
            let there = request.accept(&serving, &options).unwrap();
            (asking.join().unwrap(), there)
        });
        let remote = here.remote_region(here.private_data()).unwrap();
        Self { directory, target, listener, address, serving, region, there, peer, queue, here, remote }
    }

    fn write(&self, offset: u64, seed: u64) {
        let bytes = pattern(8, seed);
        self.here.write(&self.remote, offset, &bytes).unwrap();
        let ticket = self.here.flush(&self.remote, .., Durability::Visible).unwrap();
        // The writes' own outcomes come too.
        let done = self.queue.wait_for(self.here.id(), ticket, LONG).expect("an outcome");
        assert!(matches!(done.outcome, Ok(Outcome::Flushed { .. })), "{done:?}");
        while self.queue.poll().is_some() {}
        assert_eq!(content(&self.region, offset, 8), bytes);
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(what: &str, posted: &Result<T, PostError>) {
    assert!(matches!(posted, Err(PostError::NotConnected(ConnectionError::Forked))), "{what}: {posted:?}");
}

/// What a child does with one side.
fn refused(connection: &Connection, remote: &RemoteRegion, queue: &CompletionQueue) {
    let bytes = [0xee_u8; 8];
    assert_refused("write", &connection.write(remote, 0, &bytes));
    assert_refused("flush", &connection.flush(remote, .., Durability::Visible));
    assert_refused("send", &connection.send(&bytes));
    assert_refused("append", &connection.append(&bytes));
    let mut batch = connection.batch();
    assert_refused("a batch's write", &batch.write(remote, 0, &bytes));
    assert_refused("atomic_write", &batch.atomic_write(remote, 0, 0xee));
    assert_refused("fetch_and_add", &batch.fetch_and_add(remote, 0, 0xee));
    batch.submit();
    assert!(!connection.is_established() && connection.is_drained() && connection.outstanding() == 0);
    assert_eq!(connection.ended(), Some(ConnectionError::Forked));
    assert!(matches!(connection.next_event(LONG), Some(ConnectionEvent::Lost(ConnectionError::Forked))));
    assert!(matches!(connection.events_fd(), Err(SetupError::Forked)));
    assert!(connection.prepare(remote, LONG) && connection.wait_send_room(LONG));
    assert!(connection.flush_method(remote, Durability::Visible).is_err() && connection.peer_process().is_none());
    connection.disconnect();
    connection.fence();
    connection.stop();
    assert!(connection.wait_closed(LONG));
    assert!(queue.poll().is_none() && queue.wait(LONG).is_none() && queue.poll_receives(true).is_none());
    assert!(queue.wait_next_is_receive(LONG).is_none() && matches!(queue.fd(), Err(SetupError::Forked)));
    queue.interrupt();
    queue.discard(connection.id());
}

fn refused_peer(peer: &Peer, queue: &CompletionQueue, address: &Address) {
    assert!(matches!(peer.completion_queue(QueueOptions::default()), Err(SetupError::Forked)));
    let connected = peer.connect(address, queue, &ConnectOptions::default());
    assert!(matches!(connected, Err(ConnectError::Setup(SetupError::Forked))), "{connected:?}");
    let place = address.resolve().unwrap().remove(0);
    assert!(matches!(peer.listen(place, ListenOptions::default()), Err(SetupError::Forked)));
    assert!(matches!(peer.allocate(64, Access::all()), Err(RegisterError::Forked)));
    let memory = Arc::new(Memory::anonymous(64).unwrap());
    assert!(matches!(peer.register(memory, 0, 64, Access::all()), Err(RegisterError::Forked)));
}

fn refused_region(region: Region) {
    assert!(matches!(region.read(0, &mut [0; 8]), Err(RegisterError::Forked)));
    assert!(matches!(region.store(0, &[0xee; 8]), Err(RegisterError::Forked)));
    assert!(matches!(region.short_descriptor(0), Err(RegisterError::Forked)));
    assert!(!region.is_mapped_for_writing() && !region.clone().fence());
    region.deregister();
}

#[test]
fn child_is_refused_and_parent_goes_on() {
    for (transport, progress) in WAYS {
        let joined = Joined::new(transport, progress);
        let Joined { target, listener, address, region, there, peer, queue, here, remote, .. } = &joined;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Takes the locks again and again.
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    joined.write(64, 0x22);
                }
            });
            for _ in 0..ROUNDS {
                let region = RefCell::new(Some(region.clone()));
                fork(|| {
                    refused(here, remote, queue);
                    refused(there, remote, queue);
                    refused_peer(peer, queue, address);
                    refused_peer(target, queue, address);
                    assert!(matches!(listener.next_request(LONG), Err(SetupError::Forked)));
                    listener.interrupt();
                    refused_region(region.take().expect("one handle"));
                })
                .succeed();
            }
            is_over.store(true, Ordering::Release);
        });
        joined.write(0, 0x33);
        assert_eq!(content(region, 64, 8), pattern(8, 0x22));
    }
}

#[test]
fn child_drops_what_its_parent_goes_on_with() {
    for (transport, progress) in WAYS {
        let joined = Joined::new(transport, progress);
        let _directory = Arc::clone(&joined.directory);
        let joined = RefCell::new(Some(joined));
        for round in 0..ROUNDS {
            fork(|| drop(joined.take())).succeed();
            joined.borrow().as_ref().expect("the parent's").write(0, round);
        }
        let Some(joined) = joined.take() else { return };
        // The listener is there still, and the socket that it has in the file system.
        thread::scope(|scope| {
            let again = scope.spawn(|| joined.peer.connect(&joined.address, &joined.queue, &ConnectOptions::default()));
            let request = joined.listener.next_request(LONG).unwrap().expect("a request");
            request.reject(Refusal::Rejected, &[]).unwrap();
            assert!(matches!(again.join().unwrap(), Err(ConnectError::Refused { .. })));
        });
        assert!(joined.here.close(LONG));
        assert!(matches!(joined.there.next_event(LONG), Some(ConnectionEvent::Established)));
        assert!(matches!(joined.there.next_event(LONG), Some(ConnectionEvent::Closed)));
    }
}

/// A batch that is open at the fork is the parent's: the child posts nothing in it, and sends nothing of it.
#[test]
fn batch_is_not_sent_twice() {
    for (transport, progress) in WAYS {
        let joined = Joined::new(transport, progress);
        for round in 1..=ROUNDS {
            let batch = RefCell::new(Some(joined.here.batch()));
            let added = batch.borrow_mut().as_mut().map(|batch| batch.fetch_and_add(&joined.remote, 0, 1));
            let added = added.expect("a batch").unwrap();
            fork(|| {
                let Some(mut batch) = batch.take() else { return };
                assert_refused("a write", &batch.write(&joined.remote, 8, &[0xee; 8]));
                assert_refused("a flush", &batch.flush(&joined.remote, .., Durability::Visible));
                assert_refused("an addition", &batch.fetch_and_add(&joined.remote, 0, 1));
                batch.submit();
            })
            .succeed();
            drop(batch);
            let done = joined.queue.wait_for(joined.here.id(), added, LONG).expect("an outcome");
            assert!(done.outcome.is_ok(), "{done:?}");
            assert_eq!(content(&joined.region, 0, 8), round.to_le_bytes());
        }
        assert_eq!(content(&joined.region, 8, 8), [0; 8]);
    }
}

/// A request that a listener took before the fork is decided by the parent, whatever the child does with it.
#[test]
fn request_is_decided_by_the_parent() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let joined = Joined::new(transport, Progress::Thread);
        let pending = joined
            .peer
            .start_connect(joined.address.resolve().unwrap().remove(0), &joined.queue, &ConnectOptions::default())
            .unwrap();
        let request = RefCell::new(joined.listener.next_request(LONG).unwrap());
        fork(|| drop(request.take())).succeed();
        fork(|| {
            let accepted = request.take().expect("a request").accept(&joined.serving, &AcceptOptions::default());
            assert!(matches!(accepted, Err(ConnectError::Setup(SetupError::Forked))), "{accepted:?}");
        })
        .succeed();
        let _there = request.take().expect("a request").accept(&joined.serving, &AcceptOptions::default()).unwrap();
        pending.finish().unwrap();
    }
}

#[test]
fn background_threads_are_the_parents() {
    let background = RefCell::new(Some(BackgroundThreads::start().unwrap()));
    fork(|| {
        let background = background.take().expect("the parent's");
        background.run(0, || panic!("there is no thread for it"));
        background.finish();
    })
    .succeed();
    let (done, is_done) = std::sync::mpsc::channel();
    background.borrow().as_ref().expect("the parent's").run(0, move || done.send(()).unwrap());
    is_done.recv().unwrap();
}

/// A child that its parent left nothing opens peers of its own.
#[test]
fn child_has_connections_of_its_own() {
    let before = Joined::new(Transport::Tcp, Progress::Caller);
    before.write(0, 1);
    drop(before);
    for transport in [Transport::Tcp, Transport::Shm] {
        fork(|| Joined::new(transport, Progress::Caller).write(0, 2)).succeed();
    }
}
