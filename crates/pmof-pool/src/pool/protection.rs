//! Digests of pages in the members that keep them: their protection is taken back before new bytes reach a page, and set again when these are durable; what is damaged is repaired from where
//! it is whole.

use std::{cell::RefCell, collections::BTreeSet, ops::Range, sync::Arc};

use pmof_control::{
    PAGE_BYTES, PAGE_RANGES_MAX, PageDigests, PagesReply, PagesRequest, REPAIRED_BYTES, Reply, Request, page_count,
};

use super::{Event, Open};
use crate::{
    PoolError, Repaired, ReplicaError,
    intent::{Changing, Intent, Missing, RaisedPages, Words, pages_of},
    member::{Control, Member},
    view::Positions,
};

/// Pages whose words are compared and set at a time: as many as a message names apart.
const PROTECTED_AT_ONCE: u64 = 192;

/// Pages that are raised at a time: 16 MiB, which a target verifies in some milliseconds, or reads from its disk in the time of an answer.
const RAISED_AT_ONCE: u64 = 4096;

/// Pages of replicas, each with its position.
type PagesOf = Vec<(usize, Range<u64>)>;

impl Open {
    /// Has pages raised on all members that keep digests, and the bits of the map on the others. `needed`: what is about to be written, in bytes. Returns what was raised; pages beyond
    /// those needed that are damaged are left out.
    pub(super) fn raise_pages(&self, mut missing: Missing, needed: &Range<u64>) -> Result<Missing, PoolError> {
        let keeps_digests: Positions = self.positions_of(Control::keeps_digests);
        // Where a member keeps no map none is believed, and it would not know the request.
        let is_map_kept = self.intent.as_ref().is_some_and(|intent| intent.is_kept());
        if let Some(words) = missing.words.as_ref().filter(|_| is_map_kept) {
            self.raise_words(words, !keeps_digests);
        }
        let (damaged, verified) = self.ask_to_raise(&missing.pages, keeps_digests);
        if damaged.is_empty() {
            return Ok(missing);
        }
        let vouching = |page| {
            let of_page = verified.iter().filter(|(_, pages)| pages.contains(&page));
            of_page.fold(0, |vouching: Positions, (position, _)| vouching | 1 << position)
        };
        let mut lost = Vec::new();
        for (position, pages) in damaged {
            for page in pages {
                if !self.raise_damaged(position, page, vouching(page), needed) {
                    lost.push(page);
                }
            }
        }
        lost.sort_unstable();
        lost.dedup();
        let of_needed = pages_of(needed);
        if lost.iter().any(|page| of_needed.contains(page)) {
            return Err(PoolError::Damaged {
                ranges: self.bytes_of(lost.into_iter().filter(|page| of_needed.contains(page))),
            });
        }
        missing.pages = without(&missing.pages, &lost);
        Ok(missing)
    }

    /// A page that is damaged on a member: repaired, and raised then; or raised as it is, where all of it is about to be written. `vouching`: members where it was whole until it was raised.
    fn raise_damaged(&self, position: usize, page: u64, vouching: Positions, needed: &Range<u64>) -> bool {
        let bytes = self.page_bytes(page);
        let is_replaced = needed.start <= bytes.start && bytes.end <= needed.end;
        if !is_replaced && !self.heal(position, page, vouching) {
            return false;
        }
        let Some(control) = self.members[position].control() else { return false };
        let pages = std::iter::once(page..page + 1).collect();
        let raise = PagesRequest::Raise { pages, is_forced: is_replaced, is_alone: self.is_alone() };
        matches!(control.ask_pages(raise), Ok(PagesReply::Raised { damaged, .. }) if damaged.is_empty())
            || !self.members[position].state().is_connected()
    }

    /// Before a member is sent what is written from now on: takes back the protection of all pages that are raised.
    pub(super) fn unprotect_raised_on(&self, member: &dyn Member) {
        if let Some(raised) = self.intent.as_ref().and_then(|intent| intent.pages()) {
            raise_by_force(member, &raised.raised());
        }
    }

