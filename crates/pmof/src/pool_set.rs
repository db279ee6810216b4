//! The pool sets of PMDK: [`SetOptions`](crate::SetOptions) makes, opens, checks, mends and transforms them as its tools do, with local replicas and those of other
//! machines.

#[doc(inline)]
pub use pmof_control::{OpenFor, SetName};
#[doc(inline)]
pub use pmof_pool::{PartInfo, RemoteSetOptions, RemoteState, ReplicaFound, ReplicaInfo, SetInfo};
#[doc(inline)]
pub use pmof_pool_set::{
    AccessError, Apart, Arch, Attributes, Behind, BehindContents, CheckReport, CheckedReplica, ContentsState, Copied,
    Feature, FeatureChange, FeatureError, FeatureOptions, Features, FilePlace, HeaderError, Majority, Misfit, Mismatch,
    MisplacedPart, NewPool, NewSet, PartFile, PartSize, PartSpec, PoolHeader, PoolKind, PoolSet, PoolSetError,
    RemoteSpec, ReplicaSpec, SetError, SetProblem, ShutdownState, Step, SyncError, SyncOptions, SyncReport,
    SyncedReplica, TransformOptions, TransformReport,
};
