//! Making the replicas of a pool equal after an opening that was not closed in order.

use std::sync::Arc;

use super::Pool;
use crate::{
    PoolError, ReplicaError,
    control::{DIGESTED_MAX_BYTES, DIGESTS_MAX, Reply, Request},
    replica::Replica,
};

/// Bytes whose digests are compared, and that are copied where they differ.
const BLOCK_BYTES: u64 = 64 << 10;

/// Bytes compared at a time: as many digests as one message holds.
const WINDOW_BYTES: u64 = DIGESTS_MAX as u64 * BLOCK_BYTES;
const _: () = assert!(WINDOW_BYTES <= DIGESTED_MAX_BYTES);

type Digest = [u8; pmof_pool::DIGEST_BYTES];

impl Pool {
    /// Copies what differs from the replica at position `source` to the others, and makes all of each durable.
    pub(super) fn equalize(&mut self, source: usize) -> Result<(), PoolError> {
        let mut offset = 0;
        while offset < self.len_bytes() {
            let len_bytes = WINDOW_BYTES.min(self.len_bytes() - offset);
            let digests = self.digests(offset, len_bytes)?;
            for block in 0..len_bytes.div_ceil(BLOCK_BYTES) {
                let at = offset + block * BLOCK_BYTES;
                let len_bytes = BLOCK_BYTES.min(offset + len_bytes - at);
                self.copy_block(source, &digests, block as usize, at, len_bytes)?;
            }
            offset += len_bytes;
        }
        self.flush_to_close();
        self.check_none_lost()?;
        // Not before: which one was the source must be known as long as they differ.
        self.tell_mark();
        self.check_none_lost()?;
        let (uuid, copied_bytes, replicas) = (self.uuid(), self.copied_bytes, self.replicas.len());
        log::info!(
            "pool {uuid} was not closed in order: its {replicas} replicas are equal after copying {copied_bytes} bytes"
        );
        Ok(())
    }

    /// The digests of a range's blocks on each replica.
    fn digests(&mut self, offset: u64, len_bytes: u64) -> Result<Vec<Vec<Digest>>, PoolError> {
        let request = Request::Digest { offset, len_bytes, block_bytes: BLOCK_BYTES };
        let pending: Vec<_> = self.replicas.iter_mut().map(|replica| replica.start_asking(&request)).collect();
        let block_count = len_bytes.div_ceil(BLOCK_BYTES) as usize;
        let take = |(replica, pending): (&mut Replica, Option<_>)| match replica.finish_asking(&pending?)? {
            Reply::Digests { digests } if digests.len() == block_count => Some(digests),
            _ => replica.is_unexpected(),
        };
        let digests: Option<Vec<_>> = self.replicas.iter_mut().zip(pending).map(take).collect();
        self.check_none_lost()?;
        digests.ok_or(PoolError::NoReplicas)
    }

    /// Copies one block to the replicas whose digest of it is another than the source's.
    fn copy_block(
        &mut self,
        source: usize,
        digests: &[Vec<Digest>],
        block: usize,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), PoolError> {
        let right = digests[source][block];
        let differing: Vec<_> = (0..digests.len()).filter(|replica| digests[*replica][block] != right).collect();
        if differing.is_empty() {
            return Ok(());
        }
        let mut bytes = vec![0; len_bytes as usize];
        let replica = &mut self.replicas[source];
        let read = replica.read(offset, &mut bytes);
        read.map_err(|source| PoolError::Replica { replica: Arc::clone(&replica.url), source })?;
        for replica in differing {
            self.replicas[replica].write(offset, &bytes);
            self.copied_bytes += len_bytes;
        }
        self.is_flushed = false;
        Ok(())
    }
}

impl Replica {
    /// Takes a replica out of use whose answer does not fit the question.
    fn is_unexpected<T>(&mut self) -> Option<T> {
        self.fail(ReplicaError::Unexpected);
        None
    }
}