    /// Has pages raised, and returns those that are damaged and those that were whole until now. Members that are not in sync raise them whatever they hold.
    fn ask_to_raise(&self, pages: &[Range<u64>], on: Positions) -> (PagesOf, PagesOf) {
        let Some(epochs) = &self.epochs else { return Default::default() };
        let found = RefCell::new((Vec::new(), Vec::new()));
        for pages in batches(pages, RAISED_AT_ONCE) {
            let is_alone = self.is_alone();
            let raise = PagesRequest::Raise { pages: pages.clone(), is_forced: false, is_alone };
            let request = Request::Pages(raise);
            let asked = epochs.ask_counted(on, &request, &|position, reply| match reply {
                Reply::Pages(PagesReply::Raised { damaged, verified }) => {
                    let mut found = found.borrow_mut();
                    found.0.extend(damaged.iter().map(|range| (position, range.clone())));
                    found.1.extend(verified.iter().map(|range| (position, range.clone())));
                    true
                }
                _ => false,
            });
            // Writes go to every connected member: also to one that catches up, or is about to become a member.
            for (position, member) in self.members.iter().enumerate().filter(|(at, _)| asked >> at & 1 == 0) {
                if on >> position & 1 != 0 && member.state().is_connected() && !member.state().is_slow() {
                    raise_by_force(&**member, &pages);
                }
            }
        }
        found.into_inner()
    }

    /// Raises bits of the map on these members.
    pub(super) fn raise_words(&self, words: &Words, on: Positions) {
        let Some(epochs) = &self.epochs else { return };
        for (first, words) in words.pages() {
            let request = Request::RaiseIntent { first, words };
            let _asked = epochs.ask_counted(on, &request, &|_, reply| *reply == Reply::IntentChanged);
        }
    }

    /// Whether only one member says what was written, so that its medium alone vouches for it.
    fn is_alone(&self) -> bool {
        self.in_use().filter(|member| member.control().is_some_and(Control::keeps_digests)).count() < 2
    }

    /// Members of which this holds.
    fn positions_of(&self, is: impl Fn(&Control) -> bool) -> Positions {
        let members = self.members.iter().enumerate();
        let has_data = members.filter(|(_, member)| !member.state().is_witness());
        let found = has_data.filter(|(_, member)| member.control().is_some_and(&is));
        found.fold(0, |positions, (position, _)| positions | 1 << position)
    }

    /// Whether some member keeps digests of its pages.
    pub(super) fn keeps_digests(&self) -> bool {
        self.positions_of(Control::keeps_digests) != 0
    }

    /// The bytes of a page, of which the last one of the pool may be shorter.
    fn page_bytes(&self, page: u64) -> Range<u64> {
        page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(self.facts.size_bytes)
    }

    fn bytes_of(&self, pages: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for page in pages {
            let bytes = self.page_bytes(page);
            match ranges.last_mut() {
                Some(last) if last.end == bytes.start => last.end = bytes.end,
                _ => ranges.push(bytes),
            }
        }
        ranges
    }

