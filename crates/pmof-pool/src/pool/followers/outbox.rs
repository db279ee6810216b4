//! What an asynchronous member has yet to be sent, with the threads that wait for it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_locks::{Condvar, Mutex};
use pmof_replication::following::{Due, HasRoom, LagBound, Outbox};

use crate::member::Atomicity;

#[cfg(test)]
mod tests;

/// An outbox that threads share.
#[derive(Debug)]
pub(super) struct SharedOutbox {
    bound: LagBound,
    /// What its times are counted from.
    began: Instant,
    kept: Mutex<Outbox>,
    /// There is something to do for the member.
    due: Condvar,
    /// There is room for writes.
    room: Condvar,
}

/// Room for a write, which is given back when this is dropped.
#[derive(Debug)]
pub(in crate::pool) struct Room {
    outbox: Arc<SharedOutbox>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.outbox.kept.lock().give_back(self.bytes);
        self.outbox.room.notify_all();
    }
}

impl SharedOutbox {
    pub(super) fn new(bound: LagBound, began: Instant, outbox: Outbox) -> Self {
        Self { bound, began, kept: Mutex::new(outbox), due: Condvar::new(), room: Condvar::new() }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Looks at it, or changes it, which wakes all that wait for a change.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Outbox) -> T) -> T {
        let looked = look(&mut self.kept.lock());
        self.notify();
        looked
    }

    fn notify(&self) {
        self.due.notify_all();
        self.room.notify_all();
    }

    /// Keeps a write that was posted.
    pub(super) fn keep(&self, offset: u64, bytes: &Arc<[u8]>, atomicity: Atomicity) {
        let now = self.now();
        if self.kept.lock().keep(offset, bytes, atomicity, now) {
            self.notify();
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.kept.lock().is_off()
    }

    /// Waits for room for a write of so many bytes, where writers wait for this member. `None`: they do not.
    pub(super) fn wait_for_room(self: &Arc<Self>, len_bytes: u64) -> Option<Room> {
        if !self.bound.waits_for(len_bytes) {
            return None;
        }
        let mut kept = self.kept.lock();
        loop {
            let has_room = kept.try_room(len_bytes, self.now());
            if has_room == HasRoom::Given {
                return Some(Room { outbox: Arc::clone(self), bytes: len_bytes });
            }
            // A point that makes room is due.
            self.due.notify_all();
            if has_room == HasRoom::NotNeeded {
                return None;
            }
            self.room.wait(&mut kept);
        }
    }

    /// Waits for something to do, for so long at most.
    pub(super) fn wait(&self, limit: Duration) -> Due {
        let until = self.now().saturating_add(limit);
        let mut kept = self.kept.lock();
        loop {
            let now = self.now();
            if let Some(due) = kept.due(now) {
                return due;
            }
            if now >= until {
                return Due::Nothing;
            }
            let wakes_at = kept.wakes_at().map_or(until, |at| at.min(until));
            self.due.wait_for(&mut kept, wakes_at.saturating_sub(now));
        }
    }
}
