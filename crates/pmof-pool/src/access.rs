//! The seam between what is done with the replicas of a pool and where they are.

use std::{error::Error, ops::Range, sync::Arc};

use pmof_mem::{Medium as _, Memory};

use crate::{Access, Attributes, DIGEST_BYTES, LocalReplica, RemoteSpec, data_ranges, digests_of, replica::NewParts};

/// Bytes that one digest stands for.
pub const DIGEST_BLOCK_LEN_BYTES: u64 = 64 << 10;

/// What can go wrong with a replica, wherever it is.
pub type AccessError = Box<dyn Error + Send + Sync>;

/// The host of a replica could not be reached, or its target not started: nothing is known of what is there. An
/// [`AccessError`] of [`RemoteReplicas`] that is none of these came from the other side.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct Unreached {
    /// The host, as the set names it.
    pub node: String,
    /// What went wrong.
    pub source: AccessError,
}

/// The bytes of a replica, here or on another machine. Offset 0 is the first byte of its first header.
pub trait Contents {
    /// The ranges of `range` outside of which all bytes are zero, durably, in order and apart; all of it where nobody can tell.
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError>;

    /// BLAKE3 of each block of [`DIGEST_BLOCK_LEN_BYTES`] of a range, the last of which may be shorter, computed where the
    /// replica is.
    fn digests(&mut self, range: Range<u64>) -> Result<Vec<[u8; DIGEST_BYTES]>, AccessError>;

    /// Copies bytes out.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError>;

    /// Copies bytes in.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Makes a range durable.
    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError>;
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
}

/// The way to the replicas that a pool set names on other machines.
pub trait RemoteReplicas {
    /// Opens one, of at least `len_bytes`.
    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64, access: Access) -> Result<Reached, AccessError>;

    /// Makes one, of zeros, where none is.
    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError>;

    /// Removes one with all its bytes; `force`: though parts of it are missing or damaged.
    fn remove(&mut self, remote: &RemoteSpec, force: bool) -> Result<(), AccessError>;
}

/// The blocks of a range, each but the last [`DIGEST_BLOCK_LEN_BYTES`] long.
pub(crate) fn blocks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(DIGEST_BLOCK_LEN_BYTES as usize).map(move |start| start..(start + DIGEST_BLOCK_LEN_BYTES).min(end))
}

/// Parts that are being made: they have no headers yet.
impl ReplicaAccess for NewParts {
    fn name(&self) -> String {
        self.memory.path().display().to_string()
    }

    fn contents(&mut self) -> &mut dyn Contents {
        &mut self.memory
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes()
    }

    fn attributes(&mut self) -> Result<Attributes, AccessError> {
        Err(format!("{} has no header yet", self.name()).into())
    }

    fn set_attributes(&mut self, _attributes: &Attributes) -> Result<(), AccessError> {
        Err(format!("{} has no header yet", self.name()).into())
    }

    fn locate(&self, _offset: u64) -> Option<(usize, u64)> {
        None
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(())
    }
}

impl Contents for Arc<Memory> {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(data_ranges(self, range, usize::MAX)?.0)
    }

    fn digests(&mut self, range: Range<u64>) -> Result<Vec<[u8; DIGEST_BYTES]>, AccessError> {
        Ok(digests_of(self, range.start, range.end.saturating_sub(range.start), DIGEST_BLOCK_LEN_BYTES)?)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        Ok(Memory::read(self, offset, into)?)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        Ok(self.store(offset, bytes)?)
    }

    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        self.write_back(range.start, range.end - range.start)?;
        Ok(self.fence()?)
    }
}

impl ReplicaAccess for LocalReplica {
    fn name(&self) -> String {
        self.first_path().display().to_string()
    }

    fn contents(&mut self) -> &mut dyn Contents {
        &mut self.memory
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes()
    }

    fn attributes(&mut self) -> Result<Attributes, AccessError> {
        Self::attributes(self).ok_or_else(|| format!("{} has no headers (NOHDRS)", self.name()).into())
    }

    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError> {
        Ok(Self::set_attributes(self, attributes)?)
    }

    fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        self.locate(offset)
    }

    fn memory(&self) -> Option<Arc<Memory>> {
        Some(self.memory())
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(Self::close(*self)?)
    }
}
