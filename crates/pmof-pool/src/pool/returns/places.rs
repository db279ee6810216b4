//! Places of members that come to a pool while it is open.

use std::sync::Arc;

use pmof_replication::returning::{Backoff, Pauses, Trust};

use super::{Attended, Returns};
use crate::{PoolUrl, ReplicaError, pool::opened::Identity, site::Site};

impl Returns {
    /// A place for a replica that nobody brings in before it is a member. Returns the one that it has where that is not a new one.
    pub(in crate::pool) fn add_place(&self, url: &Arc<PoolUrl>) -> Option<usize> {
        let attended = Attended { has_thread: true, is_running: false, backoff: Backoff::new(&Pauses::default()) };
        let free = self.free_place();
        if let Some(position) = free {
            self.free_places.lock().retain(|free| *free != position);
            self.attended.lock()[position] = attended;
            self.trust.lock()[position] = Trust::default();
            self.urls.write()[position] = Arc::clone(url);
        } else {
            self.attended.lock().push(attended);
            self.trust.lock().push(Trust::default());
            self.urls.write().push(Arc::clone(url));
        }
        free
    }

    /// The place of a replica that has never been a member, and that no thread looks after any more.
    pub(in crate::pool) fn free_place(&self) -> Option<usize> {
        let attended = self.attended.lock();
        self.free_places.lock().iter().copied().find(|position| !attended[*position].is_running)
    }

    /// Nobody has this place, and nobody had it who has been a member.
    pub(in crate::pool) fn give_back_place(&self, position: usize) {
        // No thread begins for it.
        self.attended.lock()[position].has_thread = true;
        self.free_places.lock().push(position);
    }

    /// The replica at this position is a member, or may be, and is to catch up.
    pub(in crate::pool) fn bring_in(&self, position: usize) {
        self.attended.lock()[position].has_thread = false;
        self.losses.raise();
    }

    /// A connection of its own to where a replica is to be.
    pub(in crate::pool) fn site(&self, url: &PoolUrl) -> Result<Site, ReplicaError> {
        let peers = self.peers.lock().clone();
        self.reach.site(&peers, url)
    }

    pub(in crate::pool) fn identity(&self) -> Identity {
        self.identity
    }
}
