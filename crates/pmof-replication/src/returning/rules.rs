//! The rules of a return, each in a method of its own, so that the simulation can break one and show that it is needed.

use super::judge::Holder;
use crate::{epochs::Epochs, lineage::Found, member_state::MemberState};

/// How a return judges what it finds.
pub trait Rules {
    /// Whether a replica that the roster calls a witness has data.
    fn has_data(&self, is_witness: bool) -> bool {
        !is_witness
    }

    /// Whether a member in this state is copied to.
    fn is_copied_to(&self, state: MemberState) -> bool {
        !state.is_witness()
    }

    /// What the writer that holds the replica is to this one.
    fn holder(&self, epochs: &Epochs, found: &Found<'_>) -> Holder {
        Holder::of(epochs, found)
    }
}

/// The rules as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShippedRules;

impl Rules for ShippedRules {}
