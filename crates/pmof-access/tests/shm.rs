//! Memory shared by processes: other processes as targets, their death, rights, revocation, and hostile neighbours.

use std::{
    fs,
    io::{BufRead, BufReader, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, Address, Batch, CompletionQueue, ConnectError, ConnectOptions, Connection, ConnectionError,
    ConnectionEvent, Declaration, Durability, Evidence, ListenOptions, Mechanism, Medium as _, MediumKind, Memory,
    Method, OperationError, Outcome, Peer, PostError, Progress, Promise, QueueOptions, Refusal, Region, RemoteRegion,
    SetupError, Ticket, Transport,
};
use pmof_locks::Mutex;
use pmof_mem::causes;
use pmof_proto::Descriptor;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use syscall_recorder::{Call, Verdict, observe, record};

#[path = "support/mod.rs"]
mod support;

use support::{content, pattern};

const LONG: Duration = Duration::from_secs(60);
const LEN_BYTES: u64 = 64 << 10;

/// Names the socket and, after it, the file that the child serves.
const SERVE_SOCKET: &str = "PMOF_TEST_SERVE_SOCKET";
const SERVE_FILE: &str = "PMOF_TEST_SERVE_FILE";
/// Names the socket that a child connects to.
const CONNECT_SOCKET: &str = "PMOF_TEST_CONNECT_SOCKET";

fn threaded() -> QueueOptions {
    QueueOptions::default().progress(Progress::Thread)
}

fn open() -> Peer {
    Peer::open(Transport::Shm).unwrap()
}

fn address(path: &Path) -> Address {
    format!("shm://{}", path.display()).parse().unwrap()
}

/// Connects within this process.
struct Joined {
    _directory: tempfile::TempDir,
    target: Peer,
    _serving: CompletionQueue,
    there: Connection,
    queue: CompletionQueue,
    here: Connection,
}

impl Joined {
    fn new() -> Self {
        Self::with(&ConnectOptions::default())
    }

    fn with(options: &ConnectOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (peer, target) = (open(), open());
        let queue = peer.completion_queue(QueueOptions::default()).unwrap();
        let serving = target.completion_queue(threaded()).unwrap();
        let listener = target.listen(path.as_path(), ListenOptions::default()).unwrap();
        let pending = peer.start_connect(path.as_path(), &queue, options).unwrap();
        let request = listener.next_request(LONG).unwrap().unwrap();
        let there = request.accept(&serving, &AcceptOptions::default()).unwrap();
        let here = pending.finish().unwrap();
        Self { _directory: directory, target, _serving: serving, there, queue, here }
    }

    fn mapped(&self, region: &Region) -> RemoteRegion {
        let remote = RemoteRegion::from_descriptor(&region.descriptor()).unwrap();
        assert!(self.here.prepare(&remote, LONG));
        remote
    }

    #[track_caller]
    fn done(&self, ticket: Ticket) -> Outcome {
        self.queue.wait_for(self.here.id(), ticket, LONG).expect("in time").outcome.expect("it succeeds")
    }
}

/// Not a test of its own: the other process of those that need one.
#[test]
fn serve_as_a_child() {
    let Ok(socket) = std::env::var(SERVE_SOCKET) else { return };
    let memory = match std::env::var(SERVE_FILE) {
        Ok(file) => Memory::open(Path::new(&file), None).unwrap(),
        Err(_) => Memory::shared_anonymous(LEN_BYTES, false).unwrap(),
    };
    let peer = open();
    let serving = peer.completion_queue(threaded()).unwrap();
    let region = peer.register(Arc::new(memory), 0, LEN_BYTES, Access::all()).unwrap();
    let listener = peer.listen(Path::new(&socket), ListenOptions::default()).unwrap();
    println!("\nready");
    let mut served = Vec::new();
    let accept = AcceptOptions::default().private_data(region.descriptor().to_vec());
    loop {
        let request = listener.next_request(LONG).unwrap().expect("somebody comes, or kills this process");
        served.push(request.accept(&serving, &accept).unwrap());
    }
}

/// A target in a process of its own; killed when dropped.
struct Target(Child);

impl Target {
    fn start(socket: &Path, file: Option<&Path>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "serve_as_a_child", "--nocapture"]).env(SERVE_SOCKET, socket).stdout(Stdio::piped());
        if let Some(file) = file {
            command.env(SERVE_FILE, file);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line == "ready"), "the child serves");
        Self(child)
    }

    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_killed_process_is_noticed_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let file = directory.path().join("m");
    drop(Memory::create(&file, LEN_BYTES, None).unwrap());
    let peer = open();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    for life in 0..3_u64 {
        let target = Target::start(&socket, Some(&file));
        let here = peer.connect(&address(&socket), &queue, &ConnectOptions::default()).unwrap();
        let remote = here.remote_region(here.private_data()).unwrap();
        assert!(here.prepare(&remote, LONG));
        let level = remote.strongest();
        assert_eq!(here.flush_method(&remote, level).unwrap().0, Method::LocalWriteBack);
        here.write(&remote, 100, &pattern(5000, life)).unwrap();
        let ticket = here.flush(&remote, .., level).unwrap();
        let done = queue.wait_for(here.id(), ticket, LONG).unwrap();
        assert!(matches!(done.outcome, Ok(Outcome::Flushed(flushed)) if flushed.durability == level), "{done:?}");
        target.kill();
        // Even one who only posts learns of it within a bounded number of batches.
        let refused = (0..100).find_map(|_| here.write(&remote, 0, b"x").err());
        assert!(matches!(refused, Some(PostError::NotConnected(ConnectionError::Lost { .. }))), "{refused:?}");
        assert_eq!(here.next_event(LONG), Some(ConnectionEvent::Established));
        assert!(matches!(here.next_event(LONG), Some(ConnectionEvent::Lost(ConnectionError::Lost { .. }))));
        let mut found = vec![0; 5000];
        Memory::open(&file, None).unwrap().read(100, &mut found).unwrap();
        assert!(found == pattern(5000, life));
        while queue.poll().is_some() {}
        let error = peer.connect(&address(&socket), &queue, &ConnectOptions::default()).unwrap_err();
        assert!(error.to_string().contains("has died"), "{error}");
    }
}

