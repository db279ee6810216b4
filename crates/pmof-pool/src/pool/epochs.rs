//! Who takes part in what: the epochs and marks that native replicas keep in their headers.

use std::{
    cell::{Cell, RefCell},
    ops::DerefMut,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use pmof_control::{OpenFor, Reply, Request, Roster};
use pmof_locks::{Mutex, MutexGuard};
use pmof_replication::{
    epochs::{self as engine, Driver, MemberQuorum},
    member_state::MemberState,
    posting::{
        AckTerms, Patience,
        patience::{self, Members, Waiting},
    },
    returning,
};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::{
    PoolUrl, ReplicaDomain, ReplicaError,
    lineage::Base,
    member::{Asking, Control, Member},
    membership::Membership,
    view::{Positions, Rule, View, bits},
};

use super::{
    acknowledge,
    halt::{Halt, ask_within},
};

mod change;

pub(super) use change::give_roster;

/// How long a mark is kept while the pool is written: a copy of a replica's file that is older by more is told from the replica.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The epoch of an open pool, and the mark in it.
#[derive(Debug)]
pub(super) struct Epochs {
    /// When this opening raised the mark, in nanoseconds of [`now`]; 0 for never.
    marked_at: AtomicU64,
    /// The members of the epoch that is durable, as the view has them.
    current: AtomicU64,
    /// Members that the pool has and that have its data.
    count: AtomicUsize,
    /// Members that a forced opening went on without and that were not replaced.
    forgone: AtomicUsize,
    state: Mutex<State>,
}

/// What changes of the epochs of an open pool. Whoever holds it keeps all others from changing it.
#[derive(Debug)]
pub(super) struct State {
    /// All members of the pool as it is now, those that are out of use too.
    members: Vec<Arc<dyn Member>>,
    /// What the engine knows of them.
    known: engine::Epochs,
    /// Members that have no data, where no roster tells.
    witness_count: usize,
    terms: AckTerms,
}

/// A state that this thread has locked, as the engine drives it: it tells the members and waits for them.
pub(super) struct Locked<'s, S: DerefMut<Target = State>> {
    state: RefCell<S>,
    epochs: &'s Epochs,
}

impl<S: DerefMut<Target = State>> Drop for Locked<'_, S> {
    fn drop(&mut self) {
        self.epochs.note_counts(self.state.get_mut());
    }
}

impl<S: DerefMut<Target = State>> Driver for Locked<'_, S> {
    type Keeper<'k>
        = MemberQuorum<'k, Self>
    where
        Self: 'k;

    fn keeper(&self) -> MemberQuorum<'_, Self> {
        MemberQuorum::of(self)
    }

    fn with<T>(&self, look: impl FnOnce(&mut engine::Epochs) -> T) -> T {
        look(&mut self.state.borrow_mut().known)
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        positions(&self.state.borrow().members, is)
    }

    async fn tell(&self, asked: Positions, request: &Request, expected: &Reply) -> Positions {
        self.state.borrow().tell(asked, request, expected)
    }

    fn fresh_name(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn note_current(&self, current: Positions) {
        self.epochs.current.store(current, Ordering::Release);
    }
}

/// A pool's members, to which requests are sent one by one.
impl returning::Members for Epochs {
    type Member = Arc<dyn Member>;
    type Failure = ReplicaError;
    type Locked<'l> = Locked<'l, MutexGuard<'l, State>>;

    async fn lock(&self) -> Self::Locked<'_> {
        Locked { state: RefCell::new(self.state.lock()), epochs: self }
    }

    fn state(&self, member: &Self::Member) -> MemberState {
        member.state()
    }

    fn put(&self, locked: &Self::Locked<'_>, position: usize, member: &Self::Member) {
        locked.state.borrow_mut().members[position] = Arc::clone(member);
    }

    async fn give_roster(&self, member: &Self::Member, roster: &Roster) -> bool {
        member.control().is_some_and(|control| give_roster(control, roster))
    }

    async fn ask_for(
        &self,
        member: &Self::Member,
        request: &Request,
        expected: &Reply,
        limit: Option<Duration>,
    ) -> Result<(), Halt> {
        ask_within(member.control().ok_or(Halt::Later)?, request, expected, limit)
    }
}

