//! Which blocks of replicas differ, by digests that all of them compute at once. Everything that compares replicas does it here.

use std::ops::Range;

use super::ComparisonError;
use crate::{AccessError, Contents, DIGEST_BLOCK_LEN_BYTES, Digest, Window, zero_digests};

/// The digests of the blocks of a range, on several replicas.
#[derive(Debug)]
pub struct Compared {
    range: Range<u64>,
    block_bytes: u64,
    block_count: usize,
    digests: Vec<Result<Vec<Digest>, AccessError>>,
}

impl Compared {
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

    /// How many replicas were asked, those that gave no digests too.
    pub fn replica_count(&self) -> usize {
        self.digests.len()
    }

    /// The replicas that gave no digests.
    pub fn failed(&self) -> impl Iterator<Item = usize> {
        self.digests.iter().enumerate().filter(|(_, digests)| digests.is_err()).map(|(replica, _)| replica)
    }

    /// What went wrong with a replica that gave no digests.
    pub fn take_failure(&mut self, replica: usize) -> ComparisonError {
        let source = std::mem::replace(&mut self.digests[replica], Ok(Vec::new())).err();
        ComparisonError { replica, source: source.unwrap_or_else(|| "it gave its digests".into()) }
    }

    /// The digest of a block on a replica that gave its digests.
    pub fn digest(&self, replica: usize, block: usize) -> Option<&Digest> {
        self.digests[replica].as_ref().ok()?.get(block)
    }

    /// Where a block lies.
    pub fn block(&self, block: usize) -> Range<u64> {
        let start = self.range.start + block as u64 * self.block_bytes;
        start..(start + self.block_bytes).min(self.range.end)
    }

    /// The replicas that hold other bytes in a block than one of them does. One that gave no digests holds what nobody knows.
    pub fn unlike(&self, replica: usize, block: usize) -> impl Iterator<Item = usize> {
        let right = self.digest(replica, block);
        let others = (0..self.digests.len()).filter_map(move |other| Some((other, self.digest(other, block)?)));
        others.filter(move |(_, digest)| right.is_some_and(|right| right != *digest)).map(|(other, _)| other)
    }

    /// The blocks of which the replicas that gave digests do not all hold the same.
    pub fn differing(&self) -> impl Iterator<Item = usize> {
        let first = (0..self.digests.len()).find(|replica| self.digests[*replica].is_ok());
        let differs = move |block: &usize| first.is_some_and(|first| self.unlike(first, *block).next().is_some());
        (0..self.block_count).filter(differs)
    }

    /// Those of them that are `wanted`, as ranges; neighbours are one.
    pub fn ranges_where(&self, wanted: impl Fn(usize) -> bool) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for block in self.differing().filter(|block| wanted(*block)).map(|block| self.block(block)) {
            match ranges.last_mut() {
                Some(last) if last.end == block.start => last.end = block.end,
                _ => ranges.push(block),
            }
        }
        ranges
    }
}