/// A target that makes a pool beside the socket holds the directory's lock until that is made.
#[test]
fn the_socket_goes_with_its_listener_whoever_holds_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let listener = open().listen(&*socket, ListenOptions::default()).unwrap();
    let held = fs::File::open(directory.path()).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).unwrap();
    drop(listener);
    assert!(!socket.exists());
    // What somebody else has put there stays.
    drop(held);
    let listener = open().listen(&*socket, ListenOptions::default()).unwrap();
    fs::rename(&socket, directory.path().join("away")).unwrap();
    fs::write(&socket, b"another's").unwrap();
    drop(listener);
    assert!(socket.exists());
}

#[test]
fn nobody_serves_what_is_mapped() {
    let joined = Joined::with(&ConnectOptions::default().method(Some(Method::LocalWriteBack)));
    let region = joined.target.allocate(LEN_BYTES, Access::all()).unwrap();
    let early =
        joined.here.flush(&RemoteRegion::from_descriptor(&region.descriptor()).unwrap(), .., Durability::Visible);
    assert!(matches!(&early, Err(error @ PostError::MethodRefused { .. }) if error.to_string().contains("prepare")));
    let remote = joined.mapped(&region);
    // With the target's socket full of unread bytes nothing could be served, and all of this works.
    let into = open().allocate(LEN_BYTES, Access::empty()).unwrap();
    joined.here.write(&remote, 3, &pattern(1000, 1)).unwrap();
    assert!(content(&region, 3, 1000) == pattern(1000, 1), "the bytes are there when the call returns");
    let added = joined.here.batch().fetch_and_add(&remote, 8000, 5).unwrap();
    let swapped = joined.here.batch().compare_and_swap(&remote, 8000, 5, 9).unwrap();
    assert_eq!([joined.done(added), joined.done(swapped)], [Outcome::Previous(0), Outcome::Previous(5)]);
    assert_eq!(content(&region, 8000, 8), 9_u64.to_le_bytes());
    let ticket = joined.here.read(&remote, 3, into.slice(..1000).unwrap()).unwrap();
    assert_eq!(joined.done(ticket), Outcome::Done { len_bytes: 1000 });
    assert!(content(&into, 0, 1000) == pattern(1000, 1));
    let ticket = joined.here.flush(&remote, .., Durability::Visible).unwrap();
    assert!(matches!(joined.done(ticket), Outcome::Flushed(flushed) if flushed.promise.mechanism == Mechanism::Store));
    assert_eq!(joined.here.outstanding(), 0);
}