    /// Repairs a page that is damaged on a member, from another that has what its digest says; from one that is behind, too. The page is not written meanwhile: it is protected, and a writer that
    /// would raise it waits. `vouching`: members whose page is unprotected by now, and was whole when that was done.
    fn heal(&self, position: usize, page: u64, vouching: Positions) -> bool {
        let damaged = &*self.members[position];
        let Some(control) = damaged.control() else { return false };
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != position);
        let is_healed = others.filter(|(_, member)| member.state().is_in_sync()).any(|(at, other)| {
            let Some(bytes) = self.whole_page(&**other, page) else { return false };
            let digests = PageDigests::new(self.facts.uuid);
            let word = digests.protected(page, digests.digest(page, &bytes));
            // Where only the word is damaged it is set again if both hold the same, or the other one's digest says that it is whole.
            let is_same = digest_of(control, page) == Some(word);
            let is_certain = is_same || vouching >> at & 1 != 0 || is_protected(&**other, page);
            let given = if is_certain { word } else { 0 };
            let is_repaired = bytes.chunks(REPAIRED_BYTES).enumerate().all(|(part, bytes)| {
                let offset = (part * REPAIRED_BYTES) as u16;
                let repair = PagesRequest::Repair { page, word: given, offset, bytes: bytes.to_vec() };
                matches!(control.ask_pages(repair), Ok(PagesReply::Repaired))
            });
            // An older word, whole and of other bytes, as a lost write leaves it, admits no repair. Where both hold the same the page is protected anew, as one of which nothing is known.
            is_repaired || is_same && raise_one_by_force(control, page)
        });
        let (replica, range) = (Arc::clone(&damaged.standing().place), self.page_bytes(page));
        self.events.add(if is_healed { Event::Healed { replica, range } } else { Event::Damaged { replica, range } });
        is_healed
    }

    /// All of a page as a member has it, with the zeros behind the pool's end.
    fn whole_page(&self, member: &dyn Member, page: u64) -> Option<Vec<u8>> {
        let range = self.page_bytes(page);
        let mut bytes = vec![0; PAGE_BYTES as usize];
        let read = member.read(range.start, &mut bytes[..(range.end - range.start) as usize]);
        read.is_ok().then_some(bytes)
    }

    /// Heals the pages of a range that are damaged on a member, where this handle writes the pool. No page is raised meanwhile.
    pub(super) fn heal_range(&self, position: usize, range: &Range<u64>) {
        let Some(intent) = &self.intent else { return };
        let _changing = intent.lock();
        let member = &*self.members[position];
        let Some(control) = member.control().filter(|control| control.keeps_digests()) else { return };
        for page in damaged_in(control, pages_of(range)).unwrap_or_default() {
            self.heal(position, page, 0);
        }
    }

    /// Verifies the pages of a range on all members in sync that keep digests, and repairs the damaged ones. `found` is given each of them, and whether it was repaired. False: no member that keeps digests has verified all of them.
    pub(super) fn verify_pages(&self, range: &Range<u64>, found: &mut dyn FnMut(Repaired, bool)) -> bool {
        let Some(intent) = &self.intent else { return false };
        let mut is_verified = false;
        for (position, member) in self.members.iter().enumerate() {
            let is_counted = member.state().is_in_sync() && !member.state().is_witness();
            let Some(control) = member.control().filter(|control| is_counted && control.keeps_digests()) else {
                continue;
            };
            let Some(damaged) = damaged_in(control, pages_of(range)) else { continue };
            is_verified = true;
            for page in damaged {
                let _changing = intent.lock();
                // A writer may have come first, and repaired it.
                let is_damaged = damaged_in(control, page..page + 1).is_some_and(|damaged| !damaged.is_empty());
                if is_damaged {
                    let is_healed = self.heal(position, page, 0);
                    let replica = Arc::clone(&member.standing().place);
                    found(Repaired { replica, range: self.page_bytes(page) }, is_healed);
                }
            }
        }
        is_verified
    }

    /// Protects pages on all members in sync that keep digests, where these agree. They are durable, and not raised.
    pub(super) fn protect(&self, intent: &Intent, pages: &[Range<u64>]) {
        let Some(raised) = intent.pages() else { return };
        for pages in batches(pages, PROTECTED_AT_ONCE) {
            let Some(agreed) = self.agreed(&pages) else { return };
            let mut changing = intent.lock();
            self.protect_agreed(raised, agreed, &mut changing);
        }
    }

    /// Protects all raised pages of a pool that is about to be closed: everything is durable.
    pub(super) fn protect_all(&self) {
        if let Some((intent, pages)) = self.intent.as_ref().and_then(|intent| Some((intent, intent.pages()?))) {
            self.protect(intent, &pages.take_all());
        }
    }

    /// The words of pages on which all members in sync agree. `None`: one does not answer.
    fn agreed(&self, pages: &[Range<u64>]) -> Option<Vec<(u64, u64)>> {
        let members: Vec<_> = self.in_use().filter_map(|member| member.control()).collect();
        let request = Request::Pages(PagesRequest::Digest { pages: pages.to_vec() });
        let asked: Vec<_> = members
            .iter()
            .filter(|control| control.keeps_digests())
            .map(|control| (control, control.start_asking(&request)))
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for (control, asking) in asked {
            match control.finish_asking(asking) {
                Some(Reply::Pages(PagesReply::Digests { words })) => answers.push(words),
                _ => return None,
            }
        }
        let first = answers.first()?;
        let numbers: Vec<u64> = pages.iter().cloned().flatten().collect();
        if answers.iter().any(|words| words.len() != numbers.len()) {
            return None;
        }
        let agree = |at: usize| answers.iter().all(|words| words[at] == first[at]);
        Some(numbers.into_iter().enumerate().filter(|(at, _)| agree(*at)).map(|(at, page)| (page, first[at])).collect())
    }

    /// Sets words that all have agreed on, without those of pages that were raised since: they may be written.
    fn protect_agreed(&self, raised: &RaisedPages, agreed: Vec<(u64, u64)>, _changing: &mut Changing) {
        let Some(epochs) = &self.epochs else { return };
        let still = agreed.into_iter().filter(|(page, _)| raised.raised_in(&(*page..page + 1)).is_empty());
        let (pages, words): (Vec<u64>, Vec<u64>) = still.unzip();
        let (mut left, mut words) = (ranges_of(&pages), &words[..]);
        left.reverse();
        let (keeps_digests, is_alone) = (self.positions_of(Control::keeps_digests), self.is_alone());
        while !left.is_empty() {
            let (pages, first) = PagesRequest::protect_page(&mut left, &mut words);
            let request = Request::Pages(PagesRequest::Protect { pages, words: first.to_vec(), is_alone });
            epochs.ask_in_use(keeps_digests, &request, &|_, reply| {
                matches!(reply, Reply::Pages(PagesReply::Protected { .. }))
            });
        }
    }

    /// Protects what is not protected and not in motion: what a crash left, or a replica that caught up. Looks at some pages of each member, from where the last look ended.
    pub(super) fn protect_more(&self) {
        let Some(intent) = &self.intent else { return };
        let from = intent.looked_at();
        intent.look_on_at(self.protect_more_from(intent, from));
    }

    fn protect_more_from(&self, intent: &Intent, from: u64) -> u64 {
        let Some(raised) = intent.pages() else { return 0 };
        let mut next = u64::MAX;
        for control in self.in_use().filter_map(|member| member.control()).filter(|control| control.keeps_digests()) {
            match control.ask_pages(PagesRequest::Unprotected { pages: from..u64::MAX }) {
                Ok(PagesReply::Unprotected { pages, end }) => {
                    next = next.min(end);
                    self.protect(intent, &raised.without_raised(&pages));
                }
                _ => return from,
            }
        }
        if next >= page_count(self.facts.size_bytes) { 0 } else { next }
    }

    /// Makes the pages of a block equal on members in sync that differ there after a crash: by one whose digest holds where there is such a one. Nothing was written to that page since the digest was
    /// made, on any of them: its protection is taken back on all before. Else by `from`. Returns the bytes copied.
    pub(super) fn equalize_pages(
        &self,
        members: &[Arc<dyn Member>],
        from: &Arc<dyn Member>,
        block: &Range<u64>,
    ) -> Result<u64, PoolError> {
        let pages = pages_of(block);
        let held: Vec<_> = members.iter().map(|member| Held::of(&**member, &pages)).collect();
        let (mut copied_bytes, mut undecided) = (0, Vec::new());
        for page in pages.clone() {
            let is = |at: usize, wanted: PageState| held[at].states[(page - pages.start) as usize] == wanted;
            let whole: Vec<_> = (0..members.len()).filter(|at| is(*at, PageState::Whole)).collect();
            let word = |at: &usize| members[*at].control().and_then(|control| digest_of(control, page));
            let words: Vec<_> = whole.iter().filter(|_| whole.len() > 1).map(word).collect();
            if words.iter().any(|word| *word != words[0]) {
                undecided.push(page);
                continue;
            }
            let given = members.iter().position(|member| Arc::ptr_eq(member, from));
            let given = given.filter(|at| is(*at, PageState::Unprotected));
            let source = whole.first().copied().or(given);
            let source = source.or_else(|| (0..members.len()).find(|at| is(*at, PageState::Unprotected)));
            // A page that is damaged on all of them is an error for its reader.
            let Some(source) = source else { continue };
            let others = members.iter().enumerate().filter(|(at, _)| *at != source && !whole.contains(at));
            let to: Vec<_> = others.map(|(_, member)| Arc::clone(member)).collect();
            copied_bytes += self.copy_range(&members[source], &self.page_bytes(page), &to)?;
        }
        if undecided.is_empty() {
            Ok(copied_bytes)
        } else {
            Err(PoolError::Undecided { ranges: self.bytes_of(undecided) })
        }
    }

    /// What of these ranges may differ on members in sync: pages that are protected on all of them hold the same, since they have agreed on it. All of the ranges, where one keeps no digests.
    pub(super) fn unprotected_in(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let controls: Vec<_> = self.in_use().map(|member| member.control()).collect();
        if !controls.iter().all(|control| control.is_some_and(Control::keeps_digests)) {
            return ranges;
        }
        let mut pages = BTreeSet::new();
        for range in &ranges {
            for control in controls.iter().flatten() {
                let Some(unprotected) = unprotected_of(control, pages_of(range)) else { return ranges };
                pages.extend(unprotected);
            }
        }
        let inside = |bytes: Range<u64>| ranges.iter().any(|range| range.start < bytes.end && bytes.start < range.end);
        self.bytes_of(pages.into_iter().filter(|page| inside(self.page_bytes(*page))))
    }

    /// Reads a range of which a member has damaged pages: each page from where it is whole.
    pub(super) fn read_around_damage(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        let range = offset..offset + into.len() as u64;
        let mut lost = Vec::new();
        for page in pages_of(&range) {
            let part = self.page_bytes(page);
            let part = part.start.max(range.start)..part.end.min(range.end);
            let place = &mut into[(part.start - offset) as usize..(part.end - offset) as usize];
            match self.read_from_any(part.start, place) {
                Ok(()) => {}
                Err(PoolError::NoneLeft { source, .. }) if matches!(*source, ReplicaError::Damaged { .. }) => {
                    lost.push(page);
                }
                Err(error) => return Err(error),
            }
        }
        if lost.is_empty() { Ok(()) } else { Err(PoolError::Damaged { ranges: self.bytes_of(lost) }) }
    }
}

