//! Comparing the replicas of an open pool, whatever its format: by the digests that the library compares everywhere.

use std::{ops::Range, sync::Arc};

use pmof_mem::MemError;
use pmof_pool_set::{AccessError, Compared, Comparison, Contents};

use super::Open;
use crate::{
    PoolError, ReplicaError,
    member::{Atomicity, Member, Source, Write, replica_error},
};

/// What is done with replicas of a pool set whose bytes differ from those of the first one. All are read, but for what is a hole in both,
/// and what libpmemobj keeps for itself while it runs (bytes 6688 to 8191 of its pools), which no two replicas have in common.
/// Differences in space that its heap does not use are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Differing {
    /// The blocks that differ are copied from the first replica. It has every write that any has, as long as it is the one that was
    /// written last: not where it was restored from a backup.
    Copy,
    /// The pool is not opened; `pmof pool sync` brings the replicas in line.
    #[default]
    Refuse,
}

/// What of a pool's replicas is compared when it is opened, as its format has it.
#[derive(Debug)]
pub(super) struct Comparable {
    pub(super) comparison: Comparison,
    /// The position of the replica that the others must be equal to.
    pub(super) source: usize,
    pub(super) differing: Differing,
}

/// A member in use, and its position.
pub(super) type InUse<'o> = (usize, &'o dyn Member);

impl Open {
    pub(super) fn members_in_use(&self) -> Vec<InUse<'_>> {
        let members = self.members.iter().enumerate().filter(|(_, member)| member.state().is_in_sync());
        members.map(|(position, member)| (position, &**member)).collect()
    }

    /// Copies a range from one member to others, if there are any. Returns the bytes copied.
    pub(super) fn copy_range(
        &self,
        from: &dyn Member,
        range: &Range<u64>,
        to: &[&dyn Member],
    ) -> Result<u64, PoolError> {
        if to.is_empty() {
            return Ok(0);
        }
        let (offset, len_bytes) = (range.start, range.end - range.start);
        let mut bytes = vec![0; len_bytes as usize];
        from.read(offset, &mut bytes).map_err(|why| replica_error(from, why))?;
        self.intend(range);
        if let Some(written) = &self.written {
            written.mark(range.clone());
        }
        for member in to {
            let (source, atomicity) = (Source::Bytes(&bytes), Atomicity::Relaxed);
            member.write(&Write { offset, len_bytes, source, atomicity, is_held: true });
        }
        Ok(len_bytes * to.len() as u64)
    }
}

/// The bytes of members, for a comparison.
pub(super) fn contents_of<'o>(members: &[InUse<'o>]) -> Result<Vec<Box<dyn Contents + 'o>>, PoolError> {
    members.iter().map(|(_, member)| contents(*member)).collect()
}

pub(super) fn contents(member: &dyn Member) -> Result<Box<dyn Contents + '_>, PoolError> {
    member.contents().ok_or_else(|| replica_error(member, Arc::new(ReplicaError::Unexpected)))
}

/// The same, as a comparison takes them.
pub(super) fn as_replicas<'c>(contents: &'c mut [Box<dyn Contents + '_>]) -> Vec<&'c mut dyn Contents> {
    contents.iter_mut().map(|contents| &mut **contents as &mut dyn Contents).collect()
}

/// The digests of a range's blocks on all of these.
///
/// # Errors
/// That of the first member that failed. All that did are out of use then.
pub(super) fn compare(members: &[InUse<'_>], range: &Range<u64>, block_bytes: u64) -> Result<Compared, PoolError> {
    let mut contents = contents_of(members)?;
    let mut compared = Compared::of_range(&mut as_replicas(&mut contents), range, block_bytes);
    take_out_failed(members, &mut compared).map_or(Ok(compared), Err)
}

/// Takes all out of use that gave no digests. Returns the error of the first.
pub(super) fn take_out_failed(members: &[InUse<'_>], compared: &mut Compared) -> Option<PoolError> {
    let mut first = None;
    for replica in compared.failed().collect::<Vec<_>>() {
        let (_, member) = members[replica];
        let error = not_compared(member, compared.take_failure(replica).source);
        if let (Some(control), PoolError::Replica { source, .. }) = (member.control(), &error) {
            control.fail_for(Arc::clone(source));
        }
        first.get_or_insert(error);
    }
    first
}

/// What went wrong with a replica when it was compared.
pub(super) fn not_compared(member: &dyn Member, source: AccessError) -> PoolError {
    let source = match source.downcast::<PoolError>() {
        Ok(error) => return *error,
        Err(source) => source,
    };
    let source = match source.downcast::<MemError>() {
        Ok(source) => ReplicaError::Memory(*source),
        Err(source) => ReplicaError::NotCompared(source),
    };
    replica_error(member, Arc::new(source))
}

/// That a member was lost in between.
pub(super) fn lost(member: &dyn Member) -> PoolError {
    let why = member.standing().report_failure().cloned();
    replica_error(member, why.unwrap_or_else(|| Arc::new(ReplicaError::Unexpected)))
}
