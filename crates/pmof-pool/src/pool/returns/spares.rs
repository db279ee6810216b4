//! When a spare takes the place of a member that is lost.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Instant,
};

use pmof_locks::MutexGuard;
use pmof_mem::causes;

use super::{Returns, Shared, hold, lost::Candidate, spawn};
use crate::{
    ChangeError, ReplicaError,
    member::Member,
    pool::{Open, Pool, status::SpareState},
};

/// A replica that is copied to while it is no member. From the end of this it is brought in as any other.
pub(in crate::pool) struct Learning<'r>(&'r Returns);

impl Learning<'_> {
    /// Whether it was given up meanwhile, so that nobody brings it in who does not begin to.
    pub(in crate::pool) fn end(self) -> bool {
        self.0.spares.candidate.lock().take().is_some_and(|candidate| candidate.is_given_up)
    }

    /// Whether the replica is to be given up: somebody else changes the members, or the pool is being closed.
    pub(in crate::pool) fn has_to_give_way(&self) -> bool {
        self.0.spares.gives_way.load(Ordering::Acquire) || self.0.is_stopping()
    }
}

impl Drop for Learning<'_> {
    fn drop(&mut self) {
        *self.0.spares.candidate.lock() = None;
    }
}

impl Returns {
    /// Has the replica at a position be copied to, which is no member yet.
    pub(in crate::pool) fn learn(&self, position: usize, spare: u16) -> Learning<'_> {
        *self.spares.candidate.lock() = Some(Candidate { position, spare, is_given_up: false });
        self.bring_in(position);
        Learning(self)
    }

    /// What has come of the last try to take a spare. Whether it is news.
    pub(in crate::pool) fn note_tried(&self, spare: u16, refused: Option<&Arc<ChangeError>>) -> bool {
        let mut all = self.spares.refused.lock();
        let before = match refused {
            Some(why) => all.insert(spare, Arc::clone(why)),
            None => all.remove(&spare),
        };
        let text = |why: &Arc<ChangeError>| causes(why).to_string();
        before.as_ref().map(text) != refused.map(text)
    }

    /// What is being done with a spare.
    pub(in crate::pool) fn spare_state(&self, open: &Open, spare: u16) -> SpareState {
        let candidate = self.spares.candidate.lock();
        if let Some(candidate) = candidate.as_ref().filter(|candidate| candidate.spare == spare) {
            let missing_bytes = open.missing_bytes(candidate.position).unwrap_or(open.facts.size_bytes);
            return SpareState::CopiedTo { missing_bytes };
        }
        drop(candidate);
        let refused = self.spares.refused.lock();
        refused.get(&spare).map_or(SpareState::Idle, |why| SpareState::NotTaken(Arc::clone(why)))
    }

    pub(in crate::pool) fn is_candidate(&self, position: usize) -> bool {
        self.spares.is_candidate(position)
    }

    /// A replica that is no member yet was lost: whoever wanted it to be one notices, and nobody brings it back. False: it is a member.
    pub(super) fn gives_up_candidate(&self, pool: &Weak<Shared>, position: usize) -> bool {
        let open = hold(pool);
        let mut candidate = self.spares.candidate.lock();
        let Some(candidate) = candidate.as_mut().filter(|candidate| candidate.position == position) else {
            return false;
        };
        candidate.is_given_up = true;
        if let Ok(open) = open {
            open.members[position].standing().fail(ReplicaError::Behind);
        }
        true
    }

    /// The right to change the members, for whoever operates the pool: a spare that is being made gives way. `None`: somebody else changes them.
    pub(in crate::pool) fn right_to_change(&self) -> Option<MutexGuard<'_, ()>> {
        let right = self.changing.try_lock();
        if right.is_some() || !self.spares.is_taking.load(Ordering::Acquire) {
            return right;
        }
        self.spares.gives_way.store(true, Ordering::Release);
        self.changing.try_lock_for(2 * self.reach.loss_timeout)
    }

    /// Has a spare taken where a member has been lost for so long, or where a writer before has begun to take one; one at a time.
    pub(super) fn look_for_spares(self: &Arc<Self>, shared: &Arc<Shared>, open: &Open) {
        let Some(roster) = open.epochs.as_ref().filter(|_| !self.is_forced).and_then(|epochs| epochs.roster()) else {
            return;
        };
        let is_lost = |(position, member): (usize, &Arc<dyn Member>)| {
            let state = member.state();
            (state.is_lost() && state.is_data_member()).then_some(position)
        };
        let lost: Vec<_> = open.members.iter().enumerate().filter_map(is_lost).collect();
        let due = self.spares.lost.lock().look(&lost, Instant::now(), self.spares.after);
        let is_begun = roster.spares().any(|spare| !spare.replica_uuid.is_nil());
        let is_wanted = is_begun || (!due.is_empty() && roster.spares().next().is_some());
        if !is_wanted || !self.spares.may_try(Instant::now()) || self.spares.is_taking.load(Ordering::Acquire) {
            return;
        }
        // Nobody asks for that before a spare is being taken.
        self.spares.gives_way.store(false, Ordering::Release);
        self.spares.is_taking.store(true, Ordering::Release);
        let (returns, pool) = (Arc::clone(self), Pool(Arc::clone(shared)));
        let started = spawn("pmof-pool-spare", move || {
            let taken = pool.take_spare(&due).unwrap_or_else(|error| {
                // It is tried again after a pause, as long as the member is lost.
                log::warn!("no spare was taken: {}", causes(&error));
                false
            });
            returns.spares.tried(taken, Instant::now());
            returns.spares.is_taking.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            log::error!("no thread to take a spare could be started: {error}");
            self.spares.is_taking.store(false, Ordering::Release);
        }
    }
}
