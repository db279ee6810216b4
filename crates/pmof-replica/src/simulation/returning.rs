//! How members come back to an open pool, as `pool/returns.rs` has it, with its own decisions.

use std::{rc::Rc, sync::Arc};

use pmof_control::{Claim, Reply, Request, Role, Roster, RosterMember};
use pmof_replication::{
    epochs::{self, Joining},
    member_state::{Event, MemberState},
};

use super::{
    faults::Fault,
    plan::{Control, PAGES},
    scrubbing::compared,
    session::{Member, Open, Session, answer, ask, bytes_of, fail, positions, read, send, tell},
    target::{Answer, Message, Replica},
    tasks::sleep,
};
use crate::{
    catch_up::{CatchUp, Limit},
    lineage::{Apart, Found, of_returning},
    pages::{PAGE_BYTES, PageMap},
    scrub::is_lacking,
};

const SIZE_BYTES: u64 = PAGES as u64 * PAGE_BYTES;

const WINDOW: Limit = Limit { ranges: 2, bytes: 2 * PAGE_BYTES };

/// As `epochs::not_joined`.
fn not_joined(state: MemberState) -> Halt {
    if state.is_slow() { Halt::Slow } else { Halt::Later }
}

/// Why a member did not come back this time.
pub(super) enum Halt {
    Ended,
    Later,
    Slow,
    Rejected,
}

