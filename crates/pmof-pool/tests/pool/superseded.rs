//! A writer whose connections are cut, and that another one supersedes meanwhile.

use std::{
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pmof_locks::Mutex;
use pmof_pool::{Pool, PoolError, PoolOptions, ReplicaError};

use crate::support::*;

const POOL_BYTES: u64 = 1 << 20;

/// A path to a target that can be cut, and is passable again later.
pub(crate) struct Path {
    pub(crate) url: String,
    is_open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Path {
    pub(crate) fn to(target: &Target) -> Self {
        let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("tcp://{}/orders", listener.local_addr().unwrap());
        let (is_open, streams) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
        let path = Self { url, is_open: Arc::clone(&is_open), streams: Arc::clone(&streams) };
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let mut streams = streams.lock();
                let far = TcpStream::connect(&there);
                let (true, Ok(far)) = (is_open.load(Ordering::Relaxed), far) else { continue };
                for stream in [&near, &far] {
                    stream.set_nodelay(true).unwrap();
                    streams.push(stream.try_clone().unwrap());
                }
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        path
    }

    /// Lets no more connections through; those that there are stay.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    pub(crate) fn cut(&self) {
        let mut streams = self.streams.lock();
        self.is_open.store(false, Ordering::Relaxed);
        streams.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    pub(crate) fn heal(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

/// Three members, and a writer that reaches each by a path of its own.
struct Three {
    targets: [Target; 3],
    paths: [Path; 3],
}

impl Three {
    fn start() -> Self {
        let targets: [Target; 3] = std::array::from_fn(|_| Target::start());
        let paths = std::array::from_fn(|at| Path::to(&targets[at]));
        Self { targets, paths }
    }

    fn writer(&self) -> PoolOptions {
        options(self.paths.iter().map(|path| path.url.clone()))
    }
}

/// The error with which a writer that tries again and again ends.
#[track_caller]
fn ends_with(writer: &Pool) -> PoolError {
    let began = Instant::now();
    loop {
        let error = writer.persist(64, b"late").unwrap_err();
        if !error.is_replica_lost() {
            return error;
        }
        assert!(began.elapsed() < LONG, "it is not told: {error:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn assert_fenced_by_name(error: &PoolError) {
    assert!(error.is_fenced() && !error.must_reopen(), "{error:?}");
    match error.replica_error() {
        Some(ReplicaError::Fenced { successor }) => assert!(successor.contains("127.0.0.1:"), "{successor}"),
        other => panic!("{other:?}"),
    }
}

/// Cuts the writer off from the last two members, has another one take these over, and heals the network but for the first member.
fn superseded(three: &Three) -> (Pool, Pool) {
    let old = three.writer().create(POOL_BYTES).unwrap();
    old.persist(0, b"acknowledged").unwrap();
    three.paths[1..].iter().for_each(Path::cut);
    assert!(old.persist(64, b"alone").unwrap_err().is_replica_lost());
    let named = options([&three.targets[1], &three.targets[2]].map(|target| target.url("orders")));
    // It does not find the first member, whose address is that of the old writer's path.
    three.paths[0].close();
    let new = named.take_over(Duration::ZERO).open_waiting(LONG).unwrap();
    new.persist(0, b"newer").unwrap();
    (old, new)
}

#[test]
fn a_superseded_writer_is_told_by_a_member_that_its_successor_holds() {
    let three = Three::start();
    let (old, new) = superseded(&three);
    assert!(old.persist(64, b"late").unwrap_err().is_replica_lost());
    three.paths[1].heal();
    assert_fenced_by_name(&ends_with(&old));
    new.persist(0, b"later").unwrap();
}

#[test]
fn a_writer_has_a_member_back_that_the_one_before_it_holds() {
    let three = Three::start();
    let (old, new) = superseded(&three);
    // Its successor comes by the path, on which the old one's connection has lived all the time.
    three.paths[0].heal();
    wait_in_sync(&new);
    let error = ends_with(&old);
    assert!(error.is_fenced(), "{error:?}");
    assert_eq!(read(&new, 64, 5), [0; 5], "nothing of what was never acknowledged");
    new.persist(0, b"later").unwrap();
    new.close().unwrap();
}

#[test]
fn a_takeover_that_reaches_too_few_fences_nobody() {
    let three = Three::start();
    let writer = three.writer().create(POOL_BYTES).unwrap();
    writer.persist(0, b"first").unwrap();
    // The connections live; the other two members are out of everybody else's reach.
    three.paths[..2].iter().for_each(Path::close);
    let error = options([three.targets[2].url("orders")]).take_over(Duration::ZERO).open().unwrap_err();
    assert!(!error.is_fenced() && !error.is_busy(), "{error:?}");
    assert!(!writer.persist(0, b"later").unwrap().is_degraded());
    // With one of them it has enough.
    three.paths[1].heal();
    let new = options([three.targets[2].url("orders")]).take_over(Duration::ZERO).open().unwrap();
    assert!(writer.persist(0, b"late").unwrap_err().is_fenced());
    assert_eq!(read(&new, 0, 5), b"later");
}

#[test]
fn a_standby_waits_by_the_members_that_it_has_heard_of() {
    let three = Three::start();
    let writer = three.writer().create(POOL_BYTES).unwrap();
    let standby = options([three.paths[1].url.clone()]);
    let standby = thread::spawn(move || standby.open_waiting(2 * LONG));
    // It asks the last of those that it has heard of: two streams for each connection, and the writer has one.
    let until = Instant::now() + LONG;
    while three.paths[2].streams.lock().len() < 4 {
        assert!(Instant::now() < until && !standby.is_finished());
        thread::sleep(Duration::from_millis(5));
    }
    three.paths[1].cut();
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        writer.persist(0, b"goes on").unwrap();
        assert!(!standby.is_finished(), "{:?}", standby.join().unwrap().map(drop));
        thread::sleep(Duration::from_millis(20));
    }
    writer.persist(0, b"the end").unwrap();
    drop(writer);
    let pool = standby.join().unwrap().unwrap();
    assert_eq!(read(&pool, 0, 7), b"the end");
}
