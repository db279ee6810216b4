//! A pool kept on N replicas, and the target service that owns them.
//!
//! The initiator's side: [`Pool`] writes to all replicas in parallel and gives a [`Receipt`] for each persist. The
//! target's side: [`Service`] answers initiators; [`PoolStore`] keeps pools as files under one directory, [`Header`] is
//! what each file begins with, [`PoolName`] says which names are allowed, and [`control`] holds the messages between the
//! two.
#![forbid(unsafe_code)]

pub mod control;
mod error;
mod header;
mod holder;
mod lineage;
mod list;
mod member;
mod name;
mod peers;
mod place;
mod pool;
mod receipt;
mod refusal;
mod remote_removal;
mod secret;
mod service;
mod set_removal;
mod set_replica;
mod sets;
mod ssh;
mod ssh_replicas;
mod state;
mod store;
mod target;
mod target_options;
mod url;

pub use control::ControlError;
pub use error::{PoolError, ReplicaError};
pub use header::{DATA_OFFSET, HEADER_BYTES, Header, HeaderError, PoolFormat, REPLICAS_MAX, USER_FLAGS_BYTES};
pub use list::{LIST_MAX_NAMES, list_pools};
pub use member::Atomicity;
pub use name::{MAX_NAME_BYTES, MAX_SET_NAME_BYTES, NameError, PoolName, SetName};
pub use place::ReplicaPlace;
pub use pool::{Differing, Lane, Pending, Pool, PoolOptions, RemoteSetOptions, SetOptions};
pub use receipt::{PersistFailure, Receipt, ReplicaReceipt};
pub use refusal::PoolRefusal;
pub use remote_removal::RemoteRemoval;
pub use secret::{SECRET_BYTES, Secret};
pub use service::{
    Admission, DEFAULT_MAX_CONNECTIONS, DEFAULT_MEMORY_BUDGET_BYTES, Service, ServiceError, ServiceOptions,
};
pub use set_removal::{ReplicaRemovalError, SetRemoval, SetRemovalError};
pub use sets::{SetStoreError, remove_set};
pub use ssh::{
    DEFAULT_SSH_COMMAND, DEFAULT_SSH_TIMEOUT, DataPorts, DataPortsError, HelloError, SshError, SshHost, SshHostError,
    SshOptions, StartFailure, StdioError, StdioOptions, refuse_stdio, serve_stdio,
};
pub use ssh_replicas::{PlaceError, RemoteState, SshReplicas, remote_place};
pub use state::{ANCESTORS_MAX, Epoch, PoolState};
pub use store::{DEFAULT_MAX_POOL_BYTES, NewPool, OpenFor, OpenPool, PoolInfo, PoolStore, StoreError, StoreOptions};
pub use target_options::TargetOptions;
pub use url::{PoolUrl, PoolUrlError, TargetUrl};
