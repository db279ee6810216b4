//! Flushes of a driver's connections that wait for a device: who carries them out, and how many are under way.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::Driver;
use crate::{
    link::Link,
    progress::{FlushRoute, Flusher, InlineFlush},
};

#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Who carries them out, if not whoever drives.
    flusher: OnceLock<Flusher>,
    under_way: AtomicUsize,
    /// The last turn found one connection alone.
    is_single: AtomicBool,
    /// The one that whoever drives carries out inline.
    inline: Mutex<Option<InlineFlush>>,
    has_inline: AtomicBool,
    /// Since when it is carried out, in nanoseconds of the clock, from 1; 0 for none.
    inline_since: AtomicU64,
}

impl Flushes {
    /// Has them carried out by others, on connections that are taken over from now on.
    pub(crate) fn carried_out_by(&self, flusher: Flusher) {
        // The first one stays.
        let _ = self.flusher.set(flusher);
    }

    /// One more was handed out.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// One of those is done.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// True while some are under way, for which others may need the processor.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// How many connections a turn begins with.
    #[inline]
    pub(super) fn note_connections(&self, count: usize) {
        self.is_single.store(count == 1, Ordering::Relaxed);
    }

    pub(crate) fn serves_one_connection(&self) -> bool {
        self.is_single.load(Ordering::Relaxed)
    }

    /// Has whoever drives carry out a flush as soon as it holds no lock. Gives it back where another one waits for that.
    pub(crate) fn put_inline(&self, flush: InlineFlush) -> Result<(), InlineFlush> {
        let mut inline = self.inline.lock();
        if inline.is_some() {
            return Err(flush);
        }
        *inline = Some(flush);
        self.has_inline.store(true, Ordering::SeqCst);
        Ok(())
    }

    #[inline]
    pub(super) fn has_inline(&self) -> bool {
        self.has_inline.load(Ordering::SeqCst)
    }

    /// Carries it out, `now`, holding no lock. False where there is none.
    pub(super) fn carry_out_inline(&self, now: Duration) -> bool {
        let mut inline = self.inline.lock();
        let taken = inline.take();
        self.has_inline.store(false, Ordering::SeqCst);
        drop(inline);
        let Some(flush) = taken else { return false };
        self.inline_since.store((now.as_nanos() as u64).max(1), Ordering::Relaxed);
        flush.carry_out();
        self.inline_since.store(0, Ordering::Relaxed);
        true
    }

    /// Since when whoever drives waits for a device.
    pub(crate) fn inline_since(&self) -> Option<Duration> {
        let since = self.inline_since.load(Ordering::Relaxed);
        (since > 0).then(|| Duration::from_nanos(since))
    }
}

impl Driver {
    /// Tells a connection who carries out its flushes, if not whoever drives.
    pub(crate) fn route_flushes(self: &Arc<Self>, link: &Arc<Link>) {
        if let Some(flusher) = self.flushes.flusher.get() {
            link.lock().route_flushes(Box::new(FlushRoute::new(flusher.clone(), link, self)));
        }
    }
}
