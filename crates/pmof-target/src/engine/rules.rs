//! The rules of a target, each in a method of its own, so that the simulation can break one and show that it is needed.

use pmof_control::{CopySteps, Header, HeaderError, PoolFormat, PoolState};
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

    /// How the copies of a state in a file of this format are replaced by another one.
    fn state_steps(&self, state: &PoolState, format: PoolFormat, sequence: u64) -> CopySteps {
        state.steps(format, sequence)
    }

    /// Whether a file holds its state in so many copies that one may be damaged.
    fn is_kept(&self, format: PoolFormat, copies: &[u8]) -> bool {
        PoolState::is_in_all_copies(format, copies)
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
