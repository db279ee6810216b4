//! What an opening's engine finds wrong with replicas, as errors.

use std::sync::Arc;

use pmof_replication::{
    asking::{Cause, Reason},
    lineage::Outsider,
};

use super::ReplicaError;

impl From<Reason> for ReplicaError {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Silent { waited } => Self::Silent { waited_ms: waited.as_millis().try_into().unwrap_or(u64::MAX) },
            Reason::Unexpected => Self::Unexpected,
            Reason::Mismatch { uuid, found_uuid, size_bytes, found_bytes } => {
                Self::Mismatch { uuid, found_uuid, size_bytes, found_bytes }
            }
            Reason::NotTheMember { index, found } => Self::NotTheMember { index, found },
            Reason::Asynchronous { index } => Self::Asynchronous { index },
            Reason::Witness { index, members } => Self::Witness { index, members },
            Reason::Apart { apart, made } => Self::of(apart, made),
            Reason::Outside { outsider, index, opening, others } => Self::outsider(outsider, index, (opening, others)),
        }
    }
}

impl ReplicaError {
    /// Why a replica is no member, whose last opening is the first of these, and the members' the second.
    pub(crate) fn outsider(outsider: Outsider, index: u16, (opening, others): (u64, u64)) -> Self {
        match outsider {
            Outsider::Unrelated => Self::SameIdentity { index },
            Outsider::WentOn => Self::AnotherHistory { index, opening, others },
            Outsider::Superseded => Self::Superseded { index },
            Outsider::Left => Self::NotAMember { index },
        }
    }
}

/// Why a replica is left out, for the program.
pub(crate) fn told(cause: Cause<ReplicaError>) -> Arc<ReplicaError> {
    match cause {
        Cause::Failed(failure) => failure,
        Cause::Reason(reason) => Arc::new(reason.into()),
    }
}
