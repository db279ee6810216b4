//! Which copy of a block is right where members hold different bytes, and what is copied from which member.
//!
//! Each step is a future over the trait [`Contents`], which waits for nothing but what the driver does. In a program the driver blocks its thread, so that each future is
//! ready at its first poll; in the simulation it waits for simulated targets.

use alloc::vec::Vec;
use core::ops::Range;

use pmof_control::{DIGESTED_MAX_BYTES, DIGESTS_MAX};

use crate::{member_state::MemberState, pages::PAGE_BYTES};

mod blocks;
mod equalize;
mod scrub;
#[cfg(test)]
mod tests;

pub use blocks::{Compared, Verdict};
pub use equalize::{Equalizing, equalize};
pub use scrub::{Findings, Scrubbed, scrub_window, settle};

/// Bytes of the blocks that are compared first. Of blocks that differ the pages are compared.
const BLOCK_BYTES: u64 = 64 << 10;

/// The rules by which copies are judged, each in a method of its own, so that the simulation can break one and show that it is needed.
pub trait Rules {
    /// What is done about a block that differs between members in sync, and that is not written meanwhile.
    fn verdict<D: PartialEq>(&self, compared: &Compared<D>, block: usize) -> Verdict {
        compared.verdict(block)
    }

    /// What is copied of that which a member was found to lack.
    fn copied(&self, lacking: Vec<Range<u64>>) -> Vec<Range<u64>> {
        lacking
    }
}

/// The rules as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShippedRules;

impl Rules for ShippedRules {}

/// What the members of an open pool hold, as long as the members are the same.
pub trait Contents {
    /// A member, by one connection to it.
    type Member: Clone;
    /// A digest of a block.
    type Digest: PartialEq;
    /// A failure of the driver's.
    type Failure;
    /// The rules by which copies are judged.
    type Rules: Rules;

    /// The rules by which copies are judged.
    fn rules(&self) -> &Self::Rules;

    /// The members, by their positions.
    fn members(&self) -> &[Self::Member];

    /// What a member is to the pool.
    fn state(&self, member: &Self::Member) -> MemberState;

    /// Whether both are one connection to one member.
    fn is_same(&self, one: &Self::Member, other: &Self::Member) -> bool;

    /// The digests of the blocks of a range on these members, which compute them side by side.
    ///
    /// # Errors
    /// That of the first member that failed; all that did are lost then.
    fn digests(
        &self,
        of: &[Self::Member],
        range: &Range<u64>,
        block_bytes: u64,
    ) -> impl Future<Output = Result<Compared<Self::Digest>, Self::Failure>>;

    /// Reads ranges from one member and posts them to another, which catches up. False: not all could be read.
    fn copy(&self, from: &Self::Member, ranges: &[Range<u64>], to: &Self::Member) -> impl Future<Output = bool>;

    /// Reads a range from one member and posts it to others in sync. The range counts as written: one that is lost meanwhile comes back with it. False: the member that
    /// is to be read knows that its medium has changed the range, and nothing was posted.
    ///
    /// # Errors
    /// That of the member that is read.
    fn repair(
        &self,
        from: &Self::Member,
        range: &Range<u64>,
        to: &[Self::Member],
    ) -> impl Future<Output = Result<bool, Self::Failure>>;

    /// The ranges outside of which all bytes of a member are zeros. `None`: the member is lost.
    fn data_ranges(&self, member: &Self::Member) -> impl Future<Output = Option<Vec<Range<u64>>>>;

    /// Makes all that was posted to a member as durable as it can be.
    ///
    /// # Errors
    /// The member is lost.
    fn flush(&self, member: &Self::Member) -> impl Future<Output = Result<(), Self::Failure>>;
}

/// The members that have all that was acknowledged.
pub fn in_sync<C: Contents>(contents: &C) -> impl Iterator<Item = &C::Member> + Clone {
    contents.members().iter().filter(|member| contents.state(member).is_in_sync())
}

/// The member that another one is compared with.
pub fn source_for<'c, C: Contents>(contents: &'c C, member: &C::Member) -> Option<&'c C::Member> {
    in_sync(contents).find(|source| !contents.is_same(source, member))
}

