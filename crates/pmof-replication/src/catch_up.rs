//! What a replica that catches up still lacks, while the pool is written: decided without input or output.
//!
//! A replica that catches up is sent every new write, as the others are. What it lacks is copied from one that is in sync, a window at a
//! time: its pages, which may lie apart, are taken from the map, read there, and written here. A new write of the same pages that comes between
//! the reading and the writing would be overwritten by older bytes. So whoever writes looks at the number of the window before it posts and
//! again after that: where a window was open in between that may meet the write, its pages are put back and copied once more.

use alloc::vec::Vec;

use core::{
    ops::Range,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use crate::pages::PageMap;

#[cfg(test)]
mod tests;

/// The size of a window: pieces that may lie apart, and bytes in all of them.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Pieces, at most.
    pub ranges: usize,
    /// Bytes in all of them, at most.
    pub bytes: u64,
}

/// The state of one catch-up.
#[derive(Debug)]
pub struct CatchUp {
    /// What has yet to be copied.
    missing: PageMap,
    /// What was copied, or found to be equal, since the last flush was asked for.
    unflushed: PageMap,
    /// The same of that flush, until it is done.
    flushing: PageMap,
    /// Odd while a window is open; each has a number of its own.
    window: AtomicU64,
    /// The pages of the window that is open; it changes while none is.
    in_window: PageMap,
    /// Somebody has written since it was asked for last.
    is_written: AtomicBool,
}

impl CatchUp {
    /// `missing`: every page that may differ.
    pub fn new(missing: PageMap) -> Self {
        let [unflushed, flushing, in_window] = [(); 3].map(|()| PageMap::new(missing.size_bytes()));
        Self { missing, unflushed, flushing, window: AtomicU64::new(0), in_window, is_written: AtomicBool::new(false) }
    }

    /// What whoever writes keeps until its write is posted on all replicas.
    #[inline]
    pub fn before_write(&self) -> u64 {
        // Writers share the line until the copy looks.
        if !self.is_written.load(Relaxed) {
            self.is_written.store(true, Relaxed);
        }
        self.window.load(SeqCst)
    }

    /// The write of `range` was posted on all replicas. `before`: of [`before_write`](Self::before_write).
    #[inline]
    pub fn after_write(&self, before: u64, range: &Range<u64>) {
        // Of one window, if the number is still the same behind it.
        let is_in_window = before % 2 == 1 && self.in_window.meets(range);
        if self.window.load(SeqCst) != before || is_in_window {
            self.missing.mark(range.clone());
        }
    }

    /// The write of `range` was posted on others, and not on this replica, or not all of it.
    pub fn missed_write(&self, range: &Range<u64>) {
        self.missing.mark(range.clone());
    }

    /// Whether the pool was written since the last time that this was asked.
    pub fn was_written(&self) -> bool {
        self.is_written.swap(false, Relaxed)
    }

    /// Opens the next window at `from` or later, of at most so many ranges and bytes. `None`: nothing is missing from there on.
    pub fn open_window(&self, from: u64, limit: Limit) -> Option<Vec<Range<u64>>> {
        let (mut ranges, mut bytes, mut at) = (Vec::new(), 0, from);
        while ranges.len() < limit.ranges && bytes < limit.bytes {
            let Some(range) = self.missing.take(at, limit.bytes - bytes) else { break };
            (at, bytes) = (range.end, bytes + range.end - range.start);
            // No window is open: nobody relies on these.
            self.in_window.mark(range.clone());
            ranges.push(range);
        }
        if ranges.is_empty() {
            return None;
        }
        self.window.fetch_add(1, SeqCst);
        Some(ranges)
    }

    /// The window's bytes were posted.
    pub fn close_window(&self, window: &[Range<u64>]) {
        for range in window {
            self.unflushed.mark(range.clone());
        }
        self.window.fetch_add(1, SeqCst);
        for range in window {
            self.in_window.unmark(range);
        }
    }

    /// The replica is about to be asked to flush all that was posted; no window is open. More may be copied while it does.
    pub fn begin_flush(&self) {
        self.flushing.add(&self.unflushed);
        self.unflushed.clear();
    }

    /// The flush that was begun last is done, and so are those before it.
    pub fn note_flushed(&self) {
        self.flushing.clear();
    }

    /// Bytes that have yet to be copied.
    pub fn missing_bytes(&self) -> u64 {
        self.missing.count_bytes()
    }

    /// What has yet to be copied, should the replica be lost and come back: `window` is the one that was open. What was not flushed a crash
    /// may have taken back.
    pub fn interrupted(&self, window: &[Range<u64>]) -> &PageMap {
        for range in window {
            self.missing.mark(range.clone());
        }
        self.missing.add(&self.unflushed);
        self.missing.add(&self.flushing);
        &self.missing
    }
}
