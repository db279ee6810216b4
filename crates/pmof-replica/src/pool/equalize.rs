//! Making the replicas of a pool equal after an opening that was not closed in order.

use std::sync::Arc;

use super::Open;
use crate::{
    PoolError, ReplicaError,
    member::{Atomicity, Control, Source, Write, replica_error},
};
use pmof_control::{DIGESTED_MAX_BYTES, DIGESTS_MAX};

/// Bytes whose digests are compared, and that are copied where they differ.
const BLOCK_BYTES: u64 = 64 << 10;

/// Bytes compared at a time: as many digests as one message holds.
const WINDOW_BYTES: u64 = DIGESTS_MAX as u64 * BLOCK_BYTES;
const _: () = assert!(WINDOW_BYTES <= DIGESTED_MAX_BYTES);

type Digest = [u8; pmof_pool::DIGEST_BYTES];

impl Open {
    /// Copies what differs from the replica at position `source` to the others, and makes all of each durable. Returns the bytes copied.
    pub(super) fn equalize(&self, source: usize) -> Result<u64, PoolError> {
        let (mut offset, mut copied_bytes) = (0, 0);
        while offset < self.facts.size_bytes {
            let len_bytes = WINDOW_BYTES.min(self.facts.size_bytes - offset);
            let digests = self.digests(source, offset, len_bytes)?;
            for block in 0..len_bytes.div_ceil(BLOCK_BYTES) {
                let at = offset + block * BLOCK_BYTES;
                let len_bytes = BLOCK_BYTES.min(offset + len_bytes - at);
                copied_bytes += self.copy_block(source, &digests, block as usize, at, len_bytes)?;
            }
            offset += len_bytes;
        }
        // Also where nothing was copied: what is the same on all may be durable on some.
        self.flush_everything(false);
        // Not before: which one was the source must be known as long as they differ.
        if let Some(epochs) = &self.epochs {
            epochs.tell_mark();
        }
        let (uuid, replicas) = (self.facts.uuid, self.in_use().count());
        log::info!(
            "pool {uuid} was not closed in order: its {replicas} replicas are equal after copying {copied_bytes} bytes"
        );
        Ok(copied_bytes)
    }

    /// The digests of a range's blocks on each replica in use, by its position; of one that fails there are none.
    fn digests(&self, source: usize, offset: u64, len_bytes: u64) -> Result<Vec<Option<Vec<Digest>>>, PoolError> {
        let request = Control::digest_request(&(offset..offset + len_bytes), BLOCK_BYTES);
        let controls = self.members.iter().map(|member| member.control().filter(|_| member.standing().is_in_use()));
        let controls: Vec<Option<&Control>> = controls.collect();
        let asked: Vec<_> = controls.iter().map(|control| Some(control.as_ref()?.start_asking(&request))).collect();
        let block_count = len_bytes.div_ceil(BLOCK_BYTES) as usize;
        let taken = controls.iter().zip(asked);
        let taken = taken.map(|(control, asking)| control.as_ref()?.finish_digests(asking?, block_count));
        let digests: Vec<_> = taken.collect();
        match digests[source] {
            Some(_) => Ok(digests),
            // Another may be the source of the next opening.
            None => Err(self.lost_error(source)),
        }
    }

    /// Why the member at this position is out of use.
    fn lost_error(&self, position: usize) -> PoolError {
        let member = &*self.members[position];
        let why = member.standing().tell_failure().cloned();
        replica_error(member, why.unwrap_or_else(|| Arc::new(ReplicaError::Unexpected)))
    }

    /// Copies one block to the replicas whose digest of it is another than the source's. Returns the bytes copied.
    fn copy_block(
        &self,
        source: usize,
        digests: &[Option<Vec<Digest>>],
        block: usize,
        offset: u64,
        len_bytes: u64,
    ) -> Result<u64, PoolError> {
        let of = |replica: usize| digests[replica].as_ref().map(|digests| digests[block]);
        let right = of(source);
        let differs = |replica: &usize| of(*replica).is_some_and(|digest| Some(digest) != right);
        let differing: Vec<_> = (0..digests.len()).filter(differs).collect();
        if differing.is_empty() {
            return Ok(0);
        }
        let mut bytes = vec![0; len_bytes as usize];
        let from = &*self.members[source];
        from.read(offset, &mut bytes).map_err(|source| replica_error(from, source))?;
        for replica in &differing {
            let (source, atomicity) = (Source::Bytes(&bytes), Atomicity::Relaxed);
            self.members[*replica].write(&Write { offset, len_bytes, source, atomicity, is_held: true });
        }
        Ok(len_bytes * differing.len() as u64)
    }
}
