//! What a persist is acknowledged by.

use core::time::Duration;

use crate::domain::{ReplicaDomain, distinct};

/// What a persist is acknowledged by, and how long it waits for more than that.
#[derive(Clone, Copy, Debug)]
pub struct AckTerms {
    /// Replicas that must have the bytes, 1 at least.
    pub least: usize,
    /// Failure domains that these must be in, 1 at least.
    pub domains: usize,
    /// How long a replica may take longer than enough others; `None`: until it counts as lost.
    pub slow_after: Option<Duration>,
    /// After so long one that does not answer is the only one waited for, until it is lost.
    pub give_up_after: Duration,
}

impl AckTerms {
    /// All replicas in sync have the bytes, however long they take.
    pub const ALL: Self = Self { least: 1, domains: 1, slow_after: None, give_up_after: Duration::MAX };

    /// Whether replicas in these domains are enough.
    #[inline]
    pub fn are_met(&self, have_it: impl Iterator<Item = Option<ReplicaDomain>> + Clone) -> bool {
        have_it.clone().count() >= self.least && (self.domains == 1 || distinct(have_it) >= self.domains)
    }

    /// Whether so many replicas in so many domains can be enough.
    ///
    /// # Errors
    /// What there would be too few of, how many are wanted, and how many there are.
    pub fn check_can_be_met(&self, replicas: usize, domains: usize) -> Result<(), (&'static str, usize, usize)> {
        if self.least > replicas {
            return Err(("replicas", self.least, replicas));
        }
        if self.domains > 1 && self.domains > domains {
            return Err(("failure domains", self.domains, domains));
        }
        Ok(())
    }
}