/// The outcome of a step whose driver blocks instead of waiting.
#[inline]
pub(super) fn done<T>(step: impl Future<Output = T>) -> T {
    match pin!(step).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a driver that blocks is never waited for"),
    }
}

impl Epochs {
    pub(super) fn new(
        members: Vec<Arc<dyn Member>>,
        indexes: Vec<Option<u16>>,
        base: Base,
        mark: u64,
        rule: Rule,
        terms: AckTerms,
    ) -> Self {
        let in_use = positions(&members, MemberState::is_in_sync);
        let view = View::new(rule, indexes, base, mark, in_use);
        let known = engine::Epochs::new(view, Membership::default());
        let count = AtomicUsize::new(known.view.counts().0);
        let state = State { members, known, witness_count: 0, terms };
        let (marked_at, current, forgone) = (AtomicU64::new(0), AtomicU64::new(in_use), AtomicUsize::new(0));
        Self { marked_at, current, count, forgone, state: Mutex::new(state) }
    }

    /// Has the members in use know what they must before a persist is acknowledged: that those which failed are left behind, and now and
    /// then a new mark. Whether the persist may be acknowledged: too few members may be left to know. `members`: those that it was posted to.
    pub(super) fn acknowledge(&self, members: &[Arc<dyn Member>]) -> bool {
        if !self.is_due() && positions(members, MemberState::is_in_sync) == self.current.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.state.lock();
        let began = Cell::new(0);
        let is_due = || {
            began.set(now());
            self.is_due()
        };
        // Not before it was told: others that are to be acknowledged wait for it.
        let note_marked = || self.marked_at.store(began.get(), Ordering::Release);
        self.run(&mut state, |driver| done(engine::acknowledge(driver, is_due, note_marked)))
    }

    /// Whether a persist may be acknowledged; see the engine's.
    pub(super) fn is_enough(&self, lacks_any: bool, is_acknowledged: bool) -> bool {
        is_acknowledged || self.state.lock().known.is_enough(lacks_any, is_acknowledged)
    }

    /// Runs a step of the engine on a state that the caller has locked.
    fn run<T>(&self, state: &mut State, step: impl FnOnce(&Locked<'_, &mut State>) -> T) -> T {
        step(&Locked { state: RefCell::new(state), epochs: self })
    }

    /// So many of the members have no data, as whoever opened the pool has found.
    pub(super) fn keep_witness_count(&self, count: usize) {
        let mut state = self.state.lock();
        state.witness_count = count;
        self.note_counts(&state);
    }

    fn note_counts(&self, state: &State) {
        self.count.store(state.known.data_count(state.witness_count), Ordering::Release);
        let roster = state.known.membership.roster();
        self.forgone.store(roster.map_or(0, Roster::forgone_count), Ordering::Release);
    }

    /// The opening has found these members with the mark.
    pub(super) fn note_marked(&self, marked: Positions) {
        self.state.lock().known.view.note_found_marked(marked);
    }

    /// The pool was made just now.
    pub(super) fn note_made(&self) {
        self.state.lock().known.view.note_made();
    }

    /// Gives the members in use an epoch of their own, durably. One that does not take it is lost. False: too few were left.
    pub(super) fn begin(&self) -> bool {
        self.begin_in(&mut self.state.lock())
    }

    /// The same, on a state that the caller has [locked](Self::lock).
    pub(super) fn begin_in(&self, state: &mut State) -> bool {
        self.run(state, |driver| done(engine::begin(driver)))
    }

    /// Whether the members in use have an epoch without the others, which they are given if they have not.
    pub(super) fn settle(&self) -> bool {
        let mut state = self.state.lock();
        state.in_use() == self.current.load(Ordering::Acquire) || self.begin_in(&mut state)
    }

    /// Puts another in the place of a member that has failed.
    pub(super) fn replace(&self, position: usize, member: &Arc<dyn Member>) {
        let mut state = self.state.lock();
        state.members[position] = Arc::clone(member);
        state.known.membership.note_replaced(position);
    }

    /// The same as [`lock`](Self::lock), if nobody else does.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock()
    }

