//! Comparing the replicas of an open pool, whatever its format: by the digests that the library compares everywhere.

use std::{ops::Range, sync::Arc};

use pmof_mem::MemError;
use pmof_pool_set::{AccessError, BlockDigests, Comparison, Contents as ReplicaContents, Digest};
use pmof_replication::comparing::{Compared, Contents, ShippedRules};

use super::{Open, protection::unprotect_on};
use crate::{
    PoolError, ReplicaError,
    member::{Atomicity, FlushLevel, Member, Source, Write, replica_error},
    member_state::MemberState,
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

impl Open {
    pub(super) fn members_in_use(&self) -> Vec<Arc<dyn Member>> {
        self.in_use().cloned().collect()
    }

    /// Copies a range from one member to others, if there are any. Returns the bytes copied.
    pub(super) fn copy_range(
        &self,
        from: &Arc<dyn Member>,
        range: &Range<u64>,
        to: &[Arc<dyn Member>],
    ) -> Result<u64, PoolError> {
        if to.is_empty() {
            return Ok(0);
        }
        let (offset, len_bytes) = (range.start, range.end - range.start);
        let mut bytes = vec![0; len_bytes as usize];
        from.read(offset, &mut bytes).map_err(|why| replica_error(&**from, why))?;
        self.intend_copy(range, to);
        if let Some(written) = &self.written {
            written.mark(range.clone());
        }
        for member in to {
            write_held(&**member, offset, &bytes);
        }
        Ok(len_bytes * to.len() as u64)
    }
}

impl Contents for Open {
    type Member = Arc<dyn Member>;
    type Digest = Digest;
    type Failure = PoolError;
    type Rules = ShippedRules;

    fn rules(&self) -> &ShippedRules {
        &ShippedRules
    }

    fn members(&self) -> &[Arc<dyn Member>] {
        &self.members
    }

    fn state(&self, member: &Arc<dyn Member>) -> MemberState {
        member.state()
    }

    fn is_same(&self, one: &Arc<dyn Member>, other: &Arc<dyn Member>) -> bool {
        std::ptr::eq(one.standing(), other.standing())
    }

    async fn digests(
        &self,
        of: &[Arc<dyn Member>],
        range: &Range<u64>,
        block_bytes: u64,
    ) -> Result<Compared<Digest>, PoolError> {
        let mut contents = contents_of(of)?;
        let mut digests = BlockDigests::of_range(&mut as_replicas(&mut contents), range, block_bytes);
        let failed = take_out_failed(of, &mut digests);
        failed.map_or_else(|| Ok(Compared::new(range.clone(), block_bytes, digests.into_digests())), Err)
    }

    async fn copy(&self, from: &Arc<dyn Member>, ranges: &[Range<u64>], to: &Arc<dyn Member>) -> bool {
        unprotect_on(&**to, ranges);
        // Behind them comes a flush, or a look at what is left, that sends them all.
        from.read_ranges(ranges, &mut |offset, bytes| write_held(&**to, offset, bytes)).is_ok()
    }

    async fn repair(
        &self,
        from: &Arc<dyn Member>,
        range: &Range<u64>,
        to: &[Arc<dyn Member>],
    ) -> Result<bool, PoolError> {
        match self.copy_range(from, range, to) {
            Ok(_) => Ok(true),
            Err(PoolError::Replica { source, .. }) if matches!(*source, ReplicaError::Damaged { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn data_ranges(&self, member: &Arc<dyn Member>) -> Option<Vec<Range<u64>>> {
        member.control()?.data_ranges(0..self.facts.size_bytes).ok()
    }

    async fn flush(&self, member: &Arc<dyn Member>) -> Result<(), PoolError> {
        if member.flush_everything(FlushLevel::Strongest) { Ok(()) } else { Err(lost(&**member)) }
    }
}

/// Posts bytes that are sent with the next flush.
fn write_held(member: &dyn Member, offset: u64, bytes: &[u8]) {
    let (source, len_bytes) = (Source::Bytes(bytes), bytes.len() as u64);
    member.write(&Write { offset, len_bytes, source, atomicity: Atomicity::Relaxed, is_held: true });
}

/// The bytes of members, for a comparison.
pub(super) fn contents_of(members: &[Arc<dyn Member>]) -> Result<Vec<Box<dyn ReplicaContents + '_>>, PoolError> {
    members.iter().map(|member| contents(&**member)).collect()
}

pub(super) fn contents(member: &dyn Member) -> Result<Box<dyn ReplicaContents + '_>, PoolError> {
    member.contents().ok_or_else(|| replica_error(member, Arc::new(ReplicaError::Unexpected)))
}

/// The same, as a comparison takes them.
pub(super) fn as_replicas<'c>(contents: &'c mut [Box<dyn ReplicaContents + '_>]) -> Vec<&'c mut dyn ReplicaContents> {
    contents.iter_mut().map(|contents| &mut **contents as &mut dyn ReplicaContents).collect()
}

/// Takes all out of use that gave no digests. Returns the error of the first.
pub(super) fn take_out_failed(members: &[Arc<dyn Member>], digests: &mut BlockDigests) -> Option<PoolError> {
    let mut first = None;
    for replica in digests.failed().collect::<Vec<_>>() {
        let member = &*members[replica];
        let error = not_compared(member, digests.take_failure(replica).source);
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
