//! The target's side of pmof: [`Service`] answers initiators, [`PoolStore`] keeps pools as files under one directory and on
//! devices, and [`serve_stdio`] serves one initiator that started this target through ssh. [`LocalTarget`] answers this process, without any
//! connection.
#![forbid(unsafe_code)]

mod domain;
pub mod engine;
mod events;
mod holder;
mod local;
mod refused;
mod requests;
mod service;
mod sets;
mod stdio;
mod store;

pub use local::LocalTarget;
pub use service::{
    Admission, DEFAULT_MAX_CONNECTIONS, DEFAULT_MEMORY_BUDGET_BYTES, Identity, Observer, PoolCounts, PoolHealth,
    RequestCounts, Service, ServiceError, ServiceOptions, TargetMetrics,
};
pub use sets::{SetStoreError, remove_set};
pub use stdio::{DataPorts, DataPortsError, StdioError, StdioOptions, refuse_stdio, serve_stdio};
pub use store::{DEFAULT_MAX_POOL_BYTES, OpenPool, PoolStore, StoreError, StoreOptions};
