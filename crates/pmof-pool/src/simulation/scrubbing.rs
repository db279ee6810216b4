//! Bytes that a medium changes by itself, and programs that scrub the pool.

use std::rc::Rc;

use pmof_replication::comparing::{self, Findings};

use super::{
    areas::SIZE_BYTES,
    faults::Fault,
    plan::{PAGES, WORDS},
    session::Session,
    tasks::sleep,
    truth::rot,
    world::World,
};
use crate::pages::PAGE_BYTES;

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
        let mut found = Findings::default();
        comparing::scrub_window(self, &(0..SIZE_BYTES), &mut found).await.ok()?;
        found.undecided.iter().for_each(|_| self.world.borrow_mut().count(Fault::ScrubUndecided));
        Some(found.undecided.iter().map(|page| (page.start / PAGE_BYTES) as usize).collect())
    }
}
