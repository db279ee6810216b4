//! When a persist is acknowledged.

use std::time::Duration;

use pmof_replication::posting::AckTerms;
use rustix::time::{ClockId, clock_gettime};

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

impl Acknowledge {
    /// `slow_after` and `loss_timeout` are the pool's.
    pub(super) fn terms(self, slow_after: Option<Duration>, loss_timeout: Duration) -> AckTerms {
        let (least, domains) = match self {
            Self::InSync => (1, 1),
            Self::AtLeast(least) => (least.max(1), 1),
            Self::Survive(lost) => (1, lost.saturating_add(1)),
        };
        AckTerms { least, domains, slow_after, give_up_after: loss_timeout.saturating_mul(2) }
    }
}

/// The time that patience counts, from any moment on.
pub(super) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
