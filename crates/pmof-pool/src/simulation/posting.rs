//! Writes, persists and the map of written pages, as the engine has them, on simulated targets.

use std::{cell::RefCell, rc::Rc, sync::Arc, task::Poll, time::Duration};

use pmof_replication::posting::{AckTerms, Forgetting, Judge, Persist, Posting, finish_persist, patience};

use super::{
    areas::SIZE_BYTES,
    comparing::Held,
    faults::Fault,
    plan::{Control, WORDS},
    session::{Member, Open, Session, answer, positions, send},
    target::{Answer, Message},
    tasks::sleep,
    terms::{Asked, AskedAll, Awaited, Remaining},
    truth::sound_page,
};
use crate::{
    member_state::{Event, MemberState},
    older_pages::OlderPages,
    pages::PageMap,
    view::Positions,
};

impl Posting<Message> for Session {
    type Member = Rc<Member>;

    fn slow_after(&self) -> Option<Duration> {
        self.terms.slow_after
    }

    fn state(&self, member: &Rc<Member>) -> MemberState {
        member.state()
    }

    fn write(&self, member: &Rc<Member>, write: &Message) {
        if !member.state().is_witness() {
            send(&self.world, member, write.clone());
        }
    }

    fn write_within(&self, member: &Rc<Member>, write: &Message, _: Duration) -> bool {
        let has_room = {
            let mut world = self.world.borrow_mut();
            !member.state().is_connected()
                || member.state().is_witness()
                || world.is_faultless
                || !world.random.once_in(20)
        };
        if has_room {
            self.write(member, write);
        } else {
            self.world.borrow_mut().count(Fault::NoRoom);
        }
        has_room
    }

    fn leave_behind(&self, member: &Rc<Member>) {
        member.take(Event::LeftBehind);
    }

    fn leave_in_sync_behind(&self, position: usize) -> bool {
        !self.view_lock.is_held() && patience::leave_behind(&Remaining::without_room(self), 1 << position)
    }
}

/// What a persist waits for: flushes of the members of `open`, behind a write, or of all that was posted.
struct Persisting<'s> {
    session: &'s Session,
    open: Rc<Open>,
    write: Option<(usize, u64)>,
    terms: AckTerms,
    reached: RefCell<Vec<Rc<Member>>>,
}

impl Session {
    /// Has the members of `open` in sync flush what was posted, a write to this page of this value, or all that was. Whether that is acknowledged.
    pub(super) async fn finish_persist(&self, open: Rc<Open>, write: Option<(usize, u64)>) -> bool {
        let in_sync = open.members.iter().enumerate().filter(|(_, member)| member.state().is_in_sync());
        let flush = |(position, member)| (position, Rc::clone(member), send(&self.world, member, Message::Flush));
        let mut flushing = AskedAll::now(self, in_sync.map(flush));
        let terms = self.patient_terms();
        let terms = match self.world.borrow().control {
            Some(Control::TermsNotChecked) => AckTerms { least: 1, domains: 1, ..terms },
            Some(Control::DomainsNotCounted) => AckTerms { domains: 1, ..terms },
            _ => terms,
        };
        let open = Rc::clone(&open);
        let persisting = Persisting { session: self, open, write, terms, reached: RefCell::default() };
        finish_persist(&persisting, &mut flushing).await
    }
}

impl Persisting<'_> {
    fn is_early(&self) -> bool {
        match self.session.world.borrow().control.filter(|_| self.write.is_some()) {
            Some(Control::AcknowledgedEarly) => true,
            Some(Control::SlowAcknowledgedEarly) => self.open.members.iter().any(|member| member.state().is_slow()),
            _ => false,
        }
    }
}