/// Before bytes are copied to a member: takes back the protection of the pages that they touch, whatever these hold.
pub(super) fn unprotect_on(member: &dyn Member, ranges: &[Range<u64>]) {
    let pages: Vec<_> = ranges.iter().map(pages_of).filter(|pages| !pages.is_empty()).collect();
    raise_by_force(member, &pages);
}

/// What a member's digest says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Unprotected,
    Whole,
    /// Or nobody knows: its member has not answered.
    Damaged,
}

/// What a member's digests say of some pages.
struct Held {
    states: Vec<PageState>,
}

impl Held {
    fn of(member: &dyn Member, pages: &Range<u64>) -> Self {
        let all = |state| vec![state; (pages.end - pages.start) as usize];
        let Some(control) = member.control().filter(|control| control.keeps_digests()) else {
            return Self { states: all(PageState::Unprotected) };
        };
        let (unprotected, damaged) = (unprotected_of(control, pages.clone()), damaged_in(control, pages.clone()));
        let (Some(unprotected), Some(damaged)) = (unprotected, damaged) else {
            return Self { states: all(PageState::Damaged) };
        };
        let mut states = all(PageState::Whole);
        for (of, state) in [(unprotected, PageState::Unprotected), (damaged, PageState::Damaged)] {
            for page in of {
                states[(page - pages.start) as usize] = state;
            }
        }
        Self { states }
    }
}

