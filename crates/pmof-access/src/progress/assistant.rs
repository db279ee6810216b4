//! The threads that assist the queues of a peer: each drives those of its queues that no caller has driven for a while.

use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
};

use parking_lot::Mutex;
use pmof_mem::order;
use rustix::io::Errno;

use super::{Calls, Interest, Poller, Waiting, rounds::Rounds};
use crate::{SetupError, driver::Driver};

/// Threads of a peer, at most: its queues share them.
const THREADS_MAX: usize = 4;

/// The threads that assist the queues of one peer: as many as there are processors, at most four, and no more than there are queues.
/// A thread ends with the last of its queues.
#[derive(Debug, Default)]
pub(crate) struct Assistants(Mutex<Vec<Weak<Assistant>>>);

/// One thread. It ends when this is dropped.
#[derive(Debug)]
struct Assistant {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

/// What an assistant shares with its queues.
#[derive(Debug)]
pub(super) struct Desk {
    poller: Arc<Poller>,
    pub(super) calls: Calls,
    seats: Mutex<HashMap<u64, Arc<Seat>>>,
    is_over: AtomicBool,
}

/// The place of a queue's driver with its assistant.
#[derive(Debug)]
pub(crate) struct Seat {
    id: u64,
    desk: Arc<Desk>,
    pub(super) waiting: Waiting,
    /// Locked while the assistant has to do with it; none once the queue is gone.
    pub(super) driver: Mutex<Option<Arc<Driver>>>,
    is_called: AtomicBool,
}

/// A queue has an assistant as long as this is there.
#[derive(Debug)]
pub(crate) struct Assisted {
    seat: Arc<Seat>,
    // Behind the seat: the last one ends the thread.
    _assistant: Arc<Assistant>,
}

impl Assistants {
    /// Has a driver assisted.
    pub(crate) fn assist(&self, driver: &Arc<Driver>, waiting: Waiting) -> Result<Assisted, SetupError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let mut all = self.0.lock();
        all.retain(|assistant| assistant.strong_count() > 0);
        let there: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        let least = there.into_iter().min_by_key(|assistant| assistant.desk.seats.lock().len());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let is_full = all.len() >= processors.min(THREADS_MAX);
        let assistant = match least {
            Some(least) if is_full => least,
            _ => {
                let started = Arc::new(Assistant::start()?);
                all.push(Arc::downgrade(&started));
                started
            }
        };
        let seat = Arc::new(Seat {
            id: NEXT_ID.fetch_add(1, SeqCst),
            desk: Arc::clone(&assistant.desk),
            waiting,
            driver: Mutex::new(Some(Arc::clone(driver))),
            is_called: AtomicBool::new(false),
        });
        driver.sit(&seat);
        assistant.desk.seats.lock().insert(seat.id, Arc::clone(&seat));
        seat.call();
        Ok(Assisted { seat, _assistant: assistant })
    }
}

impl Assistant {
    fn start() -> Result<Self, SetupError> {
        let desk = Arc::new(Desk {
            poller: Arc::new(Poller::new()?),
            calls: Calls::default(),
            seats: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let there = Arc::clone(&desk);
        let work = move || {
            order::mark_own_thread();
            Rounds::new(&there).work();
        };
        let thread = std::thread::Builder::new().name("pmof-progress".to_owned()).spawn(work);
        let thread = thread.map_err(|source| SetupError::System { call: "clone", source })?;
        Ok(Self { desk, thread: Some(thread) })
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        self.desk.is_over.store(true, SeqCst);
        // Nobody has the number 0.
        self.desk.calls.call(0, || self.desk.poller.wake());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened; there is nothing to add while dropping.
            let _ = thread.join();
        }
    }
}

impl Desk {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    pub(super) fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Who sits there now.
    pub(super) fn seat(&self, id: u64) -> Option<Arc<Seat>> {
        self.seats.lock().get(&id).cloned()
    }
}

impl Seat {
    /// What has its connections watched by the assistant, and under which number.
    pub(crate) fn watcher(&self) -> (&Arc<Poller>, u64) {
        (&self.desk.poller, self.id)
    }

    /// Has a driver's own poller watched by the assistant.
    pub(crate) fn watch(&self, poller: BorrowedFd<'_>) -> Result<(), Errno> {
        self.desk.poller.add(poller, self.id, Interest { input: true, output: false })
    }

    pub(crate) fn unwatch(&self, poller: BorrowedFd<'_>) {
        self.desk.poller.remove(poller);
    }

    /// Has the assistant look at the driver.
    pub(crate) fn call(&self) {
        if !self.is_called.swap(true, SeqCst) {
            self.desk.calls.call(self.id, || self.desk.poller.wake());
        }
    }

    /// The assistant looks from here on.
    pub(super) fn answer(&self) {
        self.is_called.store(false, SeqCst);
    }
}

impl Drop for Assisted {
    fn drop(&mut self) {
        // The assistant has nothing to do with the connections from here on.
        let driver = self.seat.driver.lock().take();
        driver.as_ref().inspect(|driver| driver.rise(&self.seat));
        self.seat.desk.seats.lock().remove(&self.seat.id);
        self.seat.call();
        drop(driver);
    }
}
