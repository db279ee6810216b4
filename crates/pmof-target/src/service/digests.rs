//! Digests of pools, which take the CPU and the disk for long: they are computed in parts by few threads, in turn for all connections that
//! ask for them, so that those who read, write and open have the rest.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;
use pmof_access::Background;

/// The [share](Background::run) of the threads that compute digests: no device has this number, and requests have the one above.
const DIGESTS_SHARE: u64 = u64::MAX - 1;

/// Bytes that are digested before it is another connection's turn: less than a millisecond's work.
pub(super) const PART_BYTES: u64 = 1 << 20;

/// Threads for it: half of the CPUs, and two at least, so that one that waits for a disk does not keep all from theirs.
fn threads_max() -> usize {
    thread::available_parallelism().map_or(2, |cpus| (cpus.get() / 2).max(2))
}

/// A part at a time; false once that was the last.
type Job = Box<dyn FnMut() -> bool + Send>;

/// What is yet to be digested.
#[derive(Default)]
pub(super) struct Digests {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    threads: usize,
    waiting: VecDeque<Job>,
}

impl Digests {
    /// Has `job` called until it says that it is done, one call for each turn.
    pub(super) fn add(self: &Arc<Self>, background: &Background, job: impl FnMut() -> bool + Send + 'static) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(Box::new(job));
        if queue.threads < threads_max() {
            queue.threads += 1;
            let this = Arc::clone(self);
            background.run(DIGESTS_SHARE, move || this.work());
        }
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some(mut job) = queue.waiting.pop_front() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            // A panic was reported when it happened; others have their turn all the same.
            if catch_unwind(AssertUnwindSafe(&mut job)).unwrap_or(false) {
                self.queue.lock().waiting.push_back(job);
            }
            thread::yield_now();
        }
    }
}

impl std::fmt::Debug for Digests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queue = self.queue.lock();
        f.debug_struct("Digests")
            .field("threads", &queue.threads)
            .field("waiting", &queue.waiting.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use parking_lot::RwLock;

    use super::*;

    /// Every job has one part done before any job has its next one, whatever its size and order of arrival.
    #[test]
    fn each_has_its_turn() {
        let (background, digests) = (Background::start().unwrap(), Arc::new(Digests::default()));
        let (send, turns) = mpsc::channel();
        // All are there before the first begins.
        let all_are_added = Arc::new(RwLock::new(()));
        let adding = all_are_added.write();
        for (client, parts) in [(0, 30), (1, 30), (2, 1), (3, 2)] {
            let (send, all_are_added, mut left) = (send.clone(), Arc::clone(&all_are_added), parts);
            digests.add(&background, move || {
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
        assert_eq!(digests.queue.lock().threads, 0);
    }

    #[test]
    fn few_threads_digest_at_once() {
        let (background, digests) = (Background::start().unwrap(), Arc::new(Digests::default()));
        let at_once = Arc::new(Mutex::new((0_usize, 0_usize)));
        for _ in 0..50 {
            let (at_once, mut left) = (Arc::clone(&at_once), 10);
            digests.add(&background, move || {
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
        let (background, digests) = (Background::start().unwrap(), Arc::new(Digests::default()));
        let (send, done) = mpsc::channel();
        for _ in 0..2 * threads_max() {
            digests.add(&background, || panic!("on purpose"));
        }
        digests.add(&background, move || {
            send.send(()).unwrap();
            false
        });
        done.recv().unwrap();
    }
}
