//! The maps of write intent in the members of a pool: read and raised by an opening, raised before writes, cleared behind them.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use pmof_access::Durability;
use pmof_control::{Reply, Request};
use pmof_replication::opening::Left;

use super::{
    Flushings, Open, Shared,
    halt::{Halt, ask_within},
    protection::unprotect_on,
};
use crate::{
    PoolError, ReplicaError,
    intent::{Intent, Missing, Words},
    member::{Control, Flush, FlushLevel, Member},
};

/// Maps that targets told with their replicas, by the positions of these.
pub(super) type ToldMaps = BTreeMap<usize, Vec<u32>>;

/// How long those who write are kept waiting for a sweep, before it is put off.
const HOLD: Duration = Duration::from_millis(50);

impl Open {
    /// Before the opening's epoch: has the members in use keep maps that name all extents in which they may differ. Returns these, in order;
    /// all of the pool where a member keeps no map, or where one may be an older copy, whose map and those of the others know nothing of each other.
    ///
    /// What one of them names all do before anything is copied: this opening too may end in the middle, and the next one not meet that one.
    pub(super) fn keep_intent(&self, left: Left, told: &ToldMaps) -> Vec<Range<u64>> {
        let all = || std::iter::once(0..self.facts.size_bytes).collect();
        let Some(intent) = &self.intent else { return all() };
        if self.keeps_digests() {
            intent.track_pages();
        }
        let mut words = vec![0; intent.layout().word_count()];
        let in_use = self.members.iter().enumerate().filter(|(_, member)| member.state().is_in_sync());
        let members: Vec<_> = in_use.map(|(position, member)| (position, &**member)).collect();
        for ((_, member), map) in members.iter().zip(read_maps(&members, told, words.len())) {
            match map {
                Ok(map) => words.iter_mut().zip(map).for_each(|(word, bits)| *word |= bits),
                // It is lost, and counts no more.
                Err(_) if !member.state().is_connected() => {}
                Err(why) => {
                    log::info!(
                        "{:#} keeps no map of write intent: {}",
                        member.standing().place,
                        pmof_mem::causes(&*why)
                    );
                    intent.give_up();
                    return all();
                }
            }
        }
        match left {
            // Whatever is left in a map.
            Left::Closed => words.fill(0),
            Left::Alike => {}
            Left::Unlike => words.fill(u32::MAX),
        }
        let map = Words { first: 0, bits: words.clone() };
        match left {
            Left::Closed => self.clear_on_all(&map, |_| Durability::PowerFailure),
            Left::Alike | Left::Unlike => self.raise_on_all(&map),
        }
        intent.keep(&words);
        intent.layout().ranges(&words)
    }

    /// Of a new pool, all of whose replicas are equal: has them keep a map.
    pub(super) fn begin_intent(&mut self) {
        self.intent = Some(Arc::new(Intent::new(self.facts.size_bytes)));
        self.keep_intent(Left::Closed, &ToldMaps::new());
    }

    /// Before a range is written: has all members in sync know durably that they may differ there.
    ///
    /// # Errors
    /// [`PoolError::Damaged`]: a page of which only a part is to be written is damaged on a member, and whole on none.
    #[inline]
    pub(super) fn intend(&self, range: &Range<u64>) -> Result<(), PoolError> {
        match &self.intent {
            Some(intent) if !intent.covers(range) => self.raise(intent, range),
            _ => Ok(()),
        }
    }

    #[cold]
    fn raise(&self, intent: &Intent, range: &Range<u64>) -> Result<(), PoolError> {
        let mut changing = intent.lock();
        // Another thread may have done it meanwhile.
        let mut missing = intent.missing(&mut changing, range);
        if intent.pages().is_some() && missing != Missing::default() {
            missing = self.raise_pages(missing, range)?;
        } else if let Some(words) = &missing.words {
            self.raise_on_all(words);
        }
        intent.note_raised(&missing);
        intent.covers(range);
        Ok(())
    }

    /// Before a range is copied to members that differ from the others: has all know durably that they may differ there, and those take back the protection of its pages. On the others it stays, so that
    /// after a copy that was cut short it is known which one is whole.
    pub(super) fn intend_copy(&self, range: &Range<u64>, to: &[Arc<dyn Member>]) {
        if let Some(intent) = &self.intent {
            let mut changing = intent.lock();
            if let Some(words) = intent.missing_extents(&mut changing, range) {
                self.raise_on_all(&words);
                intent.note_raised(&Missing { words: Some(words), pages: Vec::new() });
            }
        }
        for member in to {
            unprotect_on(&**member, std::slice::from_ref(range));
        }
    }

    /// Has a member that comes to be in sync keep the map that the others have. What it holds is durable to the pool's level. `limit`: how long
    /// each answer may take.
    pub(super) fn give_intent(&self, control: &Control, limit: Option<Duration>) -> Result<(), Halt> {
        let Some(intent) = self.intent.as_ref().filter(|intent| intent.is_kept()) else { return Ok(()) };
        let _changing = intent.lock();
        let level = self.facts.durability;
        intent.all().pages().try_for_each(|(first, words)| {
            ask_within(control, &Request::ClearIntent { level, first, words }, &Reply::IntentChanged, limit)
        })
    }

