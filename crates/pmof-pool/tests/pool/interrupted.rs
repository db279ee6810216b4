//! Changes of members whose writer dies, hangs or is taken over at any message.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_pool::{ChangeError, Pool};

use crate::support::*;

const POOL_BYTES: u64 = 64 << 10;

/// Ways to targets that end together: at the n-th piece that the writer sends.
#[derive(Default)]
pub(crate) struct Ways {
    /// Pieces that still go; nothing is counted while it is 0.
    pub(crate) left: AtomicU64,
    /// They hang instead of ending.
    pub(crate) hangs: AtomicBool,
    /// They end once: those that come after go on.
    pub(crate) is_once: AtomicBool,
    is_over: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Ways {
    /// An address that leads to a target.
    pub(crate) fn to(self: &Arc<Self>, target: &Target) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let to = target.address().to_string().trim_start_matches("tcp://").to_owned();
        let ways = Arc::clone(self);
        thread::spawn(move || {
            for here in listener.incoming() {
                let (Ok(here), Ok(there)) = (here, TcpStream::connect(&to)) else { return };
                if ways.is_over.load(Ordering::Acquire) {
                    continue;
                }
                let pairs = [(here.try_clone(), there.try_clone(), true), (there.try_clone(), here.try_clone(), false)];
                ways.streams.lock().extend([here, there]);
                for (from, to, is_counted) in pairs {
                    let ways = Arc::clone(&ways);
                    thread::spawn(move || ways.carry((from.unwrap(), to.unwrap()), is_counted));
                }
            }
        });
        format!("tcp://{address}/orders")
    }

