//! Spares: addresses in the roster, where a member is made in the place of one that has been lost for long. They count for nothing.

use std::sync::Arc;

use pmof_replication::changing as engine;

use super::ChangeError;
use crate::pool::{Pool, epochs::done};

impl Pool {
    /// Notes an address where the writer makes a member by itself in the place of one that has been lost for [so long](crate::PoolOptions::spare_after), as
    /// [`replace`](Self::replace) does, when it lacks nothing more. A member that is in sync before that stays. Nothing lies there before; that a replica could be made there, with its room, is tried now.
    ///
    /// [`remove`](Self::remove) takes it away.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn add_spare(&self, url: &str) -> Result<(), ChangeError> {
        let (changer, url) = (self.changer()?, Arc::new(url.parse()?));
        done(engine::add_spare(&changer, &url))
    }

    /// Takes a spare in the place of the first member of those at `positions` that is still lost, or goes on where another writer has begun to. False: none of the spares was of use.
    pub(in crate::pool) fn take_spare(&self, positions: &[usize]) -> Result<bool, ChangeError> {
        let changer = self.changer_by(|returns| returns.changing.try_lock())?;
        done(engine::take_spare(&changer, positions))
    }
}
