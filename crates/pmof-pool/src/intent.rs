//! Which extents of an open pool its members' maps of write intent name: decided without input or output.
//!
//! Whoever writes looks whether the extent's bit is *hot*: raised on all members in sync, and written since the last sweep. One load tells. A sweep, which
//! comes while nobody posts, cools all bits. An extent that stays cold from one sweep to the next, with a flush of everything in between, is cleared.

use std::{
    ops::Range,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use pmof_control::{INTENT_MESSAGE_WORDS_MAX, IntentLayout, PAGE_BYTES, WORD_EXTENTS};
use pmof_locks::{Mutex, MutexGuard};

/// From one sweep to the next: an extent is cleared two to three sweeps after the last write to it.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(4);

mod pages;
#[cfg(test)]
mod tests;

use pages::ChangingPages;
pub(crate) use pages::{RaisedPages, pages_of};

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
    /// Which pages are raised, where a member keeps digests of them.
    pages: OnceLock<RaisedPages>,
    /// The page where the next look for pages without protection begins.
    looked_at: AtomicU64,
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
    pages: ChangingPages,
}

/// What has to be raised before a range is written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Bits of the map.
    pub(crate) words: Option<Words>,
    /// Pages.
    pub(crate) pages: Vec<Range<u64>>,
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
    /// Pages that are not raised any more, all of whose bytes are durable.
    pub(crate) taken: Vec<Range<u64>>,
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
        let (is_kept, pages, changing) = (AtomicBool::new(false), OnceLock::new(), Mutex::default());
        let looked_at = AtomicU64::new(0);
        Self { layout, extent_shift, is_kept, hot, raised, pages, looked_at, changing }
    }

    /// A member keeps digests of its pages, which have to be raised before they are written.
    pub(crate) fn track_pages(&self) {
        self.pages.get_or_init(|| RaisedPages::new(self.size_bytes()));
    }

    /// The pages that are raised, where a member keeps digests.
    pub(crate) fn pages(&self) -> Option<&RaisedPages> {
        self.pages.get()
    }

    /// The page where the next look for pages without protection begins.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at.load(Ordering::Relaxed)
    }

    pub(crate) fn look_on_at(&self, page: u64) {
        self.looked_at.store(page, Ordering::Relaxed);
    }

    fn size_bytes(&self) -> u64 {
        self.layout.size_bytes()
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

    /// Whether all extents of a range that is about to be written are raised, and its pages, where these are tracked. False: they have to be, first.
    #[inline]
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        match self.pages.get() {
            // Of a page that is raised the extent is.
            Some(pages) => pages.covers(range),
            None => self.covers_extents(range),
        }
    }

    fn covers_extents(&self, range: &Range<u64>) -> bool {
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

    /// What the members have to raise before a range is written.
    pub(crate) fn missing(&self, changing: &mut Changing, range: &Range<u64>) -> Missing {
        let Some(pages) = self.pages.get() else {
            return Missing { words: self.missing_extents(changing, range), pages: Vec::new() };
        };
        let pages = pages.missing(&mut changing.pages, range);
        let bytes = pages
            .first()
            .zip(pages.last())
            .map(|(first, last)| first.start * PAGE_BYTES..(last.end * PAGE_BYTES).min(self.size_bytes()));
        Missing { words: bytes.and_then(|bytes| self.missing_extents(changing, &bytes)), pages }
    }

    /// The bits that the members have to raise before a range is written: those of its extents, and some ahead of a stream. `None`: none.
    pub(crate) fn missing_extents(&self, changing: &mut Changing, range: &Range<u64>) -> Option<Words> {
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
    pub(crate) fn note_raised(&self, Missing { words, pages }: &Missing) {
        if let Some(words) = words {
            self.note_raised_extents(words);
        }
        if let Some(raised) = self.pages.get() {
            raised.note_raised(pages);
        }
    }

    fn note_raised_extents(&self, words: &Words) {
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
        let (mut cleared, mut cold, mut taken) = (Vec::new(), Vec::with_capacity(self.raised.len()), Vec::new());
        for (index, (raised, hot)) in self.raised.iter().zip(&self.hot).enumerate() {
            let bits = raised.load(Ordering::Acquire);
            let mut hot = hot.swap(0, Ordering::AcqRel);
            if let Some(pages) = self.pages.get() {
                for bit in (0..WORD_EXTENTS).filter(|bit| bits >> bit & 1 != 0) {
                    let bytes = self.layout.extent_range(index as u64 * WORD_EXTENTS + bit);
                    let swept = pages.sweep(&mut changing.pages, &bytes, flushed.is_some(), &mut taken);
                    // An extent goes a sweep after its last page, when that is protected.
                    hot |= u32::from(swept.is_raised || swept.is_hot) << bit;
                }
            }
            let flushed = flushed.as_ref().map_or(0, |flushed| flushed[index]);
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
        let is_any_raised = self.pages.get().is_some_and(|pages| pages.raised_count() > 0);
        Swept { cleared, cold: Some(cold).filter(|cold| is_any_raised || cold.iter().any(|bits| *bits != 0)), taken }
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
