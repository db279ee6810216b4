//! Comparing the replicas of an open pool with each other, and repairing what a medium has changed.

use std::{collections::HashMap, ops::Range, sync::Arc};

use pmof_control::OpenFor;

use super::{
    Open, Pool,
    compare::{self, BLOCK_BYTES, Digest, InUse, WINDOW_BYTES, lost},
};
use crate::{PoolError, ReplicaPlace, member::FlushLevel, pages::PAGE_BYTES};

/// A page that differed on one replica from what most of them hold, and was made equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The replica whose copy was wrong.
    pub replica: Arc<ReplicaPlace>,
    /// The page, in bytes of the pool.
    pub range: Range<u64>,
}

/// What [`Pool::scrub`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Replicas compared: those in sync.
    pub replica_count: usize,
    /// What was repaired.
    pub repaired: Vec<Repaired>,
    /// Pages that differ, and of which no content is on more than half of the replicas compared: nothing says which is right. They were
    /// left as they are.
    pub undecided: Vec<Range<u64>>,
}

impl Pool {
    /// Compares all replicas in sync with each other, while the pool may be written, and repairs each page that differs from what more than
    /// half of them hold. Targets compute digests; of what differs a byte is sent. `progress` is told how many bytes were compared.
    ///
    /// Writers wait while a block that differs is looked at again. Of two replicas that differ nothing says which is right: that is told, and
    /// nothing is changed.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], [`PoolError::Closed`]; [`PoolError::NoEpochs`] of a pool set, which `pmof pool check` compares;
    /// [`PoolError::Replica`] where one is lost meanwhile: the others may be scrubbed again.
    pub fn scrub(&self, progress: &mut dyn FnMut(u64)) -> Result<ScrubReport, PoolError> {
        let facts = &self.0.facts;
        if facts.access != OpenFor::Write {
            return Err(PoolError::ReadOnly);
        }
        let mut report = ScrubReport::default();
        let mut at = 0;
        while at < facts.size_bytes {
            let window = at..(at + WINDOW_BYTES).min(facts.size_bytes);
            let open = self.0.hold()?;
            if open.epochs.is_none() {
                return Err(PoolError::NoEpochs);
            }
            let in_use = open.natives_in_use();
            report.replica_count = in_use.len();
            if in_use.len() > 1 {
                let digests = digests_of(&in_use, &window, BLOCK_BYTES)?;
                for block in differing(&window, BLOCK_BYTES, &digests) {
                    self.settle(&block, &mut report)?;
                }
                report.compared_bytes = window.end;
            }
            at = window.end;
            progress(at);
        }
        Ok(report)
    }

    /// Looks again at a block while nobody writes, and repairs it.
    fn settle(&self, block: &Range<u64>, report: &mut ScrubReport) -> Result<(), PoolError> {
        let guard = self.0.open.write();
        let open = guard.as_ref().ok_or(PoolError::Closed)?;
        let in_use = open.natives_in_use();
        let digests = digests_of(&in_use, block, PAGE_BYTES)?;
        let mut mended: Vec<usize> = Vec::new();
        for page in differing(block, PAGE_BYTES, &digests) {
            // Neighbours that differ come as one range.
            for begin in (page.start..page.end).step_by(PAGE_BYTES as usize) {
                let page = begin..(begin + PAGE_BYTES).min(page.end);
                let index = ((begin - block.start) / PAGE_BYTES) as usize;
                let of_page: Vec<Digest> = digests.iter().map(|digests| digests[index]).collect();
                let Some(right) = majority(&of_page) else {
                    report.undecided.push(page);
                    continue;
                };
                for position in open.repair(&in_use, &page, &of_page, right)? {
                    let replica = Arc::clone(&open.members[position].standing().place);
                    log::warn!("{replica:#} held other bytes than most replicas at {page:?}, and was repaired");
                    report.repaired.push(Repaired { replica, range: page.clone() });
                    mended.push(position);
                }
            }
        }
        for (_, member) in in_use.iter().filter(|(position, _)| mended.contains(position)) {
            if !member.flush_everything(FlushLevel::Strongest) {
                return Err(lost(*member));
            }
        }
        Ok(())
    }
}

impl Open {
    /// Makes a page equal on those whose digest is not the right one. Returns their positions.
    fn repair(
        &self,
        members: &[InUse<'_>],
        page: &Range<u64>,
        digests: &[Digest],
        right: Digest,
    ) -> Result<Vec<usize>, PoolError> {
        let source = members.iter().zip(digests).find(|(_, digest)| **digest == right);
        let Some(((_, source), _)) = source else { return Ok(Vec::new()) };
        let wrong = members.iter().zip(digests).filter(|(_, digest)| **digest != right);
        let (positions, wrong): (Vec<_>, Vec<_>) = wrong.map(|(member, _)| *member).unzip();
        self.copy_range(*source, page, &wrong)?;
        Ok(positions)
    }
}

/// The digests of a range's blocks on each of these.
fn digests_of(members: &[InUse<'_>], range: &Range<u64>, block_bytes: u64) -> Result<Vec<Vec<Digest>>, PoolError> {
    let digests = compare::digests_of(members, range, block_bytes).into_iter().zip(members);
    digests.map(|(digests, (_, member))| digests.ok_or_else(|| lost(*member))).collect()
}

/// The content that more than half of the replicas hold.
fn majority(digests: &[Digest]) -> Option<Digest> {
    let mut counts: HashMap<Digest, usize> = HashMap::new();
    for digest in digests {
        *counts.entry(*digest).or_default() += 1;
    }
    counts.into_iter().find(|(_, count)| 2 * count > digests.len()).map(|(digest, _)| digest)
}

/// The blocks of a range of which not all have the same digest; neighbours are one.
fn differing(range: &Range<u64>, block_bytes: u64, digests: &[Vec<Digest>]) -> Vec<Range<u64>> {
    let block_count = digests.first().map_or(0, Vec::len);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for block in 0..block_count {
        if digests.iter().all(|of| of[block] == digests[0][block]) {
            continue;
        }
        let begin = range.start + block as u64 * block_bytes;
        let end = (begin + block_bytes).min(range.end);
        match ranges.last_mut() {
            // No more than one look takes.
            Some(last) if last.end == begin && block_bytes == PAGE_BYTES => last.end = end,
            _ => ranges.push(begin..end),
        }
    }
    ranges
}
