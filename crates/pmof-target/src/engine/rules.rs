//! The rules of a target, each in a method of its own, so that the simulation can break one and show that it is needed.

use pmof_control::{Header, HeaderError, PoolState};
use uuid::Uuid;

use super::OpenReplica;

/// How a target judges.
pub trait Rules: Copy {
    /// What the head of a file says.
    ///
    /// # Errors
    /// It is no header of a pool, or a newer one.
    fn header(&self, head: &[u8]) -> Result<Header, HeaderError> {
        Header::decode(head)
    }

    /// The slots that hold a state, in the order in which they are written, and where they lie on the state page.
    fn slots(&self, state: &PoolState, sequence: u64) -> Vec<(usize, Vec<u8>)> {
        state.slots(sequence).into_iter().map(|(offset, slot)| (offset, slot.to_vec())).collect()
    }

    /// Whether a state page holds its state in so many copies that one may be damaged.
    fn is_kept(&self, page: &[u8]) -> bool {
        PoolState::is_in_both_slots(page)
    }

    /// Whether an epoch is of the writer that has the replica open now. The epoch that this writer found is that of the one before, who knows it too.
    fn is_epoch_of_writer<R: Rules>(&self, replica: &OpenReplica<R>, epoch: Uuid) -> bool {
        replica.named_epoch() == Some(epoch) || (replica.has_begun() && replica.state().epoch.id == epoch)
    }
}

/// The rules as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShippedRules;

impl Rules for ShippedRules {}
