//! Persistent Memory over Fabrics: keep memory on other machines, make it durable with one flush, and get a receipt that
//! says which failure it now survives.
//!
//! ```
//! use pmof::{Durability, Pool, Service};
//!
//! // Two targets. Here they run in this process; usually each is a `pmof serve` on a machine of its own.
//! # let (root_a, root_b) = (tempfile::tempdir()?, tempfile::tempdir()?);
//! # let (root_a, root_b) = (root_a.path(), root_b.path());
//! let a = Service::start(root_a, &["tcp://127.0.0.1:0".parse()?], Default::default())?;
//! let b = Service::start(root_b, &["tcp://127.0.0.1:0".parse()?], Default::default())?;
//!
//! // A pool kept on both.
//! let mut pool = Pool::options()
//!     .replica(format!("{}/orders", a.addresses()[0]))
//!     .replica(format!("{}/orders", b.addresses()[0]))
//!     .require(Durability::ProcessCrash) // refused here and now if a replica cannot give it
//!     .create(1 << 20)?;
//!
//! let mut batch = pool.lane();
//! batch.write(4096, b"a record")?; // many writes ...
//! batch.write(0, b"a header")?;
//! let receipt = batch.persist()?; // ... one flush per replica, all in parallel
//! println!("{receipt}");
//!
//! let mut record = [0; 8];
//! pool.read(4096, &mut record)?;
//! assert_eq!(&record, b"a record");
//! pool.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One level down, [`access`] has peers, connections, regions and completion queues; [`mem`] maps memory and judges what it
//! can promise.
#![forbid(unsafe_code)]

pub use pmof_access as access;
pub use pmof_access::{Durability, Evidence, Mechanism, MediumKind, Method, Promise, Waiting};
pub use pmof_mem as mem;
pub use pmof_mem::Declaration;
pub use pmof_pool as pool_set;
pub use pmof_pool::{DIGEST_BYTES, digests_of};
pub use pmof_replica::{
    Admission, Atomicity, DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_POOL_BYTES, DEFAULT_MEMORY_BUDGET_BYTES, DataPorts,
    DataPortsError, Differing, Epoch, Header, LIST_MAX_NAMES, Lane, NameError, OpenFor, Pending, PersistFailure, Pool,
    PoolError, PoolFormat, PoolInfo, PoolName, PoolOptions, PoolRefusal, PoolState, PoolUrl, PoolUrlError,
    REPLICAS_MAX, Receipt, RemoteRemoval, RemoteSetOptions, RemoteState, ReplicaError, ReplicaPlace, ReplicaReceipt,
    ReplicaRemovalError, Service, ServiceError, ServiceOptions, SetName, SetOptions, SetRemoval, SetRemovalError,
    SetStoreError, SshError, SshHost, SshHostError, SshOptions, SshReplicas, StartFailure, StdioError, StdioOptions,
    StoreError, StoreOptions, TargetOptions, TargetUrl, USER_FLAGS_BYTES, list_pools, refuse_stdio, remote_place,
    remove_set, serve_stdio,
};
