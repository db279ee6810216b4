//! The connection requests of a listener that await a decision.

use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, BorrowedFd},
    sync::Arc,
};

use pmof_locks::Mutex;
use pmof_mem::order;

use crate::link::Link;
use crate::progress::{ReadyFlag as _, ReadySignal};

/// A request: its connection, and what the other side's application sent along.
type Request = (Arc<Link>, Vec<u8>);

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// Whoever took the last one is to look again.
    looks_again: bool,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: Mutex<Waiting>,
    /// Readable while there are any: their sockets, whose bytes were read, show them no more.
    signal: Option<ReadySignal>,
}

impl Requests {
    /// Those of a listener, whose poller watches the [descriptor](Self::as_fd).
    pub(super) fn shown_by(signal: ReadySignal) -> Self {
        Self { waiting: Mutex::default(), signal: Some(signal) }
    }

    pub(super) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.signal.as_ref().map(|signal| signal.as_fd())
    }

    pub(super) fn push(&self, link: Arc<Link>, private_data: Vec<u8>) {
        let mut waiting = self.waiting.lock();
        order::publish(self);
        waiting.requests.push_back((link, private_data));
        self.show(&waiting);
    }

    /// The one that waits longest. Where connections are devices', nobody asks those of the others for notifications with a request in hand: the
    /// descriptor stays readable until there is none to take.
    pub(super) fn take(&self) -> Option<Request> {
        let mut waiting = self.waiting.lock();
        let request = waiting.requests.pop_front();
        waiting.looks_again = request.as_ref().is_some_and(|(link, _)| link.notifies_on_request);
        order::observe(self);
        self.show(&waiting);
        request
    }

    /// Drops the request of a connection that was given up.
    pub(super) fn forget(&self, id: u64) {
        let mut waiting = self.waiting.lock();
        waiting.requests.retain(|(link, _)| link.id != id);
        self.show(&waiting);
    }

    fn show(&self, waiting: &Waiting) {
        match &self.signal {
            Some(signal) if waiting.requests.is_empty() && !waiting.looks_again => signal.clear(),
            Some(signal) => signal.set(),
            None => {}
        }
    }
}
