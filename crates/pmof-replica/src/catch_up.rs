//! What a replica that catches up still lacks, while the pool is written: decided without input or output.
//!
//! A replica that catches up is sent every new write, as the others are. What it lacks is copied from one that is in sync, a window at a
//! time: its pages are taken from the map, read there, and written here. A new write of the same pages that comes between the reading and
//! the writing would be overwritten by older bytes. So whoever writes looks at the number of the window before it posts and again after
//! that: where a window was open in between that may meet the write, its pages are put back and copied once more.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::pages::PageMap;

#[cfg(test)]
mod tests;

/// The state of one catch-up.
#[derive(Debug)]
pub(crate) struct CatchUp {
    /// What has yet to be copied.
    missing: PageMap,
    /// What was copied, or found to be equal, and is not known to be durable.
    unflushed: PageMap,
    /// Odd while a window is open; each has a number of its own.
    window: AtomicU64,
    begin: AtomicU64,
    end: AtomicU64,
}

impl CatchUp {
    /// `missing`: every page that may differ.
    pub(crate) fn new(missing: PageMap) -> Self {
        let unflushed = PageMap::new(missing.size_bytes());
        Self { missing, unflushed, window: AtomicU64::new(0), begin: AtomicU64::new(0), end: AtomicU64::new(0) }
    }

    /// What whoever writes keeps until its write is posted on all replicas.
    pub(crate) fn before_write(&self) -> u64 {
        self.window.load(SeqCst)
    }

    /// The write of `range` was posted on all replicas. `before`: of [`before_write`](Self::before_write).
    pub(crate) fn after_write(&self, before: u64, range: &Range<u64>) {
        // Of one window, if the number is still the same behind them.
        let (begin, end) = (self.begin.load(SeqCst), self.end.load(SeqCst));
        let now = self.window.load(SeqCst);
        let is_open = now % 2 == 1;
        if now != before || (is_open && range.start < end && begin < range.end) {
            self.missing.mark(range.clone());
        }
    }

    /// Opens the next window at `from` or later. `None`: nothing is missing from there on.
    pub(crate) fn open_window(&self, from: u64, limit_bytes: u64) -> Option<Range<u64>> {
        let range = self.missing.take(from, limit_bytes)?;
        // Even: nobody relies on these two.
        self.begin.store(range.start, SeqCst);
        self.end.store(range.end, SeqCst);
        self.window.fetch_add(1, SeqCst);
        Some(range)
    }

    /// The window's bytes were posted.
    pub(crate) fn close_window(&self) {
        self.unflushed.mark(self.begin.load(SeqCst)..self.end.load(SeqCst));
        self.window.fetch_add(1, SeqCst);
    }

    /// The replica has flushed all that was posted; no window is open.
    pub(crate) fn note_flushed(&self) {
        while self.unflushed.take(0, u64::MAX).is_some() {}
    }

    /// Bytes that have yet to be copied.
    pub(crate) fn missing_bytes(&self) -> u64 {
        self.missing.count_bytes()
    }

    /// What has yet to be copied, should the replica be lost and come back: `window` is the one that was open. What was not flushed a crash
    /// may have taken back.
    pub(crate) fn interrupted(&self, window: Option<Range<u64>>) -> &PageMap {
        if let Some(window) = window {
            self.missing.mark(window);
        }
        self.missing.add(&self.unflushed);
        &self.missing
    }
}
