//! What really happened, and whether it may have.

use super::plan::{PAGES, WORDS};

/// The words of a page, each of which a write changes at once.
pub(super) type Page = [u64; WORDS];

/// The values of all pages. Each write has a value of its own, higher than all before, in all words of its page.
pub(super) type Pages = [Page; PAGES];

/// One writer's opening of the pool, from its success on.
#[derive(Debug)]
struct Opening {
    /// The number of its epoch: along one line each has a higher one.
    epoch: u64,
    recovered: Pages,
    /// Values that were written, in order.
    issued: [Vec<u64>; PAGES],
    /// The latest that was acknowledged; what was recovered at first.
    committed: Pages,
}

impl Opening {
    /// A page of which these values are not what was acknowledged, nor what was written since.
    fn lost_in(&self, found: &Pages) -> Option<usize> {
        let is_lost = |page: &usize, word: usize| {
            let (value, committed) = (found[*page][word], self.committed[*page][word]);
            value != committed && !(value > committed && self.issued[*page].contains(&value))
        };
        (0..PAGES).find(|page| (0..WORDS).any(|word| is_lost(page, word)))
    }
}

/// The pool as its users know it.
#[derive(Debug)]
pub(super) struct Truth {
    openings: Vec<Opening>,
    last_value: u64,
    pub(super) acknowledged: u64,
    /// The first rule that was broken.
    pub(super) violation: Option<String>,
}

impl Truth {
    pub(super) fn new() -> Self {
        let first = Opening {
            epoch: 0,
            recovered: [[0; WORDS]; PAGES],
            issued: Default::default(),
            committed: [[0; WORDS]; PAGES],
        };
        Self { openings: vec![first], last_value: 0, acknowledged: 0, violation: None }
    }

    pub(super) fn violate(&mut self, what: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(what);
    }

    /// A writer has opened the pool by the epoch of this number, and found these values. Returns the opening's number here; `None` where
    /// another has opened the pool since, so that this one can change nothing: it was slow to learn of its success.
    pub(super) fn opened(&mut self, epoch: u64, found: &Pages) -> Option<usize> {
        if epoch <= self.openings.last().map_or(0, |last| last.epoch) {
            return None;
        }
        let before = self.openings.last().expect("there is always one");
        if let Some(page) = before.lost_in(found) {
            let (committed, issued) = (before.committed[page], before.issued[page].clone());
            let value = found[page];
            self.violate(|| {
                format!("page {page} was recovered as {value:?}; {committed:?} was acknowledged, of {issued:?} that were written")
            });
        }
        self.openings.push(Opening { epoch, recovered: *found, issued: Default::default(), committed: *found });
        Some(self.openings.len() - 1)
    }

    /// A reader was shown these values.
    pub(super) fn read(&mut self, found: &Pages) {
        let newest = self.openings.last().expect("there is always one");
        if let Some(page) = newest.lost_in(found) {
            let (committed, issued, value) = (newest.committed[page], newest.issued[page].clone(), found[page]);
            self.violate(|| {
                format!("a reader reads {value:?} in page {page}; {committed:?} was acknowledged, of {issued:?}")
            });
        }
    }

    pub(super) fn issue(&mut self, opening: Option<usize>, page: usize) -> u64 {
        self.last_value += 1;
        if let Some(opening) = opening {
            self.openings[opening].issued[page].push(self.last_value);
        }
        self.last_value
    }

    /// A write was acknowledged to the writer of this opening.
    pub(super) fn acknowledge(&mut self, opening: Option<usize>, page: usize, value: u64) {
        self.acknowledged += 1;
        let Some(opening) = opening else {
            self.violate(|| format!("page {page}: {value} was acknowledged to a writer that another had fenced"));
            return;
        };
        for committed in &mut self.openings[opening].committed[page] {
            *committed = value.max(*committed);
        }
        // A writer that was fenced may still learn of what its successor has found.
        if let Some(next) = self.openings.get(opening + 1) {
            let found = next.recovered[page];
            if found.iter().any(|found| *found < value) {
                self.violate(|| {
                    format!("page {page}: {value} was acknowledged behind the next opening, which found {found:?}")
                });
            }
        }
    }

    /// What the pool has to hold when nobody writes.
    pub(super) fn committed(&self) -> Pages {
        self.openings.last().expect("there is always one").committed
    }

    /// Whether this is still the newest opening.
    pub(super) fn is_newest(&self, opening: Option<usize>) -> bool {
        opening.is_some_and(|opening| opening + 1 == self.openings.len())
    }
}
