//! Pages of a replica whose bytes this side reads past the target's CPU: the target verifies each once, before the first read of it.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use pmof_control::{PAGE_BYTES, PagesReply, PagesRequest, page_count};

use super::Control;
use crate::{ReplicaError, intent::pages_of};

/// Pages that are verified together with one that is read: a MiB.
const TOGETHER: u64 = 256;
const WORD_PAGES: u64 = 64;

/// Which pages were verified since the replica was opened.
#[derive(Debug)]
pub(super) struct VerifiedPages {
    page_count: u64,
    verified: Box<[AtomicU64]>,
    /// Of which pages together the target was asked: what is not verified of them was damaged, and is verified apart when it is read again.
    asked: Box<[AtomicBool]>,
}

impl VerifiedPages {
    /// None of a replica with so many bytes.
    pub(super) fn new(size_bytes: u64) -> Self {
        let page_count = page_count(size_bytes);
        let verified = (0..page_count.div_ceil(WORD_PAGES)).map(|_| AtomicU64::new(0)).collect();
        let asked = (0..page_count.div_ceil(TOGETHER)).map(|_| AtomicBool::new(false)).collect();
        Self { page_count, verified, asked }
    }

    /// Has the target verify the pages of a range of bytes that it has not verified yet.
    ///
    /// # Errors
    /// [`ReplicaError::Damaged`]: the first page that is damaged.
    #[inline]
    pub(super) fn check(&self, control: &Control, range: &Range<u64>) -> Result<(), Arc<ReplicaError>> {
        let mut pages = pages_of(range);
        while let Some(page) = pages.find(|page| !self.is_verified(*page)) {
            self.verify(control, page)?;
        }
        Ok(())
    }

    #[cold]
    fn verify(&self, control: &Control, page: u64) -> Result<(), Arc<ReplicaError>> {
        let together = page / TOGETHER;
        let pages = if self.asked[together as usize].load(Ordering::Acquire) {
            page..page + 1
        } else {
            together * TOGETHER..self.page_count.min((together + 1) * TOGETHER)
        };
        let PagesReply::Verified { damaged, end } = control.ask_pages(PagesRequest::Verify { pages: pages.clone() })?
        else {
            return Err(control.fail(ReplicaError::Unexpected));
        };
        self.asked[together as usize].store(true, Ordering::Release);
        let is_damaged = |page: u64| damaged.iter().any(|range| range.contains(&page));
        for whole in (pages.start..end.min(pages.end)).filter(|page| !is_damaged(*page)) {
            self.verified[(whole / WORD_PAGES) as usize].fetch_or(1 << (whole % WORD_PAGES), Ordering::AcqRel);
        }
        if self.is_verified(page) { Ok(()) } else { Err(Arc::new(ReplicaError::Damaged { offset: page * PAGE_BYTES })) }
    }

    #[inline]
    fn is_verified(&self, page: u64) -> bool {
        self.verified[(page / WORD_PAGES) as usize].load(Ordering::Acquire) >> (page % WORD_PAGES) & 1 != 0
    }
}
