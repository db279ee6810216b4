//! What really happened, and whether it may have.

use pmof_control::ConsistencyPoint;

use super::plan::{PAGES, WORDS};

/// The words of a page, each of which a write changes at once.
pub(super) type Page = [u64; WORDS];

/// The values of all pages. Each write has a value of its own, higher than all before, in all words of its page.
pub(super) type Pages = [Page; PAGES];

/// Bits of a word from here on are no write's.
const ROT_SHIFT: u32 = 48;

/// What flips in a word when it rots for this time of a run: bits that no write has, so that what was written can be told all the same.
pub(super) fn rot(number: u64) -> u64 {
    (1 + number % 0xffff) << ROT_SHIFT
}

pub(super) fn is_rotten(page: &Page) -> bool {
    page.iter().any(|word| word >> ROT_SHIFT != 0)
}

pub(super) fn sound_page(page: &Page) -> Page {
    page.map(|word| word & ((1 << ROT_SHIFT) - 1))
}

/// What was written, whatever has rotted.
pub(super) fn sound(pages: &Pages) -> Pages {
    pages.map(|page| sound_page(&page))
}

/// One writer's opening of the pool, from its success on.
#[derive(Debug)]
struct Opening {
    /// `None`: nobody has opened the pool yet.
    writer: Option<usize>,
    /// The number of its epoch: along one line each has a higher one.
    epoch: u64,
    recovered: Pages,
    /// Values that were written, in order.
    issued: [Vec<u64>; PAGES],
    /// The latest that was acknowledged; what was recovered at first.
    committed: Pages,
    /// An asynchronous member was promoted: what was acknowledged before is lost, on purpose, beyond what it had.
    is_promotion: bool,
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

/// A consistency point.
#[derive(Debug)]
struct Point {
    made: ConsistencyPoint,
    held: Pages,
    /// Writes that were under way: they are before it or behind it.
    under_way: Vec<(usize, u64)>,
}

impl Point {
    fn may_hold(&self, pages: &Pages) -> bool {
        let is_under_way = |page: usize| pages[page].iter().all(|word| self.under_way.contains(&(page, *word)));
        (0..PAGES).all(|page| self.held[page] == pages[page] || is_under_way(page))
    }
}

/// The pool as its users know it.
#[derive(Debug)]
pub(super) struct Truth {
    openings: Vec<Opening>,
    last_value: u64,
    /// Consistency points that were made, what the pool held at each, and how far writers said that they were.
    points: Vec<Point>,
    heard: Vec<ConsistencyPoint>,
    /// The age of the newest roster that was in force.
    roster: (u64, u64),
    pub(super) acknowledged: u64,
    /// The first rule that was broken.
    pub(super) violation: Option<String>,
}

impl Truth {
    pub(super) fn new() -> Self {
        let first = Opening {
            writer: None,
            epoch: 0,
            recovered: [[0; WORDS]; PAGES],
            issued: Default::default(),
            committed: [[0; WORDS]; PAGES],
            is_promotion: false,
        };
        Self {
            openings: vec![first],
            last_value: 0,
            points: Vec::new(),
            heard: Vec::new(),
            roster: (0, 0),
            acknowledged: 0,
            violation: None,
        }
    }

    pub(super) fn violate(&mut self, what: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(what);
    }

    /// A writer has opened the pool by the epoch of this number, and found these values. Returns the opening's number here; `None` where
    /// another has opened the pool since, so that this one can change nothing: it was slow to learn of its success.
    pub(super) fn opened(&mut self, writer: usize, epoch: u64, found: &Pages) -> Option<usize> {
        let found = &sound(found);
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
        let (writer, issued) = (Some(writer), Default::default());
        let (committed, is_promotion) = (*found, false);
        self.openings.push(Opening { writer, epoch, recovered: *found, issued, committed, is_promotion });
        Some(self.openings.len() - 1)
    }

    /// A reader was shown these values.
    pub(super) fn read(&mut self, found: &Pages) {
        let found = &sound(found);
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
        if let Some(next) = self.openings.get(opening + 1).filter(|next| !next.is_promotion) {
            let found = next.recovered[page];
            if found.iter().any(|found| *found < value) {
                self.violate(|| {
                    format!("page {page}: {value} was acknowledged behind the next opening, which found {found:?}")
                });
            }
        }
    }

    /// A point was made, behind what the pool holds then, which is acknowledged by that.
    pub(super) fn reach(
        &mut self,
        opening: Option<usize>,
        point: &ConsistencyPoint,
        (pages, under_way): (&Pages, Vec<(usize, u64)>),
    ) {
        for (page, words) in pages.iter().enumerate() {
            let is_written = opening.is_none_or(|opening| self.openings[opening].recovered[page] != *words);
            if is_written {
                self.acknowledge(opening, page, words[0]);
            }
        }
        self.points.push(Point { made: point.clone(), held: *pages, under_way });
    }

    /// A member was told how far its writer is.
    pub(super) fn hear(&mut self, far: &ConsistencyPoint) {
        self.heard.push(far.clone());
    }

    /// Whether a member is at a point, if it holds this.
    pub(super) fn is_at(&self, point: &ConsistencyPoint, pages: &Pages) -> bool {
        let pages = &sound(pages);
        let is_same = |made: &ConsistencyPoint| ConsistencyPoint { number: point.number, ..made.clone() } == *point;
        self.points.iter().any(|point| is_same(&point.made) && point.may_hold(pages))
    }

    /// Whether a writer was so far.
    pub(super) fn was_so_far(&self, heard: &ConsistencyPoint) -> bool {
        let mut said = self.heard.iter().chain(self.points.iter().map(|point| &point.made));
        said.any(|far| ConsistencyPoint { number: heard.number, ..far.clone() } == *heard)
    }

    /// What was written behind a point in its opening, and of this all that was acknowledged, is lost, on purpose: the pool goes on from there.
    pub(super) fn promoted(&mut self, pages: &Pages) {
        let (recovered, issued) = (sound(pages), Default::default());
        self.roster = (0, 0);
        let (committed, is_promotion) = (recovered, true);
        self.openings.push(Opening { writer: None, epoch: 0, recovered, issued, committed, is_promotion });
    }

    /// A writer was told that a roster is in force.
    pub(super) fn confirm_roster(&mut self, age: (u64, u64)) {
        self.roster = self.roster.max(age);
    }

    pub(super) fn roster_in_force(&self) -> (u64, u64) {
        self.roster
    }

    /// What the pool has to hold when nobody writes.
    pub(super) fn committed(&self) -> Pages {
        self.openings.last().expect("there is always one").committed
    }

    /// Whether the newest opening is this writer's.
    pub(super) fn is_newest_of(&self, writer: usize) -> bool {
        self.openings.last().is_some_and(|last| last.writer == Some(writer))
    }

    /// Whether this is still the newest opening.
    pub(super) fn is_newest(&self, opening: Option<usize>) -> bool {
        opening.is_some_and(|opening| opening + 1 == self.openings.len())
    }
}
