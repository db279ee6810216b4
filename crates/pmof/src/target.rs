//! A target: the side that keeps pools for other machines. What it keeps of a pool, and says of it.

#[doc(inline)]
pub use pmof_bootstrap::{Nonces, Prover, Secret};
#[doc(inline)]
pub use pmof_control::{
    ControlError, ControlVersion, CopySteps, DomainName, DomainNameError, Epoch, Extension, FileLayout, Header,
    MemberProgress, MemberStanding, MessageHead, PoolFormat, PoolState, RosterError, SpokenVersions, TargetStatus,
    ToldEvent, WriterStatus,
};
#[doc(inline)]
pub use pmof_target::{
    Admission, DEFAULT_MAX_CONNECTIONS, DEFAULT_MEMORY_BUDGET_BYTES, Identity, Observer, PoolCounts, PoolHealth,
    RequestCounts, Service, ServiceError, ServiceOptions, StoreError, StoreOptions, TargetMetrics,
};