    /// All members in sync are equal and are about to be closed: nothing is in flight any more.
    pub(super) fn end_intent(&self) {
        let Some(intent) = self.intent.as_ref().filter(|intent| intent.is_kept() && !intent.is_clear()) else { return };
        let _changing = intent.lock();
        let bits = vec![0; intent.layout().word_count()];
        self.clear_on_all(&Words { first: 0, bits }, |member| member.strongest());
    }

    fn raise_on_all(&self, words: &Words) {
        let Some(epochs) = &self.epochs else { return };
        for (first, words) in words.pages() {
            epochs.tell_counted(&Request::RaiseIntent { first, words }, &Reply::IntentChanged);
        }
    }

    fn clear_on_all(&self, stay: &Words, level_of: impl Fn(&dyn Member) -> Durability) {
        let Some(level) = self.in_use().map(|member| level_of(&**member)).min() else { return };
        let Some(epochs) = &self.epochs else { return };
        for (first, words) in stay.pages() {
            epochs.tell_in_use(&Request::ClearIntent { level, first, words }, &Reply::IntentChanged);
        }
    }

    /// Whether what the pool's flushes reach is all that its members can give: else a flush of everything may take a disk longer than a
    /// target may take to answer.
    fn flushes_to_the_strongest(&self) -> bool {
        self.in_use().all(|member| member.strongest() <= self.facts.durability)
    }
}

impl Shared {
    /// Now and then: clears extents that all members in sync have, durably.
    pub(super) fn sweep_intent(&self) {
        let Ok(open) = self.hold() else { return };
        let Some(intent) = open.intent.clone() else { return };
        if !intent.is_kept() || intent.is_clear() || !open.flushes_to_the_strongest() {
            return;
        }
        drop(open);
        let (open, cold) = {
            // Whoever has seen a bit has posted its writes when this is held.
            let Some(guard) = self.open.try_write_for(HOLD) else { return };
            let Some(open) = guard.as_ref().map(Arc::clone) else { return };
            // A member that is lost, and that an opening would still count, has what those have that know of its loss.
            if !open.epochs.as_ref().is_some_and(|epochs| epochs.is_settled(&open.members)) {
                return;
            }
            // Who raises a bit that is taken out here waits until the members have cleared it.
            let mut changing = intent.lock();
            let swept = intent.sweep(&mut changing);
            drop(guard);
            if let (Some(stay), Some(epochs)) = (swept.cleared, &open.epochs) {
                // An older copy lacks what was written there since, and no map would say so.
                if epochs.date_copies() {
                    open.clear_on_all(&stay, |_| open.facts.durability);
                }
            }
            // A write that raises a page from here on waits only while words are set.
            drop(changing);
            open.protect(&intent, &swept.taken);
            (open, swept.cold)
        };
        if let Some(cold) = cold {
            if open.flush_all_in_use() {
                intent.note_flushed(cold);
            }
        }
    }
}

impl Shared {
    /// Now and then: protects pages that are not, and not in motion.
    pub(super) fn protect_more(&self) {
        if let Ok(open) = self.hold() {
            open.protect_more();
        }
    }
}

impl Open {
    /// Makes everything durable that was posted. False: some member in sync failed.
    fn flush_all_in_use(&self) -> bool {
        let in_use: Vec<_> = self.in_use().collect();
        let everything = |member: &&Arc<dyn Member>| member.start_flush(Flush::Everything, FlushLevel::OfPool);
        let mut flushing: Flushings = in_use.iter().map(everything).collect();
        let done = in_use.iter().zip(&mut flushing).map(|(member, flushing)| member.finish_flush(flushing).is_some());
        // All of them, also behind one that failed: nobody else takes their outcomes.
        done.fold(true, |all, is_done| all & is_done)
    }
}

type ReadMap = Result<Vec<u32>, Arc<ReplicaError>>;

/// All words of each member's map: all members whose targets have not told them are asked at once, for as many words as one reply holds.
fn read_maps(members: &[(usize, &dyn Member)], told: &ToldMaps, word_count: usize) -> Vec<ReadMap> {
    let none = || Err(Arc::new(ReplicaError::Unexpected));
    let controls: Vec<_> = members.iter().map(|(_, member)| member.control()).collect();
    let known = |position: &usize| told.get(position).cloned().unwrap_or_default();
    let mut maps: Vec<ReadMap> = controls
        .iter()
        .zip(members)
        .map(|(control, (position, _))| if control.is_some() { Ok(known(position)) } else { none() })
        .collect();
    loop {
        let lacks = |map: &ReadMap| map.as_ref().ok().map(Vec::len).filter(|read| *read < word_count);
        let asked: Vec<_> = { controls.iter().zip(&maps).enumerate() }
            .filter_map(|(at, (control, map))| {
                let (control, first) = ((*control)?, lacks(map)? as u16);
                Some((at, control, first, control.start_asking(&Request::Intent { first })))
            })
            .collect();
        if asked.is_empty() {
            break;
        }
        for (at, control, first, asking) in asked {
            let words = control.answer(asking).and_then(|reply| match reply {
                Reply::Intent { first: of, words } if of == first && !words.is_empty() => Ok(words),
                _ => Err(control.fail(ReplicaError::Unexpected)),
            });
            match (&mut maps[at], words) {
                (Ok(map), Ok(words)) => map.extend(words),
                (map, Err(why)) => *map = Err(why),
                (Err(_), Ok(_)) => {}
            }
        }
    }
    maps.iter_mut().flatten().for_each(|map| map.truncate(word_count));
    maps
}
