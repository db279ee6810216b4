//! What a replica lacks is read from one that is in sync and written to it; where nobody knows what it lacks, digests tell.

use std::ops::Range;

use pmof_control::{DIGESTED_MAX_BYTES, DIGESTS_MAX};
use pmof_pool_set::{Compared, DIGEST_BLOCK_LEN_BYTES};

use super::Halt;
use crate::{
    member::{Atomicity, Member, Source, Write},
    pages::PAGE_BYTES,
    pool::{
        Open,
        compare::{InUse, compare},
    },
    scrub::is_lacking,
};

impl Open {
    /// Copies a window from a replica that is in sync, or what differs of it. Returns the bytes copied.
    pub(super) fn copy_window(
        &self,
        member: &dyn Member,
        window: &[Range<u64>],
        is_compared: bool,
    ) -> Result<u64, Halt> {
        let mut ranges = Vec::new();
        for range in window {
            if is_compared {
                let differing = self.differing(member, range)?;
                ranges.append(&mut self.lacking(member, differing)?);
            } else {
                ranges.push(range.clone());
            }
        }
        let mut post = |offset: u64, bytes: &[u8]| {
            let (source, len_bytes) = (Source::Bytes(bytes), bytes.len() as u64);
            // Behind them comes a flush, or a look at what is left, that sends them all.
            member.write(&Write { offset, len_bytes, source, atomicity: Atomicity::Relaxed, is_held: true });
        };
        // One that fails in the middle is lost; the next one begins again, which changes nothing.
        let is_read = ranges.is_empty() || self.in_use().any(|source| source.read_ranges(&ranges, &mut post).is_ok());
        if !is_read || !member.state().is_connected() {
            return Err(Halt::Later);
        }
        Ok(ranges.iter().map(|range| range.end - range.start).sum())
    }

    /// The replica that a member is compared with: another one, in sync.
    pub(super) fn source_for(&self, member: &dyn Member) -> Result<&dyn Member, Halt> {
        let mut others = self.in_use().filter(|source| source.control().is_some() && !is_same(&***source, member));
        others.next().map(|source| &**source).ok_or(Halt::Later)
    }

    /// Those of the ranges in which a member differs from its source that it is to hold as the source does: no others in sync hold what it does.
    pub(super) fn lacking(&self, member: &dyn Member, differing: Vec<Range<u64>>) -> Result<Vec<Range<u64>>, Halt> {
        let source = self.source_for(member)?;
        let members = self.members.iter().map(|member| &**member).enumerate();
        let all: Vec<_> = members
            .filter(|(_, one)| is_same(*one, member) || (one.state().is_in_sync() && one.control().is_some()))
            .collect();
        let at = |of: &dyn Member| all.iter().position(|(_, one)| is_same(*one, of)).ok_or(Halt::Later);
        let (source, returned) = (at(source)?, at(member)?);
        if all.len() < 3 {
            return Ok(differing);
        }
        let mut lacking = Vec::new();
        for range in &differing {
            let is_wanted = |compared: &Compared, page| is_lacking(compared, (source, returned), page);
            lacking.append(&mut blocks(&all, range, PAGE_BYTES, is_wanted)?);
        }
        Ok(lacking)
    }

    /// The pages of a range that differ, by digests that are computed where both are: first of blocks, then of the pages of those that differ.
    pub(super) fn differing(&self, member: &dyn Member, range: &Range<u64>) -> Result<Vec<Range<u64>>, Halt> {
        let source = self.source_for(member)?;
        let all = self.members.iter().map(|member| &**member).enumerate();
        // In the order of the pool's members, in which all are asked that are asked at once.
        let both: Vec<_> = all.filter(|(_, one)| is_same(*one, source) || is_same(*one, member)).collect();
        // The member has its place since it was admitted.
        let &[one, other] = &both[..] else { return Err(Halt::Later) };
        differing_pages([one, other], range)
    }
}

/// The pages of a range that differ between two members: those of blocks that do.
pub(in crate::pool) fn differing_pages(both: [InUse<'_>; 2], range: &Range<u64>) -> Result<Vec<Range<u64>>, Halt> {
    let mut pages = Vec::new();
    for blocks in differing_blocks(both, range, DIGEST_BLOCK_LEN_BYTES)? {
        pages.append(&mut differing_blocks(both, &blocks, PAGE_BYTES)?);
    }
    Ok(pages)
}

fn is_same(one: &dyn Member, other: &dyn Member) -> bool {
    std::ptr::eq(one.standing(), other.standing())
}

/// The blocks of a range that differ on two replicas, which both compute at once.
fn differing_blocks(both: [InUse<'_>; 2], range: &Range<u64>, block_bytes: u64) -> Result<Vec<Range<u64>>, Halt> {
    blocks(&both, range, block_bytes, |_, _| true)
}

/// Those of the blocks of a range that differ on replicas which are wanted; neighbours are one.
fn blocks(
    members: &[InUse<'_>],
    range: &Range<u64>,
    block_bytes: u64,
    is_wanted: impl Fn(&Compared, usize) -> bool,
) -> Result<Vec<Range<u64>>, Halt> {
    let at_once = (DIGESTED_MAX_BYTES / block_bytes).min(DIGESTS_MAX as u64) * block_bytes;
    let (mut ranges, mut at): (Vec<Range<u64>>, _) = (Vec::new(), range.start);
    while at < range.end {
        let part = at..range.end.min(at + at_once);
        let compared = compare(members, &part, block_bytes).map_err(|_| Halt::Later)?;
        ranges.append(&mut compared.ranges_where(|block| is_wanted(&compared, block)));
        at = part.end;
    }
    Ok(ranges)
}
