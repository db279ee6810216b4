//! What requests about pages do: their protection is taken back before new bytes reach them, and set again when these are durable.

use std::{collections::VecDeque, iter, mem, ops::Range};

use pmof_control::{
    DIGEST_WORD_BYTES, IntentLayout, OpenFor, PAGE_BYTES, PAGE_RANGES_MAX, PageDigests, PageWord, PagesReply,
    PagesRequest, Reply, WORD_EXTENTS, page_count,
};

use super::{
    Machine, OpenReplica, Output, Refusal, Rules, ShippedRules, Step,
    replica::{Change, read_map, words_in},
};

/// Pages whose bytes are read at once.
const CHUNK_PAGES: u64 = 64;
/// Words that one request for unprotected pages looks at, at most.
const LISTED_PAGES_MAX: u64 = 256 << 10;
/// Bytes of the digest area that are made durable at once: what lies apart by more is made so one by one.
const SYNCED_BYTES: u64 = 64 << 10;

/// A page that is being repaired: the parts that have come.
#[derive(Clone, Debug, Default)]
pub(super) struct Repair {
    page: u64,
    bytes: Vec<u8>,
}

/// Where the pages of a replica lie, and their words.
#[derive(Clone, Debug)]
struct Places {
    digests: PageDigests,
    words: u64,
    data: u64,
}

impl Places {
    fn words(&self, pages: &Range<u64>) -> Output {
        let len_bytes = (pages.end - pages.start) * DIGEST_WORD_BYTES;
        Output::Read { offset: self.word(pages.start), len_bytes: len_bytes as usize }
    }

    fn bytes(&self, pages: &Range<u64>) -> Output {
        let len_bytes = (pages.end - pages.start) * PAGE_BYTES;
        Output::Read { offset: self.page(pages.start), len_bytes: len_bytes as usize }
    }

    fn word(&self, page: u64) -> u64 {
        self.words + page * DIGEST_WORD_BYTES
    }

    fn page(&self, page: u64) -> u64 {
        self.data + page * PAGE_BYTES
    }
}

/// A request about pages that is being carried out. Where an output fails some of its pages may have lost their protection, and none has got one that its bytes do not have.
#[derive(Debug)]
pub struct PageServing<'r, R = ShippedRules> {
    replica: &'r mut OpenReplica<R>,
    places: Option<Places>,
    request: PagesRequest,
    refused: Option<Refusal>,
    /// Ranges that are not looked at yet.
    left: VecDeque<Range<u64>>,
    /// All of them, whose extents are raised.
    raised: Vec<Range<u64>>,
    phase: Phase,
    /// Outputs that come before the phase goes on.
    outputs: VecDeque<Output>,
    awaited: Awaited,
    /// Words that were given and not used yet.
    given: VecDeque<u64>,
    /// What the answer lists.
    listed: Vec<Range<u64>>,
    computed: Vec<u64>,
    /// Words that were changed, as byte offsets of the file.
    changed: Vec<Range<u64>>,
    /// Pages that were whole until now by their digests, or are about to be replaced.
    verified: Vec<u64>,
}

#[derive(Debug)]
enum Phase {
    /// The next pages, if any are left.
    Next,
    /// Their words are read.
    Words(Range<u64>),
    /// Their bytes are read.
    Bytes(Range<u64>, Vec<u64>),
    /// The words of pages that seem to be damaged are read again: a reader may race a writer.
    Again(Range<u64>, Vec<u64>, Vec<u64>),
    /// The word of a page that is repaired.
    RepairedWord,
    /// Raised pages are kept in memory, one range after the other.
    Keep(VecDeque<Range<u64>>),
    /// The map of write intent is read, to raise the bits of the pages' extents.
    Map,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Nothing,
    /// What is read belongs to the phase.
    Read,
    Performed,
}

