//! What a pool must give, and whether it does.

use std::{collections::BTreeSet, ops::Range};

use pmof::{Pool, PoolError, causes};
use pmof_control::{PAGE_BYTES, page_count};

use crate::soak::Random;

const PAGE: usize = PAGE_BYTES as usize;

/// Random ranges that are read besides all pages.
const RANGES: usize = 4;

/// How a case fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// A byte was read that was never written there.
    WrongBytes,
    /// Something acknowledged is refused while a good copy is left.
    LostBytes,
    /// A replica still has damage that could be repaired.
    NotHealed,
    /// Damage was reported of a page that has none.
    FalseAlarm,
    /// A call failed that must not.
    Error,
    Panic,
    Hang,
    /// With verification off nothing wrong was read: the cell proves nothing.
    Control,
}

/// What a case fails with.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(super) fn of(kind: FaultKind, what: &str, error: &PoolError) -> Self {
        Self::new(kind, format!("{what}: {}", causes(error)))
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::new(FaultKind::Error, format!("{error:#}"))
    }
}

/// The contents of a pool, and what is known of its pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    pub(super) bytes: Vec<u8>,
    /// Pages of which no replica has a good copy.
    pub(super) lost: BTreeSet<u64>,
    /// Pages that may be anything: nothing covers them.
    pub(super) uncovered: BTreeSet<u64>,
}

/// What reads of a whole pool gave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// Pages that were refused with [`PoolError::Damaged`].
    pub(super) refused: u64,
    /// Pages that nothing covers and that gave wrong bytes.
    pub(super) uncovered: u64,
}

impl Expected {
    pub(super) fn range_of(&self, page: u64) -> Range<usize> {
        let begin = page as usize * PAGE;
        begin..(begin + PAGE).min(self.bytes.len())
    }

    fn pages(&self) -> Range<u64> {
        0..page_count(self.bytes.len() as u64)
    }

    /// Reads everything at once and in random pieces, and what is not as written page by page, and compares.
    pub(super) fn check(&self, pool: &Pool, random: &mut Random) -> Result<Found, Fault> {
        let mut steps = [0, 1, 2];
        steps.rotate_left(random.below(3) as usize);
        let mut found = Found::default();
        for step in steps {
            match step {
                0 => self.check_range(pool, 0..self.bytes.len())?,
                1 => {
                    let mut pages: BTreeSet<u64> = self.lost.union(&self.uncovered).copied().collect();
                    pages.extend((0..RANGES).map(|_| random.below(self.pages().end)));
                    found = self.check_pages(pool, &pages)?;
                }
                _ => {
                    for _ in 0..RANGES {
                        let begin = random.below(self.bytes.len() as u64) as usize;
                        let len_bytes = 1 + random.below((self.bytes.len() - begin).min(5 * PAGE) as u64) as usize;
                        self.check_range(pool, begin..begin + len_bytes)?;
                    }
                }
            }
        }
        Ok(found)
    }

    fn check_pages(&self, pool: &Pool, pages: &BTreeSet<u64>) -> Result<Found, Fault> {
        let mut found = Found::default();
        for page in pages.iter().copied() {
            let range = self.range_of(page);
            let mut bytes = vec![0; range.len()];
            match pool.read(range.start as u64, &mut bytes) {
                Ok(()) if bytes == self.bytes[range.clone()] => {}
                Ok(()) if self.uncovered.contains(&page) => found.uncovered += 1,
                Ok(()) => return Err(self.wrong(&range, &bytes)),
                Err(PoolError::Damaged { ranges }) => {
                    if !ranges.iter().eq([&(range.start as u64..range.end as u64)]) {
                        return Err(Fault::new(FaultKind::FalseAlarm, format!("page {page}: damaged are {ranges:?}")));
                    }
                    self.check_refused(page)?;
                    found.refused += 1;
                }
                Err(error) => return Err(Fault::of(FaultKind::LostBytes, &format!("page {page}"), &error)),
            }
        }
        Ok(found)
    }

    fn check_range(&self, pool: &Pool, range: Range<usize>) -> Result<(), Fault> {
        let mut bytes = vec![0; range.len()];
        match pool.read(range.start as u64, &mut bytes) {
            Ok(()) => self.compare(&range, &bytes),
            Err(PoolError::Damaged { ranges }) => {
                let refused =
                    ranges.into_iter().flat_map(|range| range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES));
                refused.into_iter().try_for_each(|page| self.check_refused(page))
            }
            Err(error) => Err(Fault::of(FaultKind::LostBytes, &format!("bytes {range:?}"), &error)),
        }
    }

    /// A page may be refused if no replica has a good copy.
    fn check_refused(&self, page: u64) -> Result<(), Fault> {
        if self.lost.contains(&page) || self.uncovered.contains(&page) {
            return Ok(());
        }
        Err(Fault::new(FaultKind::LostBytes, format!("page {page} is refused, and a replica has a good copy")))
    }

    fn compare(&self, range: &Range<usize>, bytes: &[u8]) -> Result<(), Fault> {
        let mut at = range.start;
        while at < range.end {
            let page = (at / PAGE) as u64;
            let part = at..range.end.min((page as usize + 1) * PAGE);
            let found = &bytes[part.start - range.start..part.end - range.start];
            if *found != self.bytes[part.clone()] && !self.uncovered.contains(&page) {
                return Err(self.wrong(&part, found));
            }
            at = part.end;
        }
        Ok(())
    }

    fn wrong(&self, range: &Range<usize>, found: &[u8]) -> Fault {
        let at = found.iter().zip(&self.bytes[range.clone()]).position(|(found, right)| found != right).unwrap_or(0);
        let (offset, right) = (range.start + at, self.bytes[range.start + at]);
        Fault::new(
            FaultKind::WrongBytes,
            format!("byte {offset} is {:#04x} and was written as {right:#04x}", found[at]),
        )
    }
}
