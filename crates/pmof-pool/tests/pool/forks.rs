//! A pool in a child of `fork()`: the child is refused at once whatever it does, and the parent goes on as if there were no child.

use std::{
    cell::RefCell,
    future::Future,
    path::Path,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::{Context, Poll, Waker},
    thread,
};

use forked_child::fork;
use pmof_access::{Address, Transport};
use pmof_pool::{Background, ChangeError, Event, Pending, Pool, PoolError, PoolOptions, Receipt};
use pmof_pool_set::Attributes;
use pmof_target::{Service, ServiceOptions};
use tempfile::TempDir;

use crate::{orphans::Other, support::*};

const SIZE_BYTES: u64 = 1 << 20;
/// Forks of each test: a child finds other locks taken each time.
const ROUNDS: u64 = 20;
/// Where children write, if they can.
const OF_CHILDREN: u64 = 512 << 10;

/// Two replicas, and what keeps them.
struct Two {
    urls: [String; 2],
    _services: Vec<Service>,
    _roots: Vec<TempDir>,
}

impl Two {
    fn here() -> Self {
        let roots: Vec<_> = (0..2).map(|_| tempfile::tempdir_in("/dev/shm").expect("tmpfs")).collect();
        let urls = std::array::from_fn(|at| format!("file://{}/orders", roots[at].path().display()));
        Self { urls, _services: Vec::new(), _roots: roots }
    }

    /// `address` is where a target listens, given its root.
    fn on_targets(address: impl Fn(&TempDir) -> String) -> Self {
        let roots: Vec<_> = (0..2).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let start = |root: &TempDir| {
            let address = address(root).parse().expect("an address");
            Service::start(root.path(), &[address], ServiceOptions::default()).expect("a target")
        };
        let services: Vec<_> = roots.iter().map(start).collect();
        let urls = std::array::from_fn(|at| pool_at(&services[at].addresses()[0]));
        Self { urls, _services: services, _roots: roots }
    }

    fn over_tcp() -> Self {
        Self::on_targets(|_| "tcp://127.0.0.1:0".to_owned())
    }

    fn over_shm() -> Self {
        Self::on_targets(|root| format!("shm://{}/.s", root.path().display()))
    }

    fn options(&self) -> PoolOptions {
        options(&self.urls)
    }
}

fn pool_at(address: &Address) -> String {
    match address.transport {
        Transport::Shm => format!("{address}?pool=orders"),
        _ => format!("{address}/orders"),
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn assert_forked<T>(what: &str, result: Result<T, PoolError>) {
    assert!(matches!(result, Err(PoolError::Forked)), "{what}: {:?}", result.err());
}

#[track_caller]
fn assert_not_changed<T>(what: &str, result: Result<T, ChangeError>) {
    assert!(matches!(result, Err(ChangeError::Pool(PoolError::Forked))), "{what}: {:?}", result.err());
}

/// What a child does with its parent's pool.
fn refused(pool: &Pool) {
    let mut bytes = [0; 64];
    assert_forked("persist", pool.persist(OF_CHILDREN, &[0xee; 64]));
    assert_forked("persist_range", pool.persist_range(0..64));
    assert_forked("read", pool.read(0, &mut bytes));
    assert_forked("read_replica", pool.read_replica(1, 0, &mut bytes));
    assert_forked("check_replicas", pool.check_replicas());
    assert_forked("status", pool.status());
    assert_forked("scrub", pool.scrub(&mut |_| {}));
    assert_forked("consistency_point", pool.consistency_point("of the child"));
    assert_forked("set_attributes", pool.set_attributes(&Attributes::default()));
    assert_not_changed("add", pool.add("tcp://127.0.0.1:1/orders"));
    assert_not_changed("add_asynchronous", pool.add_asynchronous("tcp://127.0.0.1:1/orders"));
    assert_not_changed("add_spare", pool.add_spare("tcp://127.0.0.1:1/orders"));
    assert_not_changed("add_witness", pool.add_witness("tcp://127.0.0.1:1/orders"));
    assert_not_changed("remove", pool.remove("tcp://127.0.0.1:1/orders"));
    assert_not_changed("replace", pool.replace("0", "tcp://127.0.0.1:1/orders"));
    assert_not_changed("clear_forced", pool.clear_forced());
    assert!(pool.mirror().is_none() && pool.attributes().is_none() && pool.replicas().is_empty());
    assert_eq!((pool.len_bytes(), pool.traffic().sent_bytes), (SIZE_BYTES, 0));
    assert!(!format!("{pool:?}").contains("members"));
    let mut lane = pool.lane();
    assert_forked("a new lane's write", lane.write(OF_CHILDREN, &[0xee; 64]));
    assert_forked("a new lane's flush", lane.flush().wait());
    let mut events = pool.events();
    assert!(matches!(events.next_for(LONG), Some(Event::Forked)) && events.next_for(LONG).is_none());
    assert_forked("close", pool.close());
    assert_forked("close_async", wait_for_future(pool.close_async()));
}

fn wait_for_future<T: Send + 'static>(future: Background<T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(outcome) = poll_once(future.as_mut()) {
            return outcome;
        }
        thread::yield_now();
    }
}

