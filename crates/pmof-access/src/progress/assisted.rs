//! What an assistant and the drivers that it assists know of each other.

use std::{
    collections::HashMap,
    fmt,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use pmof_locks::Mutex;
use rustix::io::Errno;

use super::{Callers, Calls, Interest, Poller, Waiting};
use crate::SetupError;

/// A driver that callers drive, and an assistant while they do not.
pub(crate) trait Assisted: fmt::Debug + Send + Sync {
    /// What callers do.
    fn callers(&self) -> Option<&Callers>;

    /// The application waits for its descriptor, and so leaves the driving to the assistant.
    fn is_watched(&self) -> bool;

    /// Whether every connection is a device's; `None` while that cannot be seen.
    fn has_only_devices(&self) -> Option<bool>;

    /// True while another thread drives or posts, where that can be seen.
    fn is_in_use(&self) -> bool;

    /// Notes where it is assisted. Once.
    fn register(&self, registration: &Arc<Registration>);

    /// It is assisted no more. Another driver may go on with the connections.
    fn deregister(&self, registration: &Registration);

    /// Has the assistant lead, which watches the connections from now on. False where somebody else leads or has to do with them.
    fn try_lead_for(&self, registration: &Arc<Registration>) -> bool;

    /// The assistant leads no more, and leaves the driving to callers.
    fn stop_leading(&self);

    /// The assistant, which does not lead, is told no more of what comes for callers. False where somebody has to do with the connections:
    /// then it is to be done again.
    fn unwatch_for(&self, registration: &Registration) -> bool;

    /// Moves what can be moved without waiting. True if anything moved.
    fn drive(&self) -> bool;

    /// Flushes are in flight on other threads.
    fn is_flushing(&self) -> bool;

    /// The assistant, which leads, is about to sleep: for how long there is nothing to do here, at most so long. From here on it is
    /// [notified](Registration::notify), or the sockets tell, when that changes. `None` where something has changed already.
    fn doze(&self, time_max: Duration) -> Option<Duration>;

    /// The assistant is back from its sleep.
    fn rouse(&self);
}

/// The drivers of an assistant, and what it sleeps on.
#[derive(Debug)]
pub(super) struct Registry {
    poller: Arc<Poller>,
    calls: Calls,
    registrations: Mutex<HashMap<u64, Arc<Registration>>>,
    is_closed: AtomicBool,
}

/// A driver in the registry of its assistant.
#[derive(Debug)]
pub(crate) struct Registration {
    id: u64,
    registry: Arc<Registry>,
    /// How its assistant waits.
    pub(super) waiting: Waiting,
    /// Locked while the assistant has to do with it; none once the queue is gone.
    pub(super) driver: Mutex<Option<Arc<dyn Assisted>>>,
    /// The assistant was notified and has not looked since.
    is_notified: AtomicBool,
}

impl Registry {
    pub(super) fn new() -> Result<Arc<Self>, SetupError> {
        Ok(Arc::new(Self {
            poller: Arc::new(Poller::new()?),
            calls: Calls::default(),
            registrations: Mutex::default(),
            is_closed: AtomicBool::new(false),
        }))
    }

    /// Has the assistant begin with a driver.
    pub(super) fn add(self: &Arc<Self>, driver: &Arc<dyn Assisted>, waiting: Waiting) -> Arc<Registration> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let registration = Arc::new(Registration {
            id: NEXT_ID.fetch_add(1, SeqCst),
            registry: Arc::clone(self),
            waiting,
            driver: Mutex::new(Some(Arc::clone(driver))),
            is_notified: AtomicBool::new(false),
        });
        driver.register(&registration);
        self.registrations.lock().insert(registration.id, Arc::clone(&registration));
        registration.notify();
        registration
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Registration>> {
        self.registrations.lock().get(&id).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.registrations.lock().len()
    }

    pub(super) fn poller(&self) -> &Poller {
        &self.poller
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Ends the assistant.
    pub(super) fn close(&self) {
        self.is_closed.store(true, SeqCst);
        // Nobody has the number 0.
        self.calls.call(0, || self.poller.wake());
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }
}

impl Registration {
    /// What has the driver's connections watched by the assistant, and under which number.
    pub(crate) fn watcher(&self) -> (&Arc<Poller>, u64) {
        (&self.registry.poller, self.id)
    }

    /// Has the driver's own poller watched by the assistant.
    pub(crate) fn watch(&self, poller: BorrowedFd<'_>) -> Result<(), Errno> {
        self.registry.poller.add(poller, self.id, Interest { input: true, output: false })
    }

    pub(crate) fn unwatch(&self, poller: BorrowedFd<'_>) {
        self.registry.poller.remove(poller);
    }

    /// Has the assistant look at the driver.
    pub(crate) fn notify(&self) {
        if !self.is_notified.swap(true, SeqCst) {
            self.registry.calls.call(self.id, || self.registry.poller.wake());
        }
    }

    /// The assistant looks from here on.
    pub(super) fn take_notification(&self) {
        self.is_notified.store(false, SeqCst);
    }

    /// The driver is assisted no more.
    pub(super) fn remove(&self) {
        // The assistant has nothing to do with the connections from here on.
        let driver = self.driver.lock().take();
        driver.as_ref().inspect(|driver| driver.deregister(self));
        self.registry.registrations.lock().remove(&self.id);
        self.notify();
        drop(driver);
    }
}