/// What another thread's posting finishes at once ends the sleep of the one that waits.
#[test]
fn a_sleeper_is_woken_by_what_another_thread_posts() {
    let joined = Joined::new();
    let region = joined.target.allocate(4096, Access::all()).unwrap();
    let remote = joined.mapped(&region);
    let (say, hear) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                let done = joined.queue.wait(LONG).expect("woken");
                say.send(done.ticket).unwrap();
            }
        });
        let started = Instant::now();
        for round in 0..200_u64 {
            if round % 2 == 0 {
                thread::sleep(Duration::from_micros(round * 3));
            }
            let ticket = joined.here.write(&remote, 0, b"x").unwrap();
            assert_eq!(hear.recv_timeout(LONG), Ok(ticket));
        }
        // A wake-up that is lost costs a second: half of them lost shows, also on a machine that is busy.
        assert!(started.elapsed() < Duration::from_secs(100), "took {:?}", started.elapsed());
    });
}

#[test]
fn messages_and_mapped_writes_keep_their_order() {
    let joined = Joined::new();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let memory = Memory::create(&directory.path().join("m"), LEN_BYTES, None).unwrap();
    let region = joined.target.register(Arc::new(memory), 4096, LEN_BYTES - 4096, Access::all()).unwrap();
    let remote = joined.mapped(&region);
    let inbox = joined.target.allocate(64, Access::empty()).unwrap();
    for round in 0..50_u64 {
        joined.there.receive(inbox.slice(..).unwrap(), 0).unwrap();
        let mut batch = joined.here.batch();
        batch.write(&remote, 0, &round.to_le_bytes()).unwrap();
        batch.write_with_immediate(&remote, 0, &(round + 1000).to_le_bytes(), 1).unwrap();
        batch.write(&remote, 8, &round.to_le_bytes()).unwrap();
        batch.write(&remote, 0, &(round + 2000).to_le_bytes()).unwrap();
        let flush = batch.flush(&remote, .., remote.strongest()).unwrap();
        batch.submit();
        assert!(matches!(joined.done(flush), Outcome::Flushed(flushed) if flushed.durability == remote.strongest()));
        assert_eq!(content(&region, 0, 8), (round + 2000).to_le_bytes());
        assert_eq!(content(&region, 8, 8), round.to_le_bytes());
    }
}

/// A file in the page cache, unless the build lies on something else.
fn file_on_disk(directory: &Path) -> Option<Memory> {
    let memory = Memory::create(&directory.join("m"), LEN_BYTES, None).unwrap();
    if memory.kind() != MediumKind::PageCache {
        skip_report::skipped!("the build directory lies on {}", memory.kind());
        return None;
    }
    Some(memory)
}

type Change<'c> = dyn Fn(&mut Batch<'_>) -> Result<Ticket, PostError> + 'c;

#[test]
fn every_change_is_flushed_by_the_initiator_whoever_carried_it_out() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(memory) = file_on_disk(directory.path()) else { return };
    let path = directory.path().join("m");
    let act = || {
        let joined = Joined::new();
        let region = joined.target.register(Arc::new(memory), 0, LEN_BYTES, Access::all()).unwrap();
        let remote = joined.mapped(&region);
        let inbox = joined.target.allocate(64, Access::empty()).unwrap();
        let flush = || {
            let ticket = joined.here.flush(&remote, .., Durability::PowerFailure).unwrap();
            assert!(
                matches!(joined.done(ticket), Outcome::Flushed(done) if done.durability == Durability::PowerFailure)
            );
        };
        assert_eq!(joined.here.flush_method(&remote, Durability::PowerFailure).unwrap().0, Method::LocalWriteBack);
        // The first one flushes whatever was there.
        flush();
        flush();
        let own = open().allocate(64, Access::empty()).unwrap();
        let changes: [&Change<'_>; 6] = [
            &|batch| batch.write(&remote, 0, b"mapped"),
            &|batch| batch.write(&remote, 64, own.slice(..).unwrap()),
            &|batch| batch.atomic_write(&remote, 128, 1),
            &|batch| batch.compare_and_swap(&remote, 128, 1, 2),
            &|batch| batch.fetch_and_add(&remote, 128, 1),
            // This one the target's CPU carries out.
            &|batch| batch.write_with_immediate(&remote, 4096, b"by message", 1),
        ];
        for change in changes {
            joined.there.receive(inbox.slice(..).unwrap(), 0).unwrap();
            let ticket = change(&mut joined.here.batch()).unwrap();
            joined.done(ticket);
            flush();
            // Nothing was changed since.
            flush();
        }
    };
    let Ok(((), calls)) = observe(act).inspect_err(|error| skip_report::skipped!("{error}")) else {
        return;
    };
    assert_eq!(calls.iter().filter(|call| call.is_sync_of(&path)).count(), 7, "{calls:?}");
}