impl<R: Rules> OpenReplica<R> {
    /// Carries out a request about pages.
    pub fn serve_pages(&mut self, request: PagesRequest) -> PageServing<'_, R> {
        let area = self.header().layout.digests();
        let places = area.map(|area| Places {
            digests: PageDigests::new(self.header().pool_uuid),
            words: area.start,
            data: self.header().data_offset(),
        });
        let refused = self.refusal_of(&request, places.is_some());
        let mut serving = PageServing {
            replica: self,
            places,
            request,
            refused,
            left: VecDeque::new(),
            raised: Vec::new(),
            phase: Phase::Next,
            outputs: VecDeque::new(),
            awaited: Awaited::Nothing,
            given: VecDeque::new(),
            listed: Vec::new(),
            computed: Vec::new(),
            changed: Vec::new(),
            verified: Vec::new(),
        };
        if serving.refused.is_none() {
            serving.plan();
        }
        serving
    }

    fn refusal_of(&self, request: &PagesRequest, has_digests: bool) -> Option<Refusal> {
        let end = page_count(self.header().size_bytes);
        let is_change =
            matches!(request, PagesRequest::Raise { .. } | PagesRequest::Protect { .. } | PagesRequest::Repair { .. });
        let last = match request {
            PagesRequest::Raise { pages, .. }
            | PagesRequest::Digest { pages }
            | PagesRequest::Protect { pages, .. } => pages.iter().map(|range| range.end).max().unwrap_or(0),
            PagesRequest::Verify { pages } => pages.end,
            PagesRequest::Repair { page, .. } => page.saturating_add(1),
            PagesRequest::Unprotected { .. } => 0,
        };
        match () {
            () if !has_digests => Some(Refusal::NoDigests),
            () if is_change && self.access() == OpenFor::Read => Some(Refusal::ReadOnly),
            () if last > end => Some(Refusal::NoSuchPage { page: last - 1, count: end }),
            () => None,
        }
    }
}

