//! The bytes of a replica that is in use, or of one on a target, as a comparison reads them.

use std::{ops::Range, sync::Arc};

use pmof_pool_set::{AccessError, Contents, PendingDigests};

use super::{Atomicity, Control, FlushLevel, Member, RemoteMember, Source, Write, replica_error};
use crate::ReplicaError;

/// A replica that is asked for its digests. Errors: [`PoolError::Replica`](crate::PoolError::Replica).
#[derive(Clone, Copy)]
pub(crate) struct MemberContents<'m> {
    member: &'m dyn Member,
    control: &'m Control,
}

impl<'m> MemberContents<'m> {
    pub(super) fn new(member: &'m dyn Member, control: &'m Control) -> Self {
        Self { member, control }
    }

    pub(crate) fn of_remote(member: &'m RemoteMember) -> Self {
        Self::new(member, &member.control)
    }

    pub(crate) fn digests_of(self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'m> {
        let asked = self.control.start_digests(range, block_bytes);
        Box::new(move || asked().map_err(|why| self.failed(why)))
    }

    fn failed(self, why: Arc<ReplicaError>) -> AccessError {
        replica_error(self.member, why).into()
    }
}

impl Contents for MemberContents<'_> {
    /// One that does not tell is compared as a whole; why it does not, its digests tell.
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(self.control.data_ranges(range.clone()).unwrap_or_else(|_| vec![range]))
    }

    fn start_digests(&mut self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'_> {
        self.digests_of(range, block_bytes)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.member.read(offset, into).map_err(|why| self.failed(why))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let (len_bytes, source, atomicity) = (bytes.len() as u64, Source::Bytes(bytes), Atomicity::Relaxed);
        self.member.write(&Write { offset, len_bytes, source, atomicity, is_held: false });
        self.control.check_in_use().map_err(|why| self.failed(why))
    }

    /// A flush covers what was written before on the same connection.
    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        let mut flushing = self.member.start_persist(&range, FlushLevel::OfPool);
        if self.member.finish_flush(&mut flushing).is_some() {
            return Ok(());
        }
        let why = self.member.standing().failure().cloned();
        Err(self.failed(why.unwrap_or_else(|| Arc::new(ReplicaError::Unexpected))))
    }

    fn headerless_ranges(&mut self) -> Result<Vec<Range<u64>>, AccessError> {
        let Some(remote) = self.member.remote() else { return Ok(Vec::new()) };
        remote.headerless_ranges().map_err(|why| self.failed(why))
    }
}