/// Has a member take back the protection of pages, whatever they hold. A failure takes it out of use.
fn raise_by_force(member: &dyn Member, pages: &[Range<u64>]) {
    let keeps_digests = |control: &&Control| control.keeps_digests() && !member.state().is_witness();
    let Some(control) = member.control().filter(keeps_digests) else { return };
    for pages in batches(pages, RAISED_AT_ONCE) {
        let raise = PagesRequest::Raise { pages, is_forced: true, is_alone: false };
        let reply = control.ask_pages(raise);
        if !matches!(reply, Ok(PagesReply::Raised { .. })) {
            return drop(control.fail(ReplicaError::Unexpected));
        }
    }
}

/// Has a member take back the protection of one page, whatever it holds.
fn raise_one_by_force(control: &Control, page: u64) -> bool {
    let raise =
        PagesRequest::Raise { pages: std::iter::once(page..page + 1).collect(), is_forced: true, is_alone: false };
    matches!(control.ask_pages(raise), Ok(PagesReply::Raised { damaged, .. }) if damaged.is_empty())
}

/// The word that a member's bytes of a page have.
fn digest_of(control: &Control, page: u64) -> Option<u64> {
    match control.ask_pages(PagesRequest::Digest { pages: std::iter::once(page..page + 1).collect() }) {
        Ok(PagesReply::Digests { words }) => words.first().copied(),
        _ => None,
    }
}

