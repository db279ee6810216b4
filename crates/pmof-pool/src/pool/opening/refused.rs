//! Why a pool was not opened, with the addresses of its replicas.

use std::sync::Arc;

use pmof_replication::{asking::Cause, opening::Refusal};

use super::Opening;
use crate::{PoolError, ReplicaError, ReplicaPlace, error::told, pool::opened::place};

impl Opening {
    pub(super) fn refused(&self, refusal: Refusal<ReplicaError>) -> PoolError {
        let left_out = self.told_left_out();
        match refusal {
            // The members of these pools are their own keeper.
            Refusal::NoReplicas | Refusal::Keeper(_) => PoolError::NoReplicas,
            Refusal::Replica { position, cause } => {
                let (replica, source) = self.named((position, cause));
                PoolError::Replica { replica, source }
            }
            Refusal::NoneOpened { replicas } => {
                PoolError::NoneOpened { replicas: replicas.into_iter().map(|replica| self.named(replica)).collect() }
            }
            Refusal::SameReplica { position, other, index } => {
                PoolError::SameReplica { replica: self.place(position), other: self.place(other), index }
            }
            Refusal::Apart { replicas } => {
                let named = |(position, reason)| (self.place(position), Arc::new(ReplicaError::from(reason)));
                PoolError::Apart { replicas: replicas.into_iter().map(named).collect() }
            }
            Refusal::TooFew { here, made, needed, position, cause } => {
                let (replica, source) = self.named((position, cause));
                let others = left_out.into_iter().filter(|(other, _)| *other != replica).collect();
                PoolError::TooFew { here, made, needed, replica, source, others }
            }
            Refusal::Degraded { opened, made, needed } => PoolError::Degraded { opened, made, needed, left_out },
            Refusal::UncertainRoster => PoolError::UncertainRoster { replicas: left_out },
            Refusal::NeverAcknowledged { wanted, made } => PoolError::NeverAcknowledged { wanted, made },
            Refusal::TooFewDomains { wanted, found, replicas } => {
                let named = |(position, domain): (usize, Option<pmof_control::FailureDomain>)| {
                    (self.place(position), domain.map(|domain| domain.name.to_string()))
                };
                PoolError::TooFewDomains { wanted, found, replicas: replicas.into_iter().map(named).collect() }
            }
        }
    }

    fn place(&self, position: usize) -> Arc<ReplicaPlace> {
        place(&self.urls[position])
    }

    fn named(&self, (position, cause): (usize, Cause<ReplicaError>)) -> (Arc<ReplicaPlace>, Arc<ReplicaError>) {
        (self.place(position), told(cause))
    }
}
