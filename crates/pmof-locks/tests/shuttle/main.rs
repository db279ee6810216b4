//! The lock for many readers or one writer, in thousands of schedules of its threads.
//!
//! The file under test is the library's own, with shuttle's locks and atomics in the place of the real ones.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use shuttle_locks::{atomic, thread};

mod sync {
    pub(crate) use shuttle_locks::{Condvar, Mutex, MutexGuard, atomic};
}

#[path = "../../src/raw_rw_lock.rs"]
mod raw_rw_lock;

use atomic::{AtomicUsize, Ordering};
use raw_rw_lock::RawRwLock;

const SCHEDULES: usize = 2_000;
const DEPTH: usize = 4;

/// The lock with what is seen of those that have it.
struct Watched {
    lock: RawRwLock,
    readers: AtomicUsize,
    writers: AtomicUsize,
}

impl Watched {
    fn read(&self) {
        self.lock.read();
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.lock.end_read();
    }

    fn write(&self, deadline: Option<Instant>) {
        if !self.lock.write(deadline) {
            return;
        }
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        self.writers.fetch_sub(1, Ordering::SeqCst);
        self.lock.end_write();
    }
}

/// Readers and writers that each take the lock twice: a wake-up that is missed is a deadlock, which shuttle reports.
fn run(readers: usize, writers: usize, deadline: Option<Instant>) {
    let watched =
        Arc::new(Watched { lock: RawRwLock::new(), readers: AtomicUsize::new(0), writers: AtomicUsize::new(0) });
    let threads: Vec<_> = (0..readers + writers)
        .map(|number| {
            let watched = Arc::clone(&watched);
            thread::spawn(move || {
                for _ in 0..2 {
                    if number < readers {
                        watched.read();
                    } else {
                        // One that gives up at once leaves the readers and the other writers as they were.
                        watched.write(deadline.filter(|_| number == readers));
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(watched.lock.try_write(), "it is free at the end");
    assert!(!watched.lock.try_read() && !watched.lock.read_until(Some(Instant::now())));
    watched.lock.end_write();
    assert!(watched.lock.try_read() && !watched.lock.try_write());
    watched.lock.end_read();
}

fn check(readers: usize, writers: usize, deadline: Option<Instant>) {
    shuttle_locks::check_random(move || run(readers, writers, deadline), SCHEDULES);
    shuttle_locks::check_pct(move || run(readers, writers, deadline), SCHEDULES, DEPTH);
}

#[test]
fn readers_and_writers_come_to_their_turns() {
    check(2, 1, None);
    check(1, 2, None);
    check(2, 2, None);
}

#[test]
fn a_writer_that_gives_up_keeps_out_no_one() {
    let past = Instant::now().checked_sub(Duration::from_secs(1)).expect("the clock goes back so far");
    check(2, 1, Some(past));
    check(2, 2, Some(past));
}