/// Whether a page of a member is protected, and so is as it was written.
fn is_protected(member: &dyn Member, page: u64) -> bool {
    let Some(control) = member.control().filter(|control| control.keeps_digests()) else { return false };
    unprotected_of(control, page..page + 1).is_some_and(|unprotected| unprotected.is_empty())
}

/// Pages of a member that are not protected, among these. `None`: it has not answered for all of them.
fn unprotected_of(control: &Control, mut pages: Range<u64>) -> Option<Vec<u64>> {
    let mut unprotected = Vec::new();
    while !pages.is_empty() {
        match control.ask_pages(PagesRequest::Unprotected { pages: pages.clone() }) {
            Ok(PagesReply::Unprotected { pages: found, end }) if end > pages.start => {
                unprotected.extend(found.into_iter().flatten());
                pages.start = end;
            }
            _ => return None,
        }
    }
    Some(unprotected)
}

/// Pages of a member that are damaged, among these. `None`: it has not answered for all of them.
fn damaged_in(control: &Control, pages: Range<u64>) -> Option<Vec<u64>> {
    let (mut damaged, mut at) = (Vec::new(), pages.start);
    while at < pages.end {
        let some = at..pages.end.min(at + pmof_control::VERIFIED_PAGES_MAX);
        match control.ask_pages(PagesRequest::Verify { pages: some }) {
            Ok(PagesReply::Verified { damaged: found, end }) if end > at => {
                damaged.extend(found.into_iter().flatten());
                at = end;
            }
            _ => return None,
        }
    }
    Some(damaged)
}

/// As many ranges at a time as one message holds, of at most so many pages together.
fn batches(pages: &[Range<u64>], pages_max: u64) -> Vec<Vec<Range<u64>>> {
    let (mut batches, mut batch, mut room) = (Vec::new(), Vec::new(), pages_max);
    for range in pages {
        let mut range = range.clone();
        while !range.is_empty() {
            let part = range.start..range.end.min(range.start + room);
            (room, range.start) = (room - (part.end - part.start), part.end);
            batch.push(part);
            if room == 0 || batch.len() == PAGE_RANGES_MAX {
                batches.push(std::mem::take(&mut batch));
                room = pages_max;
            }
        }
    }
    batches.extend(Some(batch).filter(|batch| !batch.is_empty()));
    batches
}

/// Page numbers in ascending order, as ranges.
fn ranges_of(pages: &[u64]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(last) if last.end == *page => last.end += 1,
            _ => ranges.push(*page..page + 1),
        }
    }
    ranges
}

/// Ranges of pages without some of them.
fn without(ranges: &[Range<u64>], pages: &[u64]) -> Vec<Range<u64>> {
    let left: Vec<u64> = ranges.iter().cloned().flatten().filter(|page| pages.binary_search(page).is_err()).collect();
    ranges_of(&left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_all_pages_and_no_more_than_a_message() {
        let single: Vec<_> = (0..1000).map(|page| 2 * page..2 * page + 1).collect();
        let found = batches(&single, RAISED_AT_ONCE);
        assert!(found.iter().all(|batch| batch.len() <= PAGE_RANGES_MAX));
        assert_eq!(found.concat(), single);
        let long = batches(std::slice::from_ref(&(7..10_000)), RAISED_AT_ONCE);
        assert!(long.iter().flatten().eq([&(7..4103), &(4103..8199), &(8199..10_000)]), "{long:?}");
        assert_eq!(batches(&[], 9), Vec::<Vec<_>>::new());
    }

    #[test]
    fn pages_are_taken_out_of_ranges() {
        assert_eq!(without(&[0..4, 9..11], &[1, 9]), [0..1, 2..4, 10..11]);
        assert_eq!(without(&[], &[1]), Vec::<Range<u64>>::new());
    }
}
