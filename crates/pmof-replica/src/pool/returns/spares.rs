//! When a spare takes the place of a member that is lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{Returns, Shared, spawn};
use crate::{
    member::Member,
    pool::{Open, Pool},
};

#[cfg(test)]
mod tests;

/// Since when members have been lost, by their positions.
#[derive(Debug, Default)]
struct Lost(BTreeMap<usize, Instant>);

impl Lost {
    /// Takes in which are lost now. Returns those that have been for so long, or longer, the one that has been for longest first. One that comes back begins anew.
    fn look(&mut self, lost: &[usize], now: Instant, after: Duration) -> Vec<usize> {
        self.0.retain(|position, _| lost.contains(position));
        for position in lost {
            self.0.entry(*position).or_insert(now);
        }
        let mut due: Vec<_> = self.0.iter().filter(|(_, since)| now.duration_since(**since) >= after).collect();
        due.sort_by_key(|(_, since)| **since);
        due.into_iter().map(|(position, _)| *position).collect()
    }
}

/// What it takes to take spares.
#[derive(Debug)]
pub(in crate::pool) struct Spares {
    /// How long a member is lost before.
    after: Duration,
    lost: Mutex<Lost>,
    /// One at a time.
    is_taking: AtomicBool,
}

impl Spares {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, lost: Mutex::default(), is_taking: AtomicBool::new(false) }
    }
}

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
        if !is_wanted || self.spares.is_taking.swap(true, Ordering::AcqRel) {
            return;
        }
        let (returns, pool) = (Arc::clone(self), Pool(Arc::clone(shared)));
        let started = spawn("pmof-pool-spare", move || {
            if let Err(error) = pool.take_spare(&due) {
                // It is tried again at the next look, as long as the member is lost.
                log::warn!("no spare was taken: {}", pmof_mem::causes(&error));
            }
            returns.spares.is_taking.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            log::error!("no thread to take a spare could be started: {error}");
            self.spares.is_taking.store(false, Ordering::Release);
        }
    }
}
