//! What peers have asked of a target's memory: counted where it is done, added up by whoever runs the target.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pmof_mem::Durability;

use crate::{Refusal, refusal::REFUSALS};

/// Counts for any number of endpoints, from when it was made on. An operation of a peer's device, or of a peer that shares the memory, never comes to
/// an endpoint, and is not among them.
#[derive(Debug, Default)]
pub struct OperationCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    atomics: AtomicU64,
    flushes: [AtomicU64; 3],
    refusals: [AtomicU64; REFUSALS.len()],
}

/// What was done, and what was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationCounts {
    /// Reads that were answered.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes of any length.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Atomic writes, compare-and-swaps and fetch-and-adds.
    pub atomics: u64,
    /// Flushes that were answered, by the level that they reached, in the order of [`Durability::ALL`].
    pub flushes: [u64; 3],
    /// Refused operations by reason; every reason is listed, also with a count of 0.
    pub refusals: Vec<(Refusal, u64)>,
}

impl OperationCounters {
    pub(crate) fn add_read(&self, len_bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(len_bytes, Relaxed);
    }

    pub(crate) fn add_write(&self, len_bytes: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(len_bytes, Relaxed);
    }

    pub(crate) fn add_atomic(&self) {
        self.atomics.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_flush(&self, level: Durability) {
        let of_level = Durability::ALL.iter().position(|known| *known == level).map(|at| &self.flushes[at]);
        of_level.inspect(|count| _ = count.fetch_add(1, Relaxed));
    }

    pub(crate) fn add_refusal(&self, refusal: Refusal) {
        let of_reason = REFUSALS.iter().position(|known| *known == refusal).map(|at| &self.refusals[at]);
        of_reason.inspect(|count| _ = count.fetch_add(1, Relaxed));
    }

    /// Adds what was counted so far. Operations that are under way meanwhile may be counted in part.
    pub fn add_to(&self, counts: &mut OperationCounts) {
        counts.reads += self.reads.load(Relaxed);
        counts.read_bytes += self.read_bytes.load(Relaxed);
        counts.writes += self.writes.load(Relaxed);
        counts.written_bytes += self.written_bytes.load(Relaxed);
        counts.atomics += self.atomics.load(Relaxed);
        counts.flushes.iter_mut().zip(&self.flushes).for_each(|(sum, count)| *sum += count.load(Relaxed));
        for (refusal, count) in REFUSALS.into_iter().zip(&self.refusals) {
            let count = count.load(Relaxed);
            match counts.refusals.iter_mut().find(|(known, _)| *known == refusal) {
                Some((_, sum)) => *sum += count,
                None => counts.refusals.push((refusal, count)),
            }
        }
    }
}
