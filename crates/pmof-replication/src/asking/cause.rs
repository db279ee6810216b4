//! Why a target did not answer as it was to.

use alloc::{string::String, sync::Arc, vec::Vec};
use core::time::Duration;

use pmof_control::PoolRefusal;
use uuid::Uuid;

use crate::lineage::{Apart, Outsider};

/// A failure of the driver's, as far as the engine depends on it.
pub trait Failure {
    /// Whether the replica may be lost for this reason, rather than in use or unfit: a pool is opened without it, if the others are enough.
    fn may_be_lost(&self) -> bool;

    /// The rule by which its target refused, if that is what failed.
    fn refusal(&self) -> Option<PoolRefusal>;
}

/// Why a replica is not part of the pool as it was opened.
#[derive(Debug)]
pub enum Cause<F> {
    /// The driver's failure.
    Failed(Arc<F>),
    /// The opening's reason.
    Reason(Reason),
}

/// What an opening finds wrong with a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It had not answered when enough others had.
    Silent {
        /// How long it was awaited.
        waited: Duration,
    },
    /// Its target's answer does not fit the question.
    Unexpected,
    /// It is of another pool, or has another size.
    Mismatch {
        /// The pool, by the first replica.
        uuid: Uuid,
        /// This replica's.
        found_uuid: Uuid,
        /// The size of the first replica.
        size_bytes: u64,
        /// This replica's.
        found_bytes: u64,
    },
    /// Another replica lies where a roster has this member.
    NotTheMember {
        /// Index of the member.
        index: u16,
        /// Index of the replica that lies there.
        found: u16,
    },
    /// It is an asynchronous member.
    Asynchronous {
        /// Its index.
        index: u16,
    },
    /// It is a witness.
    Witness {
        /// Its index.
        index: u16,
        /// Addresses of the members that have the pool's bytes.
        members: Vec<String>,
    },
    /// It does not belong to the others.
    Apart {
        /// Why.
        apart: Apart,
        /// Members that the pool has.
        made: u16,
    },
    /// It is no member.
    Outside {
        /// What it has in common with the members.
        outsider: Outsider,
        /// Its index.
        index: u16,
        /// Its last opening.
        opening: u64,
        /// The last opening of the members.
        others: u64,
    },
}

impl<F> Clone for Cause<F> {
    fn clone(&self) -> Self {
        match self {
            Self::Failed(failure) => Self::Failed(Arc::clone(failure)),
            Self::Reason(reason) => Self::Reason(reason.clone()),
        }
    }
}

impl<F: Failure> Cause<F> {
    pub(crate) fn failed(failure: F) -> Self {
        Self::Failed(Arc::new(failure))
    }

    pub(crate) fn may_be_lost(&self) -> bool {
        match self {
            Self::Failed(failure) => failure.may_be_lost(),
            Self::Reason(reason) => matches!(reason, Reason::Silent { .. }),
        }
    }

    fn refusal(&self) -> Option<PoolRefusal> {
        match self {
            Self::Failed(failure) => failure.refusal(),
            Self::Reason(_) => None,
        }
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.refusal().is_some()
    }

    /// Another initiator has it open, and may be about to release it.
    pub(crate) fn may_be_free_soon(&self) -> bool {
        self.refusal() == Some(PoolRefusal::Busy)
    }

    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.refusal(), Some(PoolRefusal::Busy | PoolRefusal::NotFenceable))
    }

    /// There is no such replica.
    pub(crate) fn is_absent(&self) -> bool {
        self.refusal() == Some(PoolRefusal::NotFound)
    }

    pub(crate) fn is_uncertain_state(&self) -> bool {
        self.refusal() == Some(PoolRefusal::UncertainState)
    }

    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Reason(Reason::Silent { .. }))
    }

    /// Whether it is no member with a vote.
    pub(crate) fn is_of_no_voter(&self) -> bool {
        matches!(self, Self::Reason(Reason::Outside { .. } | Reason::Asynchronous { .. }))
    }

    pub(crate) fn is_of_witness(&self) -> bool {
        matches!(self, Self::Reason(Reason::Witness { .. }))
    }
}

impl<F> From<Reason> for Cause<F> {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason)
    }
}
