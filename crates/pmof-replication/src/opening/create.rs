//! Making a pool: on all of its replicas, or on none.

use alloc::{string::ToString, vec, vec::Vec};

use pmof_control::{MeantReplica, NewPool, PoolName, Request};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{
    Creation, MadePool, Outcome, Refusal, Rules,
    ask::{Failed, Run, Wish},
    outcome::OpenedReplica,
};
use crate::{
    asking::{Action, Failure, Patience, SiteId},
    place::Place,
};

impl Creation {
    /// Asks a target to make one of the replicas.
    pub(super) fn request(
        self,
        name: PoolName,
        replica_index: u16,
        replica_count: u16,
        require: Durability,
    ) -> Request {
        let Self { uuid: pool_uuid, epoch, size_bytes, user_flags, publish_on_close, protection } = self;
        let new =
            NewPool { pool_uuid, size_bytes, epoch, replica_index, replica_count, require, user_flags, protection };
        Request::Create { name, new, publish_on_close }
    }
}

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    pub(super) async fn create(mut self, creation: Creation) -> Outcome<P, F, MadePool> {
        let pool = self.make(creation).await;
        self.ended(pool)
    }

    async fn make(&mut self, creation: Creation) -> Result<MadePool, Refusal<F>> {
        self.connect_all().await?;
        self.check_acknowledge(self.places.len())?;
        let sites = core::mem::take(&mut self.sites);
        // Of several programs that make the same pool at once, one gets that replica, and the others make none.
        let first = (0..sites.len()).min_by_key(|at| self.places[sites[*at].0].to_string());
        let mut identity = None;
        let (opened, failed) = self.ask(sites, Wish::Create(creation), first, usize::MAX, &mut identity).await;
        let checked = self.check_domains(&opened);
        if let (Some(identity), true, true) = (identity, failed.is_empty(), checked.is_ok()) {
            return Ok(MadePool { identity, opened });
        }
        let made =
            opened.iter().map(|OpenedReplica { position, site, replica_uuid, .. }| (*position, *site, *replica_uuid));
        let failed_open = failed.iter().filter_map(|failed| Some((failed.position, failed.site, failed.open?)));
        self.undo(creation, made.chain(failed_open).collect()).await;
        match failed.into_iter().next() {
            Some(Failed { position, cause, .. }) => Err(Refusal::Replica { position, cause }),
            None => Err(checked.err().unwrap_or(Refusal::NoReplicas)),
        }
    }

    /// A pool is made everywhere, so that each is needed.
    async fn connect_all(&mut self) -> Result<(), Refusal<F>> {
        let places = self.places.clone();
        let sites = self.connect(&places, Patience::ENDLESS).await;
        for (position, site) in sites.into_iter().enumerate() {
            self.sites.push((position, site.map_err(|cause| Refusal::Replica { position, cause })?));
        }
        Ok(())
    }

    /// Removes replicas whose pool was not made, if they are still those: as soon as one is closed another writer may make one in its place, or open it.
    /// What has no name yet goes with its connection.
    async fn undo(&self, creation: Creation, made: Vec<(usize, SiteId, Uuid)>) {
        for (_, site, _) in &made {
            self.exchange.tell(Action::Unmap { site: *site });
        }
        if creation.publish_on_close {
            return;
        }
        let requests = made.into_iter().map(|(position, site, uuid)| {
            let (name, meant) =
                (self.places[position].pool_name().clone(), MeantReplica { uuid, epoch: Some(creation.epoch) });
            (site, vec![Request::Close { in_order: false }, Request::Remove { name, meant: Some(meant) }])
        });
        // However long it takes: else the next creation finds them.
        self.ask_each(requests.collect(), Patience::ENDLESS).await;
    }
}