#[test]
fn a_declaration_of_either_side_is_reported_as_declared() {
    let power = Durability::PowerFailure;
    let flushed = |memory: Memory, claimed: Evidence| {
        let joined = Joined::new();
        let region = joined.target.register(Arc::new(memory), 0, LEN_BYTES, Access::all()).unwrap();
        // Only a descriptor that was tampered with says other than the memory.
        let mut descriptor = Descriptor::decode(&region.descriptor()).unwrap();
        let promise = descriptor.promise(power).unwrap();
        descriptor.promises[2] = Some(Promise { evidence: claimed, ..promise });
        let remote = RemoteRegion::from_descriptor(&descriptor.encode()).unwrap();
        assert!(joined.here.prepare(&remote, LONG));
        let (method, told) = joined.here.flush_method(&remote, power).unwrap();
        assert_eq!(method, Method::LocalWriteBack);
        let Outcome::Flushed(done) = joined.done(joined.here.flush(&remote, .., power).unwrap()) else { panic!() };
        assert_eq!(done.promise, told);
        done.promise.evidence
    };
    let tmpfs = tempfile::tempdir_in("/dev/shm").unwrap();
    for (name, claimed) in [("a", Evidence::Declared), ("b", Evidence::Probed)] {
        let declared = Some(Declaration::BatteryBacked);
        let memory = Memory::create(&tmpfs.path().join(name), LEN_BYTES, declared).unwrap();
        assert_eq!(flushed(memory, claimed), Evidence::Declared, "the descriptor says {claimed:?}");
    }
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for claimed in [Evidence::Declared, Evidence::Probed] {
        let directory = tempfile::tempdir_in(disk.path()).unwrap();
        let Some(memory) = file_on_disk(directory.path()) else { return };
        if memory.promise(power).is_some_and(|promise| promise.evidence == Evidence::Probed) {
            assert_eq!(flushed(memory, claimed), claimed);
        }
    }
}

#[test]
fn a_failed_fdatasync_of_either_side_fails_the_flush() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (round, method) in [Method::LocalWriteBack, Method::SendAfterWrite].into_iter().enumerate() {
        let directory = directory.path().join(round.to_string());
        fs::create_dir(&directory).unwrap();
        let Some(memory) = file_on_disk(&directory) else { return };
        let path = directory.join("m");
        let judge = |call: &Call| if call.is_sync_of(&path) { Verdict::Fail(5) } else { Verdict::Pass };
        let act = || {
            let joined = Joined::with(&ConnectOptions::default().method(Some(method)));
            let region = joined.target.register(Arc::new(memory), 0, LEN_BYTES, Access::all()).unwrap();
            let remote = joined.mapped(&region);
            joined.here.write(&remote, 0, b"lost").unwrap();
            let weak = joined.here.flush(&remote, .., Durability::ProcessCrash).unwrap();
            joined.done(weak);
            let flush = joined.here.flush(&remote, .., Durability::PowerFailure).unwrap();
            let outcome = joined.queue.wait_for(joined.here.id(), flush, LONG).expect("in time").outcome;
            let is_refused = matches!(outcome, Err(OperationError::Refused { refusal: Refusal::MediumFailed, .. }));
            assert!(is_refused, "{method}: {outcome:?}");
        };
        let Ok(((), calls)) = record(judge, act).inspect_err(|error| skip_report::skipped!("{error}")) else { return };
        assert_eq!(calls.iter().filter(|call| call.is_sync_of(&path)).count(), 1, "{calls:?}");
    }
}