    /// Keeps the epoch and the members as they are until the guard is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Has the members be told nothing any more: they are about to be closed. Whether those in use have an epoch without the others.
    pub(super) fn end(&self, access: OpenFor) -> bool {
        let mut state = self.state.lock();
        let is_settled = state.in_use() == self.current.load(Ordering::Acquire);
        let is_settled = is_settled || (access == OpenFor::Write && self.begin_in(&mut state));
        state.known.has_ended = true;
        is_settled
    }

    /// The members in use have been made equal.
    pub(super) fn note_equal(&self) {
        let mut state = self.state.lock();
        let in_use = state.in_use();
        state.known.view.note_equal(in_use);
    }

    /// Tells the mark as it is to members in use that may lack it.
    pub(super) fn tell_mark(&self) {
        self.run(&mut self.state.lock(), |driver| done(engine::tell_mark(driver)));
    }

    /// Raises the mark, whether it is due or not: copies of the members' files that were made before are known to be older. False: the pool is
    /// being closed.
    pub(super) fn date_copies(&self) -> bool {
        let mut state = self.state.lock();
        if state.known.has_ended {
            return false;
        }
        let began = now();
        self.run(&mut state, |driver| done(engine::raise_mark(driver)));
        self.marked_at.store(began, Ordering::Release);
        true
    }

    /// Members that the pool has and that have its data.
    pub(super) fn member_count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Members that the pool was [forced](pmof_control::Forced) to go on without, and has no others for.
    pub(super) fn forgone_count(&self) -> usize {
        self.forgone.load(Ordering::Acquire)
    }

    /// Whether a place is known to be that of a member: by the replica that was found there, or by what the members keep of each other. Where they keep nothing
    /// all are.
    pub(super) fn is_of_member(&self, position: usize, url: Option<&PoolUrl>) -> bool {
        let state = self.state.lock();
        let Some(roster) = state.known.membership.settled(&state.known.view) else { return true };
        let is_found = state.known.view.index(position).is_some_and(|index| roster.member(index).is_some());
        is_found
            || roster
                .counted()
                .any(|member| url.is_some_and(|url| member.url.parse().is_ok_and(|at: PoolUrl| at == *url)))
    }

    /// Whether the members in use are those of an epoch that a quorum knows durably.
    pub(super) fn is_settled(&self, members: &[Arc<dyn Member>]) -> bool {
        positions(members, MemberState::is_in_sync) == self.current.load(Ordering::Acquire)
    }

    /// Tells all members that an opening might count as in sync, should this writer die now: but for those that are too slow, on which nothing is
    /// posted until a quorum knows that they are behind.
    pub(super) fn tell_counted(&self, request: &Request, expected: &Reply) {
        let state = self.state.lock();
        let current = match state.known.view.current() {
            0 => Positions::MAX,
            current => current,
        };
        state.tell(state.in_use() | (current & state.prompt()), request, expected);
    }

    /// The same of some of these members, whose answers `accept` judges. Returns the members that were asked.
    pub(super) fn ask_counted(
        &self,
        some: Positions,
        request: &Request,
        accept: &dyn Fn(usize, &Reply) -> bool,
    ) -> Positions {
        let state = self.state.lock();
        let current = match state.known.view.current() {
            0 => Positions::MAX,
            current => current,
        };
        let asked = (state.in_use() | (current & state.prompt())) & some;
        state.ask(asked, request, accept);
        asked
    }

    /// Asks some of the members in sync.
    pub(super) fn ask_in_use(&self, some: Positions, request: &Request, accept: &dyn Fn(usize, &Reply) -> bool) {
        let state = self.state.lock();
        state.ask(state.in_use() & some, request, accept);
    }

    /// Tells the members in sync.
    pub(super) fn tell_in_use(&self, request: &Request, expected: &Reply) {
        let state = self.state.lock();
        state.tell(state.in_use(), request, expected);
    }

    fn is_due(&self) -> bool {
        let marked_at = self.marked_at.load(Ordering::Acquire);
        marked_at == 0 || now().saturating_sub(marked_at) >= MARK_INTERVAL.as_nanos() as u64
    }
}

impl State {
    pub(super) fn view(&self) -> &View {
        &self.known.view
    }

