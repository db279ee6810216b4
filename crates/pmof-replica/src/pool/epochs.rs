//! Who took part in what: the epochs and marks that native replicas keep in their headers.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use pmof_control::{Epoch, Reply, Request};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    ReplicaError,
    lineage::Base,
    member::{Member, RemoteMember},
};

/// How long a mark stands while the pool is written: a copy of a replica's file that is older by more is told from the replica.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The epoch of an open pool, and the mark in it.
#[derive(Debug)]
pub(super) struct Epochs {
    /// Which replica of the pool each member is.
    indexes: Vec<u16>,
    /// When this opening raised the mark, in nanoseconds of [`now`]; 0 for never.
    marked_at: AtomicU64,
    /// Members that failed and take no part in the epoch, which is durable.
    left_behind: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What the epoch of the members in use descends from, itself included.
    base: Base,
    /// The highest mark of a member in use.
    mark: u64,
    /// The pool is being closed: who is acknowledged since has what it wrote on replicas that were closed in order, or that failed.
    has_ended: bool,
}

impl Epochs {
    pub(super) fn new(indexes: Vec<u16>, base: Base, mark: u64) -> Self {
        let (marked_at, left_behind) = (AtomicU64::new(0), AtomicUsize::new(0));
        let state = State { base, mark, has_ended: false };
        Self { indexes, marked_at, left_behind, state: Mutex::new(state) }
    }

    /// Has the members in use know what they must before a persist is acknowledged: that those which failed are left behind, and now and
    /// then a new mark.
    pub(super) fn acknowledge(&self, members: &[Box<dyn Member>]) {
        if !self.is_due() && lost(members) == self.left_behind.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        if state.has_ended {
            return;
        }
        if self.is_due() {
            self.raise_mark(&mut state, members);
        }
        if lost(members) > self.left_behind.load(Ordering::Acquire) {
            self.begin_in(&mut state, members, 1);
        }
    }

    /// Gives the members in use an epoch of their own, durably. One that does not take it is lost.
    ///
    /// First all are told, then all are told that all were: until then nothing was written under the epoch, and a replica that was
    /// not reached lacks nothing. With fewer than `least` members in use none is begun.
    pub(super) fn begin(&self, members: &[Box<dyn Member>], least: usize) {
        self.begin_in(&mut self.state.lock(), members, least);
    }

    fn begin_in(&self, state: &mut State, members: &[Box<dyn Member>], least: usize) {
        while members.len() - lost(members) >= least.max(1) {
            let left_behind = lost(members);
            let in_use = members.iter().zip(&self.indexes).filter(|(member, _)| member.standing().failure().is_none());
            let epoch = Epoch::new(in_use.map(|(_, index)| *index));
            let opening = state.base.opening.saturating_add(1);
            let ancestors = state.base.ancestors.clone();
            tell_all(members, &Request::Begin { opening, epoch, ancestors }, &Reply::Begun);
            if lost(members) > left_behind {
                continue;
            }
            tell_all(members, &Request::Confirm { epoch: epoch.id }, &Reply::Confirmed);
            state.base = Base::after(epoch, opening, &state.base.ancestors);
            if lost(members) == left_behind {
                self.left_behind.store(left_behind, Ordering::Release);
                return;
            }
        }
        self.left_behind.store(lost(members), Ordering::Release);
    }

    /// Has the members be told nothing any more: they are about to be closed.
    pub(super) fn end(&self) {
        self.state.lock().has_ended = true;
    }

    /// Tells the mark as it is.
    pub(super) fn tell_mark(&self, members: &[Box<dyn Member>]) {
        tell_all(members, &Request::Mark { mark: self.state.lock().mark }, &Reply::Marked);
    }

    fn is_due(&self) -> bool {
        let marked_at = self.marked_at.load(Ordering::Acquire);
        marked_at == 0 || now().saturating_sub(marked_at) >= MARK_INTERVAL.as_nanos() as u64
    }

    /// Raises the mark on all members in use, durably: after the flush and before the persist is acknowledged, so that a copy
    /// made an interval before the acknowledgement lacks the mark. The target takes the occasion to see that the file still has its name.
    fn raise_mark(&self, state: &mut State, members: &[Box<dyn Member>]) {
        let now = now();
        state.mark = state.mark.saturating_add(1);
        tell_all(members, &Request::Mark { mark: state.mark }, &Reply::Marked);
        // Not before: others that are to be acknowledged wait for it.
        self.marked_at.store(now, Ordering::Release);
    }
}

/// Nanoseconds of a clock that goes on in steps of the kernel's tick, 1 to 10 ms: a small part of an interval, and each persist reads it.
fn now() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec.unsigned_abs() * NANOS_PER_SECOND + now.tv_nsec.unsigned_abs()).max(1)
}

fn lost(members: &[Box<dyn Member>]) -> usize {
    members.iter().filter(|member| member.standing().failure().is_some()).count()
}

/// Asks the same of all members in use, in parallel. One that answers anything else is lost.
fn tell_all(members: &[Box<dyn Member>], request: &Request, expected: &Reply) {
    let remotes: Vec<&RemoteMember> = members.iter().filter_map(|member| member.remote()).collect();
    let asked: Vec<_> = remotes.iter().map(|remote| remote.start_asking(request)).collect();
    for (remote, asking) in remotes.iter().zip(&asked) {
        if remote.finish_asking(asking).is_some_and(|reply| reply != *expected) {
            remote.fail(ReplicaError::Unexpected);
        }
    }
}
