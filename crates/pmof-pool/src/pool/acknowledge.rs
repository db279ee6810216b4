//! When a persist is acknowledged.

use std::time::{Duration, Instant};

use pmof_replication::posting::LEAST_PATIENCE;

use crate::{ReplicaDomain, domain::distinct};

/// When a persist is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acknowledge {
    /// When all replicas in sync have the bytes. One that is lost is in sync no more as soon as enough others know that durably.
    #[default]
    InSync,
    /// The same, and at least so many replicas have them; else the persist fails. With [`slow_after`](crate::PoolOptions::slow_after) it does not
    /// wait for more than these (1 at least) where the others are too slow: a quorum of so many. A pool that
    /// has fewer does not open for writing ([`PoolError::NeverAcknowledged`](crate::PoolError::NeverAcknowledged)).
    AtLeast(usize),
    /// The same, and the bytes are in so many failure domains and one more: they survive the loss of any so many, with all that is in them. A
    /// target's failure domain is its machine, unless its operator declared another one. A pool whose replicas cannot give that does not
    /// open ([`PoolError::TooFewDomains`](crate::PoolError::TooFewDomains)).
    Survive(usize),
}

/// What a persist is acknowledged by, and how long it waits for more than that.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckTerms {
    /// Replicas that must have the bytes, and failure domains that these must be in.
    least: usize,
    domains: usize,
    /// How long a replica may take longer than enough others; `None`: until it counts as lost.
    pub(super) slow_after: Option<Duration>,
    /// After so long one that does not answer is the only one waited for, until it is lost.
    give_up_after: Duration,
}

impl AckTerms {
    pub(super) fn new(acknowledge: Acknowledge, slow_after: Option<Duration>, loss_timeout: Duration) -> Self {
        let (least, domains) = match acknowledge {
            Acknowledge::InSync => (1, 1),
            Acknowledge::AtLeast(least) => (least.max(1), 1),
            Acknowledge::Survive(lost) => (1, lost.saturating_add(1)),
        };
        Self { least, domains, slow_after, give_up_after: loss_timeout.saturating_mul(2) }
    }

    /// Of a pool that waits for all.
    pub(super) fn of_all() -> Self {
        Self::new(Acknowledge::InSync, None, Duration::MAX)
    }

    /// Whether replicas in these domains are enough.
    pub(super) fn are_met(&self, have_it: impl Iterator<Item = Option<ReplicaDomain>> + Clone) -> bool {
        have_it.clone().count() >= self.least && (self.domains == 1 || distinct(have_it) >= self.domains)
    }

    /// Replicas that must have the bytes.
    pub(super) fn least(&self) -> usize {
        self.least
    }

    /// Whether so many replicas in so many domains can be enough. Else: what there would be too few of, how many are wanted, and how many there are.
    pub(super) fn check_can_be_met(&self, replicas: usize, domains: usize) -> Result<(), (&'static str, usize, usize)> {
        if self.least > replicas {
            return Err(("replicas", self.least, replicas));
        }
        if self.domains > 1 && self.domains > domains {
            return Err(("failure domains", self.domains, domains));
        }
        Ok(())
    }

    /// Failure domains that the bytes must be in.
    pub(super) fn domains(&self) -> usize {
        self.domains
    }
}

/// The shortest and the longest time that one of several is waited for in turn.
const SLICE_MIN: Duration = Duration::from_micros(50);
const SLICE_MAX: Duration = Duration::from_millis(10);

/// How long several replicas are waited for: each in turn for a slice, and those that are left no longer than agreed when enough others are done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    terms: AckTerms,
    slow_after: Duration,
    began: Option<Instant>,
    enough_since: Option<Instant>,
}

impl Patience {
    /// `None`: all are waited for.
    pub(super) fn of(terms: &AckTerms) -> Option<Self> {
        terms.slow_after.map(|slow_after| Self { terms: *terms, slow_after, began: None, enough_since: None })
    }

    /// The same for answers about epochs and marks, which wait for the disk that a state lies on, whatever a flush waits for.
    pub(super) fn of_answers(terms: &AckTerms) -> Option<Self> {
        Self::of(terms).map(|patience| Self { slow_after: patience.slow_after.max(LEAST_PATIENCE), ..patience })
    }

    /// How long one of them is waited for before the next.
    pub(super) fn slice(&self) -> Duration {
        (self.slow_after / 4).clamp(SLICE_MIN, SLICE_MAX)
    }

    /// Whether the time is up of those that were not done in their last slice. `are_others_enough`: those that are done, or failed.
    pub(super) fn is_over(&mut self, are_others_enough: bool) -> bool {
        let now = Instant::now();
        self.began.get_or_insert(now);
        if !are_others_enough {
            self.enough_since = None;
            return false;
        }
        let since = *self.enough_since.get_or_insert(now);
        now.duration_since(since) >= self.slow_after
    }

    /// Whether they are to be waited for one by one, as if there were no limit: one that is silent for so long is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() >= self.terms.give_up_after)
    }
}
