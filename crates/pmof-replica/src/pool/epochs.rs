//! Who takes part in what: the epochs and marks that native replicas keep in their headers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use pmof_control::{OpenFor, PoolState, Reply, Request, Role, Roster, RosterMember};
use pmof_replication::member_state::{Link, MemberState};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::{
    PoolUrl, ReplicaError,
    lineage::Base,
    member::{Asking, Control, Member},
    membership::Membership,
    view::{Change, Introduction, Positions, Rule, Step, View},
};

use super::{
    acknowledge::{AckTerms, Patience},
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

/// An epoch that was announced for a member to join by.
#[derive(Debug)]
pub(super) struct Joining {
    change: Change,
    /// [`State::changes`] since then.
    changes: u64,
    /// What the member was told.
    mark: Request,
}

/// What changes of the epochs of an open pool. Whoever holds it keeps all others from changing it.
#[derive(Debug)]
pub(super) struct State {
    /// All members of the pool as it is now, those that are out of use too.
    members: Vec<Arc<dyn Member>>,
    view: View,
    membership: Membership,
    /// Members that have no data, where no roster tells.
    witness_count: usize,
    /// Epochs that were announced, and members that were introduced: each undoes an announcement before it.
    changes: u64,
    terms: AckTerms,
    /// The opening has made the members equal.
    is_opened: bool,
    /// The pool is being closed: who is acknowledged since has what it wrote on replicas that were closed in order, or that failed.
    has_ended: bool,
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
        let state = State {
            members,
            view,
            membership: Membership::default(),
            witness_count: 0,
            changes: 0,
            terms,
            is_opened: false,
            has_ended: false,
        };
        let count = AtomicUsize::new(state.view.counts().0);
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
        if state.has_ended {
            return state.in_use() == self.current.load(Ordering::Acquire);
        }
        // Those that are left behind are so before the mark is raised: it tells how far they came.
        let is_settled = state.view.is_settled(state.in_use()) || self.begin_in(&mut state);
        if !is_settled || !self.is_due() {
            return is_settled;
        }
        self.raise_mark(&mut state);
        state.in_use() == self.current.load(Ordering::Acquire) || self.begin_in(&mut state)
    }

    /// So many of the members have no data, as whoever opened the pool has found.
    pub(super) fn keep_witness_count(&self, count: usize) {
        let mut state = self.state.lock();
        state.witness_count = count;
        self.note_counts(&state);
    }

    fn note_counts(&self, state: &State) {
        self.count.store(state.data_count(), Ordering::Release);
        self.forgone.store(state.membership.roster().map_or(0, Roster::forgone_count), Ordering::Release);
    }

    /// The pool was made just now.
    pub(super) fn note_made(&self) {
        self.state.lock().view.note_made();
    }

    /// Gives the members in use an epoch of their own, durably. One that does not take it is lost. False: too few were left.
    pub(super) fn begin(&self) -> bool {
        self.begin_in(&mut self.state.lock())
    }

    /// The same, by whoever has [locked](Self::lock) the state.
    pub(super) fn begin_in(&self, state: &mut State) -> bool {
        self.go_on(state, Change::default())
    }

    fn go_on(&self, state: &mut State, mut change: Change) -> bool {
        state.changes += 1;
        loop {
            let informed = state.informed();
            let in_use = state.in_use();
            let step = state.view.step(&mut change, informed, in_use, Uuid::new_v4());
            self.current.store(state.view.current(), Ordering::Release);
            match step {
                Step::TellAll(question) => _ = state.tell(informed, &question.0, &question.1),
                Step::Done(is_done) => {
                    if is_done {
                        state.settle_members();
                        self.note_counts(state);
                    }
                    return is_done;
                }
            }
        }
    }

    /// Whether the members in use have an epoch without the others, which they are given if they have not.
    pub(super) fn settle(&self) -> bool {
        let mut state = self.state.lock();
        state.in_use() == self.current.load(Ordering::Acquire) || self.begin_in(&mut state)
    }

    /// Has a member that has come back know durably that it is behind the epoch in force, and gives it its place. False: it did not take
    /// that, or too few are left, or the pool is being closed.
    ///
    /// `known`: the replica that it is, where it has to be a member now. `found`: its state, unless it stayed connected. It is told without the lock, so that one that does not answer keeps nobody waiting.
    pub(super) fn introduce(
        &self,
        position: usize,
        (index, known, found): (u16, Option<Uuid>, Option<&PoolState>),
        member: &Arc<dyn Member>,
    ) -> bool {
        let Some(control) = member.control() else { return false };
        let (mut told, mut given) = (None, None);
        loop {
            let to_tell = {
                let mut state = self.state.lock();
                // It may have been removed since it was looked up.
                if state.has_ended || !known.is_none_or(|uuid| state.membership.may_return(index, uuid)) {
                    return false;
                }
                if given.as_ref() != state.membership.roster() {
                    given = state.membership.roster().cloned();
                    drop(state);
                    // First: what it says of epochs counts for the members that it names.
                    if !given.as_ref().is_none_or(|roster| give_roster(control, roster)) {
                        return false;
                    }
                    continue;
                }
                let is_told = told.is_some() && told == state.view.epoch();
                match state.view.introduction(index, found) {
                    None => return false,
                    Some(Introduction::Tell(to_tell)) if !is_told => {
                        told = state.view.epoch();
                        to_tell
                    }
                    introduction => {
                        state.members[position] = Arc::clone(member);
                        state.membership.note_kept(1 << position);
                        state.changes += 1;
                        state.view.identify(position, index);
                        return !matches!(introduction, Some(Introduction::ByChange)) || self.begin_in(&mut state);
                    }
                }
            };
            if !to_tell.iter().all(|(request, expected)| control.ask_for(request, expected).is_ok()) {
                return false;
            }
        }
    }

    /// Puts another in the place of a member that has failed.
    pub(super) fn replace(&self, position: usize, member: &Arc<dyn Member>) {
        let mut state = self.state.lock();
        state.members[position] = Arc::clone(member);
        state.membership.note_replaced(position);
    }

    /// Tells all of an epoch in which a member takes part that is about to join, and that member the mark. Until it has [joined](Self::join),
    /// everything is acknowledged under the epoch before, as if this had not been.
    ///
    /// `limit`: how long the member's answer may take.
    pub(super) fn announce_with(
        &self,
        position: usize,
        control: &Control,
        limit: Option<Duration>,
    ) -> Result<Joining, Halt> {
        let mut state = self.state.lock();
        if state.has_ended {
            return Err(Halt::Ended);
        }
        let mark = state.view.mark();
        // Before it is a member: one with an older mark would pass for an older copy.
        ask_within(control, &mark, &Reply::Marked, limit)?;
        state.view.note_marked(position, &mark);
        state.changes += 1;
        let (mut change, changes) = (Change::default(), state.changes);
        let informed = state.informed();
        let in_use = state.in_use() | 1 << position;
        match state.view.announce(&mut change, informed, in_use, Uuid::new_v4()) {
            Step::TellAll(question) => _ = state.tell(informed, &question.0, &question.1),
            Step::Done(_) => return Err(Halt::Later),
        }
        Ok(Joining { change, changes, mark })
    }

    /// Confirms the epoch that was announced, while nobody posts; where another was announced since, or a member was lost or came back, begins one
    /// anew. From then on the member counts. `limit`: how long its answer may take.
    pub(super) fn join(&self, joining: &Joining, member: &dyn Member, limit: Option<Duration>) -> Result<(), Halt> {
        let mut state = self.state.lock();
        if state.has_ended {
            return Err(Halt::Ended);
        }
        let mark = state.view.mark();
        if mark != joining.mark {
            ask_within(member.control().ok_or(Halt::Later)?, &mark, &Reply::Marked, limit)?;
        }
        let caught_up = member.standing().has_caught_up();
        if caught_up.is_behind() {
            return Err(not_joined(caught_up));
        }
        let change = if state.changes == joining.changes { joining.change } else { Change::default() };
        let _ = self.go_on(&mut state, change);
        let joined = member.state();
        if joined.is_in_sync() { Ok(()) } else { Err(not_joined(joined)) }
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
        state.has_ended = true;
        is_settled
    }

    /// The members in use have been made equal.
    pub(super) fn note_equal(&self) {
        let mut state = self.state.lock();
        let in_use = state.in_use();
        state.view.note_equal(in_use);
        state.is_opened = true;
    }

    /// Tells the mark as it is.
    pub(super) fn tell_mark(&self) {
        let state = self.state.lock();
        state.tell(state.in_use(), &state.view.mark(), &Reply::Marked);
    }

    /// Tells the mark to a member that knows that it is behind: it then tells an older copy of another, and of itself, from the replica.
    pub(super) fn mark_behind(&self, position: usize, control: &Control) -> Result<(), Arc<ReplicaError>> {
        let mark = self.state.lock().view.mark();
        control.ask_for(&mark, &Reply::Marked)?;
        self.state.lock().view.note_marked(position, &mark);
        Ok(())
    }

    /// Raises the mark, whether it is due or not: copies of the members' files that were made before are known to be older. False: the pool is
    /// being closed.
    pub(super) fn date_copies(&self) -> bool {
        let mut state = self.state.lock();
        if !state.has_ended {
            self.raise_mark(&mut state);
        }
        !state.has_ended
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
        let Some(roster) = state.membership.settled(&state.view) else { return true };
        let is_found = state.view.index(position).is_some_and(|index| roster.member(index).is_some());
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
        let current = match state.view.current() {
            0 => Positions::MAX,
            current => current,
        };
        state.tell(state.in_use() | (current & state.prompt()), request, expected);
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

    /// Raises the mark on all members in use, durably: after the flush and before the persist is acknowledged, so that a copy
    /// made an interval before the acknowledgement lacks the mark. The target takes the occasion to see that the file still has its name. Witnesses keep it, too: an
    /// older copy of the only replica in sync is told by them.
    fn raise_mark(&self, state: &mut State) {
        let now = now();
        let request = state.view.raise_mark();
        let in_use = state.in_use();
        let witnesses = if in_use == 0 { 0 } else { state.connected_witnesses() };
        state.tell(in_use | witnesses, &request, &Reply::Marked);
        // Not before: others that are to be acknowledged wait for it.
        self.marked_at.store(now, Ordering::Release);
    }
}

impl State {
    pub(super) fn view(&self) -> &View {
        &self.view
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Members that are told of an epoch: all that are connected, or all but those that are too slow where the others are enough.
    fn connected(&self) -> Positions {
        let prompt = self.prompt();
        if self.view.is_quorum(prompt) { prompt } else { positions(&self.members, MemberState::is_connected) }
    }

    fn prompt(&self) -> Positions {
        positions(&self.members, MemberState::is_prompt)
    }

    fn connected_witnesses(&self) -> Positions {
        positions(&self.members, |state| state.is_witness() && state.is_well()) & !self.membership.leaving()
    }

    /// Members that the pool has and that have its data: as they were, while a change is under way.
    fn data_count(&self) -> usize {
        let is_witness = |member: &&RosterMember| member.role == Role::Witness;
        let in_roster = |roster: &Roster| roster.settled(|_| false).members.iter().filter(is_witness).count();
        self.view.counts().0.saturating_sub(self.membership.roster().map_or(self.witness_count, in_roster))
    }

    fn in_use(&self) -> Positions {
        positions(&self.members, MemberState::is_in_sync) & !self.membership.leaving()
    }

    /// Whether the pool may go on without members that are too slow.
    pub(super) fn may_leave_behind(&self, slow: Positions) -> bool {
        let (in_use, prompt) = (self.in_use() & !slow, self.prompt() & !slow);
        // One that is behind already is no loss to those who write.
        let left = self.members.iter().enumerate().filter(|(position, _)| in_use & (1 << position) != 0);
        let are_met = || self.terms.are_met(left.map(|(_, member)| member.standing().domain()));
        let are_met = self.in_use() == in_use || are_met();
        are_met && self.view.may_go_on_with(prompt, in_use)
    }

    /// Leaves members behind that others do not wait for any more, if the others are enough. Who has to know of it is not told yet.
    pub(super) fn leave_behind(&self, slow: Positions) -> bool {
        let is_enough = self.may_leave_behind(slow);
        if is_enough {
            let members = self.members.iter().enumerate().filter(|(position, _)| slow & (1 << position) != 0);
            members.for_each(|(_, member)| member.standing().leave_behind());
        }
        is_enough
    }

    /// Asks the same of members in parallel. One that answers anything else is lost, one that takes too long is left behind. Returns those that
    /// have answered.
    fn tell<'s>(&'s self, asked: Positions, request: &Request, expected: &Reply) -> Positions {
        let asked = self.members.iter().enumerate().filter(|(position, _)| asked & (1 << position) != 0);
        let controls: Vec<_> = asked.filter_map(|(position, member)| Some((position, member.control()?))).collect();
        let mut answered = 0;
        let mut check = |position: usize, control: &Control, reply: Option<Reply>| match reply {
            Some(reply) if reply == *expected => answered |= 1 << position,
            Some(_) => _ = control.fail(ReplicaError::Unexpected),
            None => {}
        };
        // While the pool is opened all are waited for: one that is left behind then has to be compared as a whole.
        let Some(mut patience) = Patience::of_answers(&self.terms).filter(|_| self.is_opened) else {
            let asked: Vec<_> = controls.iter().map(|(_, control)| control.start_asking(request)).collect();
            for ((position, control), asking) in controls.iter().zip(asked) {
                check(*position, control, control.finish_asking(asking));
            }
            return answered;
        };
        // What another thread asks it may take time.
        let at_once = |control: &'s Control| control.start_asking_within(request, Duration::ZERO);
        let mut asked: Vec<_> =
            controls.into_iter().map(|(position, control)| (position, control, at_once(control))).collect();
        while !asked.is_empty() {
            asked.retain_mut(|(position, control, asking)| {
                if asking.is_none() {
                    *asking = control.start_asking_within(request, patience.slice());
                }
                let answer = asking.as_mut().and_then(|asking| control.answer_within(asking, patience.slice()));
                let is_waited_for = answer.is_none();
                if let Some(reply) = answer {
                    check(*position, control, reply.ok());
                }
                is_waited_for
            });
            let slow = asked.iter().fold(0, |slow, (position, ..)| slow | 1 << position);
            if slow != 0 && patience.is_over(self.may_leave_behind(slow)) && self.leave_behind(slow) {
                asked.drain(..).filter_map(|(.., asking)| asking).for_each(Asking::abandon);
            }
        }
        answered
    }
}

/// Why a member in this state is not in sync, though it had caught up.
fn not_joined(state: MemberState) -> Halt {
    assert!(!state.is_in_sync() && state != MemberState::Behind(Link::Connected), "it has caught up and is {state:?}");
    if state.is_slow() { Halt::Slow } else { Halt::Later }
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
