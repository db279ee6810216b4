//! Bytes that arrive late: an initiator dies, or its path stalls, while what it sent is still on its way to the target.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pmof_access::{Durability, RemoteRegion};
use pmof_control::{DATA_OFFSET, OpenFor, PoolName, PoolRefusal, Reply, Request, SetName};
use pmof_locks::{Condvar, Mutex};
use pmof_pool::{Pool, PoolError, PoolOptions, RemoteSetOptions, ReplicaError, TargetUrl};
use pmof_target::ServiceOptions;

use crate::support::{LONG, RawInitiator, Target, options, pattern, read};

const POOL_BYTES: u64 = 1 << 20;

/// Less than what sockets hold: all of it is on its way when its sender is gone.
const LATE_BYTES: usize = 64 << 10;

/// Before the data of a part of a set.
const SET_HEADER_BYTES: u64 = 4096;

/// The way of one connection to a target, which can stall.
struct Way {
    address: String,
    /// Bytes that go on before the way stalls; `None` while it does not.
    limit: Arc<(Mutex<Option<usize>>, Condvar)>,
    towards_target: JoinHandle<()>,
}

impl Way {
    fn to(target: &Target) -> Self {
        let there = target.address().to_string().trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("tcp://{}", listener.local_addr().expect("an address"));
        let limit = Arc::<(Mutex<Option<usize>>, Condvar)>::default();
        let its_limit = Arc::clone(&limit);
        let towards_target = std::thread::spawn(move || {
            let (near, far) =
                (listener.accept().expect("an initiator").0, TcpStream::connect(there).expect("a target"));
            let (from, to) = (far.try_clone().expect("a descriptor"), near.try_clone().expect("a descriptor"));
            let back = std::thread::spawn(move || pass(from, to, |_| usize::MAX));
            pass(near, far, |wanted| wait_for_room(&its_limit, wanted));
            back.join().expect("no panic");
        });
        Self { address, limit, towards_target }
    }

    /// From now on it lets through so many bytes, and no more.
    fn stall_after(&self, bytes: usize) {
        *self.limit.0.lock() = Some(bytes);
    }

    fn go_on(&self) {
        *self.limit.0.lock() = None;
        self.limit.1.notify_all();
    }

    /// Waits until all that was sent has arrived, or has found nobody.
    fn wait_for_end(self) {
        self.towards_target.join().expect("no panic");
    }
}

