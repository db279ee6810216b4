//! Flushes of a driver's connections that wait for a device: who carries them out, and how many are under way.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pmof_locks::Mutex;

use crate::{
    link::Link,
    progress::{Flusher, InlineFlush},
};

#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Who carries them out, if not whoever drives.
    flusher: OnceLock<Flusher>,
    under_way: AtomicUsize,
    /// The last turn found only one connection.
    is_single: AtomicBool,
    /// The one that whoever drives carries out inline.
    inline: Mutex<Option<InlineFlush>>,
    has_inline: AtomicBool,
    /// Since when it is carried out, in nanoseconds of the clock, from 1; 0 for none.
    inline_since: AtomicU64,
    /// A connection that the last turn left out, since a flush was being answered on it.
    answering: Mutex<Option<Arc<Link>>>,
    has_answering: AtomicBool,
}

impl Flushes {
    /// Has them carried out by others, on connections that are taken over from now on.
    pub(crate) fn carried_out_by(&self, flusher: Flusher) {
        // The first one stays.
        let _ = self.flusher.set(flusher);
    }

    /// One more was handed out.
    pub(super) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// One of those is done.
    pub(super) fn end(&self) {
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

    pub(super) fn serves_one_connection(&self) -> bool {
        self.is_single.load(Ordering::Relaxed)
    }

    /// Who carries them out, if not whoever drives.
    pub(super) fn flusher(&self) -> Option<&Flusher> {
        self.flusher.get()
    }

    /// Has whoever drives carry out a flush as soon as it holds no lock. Gives it back where another one waits for that.
    pub(super) fn put_inline(&self, flush: InlineFlush) -> Result<(), InlineFlush> {
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

    /// A turn leaves a connection out because a flush is being answered on it.
    pub(super) fn note_answering(&self, link: &Arc<Link>) {
        *self.answering.lock() = Some(Arc::clone(link));
        self.has_answering.store(true, Ordering::Relaxed);
    }

    /// Waits for that answer, holding no lock. False where no connection was left out.
    ///
    /// The answer wakes the initiator, which may take the processor of the thread that answers and send its next request. That shows on the
    /// socket, so that a sleep would end at once, again and again, until that thread goes on.
    pub(super) fn wait_for_answer(&self) -> bool {
        if !self.has_answering.swap(false, Ordering::Relaxed) {
            return false;
        }
        let taken = self.answering.lock().take();
        taken.inspect(|link| link.wait_for_answer()).is_some()
    }

    /// Since when whoever drives waits for a device.
    pub(crate) fn inline_since(&self) -> Option<Duration> {
        let since = self.inline_since.load(Ordering::Relaxed);
        (since > 0).then(|| Duration::from_nanos(since))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use pmof_proto::{RegionTable, Settings};

    use super::*;
    use crate::{link::Endpoint, wire::unmade::UnmadeWire};

    /// Longer than whoever does not wait takes.
    const MOMENT: Duration = Duration::from_millis(20);

    #[test]
    fn whoever_drives_waits_for_an_answer_instead_of_looking_again_and_again() {
        let endpoint = Endpoint::initiator(Settings::default(), RegionTable::default().into(), b"");
        let link = Link::new(1, endpoint, Box::new(UnmadeWire { name: "none" }), Duration::from_secs(10), None);
        let flushes = Flushes::default();
        assert!(!flushes.wait_for_answer(), "no connection was left out");
        let is_answered = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut answering = link.lock_to_answer();
            scope.spawn(|| {
                flushes.note_answering(&link);
                assert!(flushes.wait_for_answer());
                assert!(is_answered.load(Ordering::SeqCst));
                assert!(!flushes.wait_for_answer(), "it was waited for");
            });
            thread::sleep(MOMENT);
            assert!(!answering.core().is_closed());
            is_answered.store(true, Ordering::SeqCst);
            drop(answering);
        });
        // What others do with the lock is not waited for.
        let posting = link.lock();
        flushes.note_answering(&link);
        assert!(flushes.wait_for_answer());
        drop(posting);
    }
}
