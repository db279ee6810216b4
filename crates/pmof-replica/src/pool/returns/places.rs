//! Places of members that come to a pool while it is open.

use std::sync::{Arc, Weak};

use super::{Attended, FIRST_PAUSE, Halt, Returning, Returns, Shared, Trust};
use crate::{
    PoolUrl, ReplicaError,
    member::{AbsentMember, Member},
    pool::{domains::number_domains, opened::Identity},
    site::Site,
};

impl Returns {
    /// A place for a replica that nobody brings in before it is a member. Returns the one that it has where that is not a new one.
    pub(in crate::pool) fn add_place(&self, url: &Arc<PoolUrl>) -> Option<usize> {
        let attended = Attended { has_thread: true, is_running: false, pause: FIRST_PAUSE, back_since: None };
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

    /// Lets go of a member on this machine that has failed: its file stays locked as long as its memory is mapped.
    pub(super) fn let_go(&self, pool: &Weak<Shared>, position: usize) -> Result<(), Halt> {
        let shared = pool.upgrade().ok_or(Halt::Ended)?;
        let mut guard = self.hold_all(&shared)?;
        let open = guard.as_ref().ok_or(Halt::Ended)?;
        let standing = open.members[position].standing();
        let why = standing.failure().cloned().ok_or(Halt::Later)?;
        let absent = AbsentMember::new(Arc::clone(&standing.place), why).of_witness(standing.state().is_witness());
        let absent: Arc<dyn Member> = Arc::new(absent);
        if let Some(epochs) = &open.epochs {
            epochs.replace(position, &absent);
        }
        let mut members = open.members.clone();
        members[position] = absent;
        *guard = Some(Arc::new(open.with_members(members, open.catching_up.clone())));
        Ok(())
    }

    /// Has a witness that is back have its place: it knows of the epoch in force by now, and is sent nothing else.
    pub(super) fn admit_witness(
        &self,
        pool: &Weak<Shared>,
        position: usize,
        member: Arc<dyn Member>,
    ) -> Result<Returning, Halt> {
        let shared = pool.upgrade().ok_or(Halt::Ended)?;
        let mut guard = self.hold_all(&shared)?;
        let open = guard.as_ref().ok_or(Halt::Ended)?;
        let mut members = open.members.clone();
        members[position] = Arc::clone(&member);
        member.standing().is_admitted();
        number_domains(&members);
        *guard = Some(Arc::new(open.with_members(members, open.catching_up.clone())));
        Ok(Returning { member, is_compared: true })
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
