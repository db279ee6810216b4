//! What a member that comes back may lack besides the pages of the pool's map: decided without input or output.

use alloc::sync::Arc;

use crate::{pages::PageMap, view::Positions};

#[cfg(test)]
mod tests;

/// Pages that were written before those of the pool's map, until all members have flushed them.
#[derive(Debug, Default)]
pub struct OlderPages {
    pages: Option<Arc<PageMap>>,
    /// Members that may lack some of them.
    unflushed: Positions,
}

impl OlderPages {
    /// Adds the pages of the pool's map, when a new map has taken its place while nobody posted. `members`: all that the pool has, those that
    /// are out of use too.
    pub fn set_aside(&mut self, written: Arc<PageMap>, members: Positions) {
        if let Some(older) = self.pages.take() {
            written.add(&older);
        }
        (self.pages, self.unflushed) = (Some(written), members);
    }

    /// These members were in use when pages were set aside last, and have since flushed all that was posted to them. The pages are forgotten
    /// unless a member is left that has not: one that was lost comes back by them.
    pub fn note_flushed(&mut self, flushed: Positions) {
        self.unflushed &= !flushed;
        if self.unflushed == 0 {
            self.pages = None;
        }
    }

    /// Adds them to what a member lacks that has come back.
    pub fn add_to(&self, missing: &PageMap) {
        self.pages.iter().for_each(|pages| missing.add(pages));
    }
}
