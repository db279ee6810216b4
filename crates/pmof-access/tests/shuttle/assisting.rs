//! One thread that sleeps for many drivers: whoever changes something there has it look, and no sleep misses that.

use std::sync::Arc;

use crate::{
    calls::Calls,
    explore,
    sleepers::Sleepers,
    sync::{
        Condvar, Mutex,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        thread,
    },
};

const DRIVERS: usize = 2;

/// A driver that the assistant leads.
#[derive(Default)]
struct Driver {
    sleepers: Sleepers,
    is_called: AtomicBool,
    /// What was posted and nobody has seen to.
    posted: AtomicUsize,
}

#[derive(Default)]
struct Assistant {
    calls: Calls,
    drivers: [Driver; DRIVERS],
    may_wake: Mutex<bool>,
    changed: Condvar,
    seen: AtomicUsize,
}

impl Assistant {
    /// The kernel's sleep, which a wake-up ends, also one that came before it.
    fn sleep(&self) {
        let mut may_wake = self.may_wake.lock();
        self.changed.wait_while(&mut may_wake, |may_wake| !*may_wake);
        *may_wake = false;
    }

    fn wake(&self) {
        *self.may_wake.lock() = true;
        self.changed.notify_all();
    }

    /// As a driver's change does.
    fn post(&self, number: usize) {
        let driver = &self.drivers[number];
        driver.posted.fetch_add(1, SeqCst);
        driver.sleepers.wake(|| {
            if !driver.is_called.swap(true, SeqCst) {
                self.calls.call(number as u64, || self.wake());
            }
        });
    }

    /// As a turn of the rounds does: sees to what is there, and dozes.
    fn turn(&self, number: usize) {
        let driver = &self.drivers[number];
        driver.is_called.store(false, SeqCst);
        driver.sleepers.rouse();
        loop {
            self.seen.fetch_add(driver.posted.swap(0, SeqCst), Relaxed);
            driver.sleepers.doze();
            if driver.posted.load(SeqCst) == 0 {
                return;
            }
            driver.sleepers.rouse();
        }
    }

    /// Goes round until so much was seen to.
    fn work(&self, all: usize) {
        for number in 0..DRIVERS {
            self.turn(number);
        }
        while self.seen.load(Relaxed) < all {
            self.calls.sleep(|| self.sleep());
            for number in self.calls.take() {
                self.turn(number as usize);
            }
        }
    }
}

#[test]
fn a_sleep_for_many_misses_nothing_of_any() {
    explore(|| {
        let assistant = Arc::<Assistant>::default();
        let posts = [0, 1, 0];
        let posting = posts.map(|number| {
            let assistant = Arc::clone(&assistant);
            thread::spawn(move || assistant.post(number))
        });
        assistant.work(posts.len());
        for thread in posting {
            thread.join().unwrap();
        }
    });
}
