//! How members come back to an open pool: the engine's returns, on simulated targets.

use std::{ops::Range, rc::Rc, sync::Arc, task::Poll, time::Duration};

use pmof_access::Durability;
use pmof_control::{FailureDomain, PoolName, Reply, Request, Roster, USER_FLAGS_BYTES};
use pmof_replication::{
    asking::Reason,
    comparing::{self, Findings, Scrubbed},
    epochs::{Driver, Epochs},
    keeper::KeeperError,
    member_state::{Event, MemberState},
    opening::Identity,
    posting,
    returning::{
        self as engine, Backoff, Halt, Halted, Holder, Limits, Members, Pauses, Progress, Rejection, Returned, Rules,
        Trust,
    },
};
use uuid::Uuid;

use super::{
    areas::SIZE_BYTES,
    comparing::Held,
    faults::Fault,
    members::Candidate,
    plan::{Control, PAGES},
    serving::POOL_UUID,
    session::{Member, Open, Session, answer, ask, encoded, fail, give_roster, reply_in, send, tell},
    site::Site,
    target::{Answer, Message},
    tasks::{Guard, STEP, Shared, sleep, steps, steps_of},
};
use crate::{
    ReplicaError,
    catch_up::{CatchUp, Limit},
    lineage::Found,
    pages::{PAGE_BYTES, PageMap},
    view::Positions,
};

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
            posting::forget_written(&*self).await;
            let pause = 4 + self.world.borrow_mut().random.below(8);
            sleep(&self.world, pause).await;
        }
    }

    async fn bring_back(self: Rc<Self>, position: usize) {
        let rules = Broken(self.world.borrow().control);
        let bringing = Return { session: Rc::clone(&self), position, rules };
        let Some(Returned { member, is_compared, .. }) = engine::bring_back(&bringing).await else { return };
        self.attended.borrow_mut()[position] = false;
        if !is_compared {
            self.verifying.set(self.verifying.get() + 1);
            engine::verify(&bringing, &member).await;
            self.verifying.set(self.verifying.get() - 1);
        }
    }
}

/// The rules, of which a control breaks one.
struct Broken(Option<Control>);

impl Rules for Broken {
    fn has_data(&self, is_witness: bool) -> bool {
        !is_witness || self.0 == Some(Control::WitnessJoins)
    }

    fn is_copied_to(&self, state: MemberState) -> bool {
        !state.is_witness() || self.0 == Some(Control::WitnessCaughtUp)
    }

    fn holder(&self, epochs: &Epochs, found: &Found<'_>) -> Holder {
        if self.0 == Some(Control::HolderNotJudged) { Holder::Superseded } else { Holder::of(epochs, found) }
    }
}

/// The epochs of a session, whose view is locked.
pub(super) struct Locked<'s> {
    session: &'s Session,
    _guard: Guard<'s>,
}

impl Driver for Locked<'_> {
    type Keeper<'k>
        = <Session as Driver>::Keeper<'k>
    where
        Self: 'k;

    fn keeper(&self) -> Self::Keeper<'_> {
        self.session.keeper()
    }

    fn with<T>(&self, look: impl FnOnce(&mut Epochs) -> T) -> T {
        self.session.with(look)
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        Driver::positions(self.session, is)
    }

    async fn tell(&self, asked: Positions, request: &Request, expected: &Reply) -> Positions {
        Driver::tell(self.session, asked, request, expected).await
    }

    fn fresh_name(&self) -> Uuid {
        self.session.fresh_name()
    }

    fn note_current(&self, _: Positions) {}

    fn note_refused(&self, why: &KeeperError) {
        self.session.note_refused(why);
    }
}

impl Members for Session {
    type Member = Rc<Member>;
    type Failure = ReplicaError;
    type Locked<'l> = Locked<'l>;