#[test]
fn a_deregistered_region_is_gone_at_once() {
    let joined = Joined::new();
    let (kept, gone) = (joined.target.allocate(4096, Access::all()), joined.target.allocate(4096, Access::all()));
    let (kept, gone) = (kept.unwrap(), gone.unwrap());
    let (remote_kept, remote_gone) = (joined.mapped(&kept), joined.mapped(&gone));
    joined.done(joined.here.write(&remote_gone, 0, b"before").unwrap());
    let copy = gone.clone();
    gone.deregister();
    joined.done(joined.here.write(&remote_kept, 0, b"still").unwrap());
    let ticket = joined.here.write(&remote_gone, 0, b"after!").unwrap();
    let done = joined.queue.wait_for(joined.here.id(), ticket, LONG).unwrap();
    assert!(done.outcome.unwrap_err().to_string().contains("no region has this key"), "said by the target");
    assert_eq!(content(&copy, 0, 6), b"before");
}

#[test]
fn nothing_is_reported_as_flushed_behind_a_fence() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(memory) = file_on_disk(directory.path()) else { return };
    let path = directory.path().join("m");
    let fenced: Mutex<Option<Region>> = Mutex::default();
    // In the middle of the flush, when the operation was found to be allowed long since.
    let judge = |call: &Call| {
        if call.is_sync_of(&path)
            && let Some(region) = fenced.lock().take()
        {
            region.fence();
        }
        Verdict::Pass
    };
    let act = || {
        let joined = Joined::new();
        let region = joined.target.register(Arc::new(memory), 0, LEN_BYTES, Access::all()).unwrap();
        assert!(!region.is_mapped_for_writing());
        let remote = joined.mapped(&region);
        assert!(region.is_mapped_for_writing());
        joined.done(joined.here.write(&remote, 0, b"late").unwrap());
        *fenced.lock() = Some(region);
        let flush = joined.here.flush(&remote, .., Durability::PowerFailure).unwrap();
        let outcome = joined.queue.wait_for(joined.here.id(), flush, LONG).expect("in time").outcome;
        assert!(is_fenced(&outcome), "{outcome:?}");
        let ended = joined.here.ended().unwrap();
        assert!(matches!(ended, ConnectionError::Refused { refusal: Refusal::Fenced, .. }), "{ended:?}");
    };
    let Ok(((), calls)) = record(judge, act).inspect_err(|error| skip_report::skipped!("{error}")) else { return };
    assert_eq!(calls.iter().filter(|call| call.is_sync_of(&path)).count(), 1, "{calls:?}");
}

fn is_fenced(outcome: &Result<Outcome, OperationError>) -> bool {
    matches!(
        outcome,
        Err(OperationError::Refused { refusal: Refusal::Fenced, .. }
            | OperationError::ConnectionEnded(ConnectionError::Refused { refusal: Refusal::Fenced, .. }))
    )
}

#[test]
fn what_is_posted_behind_a_fence_is_refused_by_its_name() {
    type Post = fn(&Connection, &RemoteRegion, &Region) -> Result<Ticket, PostError>;
    let posts: [Post; 5] = [
        |here, remote, _| here.write(remote, 0, b"late"),
        |here, remote, _| here.flush(remote, .., Durability::Visible),
        |here, remote, own| here.read(remote, 0, own.slice(..).unwrap()),
        |here, remote, _| here.batch().compare_and_swap(remote, 0, 0, 1),
        |here, remote, _| here.batch().fetch_and_add(remote, 0, 1),
    ];
    // Which of them the initiator hears of first is up to chance.
    for (ends_connection, ends_region) in [(true, true), (false, true), (true, false)] {
        for post in posts {
            let joined = Joined::new();
            let region = joined.target.allocate(4096, Access::all()).unwrap();
            let remote = joined.mapped(&region);
            let own = open().allocate(8, Access::empty()).unwrap();
            let copy = region.clone();
            if ends_connection {
                joined.there.fence();
            }
            if ends_region {
                region.fence();
            } else {
                while joined.here.ended().is_none() {
                    joined.here.next_event(LONG).expect("it hears of the end");
                }
            }
            let outcome = match post(&joined.here, &remote, &own) {
                Ok(ticket) => joined.queue.wait_for(joined.here.id(), ticket, LONG).expect("in time").outcome,
                Err(PostError::NotConnected(why)) => Err(OperationError::ConnectionEnded(why)),
                Err(error) => panic!("{error}"),
            };
            let is_unknown = matches!(outcome, Err(OperationError::Refused { refusal: Refusal::UnknownRegion, .. }));
            assert!(is_fenced(&outcome) || (!ends_connection && is_unknown), "{outcome:?}");
            assert_eq!(content(&copy, 0, 4), [0; 4]);
        }
    }
}

