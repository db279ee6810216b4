//! Group commit under many schedules of its threads: whoever's persist returns has what it wrote durable, and nobody waits for ever.
//!
//! The file under test is the library's own, with shuttle's locks in the place of the real ones.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
};

use group::Group;
use member::Flush;
use shuttle_locks::thread;

mod sync {
    pub(crate) use shuttle_locks::{Condvar, Mutex};
}

/// What a flush names, as the library's own, of writers instead of ranges.
mod member {
    /// A bit for each writer.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Flush(pub(crate) u64);

    impl Flush {
        pub(crate) fn with(self, other: Self) -> Self {
            Self(self.0 | other.0)
        }
    }
}

#[path = "../../src/pool/group.rs"]
#[allow(dead_code, unreachable_pub, reason = "the library's tests look inside")]
mod group;

const SCHEDULES: usize = 2_000;
/// Changes of threads at places that matter.
const DEPTH: usize = 4;

/// A target with its medium: a bit for each writer.
#[derive(Default)]
struct Target {
    written: AtomicU64,
    durable: AtomicU64,
    in_flight: AtomicUsize,
}

impl Target {
    /// A flush covers what it names of what was written before it was posted.
    fn post(&self, flush: Flush) -> u64 {
        assert_eq!(self.in_flight.fetch_add(1, SeqCst), 0, "flushes that could share one were in flight at once");
        flush.0 & self.written.load(SeqCst)
    }

    fn finish(&self, covers: u64) -> u64 {
        thread::yield_now();
        self.in_flight.fetch_sub(1, SeqCst);
        self.durable.fetch_or(covers, SeqCst);
        covers
    }
}

fn persists_of(writers: u32, rounds: u32) {
    let (group, target) = (Arc::<Group<u64, u64>>::default(), Arc::<Target>::default());
    let writer = |number: u32| {
        let (group, target) = (Arc::clone(&group), Arc::clone(&target));
        thread::spawn(move || {
            for round in 0..rounds {
                let own = 1 << (number * rounds + round);
                target.written.fetch_or(own, SeqCst);
                thread::yield_now();
                let receipt = group.persist(Flush(own), |flush| target.post(flush), |covers| target.finish(covers));
                assert_ne!(receipt & own, 0, "the receipt is of a flush that did not cover the write");
                assert_ne!(target.durable.load(SeqCst) & own, 0, "persist returned before the write was durable");
            }
        })
    };
    for thread in (0..writers).map(writer).collect::<Vec<_>>() {
        thread.join().unwrap();
    }
}

#[test]
fn every_persist_of_four_threads_is_durable_when_it_returns() {
    shuttle_locks::check_random(|| persists_of(4, 2), SCHEDULES);
    shuttle_locks::check_pct(|| persists_of(4, 2), SCHEDULES, DEPTH);
}

#[test]
fn sixty_four_threads_share_flushes_and_none_is_left() {
    shuttle_locks::check_random(|| persists_of(64, 1), SCHEDULES / 20);
}