impl<R: Rules> PageServing<'_, R> {
    fn plan(&mut self) {
        let end = page_count(self.replica.header().size_bytes);
        match &mut self.request {
            PagesRequest::Raise { pages, .. } => {
                self.raised.clone_from(pages);
                self.left = mem::take(pages).into();
            }
            PagesRequest::Digest { pages } => self.left = mem::take(pages).into(),
            PagesRequest::Protect { pages, words, .. } => {
                self.left = mem::take(pages).into();
                self.given = mem::take(words).into();
            }
            PagesRequest::Unprotected { pages } => {
                pages.end = pages.end.min(end).min(pages.start.saturating_add(LISTED_PAGES_MAX)).max(pages.start);
                self.left = iter::once(pages.clone()).filter(|pages| !pages.is_empty()).collect();
            }
            PagesRequest::Verify { pages } => self.left.push_back(pages.clone()),
            PagesRequest::Repair { page, offset, bytes, .. } => {
                let repair = &mut self.replica.repair;
                if *offset == 0 {
                    *repair = Repair { page: *page, bytes: Vec::new() };
                }
                if repair.page != *page || repair.bytes.len() != usize::from(*offset) {
                    self.refused = Some(Refusal::NotItsDigest { page: *page });
                    return;
                }
                repair.bytes.append(bytes);
                self.phase = Phase::Done;
                if repair.bytes.len() as u64 >= PAGE_BYTES {
                    self.phase = Phase::RepairedWord;
                }
            }
        }
    }

    fn places(&self) -> &Places {
        self.places.as_ref().expect("a replica without digests is refused")
    }

    /// The pages that are looked at next.
    fn next_pages(&mut self) -> Option<Range<u64>> {
        let chunk =
            if matches!(self.request, PagesRequest::Unprotected { .. }) { LISTED_PAGES_MAX } else { CHUNK_PAGES };
        let first = self.left.front_mut()?;
        let pages = first.start..first.end.min(first.start + chunk);
        first.start = pages.end;
        if first.is_empty() {
            self.left.pop_front();
        }
        Some(pages)
    }

    /// The pages that were whole until they were raised: of others nothing is known that they hold already.
    fn verified_pages(&self) -> VecDeque<Range<u64>> {
        let mut ranges: VecDeque<Range<u64>> = VecDeque::new();
        for page in self.verified.iter().copied() {
            match ranges.back_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => ranges.push_back(page..page + 1),
            }
        }
        ranges
    }

    fn list(&mut self, page: u64) {
        match self.listed.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => self.listed.push(page..page + 1),
        }
    }

    fn set_word(&mut self, page: u64, word: u64) {
        let offset = self.places().word(page);
        self.outputs.push_back(Output::StoreWord { offset, word });
        match self.changed.last_mut() {
            Some(last) if (last.end..last.start + SYNCED_BYTES).contains(&offset) => {
                last.end = offset + DIGEST_WORD_BYTES;
            }
            _ => self.changed.push(offset..offset + DIGEST_WORD_BYTES),
        }
    }

    /// The words of a chunk are there.
    fn with_words(&mut self, pages: Range<u64>, words: Vec<u64>) -> Phase {
        let digests = self.places().digests;
        let states = || pages.clone().zip(&words).map(|(page, word)| (page, digests.decode(page, *word)));
        match &self.request {
            PagesRequest::Unprotected { .. } => {
                let unprotected: Vec<_> =
                    states().filter(|(_, word)| *word == PageWord::Unprotected).map(|(page, _)| page).collect();
                for page in unprotected {
                    self.list(page);
                }
                Phase::Next
            }
            PagesRequest::Raise { is_forced: true, .. } => {
                let protected: Vec<_> =
                    states().filter(|(_, word)| *word != PageWord::Unprotected).map(|(page, _)| page).collect();
                for page in protected {
                    self.set_word(page, digests.unprotected(page));
                    self.verified.push(page);
                }
                Phase::Next
            }
            PagesRequest::Raise { .. } if states().all(|(_, word)| word == PageWord::Unprotected) => Phase::Next,
            _ => Phase::Bytes(pages, words),
        }
    }

    /// The bytes of a chunk are there, too.
    fn with_bytes(&mut self, pages: Range<u64>, words: Vec<u64>, bytes: &[u8]) -> Phase {
        let digests = self.places().digests;
        let found: Vec<u64> = pages
            .clone()
            .zip(bytes.chunks_exact(PAGE_BYTES as usize))
            .map(|(page, bytes)| digests.protected(page, digests.digest(page, bytes)))
            .collect();
        match &self.request {
            PagesRequest::Digest { .. } => {
                self.computed.extend(found);
                Phase::Next
            }
            PagesRequest::Protect { is_alone, .. } => {
                let is_alone = *is_alone;
                for ((page, word), found) in pages.zip(words).zip(found) {
                    let given = self.given.pop_front();
                    let is_kept = self.replica.kept_pages.contains(&page);
                    match digests.decode(page, word) {
                        PageWord::Unprotected if is_alone && !is_kept => self.list(page),
                        // A page that is protected already keeps its word, and one that is damaged is not blessed.
                        PageWord::Unprotected if given == Some(found) => self.set_word(page, found),
                        _ if word == found && given == Some(found) => {}
                        _ => self.list(page),
                    }
                    if self.replica.kept_pages.remove(&page) {
                        let offset = self.places().page(page);
                        self.outputs.push_back(Output::LetGo(offset..offset + PAGE_BYTES));
                    }
                }
                Phase::Next
            }
            _ => {
                let is_damaged = |page, word, found| match digests.decode(page, word) {
                    PageWord::Unprotected => false,
                    PageWord::Protected(_) | PageWord::Damaged => word != found,
                };
                let suspects = pages.clone().zip(&words).zip(&found);
                if suspects.clone().any(|((page, word), found)| is_damaged(page, *word, *found)) {
                    return Phase::Again(pages, words, found);
                }
                self.unprotect(&pages, &words);
                Phase::Next
            }
        }
    }

    /// The words of a chunk with pages that seem to be damaged, read a second time.
    fn with_words_again(&mut self, pages: &Range<u64>, words: &[u64], found: &[u64], again: &[u64]) {
        let digests = self.places().digests;
        let mut whole = Vec::new();
        for (at, page) in pages.clone().enumerate() {
            let is_protected = digests.decode(page, words[at]) != PageWord::Unprotected;
            if is_protected && words[at] != found[at] && words[at] == again[at] {
                self.list(page);
                whole.push(digests.unprotected(page));
            } else {
                whole.push(words[at]);
            }
        }
        // What is damaged is left as if it had no protection to take back.
        self.unprotect(pages, &whole);
    }

    /// Takes the protection of pages back, where that is what was asked.
    fn unprotect(&mut self, pages: &Range<u64>, words: &[u64]) {
        if !matches!(self.request, PagesRequest::Raise { .. }) {
            return;
        }
        let digests = self.places().digests;
        for (page, word) in pages.clone().zip(words) {
            if digests.decode(page, *word) != PageWord::Unprotected {
                self.set_word(page, digests.unprotected(page));
                self.verified.push(page);
            }
        }
    }

    /// All parts of a page have come, and its word was read.
    fn repair(&mut self, word: u64) -> Phase {
        let PagesRequest::Repair { page, word: given, .. } = self.request else {
            panic!("only a repair reads one word")
        };
        let (digests, bytes) = (self.places().digests, mem::take(&mut self.replica.repair.bytes));
        let kept = digests.decode(page, word);
        let wanted = if kept == PageWord::Damaged { given } else { word };
        let is_whole = bytes.len() as u64 == PAGE_BYTES
            && kept != PageWord::Unprotected
            && digests.protected(page, digests.digest(page, &bytes)) == wanted;
        if !is_whole {
            self.refused = Some(Refusal::NotItsDigest { page });
            return Phase::Done;
        }
        let offset = self.places().page(page);
        self.outputs.push_back(Output::Store { offset, bytes });
        self.outputs.push_back(Output::Sync(offset..offset + PAGE_BYTES));
        if kept == PageWord::Damaged {
            self.set_word(page, wanted);
            self.sync_words();
        }
        Phase::Done
    }

    fn sync_words(&mut self) {
        let changed = mem::take(&mut self.changed);
        let is_durable = !matches!(self.request, PagesRequest::Protect { .. });
        // A word that a crash takes back leaves its page unprotected.
        self.outputs.extend(
            changed.into_iter().map(|range| if is_durable { Output::Sync(range) } else { Output::WriteBack(range) }),
        );
    }

    /// The outputs that raise the bits of all extents of the pages that were asked for.
    fn raise_extents(&mut self, map: &[u8]) {
        let layout = IntentLayout::new(self.replica.header().size_bytes);
        let mut bits = vec![0_u32; layout.word_count()];
        for range in &self.raised {
            let extents =
                range.start * PAGE_BYTES / layout.extent_bytes()..=(range.end * PAGE_BYTES - 1) / layout.extent_bytes();
            extents.for_each(|extent| bits[(extent / WORD_EXTENTS) as usize] |= 1 << (extent % WORD_EXTENTS));
        }
        let format = self.replica.header().format;
        self.outputs.extend(Change::Raise.outputs(format, map, 0, &bits));
        self.replica.keep_intent();
    }

    fn reply(&mut self) -> PagesReply {
        let mut listed = mem::take(&mut self.listed);
        let cut = listed.get(PAGE_RANGES_MAX).map(|range| range.start);
        listed.truncate(PAGE_RANGES_MAX);
        match &self.request {
            PagesRequest::Raise { is_forced, .. } => {
                let room = if *is_forced { 0 } else { PAGE_RANGES_MAX - listed.len() };
                PagesReply::Raised { damaged: listed, verified: self.verified_pages().into_iter().take(room).collect() }
            }
            PagesRequest::Digest { .. } => PagesReply::Digests { words: mem::take(&mut self.computed) },
            PagesRequest::Protect { .. } => PagesReply::Protected { others: listed },
            PagesRequest::Unprotected { pages } => {
                PagesReply::Unprotected { pages: listed, end: cut.unwrap_or(pages.end) }
            }
            PagesRequest::Verify { pages } => PagesReply::Verified { damaged: listed, end: cut.unwrap_or(pages.end) },
            PagesRequest::Repair { .. } => PagesReply::Repaired,
        }
    }
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    words_in(bytes).collect()
}