    async fn lock(&self) -> Locked<'_> {
        Locked { session: self, _guard: self.view_lock.lock().await }
    }

    fn state(&self, member: &Rc<Member>) -> MemberState {
        member.state()
    }

    fn put(&self, _: &Locked<'_>, position: usize, member: &Rc<Member>) {
        self.members.borrow_mut()[position] = Rc::clone(member);
    }

    async fn give_roster(&self, member: &Rc<Member>, roster: &Roster) -> bool {
        give_roster(&self.world, member, roster).await
    }

    async fn ask_for(
        &self,
        member: &Rc<Member>,
        request: &Request,
        expected: &Reply,
        limit: Option<Duration>,
    ) -> Result<(), Halt<ReplicaError>> {
        let Some(limit) = limit else {
            let is_told = tell(&self.world, member, (request, expected)).await;
            return if is_told { Ok(()) } else { Err(Halt::Later) };
        };
        let question = send(&self.world, member, encoded(&self.world, member, request));
        match within(&self.world, Some(limit), answer(&self.world, member, question)).await {
            Some(Some(answer)) if reply_in(&answer).as_ref() == Some(expected) => Ok(()),
            Some(_) => {
                fail(&self.world, member);
                Err(Halt::Later)
            }
            None => Err(Halt::Slow),
        }
    }
}

