//! Pools in files and on devices, as PMDK 1.12.1 lays them out: pool set files, pool headers, and the parts of a replica
//! as one piece of memory.
//!
//! - [`PoolSet`]: which files make a pool, read from a pool set file.
//! - [`PoolHeader`], [`Attributes`]: what each part says of itself, and what of that goes over the wire.

mod header;
mod set;

pub use header::{
    ATTRIBUTES_LEN_BYTES, Arch, Attributes, Feature, Features, HEADER_LEN_BYTES, HeaderError, PoolHeader, PoolKind,
    SHUTDOWN_STATE_LEN_BYTES, ShutdownState, new_uuid, uuid_text,
};
pub use set::{
    PartSize, PartSpec, PoolSet, RemoteSpec, ReplicaSpec, SET_LEN_BYTES_MAX, SET_SIGNATURE, SetError, SetOptions,
    SetProblem,
};
