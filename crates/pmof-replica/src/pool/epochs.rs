//! Who takes part in what: the epochs and marks that native replicas keep in their headers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use pmof_control::{Epoch, OpenFor, Reply, Request};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

use crate::{
    ReplicaError,
    lineage::Base,
    member::{Member, RemoteMember, Standing},
};

/// How long a mark stands while the pool is written: a copy of a replica's file that is older by more is told from the replica.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The members of a pool by their positions: bit *n* for the *n*-th.
type Positions = u64;

/// Replicas that must have an epoch before anything depends on it: any two openings have met one of them.
pub(crate) fn quorum(made: usize) -> usize {
    // Of two, one that says that the other is left behind is enough, and one that does not say so opens nothing alone.
    if made <= 2 { 1 } else { made / 2 + 1 }
}

/// The epoch of an open pool, and the mark in it.
#[derive(Debug)]
pub(super) struct Epochs {
    /// Members that must know of an epoch.
    quorum: usize,
    /// When this opening raised the mark, in nanoseconds of [`now`]; 0 for never.
    marked_at: AtomicU64,
    /// The members of the epoch that is durable.
    current: AtomicU64,
    state: Mutex<State>,
}

/// What changes of the epochs of an open pool. Whoever holds it keeps all others from changing it.
#[derive(Debug)]
pub(super) struct State {
    /// All members of the pool as it is now, those that are out of use too.
    members: Vec<Arc<dyn Member>>,
    /// Which replica of the pool each is, where that is known.
    indexes: Vec<Option<u16>>,
    /// What the epoch of the members in use descends from, itself included.
    base: Base,
    /// The highest mark of a member in use.
    mark: u64,
    /// Where each member was when it was left behind, of those that were in sync before.
    left_at: Vec<Option<Left>>,
    /// The pool is being closed: who is acknowledged since has what it wrote on replicas that were closed in order, or that failed.
    has_ended: bool,
}

/// Where a member was when it was left behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// The epoch that it was a member of.
    pub(super) epoch: Uuid,
    /// The mark that it had, or one more.
    pub(super) mark: u64,
}

impl Epochs {
    pub(super) fn new(
        members: Vec<Arc<dyn Member>>,
        indexes: Vec<Option<u16>>,
        base: Base,
        mark: u64,
        quorum: usize,
    ) -> Self {
        let current = AtomicU64::new(positions(&members, Standing::is_in_use));
        let left_at = vec![None; members.len()];
        let state = State { members, indexes, base, mark, left_at, has_ended: false };
        Self { quorum, marked_at: AtomicU64::new(0), current, state: Mutex::new(state) }
    }

    /// Has the members in use know what they must before a persist is acknowledged: that those which failed are left behind, and now and
    /// then a new mark. Whether the persist may be acknowledged: too few members may be left to know. `members`: those that it was posted to.
    pub(super) fn acknowledge(&self, members: &[Arc<dyn Member>]) -> bool {
        if !self.is_due() && positions(members, Standing::is_in_use) == self.current.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.state.lock();
        if state.has_ended {
            return state.in_use() == self.current.load(Ordering::Acquire);
        }
        // Those that are left behind are so before the mark is raised: it tells how far they came.
        let is_settled = state.in_use() == self.current.load(Ordering::Acquire) || self.begin_in(&mut state);
        if !is_settled || !self.is_due() {
            return is_settled;
        }
        self.raise_mark(&mut state);
        state.in_use() == self.current.load(Ordering::Acquire) || self.begin_in(&mut state)
    }

    /// Gives the members in use an epoch of their own, durably. One that does not take it is lost. False: too few were left.
    ///
    /// First all are told, then all are told that all were: until then nothing was written under the epoch, and a replica that was
    /// not reached lacks nothing.
    pub(super) fn begin(&self) -> bool {
        self.begin_in(&mut self.state.lock())
    }

    /// The same, by whoever has [locked](Self::lock) the state.
    pub(super) fn begin_in(&self, state: &mut State) -> bool {
        loop {
            let (connected, in_use) = (state.connected(), state.in_use());
            if in_use == 0 || (connected.count_ones() as usize) < self.quorum {
                return false;
            }
            let indexes = state.indexes.iter().enumerate().filter(|(position, _)| in_use & (1 << position) != 0);
            let epoch = Epoch::new(indexes.filter_map(|(_, index)| *index));
            let opening = state.base.opening.saturating_add(1);
            let ancestors = state.base.ancestors.clone();
            // Those that catch up are no members, and witnesses all the same.
            tell_all(&state.members, &Request::Begin { opening, epoch, ancestors }, &Reply::Begun);
            if state.connected() != connected {
                continue;
            }
            tell_all(&state.members, &Request::Confirm { epoch: epoch.id }, &Reply::Confirmed);
            state.note_left(self.current.load(Ordering::Acquire) & !in_use);
            state.base = Base::after(epoch, opening, &state.base.ancestors);
            if state.connected() == connected {
                self.current.store(in_use, Ordering::Release);
                return true;
            }
        }
    }

