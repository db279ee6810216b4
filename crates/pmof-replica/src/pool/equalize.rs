//! Making the replicas of a pool equal after an opening that was not closed in order.

use super::Open;
use crate::{
    PoolError,
    member::{Atomicity, RemoteMember, Source, Write, replica_error},
};
use pmof_control::{DIGESTED_MAX_BYTES, DIGESTS_MAX, Reply, Request};

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
            let digests = self.digests(offset, len_bytes)?;
            for block in 0..len_bytes.div_ceil(BLOCK_BYTES) {
                let at = offset + block * BLOCK_BYTES;
                let len_bytes = BLOCK_BYTES.min(offset + len_bytes - at);
                copied_bytes += self.copy_block(source, &digests, block as usize, at, len_bytes)?;
            }
            offset += len_bytes;
        }
        // Also where nothing was copied: what is the same on all may be durable on some.
        self.flush_everything(false);
        self.check_none_lost()?;
        // Not before: which one was the source must be known as long as they differ.
        if let Some(epochs) = &self.epochs {
            epochs.tell_mark(&self.members);
        }
        self.check_none_lost()?;
        let (uuid, replicas) = (self.facts.uuid, self.members.len());
        log::info!(
            "pool {uuid} was not closed in order: its {replicas} replicas are equal after copying {copied_bytes} bytes"
        );
        Ok(copied_bytes)
    }

    /// The digests of a range's blocks on each replica.
    fn digests(&self, offset: u64, len_bytes: u64) -> Result<Vec<Vec<Digest>>, PoolError> {
        let request = Request::Digest { offset, len_bytes, block_bytes: BLOCK_BYTES };
        let remotes: Vec<&RemoteMember> = self.members.iter().filter_map(|member| member.remote()).collect();
        let asked: Vec<_> = remotes.iter().map(|remote| remote.start_asking(&request)).collect();
        let block_count = len_bytes.div_ceil(BLOCK_BYTES) as usize;
        let take = |(remote, asking)| match RemoteMember::finish_asking(remote, asking)? {
            Reply::Digests { digests } if digests.len() == block_count => Some(digests),
            _ => remote.is_unexpected(),
        };
        let digests: Option<Vec<_>> = remotes.iter().copied().zip(&asked).map(take).collect();
        self.check_none_lost()?;
        digests.ok_or(PoolError::NoReplicas)
    }

    /// Copies one block to the replicas whose digest of it is another than the source's. Returns the bytes copied.
    fn copy_block(
        &self,
        source: usize,
        digests: &[Vec<Digest>],
        block: usize,
        offset: u64,
        len_bytes: u64,
    ) -> Result<u64, PoolError> {
        let right = digests[source][block];
        let differing: Vec<_> = (0..digests.len()).filter(|replica| digests[*replica][block] != right).collect();
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
