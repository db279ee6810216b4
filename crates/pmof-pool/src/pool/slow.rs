//! Replicas that take longer than the pool waits for them: left behind, and brought back when they keep up.
//!
//! A replica in sync has all that was acknowledged. So one that nobody waits for any more is no longer in sync: a new epoch leaves it behind,
//! which a quorum knows durably before anything that it lacks is acknowledged. It stays connected. Nothing is sent to it until it has
//! answered what it was sent, as promptly as the others; then it catches up.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{
    Flushings, Open,
    acknowledge::{LEAST_PATIENCE, Patience},
    halt::Halt,
};
use crate::{
    member::{FlushLevel, Flushing, Member, Standing, Write},
    view::Positions,
};

/// Flushes that a replica has to answer as promptly as the others before it catches up, and again before it joins.
const PROBES: usize = 8;

impl Open {
    /// Posts a piece of a write on all replicas. Returns those that it was not posted on, or not all of it.
    pub(super) fn write_piece(&self, write: &Write<'_>) -> Positions {
        let mut missed = 0;
        for (position, member) in self.members.iter().enumerate() {
            if !self.write_on(position, &**member, write) {
                missed |= 1 << position;
            }
        }
        missed
    }

    fn write_on(&self, position: usize, member: &dyn Member, write: &Write<'_>) -> bool {
        let Some(slow_after) = self.terms.slow_after else {
            member.write(write);
            return true;
        };
        let state = member.state();
        if state.is_slow() {
            return false;
        }
        if state.is_behind() {
            let is_posted = member.write_within(write, slow_after);
            if !is_posted {
                member.standing().leave_behind();
            }
            return is_posted;
        }
        if member.write_within(write, slow_after.max(LEAST_PATIENCE)) {
            return true;
        }
        if self.leave_behind(1 << position) {
            return false;
        }
        // The same bytes once more: nothing of this caller's was posted behind them.
        member.write(write);
        true
    }

    /// Leaves replicas behind that are too slow, if the others are enough.
    fn leave_behind(&self, slow: Positions) -> bool {
        let Some(epochs) = &self.epochs else { return false };
        epochs.try_lock().is_some_and(|state| state.leave_behind(slow))
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

    /// Whether a replica that is behind answers as promptly as the others, or is needed as it is. Tells how long its answers may take while the
    /// pool is held for it: `None` where they are waited for in any case.
    pub(super) fn keeps_up(&self, candidate: &dyn Member) -> Result<Option<Duration>, Halt> {
        let Some(slow_after) = self.terms.slow_after else { return Ok(None) };
        // Whatever it owes comes first.
        if !candidate.flush_everything(FlushLevel::OfPool) {
            return Err(Halt::Slow);
        }
        let mut limit = slow_after;
        for _ in 0..PROBES {
            if self.is_needed() {
                return Ok(None);
            }
            limit = limit.max(self.probe(candidate, slow_after).ok_or(Halt::Slow)?);
        }
        Ok(Some(limit))
    }

    /// Whether too few replicas are in sync to acknowledge anything.
    pub(super) fn is_needed(&self) -> bool {
        let in_use = self.members.iter().filter(|member| member.state().is_in_sync()).map(|member| member.standing());
        !self.terms.are_met(in_use.map(Standing::domain))
    }

    /// How long a flush may take: so much longer than the same of a replica in sync. `None`: it took longer.
    fn probe(&self, candidate: &dyn Member, slow_after: Duration) -> Option<Duration> {
        let began = Instant::now();
        // One on another machine, where there is one: what is here answers sooner than any other.
        let reference = self.in_use().find(|member| member.remote().is_some()).or_else(|| self.in_use().next());
        let of_reference = reference.map(|reference| reference.start_flush_everything(FlushLevel::OfPool));
        let mut flushing = candidate.start_flush_everything(FlushLevel::OfPool);
        if let (Some(reference), Some(mut flushing)) = (reference, of_reference) {
            reference.has_flushed(&mut flushing, None);
        }
        let allowed = began.elapsed() + slow_after;
        let is_prompt = candidate.has_flushed(&mut flushing, Some(slow_after));
        if !is_prompt {
            candidate.has_flushed(&mut flushing, None);
        }
        is_prompt.then_some(allowed)
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