impl<R: Rules> Machine for PageServing<'_, R> {
    type Output = Output;
    type Input = Vec<u8>;
    type Outcome = Reply;

    fn step(&mut self) -> Step<Output, Reply> {
        assert!(
            self.awaited == Awaited::Nothing,
            "an output that failed or is being performed is not followed by others"
        );
        loop {
            if let Some(refused) = self.refused.take() {
                return Step::Done(Err(refused));
            }
            if let Some(output) = self.outputs.pop_front() {
                self.awaited = Awaited::Performed;
                return Step::Perform(output);
            }
            let read = match &self.phase {
                Phase::Next => {
                    let Some(pages) = self.next_pages() else {
                        self.sync_words();
                        self.phase = match self.request {
                            PagesRequest::Raise { is_alone: true, .. } => Phase::Keep(self.verified_pages()),
                            PagesRequest::Raise { .. } => Phase::Map,
                            _ => Phase::Done,
                        };
                        continue;
                    };
                    let read = self.places().words(&pages);
                    self.phase = Phase::Words(pages);
                    read
                }
                Phase::Words(pages) | Phase::Again(pages, ..) => self.places().words(pages),
                Phase::Bytes(pages, _) => self.places().bytes(pages),
                Phase::RepairedWord => self.places().words(&(self.replica.repair.page..self.replica.repair.page + 1)),
                Phase::Keep(left) => {
                    let Some(pages) = left.front() else {
                        self.phase = Phase::Map;
                        continue;
                    };
                    Output::KeepResident(self.places().page(pages.start)..self.places().page(pages.end))
                }
                Phase::Map => read_map(self.replica.header()),
                Phase::Done => return Step::Done(Ok(Reply::Pages(self.reply()))),
            };
            self.awaited = Awaited::Read;
            return Step::Perform(read);
        }
    }

    fn performed(&mut self, read: Vec<u8>) {
        if mem::replace(&mut self.awaited, Awaited::Nothing) == Awaited::Performed {
            return;
        }
        self.phase = match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Words(pages) => self.with_words(pages, words_of(&read)),
            Phase::Bytes(pages, words) => self.with_bytes(pages, words, &read),
            Phase::Again(pages, words, found) => {
                self.with_words_again(&pages, &words, &found, &words_of(&read));
                Phase::Next
            }
            Phase::RepairedWord => self.repair(words_of(&read)[0]),
            Phase::Keep(mut left) => {
                if let Some(pages) = left.pop_front().filter(|_| !read.is_empty()) {
                    self.replica.kept_pages.extend(pages);
                }
                Phase::Keep(left)
            }
            Phase::Map => {
                self.raise_extents(&read);
                Phase::Done
            }
            Phase::Next | Phase::Done => panic!("the driver performed what it was not told"),
        };
    }
}