impl Persist for Persisting<'_> {
    type Flushing = AskedAll;
    type Waiting<'w>
        = Awaited<'w>
    where
        Self: 'w;
    type Reached = Vec<Rc<Member>>;
    type Outcome = bool;

    fn terms(&self) -> &AckTerms {
        &self.terms
    }

    fn waiting<'w>(&'w self, flushing: &'w mut AskedAll) -> Awaited<'w> {
        Awaited::new(self.session, flushing, false)
    }

    async fn finish_all(&self, flushing: &mut AskedAll) -> Vec<Rc<Member>> {
        let is_late = |asked: &Asked| asked.answer.is_pending() && asked.member.state().is_in_sync();
        if self.session.terms.slow_after.is_some() && flushing.all.iter().any(is_late) {
            self.session.world.borrow_mut().count(Fault::SilentAwaited);
        }
        flushing.finish(self.session, |asked| asked.member.state().is_slow()).await;
        let has_flushed = |asked: &&Asked| matches!(asked.answer, Poll::Ready(Some(Answer::Flushed)));
        let reached: Vec<_> = flushing.all.iter().filter(has_flushed).map(|asked| Rc::clone(&asked.member)).collect();
        self.reached.borrow_mut().clone_from(&reached);
        reached
    }

    fn stop_where_fenced(&self) {}

    async fn acknowledge(&self) -> bool {
        let is_early = self.is_early();
        if is_early {
            self.receipt(self.reached.take(), &Judge { terms: &self.terms, is_acknowledged: true });
        }
        self.session.acknowledge(&self.open.members).await || is_early
    }

    fn receipt(&self, reached: Vec<Rc<Member>>, judge: &Judge<'_>) -> bool {
        let (session, terms) = (self.session, &self.session.terms);
        let receipt: Vec<_> = reached.iter().filter(|member| member.state().is_in_sync()).collect();
        let counted = self.open.members.iter().filter(|member| member.state().is_data_member()).count();
        let is_lacking = receipt.len() < counted;
        let epochs = |is_acknowledged| session.epochs.borrow().is_enough(is_lacking, is_acknowledged);
        let is_enough = judge.are_enough(receipt.iter().map(|member| session.domain(member)), epochs);
        let world = &mut *session.world.borrow_mut();
        let targets = receipt.iter().map(|member| member.target);
        if !is_enough {
            world.count(Fault::NotAcknowledged);
            if !receipt.is_empty() && !world.are_enough(terms, targets) {
                world.count(Fault::TermsNotMet);
            }
            return false;
        }
        let Some((page, value)) = self.write else { return true };
        if is_lacking {
            world.count(Fault::AcknowledgedDegraded);
        }
        let has_it = |member: &&&Rc<Member>| {
            let was_put_back = member.connection.is_some_and(|connection| world.was_put_back(connection));
            was_put_back || sound_page(&world.targets[member.target].durable[page]) == [value; WORDS]
        };
        let durable: Vec<_> = receipt.iter().filter(has_it).map(|member| member.target).collect();
        let (is_named, is_met) = (durable.len() == receipt.len(), world.are_enough(terms, durable.iter().copied()));
        if world.truth.is_newest(session.number) {
            let named: Vec<_> = targets.collect();
            if !is_named {
                world.truth.violate(|| format!("the receipt of {value} names {named:?}, of which {durable:?} have it"));
            }
            if !is_met {
                world.truth.violate(|| format!("{value} is acknowledged by {terms:?}, and {durable:?} have it"));
            }
        }
        let writer = session.writer;
        world.note(|| format!("w{writer} page {page} = {value} is acknowledged"));
        world.truth.acknowledge(session.number, page, value);
        true
    }
}

impl Forgetting for Session {
    type Contents = Open;
    type Open = Rc<Open>;
    type Held<'h> = Held<'h>;
    type Flushing = Option<u64>;

    fn open(&self) -> Option<Rc<Open>> {
        Some(Rc::clone(&self.open.borrow()))
    }

    fn written(&self, open: &Open) -> Option<Arc<PageMap>> {
        Some(Arc::clone(&open.written))
    }

    fn member_count(&self, _: &Open) -> usize {
        self.epochs.borrow().data_count(0)
    }

    fn is_catching_up(&self, open: &Open) -> bool {
        !open.catching_up.is_empty()
    }

    async fn try_hold(&self) -> Option<Held<'_>> {
        let pause = self.world.borrow_mut().random.below(12);
        sleep(&self.world, pause).await;
        self.held().await
    }

    /// A member may be lost before it has flushed what was set aside.
    async fn begin_map<'h>(&'h self, held: Held<'h>) -> Rc<Open> {
        let fresh = Rc::new(Open { written: Arc::new(PageMap::new(SIZE_BYTES)), ..Open::clone(&held) });
        *self.open.borrow_mut() = Rc::clone(&fresh);
        drop(held);
        let is_lost = {
            let mut world = self.world.borrow_mut();
            !world.is_at_rest && world.random.once_in(4)
        };
        if is_lost {
            self.lose_one();
            let pause = self.world.borrow_mut().random.below(4);
            sleep(&self.world, pause).await;
        }
        let in_use = positions(&fresh.members, MemberState::is_in_sync).count_ones() as usize;
        if in_use < self.epochs.borrow().data_count(0) {
            self.world.borrow_mut().count(Fault::LostBeforeForgotten);
        }
        fresh
    }

    fn with_older<T>(&self, look: impl FnOnce(&mut OlderPages) -> T) -> T {
        look(&mut self.older.borrow_mut())
    }

    fn start_flush(&self, member: &Rc<Member>) -> Option<u64> {
        send(&self.world, member, Message::Flush)
    }

    async fn finish_flush(&self, member: &Rc<Member>, question: Option<u64>) -> bool {
        matches!(answer(&self.world, member, question).await, Some(Answer::Flushed))
    }

    fn counted_as_flushed(&self, flushed: Positions, open: &Open) -> Positions {
        match self.world.borrow().control {
            Some(Control::LostForgotten) => flushed | !positions(&open.members, MemberState::is_in_sync),
            _ => flushed,
        }
    }
}