    fn prompt(&self) -> Positions {
        positions(&self.members, MemberState::is_prompt)
    }

    fn in_use(&self) -> Positions {
        positions(&self.members, MemberState::is_in_sync) & !self.known.membership.leaving()
    }

    /// Asks the same of members in parallel. One that answers anything else is lost, one that takes too long is left behind. Returns the members
    /// that have answered.
    fn tell(&self, asked: Positions, request: &Request, expected: &Reply) -> Positions {
        self.ask(asked, request, &|_, reply| reply == expected)
    }

    /// The same where `accept` says whether an answer is one that may come.
    fn ask(&self, asked: Positions, request: &Request, accept: &dyn Fn(usize, &Reply) -> bool) -> Positions {
        let patience = Patience::of_answers(&self.terms, &self.known);
        let controls = bits(asked).filter_map(|position| Some((position, self.members.get(position)?.control()?)));
        let asked = controls.map(|(position, control)| match patience {
            // What another thread asks it may take time.
            Some(_) => (position, control, control.start_asking_within(request, Duration::ZERO)),
            None => (position, control, Some(control.start_asking(request))),
        });
        let mut answers = Answers { state: self, request, accept, asked: asked.collect(), answered: 0 };
        let left_behind = done(patience::wait(&mut answers, patience));
        for (position, control, asking) in std::mem::take(&mut answers.asked) {
            if left_behind & (1 << position) != 0 {
                asking.into_iter().for_each(Asking::abandon);
            } else {
                let asking = asking.unwrap_or_else(|| control.start_asking(request));
                answers.check(position, control, control.finish_asking(asking));
            }
        }
        answers.answered
    }
}

impl Members for State {
    fn terms(&self) -> AckTerms {
        self.terms
    }

    fn with<T>(&self, look: impl FnOnce(&engine::Epochs) -> T) -> T {
        look(&self.known)
    }

    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions {
        positions(&self.members, is)
    }

    fn domain(&self, position: usize) -> Option<ReplicaDomain> {
        self.members[position].standing().domain()
    }

    fn leave_behind(&self, position: usize) {
        self.members[position].standing().leave_behind();
    }
}

/// Answers of members to one request that are waited for.
struct Answers<'s> {
    state: &'s State,
    request: &'s Request,
    accept: &'s dyn Fn(usize, &Reply) -> bool,
    /// Members that have yet to answer; `None`: it has yet to be asked.
    asked: Vec<(usize, &'s Control, Option<Asking<'s>>)>,
    /// Members that have answered as expected.
    answered: Positions,
}

impl Answers<'_> {
    fn check(&mut self, position: usize, control: &Control, reply: Option<Reply>) {
        match reply {
            Some(reply) if (self.accept)(position, &reply) => self.answered |= 1 << position,
            Some(_) => _ = control.fail(ReplicaError::Unexpected),
            None => {}
        }
    }
}

impl Waiting for Answers<'_> {
    type Members = State;

    fn now(&self) -> Duration {
        acknowledge::now()
    }

    async fn wait_for_each(&mut self, slice: Duration) -> Positions {
        let mut late = 0;
        for (position, control, mut asking) in std::mem::take(&mut self.asked) {
            asking = asking.or_else(|| control.start_asking_within(self.request, slice));
            if let Some(reply) = asking.as_mut().and_then(|asking| control.answer_within(asking, slice)) {
                self.check(position, control, reply.ok());
            } else {
                late |= 1 << position;
                self.asked.push((position, control, asking));
            }
        }
        late
    }

    fn with_members<T>(&self, look: impl FnOnce(&State) -> T) -> Option<T> {
        Some(look(self.state))
    }
}

/// Nanoseconds of a clock that goes on in steps of the kernel's tick, 1 to 10 ms: a small part of an interval, and each persist reads it.
fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec.unsigned_abs() * NANOS_PER_SECOND + now.tv_nsec.unsigned_abs()).max(1)
}

fn positions(members: &[Arc<dyn Member>], is: impl Fn(MemberState) -> bool) -> Positions {
    let members = members.iter().enumerate().filter(|(_, member)| is(member.state()));
    members.fold(0, |positions, (position, _)| positions | 1 << position)
}
