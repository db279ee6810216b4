//! Access to the replicas of a pool, wherever they are.

use std::{error::Error, fmt, ops::Range, sync::Arc};

use pmof_mem::Memory;
pub use pmof_terms::OpenFor;

use crate::{Attributes, DIGEST_BLOCK_LEN_BYTES, Digest, PartFile, RemoteSpec, ShutdownState};

mod local;
mod no_remotes;

pub use no_remotes::NoRemotes;

/// What can go wrong with a replica, wherever it is.
pub type AccessError = Box<dyn Error + Send + Sync>;

/// The host of a replica could not be reached, or its target could not be started: the state of the replica is unknown. Any
/// other [`AccessError`] of [`RemoteReplicas`] came from the other side.
#[derive(Debug)]
pub struct Unreached {
    /// The host, as the set names it.
    pub node: String,
    /// What went wrong.
    pub source: AccessError,
}

/// Transparent: it adds only the place to the error.
impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for Unreached {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

/// Digests that a replica was asked for: the call waits for them.
pub type PendingDigests<'c> = Box<dyn FnOnce() -> Result<Vec<Digest>, AccessError> + 'c>;

/// The bytes of a replica, here or on another machine. Offset 0 is the first byte of its first header.
pub trait Contents {
    /// The ranges of `range` outside which all bytes are durably zero, sorted and disjoint; all of `range` if this is unknown.
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError>;

    /// Asks for the BLAKE3 digests of the blocks of `block_bytes` of a range, the last of which may be shorter. They are computed where the
    /// replica is, while others are asked.
    fn start_digests(&mut self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'_>;

    /// The digests of the blocks of [`DIGEST_BLOCK_LEN_BYTES`] of a range.
    fn digests(&mut self, range: Range<u64>) -> Result<Vec<Digest>, AccessError> {
        self.start_digests(range, DIGEST_BLOCK_LEN_BYTES)()
    }

    /// Copies bytes out.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError>;

    /// Copies bytes in.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Makes a range durable.
    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError>;

    /// For a replica on another machine: the range of the pool in each part without a header, in order, except the first part and
    /// devices. Only that machine knows it.
    fn headerless_ranges(&mut self) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(Vec::new())
    }
}

/// One replica of a pool, open for as long as the value lives.
pub trait ReplicaAccess {
    /// Its name, for messages.
    fn name(&self) -> String;

    /// Its bytes.
    fn contents(&mut self) -> &mut dyn Contents;

    /// Usable bytes; constant.
    fn len_bytes(&self) -> u64;

    /// The attributes in its header.
    fn attributes(&mut self) -> Result<Attributes, AccessError>;

    /// Replaces the attributes in its headers, durably.
    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError>;

    /// The part on its machine that has the byte at `offset`, and the offset in that file; `None` if this is not known.
    fn locate(&self, offset: u64) -> Option<(usize, u64)>;

    /// The memory of a local replica.
    fn memory(&self) -> Option<Arc<Memory>> {
        None
    }

    /// The shutdown states in the headers of a local replica as they are now.
    fn shutdown_states(&self) -> Vec<ShutdownState> {
        Vec::new()
    }

    /// Records that the replica was closed, and releases it.
    fn close(self: Box<Self>) -> Result<(), AccessError>;
}

/// The state of a replica on another machine that was reached.
pub enum Reached {
    /// It is sound by itself.
    Whole(Box<dyn ReplicaAccess>),
    /// It is missing or damaged, with the reason.
    Damaged(String),
    /// Its headers are damaged, but there is data behind them; with what is wrong with the headers.
    HeadersDamaged(String),
}

/// Access to the replicas that a pool set names on other machines.
pub trait RemoteReplicas {
    /// The files that the set on that machine names, whether they exist yet or not. Nothing is opened.
    fn files(&mut self, remote: &RemoteSpec) -> Result<Vec<PartFile>, AccessError>;

    /// Opens one, of at least `len_bytes`.
    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64, access: OpenFor) -> Result<Reached, AccessError>;

    /// Opens what lies behind the damaged headers of one, for reading, to compare it with another replica: its bytes are those of the pool, damaged
    /// headers included, and it has no attributes. `None`: its headers are not what is wrong with it, or nothing lies behind them.
    fn open_behind(&mut self, remote: &RemoteSpec) -> Result<Option<Box<dyn ReplicaAccess>>, AccessError>;

    /// Creates one, of zeros, where none exists.
    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError>;

    /// Checks that a replica of the pool set `member` can be removed, or that nothing is there: see [`Removal::prepare_member`](crate::Removal::prepare_member). Nothing is changed.
    fn check_removable(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError>;

    /// Removes a replica of the pool set `member` with all its bytes, even if parts of it are missing or damaged, and nothing else.
    fn remove(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError>;

    /// Creates a replica of zeros in place of one of the same pool set, even if parts of that are missing or damaged, and of nothing else.
    fn replace(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError> {
        self.remove(remote, &attributes.poolset_uuid)?;
        self.create(remote, len_bytes, attributes)
    }
}
