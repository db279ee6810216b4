//! A driver as its assistant has it.

use std::{sync::Arc, time::Duration};

use super::{Driver, Links};
use crate::progress::{Assisted, Callers, Leader, Registration};

impl Assisted for Driver {
    fn callers(&self) -> Option<&Callers> {
        Self::callers(self)
    }

    fn is_watched(&self) -> bool {
        Self::is_watched(self)
    }

    fn has_only_devices(&self) -> Option<bool> {
        Self::has_only_devices(self)
    }

    fn is_in_use(&self) -> bool {
        self.links.try_lock().is_none_or(|links| matches!(&links.all[..], [link] if link.try_lock().is_none()))
    }

    fn register(&self, registration: &Arc<Registration>) {
        let _ = self.registration.set(Arc::clone(registration));
    }

    fn deregister(&self, registration: &Registration) {
        let mut links = self.links.lock();
        links.is_assisted = false;
        if let Some(poller) = self.poller.get() {
            return registration.unwatch(poller.as_fd());
        }
        for link in &links.all {
            let _ = link.watch(links.role_of(link.id), None);
        }
    }

    fn try_lead_for(&self, registration: &Arc<Registration>) -> bool {
        if !self.try_lead() {
            return false;
        }
        let is_watching = self.links.try_lock().is_some_and(|mut links| self.watch_for(registration, &mut links));
        if is_watching {
            *self.leader.lock() = Leader::Assistant(Arc::clone(registration));
        } else {
            Self::stop_leading(self);
        }
        is_watching
    }

    fn stop_leading(&self) {
        Self::stop_leading(self);
    }

    fn unwatch_for(&self, registration: &Registration) -> bool {
        let Some(mut links) = self.links.try_lock() else { return false };
        links.is_assisted = false;
        if let Some(poller) = self.poller.get() {
            registration.unwatch(poller.as_fd());
            return true;
        }
        links.all.iter().all(|link| {
            let core = link.try_lock();
            core.map(|mut core| core.watch(links.role_of(link.id), None)).is_some()
        })
    }

    fn drive(&self) -> bool {
        Self::drive(self)
    }

    fn is_flushing(&self) -> bool {
        self.flushes.are_under_way()
    }

    fn doze(&self, time_max: Duration) -> Option<Duration> {
        let now = self.now();
        if self.flushes.wait_for_answer() {
            return None;
        }
        let due = self.due(now)?;
        self.sleepers.doze();
        if self.arm() {
            self.sleepers.rouse();
            return None;
        }
        Some(due.saturating_sub(now).min(time_max))
    }

    fn rouse(&self) {
        self.sleepers.rouse();
    }
}

impl Driver {
    fn watch_for(&self, registration: &Registration, links: &mut Links) -> bool {
        if links.is_assisted {
            return true;
        }
        links.is_assisted = match self.poller.get() {
            Some(poller) => registration.watch(poller.as_fd()).is_ok(),
            None => links.all.iter().all(|link| {
                let core = link.try_lock();
                core.is_some_and(|mut core| core.watch(links.role_of(link.id), Some(registration.watcher())).is_ok())
            }),
        };
        links.is_assisted
    }
}
