//! The digests of blocks of replicas, which all of them compute at once. Everything that compares replicas asks for them here.

use std::ops::Range;

use super::ComparisonError;
use crate::{AccessError, Contents, DIGEST_BLOCK_LEN_BYTES, Digest, Window, zero_digests};

/// The digests of the blocks of a range, on several replicas.
#[derive(Debug)]
pub struct BlockDigests {
    range: Range<u64>,
    block_bytes: u64,
    block_count: usize,
    digests: Vec<Result<Vec<Digest>, AccessError>>,
}

impl BlockDigests {
    /// Asks all replicas for the blocks of [`DIGEST_BLOCK_LEN_BYTES`] of a window, but those that have a hole there.
    pub fn of_window(replicas: &mut [&mut dyn Contents], window: &Window) -> Self {
        Self::of(replicas, &window.range, DIGEST_BLOCK_LEN_BYTES, &window.is_hole)
    }

    /// Asks all replicas for the blocks of `block_bytes` of a range.
    pub fn of_range(replicas: &mut [&mut dyn Contents], range: &Range<u64>, block_bytes: u64) -> Self {
        Self::of(replicas, range, block_bytes, &[])
    }

    fn of(replicas: &mut [&mut dyn Contents], range: &Range<u64>, block_bytes: u64, is_hole: &[bool]) -> Self {
        let len_bytes = range.end - range.start;
        let block_count = len_bytes.div_ceil(block_bytes) as usize;
        let has_hole = |replica: usize| is_hole.get(replica).copied().unwrap_or(false);
        let asked = replicas.iter_mut().enumerate();
        let asked =
            asked.map(|(index, replica)| (!has_hole(index)).then(|| replica.start_digests(range.clone(), block_bytes)));
        let counted = |found: Vec<Digest>| match found {
            found if found.len() == block_count => Ok(found),
            found => Err(format!("{} digests were received instead of {block_count}", found.len()).into()),
        };
        // All are asked before one is waited for.
        let asked: Vec<_> = asked.collect();
        let digests = asked.into_iter().map(|finish| match finish {
            Some(finish) => finish().and_then(counted),
            None => Ok(zero_digests(len_bytes)),
        });
        Self { digests: digests.collect(), range: range.clone(), block_bytes, block_count }
    }

    /// Fails with the first replica that failed.
    ///
    /// # Errors
    /// What went wrong with it.
    pub fn of_all(mut self) -> Result<Self, ComparisonError> {
        let failed = self.failed().next();
        match failed {
            None => Ok(self),
            Some(replica) => Err(self.take_failure(replica)),
        }
    }

    /// The replicas that gave no digests.
    pub fn failed(&self) -> impl Iterator<Item = usize> {
        self.digests.iter().enumerate().filter(|(_, digests)| digests.is_err()).map(|(replica, _)| replica)
    }

    /// What went wrong with a replica that gave no digests, which counts as one that gave none from then on, too.
    pub fn take_failure(&mut self, replica: usize) -> ComparisonError {
        let taken = std::mem::replace(&mut self.digests[replica], Err("its failure was taken".into()));
        ComparisonError { replica, source: taken.err().unwrap_or_else(|| "it gave its digests".into()) }
    }

    /// The digests by replicas; `None` of one that gave none.
    pub fn into_digests(self) -> Vec<Option<Vec<Digest>>> {
        self.digests.into_iter().map(Result::ok).collect()
    }

    /// The blocks of which the replicas that gave digests do not all hold the same.
    pub(super) fn differing(&self) -> Vec<Range<u64>> {
        let known: Vec<_> = self.digests.iter().flatten().collect();
        let differs = |block: &usize| known.windows(2).any(|pair| pair[0][*block] != pair[1][*block]);
        (0..self.block_count).filter(differs).map(|block| self.block(block)).collect()
    }

    /// Where a block lies.
    fn block(&self, block: usize) -> Range<u64> {
        let start = self.range.start + block as u64 * self.block_bytes;
        start..(start + self.block_bytes).min(self.range.end)
    }
}
