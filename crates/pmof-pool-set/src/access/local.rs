//! Access to replicas on this machine.

use std::{ops::Range, sync::Arc};

use pmof_mem::{Medium as _, Memory};

use super::{AccessError, Contents, PendingDigests, ReplicaAccess};
use crate::{Attributes, LocalReplica, ShutdownState, data_ranges, digests_of, replica::NewParts};

/// Parts that are being created and have no headers yet.
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

    fn start_digests(&mut self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'_> {
        Box::new(move || Ok(digests_of(self, range.start, range.end.saturating_sub(range.start), block_bytes)?))
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

    fn shutdown_states(&self) -> Vec<ShutdownState> {
        (0..).map_while(|index| self.header(index)).map(|header| header.shutdown_state).collect()
    }

    fn close(self: Box<Self>) -> Result<(), AccessError> {
        Ok(Self::close(*self)?)
    }
}