/// Copies a window to a member that catches up, or what it lacks of the window where that is not known. Returns the bytes copied. `None`: a member is lost, or none is in sync.
pub async fn copy_window<C: Contents>(
    contents: &C,
    member: &C::Member,
    window: &[Range<u64>],
    is_compared: bool,
) -> Option<u64> {
    let mut ranges = Vec::new();
    for range in window {
        if is_compared {
            let differing = differing_from_source(contents, member, range).await?;
            let lacking = lacking(contents, member, differing).await?;
            ranges.append(&mut contents.rules().copied(lacking));
        } else {
            ranges.push(range.clone());
        }
    }
    let mut is_copied = ranges.is_empty();
    for source in in_sync(contents) {
        if is_copied {
            break;
        }
        // One that fails in the middle is lost; the next one begins again, which changes nothing.
        is_copied = contents.copy(source, &ranges, member).await;
    }
    let is_posted = is_copied && contents.state(member).is_connected();
    is_posted.then(|| ranges.iter().map(|range| range.end - range.start).sum())
}

/// The pages of a range that differ between a member and its source. `None`: a member is lost, or none is in sync.
pub async fn differing_from_source<C: Contents>(
    contents: &C,
    member: &C::Member,
    range: &Range<u64>,
) -> Option<Vec<Range<u64>>> {
    let source = source_for(contents, member)?;
    differing(contents, &with_place(contents, [source, member])?, range).await
}

/// Those of the ranges in which a member differs from its source that it is to hold as the source does: no others in sync hold what it does. `None`: a member is lost, or
/// none is in sync.
pub async fn lacking<C: Contents>(
    contents: &C,
    member: &C::Member,
    differing: Vec<Range<u64>>,
) -> Option<Vec<Range<u64>>> {
    let source = source_for(contents, member)?;
    let is_asked = |one: &&C::Member| contents.is_same(one, member) || contents.state(one).is_in_sync();
    let all: Vec<_> = contents.members().iter().filter(is_asked).cloned().collect();
    let at = |of: &C::Member| all.iter().position(|one| contents.is_same(one, of));
    let pair = (at(source)?, at(member)?);
    if all.len() < 3 {
        return Some(differing);
    }
    let mut lacking = Vec::new();
    for range in &differing {
        let is_lacking = |compared: &Compared<C::Digest>, page| compared.is_lacking(pair, page);
        lacking.append(&mut blocks(contents, &all, range, PAGE_BYTES, is_lacking).await?);
    }
    Some(lacking)
}

/// The pages of a range that differ between these members: those of blocks that do. `None`: one of them is lost.
pub async fn differing<C: Contents>(
    contents: &C,
    members: &[C::Member],
    range: &Range<u64>,
) -> Option<Vec<Range<u64>>> {
    let mut pages = Vec::new();
    for block in blocks(contents, members, range, BLOCK_BYTES, |_, _| true).await? {
        pages.append(&mut blocks(contents, members, &block, PAGE_BYTES, |_, _| true).await?);
    }
    Some(pages)
}

/// Two members in the order of the pool's, in which all are asked that are asked at once. `None`: one of them has no place.
fn with_place<C: Contents>(contents: &C, pair: [&C::Member; 2]) -> Option<Vec<C::Member>> {
    let is_one = |one: &&C::Member| pair.iter().any(|of| contents.is_same(one, of));
    let both: Vec<_> = contents.members().iter().filter(is_one).cloned().collect();
    (both.len() == 2).then_some(both)
}

/// Those of the blocks of a range that differ between members and are wanted; neighbours are one.
async fn blocks<C: Contents>(
    contents: &C,
    members: &[C::Member],
    range: &Range<u64>,
    block_bytes: u64,
    is_wanted: impl Fn(&Compared<C::Digest>, usize) -> bool,
) -> Option<Vec<Range<u64>>> {
    let at_once = (DIGESTED_MAX_BYTES / block_bytes).min(DIGESTS_MAX as u64) * block_bytes;
    let (mut ranges, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let part = at..range.end.min(at + at_once);
        let compared = contents.digests(members, &part, block_bytes).await.ok()?;
        ranges.append(&mut compared.ranges_where(|block| is_wanted(&compared, block)));
        at = part.end;
    }
    Some(ranges)
}
