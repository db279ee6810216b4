//! Comparing the replicas of a native pool by digests, which are computed where each lies.

use std::{ops::Range, sync::Arc};

use pmof_control::{DIGESTED_MAX_BYTES, DIGESTS_MAX};
use pmof_pool::DIGEST_BYTES;

use super::Open;
use crate::{
    PoolError, ReplicaError,
    member::{Asking, Atomicity, Control, Member, Source, Write, replica_error},
    pages::PAGE_BYTES,
};

/// Bytes whose digests are compared first; of those that differ the pages may be.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;

/// Bytes compared at a time: as many digests as one message holds.
pub(super) const WINDOW_BYTES: u64 = DIGESTS_MAX as u64 * BLOCK_BYTES;
const _: () = assert!(WINDOW_BYTES <= DIGESTED_MAX_BYTES && BLOCK_BYTES / PAGE_BYTES <= DIGESTS_MAX as u64);

pub(super) type Digest = [u8; DIGEST_BYTES];

/// A member in use, and its position.
pub(super) type InUse<'o> = (usize, &'o dyn Member);

impl Open {
    pub(super) fn natives_in_use(&self) -> Vec<InUse<'_>> {
        let members = self.members.iter().enumerate().filter(|(_, member)| member.standing().is_in_use());
        let natives = members.filter(|(_, member)| member.control().is_some());
        natives.map(|(position, member)| (position, &**member)).collect()
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

/// The digests of a range's blocks on each of these; of one that fails there are none.
pub(super) fn digests_of<'o>(members: &[InUse<'o>], range: &Range<u64>, block_bytes: u64) -> Vec<Option<Vec<Digest>>> {
    let request = Control::digest_request(range, block_bytes);
    let ask = |member: &'o dyn Member| member.control().map(|control| (control, control.start_asking(&request)));
    let asked: Vec<Option<(&Control, Asking<'_>)>> = members.iter().map(|(_, member)| ask(*member)).collect();
    let block_count = (range.end - range.start).div_ceil(block_bytes) as usize;
    let taken = asked.into_iter().map(|asked| {
        let (control, asking) = asked?;
        control.finish_digests(asking, block_count)
    });
    taken.collect()
}

/// That a member was lost in between.
pub(super) fn lost(member: &dyn Member) -> PoolError {
    let why = member.standing().tell_failure().cloned();
    replica_error(member, why.unwrap_or_else(|| Arc::new(ReplicaError::Unexpected)))
}
