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
//! let pool = Pool::options()
//!     .replica(format!("{}/orders", a.addresses()[0]))
//!     .replica(format!("{}/orders", b.addresses()[0]))
//!     .require(Durability::ProcessCrash) // refused here and now if a replica cannot give it
//!     .create(1 << 20)?;
//!
//! let receipt = pool.persist(0, b"a header")?; // from any thread: a clone is the same pool
//! println!("{receipt}");
//!
//! let mut lane = pool.lane(); // one caller's ordered stream
//! lane.write(4096, b"a record")?; // many writes ...
//! lane.write(0, b"a newer header")?;
//! let pending = lane.flush(); // ... one flush per replica, all at once
//! let receipt = pending.wait()?; // or `.await` on any runtime, or poll
//! assert_eq!(receipt.replicas.len(), 2);
//!
//! let mut record = [0; 8];
//! pool.read(4096, &mut record)?;
//! assert_eq!(&record, b"a record");
//! pool.close()?; // for every handle
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The names of this page are what a program with a pool needs. What opening, a crash, a lost replica and closing mean, and what a program
//! does after each, is in the [`guide`]. The layers below are modules: [`target`] keeps pools for others, [`pool_set`] has the pool sets of PMDK, [`access`] peers,
//! connections, regions and completion queues, and [`mem`] maps memory and judges what it can promise.
//!
//! The crates whose names begin with `pmof-` are parts of this one and no interface: they change with any release.
//!
//! The transport over RDMA devices is the cargo feature `verbs`, on by default.
#![forbid(unsafe_code)]

pub mod access;
pub mod guide;
pub mod mem;
pub mod pool_set;
pub mod target;

#[doc(inline)]
pub use pmof_mem::{Causes, Declaration, Durability, Evidence, Mechanism, Promise, causes};

#[doc(inline)]
pub use pmof_access::{Flushed, Method, Waiting};

#[doc(inline)]
pub use pmof_control::{ConsistencyPoint, Forced, NameError, PoolInfo, PoolName, PoolRefusal};

#[doc(inline)]
pub use pmof_pool::{
    Acknowledge, AsynchronousState, AsynchronousStatus, AtLagBound, Atomicity, Background, ChangeError, Differing,
    Event, Events, FormerMember, FormerState, KeptPointStatus, Lane, MemberPoints, MemberState, MemberStatus, Pending,
    PersistFailure, PlaceError, Pool, PoolError, PoolMembers, PoolOptions, PoolStatus, PoolUrl, PoolUrlError,
    Promotion, PromotionError, Receipt, Repaired, ReplicaDomain, ReplicaError, ReplicaPlace, ReplicaReceipt,
    ReplicaState, ReplicaStatus, Rollback, RollbackError, ScrubReport, SetOptions, SpareState, SpareStatus, Survival,
    TargetOptions, TargetUrl, list_pools,
};

#[doc(inline)]
pub use pmof_bootstrap::{SshError, SshHost, SshHostError, SshOptions, StartFailure};

#[doc(inline)]
pub use pmof_target::{Service, ServiceError, ServiceOptions, StoreOptions};
