//! The members of a pool as the keeper of its epochs.

use core::future::pending;

use uuid::Uuid;

use super::{Driver, connected};
use crate::keeper::{EpochRecord, Keeper, KeeperError, Kept};

/// A quorum of the members that a driver sends requests to.
///
/// The engine sends Begin and Confirm to the members with each keeper, and starts again where one of them does not answer. So this keeper only has to see, before they are sent, that
/// those who will know are a quorum: then all that it decides by has happened when the members have answered.
#[derive(Debug)]
pub struct MemberQuorum<'d, D>(&'d D);

impl<'d, D: Driver> MemberQuorum<'d, D> {
    /// Of the members of `driver`.
    pub fn of(driver: &'d D) -> Self {
        Self(driver)
    }
}

impl<D: Driver> Keeper for MemberQuorum<'_, D> {
    async fn begin(&self, _: &EpochRecord) -> Result<(), KeeperError> {
        let connected = connected(self.0);
        let is_quorum = self.0.with(|epochs| epochs.view.is_quorum(epochs.membership.informed(connected)));
        if is_quorum { Ok(()) } else { Err(KeeperError::TooFew) }
    }

    /// All that heard of the announcement have it, or the engine would begin again.
    async fn confirm(&self, _: &EpochRecord) -> Result<(), KeeperError> {
        Ok(())
    }

    /// What the writer of the pool knows. An opening reads what the members say, by [`agree`](crate::lineage::agree).
    async fn read(&self) -> Result<Kept, KeeperError> {
        self.0.with(|epochs| epochs.view.kept()).ok_or(KeeperError::Unreachable)
    }

    /// Members push nothing. A writer learns of its successor from a target that ends its connection, and from a member that returns
    /// ([`Holder::Successor`](crate::returning::Holder::Successor)).
    async fn watch(&self, _: Uuid) -> Result<Kept, KeeperError> {
        pending().await
    }
}
