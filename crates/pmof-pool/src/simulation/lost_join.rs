//! The keeper has put an epoch in force by which a member joins, and its reply is lost: the member is lost, its writer acknowledges what it can and crashes, and for a while only that
//! member is left. By the keeper it may open the pool alone, so that it must have all that was acknowledged.

use super::{
    faults::Fault,
    keeper::LostJoin,
    world::{Link, World},
};

/// Steps that the writer has to acknowledge something.
const ACKNOWLEDGING_STEPS: u64 = 300;

/// Persists that are acknowledged before it crashes.
const ACKNOWLEDGED: u64 = 3;

/// Steps in which only that member is left.
const ALONE_STEPS: u64 = 300;

impl World {
    /// The writer has no reply to an epoch, in force by now, by which members of these indexes join.
    pub(super) fn reply_to_join_is_lost(&mut self, writer: usize, joined: u64) {
        let is_one = joined.is_power_of_two() && self.lost_join.is_none() && !self.is_faultless;
        let has_index = |index: u16| joined == 1 << index;
        let target =
            self.targets.iter().position(|target| target.is_there && !target.is_witness && has_index(target.index));
        let Some(target) = target.filter(|_| is_one && self.decay.once_in(2)) else { return };
        self.count(Fault::JoinedUnknown);
        let is_to = |at: &usize| self.connections[*at].writer == writer && self.connections[*at].target == target;
        let connections: Vec<_> = (0..self.connections.len()).filter(is_to).collect();
        for connection in connections {
            self.close_here(connection);
        }
        self.links[writer][target] = Link { requests_blocked: true, replies_blocked: true };
        let (acknowledged, until_step) = (self.truth.acknowledged, self.step + ACKNOWLEDGING_STEPS);
        self.note(|| format!("w{writer} does not know that t{target} has joined, and loses it"));
        self.lost_join = Some(LostJoin { writer, target, acknowledged, until_step, is_alone: false });
    }

    /// Leaves only that member, or brings the others back.
    fn stop_others(&mut self, joined: usize, stops: bool) {
        for other in (0..self.targets.len()).filter(|other| *other != joined) {
            if stops {
                self.stop(other, false);
            } else {
                self.targets[other].is_up = true;
            }
        }
        self.targets[joined].is_up = true;
        self.links.iter_mut().for_each(|links| links[joined] = Link::default());
    }

    /// What follows a lost reply, once a step. Returns the writer that is to crash.
    pub(super) fn go_on_with_lost_join(&mut self) -> Option<usize> {
        let join = self.lost_join.take()?;
        let has_acknowledged = self.truth.acknowledged >= join.acknowledged + ACKNOWLEDGED;
        if self.step < join.until_step && (join.is_alone || !has_acknowledged) {
            self.lost_join = Some(join);
            return None;
        }
        self.stop_others(join.target, !join.is_alone);
        if join.is_alone {
            return None;
        }
        let writer = join.writer;
        self.lost_join = Some(LostJoin { until_step: self.step + ALONE_STEPS, is_alone: true, ..join });
        Some(writer)
    }
}
