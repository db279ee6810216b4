//! Targets in this process, and what tests ask of them again and again.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use pmof_access::{Access, Address, CompletionQueue, Connection, Durability, Outcome, Peer, Region};
use pmof_control::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MessageHead, PoolRefusal, Reply, Request};
use pmof_pool::{Event, Events, Pool, PoolError, PoolOptions, ReplicaError, ReplicaPlace};
use pmof_target::{Service, ServiceOptions};
use tempfile::TempDir;

/// Longer than anything here takes, on a machine that is busy too: what has not come by then hangs.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A loss timeout that never comes.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Does what must not wait for a target that hangs.
#[track_caller]
pub(crate) fn in_time(what: &str, run: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        run();
        done.send(()).expect("somebody waits");
    });
    is_done.recv_timeout(LONG).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// The next event that is of the kind looked for.
#[track_caller]
pub(crate) fn wait_for(events: &mut Events, is: impl Fn(&Event) -> bool) -> Event {
    loop {
        let event = events.next_for(LONG).expect("an event in time");
        if is(&event) {
            return event;
        }
    }
}

/// A target and its root directory.
pub(crate) struct Target {
    pub(crate) root: TempDir,
    service: Option<Service>,
    options: ServiceOptions,
    /// The address to start on again; else it is another port each time.
    fixed: Option<Address>,
}

impl Target {
    pub(crate) fn start() -> Self {
        Self::start_with(tempfile::tempdir().expect("a directory"), ServiceOptions::default())
    }

    pub(crate) fn start_with(root: TempDir, options: ServiceOptions) -> Self {
        let mut target = Self { root, service: None, options, fixed: None };
        target.restart();
        target
    }

    /// A target that is where it was when it starts again.
    pub(crate) fn start_fixed() -> Self {
        let mut target = Self::start();
        target.fixed = Some(target.address());
        target
    }

    /// A target whose pools lie in memory.
    pub(crate) fn on_tmpfs(options: ServiceOptions) -> Self {
        Self::start_with(tempfile::tempdir_in("/dev/shm").expect("tmpfs"), options)
    }

    /// Ends all connections and stops answering.
    pub(crate) fn stop(&mut self) {
        self.service = None;
    }

    /// Starts on the same root, on another port unless its address is fixed.
    pub(crate) fn restart(&mut self) {
        self.stop();
        let listen = self.fixed.clone().unwrap_or_else(|| "tcp://127.0.0.1:0".parse().expect("an address"));
        let start = || Service::start(self.root.path(), std::slice::from_ref(&listen), self.options.clone());
        self.service = Some(start().expect("a target"));
    }

    /// Starts again with other options.
    pub(crate) fn start_otherwise(&mut self, options: ServiceOptions) {
        self.options = options;
        self.restart();
    }

    pub(crate) fn address(&self) -> Address {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        let service = self.service.as_ref().expect("a running target");
        service.addresses()[0].clone()
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.address())
    }

    /// Pools that lack a member, as the target says.
    pub(crate) fn degraded(&self) -> u64 {
        self.service.as_ref().expect("a running target").observer().metrics().pools.degraded
    }

    /// Pools whose file was gone while somebody had them open.
    pub(crate) fn files_lost(&self) -> u64 {
        self.service.as_ref().expect("a running target").observer().metrics().files_lost
    }

    /// Names of all files under the root, working files included.
    pub(crate) fn files(&self) -> Vec<String> {
        files(self.root.path())
    }
}

/// Changes a byte of a target's replica of `orders` behind its back.
pub(crate) fn flip(target: &Target, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(target.root.path().join("orders")).unwrap();
    let mut head = vec![0; HEADER_BYTES];
    file.read_exact_at(&mut head, 0).unwrap();
    let at = Header::decode(&head).unwrap().data_offset() + offset;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

pub(crate) fn files(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root).expect("a directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// The URLs of the tests' pool at these targets.
pub(crate) fn urls<'t>(targets: impl IntoIterator<Item = &'t Target>) -> Vec<String> {
    targets.into_iter().map(|target| target.url("orders")).collect()
}

/// Options for these replicas that ask for what every file gives.
pub(crate) fn options<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> PoolOptions {
    let options = Pool::options().require(Durability::ProcessCrash);
    urls.into_iter().fold(options, PoolOptions::replica)
}

pub(crate) fn read(pool: &Pool, offset: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    pool.read(offset, &mut bytes).expect("a read");
    bytes
}

/// Waits until all replicas of the pool are in sync.
#[track_caller]
pub(crate) fn wait_in_sync(pool: &Pool) {
    let until = Instant::now() + LONG;
    loop {
        let status = pool.status().unwrap();
        if !status.is_degraded() {
            return;
        }
        assert!(Instant::now() < until, "{status:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes in which a piece that is missing, doubled or swapped shows.
pub(crate) fn pattern(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        // Xorshift: enough not to repeat within a test.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// The one replica that the error names, and what went wrong there.
#[track_caller]
pub(crate) fn of_replica(error: &PoolError) -> (&ReplicaPlace, &ReplicaError) {
    match error {
        PoolError::Replica { replica, source } | PoolError::TooFew { replica, source, .. } => (replica, source),
        other => panic!("names no replica: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_refused(error: &PoolError, url: &str, expected: PoolRefusal) {
    match of_replica(error) {
        (replica, ReplicaError::Refused { refusal, .. }) => {
            assert_eq!((replica.to_string(), *refusal), (url.to_owned(), expected), "{error}");
        }
        _ => panic!("not a refusal: {error}"),
    }
}

/// An initiator that speaks to a target without the help of [`Pool`].
pub(crate) struct RawInitiator {
    pub(crate) peer: Peer,
    pub(crate) connection: Connection,
    pub(crate) queue: CompletionQueue,
    reply: Region,
}

impl RawInitiator {
    pub(crate) fn connect(address: &Address) -> Self {
        let peer = Peer::open(address.transport).unwrap();
        let queue = peer.completion_queue(pmof_access::QueueOptions::default()).expect("a queue");
        let connection = peer.connect(address, &queue, &pmof_access::ConnectOptions::default()).expect("a target");
        let reply = peer.allocate(MAX_MESSAGE_BYTES as u64, Access::empty()).expect("memory");
        Self { peer, connection, queue, reply }
    }

    pub(crate) fn ask(&self, request: &Request) -> Reply {
        self.ask_bytes(&request.encode(MessageHead::newest(7)).expect("fits"))
    }

    pub(crate) fn ask_bytes(&self, message: &[u8]) -> Reply {
        self.connection.send(message).expect("posted");
        loop {
            let reply = self.next_message();
            if reply != Reply::Working {
                return reply;
            }
        }
    }

    /// What the target says next.
    pub(crate) fn next_message(&self) -> Reply {
        self.next_with_head().1
    }

    pub(crate) fn next_with_head(&self) -> (MessageHead, Reply) {
        let ticket = self.connection.receive(self.reply.slice(..).expect("all"), 0).expect("posted");
        let done = self.queue.wait_for(self.connection.id(), ticket, LONG).expect("in time");
        let Ok(Outcome::Received { len_bytes, .. }) = done.outcome else { panic!("no answer: {done:?}") };
        let mut bytes = vec![0; len_bytes as usize];
        self.reply.read(0, &mut bytes).expect("inside");
        Reply::decode(&bytes).expect("a reply")
    }
}
