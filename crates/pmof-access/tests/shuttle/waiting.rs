//! Threads that wait on one driver: whatever comes, and whoever collects it, everybody who waits for it wakes.

use std::{sync::Arc, time::Duration};

use crate::{
    explore,
    sleepers::Sleepers,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        thread,
    },
};

/// No time limit ends a wait here.
const NO_LIMIT: Duration = Duration::from_secs(1);

/// A driver with nothing but what its sleepers need: outcomes are numbers, each for the waiter of that number.
#[derive(Default)]
struct Driver {
    sleepers: Sleepers,
    /// What has arrived and was not taken in yet: the kernel's descriptor is readable meanwhile.
    arrived: Mutex<Vec<usize>>,
    /// Outcomes that were taken in and not collected.
    ready: Mutex<Vec<usize>>,
    kernel: Kernel,
}

/// A sleep in the kernel: ended by what arrives, and by a wake-up, also by one that comes before it.
#[derive(Default)]
struct Kernel {
    may_wake: Mutex<bool>,
    changed: Condvar,
}

impl Kernel {
    fn sleep(&self) {
        let mut may_wake = self.may_wake.lock();
        self.changed.wait_while(&mut may_wake, |may_wake| !*may_wake);
        *may_wake = false;
    }

    fn wake(&self) {
        *self.may_wake.lock() = true;
        self.changed.notify_all();
    }
}

impl Driver {
    /// Takes in what has arrived. True if anything had.
    fn drive(&self) -> bool {
        let taken = std::mem::take(&mut *self.arrived.lock());
        let moved = !taken.is_empty();
        self.ready.lock().extend(taken);
        if moved {
            self.wake();
        }
        moved
    }

    fn wake(&self) {
        self.sleepers.wake(|| self.kernel.wake());
    }

    fn collect(&self, wanted: usize) -> bool {
        let mut ready = self.ready.lock();
        let at = ready.iter().position(|number| *number == wanted);
        at.map(|at| ready.remove(at)).is_some()
    }

    /// As a wait on a queue does: drive, look, park.
    fn wait_for(&self, wanted: usize) {
        loop {
            let moved = self.drive();
            let mut found = self.collect(wanted);
            if found {
                return;
            }
            if moved {
                continue;
            }
            if self.sleepers.try_lead() {
                self.sleepers.lead(|| self.kernel.sleep(), &mut || {
                    found = self.collect(wanted);
                    found || !self.arrived.lock().is_empty()
                });
                self.sleepers.stop_leading();
            } else {
                self.sleepers.follow(NO_LIMIT, &mut || {
                    found = self.collect(wanted);
                    found
                });
            }
            if found {
                return;
            }
        }
    }

    /// From the network.
    fn arrive(&self, number: usize) {
        self.arrived.lock().push(number);
        self.kernel.wake();
    }

    /// From another thread of this process.
    fn deliver(&self, number: usize) {
        self.ready.lock().push(number);
        self.wake();
    }
}

fn waiters(driver: &Arc<Driver>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let spawn = |number| {
        let driver = Arc::clone(driver);
        thread::spawn(move || driver.wait_for(number))
    };
    (0..count).map(spawn).collect()
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn what_arrives_wakes_whoever_waits_for_it_whoever_takes_it_in() {
    explore(|| {
        let driver = Arc::<Driver>::default();
        let waiting = waiters(&driver, 3);
        for number in [2, 0, 1] {
            driver.arrive(number);
        }
        join(waiting);
    });
}

#[test]
fn what_another_thread_delivers_wakes_the_leader_and_its_followers() {
    explore(|| {
        let driver = Arc::<Driver>::default();
        let waiting = waiters(&driver, 3);
        let delivering = Arc::clone(&driver);
        let other = thread::spawn(move || delivering.deliver(1));
        driver.arrive(0);
        driver.deliver(2);
        join(waiting);
        other.join().unwrap();
    });
}

#[test]
fn a_leader_that_has_its_own_leaves_nobody_asleep() {
    explore(|| {
        let driver = Arc::<Driver>::default();
        let waiting = waiters(&driver, 2);
        // One by one: the leader has its own, and goes before the other's comes.
        driver.arrive(0);
        let late = Arc::clone(&driver);
        let other = thread::spawn(move || late.arrive(1));
        join(waiting);
        other.join().unwrap();
    });
}

#[test]
fn a_thread_of_the_queue_wakes_those_who_leave_the_driving_to_it() {
    explore(|| {
        let driver = Arc::<Driver>::default();
        assert!(driver.sleepers.try_lead());
        let is_over = Arc::<AtomicBool>::default();
        let (driving, stop) = (Arc::clone(&driver), Arc::clone(&is_over));
        let progress = thread::spawn(move || {
            while !stop.load(SeqCst) {
                if !driving.drive() {
                    driving.sleepers.lead(|| driving.kernel.sleep(), &mut || {
                        stop.load(SeqCst) || !driving.arrived.lock().is_empty()
                    });
                }
            }
        });
        let waiting = followers(&driver, 2);
        driver.arrive(1);
        driver.arrive(0);
        join(waiting);
        is_over.store(true, SeqCst);
        driver.wake();
        progress.join().unwrap();
    });
}

/// Threads that never drive.
fn followers(driver: &Arc<Driver>, count: usize) -> Vec<thread::JoinHandle<()>> {
    let spawn = |number| {
        let driver = Arc::clone(driver);
        thread::spawn(move || {
            let mut found = false;
            while !found {
                driver.sleepers.follow(NO_LIMIT, &mut || {
                    found = driver.collect(number);
                    found
                });
                found = found || driver.collect(number);
            }
        })
    };
    (0..count).map(spawn).collect()
}
