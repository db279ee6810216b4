//! Digests of pools, which take the CPU and the disk for long: they are computed in parts by few threads, in turn for all connections that
//! ask for them, so that those who read, write and open have the rest. Each medium has a queue and threads of its own: one that hangs keeps no
//! other's digests from theirs.

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use pmof_access::BackgroundThreads;
use pmof_locks::Mutex;

/// The [share](BackgroundThreads::run) of the threads that compute digests of a medium: no device has such a number, which are below 2^63, and requests have the highest.
fn share_of(medium: u64) -> u64 {
    (1 << 63) | medium.min((1 << 63) - 2)
}

/// Bytes that are digested before it is another connection's turn: less than a millisecond's work.
pub(super) const PART_BYTES: u64 = 1 << 20;

/// Digests of a medium that are computed in turn. The others wait until one of these is done: if all had their turns at once, all would take so long that
/// those who asked give up.
const TURNS_MAX: usize = 8;

/// Threads for the digests of a medium: half of the CPUs, and two at least, so that one that waits for a block does not keep all from theirs.
fn threads_max() -> usize {
    thread::available_parallelism().map_or(2, |cpus| (cpus.get() / 2).max(2))
}

/// A part at a time; false once that was the last.
type Job = Box<dyn FnMut() -> bool + Send>;

/// What is yet to be digested.
#[derive(Default)]
pub(super) struct Digests {
    /// By the number of the medium's device. Only those that have a thread are there.
    queues: Mutex<HashMap<u64, Queue>>,
}

#[derive(Default)]
struct Queue {
    threads: usize,
    waiting: VecDeque<Job>,
}

impl Digests {
    /// Has `job`, which reads that medium, called until it says that it is done, one call for each turn.
    pub(super) fn add(
        self: &Arc<Self>,
        background: &BackgroundThreads,
        medium: u64,
        job: impl FnMut() -> bool + Send + 'static,
    ) {
        let mut queues = self.queues.lock();
        let queue = queues.entry(medium).or_default();
        queue.waiting.push_back(Box::new(job));
        if queue.threads < threads_max() {
            queue.threads += 1;
            let this = Arc::clone(self);
            background.run(share_of(medium), move || this.work(medium));
        }
    }

    fn work(&self, medium: u64) {
        while let Some(mut job) = self.next(medium) {
            // A panic was reported when it happened; others have their turn all the same.
            if catch_unwind(AssertUnwindSafe(&mut job)).unwrap_or(false) {
                let mut queues = self.queues.lock();
                let waiting = &mut queues.entry(medium).or_default().waiting;
                waiting.insert(waiting.len().min(TURNS_MAX - 1), job);
            }
            thread::yield_now();
        }
    }

    /// The next job of a medium. `None`: there is none, and the thread that asked is none of its any more.
    fn next(&self, medium: u64) -> Option<Job> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&medium)?;
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.threads -= 1;
            if queue.threads == 0 {
                queues.remove(&medium);
            }
        }
        next
    }
}

impl std::fmt::Debug for Digests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queues = self.queues.lock();
        let of_each = queues.iter().map(|(medium, queue)| (medium, (queue.threads, queue.waiting.len())));
        f.debug_map().entries(of_each).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use pmof_locks::RwLock;

    use super::*;

    const MEDIUM: u64 = 7;

    /// As many as there are threads wait for a disk that does not answer.
    #[test]
    fn a_medium_that_hangs_keeps_no_other_waiting() {
        let (background, digests) = (BackgroundThreads::start().unwrap(), Arc::new(Digests::default()));
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for _ in 0..4 * threads_max() {
            let hang = Arc::clone(&hang);
            digests.add(&background, MEDIUM, move || hang.lock().recv().is_ok());
        }
        let (send, done) = mpsc::channel();
        digests.add(&background, MEDIUM + 1, move || send.send(()).is_err());
        done.recv().unwrap();
        drop(release);
        background.finish();
        assert!(digests.queues.lock().is_empty());
    }

    /// Of many that ask at once the first are done while the last have not begun.
    #[test]
    fn few_of_many_are_computed_in_turn() {
        const MANY: usize = 100;
        const PARTS: usize = 20;
        let (background, digests) = (BackgroundThreads::start().unwrap(), Arc::new(Digests::default()));
        let (send, turns) = mpsc::channel();
        let all_are_added = Arc::new(RwLock::new(()));
        let adding = all_are_added.write();
        for client in 0..MANY {
            let (send, all_are_added, mut left) = (send.clone(), Arc::clone(&all_are_added), PARTS);
            digests.add(&background, MEDIUM, move || {
                drop(all_are_added.read());
                left -= 1;
                send.send((client, left)).unwrap();
                left > 0
            });
        }
        drop((adding, send));
        let turns: Vec<_> = turns.iter().collect();
        assert_eq!(turns.len(), MANY * PARTS);
        let (mut under_way, mut most) = (std::collections::HashSet::new(), 0);
        for (client, left) in turns {
            if left > 0 {
                under_way.insert(client)
            } else {
                under_way.remove(&client)
            };
            most = most.max(under_way.len());
        }
        assert!(most <= TURNS_MAX + 2 * threads_max(), "{most} were computed at once");
        background.finish();
    }

    /// Every job has one part done before any job has its next one, whatever its size and order of arrival.
    #[test]
    fn each_has_its_turn() {
        let (background, digests) = (BackgroundThreads::start().unwrap(), Arc::new(Digests::default()));
        let (send, turns) = mpsc::channel();
        // All are there before the first begins.
        let all_are_added = Arc::new(RwLock::new(()));
        let adding = all_are_added.write();
        for (client, parts) in [(0, 30), (1, 30), (2, 1), (3, 2)] {
            let (send, all_are_added, mut left) = (send.clone(), Arc::clone(&all_are_added), parts);
            digests.add(&background, MEDIUM, move || {
                drop(all_are_added.read());
                left -= 1;
                send.send((client, left)).unwrap();
                left > 0
            });
        }
        drop((adding, send));
        let turns: Vec<_> = turns.iter().collect();
        assert_eq!(turns.len(), 63);
        let end_of = |client| turns.iter().position(|turn| *turn == (client, 0)).unwrap();
        // Few threads, so that few turns may change places.
        let slack = 4 * threads_max();
        assert!(end_of(2) < 4 + slack && end_of(3) < 8 + slack, "{turns:?}");
        background.finish();
        assert!(digests.queues.lock().is_empty());
    }

    #[test]
    fn few_threads_digest_at_once() {
        let (background, digests) = (BackgroundThreads::start().unwrap(), Arc::new(Digests::default()));
        let at_once = Arc::new(Mutex::new((0_usize, 0_usize)));
        for _ in 0..50 {
            let (at_once, mut left) = (Arc::clone(&at_once), 10);
            digests.add(&background, MEDIUM, move || {
                let mut count = at_once.lock();
                count.0 += 1;
                count.1 = count.1.max(count.0);
                drop(count);
                thread::yield_now();
                at_once.lock().0 -= 1;
                left -= 1;
                left > 0
            });
        }
        background.finish();
        assert!(at_once.lock().1 <= threads_max(), "{at_once:?}");
    }

    #[test]
    fn a_panic_keeps_nobody_from_its_turn() {
        let (background, digests) = (BackgroundThreads::start().unwrap(), Arc::new(Digests::default()));
        let (send, done) = mpsc::channel();
        for _ in 0..2 * threads_max() {
            digests.add(&background, MEDIUM, || panic!("on purpose"));
        }
        digests.add(&background, MEDIUM, move || {
            send.send(()).unwrap();
            false
        });
        done.recv().unwrap();
    }
}
