//! Work that waits for devices, and fences that are shared.

use std::sync::{Arc, atomic::AtomicUsize as PlainUsize, atomic::Ordering::SeqCst};

use crate::{
    background::{BackgroundThreads, SHARE_MAX},
    explore,
    shared_fences::SharedFences,
    sync::{Condvar, Mutex, thread},
};

/// Schedules of a test with many threads.
const SCHEDULES_OF_MANY: usize = 200;

#[test]
fn background_work_is_all_done_before_the_last_handle_is_gone() {
    explore(|| {
        let done = Arc::new(PlainUsize::new(0));
        let background = BackgroundThreads::start().unwrap();
        let elsewhere = (background.clone(), Arc::clone(&done));
        let other = thread::spawn(move || {
            let (background, done) = elsewhere;
            background.run(1, move || _ = done.fetch_add(1, SeqCst));
        });
        for share in [1, 2] {
            let done = Arc::clone(&done);
            background.run(share, move || _ = done.fetch_add(1, SeqCst));
        }
        other.join().unwrap();
        drop(background);
        assert_eq!(done.load(SeqCst), 3);
    });
}

#[test]
fn finish_waits_for_work_and_for_what_that_work_hands_over() {
    explore(|| {
        let done = Arc::new(PlainUsize::new(0));
        let background = BackgroundThreads::start().unwrap();
        let (here, counted) = (background.clone(), Arc::clone(&done));
        background.run(1, move || {
            let next = Arc::clone(&counted);
            here.run_next(1, move || _ = next.fetch_add(1, SeqCst));
            counted.fetch_add(1, SeqCst);
        });
        background.finish();
        assert_eq!(done.load(SeqCst), 2);
    });
}

#[test]
fn work_that_waits_for_a_device_has_its_share_of_threads_and_leaves_others_theirs() {
    let test = || {
        let background = BackgroundThreads::start().unwrap();
        let (device, under_way) = (Arc::<Waiter>::default(), Arc::<PlainUsize>::default());
        for _ in 0..=SHARE_MAX {
            let (device, under_way) = (Arc::clone(&device), Arc::clone(&under_way));
            background.run(1, move || {
                assert!(under_way.fetch_add(1, SeqCst) < SHARE_MAX, "more than its share is under way");
                device.wait();
                under_way.fetch_sub(1, SeqCst);
            });
        }
        // The device answers only once this gets a thread.
        background.run(2, move || device.answer());
        background.finish();
        assert_eq!(under_way.load(SeqCst), 0);
    };
    shuttle_locks::check_random(test, SCHEDULES_OF_MANY);
    shuttle_locks::check_pct(test, SCHEDULES_OF_MANY, crate::DEPTH);
}

/// A medium: the number of the last write, and of the last one that is durable.
#[derive(Default)]
struct Disk {
    written: PlainUsize,
    durable: PlainUsize,
}

/// A thread that waits for a fence.
#[derive(Default)]
struct Waiter {
    is_answered: Mutex<bool>,
    changed: Condvar,
}

impl Waiter {
    fn answer(&self) {
        *self.is_answered.lock() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        self.changed.wait_while(&mut self.is_answered.lock(), |is_answered| !*is_answered);
    }
}

/// As the library's flusher does.
fn fence(fences: &SharedFences<u8, Arc<Waiter>>, disk: &Disk) {
    loop {
        let waiters = fences.begin(0);
        // A fence covers what was written before it began, and no more.
        let covers = disk.written.load(SeqCst);
        thread::yield_now();
        disk.durable.fetch_max(covers, SeqCst);
        for waiter in waiters {
            waiter.answer();
        }
        if !fences.end(0) {
            return;
        }
    }
}

#[test]
fn a_shared_fence_covers_everyone_whom_it_answers() {
    explore(|| {
        let (fences, disk) = (Arc::<SharedFences<_, _>>::default(), Arc::<Disk>::default());
        let writer = |_| {
            let (fences, disk) = (Arc::clone(&fences), Arc::clone(&disk));
            thread::spawn(move || {
                let number = disk.written.fetch_add(1, SeqCst) + 1;
                let waiter = Arc::<Waiter>::default();
                if fences.join(0, Arc::clone(&waiter)) {
                    fence(&fences, &disk);
                }
                waiter.wait();
                assert!(disk.durable.load(SeqCst) >= number, "write {number} was answered before it was durable");
            })
        };
        for thread in (0..4).map(writer).collect::<Vec<_>>() {
            thread.join().unwrap();
        }
    });
}
