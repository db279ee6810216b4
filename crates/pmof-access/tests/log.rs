//! What the program's logger is told. It is one for the process, hence this program of its own.

use std::{
    net::SocketAddr,
    sync::{Arc, Once},
    time::Duration,
};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pmof_access::{
    AcceptOptions, Access, ConnectError, ConnectOptions, Durability, ListenOptions, MediumKind, Peer, Progress,
    QueueOptions, Transport,
};
use pmof_locks::Mutex;
use pmof_mem::{
    ShadowMedium,
    faults::{FailNth, FaultPoint},
};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

const LONG: Duration = Duration::from_secs(60);

static TOLD: Mutex<Vec<(Level, String, String)>> = Mutex::new(Vec::new());

struct Collector;

impl Log for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        TOLD.lock().push((record.level(), record.target().to_owned(), record.args().to_string()));
    }

    fn flush(&self) {}
}

/// The one line of this level and target with these words.
#[track_caller]
fn told(level: Level, target: &str, words: &str) -> String {
    let told = TOLD.lock();
    let mut found = told.iter().filter(|(l, t, text)| *l == level && t == target && text.contains(words));
    let line = found.next().unwrap_or_else(|| panic!("no {words:?} at {level} of {target}: {told:?}"));
    assert!(found.next().is_none(), "twice {words:?}: {told:?}");
    line.2.clone()
}

fn collect() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Collector).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
}

#[test]
fn where_nobody_listens_nothing_was_lost() {
    collect();
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    // Bound, so that no one else gets the port, and not listening.
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    let pending = peer.start_connect(address, &queue, &ConnectOptions::default()).unwrap();
    let error = pending.finish().unwrap_err();
    assert!(matches!(&error, ConnectError::Unreachable { .. }), "{error}");
    let line = told(Level::Warn, "pmof::connection", &format!("with {address} was not made"));
    assert!(line.ends_with("was not made: nobody listens there (Connection refused (os error 111))"), "{line}");
}

#[test]
fn a_failing_medium_is_named_at_the_target() {
    collect();
    let peer = Peer::open(Transport::Tcp).unwrap();
    let queue = peer.completion_queue(QueueOptions::default()).unwrap();
    let threaded = QueueOptions::default().progress(Progress::Thread);
    let serving = peer.completion_queue(threaded).unwrap();
    let listener = peer.listen(SocketAddr::from(([127, 0, 0, 1], 0)), ListenOptions::default()).unwrap();
    let pending = peer.start_connect(listener.local_address(), &queue, &ConnectOptions::default()).unwrap();
    let request = listener.next_request(LONG).unwrap().unwrap();
    let _there = request.accept(&serving, &AcceptOptions::default()).unwrap();
    let connection = pending.finish().unwrap();

    let shadow = ShadowMedium::new(64, MediumKind::FsDax).unwrap();
    let medium = Arc::new(FailNth::new(shadow, FaultPoint::Fence, 2));
    let region = peer.register(medium, 0, 64, Access::all()).unwrap();
    let remote = connection.remote_region(&region.descriptor()).unwrap();
    for is_good in [true, false] {
        let flush = connection.flush(&remote, .., Durability::PowerFailure).unwrap();
        let done = queue.wait_for(connection.id(), flush, LONG).unwrap();
        assert_eq!(done.outcome.is_ok(), is_good);
    }

    let how = told(Level::Debug, "pmof::flush", "go by");
    assert!(
        how.contains("fsdax file to power-failure go by send-after-write (cache-line write-back, probed)"),
        "{how}"
    );
    told(Level::Debug, "pmof::flush", "not by native-flush: the transport of this connection reaches no memory");
    told(Level::Error, "pmof::memory", "injected");
    told(Level::Info, "pmof::connection", &format!("connection {} over tcp with 127.0.0.1:", connection.id()));
    told(
        Level::Warn,
        "pmof::connection",
        "refused by the other side: the target's medium failed; see the target's log",
    );
}
