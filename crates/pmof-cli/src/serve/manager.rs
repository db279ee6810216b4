//! What a target tells systemd, where that started it: that it is ready, reloads, stops, and is alive.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
};

use anyhow::Context;
use pmof_target::Observer;
use sd_notify::{NotifyState, notify, watchdog_enabled};

/// Tells a service manager, if there is one. One that does not listen is no reason to stop.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        log::warn!(event = "notify_failed", reason:% = error; "the service manager (NOTIFY_SOCKET) was not told: {error}");
    }
}

/// The target accepts connections.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is about to be read again; [`ready`] comes behind it.
pub(super) fn reloading() {
    // Without the time, systemd 253 and later take the reload for failed.
    let time = NotifyState::monotonic_usec_now().ok();
    let states: Vec<_> = std::iter::once(NotifyState::Reloading).chain(time).collect();
    tell(&states);
}

/// The target drains, for so long at most.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells the manager, twice as often as it asks for (`WatchdogSec`), that the target is alive; until it is dropped.
pub(super) struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// `None`: nobody asks.
    pub(super) fn start(observer: Observer) -> anyhow::Result<Option<Self>> {
        let Some(limit) = watchdog_enabled().filter(|limit| !limit.is_zero()) else { return Ok(None) };
        let (stop, stopped) = channel();
        let watch = move || {
            while stopped.recv_timeout(limit / 2) == Err(RecvTimeoutError::Timeout) {
                // It waits for whoever holds what all threads of the target need.
                observer.connections();
                tell(&[NotifyState::Watchdog]);
            }
        };
        let thread = std::thread::Builder::new().name("pmof-watchdog".to_owned()).spawn(watch);
        let thread = thread.context("cannot start a thread; see the limit of processes (ulimit -u)")?;
        Ok(Some(Self { stop: Some(stop), thread: Some(thread) }))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic was reported by the thread itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
