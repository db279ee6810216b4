//! A replica that is to come back, and that its target has open for a writer.

use std::sync::Arc;

use pmof_control::{Claim, PoolInfo, PoolRefusal, Reply, Request};

use super::Returns;
use crate::{
    PoolUrl, ReplicaError,
    lineage::{Apart, Found, of_returning},
    member::UNKNOWN_SUCCESSOR,
    pool::{Open, epochs::Epochs, halt::Halt},
    site::Site,
};

impl Returns {
    /// Asks a target for the replica that is to come back. This writer's own connection, of which the target has yet to notice that it is gone, is ended there;
    /// so is a writer that this one has superseded, and that was not told where its connections to the others were cut. From anybody else nothing is taken.
    pub(super) fn ask_for(
        &self,
        open: &Open,
        epochs: &Epochs,
        (site, url): (&Site, &PoolUrl),
        position: usize,
    ) -> Result<Reply, Halt> {
        let request = |claim| {
            let (name, require) = (url.name.clone(), self.require);
            Request::TakeOver { name, require, silent_ms: u64::MAX, claim }
        };
        let own = epochs.lock().view().epoch_of(position).map_or(Claim::None, Claim::Own);
        match site.ask_when_free(&request(own)) {
            Ok(reply) => return Ok(reply),
            Err(why) => {
                let is_held = matches!(why, ReplicaError::Refused { refusal: PoolRefusal::Busy, .. });
                open.members[position].standing().still_fails(Arc::new(why));
                if !is_held {
                    return Err(Halt::Later);
                }
            }
        }
        let Ok(Reply::Info(info)) = site.ask(&Request::Info { name: url.name.clone() }) else {
            return Err(Halt::Later);
        };
        let superseded = self.superseded_holder(open, epochs, &info)?;
        site.ask(&request(superseded)).map_err(|_| Halt::Later)
    }

    /// By which epoch the replica is taken from its holder, if this writer has superseded that one. A holder that has superseded this writer ends it.
    fn superseded_holder(&self, open: &Open, epochs: &Epochs, info: &PoolInfo) -> Result<Claim, Halt> {
        let (index, state) = (info.header.replica_index, &info.state);
        let is_of_pool = info.header.pool_uuid == self.identity.uuid;
        if !is_of_pool || !epochs.may_return(index, info.header.replica_uuid) {
            return Err(Halt::Later);
        }
        let locked = epochs.lock();
        if locked.has_ended() {
            return Err(Halt::Ended);
        }
        let view = locked.view();
        if view.is_superseded_by(state) {
            drop(locked);
            open.fence(info.open_by.as_deref().unwrap_or(UNKNOWN_SUCCESSOR));
            return Err(Halt::Ended);
        }
        let apart = of_returning(&Found { index, state }, view.line(), view.opening());
        let is_older = apart.as_ref().is_some_and(Apart::may_catch_up);
        if view.has_superseded() && is_older { Ok(Claim::Superseded(state.epoch.id)) } else { Err(Halt::Later) }
    }
}
