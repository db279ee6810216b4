//! Bytes that a medium changes by itself, and scrubbing, as `pool/scrub.rs` has it, with its own decisions.

use std::{ops::Range, rc::Rc};

use pmof_pool_set::{AccessError, Compared, Contents, Digest, PendingDigests};

use super::{
    areas::{SIZE_BYTES, bytes_of_words},
    faults::Fault,
    plan::{Control, PAGES, WORDS},
    session::{Member, Session, answer, bytes_of, fail, read, send},
    target::{Answer, Message},
    tasks::sleep,
    truth::{Page, Pages, is_rotten, rot},
    world::World,
};
use crate::{
    pages::PAGE_BYTES,
    scrub::{Verdict, judge},
};

/// What a replica was found to hold. A page's words are its digest.
struct Held<'p>(&'p Pages);

impl Contents for Held<'_> {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(vec![range])
    }

    fn start_digests(&mut self, _: Range<u64>, _: u64) -> PendingDigests<'_> {
        let digest = |words: &Page| {
            let mut digest = Digest::default();
            let bytes = bytes_of_words(words);
            digest[..bytes.len()].copy_from_slice(&bytes);
            digest
        };
        let digests = self.0.iter().map(digest).collect();
        Box::new(move || Ok(digests))
    }

    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), AccessError> {
        Err("digests are enough".into())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), AccessError> {
        Err("nothing is written here".into())
    }

    fn persist(&mut self, _: Range<u64>) -> Result<(), AccessError> {
        Ok(())
    }
}

pub(super) fn compared(held: &[Pages]) -> Compared {
    let mut replicas: Vec<_> = held.iter().map(Held).collect();
    let mut replicas: Vec<_> = replicas.iter_mut().map(|replica| replica as &mut dyn Contents).collect();
    Compared::of_range(&mut replicas, &(0..SIZE_BYTES), PAGE_BYTES)
}

/// What more than half of the replicas hold of a page, counted once more.
fn held_by_most(held: &[Pages], page: usize) -> Option<Page> {
    let copies = |words: &Page| held.iter().filter(|pages| pages[page] == *words).count();
    held.iter().map(|pages| pages[page]).find(|words| 2 * copies(words) > held.len())
}

impl World {
    /// A medium changes bits of a word, of which no write, no flush and no loss of power knows.
    pub(super) fn rot(&mut self, number: usize) {
        let (page, word) = (self.random.below(PAGES), self.random.below(WORDS));
        self.rotten += 1;
        let flipped = rot(self.rotten);
        let target = &mut self.targets[number];
        if target.is_there && !target.is_witness && target.areas.is_none() {
            target.durable[page][word] ^= flipped;
            target.cache[page][word] ^= flipped;
            self.count(Fault::ByteRotten);
            self.note(|| format!("a word of page {page} rots on t{number}"));
        }
    }
}

impl Session {
    /// A byte rots of one of the members in sync, where media do that.
    pub(super) fn rot_somewhere(&self) {
        let targets = self.targets_in_use();
        let world = &mut *self.world.borrow_mut();
        if world.plan.has_rot && !targets.is_empty() {
            let target = targets[world.random.below(targets.len())];
            world.rot(target);
        }
    }

    /// A program that scrubs the pool now and then.
    pub(super) async fn scrub_on(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let pause = 5 + self.world.borrow_mut().random.below(80);
            sleep(&self.world, pause).await;
            let _ = self.scrub().await;
        }
    }

    /// As `Pool::scrub`. Returns the pages that are left as they are; `None` where a member was lost meanwhile.
    pub(super) async fn scrub(&self) -> Option<Vec<usize>> {
        let (in_use, held) = self.read_in_use().await?;
        let mut undecided = Vec::new();
        if in_use.len() > 1 {
            for page in compared(&held).differing().collect::<Vec<_>>() {
                self.settle_page(page, &mut undecided).await?;
            }
        }
        Some(undecided)
    }

    /// As `members_in_use` and `compare` there.
    async fn read_in_use(&self) -> Option<(Vec<Rc<Member>>, Vec<Pages>)> {
        let members = self.open.borrow().members.clone();
        let in_use: Vec<_> = members.into_iter().filter(|member| member.state().is_in_sync()).collect();
        let mut held = Vec::new();
        for member in &in_use {
            held.push(read(&self.world, member).await?);
        }
        Some((in_use, held))
    }

    /// As `Pool::settle` there.
    async fn settle_page(&self, page: usize, undecided: &mut Vec<usize>) -> Option<()> {
        let _hold = self.hold_all().await?;
        let (in_use, held) = self.read_in_use().await?;
        let compared = compared(&held);
        if !compared.differing().any(|differing| differing == page) {
            return Some(());
        }
        let verdict = judge(&compared, page);
        let repaired = match &verdict {
            Verdict::Repair { right, wrong } if self.world.borrow().control == Some(Control::RottenTaken) => {
                Some((wrong[0], vec![*right]))
            }
            Verdict::Repair { right, wrong } => Some((*right, wrong.clone())),
            Verdict::Undecided => None,
        };
        let most = held_by_most(&held, page);
        if repaired.as_ref().map(|(right, _)| held[*right][page]) != most {
            let text = format!("page {page} is held as {held:?}, and scrubbing decides {repaired:?}");
            self.world.borrow_mut().truth.violate(|| text);
        }
        let Some((right, wrong)) = repaired else {
            self.world.borrow_mut().count(Fault::ScrubUndecided);
            undecided.push(page);
            return Some(());
        };
        let words = read(&self.world, &in_use[right]).await?[page];
        self.open.borrow().written.mark(bytes_of(page));
        for position in &wrong {
            send(&self.world, &in_use[*position], Message::Write { page, words });
        }
        for position in wrong {
            let member = &in_use[position];
            let question = send(&self.world, member, Message::Flush);
            if !matches!(answer(&self.world, member, question).await, Some(Answer::Flushed)) {
                fail(&self.world, member);
                return None;
            }
            if is_rotten(&held[position][page]) && !is_rotten(&words) {
                self.world.borrow_mut().count(Fault::RotRepaired);
            }
        }
        Some(())
    }
}
