//! The outcomes of a driver that nobody has taken yet.

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering},
};

use pmof_locks::{Mutex, MutexGuard};
use pmof_mem::order;

use crate::Completion;

#[derive(Debug, Default)]
pub(super) struct Ready {
    list: Mutex<VecDeque<Completion>>,
    has_some: AtomicBool,
}

/// The list, locked.
#[derive(Debug)]
pub(super) struct ReadyList<'r> {
    list: MutexGuard<'r, VecDeque<Completion>>,
    has_some: &'r AtomicBool,
}

impl Ready {
    #[inline]
    pub(super) fn lock(&self) -> ReadyList<'_> {
        ReadyList { list: self.list.lock(), has_some: &self.has_some }
    }

    /// Whether there are any, as far as that is known without the lock: what this thread put there is.
    #[inline]
    pub(super) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// For instruments: the calling thread has seen what was [added](ReadyList::add), and what is in memory by then.
    #[inline]
    pub(super) fn observe(&self) {
        order::observe(&self.has_some);
        order::observe_own();
    }
}

impl ReadyList<'_> {
    #[inline]
    pub(super) fn add(&mut self, done: Completion) {
        order::publish(self.has_some);
        self.list.push_back(done);
    }
}

impl Deref for ReadyList<'_> {
    type Target = VecDeque<Completion>;

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

impl DerefMut for ReadyList<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.list
    }
}

impl Drop for ReadyList<'_> {
    #[inline]
    fn drop(&mut self) {
        self.has_some.store(!self.list.is_empty(), Ordering::Release);
    }
}