#[test]
fn the_end_of_the_process_that_connected_is_known() {
    let joined = Joined::new();
    assert!(!joined.there.peer_process().unwrap().has_ended());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let peer = open();
    let serving = peer.completion_queue(threaded()).unwrap();
    let listener = peer.listen(path.as_path(), ListenOptions::default()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "connect_as_a_child", "--nocapture"]).env(CONNECT_SOCKET, &path);
    let mut child = child.stdout(Stdio::null()).spawn().unwrap();
    let request = listener.next_request(LONG).unwrap().unwrap();
    let there = request.accept(&serving, &AcceptOptions::default()).unwrap();
    let process = there.peer_process().unwrap();
    assert!(!process.has_ended());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(process.has_ended());
    // The wire may be gone with it already, and then it tells nothing.
    assert!(there.peer_process().is_none_or(|process| process.has_ended()));
}

/// Not a test of its own: a process that connects, and is killed.
#[test]
fn connect_as_a_child() {
    let Ok(socket) = std::env::var(CONNECT_SOCKET) else { return };
    let peer = open();
    let queue = peer.completion_queue(threaded()).unwrap();
    let here = peer.connect(&address(Path::new(&socket)), &queue, &ConnectOptions::default()).unwrap();
    here.next_event(LONG);
    thread::sleep(LONG);
}

/// A greeting by hand: the stream, and this side's end of the control channel.
fn greet(path: &Path) -> (UnixStream, OwnedFd) {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    send_with(stream.as_fd(), b"PMOFSHM1", &[far.as_fd()]);
    (stream, near)
}

fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    // The other side may have closed already.
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Asks for a region by hand: what the target grants, as another process's code would get it.
fn ask(listener: &pmof_access::Listener, path: &Path, region: &Region) -> (Vec<u8>, Vec<OwnedFd>) {
    let (_stream, control) = greet(path);
    // The key lies at byte 16 of a descriptor.
    send_with(control.as_fd(), &[&[1, 0, 0, 0, 0, 0, 0, 0], &region.descriptor()[16..32]].concat(), &[]);
    let mut answer = [0; 64];
    loop {
        listener.next_request(Duration::from_millis(5)).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut received = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        if let Ok(message) = recvmsg(&control, &mut [IoSliceMut::new(&mut answer)], &mut received, flags) {
            let fds = received.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            return (answer[..message.bytes].to_vec(), fds.flatten().collect());
        }
    }
}

