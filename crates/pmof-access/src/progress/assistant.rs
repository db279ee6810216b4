//! The threads that assist the queues of a peer: each drives those of its queues that no caller has driven for a while.

use std::{
    sync::{Arc, Weak},
    thread::JoinHandle,
};

use pmof_locks::Mutex;
use pmof_mem::order;

use super::{
    Waiting,
    assisted::{Assisted, Registration, Registry},
    rounds::Rounds,
};
use crate::SetupError;

/// Threads of a peer, at most: its queues share them.
const THREADS_MAX: usize = 4;

/// The threads that assist the queues of one peer: as many as there are processors, at most four, and no more than there are queues.
/// A thread ends with the last of its queues.
#[derive(Debug, Default)]
pub(crate) struct Assistants(Mutex<Vec<Weak<Assistant>>>);

/// One thread. It ends when this is dropped.
#[derive(Debug)]
struct Assistant {
    registry: Arc<Registry>,
    thread: Option<JoinHandle<()>>,
}

/// A queue has an assistant as long as this is there.
#[derive(Debug)]
pub(crate) struct Assistance {
    registration: Arc<Registration>,
    // Behind the registration: the last one ends the thread.
    _assistant: Arc<Assistant>,
}

impl Assistants {
    /// Has a driver assisted.
    pub(crate) fn assist(&self, driver: &Arc<dyn Assisted>, waiting: Waiting) -> Result<Assistance, SetupError> {
        let mut all = self.0.lock();
        all.retain(|assistant| assistant.strong_count() > 0);
        let there: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        let least = there.into_iter().min_by_key(|assistant| assistant.registry.len());
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
        let registration = assistant.registry.add(driver, waiting);
        Ok(Assistance { registration, _assistant: assistant })
    }
}

impl Assistant {
    fn start() -> Result<Self, SetupError> {
        let registry = Registry::new()?;
        let there = Arc::clone(&registry);
        let work = move || {
            order::mark_own_thread();
            Rounds::new(&there).work();
        };
        let thread = std::thread::Builder::new().name("pmof-progress".to_owned()).spawn(work);
        let thread = thread.map_err(|source| SetupError::System { call: "clone", source })?;
        Ok(Self { registry, thread: Some(thread) })
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        self.registry.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened; there is nothing to add while dropping.
            let _ = thread.join();
        }
    }
}

impl Drop for Assistance {
    fn drop(&mut self) {
        self.registration.remove();
    }
}
