//! What is told of replicas that are no members.

use pmof_control::{Epoch, PoolState};

use super::ReplicaError;
use crate::lineage::Outsider;

impl ReplicaError {
    /// Whether the replica is no member of the pool any more, or never was.
    pub fn is_of_no_member(&self) -> bool {
        matches!(
            self,
            Self::NotAMember { .. } | Self::Superseded { .. } | Self::AnotherHistory { .. } | Self::SameIdentity { .. }
        )
    }

    /// Why a replica is no member, by its state, the epochs that each of the members knows, and the number of their last opening.
    pub(crate) fn outside(index: u16, state: &PoolState, (lines, others): (&[Vec<Epoch>], u64)) -> Self {
        Self::outsider(Outsider::of(index, state, lines), index, (state.opening, others))
    }
}
