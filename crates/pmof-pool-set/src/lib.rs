//! Pools in files and on devices, as PMDK 1.12.1 lays them out: pool set files, pool headers, and the parts of a replica
//! as one piece of memory.
//!
//! - [`PoolSet`]: which files make a pool, read from a pool set file.
//! - [`PoolHeader`], [`Attributes`]: what each part says of itself, and what of that goes over the wire.
//! - [`LocalReplica`]: the parts of one copy of a pool, made or opened, locked, and mapped one behind the other.
//! - [`LocalSet`]: all copies of a pool on this machine, with what PMDK's libraries expect to find in them.
//! - [`ReplicaAccess`], [`Comparison`]: copies here and elsewhere held against each other, and made equal again.

#![forbid(unsafe_code)]

mod access;
mod behind;
mod btt;
mod check;
mod compare;
mod contents;
mod data;
mod digest;
mod distinct;
mod error;
mod feature;
mod format;
mod header;
mod headerless;
mod heap;
mod local_set;
mod made_at;
mod misfit;
mod part;
mod part_file;
mod replica;
mod set;
mod set_at;
mod shutdown;
mod sync;
mod transform;
mod vote;
mod words;

pub use access::{
    AccessError, Contents, NoRemotes, OpenFor, PendingDigests, Reached, RemoteReplicas, ReplicaAccess, Unreached,
};
pub use behind::{Behind, BehindContents};
pub use btt::{BlockTable, block_table};
pub use check::{CheckReport, CheckedReplica, Mismatch, ReplicaState, check};
pub use compare::{BlockDigests, Comparison, ComparisonError, Copied, DIFFERENCES_MAX, Difference, Differences};
pub use contents::{ContentsState, EMPTY, behind_header, contents_state, log_range, memory_state, state_of};
pub use data::{DIGEST_BLOCK_LEN_BYTES, WINDOW_LEN_BYTES, Window, data_ranges, windows, zero_digests};
pub use digest::{DIGEST_BYTES, Digest, Digester, digests_of};
pub use distinct::boot_of_this_machine;
pub use error::{PoolSetError, UNFINISHED, without_mend};
pub use feature::{FeatureChange, FeatureError, FeatureOptions, change_feature, features};
pub use format::{LAYOUT_LEN_BYTES_MAX, NewPool, contents_in_common};
pub use header::{
    ATTRIBUTES_LEN_BYTES, Arch, Attributes, Feature, Features, HEADER_LEN_BYTES, HeaderError, PoolHeader, PoolKind,
    SHUTDOWN_STATE_LEN_BYTES, ShutdownState, new_uuid, uuid_text,
};
pub use headerless::{HeaderlessParts, Held, LostPart, foreign_files, headerless_parts};
pub use local_set::{LocalSet, NewSet};
pub use misfit::{Misfit, first_misfit, misfits};
pub use part::PART_LEN_BYTES_MIN;
pub use part_file::{FILE_IDENTITY_BYTES, FilePlace, PartFile};
pub use replica::{
    LocalReplica, NewReplica, POOL_LEN_BYTES_MIN, Removal, check_named_whole, check_unlinkable, has_contents_behind,
    open_contents_behind, part_contents, part_header, pool_set_uuid,
};
pub use set::{
    PartSize, PartSpec, PoolSet, RemoteSpec, ReplicaSpec, SET_LEN_BYTES_MAX, SET_SIGNATURE, SetError, SetOptions,
    SetProblem, bytes_of_size,
};
pub use set_at::{SetAtError, set_at};
pub use sync::{Apart, MisplacedPart, Step, SyncError, SyncOptions, SyncReport, SyncedReplica, opening_count, sync};
pub use transform::{TransformOptions, TransformReport, transform};
pub use vote::Majority;
