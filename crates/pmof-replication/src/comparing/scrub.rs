//! Comparing the members of an open pool with each other, and repairing what a medium has changed.

use alloc::{vec, vec::Vec};
use core::ops::{Deref, Range};

use super::{BLOCK_BYTES, Contents, Rules as _, Verdict, in_sync};
use crate::pages::PAGE_BYTES;

/// A pool that is scrubbed while it may be written.
pub trait Scrubbed {
    /// What its members hold.
    type Contents: Contents;
    /// Keeps that in use.
    type Open: Deref<Target = Self::Contents>;
    /// The same while nothing is posted.
    type Held<'h>: Deref<Target = Self::Contents>
    where
        Self: 'h;

    /// What the members hold now.
    ///
    /// # Errors
    /// The pool is closed.
    fn contents(&self) -> Result<Self::Open, <Self::Contents as Contents>::Failure>;

    /// Waits until nothing is posted, and keeps it so until the result is dropped.
    ///
    /// # Errors
    /// The pool is closed.
    fn hold_all(&self) -> impl Future<Output = Result<Self::Held<'_>, <Self::Contents as Contents>::Failure>>;
}

/// What a scrub found.
#[derive(Debug)]
pub struct Findings<M> {
    /// Members compared: those in sync.
    pub member_count: usize,
    /// The pages that differed on a member from what most of them hold, and were made equal.
    pub repaired: Vec<(M, Range<u64>)>,
    /// Pages that differ, and of which no content is on more than half of the members compared: nothing says which is right. They are left as they are.
    pub undecided: Vec<Range<u64>>,
}

impl<M> Default for Findings<M> {
    fn default() -> Self {
        Self { member_count: 0, repaired: Vec::new(), undecided: Vec::new() }
    }
}

type MemberOf<S> = <<S as Scrubbed>::Contents as Contents>::Member;
type FailureOf<S> = <<S as Scrubbed>::Contents as Contents>::Failure;

/// Compares a window of the pool, and repairs what differs of it. False: there are no two members to compare.
///
/// # Errors
/// A member is lost, or the pool is closed: the window is compared again. What was repaired is.
pub async fn scrub_window<S: Scrubbed>(
    pool: &S,
    window: &Range<u64>,
    found: &mut Findings<MemberOf<S>>,
) -> Result<bool, FailureOf<S>> {
    let differing: Vec<_> = {
        let open = pool.contents()?;
        let in_use: Vec<_> = in_sync(&*open).cloned().collect();
        found.member_count = in_use.len();
        if in_use.len() < 2 {
            return Ok(false);
        }
        let compared = open.digests(&in_use, window, BLOCK_BYTES).await?;
        compared.differing().map(|block| compared.block(block)).collect()
    };
    let known = found.undecided.len();
    for block in differing {
        settle(pool, &block, found).await.inspect_err(|_| found.undecided.truncate(known))?;
    }
    Ok(true)
}

/// Looks again at a block while nothing is posted, and repairs it.
///
/// # Errors
/// Those of [`scrub_window`].
pub async fn settle<S: Scrubbed>(
    pool: &S,
    block: &Range<u64>,
    found: &mut Findings<MemberOf<S>>,
) -> Result<(), FailureOf<S>> {
    let held = pool.hold_all().await?;
    let in_use: Vec<_> = in_sync(&*held).cloned().collect();
    let compared = held.digests(&in_use, block, PAGE_BYTES).await?;
    found.member_count = in_use.len();
    let mut is_repaired = vec![false; in_use.len()];
    for page in compared.differing() {
        let range = compared.block(page);
        let Verdict::Repair { right, wrong } = held.rules().verdict(&compared, page) else {
            found.undecided.push(range);
            continue;
        };
        let to: Vec<_> = wrong.iter().map(|member| in_use[*member].clone()).collect();
        if !held.repair(&in_use[right], &range, &to).await? {
            found.undecided.push(range);
            continue;
        }
        for member in &wrong {
            is_repaired[*member] = true;
        }
        found.repaired.extend(to.into_iter().map(|member| (member, range.clone())));
    }
    for (member, _) in in_use.iter().zip(is_repaired).filter(|(_, is_repaired)| *is_repaired) {
        held.flush(member).await?;
    }
    Ok(())
}