/// How many of so many bytes may go on; waits for at least one.
fn wait_for_room((limit, changed): &(Mutex<Option<usize>>, Condvar), wanted: usize) -> usize {
    let mut limit = limit.lock();
    changed.wait_while(&mut limit, |limit| *limit == Some(0));
    match limit.as_mut() {
        None => wanted,
        Some(left) => {
            let now = wanted.min(*left);
            *left -= now;
            now
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut room: impl FnMut(usize) -> usize) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(len) = from.read(&mut bytes) {
        if len == 0 {
            break;
        }
        let mut rest = &bytes[..len];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(room(rest.len()).min(rest.len()));
            // Whoever is gone is sent the rest all the same, as by a network.
            let _ = to.write_all(now);
            rest = later;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// What an initiator has open on the target.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Pool,
    /// The pool of a set, as librpmem opens it.
    Set,
}

const KINDS: [Kind; 2] = [Kind::Pool, Kind::Set];

struct Stage {
    target: Target,
    kind: Kind,
}

impl Stage {
    /// A target that gives an initiator up after so long, and a pool there.
    fn new(kind: Kind, loss_timeout: Duration) -> Self {
        let target = Target::on_tmpfs(ServiceOptions::default().loss_timeout(loss_timeout));
        let stage = Self { target, kind };
        match kind {
            Kind::Pool => stage.pools().create(POOL_BYTES).expect("a pool").close().expect("closed"),
            Kind::Set => {
                let part = stage.target.root.path().join("part");
                let text = format!("PMEMPOOLSET\n4M {}\n", part.display());
                std::fs::write(stage.target.root.path().join("orders.set"), text).expect("a set");
                let attributes = pmof_pool_set::Attributes::default();
                let made = stage.set().create(POOL_BYTES, Some(&attributes));
                made.expect("a pool").close().expect("closed");
            }
        }
        stage
    }

    fn pools(&self) -> PoolOptions {
        options([self.target.url("orders")])
    }

    fn set_url(&self) -> TargetUrl {
        self.target.address().into()
    }

    /// An initiator that has the pool open over the way, and its region.
    fn open_over(&self, way: &Way) -> (RawInitiator, RemoteRegion) {
        let initiator = RawInitiator::connect(&way.address.parse().expect("an address"));
        let (access, require) = (OpenFor::Write, Durability::ProcessCrash);
        let open = match self.kind {
            Kind::Pool => {
                Request::Open { name: PoolName::new("orders").expect("a name"), access, require, may_be_older: false }
            }
            Kind::Set => Request::OpenSet { name: set_name(), size_bytes: 0, access, require },
        };
        let (Reply::Opened { descriptor, .. } | Reply::SetOpened { descriptor, .. }) = initiator.ask(&open) else {
            panic!("not opened")
        };
        (initiator, RemoteRegion::from_descriptor(&descriptor).expect("a descriptor"))
    }

    /// `None` if another has it, also after the second for which an opening waits.
    fn open(&self) -> Option<Pool> {
        let opened = match self.kind {
            Kind::Pool => self.pools().open(),
            Kind::Set => self.set().open(0, OpenFor::Write),
        };
        let is_busy = |error: &PoolError| {
            matches!(error.replica_error(), Some(ReplicaError::Refused { refusal: PoolRefusal::Busy, .. }))
        };
        match opened {
            Ok(pool) => Some(pool),
            Err(error) => {
                assert!(is_busy(&error), "{error}");
                None
            }
        }
    }

    fn set(&self) -> RemoteSetOptions {
        RemoteSetOptions::new(self.set_url(), set_name())
    }

    /// Waits until the one who had it has left, or was given up.
    fn open_when_free(&self) -> Pool {
        let until = Instant::now() + LONG;
        loop {
            if let Some(pool) = self.open() {
                return pool;
            }
            assert!(Instant::now() < until, "{:?}: it is not free", self.kind);
        }
    }

    /// Waits until the target's file begins with these bytes.
    fn wait_for_begin(&self, bytes: &[u8]) {
        let (file, at) = match self.kind {
            Kind::Pool => ("orders", DATA_OFFSET),
            Kind::Set => ("part", SET_HEADER_BYTES),
        };
        let file = std::fs::File::open(self.target.root.path().join(file)).expect("a file");
        let (until, mut found) = (Instant::now() + LONG, vec![0; bytes.len()]);
        while file.read_exact_at(&mut found, at).is_err() || found != bytes {
            assert!(Instant::now() < until, "{:?}: the write does not begin", self.kind);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn set_name() -> SetName {
    SetName::new("orders.set").expect("a name")
}

/// From the first byte that an initiator may write.
fn read_begin(pool: &Pool, len_bytes: usize) -> Vec<u8> {
    read(pool, pool.data_range().start, len_bytes)
}

fn persist_begin(pool: &Pool, bytes: &[u8]) {
    pool.persist(pool.data_range().start, bytes).expect("a receipt");
}

#[test]
fn what_a_dead_initiator_sent_is_written_before_another_has_the_pool() {
    for kind in KINDS {
        let stage = Stage::new(kind, LONG);
        let way = Way::to(&stage.target);
        let (initiator, region) = stage.open_over(&way);
        let (late, newer) = (pattern(LATE_BYTES, 1), pattern(LATE_BYTES, 2));

        way.stall_after(LATE_BYTES / 2);
        initiator.connection.write(&region, 0, &late).expect("posted");
        drop(initiator);
        // Its bytes are on their way: the pool is not free.
        assert!(stage.open().is_none(), "{kind:?}: opened while bytes for it are on their way");
        way.go_on();
        let next = stage.open_when_free();
        assert!(read_begin(&next, LATE_BYTES) == late, "{kind:?}: positive control: late bytes do arrive");
        persist_begin(&next, &newer);
        way.wait_for_end();
        assert!(read_begin(&next, LATE_BYTES) == newer, "{kind:?}");
        next.close().expect("closed");
    }
}

#[test]
fn what_arrives_after_an_initiator_was_given_up_is_not_written() {
    for kind in KINDS {
        let stage = Stage::new(kind, Duration::from_secs(2));
        let way = Way::to(&stage.target);
        let (initiator, region) = stage.open_over(&way);
        let (late, newer) = (pattern(LATE_BYTES, 1), pattern(LATE_BYTES, 2));

        // The target is in the middle of a write when it gives the initiator up.
        way.stall_after(LATE_BYTES / 2);
        initiator.connection.write(&region, 0, &late).expect("posted");
        stage.wait_for_begin(&late[..LATE_BYTES / 4]);
        let next = stage.open_when_free();
        let begun = read_begin(&next, LATE_BYTES / 4);
        assert!(begun == late[..LATE_BYTES / 4], "{kind:?}: positive control: the write had begun");
        persist_begin(&next, &newer);
        way.go_on();
        drop(initiator);
        way.wait_for_end();
        assert!(read_begin(&next, LATE_BYTES) == newer, "{kind:?}");
        next.close().expect("closed");
        assert!(read_begin(&stage.open_when_free(), LATE_BYTES) == newer, "{kind:?}: after another opening");
    }
}

#[test]
fn a_persist_that_took_long_has_a_mark_of_its_own() {
    let two = [Target::start(), Target::start()];
    let way = Way::to(&two[1]);
    let pool = options([two[0].url("orders"), format!("{}/orders", way.address)]).create(POOL_BYTES).expect("a pool");
    pool.persist(0, b"old").expect("a receipt");
    way.stall_after(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1100));
            way.go_on();
        });
        pool.persist(0, b"new").expect("a receipt");
    });
    // A copy made when the persist began has the mark before.
    let marks = options(two.each_ref().map(|target| target.url("orders"))).info().expect("two states");
    assert_eq!(marks.iter().map(|info| info.state.mark).collect::<Vec<_>>(), [2, 2]);
    pool.close().expect("closed");
    way.wait_for_end();
}

#[test]
fn replicas_that_fall_silent_after_one_another_are_waited_for_together() {
    let loss = Duration::from_millis(500);
    let targets: [Target; 5] = std::array::from_fn(|_| Target::start());
    let ways = targets.each_ref().map(Way::to);
    let urls = ways.each_ref().map(|way| format!("{}/orders", way.address));
    let pool = options(urls).loss_timeout(loss).create(POOL_BYTES).expect("a pool");
    pool.persist(0, b"old").expect("a receipt");
    // A mark is due after this.
    std::thread::sleep(Duration::from_millis(1100));
    let (first, others) = ways.split_last().expect("five");
    first.stall_after(0);
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(loss / 2);
            for way in others {
                way.stall_after(0);
            }
        });
        let from = Instant::now();
        let Err(PoolError::Persist(failure)) = pool.persist(0, b"new") else { panic!("nobody is there") };
        assert_eq!(failure.failed.len(), 5);
        from.elapsed()
    });
    assert!(took < 6 * loss, "{took:?}: one after the other, that is 9 times the loss timeout");
    drop(pool);
    for way in ways {
        way.go_on();
        way.wait_for_end();
    }
}
