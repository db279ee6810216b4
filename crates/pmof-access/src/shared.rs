//! Receives that the connections of a peer share.

use std::{
    sync::{Arc, Weak},
    task::{Wake, Waker},
};

use pmof_mem::forks::Process;
use pmof_proto::{ConnectionError, PostError, SharedReceives as Receives, Ticket};

use crate::{RegionSlice, driver::Driver, link::Link};

/// A queue of receives for the messages of many connections, made by
/// [`Peer::shared_receive_queue`](crate::Peer::shared_receive_queue). Handles are cheap to clone.
///
/// Messages take receives in the order in which they arrive, whichever connection they arrive on, and complete on that
/// connection's queue. While there is none, messages wait in the inbox of their connection, which holds the sender back.
/// Posting hands a receive to the message that waited longest, and completes it there unless the connection is in use
/// just then: in that case whoever drives it next does.
///
/// Connections keep the queue alive: what was posted before the last handle was dropped is still taken. What no message
/// took when the last connection ends too completes nowhere; its memory is let go. A receive of which a message had only
/// a part when its connection ended completes with that end.
#[derive(Clone, Debug)]
pub struct SharedReceives {
    queue: Arc<Receives>,
    process: Process,
}

impl SharedReceives {
    pub(crate) fn new(limit: usize) -> Self {
        Self { queue: Arc::new(Receives::new(limit)), process: Process::current() }
    }

    /// Posts a receive for the next message of any of the connections; `context` comes back with its completion. Tickets
    /// are those of this queue.
    ///
    /// # Errors
    /// [`PostError::ReceiveQueueFull`] when as many as the limit wait for messages.
    pub fn post(&self, into: RegionSlice, context: u64) -> Result<Ticket, PostError> {
        if !self.process.is_current() {
            return Err(PostError::NotConnected(ConnectionError::Forked));
        }
        self.queue.post(into.local, context)
    }

    /// Receives that no message took yet.
    pub fn waiting(&self) -> usize {
        if self.process.is_current() { self.queue.waiting_receives() } else { 0 }
    }

    /// Messages that arrived, on any of the connections, and wait for a receive.
    pub fn waiting_messages(&self) -> usize {
        if self.process.is_current() { self.queue.waiting_messages() } else { 0 }
    }

    /// Has the messages of a connection take receives from here; its outcomes are the driver's.
    pub(crate) fn give_to(&self, link: &Arc<Link>, driver: &Arc<Driver>) {
        let matcher = Matcher { link: Arc::downgrade(link), driver: Arc::downgrade(driver) };
        link.lock().endpoint.share_receives(Arc::clone(&self.queue), Waker::from(Arc::new(matcher)));
    }
}

/// Woken when a receive was posted that a waiting message of the connection may take.
#[derive(Debug)]
struct Matcher {
    link: Weak<Link>,
    driver: Weak<Driver>,
}

impl Wake for Matcher {
    fn wake(self: Arc<Self>) {
        if let (Some(link), Some(driver)) = (self.link.upgrade(), self.driver.upgrade()) {
            driver.match_shared(&link);
        }
    }
}
