//! The seam between what is done with the replicas of a pool and where they are.

use std::{error::Error, ops::Range};

use pmof_mem::Medium as _;

use crate::{Attributes, LocalReplica, RemoteSpec};

/// Bytes that one digest stands for.
pub const DIGEST_BLOCK_LEN_BYTES: u64 = 64 << 10;

/// What can go wrong with a replica, wherever it is.
pub type AccessError = Box<dyn Error + Send + Sync>;

/// One replica of a pool, here or on another machine, open for as long as the value lives. Offset 0 is the first byte of
/// its first header.
pub trait ReplicaAccess {
    /// Which one it is, for messages.
    fn name(&self) -> String;

    /// Usable bytes; constant.
    fn len_bytes(&self) -> u64;

    /// What its header says.
    fn attributes(&mut self) -> Result<Attributes, AccessError>;

    /// Replaces what its headers say, durably.
    fn set_attributes(&mut self, attributes: &Attributes) -> Result<(), AccessError>;

    /// CRC32C of each block of [`DIGEST_BLOCK_LEN_BYTES`] of a range, the last of which may be shorter, computed where the
    /// replica is.
    fn digests(&mut self, range: Range<u64>) -> Result<Vec<u32>, AccessError>;

    /// Copies bytes out.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError>;

    /// Copies bytes in.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Makes a range durable.
    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError>;

    /// Which part on its machine the byte at `offset` lies in, and where in that file; `None` where that is not known.
    fn locate(&self, offset: u64) -> Option<(usize, u64)>;

    /// Notes that the replica was closed, and lets go of it.
    fn close(self: Box<Self>) -> Result<(), AccessError>;
}

/// The way to the replicas that a pool set names on other machines.
pub trait RemoteReplicas {
    /// Opens one. `len_bytes`: of the pool.
    fn open(&mut self, remote: &RemoteSpec, len_bytes: u64) -> Result<Box<dyn ReplicaAccess>, AccessError>;

    /// Makes one, of zeros.
    fn create(
        &mut self,
        remote: &RemoteSpec,
        len_bytes: u64,
        attributes: &Attributes,
    ) -> Result<Box<dyn ReplicaAccess>, AccessError>;

    /// Removes one; `force`: though parts of it are missing.
    fn remove(&mut self, remote: &RemoteSpec, force: bool) -> Result<(), AccessError>;
}

/// The blocks of a range, each but the last [`DIGEST_BLOCK_LEN_BYTES`] long.
pub(crate) fn blocks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(DIGEST_BLOCK_LEN_BYTES as usize).map(move |start| start..(start + DIGEST_BLOCK_LEN_BYTES).min(end))
}

impl ReplicaAccess for LocalReplica {
    fn name(&self) -> String {
        self.first_path().display().to_string()
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

    fn digests(&mut self, range: Range<u64>) -> Result<Vec<u32>, AccessError> {
        let memory = self.memory();
        let digest = |block: Range<u64>| memory.crc32c(block.start, block.end - block.start);
        Ok(blocks(range).map(digest).collect::<Result<_, _>>()?)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        Ok(self.memory().read(offset, into)?)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        Ok(self.memory().store(offset, bytes)?)
    }

    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        let memory = self.memory();
        memory.write_back(range.start, range.end - range.start)?;
        Ok(memory.fence()?)
    }

    fn locate(&self, offset: u64) -> Option<(usize, u64)> {
        self.locate(offset)
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(Self::close(*self)?)
    }
}