#[test]
fn what_is_handed_over_allows_no_more_than_was_granted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let peer = open();
    let listener = peer.listen(path.as_path(), ListenOptions::default()).unwrap();
    let file = Arc::new(Memory::create(&directory.path().join("m"), 4096, None).unwrap());
    let read_only = Access::READ | Access::FLUSH_PERSISTENT;
    for (region, may_write, is_sealed) in [
        (peer.allocate(4096, read_only).unwrap(), false, true),
        (peer.allocate(4096, Access::all()).unwrap(), true, false),
        (peer.register(Arc::clone(&file) as _, 0, 4096, read_only).unwrap(), false, false),
        (peer.register(file as _, 0, 4096, Access::ATOMIC).unwrap(), true, false),
    ] {
        let (answer, fds) = ask(&listener, &path, &region);
        assert_eq!((answer.len(), answer[1], fds.len()), (40, 1, 2));
        let maps =
            |fd: &OwnedFd, writable| Memory::from_file(fd.try_clone().unwrap(), Path::new("x"), writable, None).is_ok();
        assert!(maps(&fds[0], false));
        assert_eq!(maps(&fds[0], true), may_write, "a writable mapping");
        assert_eq!(rustix::io::pwrite(&fds[0], b"x", 0).is_ok(), may_write);
        // The page is sealed: opening it anew, for writing, helps nobody. So it is with allocated memory.
        for fd in [Some(&fds[1]), is_sealed.then_some(&fds[0])].into_iter().flatten() {
            let anew =
                fs::File::options().read(true).write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
            let anew = OwnedFd::from(anew);
            assert!(maps(&anew, false) && !maps(&anew, true));
            assert!(rustix::io::pwrite(&anew, b"x", 0).is_err() && rustix::fs::ftruncate(&anew, 0).is_err());
        }
        region.deregister();
        let mut word = [0; 8];
        let page = Memory::from_file(fds[1].try_clone().unwrap(), Path::new("x"), false, None).unwrap();
        page.read(0, &mut word).unwrap();
        assert_eq!(word, [1, 0, 0, 0, 0, 0, 0, 0], "those that have it mapped are told");
    }
    let private = peer.register(Arc::new(Memory::anonymous(4096).unwrap()), 0, 4096, Access::all()).unwrap();
    let (answer, fds) = ask(&listener, &path, &private);
    assert_eq!((answer[1], fds.len()), (0, 0));
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connection_errors_say_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let peer = open();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let connect = |path: &Path| match peer.connect(&address(path), &queue, &ConnectOptions::default()) {
        Err(error @ ConnectError::Unreachable { .. }) => causes(&error).to_string(),
        other => panic!("{other:?}"),
    };
    let listen = |path: &Path| match peer.listen(path, ListenOptions::default()) {
        Err(error @ SetupError::Listen { .. }) => causes(&error).to_string(),
        other => panic!("{other:?}"),
    };
    let here = |name: &str| directory.path().join(name);
    assert!(connect(&here("none")).contains("there is no such socket"));
    assert!(connect(&here("no/socket")).contains("there is no such directory"));
    assert!(listen(&here("no/socket")).contains("the directory"));
    let long = here(&"x".repeat(120));
    assert!(connect(&long).contains("at most 107") && listen(&long).contains("at most 107"));
    fs::write(here("file"), b"mine").unwrap();
    assert!(listen(&here("file")).contains("no socket") && connect(&here("file")).contains("no socket"));
    assert!(connect(directory.path()).contains("it is a directory"));
    assert_eq!(fs::read(here("file")).unwrap(), b"mine");
    let alive = UnixListener::bind(here("alive")).unwrap();
    assert!(listen(&here("alive")).contains("somebody listens there already"));
    // What a dead process leaves behind is replaced, and what is open to nobody else is removed in the end.
    drop(alive);
    assert!(connect(&here("alive")).contains("has died"));
    let listener = peer.listen(here("alive").as_path(), ListenOptions::default()).unwrap();
    assert_eq!(fs::metadata(here("alive")).unwrap().permissions().mode() & 0o777, 0o600);
    drop(listener);
    assert!(!here("alive").exists());
    let ip = peer.listen(std::net::SocketAddr::from(([127, 0, 0, 1], 0)), ListenOptions::default());
    assert!(matches!(ip, Err(SetupError::WrongAddress { .. })));
}

#[test]
fn another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        skip_report::skipped!("only root can become another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = open().listen(path.as_path(), ListenOptions::default()).unwrap();
    // The operator allows everything that a mode can allow; the credentials still count.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let script = "use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0); connect($s, pack_sockaddr_un($ARGV[0])) or die; \
                  sysread($s, my $said, 8); print $said";
    let Ok(child) = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups", "perl", "-e", script])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
    else {
        skip_report::skipped!("there is no setpriv or perl");
        return;
    };
    let started = Instant::now();
    while listener.next_request(Duration::from_millis(50)).unwrap().is_none()
        && started.elapsed() < Duration::from_secs(2)
    {}
    assert_eq!(String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout), "FOREIGN1");
}

