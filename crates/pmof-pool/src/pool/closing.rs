//! Closing a pool on every replica.

use std::sync::{Arc, atomic::Ordering};

use pmof_control::{MeantReplica, OpenFor, Request};
use pmof_pool_set::LocalSet;
use pmof_replication::member_state::{Link, MemberState};
use uuid::Uuid;

use super::{Open, Shared};
use crate::{
    PoolError, ReplicaPlace,
    member::{Flush, FlushLevel, Flushing, Member, replica_error},
};

impl Open {
    /// Makes everything that was written as durable as each replica can, so that the replicas stay equal. `is_flushed`: to the pool's
    /// own level it is already.
    pub(super) fn flush_everything(&self, is_flushed: bool) {
        let mut all: Vec<_> = self.in_use().map(|member| (member, Flushing::default())).collect();
        for (member, flushing) in &mut all {
            if !is_flushed || member.strongest() > self.facts.durability {
                *flushing = member.start_flush(Flush::Everything, FlushLevel::Strongest);
            }
        }
        for (member, flushing) in &mut all {
            // A failure is kept by the member.
            let _ = member.finish_flush(flushing);
        }
    }

    /// `is_flushed`: all that was written was flushed. `is_all_told`: the program knows of each write that was not that it may be lost.
    pub(super) fn close(&self, is_flushed: bool, is_all_told: bool) -> Result<(), PoolError> {
        if self.facts.access == OpenFor::Write && self.epochs.is_some() {
            self.flush_everything(is_flushed);
        }
        // Whether those that are closed in order are known, by enough of them, to be all that has everything.
        let is_loss_known = match &self.epochs {
            Some(epochs) => epochs.end(self.facts.access),
            None => false,
        };
        if is_loss_known {
            self.protect_all();
            self.end_intent();
        }
        let mut done = Ok(());
        let mut closed = Vec::with_capacity(self.members.len());
        // Those here come last: what this process has mapped cannot be taken back.
        let is_here = |member: &&Arc<dyn Member>| member.remote().is_none();
        let (here, there): (Vec<_>, Vec<_>) = self.members.iter().partition(is_here);
        for member in there.into_iter().chain(here) {
            // A pool that one replica lacks is not published on the next.
            if done.is_err() && self.is_unpublished {
                break;
            }
            // A loss that others make up for is no error, nor one that the program was told of, if no write depends on it that the program takes for
            // written; but a pool without one of its replicas gets no name.
            let (standing, state) = (member.standing(), member.state());
            match state {
                MemberState::Removed => continue,
                MemberState::Behind(link) | MemberState::Candidate(link) => {
                    if let Some(control) = member.control().filter(|_| link == Link::Connected) {
                        // It stays behind. What cannot be closed ends with the connection, as of one that is too slow to be waited for.
                        let _ = control.ask(&Request::Close { in_order: false });
                    }
                    continue;
                }
                MemberState::InSync
                | MemberState::Lost
                | MemberState::Witness(_)
                | MemberState::WitnessCandidate(_) => {}
            }
            let is_known = state.is_lost()
                && (is_loss_known || (standing.is_loss_reported() && is_all_told))
                && !self.is_unpublished;
            match member.close() {
                Ok(()) => closed.push(member),
                // Nothing that was acknowledged depends on a witness.
                Err(_) if is_known || state.is_witness() => {}
                Err(source) => done = done.and(Err(replica_error(&**member, source))),
            }
        }
        if done.is_err() && self.is_unpublished {
            let epoch = self.epochs.as_ref().and_then(|epochs| epochs.lock().view().epoch());
            for member in closed {
                take_back(&**member, epoch);
            }
        }
        let local = self.local.lock().take().map_or(Ok(()), LocalSet::close);
        done.and(local.map_err(Into::into))
    }
}

impl Shared {
    /// A flush has ended of what a lane had written.
    pub(super) fn note_end(&self, is_durable: bool) {
        if is_durable {
            self.unflushed.fetch_sub(1, Ordering::Release);
        } else {
            self.failed.fetch_add(1, Ordering::Release);
        }
    }
}

/// Removes a replica again that was closed and has its name, while others have not; not one that another program has opened since.
fn take_back(member: &dyn Member, epoch: Option<Uuid>) {
    if let (Some(control), ReplicaPlace::Pool(url)) = (member.control(), &*member.standing().place) {
        // What cannot be undone stays with the target; the first failure is reported.
        let meant = member.standing().replica_uuid().map(|uuid| MeantReplica { uuid, epoch });
        let _ = control.ask(&Request::Remove { name: url.name.clone(), meant });
    }
}
