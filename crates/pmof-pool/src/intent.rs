//! Which extents of an open pool its members' maps of write intent name: decided without input or output.
//!
//! Whoever writes looks whether the extent's bit is *hot*: raised on all members in sync, and written since the last sweep. One load tells. A sweep, which
//! comes while nobody posts, cools all bits. An extent that stays cold from one sweep to the next, with a flush of everything in between, is cleared.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use pmof_control::{INTENT_MESSAGE_WORDS_MAX, IntentLayout, WORD_EXTENTS};
use pmof_locks::{Mutex, MutexGuard};

/// From one sweep to the next: an extent is cleared two to three sweeps after the last write to it.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests;

/// Bytes behind a stream that are raised with its next extent, at most.
const AHEAD_BYTES: u64 = 16 << 20;

/// The extents that a writer has raised.
#[derive(Debug)]
pub(crate) struct Intent {
    layout: IntentLayout,
    extent_shift: u32,
    /// All members keep a map.
    is_kept: AtomicBool,
    /// Raised, and written since the last sweep.
    hot: Box<[AtomicU32]>,
    /// Raised on all members in sync.
    raised: Box<[AtomicU32]>,
    changing: Mutex<Changing>,
}

/// What changes of the map. Whoever holds it keeps all others from changing the members' maps.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// Where a stream would go on, and how many extents behind it were raised last.
    next: u64,
    ahead: u64,
    /// Extents that were cold at the last sweep, and flushed since.
    flushed: Option<Vec<u32>>,
}

/// Words of the map, from the first one that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) first: usize,
    pub(crate) bits: Vec<u32>,
}

/// What a sweep has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// What stays, in the words that change.
    pub(crate) cleared: Option<Words>,
    /// Extents that may be cleared by the next sweep, if everything that was posted before this one is flushed.
    pub(crate) cold: Option<Vec<u32>>,
}

impl Words {
    fn all(bits: Vec<u32>) -> Self {
        Self { first: 0, bits }
    }

    /// As many at a time as one message holds.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u16, Vec<u32>)> {
        let pages = self.bits.chunks(INTENT_MESSAGE_WORDS_MAX).enumerate();
        pages.map(|(page, bits)| ((self.first + page * INTENT_MESSAGE_WORDS_MAX) as u16, bits.to_vec()))
    }
}

impl Intent {
    /// Of a pool whose members' maps are not known.
    pub(crate) fn new(size_bytes: u64) -> Self {
        let layout = IntentLayout::new(size_bytes);
        let words = || (0..layout.word_count()).map(|_| AtomicU32::new(0)).collect();
        let (hot, raised) = (words(), words());
        let extent_shift = layout.extent_bytes().trailing_zeros();
        Self { layout, extent_shift, is_kept: AtomicBool::new(false), hot, raised, changing: Mutex::default() }
    }

    pub(crate) fn layout(&self) -> IntentLayout {
        self.layout
    }

    /// These bits are raised on all members in sync, and no others, from now on.
    pub(crate) fn keep(&self, words: &[u32]) {
        for (raised, bits) in self.raised.iter().zip(words) {
            raised.store(*bits, Ordering::Release);
        }
        self.is_kept.store(true, Ordering::Release);
    }

    /// Some member keeps no map, so that none is believed: nothing is raised.
    pub(crate) fn give_up(&self) {
        self.hot.iter().for_each(|word| word.store(u32::MAX, Ordering::Release));
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    /// Whether all extents of a range that is about to be written are raised. False: they have to be, first.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        self.extents(range).all(|extent| {
            let (word, bit) = place(extent);
            // Most writes go where others went before.
            if self.hot[word].load(Ordering::Acquire) & bit != 0 {
                return true;
            }
            let is_raised = self.raised[word].load(Ordering::Acquire) & bit != 0;
            if is_raised {
                self.hot[word].fetch_or(bit, Ordering::AcqRel);
            }
            is_raised
        })
    }

    /// Keeps the members' maps as they are until the guard is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock()
    }

    /// The bits that the members have to raise before a range is written: those of its extents, and some ahead of a stream. `None`: none.
    pub(crate) fn missing(&self, changing: &mut Changing, range: &Range<u64>) -> Option<Words> {
        let extents = self.extents(range);
        let (first, mut end) = (extents.start, extents.end);
        let is_missing = |extent: u64| {
            let (word, bit) = place(extent);
            self.raised[word].load(Ordering::Acquire) & bit == 0
        };
        extents.clone().find(|extent| is_missing(*extent))?;
        let ahead_max = AHEAD_BYTES / self.layout.extent_bytes();
        changing.ahead = if first == changing.next { (2 * changing.ahead + 1).min(ahead_max) } else { 0 };
        end = (end + changing.ahead).min(self.layout.extent_count());
        changing.next = end;
        let (first_word, last_word) = (place(first).0, place(end - 1).0);
        let mut bits = vec![0; last_word - first_word + 1];
        for extent in (first..end).filter(|extent| is_missing(*extent)) {
            let (word, bit) = place(extent);
            bits[word - first_word] |= bit;
        }
        Some(Words { first: first_word, bits })
    }

    /// All members in sync have raised these.
    pub(crate) fn note_raised(&self, words: &Words) {
        for (raised, bits) in self.raised[words.first..].iter().zip(&words.bits) {
            raised.fetch_or(*bits, Ordering::AcqRel);
        }
    }

    /// All that is raised, for a member that comes to be in sync.
    pub(crate) fn all(&self) -> Words {
        Words::all(self.raised.iter().map(|word| word.load(Ordering::Acquire)).collect())
    }

    /// Whether nothing is raised.
    pub(crate) fn is_clear(&self) -> bool {
        self.raised.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Cools all extents, while nobody posts, and takes out those that were cold before and flushed since.
    pub(crate) fn sweep(&self, changing: &mut Changing) -> Swept {
        let flushed = changing.flushed.take();
        let (mut cleared, mut cold) = (Vec::new(), Vec::with_capacity(self.raised.len()));
        for (index, (raised, hot)) in self.raised.iter().zip(&self.hot).enumerate() {
            let hot = hot.swap(0, Ordering::AcqRel);
            let flushed = flushed.as_ref().map_or(0, |flushed| flushed[index]);
            let bits = raised.load(Ordering::Acquire);
            let stays = bits & !(flushed & !hot);
            if stays != bits {
                raised.store(stays, Ordering::Release);
                cleared.push(index);
            }
            cold.push(stays & !hot);
        }
        let cleared = cleared.first().zip(cleared.last()).map(|(first, last)| {
            let bits = self.raised[*first..=*last].iter().map(|word| word.load(Ordering::Acquire)).collect();
            Words { first: *first, bits }
        });
        Swept { cleared, cold: Some(cold).filter(|cold| cold.iter().any(|bits| *bits != 0)) }
    }

    /// Everything that was posted before the last sweep is as durable as the members can make it.
    pub(crate) fn note_flushed(&self, cold: Vec<u32>) {
        self.changing.lock().flushed = Some(cold);
    }

    fn extents(&self, range: &Range<u64>) -> Range<u64> {
        // Each write asks: a shift takes less than a division.
        range.start >> self.extent_shift..(range.end.saturating_sub(1) >> self.extent_shift) + 1
    }
}

/// The word of an extent, and its bit there.
fn place(extent: u64) -> (usize, u32) {
    ((extent / WORD_EXTENTS) as usize, 1 << (extent % WORD_EXTENTS))
}
