//! Opening and making a pool: every target is asked at once, and the answers decide which replicas belong together.

use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;

use pmof_control::{OpenFor, Protection, USER_FLAGS_BYTES};
use pmof_terms::Durability;
use uuid::Uuid;

use crate::{
    asking::{Asking, Cause, Failure},
    keeper::KeptBy,
    place::Place,
};

mod ask;
mod create;
mod heard;
mod held;
mod judge;
mod others;
mod outcome;
mod outsiders;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use judge::one_twice;
pub use outcome::{FoundPool, Identity, Left, MadePool, OpenedReplica, OpenedReply, Outcome, Refusal, UnreadReplica};
pub use rules::{Rules, ShippedRules};

use ask::Run;

/// What an opening asks of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The level that each replica must give.
    pub require: Durability,
    /// Go on with so many replicas in sync, even where these are fewer than is safe.
    pub min_replicas: Option<usize>,
    /// Take the pool from a writer that has been silent for so long. For writing only.
    pub take_over: Option<Duration>,
    /// Replicas that must have what is acknowledged.
    pub least_replicas: usize,
    /// Failure domains that these must be in.
    pub least_domains: usize,
    /// Await each replica, also when enough others have answered.
    pub is_patient: bool,
    /// What decides which epoch is in force.
    pub keeper: KeptBy,
}

/// A pool to be made.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// Its identity.
    pub uuid: Uuid,
    /// A name for its first epoch.
    pub epoch: Uuid,
    /// Bytes of user data.
    pub size_bytes: u64,
    /// What its maker says of its contents.
    pub user_flags: [u8; USER_FLAGS_BYTES],
    /// It gets its name when it is closed.
    pub publish_on_close: bool,
    /// Its replicas keep digests of their pages.
    pub protection: Option<Protection>,
}

/// The opening or the creation of a pool, on its way to an [`Outcome`].
pub type Opening<P, F, T> = Asking<P, F, Outcome<P, F, T>>;

impl<P: Place + 'static, F: Failure + 'static> Opening<P, F, FoundPool> {
    /// Opens the replicas at `places` that belong together, or releases all of them.
    pub fn open(terms: Terms, access: OpenFor, places: Vec<Arc<P>>, rules: impl Rules + 'static) -> Self {
        let terms = Terms { take_over: terms.take_over.filter(|_| access == OpenFor::Write), ..terms };
        Self::new(move |exchange| Run::new(exchange, terms, access, places, rules).open())
    }
}

/// Opens one replica by itself, or takes it from a writer that has been silent for so long, whatever others its pool has.
pub fn open_one<P: Place + 'static, F: Failure + 'static>(
    place: Arc<P>,
    terms: (OpenFor, Durability),
    take_over: Option<Duration>,
) -> Asking<P, F, Result<(Identity, OpenedReplica), Cause<F>>> {
    Asking::new(move |exchange| async move { ask::open_one(&exchange, &place, terms, take_over).await })
}

impl<P: Place + 'static, F: Failure + 'static> Opening<P, F, MadePool> {
    /// Makes a replica at each of `places`, or none.
    pub fn create(terms: Terms, creation: Creation, places: Vec<Arc<P>>) -> Self {
        let terms = Terms { take_over: None, min_replicas: None, is_patient: true, ..terms };
        Self::new(move |exchange| Run::new(exchange, terms, OpenFor::Write, places, ShippedRules).create(creation))
    }
}
