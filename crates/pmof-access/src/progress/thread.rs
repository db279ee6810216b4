//! The thread of a queue that drives always.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use pmof_mem::order;

use super::{Backoff, Waiting};
use crate::{SetupError, driver::Driver};

/// Stops when it is dropped.
#[derive(Debug)]
pub(crate) struct ProgressThread {
    driver: Arc<Driver>,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl ProgressThread {
    pub(crate) fn start(driver: &Arc<Driver>, waiting: Waiting) -> Result<Self, SetupError> {
        let stop = Arc::new(AtomicBool::new(false));
        // Nobody else has the driver yet.
        driver.try_lead();
        let (driver_there, stop_there) = (Arc::clone(driver), Arc::clone(&stop));
        let handle = std::thread::Builder::new()
            .name("pmof-progress".to_owned())
            .spawn(move || {
                order::mark_own_thread();
                drive(&driver_there, waiting, &stop_there);
            })
            .map_err(|source| SetupError::System { call: "clone", source })?;
        Ok(Self { driver: Arc::clone(driver), stop, handle: Some(handle) })
    }
}

/// Drives as the leader, until it is to stop.
fn drive(driver: &Driver, waiting: Waiting, stop: &AtomicBool) {
    let mut backoff = Backoff::since(driver.now(), waiting);
    while !stop.load(Ordering::SeqCst) {
        let moved = driver.drive();
        let now = driver.now();
        if moved {
            backoff.reset(now);
        } else if backoff.next(now, &driver.clock, driver.flushes.are_under_way()).is_park() {
            driver.lead(now, Duration::MAX, &mut || stop.load(Ordering::SeqCst));
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.driver.wake();
        if let Some(handle) = self.handle.take() {
            // A panic of the thread was reported when it happened; there is nothing to add while dropping.
            let _ = handle.join();
        }
    }
}