/// `None`: it took longer.
async fn within<T>(world: &Shared, limit: Option<Duration>, run: impl Future<Output = T>) -> Option<T> {
    let until = limit.map(|limit| world.borrow().step + steps_of(limit));
    let mut run = std::pin::pin!(run);
    std::future::poll_fn(|context| match run.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending if until.is_some_and(|until| world.borrow().step >= until) => {
            world.borrow_mut().count(Fault::SlowToJoin);
            Poll::Ready(None)
        }
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// The return of the member at a position.
struct Return {
    session: Rc<Session>,
    position: usize,
    rules: Broken,
}

impl Return {
    fn world(&self) -> &Shared {
        &self.session.world
    }

    fn below(&self, limit: usize) -> u64 {
        self.world().borrow_mut().random.below(limit) as u64
    }

    /// Has the pool have other members, or others that catch up.
    fn change(&self, members: Vec<Rc<Member>>, catch_up: Option<&Arc<CatchUp>>) {
        let open = Rc::clone(&self.session.open.borrow());
        let others = open.catching_up.iter().filter(|(of, _)| *of != self.position).cloned();
        let catching_up = others.chain(catch_up.map(|catch_up| (self.position, Arc::clone(catch_up)))).collect();
        *self.session.open.borrow_mut() = Rc::new(Open { members, catching_up, ..Open::clone(&open) });
    }
}

impl engine::Returns for Return {
    type Member = Rc<Member>;
    type Failure = ReplicaError;
    type Epochs = Session;
    type EpochsRef = Rc<Session>;
    type Site = Site;
    type Reached = ();
    type Flushing = (Rc<Member>, Option<u64>);
    type Contents = Open;
    type Pool = Session;
    type PoolRef = Rc<Session>;
    type Held<'h> = Held<'h>;
    type Rules = Broken;

    fn rules(&self) -> &Broken {
        &self.rules
    }

    fn position(&self) -> usize {
        self.position
    }

    fn terms(&self) -> Halted<engine::Terms, Self> {
        let member_count = self.session.epochs.borrow().data_count(0) as u16;
        let (user_flags, replica_count) = ([0; USER_FLAGS_BYTES], self.world().borrow().plan.made as u16);
        let identity = Identity { uuid: POOL_UUID, size_bytes: SIZE_BYTES, user_flags, replica_count };
        Ok(engine::Terms { identity, require: Durability::PowerFailure, member_count })
    }

    fn limits(&self) -> Halted<Limits, Self> {
        let [flushed_bytes, sync_bytes] = [(); 2].map(|()| (1 + self.below(2 * PAGES)) * PAGE_BYTES);
        // A quarter of it while the pool is written.
        let window = Limit { ranges: 2 + self.below(PAGES) as usize, bytes: (4 + self.below(20)) * PAGE_BYTES };
        let is_slow = self.member()?.state().is_slow();
        let is_impatient = {
            let mut world = self.world().borrow_mut();
            !world.is_faultless && world.random.once_in(2)
        };
        let slow_after = (is_impatient || is_slow).then(|| steps(5 + self.below(40)));
        let (copied, compared, last_bytes) = (window, window, PAGE_BYTES);
        Ok(Limits { copied, compared, flushed_bytes, sync_bytes, last_bytes, slow_after, ..Limits::SHIPPED })
    }

    fn pauses(&self) -> Pauses {
        let (pause, rejected, need_look) = (steps(1 + self.below(6)), steps(50), steps(1 + self.below(5)));
        Pauses {
            first: pause,
            longest: pause,
            misbehaved: pause,
            rejected,
            longest_slow: pause,
            need_look,
            candidate_look: STEP,
            quorum_look: need_look,
            recovered_after: Duration::ZERO,
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(&self.pauses())
    }

    fn pool(&self) -> Halted<Rc<Session>, Self> {
        Ok(Rc::clone(&self.session))
    }

    fn epochs(&self) -> Halted<Rc<Session>, Self> {
        Ok(Rc::clone(&self.session))
    }

    fn member(&self) -> Halted<Rc<Member>, Self> {
        Ok(Rc::clone(&self.session.open.borrow().members[self.position]))
    }

    fn with_trust<T>(&self, look: impl FnOnce(&mut Trust) -> T) -> T {
        look(self.session.trust.borrow_mut().entry(self.position).or_default())
    }

    async fn let_go(&self, _: Rc<Member>) -> Halted<(), Self> {
        Ok(())
    }

    async fn connect(&self, lost: &Rc<Member>) -> Option<Site> {
        Site::connect(self.world(), self.session.writer, lost.target)
    }

    fn name(&self) -> PoolName {
        let target = self.session.open.borrow().members[self.position].target;
        self.world().borrow().urls[target].name.clone()
    }

    async fn open(&self, site: &Site, request: &Request) -> Result<Reply, ReplicaError> {
        site.ask(request).await
    }

    async fn ask(&self, site: &Site, request: &Request) -> Result<Reply, ReplicaError> {
        site.ask(request).await
    }

    fn note_failure(&self, _: &Rc<Member>, _: ReplicaError) {}

    fn reach(&self, _: &Site, _: &[u8], _: u64) -> Halted<(), Self> {
        Ok(())
    }

    async fn adopt(
        &self,
        lost: &Rc<Member>,
        (mut site, ()): (Site, ()),
        _: Option<Option<FailureDomain>>,
        is_witness: bool,
    ) -> Option<Rc<Member>> {
        assert_eq!(site.target, lost.target, "a replica returns to where it was");
        Some(Rc::new(lost.reconnected(Some(site.for_member()), is_witness)))
    }

    async fn boot(&self, _: &Rc<Member>) -> Option<Uuid> {
        None
    }

    fn fence(&self, _: Option<&str>) {
        self.world().borrow_mut().count(Fault::SuccessorMet);
        self.session.give_up();
    }

    fn give_up(&self, member: &Rc<Member>) {
        fail(self.world(), member);
    }

    fn reference(&self) -> Halted<Option<Rc<Member>>, Self> {
        Ok(comparing::in_sync(&**self.session.open.borrow()).next().cloned())
    }

    fn is_needed(&self) -> bool {
        let open = self.session.open.borrow();
        !self.session.terms.are_met(comparing::in_sync(&**open).map(|member| self.session.domain(member)))
    }

    async fn hold_all<'h>(&self, pool: &'h Session) -> Halted<Held<'h>, Self> {
        Scrubbed::hold_all(pool).await.map_err(|()| Halt::Ended)
    }

    fn add_written(&self, held: &Held<'_>, missing: &PageMap) {
        missing.add(&held.written);
        self.session.older.borrow().add_to(missing);
    }

    fn admit(&self, _: Held<'_>, member: &Rc<Member>, catch_up: Option<&Arc<CatchUp>>) {
        let mut members = self.session.open.borrow().members.clone();
        members[self.position] = Rc::clone(member);
        if member.take(Event::Admitted).from.is_slow() {
            self.world().borrow_mut().count(Fault::SlowTakenBack);
        }
        self.change(members, catch_up);
    }

    fn start_flush(&self, member: &Rc<Member>) -> Self::Flushing {
        (Rc::clone(member), send(self.world(), member, Message::Flush))
    }

    async fn finish_flush(&self, (member, question): Self::Flushing) -> bool {
        matches!(answer(self.world(), &member, question).await, Some(Answer::Flushed))
    }

    async fn finish_flush_within(&self, (member, question): Self::Flushing, limit: Duration) -> bool {
        let in_time = within(self.world(), Some(limit), answer(self.world(), &member, question)).await;
        if in_time.is_none() {
            answer(self.world(), &member, question).await;
        }
        matches!(in_time, Some(Some(Answer::Flushed)))
    }

    async fn flush_last(&self, _: &Self::Held<'_>, member: &Rc<Member>, limit: Option<Duration>) -> Option<bool> {
        let answer = within(self.world(), limit, ask(self.world(), member, Message::Flush)).await?;
        Some(matches!(answer, Some(Answer::Flushed)))
    }

    async fn give_intent(&self, _: &Self::Held<'_>, _: &Rc<Member>, _: Option<Duration>) -> Halted<(), Self> {
        Ok(())
    }

    fn note_caught_up(&self, member: &Rc<Member>) -> MemberState {
        member.take(Event::CaughtUp).to
    }

    fn note_joined(&self, _: Held<'_>) {
        let members = self.session.open.borrow().members.clone();
        self.change(members, None);
    }

    fn interrupt(&self, member: &Rc<Member>, is_slow: bool) {
        self.world().borrow_mut().count(Fault::CatchUpInterrupted);
        if is_slow {
            member.take(Event::LeftBehind);
        } else {
            fail(self.world(), member);
        }
    }

    fn is_candidate(&self) -> bool {
        self.session.is_candidate(self.position)
    }

    fn gives_up_candidate(&self) -> bool {
        self.session.is_candidate(self.position) && {
            self.session.candidate.set(Some(Candidate { position: self.position, is_given_up: true }));
            fail(self.world(), &self.session.open.borrow().members[self.position]);
            true
        }
    }

    fn note_rejected(&self, why: Rejection<ReplicaError>, _: bool) {
        let has_diverged = matches!(why, Rejection::Reason(Reason::Apart { .. }));
        if has_diverged && self.world().borrow().plan.has_changes {
            self.session.diverged.set(self.session.diverged.get() | 1 << self.position);
            self.world().borrow_mut().count(Fault::DivergedLeftOut);
        }
    }

    fn note_scrubbed(&self, _: &Range<u64>, found: Findings<Rc<Member>>, _: Duration) {
        if !found.repaired.is_empty() {
            self.world().borrow_mut().count(Fault::SourceRotten);
        }
    }

    fn note(&self, member: &Rc<Member>, progress: Progress) {
        if matches!(progress, Progress::InSync { is_verified: false, .. }) && self.below(4) == 0 {
            // It is about to be compared, as a whole, with another one.
            self.session.rot_somewhere();
        }
        let world = &mut *self.world().borrow_mut();
        match progress {
            Progress::WitnessBack => world.count(Fault::WitnessBack),
            Progress::Verified { .. } => world.count(Fault::CatchUpVerified),
            Progress::Differs { range } => {
                world.count(Fault::CatchUpDiffers);
                let was_put_back = member.connection.is_some_and(|connection| world.was_put_back(connection));
                if !world.plan.has_rot && !was_put_back {
                    let target = member.target;
                    world.truth.violate(|| format!("target {target} differs in {range:?} when it has caught up"));
                }
            }
            Progress::CatchingUp { .. } | Progress::InSync { .. } => {}
        }
    }

    fn is_stopping(&self) -> bool {
        self.session.is_stopping.get()
    }

    async fn pause(&self, pause: Duration) -> bool {
        sleep(self.world(), steps_of(pause) as usize).await;
        !self.session.is_stopping.get()
    }

    fn now(&self) -> Duration {
        steps(self.world().borrow().step)
    }
}
