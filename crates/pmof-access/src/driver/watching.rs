//! Which descriptors tell of a driver's connections, and the driver's own.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    sync::{Arc, Weak, atomic::Ordering},
};

use super::{DIRECT_MAX, Driver, Links, Polled};
use crate::{
    SetupError,
    clock::Clock,
    error::system,
    link::{Link, WatchedBy},
    progress::{Interest, Poller, ReadyFlag, ReadySignal},
};

impl Links {
    pub(super) fn role_of(&self, id: u64) -> WatchedBy {
        if self.received.contains(&id) { WatchedBy::Receives } else { WatchedBy::Operations }
    }
}

impl Driver {
    /// The application waits for the file descriptor itself.
    pub(crate) fn note_watched(&self) {
        let is_first = !self.is_watched.swap(true, Ordering::Relaxed);
        if is_first && self.announces {
            // The thread drives from here on, whoever else does.
            self.wake();
            self.registration.get().inspect(|registration| registration.notify());
            let sources: Vec<_> = self.sources.lock().iter().filter_map(Weak::upgrade).collect();
            for source in sources {
                source.note_watched();
            }
        }
        // Devices were not asked for notifications so far, and what they took in now shows nowhere else. Where there is no second descriptor
        // to be had, a poll brings it.
        if is_first && !self.announces && self.arm() && self.show_deliveries().is_ok() {
            let _ready = self.ready.lock();
            self.show();
        }
    }

    /// Has this show from now on whether there are outcomes, where others than whoever waits drive. The first one given goes on to.
    pub(crate) fn show_on(&self, flag: Arc<dyn ReadyFlag>) {
        let _ = self.flag.set(flag);
        self.announce_first();
    }

    fn announce_first(&self) {
        let ready = self.ready.lock();
        if !ready.is_empty() {
            self.announce();
        }
        drop(ready);
        self.note_watched();
    }

    /// Readable while there are outcomes, where others than whoever waits drive, else when a poll may find something.
    ///
    /// # Panics
    /// On a simulated network.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>, SetupError> {
        assert!(matches!(self.clock, Clock::Real(_)), "a simulated network has no file descriptors");
        if !self.announces {
            let poller = self.own_poller()?;
            self.note_watched();
            return Ok(poller.as_fd());
        }
        let signal = if let Some(signal) = self.signal.get() {
            signal
        } else {
            let made = ReadySignal::new()?;
            self.signal.get_or_init(|| made)
        };
        self.announce_first();
        Ok(signal.as_fd())
    }

    /// The poller of its own, which it has from now on.
    pub(crate) fn own_poller(&self) -> Result<&Arc<Poller>, SetupError> {
        self.poller_of(&self.links.lock())
    }

    fn poller_of(&self, links: &Links) -> Result<&Arc<Poller>, SetupError> {
        if let Some(poller) = self.poller.get() {
            return Ok(poller);
        }
        let made = Arc::new(Poller::new()?);
        for link in &links.all {
            link.watch(links.role_of(link.id), Some((&made, link.id))).map_err(system("epoll_ctl"))?;
        }
        if let (true, Some(registration)) = (links.is_assisted, self.registration.get()) {
            registration.watch(made.as_fd()).map_err(system("epoll_ctl"))?;
        }
        let poller = self.poller.get_or_init(|| made);
        // Whoever sleeps without it sleeps on it from now on.
        self.wake();
        Ok(poller)
    }

    /// Takes a connection over.
    pub(crate) fn add(&self, link: &Arc<Link>) -> Result<(), SetupError> {
        self.insert(link, WatchedBy::Operations)
    }

    /// Drives a connection that another driver drives too.
    pub(crate) fn add_too(&self, link: &Arc<Link>) -> Result<(), SetupError> {
        self.insert(link, WatchedBy::Receives)
    }

    fn insert(&self, link: &Arc<Link>, role: WatchedBy) -> Result<(), SetupError> {
        let mut links = self.links.lock();
        let is_real = matches!(self.clock, Clock::Real(_));
        if is_real && (links.all.len() >= DIRECT_MAX || link.notifies_on_request) {
            self.poller_of(&links)?;
        }
        let assistant =
            self.registration.get().filter(|_| links.is_assisted).map(|registration| registration.watcher());
        let watcher = self.poller.get().map(|poller| (poller, link.id)).or(assistant);
        link.watch(role, watcher).map_err(system("epoll_ctl"))?;
        if let Err(place) = links.place_of(link.id) {
            links.all.insert(place, Arc::clone(link));
        }
        if role == WatchedBy::Receives {
            links.received.push(link.id);
        }
        if link.notifies_on_request {
            links.polled.push(Polled { link: Arc::clone(link), idle_turns: 0 });
        }
        drop(links);
        self.wake();
        Ok(())
    }

    /// Gives up the connection that was added first.
    pub(crate) fn remove_oldest(&self) {
        let oldest = self.links.lock().all.first().map(|link| link.id);
        if let Some(id) = oldest {
            self.remove(id);
            self.requests.forget(id);
        }
    }

    /// Gives a connection up, for another driver.
    pub(crate) fn remove(&self, id: u64) -> Option<Arc<Link>> {
        let mut links = self.links.lock();
        let place = links.place_of(id).ok()?;
        let link = links.all.remove(place);
        links.polled.retain(|polled| polled.link.id != id);
        links.received.retain(|received| *received != id);
        drop(links);
        link.lock().unwatch();
        Some(link)
    }

    /// Has whoever waits for the file descriptor see what others than this driver bring.
    pub(crate) fn show_deliveries(&self) -> Result<(), SetupError> {
        if self.announces || self.delivered.get().is_some() || matches!(self.clock, Clock::Virtual(_)) {
            return Ok(());
        }
        let signal = ReadySignal::new()?;
        // No connection has the number 0.
        let interest = Interest { input: true, output: false };
        self.own_poller()?.add(signal.as_fd(), 0, interest).map_err(system("epoll_ctl"))?;
        // If another thread was faster, this one is closed, and so no longer watched.
        let _ = self.delivered.set(signal);
        Ok(())
    }
}