/// Flushes in flight: one to be waited for, one to be polled, one that is a future and was handed to the pool's thread, and one to be dropped.
fn in_flight(pool: &Pool) -> [Pending; 4] {
    let mut lane = pool.lane();
    let mut all = std::array::from_fn(|at| {
        lane.write(at as u64 * 64, &[0x11; 64]).unwrap();
        lane.flush()
    });
    let _ = poll_once(Pin::new(&mut all[2]));
    all
}

fn child_is_refused(two: &Two) {
    let pool = two.options().create(SIZE_BYTES).unwrap();
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        // Takes the locks of the pool and of its connections again and again.
        scope.spawn(|| {
            let mut lane = pool.lane();
            while !is_over.load(Ordering::Acquire) {
                let next = written.load(Ordering::Relaxed) + 1;
                lane.write(next % 1000 * 64, &next.to_le_bytes()).unwrap();
                lane.persist().unwrap();
                written.store(next, Ordering::Release);
            }
        });
        for round in 0..ROUNDS {
            let (mut lane, mut events) = (pool.lane(), pool.events());
            lane.write(round * 8 + (256 << 10), &round.to_le_bytes()).unwrap();
            let [waited, mut polled, mut awaited, dropped] = in_flight(&pool);
            let read = pool.read_async(0, 64);
            let child = fork(|| {
                let (pool, lane) = (pool.clone(), &mut lane);
                refused(&pool);
                assert_forked("a write", lane.write(OF_CHILDREN, &[0xee; 64]));
                assert_forked("an atomic write", lane.atomic_write(OF_CHILDREN, 0xee));
                assert_forked("a lane's persist", lane.persist());
                assert_forked("a lane's flush", lane.flush().wait());
                assert_forked("a flush in flight", waited.wait());
                assert_forked("a flush in flight, polled", polled.poll().expect("an outcome at once"));
                let Poll::Ready(outcome) = poll_once(Pin::new(&mut awaited)) else { panic!("an outcome at once") };
                assert_forked("a flush in flight, awaited", outcome);
                let Poll::Ready(outcome) = poll_once(pin!(read)) else { panic!("an outcome at once") };
                assert_forked("a read that was begun", outcome);
                drop(dropped);
                assert!(matches!(events.next_for(LONG), Some(Event::Forked)) && events.next_for(LONG).is_none());
            });
            child.succeed();
            let acknowledged: Receipt = lane.persist().unwrap();
            assert!(!acknowledged.is_degraded(), "{acknowledged}");
        }
        is_over.store(true, Ordering::Release);
    });
    let (last, mut bytes) = (written.into_inner(), [0; 64]);
    assert!(last > 0);
    for replica in 0..2 {
        pool.read_replica(replica, last % 1000 * 64, &mut bytes[..8]).unwrap();
        assert_eq!(bytes[..8], last.to_le_bytes());
        pool.read_replica(replica, OF_CHILDREN, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64], "no child wrote");
        for round in 0..ROUNDS {
            pool.read_replica(replica, round * 8 + (256 << 10), &mut bytes[..8]).unwrap();
            assert_eq!(bytes[..8], round.to_le_bytes());
        }
    }
    pool.close().unwrap();
    let pool = two.options().open().unwrap();
    assert!(pool.was_closed());
    pool.close().unwrap();
}

#[test]
fn child_is_refused_here() {
    child_is_refused(&Two::here());
}

#[test]
fn child_is_refused_over_tcp() {
    child_is_refused(&Two::over_tcp());
}

#[test]
fn child_is_refused_over_shm() {
    child_is_refused(&Two::over_shm());
}

/// Readers, with the flushes and futures of what the parent opens for reading.
#[test]
fn child_is_refused_as_reader() {
    for two in [Two::here(), Two::over_tcp(), Two::over_shm()] {
        two.options().create(SIZE_BYTES).unwrap().close().unwrap();
        let reader = two.options().open_read_only().unwrap();
        let opening = two.options().open_read_only_async();
        fork(|| {
            let mut bytes = [0; 64];
            assert_forked("read", reader.read(0, &mut bytes));
            assert_forked("read_async", wait_for_future(reader.read_async(0, 64)));
            assert_forked("close", reader.close());
            let Poll::Ready(outcome) = poll_once(pin!(opening)) else { panic!("an outcome at once") };
            assert_forked("an opening that was begun", outcome);
        })
        .succeed();
        reader.read(0, &mut [0; 64]).unwrap();
        reader.close().unwrap();
    }
}

