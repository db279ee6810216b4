//! A session and what it is to take in next: requests are carried out in the background, one at a time for each connection.

use std::collections::VecDeque;

use pmof_access::Completion;
use pmof_locks::{Mutex, MutexGuard};

use super::session::Session;

/// Where the outcomes of one connection wait for its session. Making a large pool takes a while, and keeps nobody else from anything.
#[derive(Debug)]
pub(super) struct Mailbox {
    session: Mutex<Session>,
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    /// A few: an initiator asks one thing at a time.
    waiting: VecDeque<Completion>,
    /// Somebody takes them in.
    is_attended: bool,
}

impl Mailbox {
    pub(super) fn new(session: Session) -> Self {
        Self { session: Mutex::new(session), inbox: Mutex::default() }
    }

    /// Adds what the session is to take in. True: nobody attends to it, so the caller sees to that.
    pub(super) fn add(&self, done: Completion) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.waiting.push_back(done);
        !std::mem::replace(&mut inbox.is_attended, true)
    }

    /// For whoever attends to it: what is next. `None` ends that.
    pub(super) fn next(&self) -> Option<Completion> {
        let mut inbox = self.inbox.lock();
        let next = inbox.waiting.pop_front();
        inbox.is_attended = next.is_some();
        next
    }

    pub(super) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock()
    }

    /// The session, unless it is being served.
    pub(super) fn try_session(&self) -> Option<MutexGuard<'_, Session>> {
        self.session.try_lock()
    }
}
