//! The seam between what is done with the replicas of a pool and where they are.

use std::{error::Error, fmt, ops::Range, sync::Arc};

use pmof_mem::Memory;

use crate::{Attributes, DIGEST_BYTES, RemoteSpec};

mod local;
mod no_remotes;

pub use no_remotes::NoRemotes;

/// What a pool, or a replica of one, is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenFor {
    /// Reading only: nothing is changed, and others may read too. Of the parts of a pool set nobody may be writing then; a native pool can
    /// be read while another writes.
    Read,
    /// Reading and writing: nobody else may have it open for that.
    Write,
}

/// What can go wrong with a replica, wherever it is.
pub type AccessError = Box<dyn Error + Send + Sync>;

/// The host of a replica could not be reached, or its target not started: nothing is known of what is there. An
/// [`AccessError`] of [`RemoteReplicas`] that is none of these came from the other side.
#[derive(Debug)]
pub struct Unreached {
    /// The host, as the set names it.
    pub node: String,
    /// What went wrong.
    pub source: AccessError,
}

/// As the error that it is about, which it only places.
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

/// The bytes of a replica, here or on another machine. Offset 0 is the first byte of its first header.
pub trait Contents {
    /// The ranges of `range` outside of which all bytes are zero, durably, in order and apart; all of it where nobody can tell.
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError>;

    /// BLAKE3 of each block of [`DIGEST_BLOCK_LEN_BYTES`](crate::DIGEST_BLOCK_LEN_BYTES) of a range, the last of which may be
    /// shorter, computed where the replica is.
    fn digests(&mut self, range: Range<u64>) -> Result<Vec<[u8; DIGEST_BYTES]>, AccessError>;

    /// Copies bytes out.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError>;

    /// Copies bytes in.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Makes a range durable.
    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError>;

    /// What each part without a header holds of the pool, in order, of a replica on another machine, which alone knows it; but for the first part, and
    /// devices.
    fn headerless_ranges(&mut self) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(Vec::new())
    }
}

/// One replica of a pool, open for as long as the value lives.
pub trait ReplicaAccess {
    /// Which one it is, for messages.
    fn name(&self) -> String;

    /// Its bytes.
    fn contents(&mut self) -> &mut dyn Contents;

    /// Usable bytes; constant.
    fn len_bytes(&self) -> u64;

    /// What its header says.
    fn attributes(&mut self) -> Result<Attributes, AccessError>;

    /// Replaces what its headers say, durably.
    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError>;

    /// Which part on its machine the byte at `offset` lies in, and where in that file; `None` where that is not known.
    fn locate(&self, offset: u64) -> Option<(usize, u64)>;

    /// The memory, of a replica that is here.
    fn memory(&self) -> Option<Arc<Memory>> {
        None
    }

    /// Notes that the replica was closed, and lets go of it.
    fn close(self: Box<Self>) -> Result<(), AccessError>;
}

/// A replica on another machine, which was reached.
pub enum Reached {
    /// It is whole by itself.
    Whole(Box<dyn ReplicaAccess>),
    /// There is none, or it is broken: why, in words.
    Damaged(String),
    /// Its headers are damaged, and something lies behind them: what is wrong with the headers, in words.
    HeadersDamaged(String),
}

/// The way to the replicas that a pool set names on other machines.
pub trait RemoteReplicas {
    /// Opens one, of at least `len_bytes`.
    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64, access: OpenFor) -> Result<Reached, AccessError>;

    /// Makes one, of zeros, where none is.
    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError>;

    /// Whether one can be removed that is of the pool set `member`, or nothing is there: see [`Removal::prepare_member`](crate::Removal::prepare_member). Nothing is changed.
    fn check_removable(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError>;

    /// Removes one of the pool set `member` with all its bytes, though parts of it are missing or damaged; nothing else.
    fn remove(&mut self, remote: &RemoteSpec, member: &[u8; 16]) -> Result<(), AccessError>;

    /// Makes one of zeros in the place of one of the same pool set, though parts of that are missing or damaged; of nothing else.
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
