//! The words of the locks, in thousands of schedules of the threads that change them.
//!
//! The files under test are the library's own, with shuttle's locks and atomics in the place of the real ones.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use shuttle_locks::{atomic, thread};

mod sync {
    pub(crate) use shuttle_locks::{Condvar, Mutex, MutexGuard, atomic};
}

#[path = "../../src/raw/mod.rs"]
mod raw;

use atomic::{AtomicUsize, Ordering};
use raw::{RawCondvar, RawMutex, RawRwLock};

const SCHEDULES: usize = 2_000;
const DEPTH: usize = 4;

fn check(run: impl Fn() + Clone + Send + Sync + 'static) {
    shuttle_locks::check_random(run.clone(), SCHEDULES);
    shuttle_locks::check_pct(run, SCHEDULES, DEPTH);
}

/// A wake-up that is missed is a deadlock, which shuttle reports.
fn run_all(acts: impl IntoIterator<Item = impl FnOnce() + Send + 'static>) {
    let threads: Vec<_> = acts.into_iter().map(thread::spawn).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn past() -> Instant {
    Instant::now().checked_sub(Duration::from_secs(1)).expect("the clock goes back so far")
}

/// A lock, and how many readers and writers have it.
struct Watched<L> {
    lock: L,
    readers: AtomicUsize,
    writers: AtomicUsize,
}

impl<L> Watched<L> {
    fn new(lock: L) -> Arc<Self> {
        Arc::new(Self { lock, readers: AtomicUsize::new(0), writers: AtomicUsize::new(0) })
    }

    fn has_reader(&self) {
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    fn has_writer(&self) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Readers and writers that each take the lock twice.
fn read_and_write(readers: usize, writers: usize, deadline: Option<Instant>) {
    let watched = Watched::new(RawRwLock::new());
    let lock = &watched.lock;
    run_all((0..readers + writers).map(|number| {
        let watched = Arc::clone(&watched);
        move || {
            for _ in 0..2 {
                if number < readers {
                    watched.lock.read();
                    watched.has_reader();
                    watched.lock.end_read();
                } else if watched.lock.write(deadline.filter(|_| number == readers)) {
                    watched.has_writer();
                    watched.lock.end_write();
                }
            }
        }
    }));
    assert!(lock.try_write(), "it is free at the end");
    assert!(!lock.try_read() && !lock.read_until(Some(past())));
    lock.end_write();
    assert!(lock.try_read() && !lock.try_write() && !lock.write(Some(past())));
    assert!(lock.try_read(), "the writer that has given up keeps out no reader");
    lock.end_read();
    lock.end_read();
}

#[test]
fn readers_and_writers_come_to_their_turns() {
    check(|| read_and_write(2, 1, None));
    check(|| read_and_write(1, 2, None));
    check(|| read_and_write(2, 2, None));
}

#[test]
fn a_writer_that_gives_up_keeps_out_no_one() {
    let deadline = Some(past());
    check(move || read_and_write(2, 1, deadline));
    check(move || read_and_write(2, 2, deadline));
}

/// Threads that each take the mutex twice; the first gives up where it is locked.
fn lock_and_unlock(threads: usize, deadline: Option<Instant>) {
    let watched = Watched::new(RawMutex::new());
    run_all((0..threads).map(|number| {
        let watched = Arc::clone(&watched);
        move || {
            for _ in 0..2 {
                let deadline = deadline.filter(|_| number == 0);
                if watched.lock.try_lock() || watched.lock.lock_until(deadline) {
                    watched.has_writer();
                    watched.lock.unlock();
                }
            }
        }
    }));
    assert!(watched.lock.try_lock() && !watched.lock.try_lock(), "it is free at the end");
}

#[test]
fn threads_come_to_their_turns() {
    let deadline = Some(past());
    check(|| lock_and_unlock(2, None));
    check(|| lock_and_unlock(3, None));
    check(move || lock_and_unlock(3, deadline));
}

/// Threads that take what another one gives, one notification for each.
fn take_and_give(takers: usize, give_all: bool) {
    let shared = Arc::new((RawMutex::new(), RawCondvar::new(), AtomicUsize::new(0)));
    let taker = {
        let shared = Arc::clone(&shared);
        move || {
            let (mutex, condvar, given) = &*shared;
            mutex.lock();
            while given.load(Ordering::SeqCst) == 0 {
                condvar.wait(|| mutex.unlock(), None);
                mutex.lock();
            }
            given.fetch_sub(1, Ordering::SeqCst);
            mutex.unlock();
        }
    };
    let giver = move || {
        let (mutex, condvar, given) = &*shared;
        for _ in 0..if give_all { 1 } else { takers } {
            mutex.lock();
            given.fetch_add(if give_all { takers } else { 1 }, Ordering::SeqCst);
            mutex.unlock();
            if give_all {
                condvar.notify_all();
            } else {
                condvar.notify_one();
            }
        }
    };
    let mut acts: Vec<Box<dyn FnOnce() + Send>> = vec![Box::new(giver)];
    acts.extend((0..takers).map(|_| Box::new(taker.clone()) as Box<dyn FnOnce() + Send>));
    run_all(acts);
}

#[test]
fn no_notification_is_missed() {
    check(|| take_and_give(1, false));
    check(|| take_and_give(2, false));
    check(|| take_and_give(2, true));
}