/// The last handles of what the parent made are dropped in the child: nothing of it is anybody else's there.
#[test]
fn child_drops_everything() {
    for two in [Two::here(), Two::over_tcp(), Two::over_shm()] {
        let pool = two.options().create(SIZE_BYTES).unwrap();
        for _ in 0..ROUNDS {
            let (lane, flushes, events) = (pool.lane(), in_flight(&pool), pool.events());
            let all = RefCell::new(Some((pool.clone(), lane, flushes, events)));
            fork(|| drop(all.take())).succeed();
            drop(all);
            assert!(!pool.persist(0, &[1; 64]).unwrap().is_degraded());
        }
        pool.close().unwrap();
    }
}

/// A target's own child: dropping the service there ends nothing.
#[test]
fn child_of_a_target_stops_nothing() {
    let root = tempfile::tempdir().unwrap();
    let listen = ["tcp://127.0.0.1:0".to_owned(), format!("shm://{}/.s", root.path().display())];
    let listen = listen.map(|address| address.parse().unwrap());
    let mut service = Some(Service::start(root.path(), &listen, ServiceOptions::default()).unwrap());
    let urls: Vec<_> = service.as_ref().unwrap().addresses().iter().map(pool_at).collect();
    let pool = options(&urls[..1]).create(SIZE_BYTES).unwrap();
    for _ in 0..ROUNDS {
        fork(|| drop(service.take())).succeed();
        assert!(!pool.persist(0, &[1; 64]).unwrap().is_degraded());
    }
    pool.close().unwrap();
    // The socket of the other address is there still.
    let pool = options(&urls[1..]).open().unwrap();
    pool.close().unwrap();
}

/// A child has the pool to itself when its parent has closed it, and uses it as any process does.
#[test]
fn child_opens_a_pool_of_its_own() {
    for two in [Two::over_tcp(), Two::over_shm()] {
        let pool = two.options().create(SIZE_BYTES).unwrap();
        pool.persist(0, b"parent").unwrap();
        pool.close().unwrap();
        fork(|| {
            let pool = two.options().open().unwrap();
            let mut bytes = [0; 6];
            pool.read(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"parent");
            assert!(!pool.persist(64, b"child").unwrap().is_degraded());
            assert!(wait_for_future(pool.read_async(64, 5)).unwrap() == b"child");
            pool.close().unwrap();
        })
        .succeed();
        let pool = two.options().open().unwrap();
        let mut bytes = [0; 5];
        pool.read(64, &mut bytes).unwrap();
        assert!(pool.was_closed() && &bytes == b"child");
        pool.close().unwrap();
    }
}

/// A child is made between any two steps of an opening in another thread: it has nothing of that, and the parent's opening goes on.
#[test]
fn child_of_a_process_that_opens_a_pool() {
    for two in [Two::here(), Two::over_tcp(), Two::over_shm()] {
        two.options().create(SIZE_BYTES).unwrap().close().unwrap();
        let (is_done, opened) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    let pool = two.options().open_waiting(LONG).unwrap();
                    assert!(!pool.persist(0, &[1; 64]).unwrap().is_degraded());
                    pool.close().unwrap();
                    opened.fetch_add(1, Ordering::AcqRel);
                }
            });
            for _ in 0..3 * ROUNDS {
                fork(|| {}).succeed();
            }
            is_done.store(true, Ordering::Release);
        });
        assert!(opened.into_inner() > 0);
    }
}

/// The parent's end is noticed although a child of it lives on: the child keeps none of its sockets.
#[test]
fn parents_death_is_noticed_while_a_child_lives() {
    let two = Two::over_tcp();
    two.options().create(SIZE_BYTES).unwrap().close().unwrap();
    let mut parent = Other::start("parent", &two.urls.join(" "), Path::new(""));
    assert_eq!(parent.hear().as_deref(), Some("forked"));
    // The child has the other end of the pipe still.
    two.options().open().expect("it is free").close().unwrap();
    assert!(parent.wait_for_death(), "it has killed itself");
}

/// The child has a copy of each descriptor, and so of the lock of the pool's file.
#[test]
fn a_pool_here_is_opened_again_while_a_child_lives() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}/orders", directory.path().display());
    let pool = options([url.clone()]).create(4096).expect("a pool");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let writer = RefCell::new(Some(writer));
    let child = fork(|| {
        drop(writer.take());
        // Until the parent is done, or gone.
        let _ = rustix::io::read(&reader, &mut [0; 1]);
    });
    pool.close().expect("closed");
    let pool = options([url]).open();
    drop(writer);
    child.succeed();
    pool.expect("the lock went with the pool").close().expect("closed");
}