    /// Has a member that has come back know durably that it is behind the epoch in force, and gives it its place. False: it did not take
    /// that, or too few are left, or the pool is being closed.
    ///
    /// It is told without the lock, so that one that does not answer keeps nobody waiting.
    pub(super) fn introduce(&self, position: usize, index: u16, member: &Arc<dyn Member>) -> bool {
        let Some(remote) = member.remote() else { return false };
        let mut told = None;
        loop {
            let begin = {
                let mut state = self.state.lock();
                let Some((epoch, ancestors)) = state.base.ancestors.split_first() else { return false };
                let is_needed = epoch.has(index);
                if state.has_ended {
                    return false;
                }
                if is_needed || told == Some(epoch.id) {
                    state.members[position] = Arc::clone(member);
                    state.indexes[position] = Some(index);
                    // Where the epoch has it, too few were left to go on without it.
                    return !is_needed || self.begin_in(&mut state);
                }
                Request::Begin { opening: state.base.opening, epoch: *epoch, ancestors: ancestors.to_vec() }
            };
            let Request::Begin { epoch, .. } = &begin else { return false };
            let confirm = Request::Confirm { epoch: epoch.id };
            if remote.ask_for(&begin, &Reply::Begun).is_err() || remote.ask_for(&confirm, &Reply::Confirmed).is_err() {
                return false;
            }
            told = Some(epoch.id);
        }
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

    /// Tells the mark as it is.
    pub(super) fn tell_mark(&self) {
        let state = self.state.lock();
        Self::tell_mark_in(&state);
    }

    /// The same, by whoever has locked the state.
    pub(super) fn tell_mark_in(state: &State) {
        tell_in_use(&state.members, &Request::Mark { mark: state.mark }, &Reply::Marked);
    }

    fn is_due(&self) -> bool {
        let marked_at = self.marked_at.load(Ordering::Acquire);
        marked_at == 0 || now().saturating_sub(marked_at) >= MARK_INTERVAL.as_nanos() as u64
    }

    /// Raises the mark on all members in use, durably: after the flush and before the persist is acknowledged, so that a copy
    /// made an interval before the acknowledgement lacks the mark. The target takes the occasion to see that the file still has its name.
    fn raise_mark(&self, state: &mut State) {
        let now = now();
        state.mark = state.mark.saturating_add(1);
        tell_in_use(&state.members, &Request::Mark { mark: state.mark }, &Reply::Marked);
        // Not before: others that are to be acknowledged wait for it.
        self.marked_at.store(now, Ordering::Release);
    }
}

impl State {
    /// Epochs that led to the one in force, itself first.
    pub(super) fn line(&self) -> &[Epoch] {
        &self.base.ancestors
    }

    /// Openings and changes of members so far.
    pub(super) fn opening(&self) -> u64 {
        self.base.opening
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Where a member that was in sync while the pool was open was when it was left behind.
    pub(super) fn left_at(&self, position: usize) -> Option<Left> {
        self.left_at.get(position).copied().flatten()
    }

    /// The epoch in force, of which only its writer and its members know.
    pub(super) fn epoch(&self) -> Option<Uuid> {
        self.base.ancestors.first().map(|epoch| epoch.id)
    }

    fn note_left(&mut self, positions: Positions) {
        let Some(epoch) = self.epoch() else { return };
        for (position, left_at) in self.left_at.iter_mut().enumerate() {
            if positions & (1 << position) != 0 {
                *left_at = Some(Left { epoch, mark: self.mark });
            }
        }
    }

    pub(super) fn index(&self, position: usize) -> Option<u16> {
        self.indexes.get(position).copied().flatten()
    }

    /// Whether another member is this replica of the pool.
    pub(super) fn has_other(&self, index: u16, position: usize) -> bool {
        self.indexes.iter().enumerate().any(|(other, known)| other != position && *known == Some(index))
    }

    fn connected(&self) -> Positions {
        positions(&self.members, |standing| standing.failure().is_none())
    }

    fn in_use(&self) -> Positions {
        positions(&self.members, Standing::is_in_use)
    }
}

/// Nanoseconds of a clock that goes on in steps of the kernel's tick, 1 to 10 ms: a small part of an interval, and each persist reads it.
fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec.unsigned_abs() * NANOS_PER_SECOND + now.tv_nsec.unsigned_abs()).max(1)
}

fn positions(members: &[Arc<dyn Member>], is: impl Fn(&Standing) -> bool) -> Positions {
    let members = members.iter().enumerate().filter(|(_, member)| is(member.standing()));
    members.fold(0, |positions, (position, _)| positions | 1 << position)
}

fn tell_in_use(members: &[Arc<dyn Member>], request: &Request, expected: &Reply) {
    let in_use = members.iter().filter(|member| member.standing().is_in_use());
    tell(in_use.filter_map(|member| member.remote()), request, expected);
}

/// Tells those that catch up too.
fn tell_all(members: &[Arc<dyn Member>], request: &Request, expected: &Reply) {
    tell(members.iter().filter_map(|member| member.remote()), request, expected);
}

/// Asks the same of members in parallel. One that answers anything else is lost.
fn tell<'m>(remotes: impl Iterator<Item = &'m RemoteMember>, request: &Request, expected: &Reply) {
    let remotes: Vec<&RemoteMember> = remotes.collect();
    let asked: Vec<_> = remotes.iter().map(|remote| remote.start_asking(request)).collect();
    for (remote, asking) in remotes.iter().zip(&asked) {
        if remote.finish_asking(asking).is_some_and(|reply| reply != *expected) {
            remote.fail(ReplicaError::Unexpected);
        }
    }
}
