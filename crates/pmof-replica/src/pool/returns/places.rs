//! Places of members that come to a pool while it is open.

use std::sync::Arc;

use super::{Attended, FIRST_PAUSE, Returns, Trust};
use crate::{PoolUrl, ReplicaError, pool::opened::Identity, site::Site};

impl Returns {
    /// A place for a replica that nobody brings in before it is a member.
    pub(in crate::pool) fn add_place(&self, url: &Arc<PoolUrl>) {
        self.attended.lock().push(Attended { has_thread: true, pause: FIRST_PAUSE, back_since: None });
        self.trust.lock().push(Trust::default());
        self.urls.write().push(Arc::clone(url));
    }

    /// The replica at this position is a member, or may be, and is to catch up.
    pub(in crate::pool) fn bring_in(&self, position: usize) {
        self.attended.lock()[position].has_thread = false;
        self.losses.raise();
    }

    /// A connection of its own to where a replica is to be.
    pub(in crate::pool) fn site(&self, url: &PoolUrl) -> Result<Site, ReplicaError> {
        let mut peers = self.peers.lock().clone();
        self.reach.site(&mut peers, url)
    }

    pub(in crate::pool) fn identity(&self) -> Identity {
        self.identity
    }
}
