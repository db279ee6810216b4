//! Comparing the replicas of an open pool with each other, and repairing what a medium has changed.

use std::sync::Arc;

use pmof_control::OpenFor;
use pmof_pool_set::WINDOW_LEN_BYTES;
use pmof_replication::comparing::{self, Findings};

use super::{Open, Pool, Shared, epochs::done, returns::Held};
use crate::{PoolError, scrub::ScrubReport};

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
    /// Where a pool keeps digests of its pages, each page that a medium has changed is first repaired from any replica that has it as it was written.
    ///
    /// Writers wait while a block that differs is looked at again. Of two replicas that differ, without digests, nothing says which is right: that is reported, and
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
        // What differs from its own digest needs no other replica to be known, also of two; most replicas may have been changed in the same way.
        let is_verified = open.verify_pages(&window, &mut |page, is_healed| report.add_page(page, is_healed));
        drop(open);
        let mut found = Findings::default();
        let is_compared = done(comparing::scrub_window(self, &window, &mut found));
        report.add(found);
        if is_compared? || is_verified {
            report.compared_bytes = window.end;
        }
        *at = window.end;
        Ok(())
    }
}

impl comparing::Scrubbed for Shared {
    type Contents = Open;
    type Open = Arc<Open>;
    type Held<'h> = Held<'h>;

    fn contents(&self) -> Result<Arc<Open>, PoolError> {
        self.hold()
    }

    async fn hold_all(&self) -> Result<Held<'_>, PoolError> {
        Held::of(self.open.write()).ok_or(PoolError::Closed)
    }
}
