//! Replicas that take longer than the pool waits for them: left behind, and brought back when they keep up.
//!
//! A replica in sync has all that was acknowledged. So one that nobody waits for any more is no longer in sync: a new epoch leaves it behind,
//! which a quorum knows durably before anything that it lacks is acknowledged. It stays connected. Nothing is sent to it until it has
//! answered what it was sent, as promptly as the others; then it catches up.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use pmof_replication::posting::{self, Posting};

use super::{Flushings, Open, acknowledge::Patience, halt::Halt};
use crate::{
    member::{FlushLevel, Flushing, Member, Standing, Write},
    member_state::MemberState,
    view::Positions,
};

impl Open {
    /// Posts a piece of a write on all replicas. Returns those that it was not posted on, or not all of it.
    pub(super) fn write_piece(&self, write: &Write<'_>) -> Positions {
        let mut missed = 0;
        for (position, member) in self.members.iter().enumerate() {
            if !posting::post(self, (position, member), write) {
                missed |= 1 << position;
            }
        }
        missed
    }

    /// Waits for the flushes of all replicas, as long as they are to be waited for.
    pub(super) fn wait_for_enough(&self, flushing: &mut Flushings) {
        let Some(mut patience) = Patience::of(&self.terms) else { return };
        let slice = patience.slice();
        while !self.look(flushing, slice, &mut patience) {}
    }

    /// Waits for each flush in turn, for a slice. False: there are some to be waited for.
    pub(super) fn look(&self, flushing: &mut Flushings, slice: Duration, patience: &mut Patience) -> bool {
        let mut slow = 0;
        for (position, (member, flushing)) in self.members.iter().zip(flushing).enumerate() {
            if member.state().is_in_sync() && !member.is_flushed(flushing, slice) {
                slow |= 1 << position;
            }
        }
        if slow == 0 || patience.is_lost() {
            return true;
        }
        let Some(state) = self.epochs.as_ref().and_then(|epochs| epochs.try_lock()) else { return false };
        patience.is_over(state.may_leave_behind(slow)) && state.leave_behind(slow)
    }

    /// Keeps flushes that nobody waits for any more, so that their outcomes are taken in.
    pub(super) fn abandon(&self, flushing: Flushings) {
        if flushing.iter().any(Flushing::is_in_flight) {
            self.abandoned.lock().push(flushing);
            self.has_abandoned.store(true, Ordering::Relaxed);
        }
    }

    /// Whether too few replicas are in sync to acknowledge anything.
    pub(super) fn is_needed(&self) -> bool {
        let in_use = self.members.iter().filter(|member| member.state().is_in_sync()).map(|member| member.standing());
        !self.terms.are_met(in_use.map(Standing::domain))
    }

    /// A replica in sync whose flush shows how long one takes: on another machine, where there is one, since what is here answers sooner than any other.
    pub(super) fn reference(&self) -> Option<&Arc<dyn Member>> {
        self.in_use().find(|member| member.remote().is_some()).or_else(|| self.in_use().next())
    }

    /// Makes everything durable on a replica that is about to join, while the pool is held.
    pub(super) fn flush_last(&self, position: usize, member: &dyn Member, limit: Option<Duration>) -> Result<(), Halt> {
        let mut flushing = member.start_flush_everything(FlushLevel::OfPool);
        if member.has_flushed(&mut flushing, limit) {
            return Ok(());
        }
        let is_slow = flushing.is_in_flight();
        let mut all: Flushings = self.members.iter().map(|_| Flushing::default()).collect();
        all[position] = flushing;
        self.abandon(all);
        Err(if is_slow { Halt::Slow } else { Halt::Later })
    }
}

impl Posting<Write<'_>> for Open {
    type Member = Arc<dyn Member>;

    #[inline]
    fn slow_after(&self) -> Option<Duration> {
        self.terms.slow_after
    }

    #[inline]
    fn state(&self, member: &Arc<dyn Member>) -> MemberState {
        member.state()
    }

    #[inline]
    fn write(&self, member: &Arc<dyn Member>, write: &Write<'_>) {
        member.write(write);
    }

    #[inline]
    fn write_within(&self, member: &Arc<dyn Member>, write: &Write<'_>, limit: Duration) -> bool {
        member.write_within(write, limit)
    }

    fn leave_behind(&self, member: &Arc<dyn Member>) {
        member.standing().leave_behind();
    }

    fn leave_in_sync_behind(&self, position: usize) -> bool {
        let Some(epochs) = &self.epochs else { return false };
        epochs.try_lock().is_some_and(|state| state.leave_behind(1 << position))
    }
}
