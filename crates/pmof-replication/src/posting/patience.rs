//! How long members that take longer than others are waited for, and when the pool goes on without them.
//!
//! A member in sync has all that was acknowledged. So one that is no longer waited for is no longer in sync: it is left behind by a new epoch, which a quorum knows
//! durably before anything that it lacks is acknowledged.

use core::time::Duration;

use super::{AckTerms, LEAST_PATIENCE};
use crate::{
    domain::ReplicaDomain,
    epochs::Epochs,
    member_state::MemberState,
    view::{Positions, bits},
};

#[cfg(test)]
mod tests;

/// The shortest and the longest time that one of several is waited for in turn.
const SLICE_MIN: Duration = Duration::from_micros(50);
const SLICE_MAX: Duration = Duration::from_millis(10);

/// The members of a pool, while no one else changes its epochs.
pub trait Members {
    /// What a persist is acknowledged by.
    fn terms(&self) -> AckTerms;

    /// Looks at the epochs.
    fn with<T>(&self, look: impl FnOnce(&Epochs) -> T) -> T;

    /// The positions of the members in such states.
    fn positions(&self, is: impl Fn(MemberState) -> bool) -> Positions;

    /// The failure domain of a member. `None`: it is unknown.
    fn domain(&self, position: usize) -> Option<ReplicaDomain>;

    /// Leaves a member behind.
    fn leave_behind(&self, position: usize);
}

/// What several members were asked for at once: flushes, or answers about epochs.
pub trait Waiting {
    /// The pool's members.
    type Members: Members;

    /// The time, from any moment on.
    fn now(&self) -> Duration;

    /// Waits for each that has yet to answer in turn, for so long at most. Returns the members that are still waited for.
    fn wait_for_each(&mut self, slice: Duration) -> impl Future<Output = Positions>;

    /// Looks at the members, and may leave some behind. `None`: someone else changes the epochs.
    fn with_members<T>(&self, look: impl FnOnce(&Self::Members) -> T) -> Option<T>;
}

/// How long several members are waited for: each in turn for a slice, and a late one no longer than agreed when enough others are done.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    slow_after: Duration,
    give_up_after: Duration,
    began: Option<Duration>,
    enough_since: Option<Duration>,
}

impl Patience {
    /// For flushes. `None`: all are waited for.
    #[inline]
    pub fn of(terms: &AckTerms) -> Option<Self> {
        let give_up_after = terms.give_up_after;
        terms.slow_after.map(|slow_after| Self { slow_after, give_up_after, began: None, enough_since: None })
    }

    /// For answers about epochs and marks, which wait for the disk that a state lies on, whatever a flush waits for. While the pool is opened all are waited for: one that
    /// is left behind then has to be compared as a whole.
    pub fn of_answers(terms: &AckTerms, epochs: &Epochs) -> Option<Self> {
        let patience = Self::of(terms).filter(|_| epochs.view.has_made_equal())?;
        Some(Self { slow_after: patience.slow_after.max(LEAST_PATIENCE), ..patience })
    }

    /// How long one of them is waited for before the next.
    fn slice(&self) -> Duration {
        (self.slow_after / 4).clamp(SLICE_MIN, SLICE_MAX)
    }

    /// Whether the time of the late members is up.
    fn is_over(&mut self, now: Duration, are_others_enough: bool) -> bool {
        if !are_others_enough {
            self.enough_since = None;
            return false;
        }
        now.saturating_sub(*self.enough_since.get_or_insert(now)) >= self.slow_after
    }

    /// Whether they are to be waited for one by one, as if there were no limit: one that is silent for so long is lost.
    fn has_given_up(&mut self, now: Duration) -> bool {
        now.saturating_sub(*self.began.get_or_insert(now)) >= self.give_up_after
    }
}

/// Whether the pool may go on without members that are too slow.
fn are_enough_without(members: &impl Members, slow: Positions) -> bool {
    let in_use = members.positions(MemberState::is_in_sync) & !members.with(|epochs| epochs.membership.leaving());
    let (left, prompt) = (in_use & !slow, members.positions(MemberState::is_prompt) & !slow);
    // One that is behind already is no loss.
    let are_met = left == in_use || members.terms().are_met(bits(left).map(|position| members.domain(position)));
    are_met && members.with(|epochs| epochs.view.may_go_on_with(prompt, left))
}

/// Leaves members behind that take too long, if the others are enough. Who has to know of it is not told yet.
pub fn leave_behind(members: &impl Members, slow: Positions) -> bool {
    let are_enough = are_enough_without(members, slow);
    if are_enough {
        bits(slow).for_each(|position| members.leave_behind(position));
    }
    are_enough
}

/// Waits for all in turn, for a slice each. `None`: some are still to be waited for. Else the members that were left behind; all others are done, or to be waited for without a limit.
pub async fn look<W: Waiting>(waiting: &mut W, slice: Duration, patience: Option<&mut Patience>) -> Option<Positions> {
    let slow = waiting.wait_for_each(slice).await;
    if slow == 0 {
        return Some(0);
    }
    let (patience, now) = (patience?, waiting.now());
    if patience.has_given_up(now) {
        return Some(0);
    }
    let is_over =
        |members: &W::Members| patience.is_over(now, are_enough_without(members, slow)) && leave_behind(members, slow);
    waiting.with_members(is_over)?.then_some(slow)
}

/// Waits for all as long as they are to be waited for together. Returns the members that were left behind; all others are done, or to be waited for without a limit.
pub async fn wait(waiting: &mut impl Waiting, patience: Option<Patience>) -> Positions {
    let Some(mut patience) = patience else { return 0 };
    let slice = patience.slice();
    loop {
        if let Some(left_behind) = look(waiting, slice, Some(&mut patience)).await {
            return left_behind;
        }
    }
}