impl Session {
    /// Watches over the pool until it is closed.
    pub(super) async fn watch(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let members = self.open.borrow().members.clone();
            for (position, member) in members.iter().enumerate() {
                let is_witness_copied_to = self.world.borrow().control == Some(Control::WitnessCaughtUp);
                let is_well = member.state().is_well() && !(is_witness_copied_to && member.state().is_witness());
                let is_out = !is_well && !member.state().is_removed();
                if is_out && !std::mem::replace(&mut self.attended.borrow_mut()[position], true) {
                    self.tasks.start(self.writer, Rc::clone(&self).bring_back(position));
                }
            }
            self.forget_written().await;
            let pause = 4 + self.world.borrow_mut().random.below(8);
            sleep(&self.world, pause).await;
        }
    }

    /// Forgets pages that were written and that all members have.
    async fn forget_written(&self) {
        let (members, written) = {
            let open = self.open.borrow();
            (open.members.clone(), Arc::clone(&open.written))
        };
        let in_use_before = members.iter().filter(|member| member.state().is_in_sync()).count();
        if written.is_empty() || in_use_before != self.data_count() {
            return;
        }
        let pause = self.world.borrow_mut().random.below(12);
        sleep(&self.world, pause).await;
        let open = {
            let Some(_hold) = self.hold_all().await else { return };
            let fresh = Open { written: Arc::new(PageMap::new(SIZE_BYTES)), ..Open::clone(&self.open.borrow()) };
            let members = positions(&fresh.members, MemberState::has_data);
            self.older.borrow_mut().set_aside(written, members);
            let fresh = Rc::new(fresh);
            *self.open.borrow_mut() = Rc::clone(&fresh);
            fresh
        };
        let in_use = open.members.iter().enumerate().filter(|(_, member)| member.state().is_in_sync());
        let asked: Vec<_> =
            in_use.map(|(at, member)| (at, member, send(&self.world, member, Message::Flush))).collect();
        if asked.len() < in_use_before {
            self.world.borrow_mut().count(Fault::LostBeforeForgotten);
        }
        let mut flushed = match self.world.borrow().control {
            Some(Control::LostForgotten) => !positions(&open.members, MemberState::is_in_sync),
            _ => 0,
        };
        for (position, member, question) in asked {
            if matches!(answer(&self.world, member, question).await, Some(Answer::Flushed)) {
                flushed |= 1 << position;
            }
        }
        self.older.borrow_mut().note_flushed(flushed);
    }

    /// As `State::data_count`.
    fn data_count(&self) -> usize {
        let (view, membership) = (self.view(), self.membership());
        let is_witness = |member: &&RosterMember| member.role == Role::Witness;
        let in_roster = |roster: &Roster| roster.settled(|_| false).members.iter().filter(is_witness).count();
        view.counts().0.saturating_sub(membership.roster().map_or(0, in_roster))
    }

    async fn bring_back(self: Rc<Self>, position: usize) {
        let mut left = None;
        loop {
            match self.try_to_bring_back(position, &mut left).await {
                Ok(()) => break,
                Err(Halt::Ended) => return,
                Err(Halt::Later | Halt::Slow) => {}
                Err(Halt::Rejected) => sleep(&self.world, 50).await,
            }
            if self.is_stopping.get() {
                return;
            }
            let pause = 1 + self.world.borrow_mut().random.below(20);
            sleep(&self.world, pause).await;
        }
        self.attended.borrow_mut()[position] = false;
    }

    async fn try_to_bring_back(&self, position: usize, left: &mut Option<PageMap>) -> Result<(), Halt> {
        let (member, is_compared) = self.returning(position, left).await?;
        if member.state().is_witness() && self.world.borrow().control != Some(Control::WitnessCaughtUp) {
            return self.admit_witness(position, member).await;
        }
        let catch_up = self.admit(position, &member, is_compared, left).await?;
        let done = loop {
            let copied = self.copy(position, &member, &catch_up, is_compared).await;
            let joined = match copied {
                Ok(()) => self.join(position, &member, &catch_up).await,
                Err(halt) => Err(halt),
            };
            match joined {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(halt) => break Err(halt),
            }
        };
        if let Err(halt) = done {
            self.world.borrow_mut().count(Fault::CatchUpInterrupted);
            if matches!(halt, Halt::Slow) {
                member.take(Event::LeftBehind);
            } else {
                fail(&self.world, &member);
            }
            if is_compared {
                let missing = PageMap::new(SIZE_BYTES);
                missing.add(catch_up.interrupted(&[]));
                *left = Some(missing);
            }
            return Err(halt);
        }
        Ok(())
    }

    async fn returning(&self, position: usize, left: &mut Option<PageMap>) -> Result<(Rc<Member>, bool), Halt> {
        let member = Rc::clone(&self.open.borrow().members[position]);
        if member.state().is_slow() {
            return self.no_longer_slow(position, member, left.is_some()).await;
        }
        if member.state().is_connected() {
            return Ok((member, true));
        }
        if member.state().is_removed() {
            return Err(Halt::Ended);
        }
        let target = member.target;
        let connection = self.world.borrow_mut().connect(self.writer, target).ok_or(Halt::Later)?;
        let asked = Member::new(target, Some(connection), true);
        let replica = self.ask_for(position, &asked).await.inspect_err(|_| fail(&self.world, &asked))?;
        let (index, replica_uuid, state) = (replica.index, replica.uuid, replica.state);
        let may_return = {
            let _guard = self.view_lock.lock().await;
            self.membership().may_return(index, replica_uuid)
        };
        if !may_return {
            fail(&self.world, &asked);
            return Err(Halt::Rejected);
        }
        let is_known_as_witness = self.world.borrow().control != Some(Control::WitnessJoins);
        let is_witness = is_known_as_witness && self.membership().is_witness(index, replica_uuid);
        let returned = Rc::new(member.reconnected(asked.connection, is_witness));
        let apart = {
            let _guard = self.view_lock.lock().await;
            self.check_returned(position, &Found { index, state: &state }, &returned)?
        };
        let is_own = apart.as_ref().is_none_or(Apart::votes);
        if !is_own || !state.is_behind || !self.view().has_kept(position, state.mark) {
            *left = None;
        }
        if !self.introduce(position, (index, Some(replica_uuid), Some(&state)), &returned).await {
            fail(&self.world, &returned);
            return Err(Halt::Later);
        }
        let is_known = is_own && self.view().knows_what_lacks(position, state.mark);
        Ok((returned, !is_known))
    }

    /// As `Returns::ask_for`.
    async fn ask_for(&self, position: usize, returned: &Member) -> Result<Box<Replica>, Halt> {
        let own = self.view().epoch_of(position).map_or(Claim::None, Claim::Own);
        let claim = match ask(&self.world, returned, Message::Open { takes_over: false, claim: own }).await {
            Some(Answer::Opened(replica)) => return Ok(replica),
            Some(Answer::Busy) => self.superseded_holder(returned).await?,
            _ => return Err(Halt::Later),
        };
        match ask(&self.world, returned, Message::Open { takes_over: false, claim }).await {
            Some(Answer::Opened(replica)) => Ok(replica),
            _ => Err(Halt::Later),
        }
    }

    /// As `Returns::superseded_holder`.
    async fn superseded_holder(&self, returned: &Member) -> Result<Claim, Halt> {
        let Some(Answer::Info { replica, .. }) = ask(&self.world, returned, Message::Info).await else {
            return Err(Halt::Later);
        };
        let _guard = self.view_lock.lock().await;
        if !self.membership().may_return(replica.index, replica.uuid) {
            return Err(Halt::Later);
        }
        if self.has_ended() {
            return Err(Halt::Ended);
        }
        let (view, state) = (self.view(), &replica.state);
        if self.world.borrow().control == Some(Control::HolderNotJudged) {
            return Ok(Claim::Superseded(state.epoch.id));
        }
        if view.is_superseded_by(state) {
            self.world.borrow_mut().count(Fault::SuccessorMet);
            self.give_up();
            return Err(Halt::Ended);
        }
        let apart = of_returning(&Found { index: replica.index, state }, view.line(), view.opening());
        let is_older = apart.as_ref().is_some_and(Apart::may_catch_up);
        if view.has_superseded() && is_older { Ok(Claim::Superseded(state.epoch.id)) } else { Err(Halt::Later) }
    }

    /// What a replica that has come back is to the pool. The view is locked.
    fn check_returned(&self, position: usize, found: &Found<'_>, returned: &Member) -> Result<Option<Apart>, Halt> {
        let view = self.view();
        let known = view.index(position);
        let halt = if self.has_ended() {
            Some(Halt::Ended)
        } else if view.has_other(found.index, position) || known.is_some_and(|known| known != found.index) {
            Some(Halt::Rejected)
        } else if view.is_superseded_by(found.state) {
            self.world.borrow_mut().count(Fault::SuccessorMet);
            self.give_up();
            Some(Halt::Ended)
        } else {
            None
        };
        if let Some(halt) = halt {
            fail(&self.world, returned);
            return Err(halt);
        }
        let apart = of_returning(found, view.line(), view.opening());
        if apart.is_some_and(|apart| !apart.may_catch_up()) {
            if self.world.borrow().plan.has_changes {
                self.diverged.set(self.diverged.get() | 1 << position);
                self.world.borrow_mut().count(Fault::DivergedLeftOut);
            }
            fail(&self.world, returned);
            return Err(Halt::Rejected);
        }
        Ok(apart)
    }

    async fn no_longer_slow(
        &self,
        position: usize,
        member: Rc<Member>,
        is_compared: bool,
    ) -> Result<(Rc<Member>, bool), Halt> {
        let is_settled = {
            let _guard = self.view_lock.lock().await;
            if self.has_ended() {
                return Err(Halt::Ended);
            }
            self.is_current() || self.change().await
        };
        if !is_settled || (!member.state().is_witness() && self.flush(&member).await.is_err()) {
            return Err(Halt::Slow);
        }
        let (index, is_known) = {
            let view = self.view();
            (view.index(position), view.knows_what_lacks(position, u64::MAX))
        };
        if !self.introduce(position, (index.ok_or(Halt::Later)?, None, None), &member).await {
            fail(&self.world, &member);
            return Err(Halt::Later);
        }
        Ok((member, is_compared || !is_known))
    }

    /// As `Returns::admit_witness`.
    async fn admit_witness(&self, position: usize, member: Rc<Member>) -> Result<(), Halt> {
        let Some(_hold) = self.hold_all().await else { return Err(Halt::Ended) };
        let open = Rc::clone(&self.open.borrow());
        let mut members = open.members.clone();
        member.take(Event::Admitted);
        members[position] = member;
        *self.open.borrow_mut() = Rc::new(Open { members, ..Open::clone(&open) });
        self.world.borrow_mut().count(Fault::WitnessBack);
        Ok(())
    }

    /// Has the member be sent what is written from now on.
    async fn admit(
        &self,
        position: usize,
        member: &Rc<Member>,
        is_compared: bool,
        left: &mut Option<PageMap>,
    ) -> Result<Rc<CatchUp>, Halt> {
        let Some(_hold) = self.hold_all().await else { return Err(Halt::Ended) };
        let open = Rc::clone(&self.open.borrow());
        let missing = match left.take() {
            None if is_compared => PageMap::full(SIZE_BYTES),
            left => {
                let missing = left.unwrap_or_else(|| PageMap::new(SIZE_BYTES));
                missing.add(&open.written);
                self.older.borrow().add_to(&missing);
                missing
            }
        };
        let catch_up = Rc::new(CatchUp::new(missing));
        let mut members = open.members.clone();
        members[position] = Rc::clone(member);
        if member.take(Event::Admitted).from.is_slow() {
            self.world.borrow_mut().count(Fault::SlowTakenBack);
        }
        let others = open.catching_up.iter().filter(|(of, _)| *of != position).cloned();
        let catching_up = others.chain([(position, Rc::clone(&catch_up))]).collect();
        *self.open.borrow_mut() = Rc::new(Open { members, catching_up, written: Arc::clone(&open.written) });
        Ok(catch_up)
    }

    /// Copies what is missing, once through the pool.
    async fn copy(
        &self,
        position: usize,
        member: &Rc<Member>,
        catch_up: &CatchUp,
        is_compared: bool,
    ) -> Result<(), Halt> {
        let mut from = 0;
        self.mark_behind(position, member).await?;
        while let Some(window) = catch_up.open_window(from, WINDOW) {
            let copied = self.copy_window(member, &window, is_compared).await;
            catch_up.close_window(&window);
            from = window.last().map_or(u64::MAX, |last| last.end);
            if let Err(halt) = copied {
                catch_up.interrupted(&window);
                return Err(halt);
            }
            if self.world.borrow_mut().random.once_in(4) {
                catch_up.begin_flush();
                self.flush(member).await?;
                catch_up.note_flushed();
                self.mark_behind(position, member).await?;
            }
            if self.is_stopping.get() {
                return Err(Halt::Ended);
            }
        }
        Ok(())
    }

    async fn copy_window(
        &self,
        member: &Rc<Member>,
        window: &[std::ops::Range<u64>],
        is_compared: bool,
    ) -> Result<(), Halt> {
        let pages =
            |range: &std::ops::Range<u64>| (range.start / PAGE_BYTES) as usize..range.end.div_ceil(PAGE_BYTES) as usize;
        let open = Rc::clone(&self.open.borrow());
        let source = open.members.iter().find(|source| source.state().is_in_sync()).ok_or(Halt::Later)?;
        let mut differing: Vec<usize> = window.iter().flat_map(pages).collect();
        if is_compared {
            let others = open.members.iter().filter(|other| other.state().is_in_sync() && !Rc::ptr_eq(other, source));
            let mut held = Vec::new();
            for holder in [source, member].into_iter().chain(others) {
                held.push(read(&self.world, holder).await.ok_or(Halt::Later)?);
            }
            let (compared, is_skipped) =
                (compared(&held), self.world.borrow().control == Some(Control::ComparisonSkipped));
            differing.retain(|page| is_lacking(&compared, (0, 1), *page) && !is_skipped);
        }
        for page in differing {
            let mut bytes = None;
            for source in open.members.iter().filter(|source| source.state().is_in_sync()) {
                bytes = read(&self.world, source).await;
                if bytes.is_some() {
                    break;
                }
            }
            let words = bytes.ok_or(Halt::Later)?[page];
            debug_assert!(bytes_of(page).end <= SIZE_BYTES);
            send(&self.world, member, Message::Write { page, words });
        }
        if member.state().is_connected() { Ok(()) } else { Err(Halt::Later) }
    }

    /// As `Epochs::mark_behind`.
    async fn mark_behind(&self, position: usize, member: &Rc<Member>) -> Result<(), Halt> {
        if member.state().is_slow() {
            return Err(Halt::Slow);
        }
        let mark = {
            let _guard = self.view_lock.lock().await;
            self.view().mark()
        };
        self.mark(member, mark.clone()).await?;
        self.epochs.borrow_mut().view.note_marked(position, &mark);
        Ok(())
    }

    async fn flush(&self, member: &Rc<Member>) -> Result<(), Halt> {
        match ask(&self.world, member, Message::Flush).await {
            Some(Answer::Flushed) => Ok(()),
            _ => Err(Halt::Later),
        }
    }

    /// As `Epochs::announce_with`.
    async fn announce_with(&self, position: usize, member: &Rc<Member>) -> Option<Joining> {
        let _guard = self.view_lock.lock().await;
        if self.has_ended() {
            return None;
        }
        let mark = self.view().mark();
        self.mark(member, mark.clone()).await.ok()?;
        epochs::announce_with(self, position, mark).await
    }

    async fn mark(&self, member: &Rc<Member>, mark: Request) -> Result<(), Halt> {
        if tell(&self.world, member, (&mark, &Reply::Marked)).await { Ok(()) } else { Err(Halt::Later) }
    }

    /// Has the member count as in sync, if little is missing.
    async fn join(&self, position: usize, member: &Rc<Member>, catch_up: &CatchUp) -> Result<bool, Halt> {
        catch_up.begin_flush();
        self.flush(member).await?;
        catch_up.note_flushed();
        if catch_up.missing_bytes() > PAGE_BYTES {
            return Ok(false);
        }
        let joining = self.announce_with(position, member).await.ok_or(Halt::Later)?;
        let Some(_hold) = self.hold_all().await else { return Err(Halt::Ended) };
        if catch_up.missing_bytes() > PAGE_BYTES {
            return Ok(false);
        }
        while let Some(window) = catch_up.open_window(0, WINDOW) {
            let copied = self.copy_window(member, &window, false).await;
            catch_up.close_window(&window);
            copied?;
        }
        self.flush(member).await?;
        let _guard = self.view_lock.lock().await;
        if self.has_ended() {
            return Err(Halt::Ended);
        }
        let mark = self.view().mark();
        if joining.lacks(&mark) {
            self.mark(member, mark).await?;
        }
        let caught_up = member.take(Event::CaughtUp).to;
        if caught_up.is_behind() {
            return Err(not_joined(caught_up));
        }
        epochs::join(self, &joining).await;
        if !member.state().is_in_sync() {
            return Err(not_joined(member.state()));
        }
        let open = Rc::clone(&self.open.borrow());
        let catching_up = open.catching_up.iter().filter(|(of, _)| *of != position).cloned().collect();
        let (members, written) = (open.members.clone(), Arc::clone(&open.written));
        *self.open.borrow_mut() = Rc::new(Open { members, catching_up, written });
        Ok(true)
    }
}
