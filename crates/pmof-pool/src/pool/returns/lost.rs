//! Since when members have been lost.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use pmof_locks::Mutex;

use crate::ChangeError;

#[cfg(test)]
mod tests;

/// Since when members have been lost, by their positions.
#[derive(Debug, Default)]
pub(super) struct Lost(BTreeMap<usize, Instant>);

impl Lost {
    /// Takes in which are lost now. Returns those that have been for so long, or longer, the one that has been for longest first. One that comes back begins anew.
    pub(super) fn look(&mut self, lost: &[usize], now: Instant, after: Duration) -> Vec<usize> {
        self.0.retain(|position, _| lost.contains(position));
        for position in lost {
            self.0.entry(*position).or_insert(now);
        }
        let mut due: Vec<_> = self.0.iter().filter(|(_, since)| now.duration_since(**since) >= after).collect();
        due.sort_by_key(|(_, since)| **since);
        due.into_iter().map(|(position, _)| *position).collect()
    }
}

/// A replica that is copied to while it is no member.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) position: usize,
    /// The number of the spare that it is made of.
    pub(super) spare: u16,
    /// Nobody brings it in any more.
    pub(super) is_given_up: bool,
}

/// What it takes to take spares.
#[derive(Debug)]
pub(in crate::pool) struct Spares {
    /// How long a member is lost before.
    pub(super) after: Duration,
    pub(super) lost: Mutex<Lost>,
    /// One at a time.
    pub(super) is_taking: AtomicBool,
    /// Where the replica lies that is to be a member when it lacks little.
    pub(super) candidate: Mutex<Option<Candidate>>,
    /// Why spares could not be taken, by their numbers.
    pub(super) refused: Mutex<BTreeMap<u16, Arc<ChangeError>>>,
    /// Somebody wants to change the members, and does not wait for that.
    pub(super) gives_way: AtomicBool,
    /// When none could be taken: not to be tried again before this time, and the pause that led there.
    pub(super) failed: Mutex<Option<(Instant, Duration)>>,
}

/// Pauses between two tries to take a spare: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

impl Spares {
    pub(super) fn new(after: Duration) -> Self {
        Self {
            after,
            lost: Mutex::default(),
            is_taking: AtomicBool::new(false),
            candidate: Mutex::default(),
            refused: Mutex::default(),
            gives_way: AtomicBool::new(false),
            failed: Mutex::default(),
        }
    }

    /// Whether the replica at this position is to be a member only when it lacks little.
    pub(super) fn is_candidate(&self, position: usize) -> bool {
        self.candidate.lock().as_ref().is_some_and(|candidate| candidate.position == position)
    }

    /// Whether the last try is over for long enough.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.failed.lock().is_none_or(|(until, _)| until <= now)
    }

    /// A try is over.
    pub(super) fn tried(&self, is_taken: bool, now: Instant) {
        let mut failed = self.failed.lock();
        let pause = failed.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
        *failed = (!is_taken).then(|| (now + pause, pause));
    }
}