#[test]
fn hostile_neighbours_harm_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let peer = open();
    let serving = peer.completion_queue(threaded()).unwrap();
    let region = peer.allocate(4096, Access::READ).unwrap();
    let listener = peer.listen(path.as_path(), ListenOptions::default()).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let before = open_descriptors();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut served = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                if let Some(request) = listener.next_request(Duration::from_millis(20)).unwrap() {
                    served.push(request.accept(&serving, &AcceptOptions::default()).unwrap());
                }
            }
        });
        let null = fs::File::open("/dev/null").unwrap();
        let many: Vec<BorrowedFd<'_>> = (0..60).map(|_| null.as_fd()).collect();
        for round in 0..20_u64 {
            let raw = || UnixStream::connect(&path).unwrap();
            // No descriptor, a wrong one, too many, too few bytes, noise.
            send_with(raw().as_fd(), b"PMOFSHM1", &[]);
            send_with(raw().as_fd(), b"PMOFSHM1", &[null.as_fd()]);
            send_with(raw().as_fd(), b"PMOFSHM1", &many);
            send_with(raw().as_fd(), b"PMOF", &[null.as_fd()]);
            raw().write_all(&pattern(4096, round)).unwrap_or(());
            // Right so far, then nonsense on the stream and on the channel, with descriptors nobody asked for.
            for message in [&b"x"[..], &[1; 24], &[2; 40], &[0; 40], &[1; 4000], b""] {
                for fds in [&many[..0], &many[..1], &many[..2], &many[..]] {
                    let (stream, control) = greet(&path);
                    send_with(control.as_fd(), message, fds);
                    send_with(stream.as_fd(), b"no protocol", fds);
                }
            }
        }
        // An honest one is served all the same.
        let other = open();
        let queue = other.completion_queue(QueueOptions::default()).unwrap();
        let here = other.connect(&address(&path), &queue, &ConnectOptions::default()).unwrap();
        let remote = here.remote_region(&region.descriptor()).unwrap();
        assert!(here.prepare(&remote, LONG));
        let into = other.allocate(8, Access::empty()).unwrap();
        let ticket = here.read(&remote, 0, into.slice(..).unwrap()).unwrap();
        assert!(queue.wait_for(here.id(), ticket, LONG).unwrap().outcome.is_ok());
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    let started = Instant::now();
    while open_descriptors() > before + 8 && started.elapsed() < LONG {
        listener.next_request(Duration::from_millis(20)).unwrap();
    }
    assert!(open_descriptors() <= before + 8, "descriptors are closed: {before} before, {} now", open_descriptors());
}

#[test]
fn many_connections_come_and_go() {
    let joined_before = open_descriptors();
    for _ in 0..300 {
        let joined = Joined::new();
        let region = joined.target.allocate(4096, Access::all()).unwrap();
        let remote = joined.mapped(&region);
        joined.done(joined.here.write(&remote, 0, b"x").unwrap());
    }
    // Others of this process's tests open and close some meanwhile.
    assert!(open_descriptors() < joined_before + 200);
}

fn path_of(name: &str) -> Option<std::path::PathBuf> {
    std::env::var_os(name).map(Into::into)
}

/// Real persistent memory, where the machine has some.
#[test]
#[ignore = "needs persistent memory, as `cargo xtask vm test --only devices` brings it"]
fn persistent_memory_is_written_back_by_the_initiator() {
    let mut tried = 0;
    for (name, is_file) in [("PMOF_DEVDAX", false), ("PMOF_FSDAX", true)] {
        let Some(place) = path_of(name) else { continue };
        tried += 1;
        let file = place.join("shm-test");
        let memory = if is_file {
            let _ = fs::remove_file(&file);
            Memory::create(&file, 1 << 20, None).unwrap()
        } else {
            Memory::open(&place, None).unwrap()
        };
        let joined = Joined::new();
        let region = joined.target.register(Arc::new(memory), 4096, LEN_BYTES, Access::all()).unwrap();
        let remote = joined.mapped(&region);
        assert_eq!(remote.strongest(), Durability::PowerFailure, "{name}");
        let (method, promise) = joined.here.flush_method(&remote, Durability::PowerFailure).unwrap();
        assert_eq!(method, Method::LocalWriteBack, "{name}");
        assert!(matches!(promise.mechanism, Mechanism::CacheLineWriteBack | Mechanism::Fence), "{name}: {promise:?}");
        for len_bytes in [8, 512, 40_000] {
            joined.here.write(&remote, 8, &pattern(len_bytes, 3)).unwrap();
            let ticket = joined.here.flush(&remote, .., Durability::PowerFailure).unwrap();
            assert!(matches!(joined.done(ticket), Outcome::Flushed(flushed) if flushed.promise == promise));
            assert!(content(&region, 8, len_bytes) == pattern(len_bytes, 3));
        }
        if is_file {
            fs::remove_file(&file).unwrap();
        }
    }
    assert!(tried > 0, "name a device (PMOF_DEVDAX) or a directory (PMOF_FSDAX)");
}
