//! What is said of a pool: what a new one is to be, and what there is to know of it.

use alloc::string::String;

use pmof_terms::{Durability, MediumKind, Promise};
use uuid::Uuid;

use crate::{Header, PoolName, PoolState, USER_FLAGS_BYTES};

/// What a new pool is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPool {
    /// The pool, the same on every replica.
    pub pool_uuid: Uuid,
    /// Bytes of user data, at least 1. The file is rounded up to whole pages of 4096 bytes.
    pub size_bytes: u64,
    /// Its first epoch, the same on every replica.
    pub epoch: Uuid,
    /// Which replica this one is, from 0.
    pub replica_index: u16,
    /// How many replicas the pool has, 1 to [`REPLICAS_MAX`](crate::REPLICAS_MAX).
    pub replica_count: u16,
    /// The level that the memory must be able to give, else no pool is made.
    pub require: Durability,
    /// What the maker says of the contents; kept in the header.
    pub user_flags: [u8; USER_FLAGS_BYTES],
    /// Makes a file of format 4, which keeps a digest of each page. `None`: one of format 3, for initiators that do not mind digests.
    pub protection: Option<Protection>,
}

/// That a replica keeps a digest of each page, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Bytes of user data that there is room for digests of: the size that the pool can grow to, at least its size.
    pub max_size_bytes: u64,
}

/// What there is to know of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Its name.
    pub name: PoolName,
    /// The header of its file.
    pub header: Header,
    /// Which opening wrote it last, and whether that ended in order.
    pub state: PoolState,
    /// Length of its file in bytes: header and data, in whole pages. Of a device: all of it.
    pub file_len_bytes: u64,
    /// What its bytes lie on.
    pub medium: MediumKind,
    /// How a writer gets each level, in the order of [`Durability::ALL`]; `None` where the medium cannot give it.
    pub promises: [Option<Promise>; 3],
    /// Who has it open for writing.
    pub open_by: Option<String>,
}