    fn carry(&self, (mut from, mut to): (TcpStream, TcpStream), is_counted: bool) {
        let mut piece = [0; 16 << 10];
        while let Ok(len_bytes @ 1..) = from.read(&mut piece) {
            if is_counted && self.left.load(Ordering::Acquire) > 0 && self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.end();
            }
            while self.is_over.load(Ordering::Acquire) && self.hangs.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            if self.is_over.load(Ordering::Acquire) || to.write_all(&piece[..len_bytes]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn end(&self) {
        if self.is_once.load(Ordering::Acquire) {
            self.streams.lock().drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
            return;
        }
        self.is_over.store(true, Ordering::Release);
        if !self.hangs.load(Ordering::Acquire) {
            self.cut();
        }
    }

    /// Whether they have come to an end, or hang.
    pub(crate) fn are_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// What hung goes on.
    pub(crate) fn go_on(&self) {
        self.is_over.store(false, Ordering::Release);
    }

    pub(crate) fn cut(&self) {
        self.hangs.store(false, Ordering::Release);
        self.is_over.store(true, Ordering::Release);
        self.streams.lock().drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
    }
}

impl Drop for Ways {
    fn drop(&mut self) {
        self.cut();
    }
}

/// A pool of three, over ways of its own, and the way to a fourth target.
fn made(four: &[Target; 4]) -> (Pool, Arc<Ways>, String) {
    let ways = Arc::<Ways>::default();
    let pool = options(four[..3].iter().map(|target| ways.to(target))).create(POOL_BYTES).unwrap();
    pool.persist(0, b"here").unwrap();
    let fourth = ways.to(&four[3]);
    (pool, ways, fourth)
}

/// Opens the pool of which it is not known whether the fourth is a member, and has it be one.
fn open_and_complete(four: &[Target; 4]) -> (Pool, usize) {
    let pool = options(urls(four)).open_waiting(LONG).unwrap();
    let count = pool.made_count();
    assert!(matches!(count, 3 | 4), "{count}");
    assert_eq!(read(&pool, 0, 4), b"here");
    if count == 3 {
        let fourth = four[3].url("orders");
        match pool.add(&fourth) {
            Ok(()) => {}
            Err(ChangeError::Leftover { .. }) => {
                options([&fourth]).remove().unwrap();
                pool.add(&fourth).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    wait_in_sync(&pool);
    assert_eq!(pool.made_count(), 4);
    (pool, count)
}

#[test]
fn a_writer_that_dies_at_any_message_leaves_the_members_before_or_after() {
    let mut outcomes = [0; 2];
    for at in (3..=93).step_by(6) {
        let four: [Target; 4] = std::array::from_fn(|_| Target::start());
        let (pool, ways, fourth) = made(&four);
        ways.left.store(at, Ordering::Release);
        let added = pool.add(&fourth);
        let is_undecided = matches!(added, Err(ChangeError::Undecided));
        ways.cut();
        drop(pool);
        let (pool, count) = open_and_complete(&four);
        assert!(is_undecided || count == 3 + usize::from(added.is_ok()), "{at}: {added:?}, {count}");
        outcomes[count - 3] += 1;
        pool.close().unwrap();
        let pool = options([four[3].url("orders")]).open().unwrap();
        assert_eq!((pool.made_count(), pool.status().unwrap().in_sync_count()), (4, 4), "{at}");
    }
    assert!(outcomes.iter().all(|times| *times > 0), "{outcomes:?}");
}

#[test]
fn a_writer_that_is_taken_over_in_the_middle_of_a_change_changes_nothing_more() {
    for at in (2..=30).step_by(4) {
        let four: [Target; 4] = std::array::from_fn(|_| Target::start());
        let (pool, ways, fourth) = made(&four);
        ways.hangs.store(true, Ordering::Release);
        ways.left.store(at, Ordering::Release);
        thread::scope(|scope| {
            let adding = scope.spawn(|| pool.add(&fourth));
            while !ways.is_over.load(Ordering::Acquire) && !adding.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            let successor = options(urls(&four)).take_over(Duration::ZERO).open().unwrap();
            let count = successor.made_count();
            assert_eq!(read(&successor, 0, 4), b"here");
            successor.persist(0, b"next").unwrap();
            // What it has in flight arrives now.
            ways.is_over.store(false, Ordering::Release);
            let added = adding.join().unwrap();
            assert!(added.is_err() || count == 4, "{at}: {count}");
            pool.persist(0, b"late").expect_err("it was fenced");
            assert_eq!((successor.made_count(), read(&successor, 0, 4)), (count, b"next".to_vec()), "{at}");
            successor.persist(8, b"more").unwrap();
            successor.close().unwrap();
        });
        drop(pool);
        let pool = options(urls(&four)).open().unwrap();
        assert_eq!((read(&pool, 0, 4), read(&pool, 8, 4)), (b"next".to_vec(), b"more".to_vec()), "{at}");
        pool.close().unwrap();
    }
}

#[test]
fn a_removal_whose_writer_dies_at_any_message_leaves_the_members_before_or_after() {
    let mut outcomes = [0; 2];
    for at in (1..=49).step_by(4) {
        let four: [Target; 4] = std::array::from_fn(|_| Target::start());
        let (pool, ways, _) = made(&four);
        ways.left.store(at, Ordering::Release);
        let removed = pool.remove("2");
        let is_undecided = matches!(removed, Err(ChangeError::Undecided));
        ways.cut();
        drop(pool);
        let pool = options(urls(&four[..3])).open_waiting(LONG).unwrap();
        let count = pool.made_count();
        assert!(is_undecided || count == 3 - usize::from(removed.is_ok()), "{at}: {removed:?}, {count}");
        outcomes[3 - count] += 1;
        assert_eq!(read(&pool, 0, 4), b"here");
        if count == 3 {
            pool.remove("2").unwrap();
        }
        wait_in_sync(&pool);
        assert_eq!((pool.made_count(), pool.status().unwrap().replicas.len()), (2, 2), "{at}");
        pool.close().unwrap();
        let pool = options([four[2].url("orders")]).open();
        assert!(pool.is_err() || pool.is_ok_and(|pool| pool.made_count() == 2), "{at}");
    }
    assert!(outcomes.iter().all(|times| *times > 0), "{outcomes:?}");
}

/// The last writer did not close the pool, so that its members are compared.
#[test]
fn an_opening_that_loses_a_member_at_any_message() {
    let run = |at: u64| {
        let three: [Target; 3] = std::array::from_fn(|_| Target::start());
        let pool = options(urls(&three)).create(8 << 20).unwrap();
        pool.persist(0, b"here").unwrap();
        pool.persist(5 << 20, b"there").unwrap();
        drop(pool);
        let ways = Arc::<Ways>::default();
        ways.left.store(at, Ordering::Release);
        let named = [three[0].url("orders"), three[1].url("orders"), ways.to(&three[2])];
        if let Ok(pool) = options(named).open() {
            assert_eq!((read(&pool, 0, 4), read(&pool, 5 << 20, 5)), (b"here".to_vec(), b"there".to_vec()), "{at}");
        }
        ways.cut();
        let pool = options(urls(&three)).open_waiting(LONG).unwrap();
        assert_eq!((read(&pool, 0, 4), read(&pool, 5 << 20, 5)), (b"here".to_vec(), b"there".to_vec()), "{at}");
        wait_in_sync(&pool);
    };
    let run = &run;
    thread::scope(|scope| (1..=32).for_each(|at| _ = scope.spawn(move || run(at))));
}
