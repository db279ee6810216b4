//! A pool kept on N replicas: [`Pool`] writes to all of them in parallel and gives a [`Receipt`] for each persist.
//!
//! A replica is memory of this machine, or a connection to a target; targets themselves are `pmof-target`.
#![forbid(unsafe_code)]

use pmof_replication::{catch_up, domain, electorate, lineage, member_state, membership, older_pages, pages, view};

mod background;
mod error;
mod follower;
mod intent;
mod list;
mod member;
mod peers;
mod place;
mod pool;
mod reach;
mod receipt;
mod remote_removal;
mod roster;
mod scrub;
mod set_info;
mod set_removal;
mod set_replica;
#[cfg(test)]
mod simulation;
mod site;
mod ssh_replicas;
mod survival;
mod sync;
mod target;
mod target_options;
mod url;

pub use background::Background;
pub use domain::ReplicaDomain;
pub use error::{PlaceError, PoolError, ReplicaError};
pub use list::{LIST_MAX_NAMES, ListedPool, describe_pools, list_pools, target_status};
pub use member::Atomicity;
pub use place::ReplicaPlace;
pub use pmof_replication::following::AtLagBound;
pub use pool::{
    Acknowledge, AsynchronousState, AsynchronousStatus, ChangeError, Differing, Event, Events, FormerMember,
    FormerState, KeptPointStatus, Lane, MemberPoints, MemberState, MemberStatus, Pending, Pool, PoolMembers,
    PoolOptions, PoolStatus, Promotion, PromotionError, RemoteSetOptions, ReplicaState, ReplicaStatus, Rollback,
    RollbackError, SetOptions, SpareState, SpareStatus,
};
pub use receipt::{PersistFailure, Receipt, ReplicaReceipt};
pub use remote_removal::RemoteRemoval;
pub use scrub::{Repaired, ScrubReport};
pub use set_info::{PartInfo, ReplicaFound, ReplicaInfo, SetInfo};
pub use set_removal::{ReplicaRemovalError, SetRemoval, SetRemovalError};
pub use ssh_replicas::{RemoteState, SshReplicas, remote_place};
pub use survival::Survival;
pub use target_options::TargetOptions;
pub use url::{PoolUrl, PoolUrlError, TargetUrl};
