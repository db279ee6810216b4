//! The digests of blocks on several members, and which copy of a block is right: decided without input or output.

use alloc::vec::Vec;
use core::ops::Range;

/// The digests of the blocks of a range, on several members.
#[derive(Clone, Debug)]
pub struct Compared<D> {
    range: Range<u64>,
    block_bytes: u64,
    /// By the members that were asked; `None` of one that gave none.
    digests: Vec<Option<Vec<D>>>,
}

/// What is done about a block that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The members of `wrong` are to hold what `right` and most others do.
    Repair {
        /// One of the members that hold what most do.
        right: usize,
        /// All that hold something else.
        wrong: Vec<usize>,
    },
    /// No content is on more than half of the members: nothing says which is right, and all stay as they are.
    Undecided,
}

impl<D: PartialEq> Compared<D> {
    /// `digests`: by the members that were asked, of all blocks of the range; `None` of one that gave none.
    ///
    /// # Panics
    /// If there are more or fewer digests than blocks.
    pub fn new(range: Range<u64>, block_bytes: u64, digests: Vec<Option<Vec<D>>>) -> Self {
        let block_count = (range.end - range.start).div_ceil(block_bytes) as usize;
        let is_complete = |digests: &Vec<D>| digests.len() == block_count;
        assert!(digests.iter().flatten().all(is_complete), "each member tells the digests of {block_count} blocks");
        Self { range, block_bytes, digests }
    }

    /// Where a block lies.
    pub fn block(&self, block: usize) -> Range<u64> {
        let start = self.range.start + block as u64 * self.block_bytes;
        start..(start + self.block_bytes).min(self.range.end)
    }

    /// The members that gave digests.
    pub fn known(&self) -> impl Iterator<Item = usize> {
        self.digests.iter().enumerate().filter(|(_, digests)| digests.is_some()).map(|(member, _)| member)
    }

    /// The digest of a block on a member that gave its digests.
    pub fn digest(&self, member: usize, block: usize) -> Option<&D> {
        self.digests[member].as_ref()?.get(block)
    }

    /// The members that hold other bytes in a block than one of them does. What one holds that gave no digests is not known.
    pub fn unlike(&self, member: usize, block: usize) -> impl Iterator<Item = usize> {
        let right = self.digest(member, block);
        self.known().filter(move |other| right.is_some() && self.digest(*other, block) != right)
    }

    /// The blocks of which the members that gave digests do not all hold the same.
    pub fn differing(&self) -> impl Iterator<Item = usize> {
        let first = self.known().next();
        let differs = move |block: &usize| first.is_some_and(|first| self.unlike(first, *block).next().is_some());
        let block_count = first.and_then(|first| self.digests[first].as_ref()).map_or(0, Vec::len);
        (0..block_count).filter(differs)
    }

    /// Those of them that are `wanted`, as ranges; neighbours are one.
    pub(super) fn ranges_where(&self, wanted: impl Fn(usize) -> bool) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for block in self.differing().filter(|block| wanted(*block)).map(|block| self.block(block)) {
            match ranges.last_mut() {
                Some(last) if last.end == block.start => last.end = block.end,
                _ => ranges.push(block),
            }
        }
        ranges
    }

    /// Judges a block of which members in sync hold different bytes, and that is not written meanwhile.
    pub fn verdict(&self, block: usize) -> Verdict {
        let count = self.known().count();
        let is_most = |member: &usize| 2 * self.unlike(*member, block).count() < count;
        match self.known().find(is_most) {
            Some(right) => Verdict::Repair { right, wrong: self.unlike(right, block).collect() },
            None => Verdict::Undecided,
        }
    }

    /// Which member the others are made equal to in a block, behind a writer's death. All in sync have what was acknowledged, so that any will do for that; what more
    /// than half of them hold has not rotted on one. `source`: the one where no content is on so many.
    pub fn most_hold(&self, source: usize, block: usize) -> usize {
        match self.verdict(block) {
            Verdict::Repair { right, .. } => right,
            Verdict::Undecided => source,
        }
    }

    /// Whether a member that returns is to hold what the `source` does in a block: it differs there, and no more of those in sync hold what it does, itself counted,
    /// than what the source does. Else the source is the one that has rotted.
    pub fn is_lacking(&self, (source, returned): (usize, usize), block: usize) -> bool {
        let count_of = |member: usize| {
            let held = self.digest(member, block);
            self.known().filter(|other| held.is_some() && self.digest(*other, block) == held).count()
        };
        let differs = self.unlike(source, block).any(|other| other == returned);
        differs && count_of(returned) <= count_of(source)
    }
}
