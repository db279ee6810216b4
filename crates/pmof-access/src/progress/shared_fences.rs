//! Fences that are shared: all who wait for one medium are answered by a fence that began after they came.

use std::{collections::HashMap, fmt, hash::Hash};

use crate::sync::Mutex;

/// `K` names a medium, `W` is somebody who waits for it.
pub(crate) struct SharedFences<K, W> {
    /// Those who wait for the next fence of each medium that has one in flight or about to begin.
    waiting: Mutex<HashMap<K, Vec<W>>>,
}

impl<K: Copy + Eq + Hash, W> SharedFences<K, W> {
    /// Waits for the next fence of a medium. True for the first: the caller has a fence [begun](Self::begin).
    pub(crate) fn join(&self, medium: K, waiter: W) -> bool {
        let mut waiting = self.waiting.lock();
        if let Some(waiters) = waiting.get_mut(&medium) {
            waiters.push(waiter);
            return false;
        }
        waiting.insert(medium, vec![waiter]);
        true
    }

    /// Those whom a fence that begins now answers.
    pub(crate) fn begin(&self, medium: K) -> Vec<W> {
        self.waiting.lock().get_mut(&medium).map(std::mem::take).unwrap_or_default()
    }

    /// The fence is done. True if others have come meanwhile: another one is to begin.
    pub(crate) fn end(&self, medium: K) -> bool {
        let mut waiting = self.waiting.lock();
        let has_more = waiting.get(&medium).is_some_and(|waiters| !waiters.is_empty());
        if !has_more {
            waiting.remove(&medium);
        }
        has_more
    }
}

impl<K, W> Default for SharedFences<K, W> {
    fn default() -> Self {
        Self { waiting: Mutex::default() }
    }
}

impl<K, W> fmt::Debug for SharedFences<K, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFences").finish_non_exhaustive()
    }
}
