//! When a spare takes the place of a member that is lost.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use super::{Returns, Shared, spawn};
use crate::{
    member::Member,
    pool::{Open, Pool},
};

impl Returns {
    /// Has a spare taken where a member has been lost for so long, or where a writer before has begun to take one; one at a time.
    pub(super) fn look_for_spares(self: &Arc<Self>, shared: &Arc<Shared>, open: &Open) {
        let Some(roster) = open.epochs.as_ref().filter(|_| !self.is_forced).and_then(|epochs| epochs.roster()) else {
            return;
        };
        let is_lost = |(position, member): (usize, &Arc<dyn Member>)| {
            let standing = member.standing();
            let is_lost = standing.failure().is_some() && !standing.is_removed() && !standing.is_witness();
            is_lost.then_some(position)
        };
        let lost: Vec<_> = open.members.iter().enumerate().filter_map(is_lost).collect();
        let due = self.spares.lost.lock().look(&lost, Instant::now(), self.spares.after);
        let is_begun = roster.spares().any(|spare| !spare.replica_uuid.is_nil());
        let is_wanted = is_begun || (!due.is_empty() && roster.spares().next().is_some());
        if !is_wanted || !self.spares.may_try(Instant::now()) || self.spares.is_taking.swap(true, Ordering::AcqRel) {
            return;
        }
        let (returns, pool) = (Arc::clone(self), Pool(Arc::clone(shared)));
        let started = spawn("pmof-pool-spare", move || {
            let taken = pool.take_spare(&due);
            if let Err(error) = &taken {
                // It is tried again after a pause, as long as the member is lost.
                log::warn!("no spare was taken: {}", pmof_mem::causes(error));
            }
            returns.spares.tried(taken.is_ok(), Instant::now());
            returns.spares.is_taking.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            log::error!("no thread to take a spare could be started: {error}");
            self.spares.is_taking.store(false, Ordering::Release);
        }
    }
}
