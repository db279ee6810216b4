//! The thread of a queue: drives always, or whenever no caller has for a while.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use pmof_mem::order;

use super::{Backoff, Callers, Waiting, callers::Watch};
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
        if driver.callers().is_none() {
            // Nobody else has the driver yet.
            driver.try_lead();
        }
        let (driver_there, stop_there) = (Arc::clone(driver), Arc::clone(&stop));
        let handle = std::thread::Builder::new()
            .name("pmof-progress".to_owned())
            .spawn(move || {
                order::mark_own_thread();
                match driver_there.callers() {
                    Some(callers) => assist(&driver_there, callers, &stop_there, waiting),
                    None => drive(&driver_there, waiting, &|| stop_there.load(Ordering::SeqCst)),
                }
            })
            .map_err(|source| SetupError::System { call: "clone", source })?;
        Ok(Self { driver: Arc::clone(driver), stop, handle: Some(handle) })
    }
}

/// Drives as the leader, until `is_over`.
fn drive(driver: &Driver, waiting: Waiting, is_over: &dyn Fn() -> bool) {
    let mut backoff = Backoff::since(driver.now(), waiting);
    while !is_over() {
        let moved = driver.drive();
        let now = driver.now();
        if moved {
            backoff.reset(now);
        } else if backoff.next(now, &driver.clock, driver.flushes.are_under_way()).is_park() {
            driver.lead(now, Duration::MAX, &mut || is_over());
        }
    }
}

/// Drives whenever no caller has for a while.
fn assist(driver: &Driver, callers: &Callers, stop: &AtomicBool, waiting: Waiting) {
    let mut watch = Watch::new(callers);
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(watch.look_after);
        let is_idle = watch.look(callers, driver.has_devices_alone());
        // A caller may have lost its processor in the middle of a turn: to spin beside it would only keep it waiting.
        if ((is_idle && !driver.is_in_use()) || driver.is_watched()) && driver.try_lead() {
            let is_back = || !driver.is_watched() && (watch.is_back(callers) || driver.is_in_use());
            drive(driver, waiting, &|| stop.load(Ordering::SeqCst) || is_back());
            driver.stop_leading();
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.driver.wake();
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            // A panic of the thread was reported when it happened; there is nothing to add while dropping.
            let _ = handle.join();
        }
    }
}
