//! Comparing the replicas of an open pool with each other, and repairing what a medium has changed.

use std::{ops::Range, sync::Arc};

use pmof_control::OpenFor;
use pmof_pool_set::{DIGEST_BLOCK_LEN_BYTES, WINDOW_LEN_BYTES};

use super::{
    Pool, Shared,
    compare::{compare, lost},
};
use crate::{
    PoolError,
    member::FlushLevel,
    pages::PAGE_BYTES,
    scrub::{Repaired, ScrubReport, Verdict, judge},
};

/// How far a scrub is.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    at: u64,
    pub(super) report: ScrubReport,
}

impl Scrub {
    pub(super) fn is_done(&self, pool: &Shared) -> bool {
        self.at >= pool.facts.size_bytes
    }
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
        if self.0.facts.access != OpenFor::Write {
            return Err(PoolError::ReadOnly);
        }
        let mut scrub = Scrub::default();
        while !scrub.is_done(&self.0) {
            self.0.scrub_window(&mut scrub)?;
            progress(scrub.at);
        }
        self.0.note_scrubbed();
        Ok(scrub.report)
    }
}

impl Shared {
    /// Goes on with a scrub of a pool that is open for writing.
    pub(super) fn scrub_window(&self, scrub: &mut Scrub) -> Result<(), PoolError> {
        let Scrub { at, report } = scrub;
        let window = *at..(*at + WINDOW_LEN_BYTES).min(self.facts.size_bytes);
        let open = self.hold()?;
        if open.epochs.is_none() {
            return Err(PoolError::NoEpochs);
        }
        let in_use = open.members_in_use();
        report.replica_count = in_use.len();
        if in_use.len() > 1 {
            let compared = compare(&in_use, &window, DIGEST_BLOCK_LEN_BYTES)?;
            let told = report.undecided.len();
            for block in compared.differing() {
                // The window is compared again.
                self.settle(&compared.block(block), report).inspect_err(|_| report.undecided.truncate(told))?;
            }
            report.compared_bytes = window.end;
        }
        *at = window.end;
        Ok(())
    }

    /// Looks again at a block while nobody writes, and repairs it.
    pub(super) fn settle(&self, block: &Range<u64>, report: &mut ScrubReport) -> Result<(), PoolError> {
        let guard = self.open.write();
        let open = guard.as_ref().ok_or(PoolError::Closed)?;
        let in_use = open.members_in_use();
        let compared = compare(&in_use, block, PAGE_BYTES)?;
        let mut mended: Vec<usize> = Vec::new();
        for page in compared.differing() {
            let range = compared.block(page);
            let Verdict::Repair { right, wrong } = judge(&compared, page) else {
                report.undecided.push(range);
                continue;
            };
            let wrong: Vec<_> = wrong.into_iter().map(|replica| in_use[replica]).collect();
            let to: Vec<_> = wrong.iter().map(|(_, member)| *member).collect();
            open.copy_range(in_use[right].1, &range, &to)?;
            for (position, member) in wrong {
                let replica = Arc::clone(&member.standing().place);
                log::warn!("{replica:#} held other bytes than most replicas at {range:?}, and was repaired");
                report.repaired.push(Repaired { replica, range: range.clone() });
                mended.push(position);
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
