//! What simulated members hold, for the engine that compares and copies it.

use std::{ops::Range, rc::Rc};

use pmof_replication::comparing::{self, Compared, Contents, Equalizing, Scrubbed};

use super::{
    areas::SIZE_BYTES,
    faults::Fault,
    judging::CheckedRules,
    plan::PAGES,
    session::{Member, Open, Session, answer, ask, bytes_of, fail, read, send},
    target::{Answer, Message},
    tasks::{Guard, Shared},
    truth::{Page, Pages, is_rotten},
};
use crate::{member_state::MemberState, pages::PAGE_BYTES};

fn pages_in(range: &Range<u64>) -> Range<usize> {
    (range.start / PAGE_BYTES) as usize..(range.end.div_ceil(PAGE_BYTES) as usize).min(PAGES)
}

/// What the pages of a range's blocks hold: these are their own digests.
fn digests(held: &Pages, range: &Range<u64>, block_bytes: u64) -> Vec<Vec<Page>> {
    let blocks = pages_in(range).step_by((block_bytes / PAGE_BYTES) as usize);
    blocks
        .map(|page| held[page..pages_in(&(0..range.end.min(bytes_of(page).start + block_bytes))).end].to_vec())
        .collect()
}

/// What these members hold; `None` of one that is lost.
async fn held(world: &Shared, of: &[Rc<Member>]) -> Vec<Option<Pages>> {
    let asked: Vec<_> = of.iter().map(|member| send(world, member, Message::Read)).collect();
    let mut held = Vec::new();
    for (member, question) in of.iter().zip(asked) {
        held.push(match answer(world, member, question).await {
            Some(Answer::Pages(pages)) => Some(pages),
            _ => None,
        });
    }
    held
}

impl Contents for Open {
    type Member = Rc<Member>;
    type Digest = Vec<Page>;
    type Failure = ();
    type Rules = CheckedRules;

    fn rules(&self) -> &CheckedRules {
        &self.rules
    }

    fn members(&self) -> &[Rc<Member>] {
        &self.members
    }

    fn state(&self, member: &Rc<Member>) -> MemberState {
        member.state()
    }

    fn is_same(&self, one: &Rc<Member>, other: &Rc<Member>) -> bool {
        Rc::ptr_eq(one, other)
    }

    async fn digests(
        &self,
        of: &[Rc<Member>],
        range: &Range<u64>,
        block_bytes: u64,
    ) -> Result<Compared<Vec<Page>>, ()> {
        let held = held(&self.rules.world, of).await;
        if held.iter().any(Option::is_none) {
            return Err(());
        }
        let held = held.iter().map(|held| held.as_ref().map(|held| digests(held, range, block_bytes)));
        Ok(Compared::new(range.clone(), block_bytes, held.collect()))
    }

    async fn copy(&self, from: &Rc<Member>, ranges: &[Range<u64>], to: &Rc<Member>) -> bool {
        for page in ranges.iter().flat_map(pages_in) {
            let Some(held) = read(&self.rules.world, from).await else { return false };
            send(&self.rules.world, to, Message::Write { page, words: held[page] });
        }
        true
    }

    async fn repair(&self, from: &Rc<Member>, range: &Range<u64>, to: &[Rc<Member>]) -> Result<bool, ()> {
        let world = &self.rules.world;
        let held = read(world, from).await.ok_or(())?;
        self.written.mark(range.clone());
        for page in pages_in(range) {
            for member in to {
                let is_repaired =
                    is_rotten(&world.borrow().targets[member.target].durable[page]) && !is_rotten(&held[page]);
                if is_repaired {
                    world.borrow_mut().count(Fault::RotRepaired);
                }
                send(world, member, Message::Write { page, words: held[page] });
            }
        }
        Ok(true)
    }

    async fn data_ranges(&self, _: &Rc<Member>) -> Option<Vec<Range<u64>>> {
        Some(std::iter::once(0..SIZE_BYTES).collect())
    }

    async fn flush(&self, member: &Rc<Member>) -> Result<(), ()> {
        if matches!(ask(&self.rules.world, member, Message::Flush).await, Some(Answer::Flushed)) {
            return Ok(());
        }
        fail(&self.rules.world, member);
        Err(())
    }
}

/// The pool while nothing is posted.
pub(super) struct Held<'h> {
    _guard: Guard<'h>,
    open: Rc<Open>,
}

impl std::ops::Deref for Held<'_> {
    type Target = Open;

    fn deref(&self) -> &Open {
        &self.open
    }
}

impl Scrubbed for Session {
    type Contents = Open;
    type Open = Rc<Open>;
    type Held<'h> = Held<'h>;

    fn contents(&self) -> Result<Rc<Open>, ()> {
        Ok(Rc::clone(&self.open.borrow()))
    }

    async fn hold_all(&self) -> Result<Held<'_>, ()> {
        self.held().await.ok_or(())
    }
}

impl Session {
    /// Makes the members in sync equal. `source`: the position of the one that the others are made equal to, where no content is on more than half of them.
    pub(super) async fn equalize(&self, source: usize) -> Option<()> {
        let open = Rc::clone(&self.open.borrow());
        let members: Vec<_> = comparing::in_sync(&*open).cloned().collect();
        let source = members.iter().position(|member| Rc::ptr_eq(member, &open.members[source]))?;
        let mut opened = Opened { session: self, open, members, source, is_compared: false };
        comparing::equalize(&mut opened).await.ok().map(drop)
    }

    /// `None`: the pool is being closed.
    pub(super) async fn held(&self) -> Option<Held<'_>> {
        let guard = Session::hold_all(self).await?;
        Some(Held { _guard: guard, open: Rc::clone(&self.open.borrow()) })
    }
}

/// The members of a pool that is being opened.
struct Opened<'s> {
    session: &'s Session,
    open: Rc<Open>,
    members: Vec<Rc<Member>>,
    source: usize,
    is_compared: bool,
}

impl Equalizing for Opened<'_> {
    type Digest = Vec<Page>;
    type Failure = ();

    fn source(&self) -> usize {
        self.source
    }

    fn has_epochs(&self) -> bool {
        true
    }

    async fn compare_next(&mut self) -> Result<Option<Compared<Vec<Page>>>, ()> {
        if std::mem::replace(&mut self.is_compared, true) {
            return Ok(None);
        }
        let held = held(&self.session.world, &self.members).await;
        if held[self.source].is_none() {
            return Err(());
        }
        let range = 0..SIZE_BYTES;
        let held = held.iter().map(|held| held.as_ref().map(|held| digests(held, &range, PAGE_BYTES)));
        Ok(Some(Compared::new(range.clone(), PAGE_BYTES, held.collect())))
    }

    async fn make_equal(&mut self, from: usize, block: &Range<u64>, to: &[usize]) -> Result<u64, ()> {
        let to: Vec<_> = to.iter().map(|member| Rc::clone(&self.members[*member])).collect();
        self.open.repair(&self.members[from], block, &to).await?;
        Ok(PAGE_BYTES * to.len() as u64)
    }

    async fn make_durable(&mut self) {
        self.session.flush_everything().await;
    }

    async fn note_equal(&mut self) -> Result<(), ()> {
        pmof_replication::epochs::tell_mark(self.session).await;
        Ok(())
    }
}
