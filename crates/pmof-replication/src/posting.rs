//! How a write is posted to the members of an open pool, what it means for members that catch up, when a persist is acknowledged, and when it is forgotten which pages were
//! written.
//!
//! Writes and flushes are a program's fast path: what is done for each is generic over the driver, reads what the driver has, and takes no lock.

use alloc::{sync::Arc, vec::Vec};
use core::{
    ops::{Deref, Range},
    time::Duration,
};

use crate::{
    catch_up::CatchUp,
    comparing::{Contents, in_sync},
    domain::ReplicaDomain,
    member_state::MemberState,
    older_pages::OlderPages,
    pages::PageMap,
    view::Positions,
};

pub mod patience;
mod terms;
#[cfg(test)]
mod tests;

pub use patience::Patience;
pub use terms::AckTerms;

/// The shortest wait for what takes time in good order, too: an answer behind a disk, room in a queue that a fast network keeps full.
pub const LEAST_PATIENCE: Duration = Duration::from_millis(50);

/// The members of an open pool, to which writes of the type `W` are posted.
pub trait Posting<W> {
    /// A member, by one connection to it.
    type Member;

    /// How long a member may have no room for a write before it is left behind; `None`: as long as it takes.
    fn slow_after(&self) -> Option<Duration>;

    /// What a member is to the pool.
    fn state(&self, member: &Self::Member) -> MemberState;

    /// Posts a write, and waits for room.
    fn write(&self, member: &Self::Member, write: &W);

    /// The same, and waits for so long at most. False: there was no room, and a part of the write may be posted.
    fn write_within(&self, member: &Self::Member, write: &W, limit: Duration) -> bool;

    /// Leaves a member behind that is not in sync.
    fn leave_behind(&self, member: &Self::Member);

    /// Leaves a member in sync behind, if the others are enough. False: they are not, or that cannot be known now.
    fn leave_in_sync_behind(&self, position: usize) -> bool;
}

/// Posts a write to a member. False: not all of it is posted there, and the member lacks it.
#[inline]
pub fn post<W, P: Posting<W>>(pool: &P, (position, member): (usize, &P::Member), write: &W) -> bool {
    let Some(slow_after) = pool.slow_after() else {
        pool.write(member, write);
        return true;
    };
    let state = pool.state(member);
    if state.is_slow() {
        return false;
    }
    if state.is_behind() {
        let is_posted = pool.write_within(member, write, slow_after);
        if !is_posted {
            pool.leave_behind(member);
        }
        return is_posted;
    }
    if pool.write_within(member, write, slow_after.max(LEAST_PATIENCE)) {
        return true;
    }
    if pool.leave_in_sync_behind(position) {
        return false;
    }
    // The same bytes once more: nothing of this caller's was posted behind them.
    pool.write(member, write);
    true
}

/// Notes a write that is about to be posted. Returns what [`end_write`] takes: the windows of the copies that are in flight. `written`: the pages that were written since all members
/// were known to be equal.
#[inline]
pub fn begin_write<B: Default + FromIterator<u64>>(
    written: Option<&PageMap>,
    catching_up: &[(usize, Arc<CatchUp>)],
    range: &Range<u64>,
) -> B {
    if let Some(written) = written {
        // Before it is posted: a member that is lost from here on may lack it.
        written.mark(range.clone());
    }
    if catching_up.is_empty() {
        return B::default();
    }
    catching_up.iter().map(|(_, catch_up)| catch_up.before_write()).collect()
}

/// The write is posted to all members but those of `missed`, to which it was not, or not all of it.
#[inline]
pub fn end_write(
    catching_up: &[(usize, Arc<CatchUp>)],
    before: impl IntoIterator<Item = u64>,
    range: &Range<u64>,
    missed: Positions,
) {
    if catching_up.is_empty() {
        return;
    }
    for ((position, catch_up), before) in catching_up.iter().zip(before) {
        if missed & (1 << position) == 0 {
            catch_up.after_write(before, range);
        } else {
            catch_up.missed_write(range);
        }
    }
}

/// A persist of a program.
pub trait Persist {
    /// The flushes of the members.
    type Flushing;
    /// These, while they are waited for.
    type Waiting<'w>: patience::Waiting
    where
        Self: 'w;
    /// The members that have flushed, and what they reached.
    type Reached;
    /// The result for the program.
    type Outcome;

    /// What it is acknowledged by.
    fn terms(&self) -> &AckTerms;

    /// The flushes of the members, to be waited for together.
    fn waiting<'w>(&'w self, flushing: &'w mut Self::Flushing) -> Self::Waiting<'w>;

    /// Waits for the flushes of all members in sync, however long they take.
    fn finish_all(&self, flushing: &mut Self::Flushing) -> impl Future<Output = Self::Reached>;

    /// Sends no member anything if one of them has fenced this writer.
    fn stop_where_fenced(&self);

    /// Has those know of losses who must, durably. False: too few are left to know.
    fn acknowledge(&self) -> impl Future<Output = bool>;

    /// Tells which members have what was written and are in sync, if `judge` says that they are enough.
    fn receipt(&self, reached: Self::Reached, judge: &Judge<'_>) -> Self::Outcome;
}

/// Whether a persist is acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'t> {
    /// What it is acknowledged by.
    pub terms: &'t AckTerms,
    /// The outcome of [`Persist::acknowledge`].
    pub is_acknowledged: bool,
}

impl Judge<'_> {
    /// Whether members in these domains are enough. `epochs`: [`Epochs::is_enough`](crate::epochs::Epochs::is_enough).
    #[inline]
    pub fn are_enough(
        &self,
        have_it: impl Iterator<Item = Option<ReplicaDomain>> + Clone,
        epochs: impl FnOnce(bool) -> bool,
    ) -> bool {
        self.terms.are_met(have_it) && epochs(self.is_acknowledged)
    }
}

/// Waits for a flush of all members, or of enough where others take too long, and acknowledges it.
#[inline]
pub async fn finish_persist<P: Persist>(persist: &P, flushing: &mut P::Flushing) -> P::Outcome {
    if let Some(patience) = Patience::of(persist.terms()) {
        patience::wait(&mut persist.waiting(flushing), Some(patience)).await;
    }
    let reached = persist.finish_all(flushing).await;
    persist.stop_where_fenced();
    // Before anyone hears of writes that a lost member lacks, enough others know durably that it lacks them.
    let is_acknowledged = persist.acknowledge().await;
    persist.receipt(reached, &Judge { terms: persist.terms(), is_acknowledged })
}

/// An open pool that forgets now and then which pages were written.
pub trait Forgetting {
    /// The pool's members.
    type Contents: Contents;
    /// Keeps these in use.
    type Open: Deref<Target = Self::Contents>;
    /// The same while nothing is posted.
    type Held<'h>: Deref<Target = Self::Contents>
    where
        Self: 'h;
    /// A flush in flight.
    type Flushing;

    /// The pool's members now. `None`: the pool is closed.
    fn open(&self) -> Option<Self::Open>;

    /// The pages that were written since pages were set aside last. `None`: the pool keeps no map.
    fn written(&self, open: &Self::Contents) -> Option<Arc<PageMap>>;

    /// Members of the pool that have data, lost ones included.
    fn member_count(&self, open: &Self::Contents) -> usize;

    /// Whether any member catches up.
    fn is_catching_up(&self, open: &Self::Contents) -> bool;

    /// Waits a little until nothing is posted. `None`: writes took longer, or the pool is closed.
    fn try_hold(&self) -> impl Future<Output = Option<Self::Held<'_>>>;

    /// Has the pool begin an empty map, and lets writes go on.
    fn begin_map<'h>(&'h self, held: Self::Held<'h>) -> impl Future<Output = Self::Open>;

    /// Looks at the pages that were set aside.
    fn with_older<T>(&self, look: impl FnOnce(&mut OlderPages) -> T) -> T;

    /// Starts to make durable all that was posted to a member.
    fn start_flush(&self, member: &<Self::Contents as Contents>::Member) -> Self::Flushing;

    /// Waits for that. False: the member is lost.
    fn finish_flush(
        &self,
        member: &<Self::Contents as Contents>::Member,
        flushing: Self::Flushing,
    ) -> impl Future<Output = bool>;

    /// The members that count as having flushed.
    fn counted_as_flushed(&self, flushed: Positions, _open: &Self::Contents) -> Positions {
        flushed
    }
}

/// Forgets pages that were written and that all members have, if none is lost.
pub async fn forget_written<F: Forgetting>(pool: &F) {
    let Some(open) = set_aside(pool).await else { return };
    let in_use = open.members().iter().enumerate().filter(|(_, member)| open.state(member).is_in_sync());
    let flushing: Vec<_> = in_use.map(|(position, member)| (position, member, pool.start_flush(member))).collect();
    let mut flushed = 0;
    for (position, member, flushing) in flushing {
        if pool.finish_flush(member, flushing).await {
            flushed |= 1 << position;
        }
    }
    let flushed = pool.counted_as_flushed(flushed, &open);
    pool.with_older(|older| older.note_flushed(flushed));
}

/// Begins a new map of the pages that are written, if all members may have those of the map before.
async fn set_aside<F: Forgetting>(pool: &F) -> Option<F::Open> {
    let written = {
        let open = pool.open()?;
        let are_all_in_use = in_sync(&*open).count() == pool.member_count(&open) && !pool.is_catching_up(&open);
        pool.written(&open).filter(|written| are_all_in_use && !written.is_empty())?
    };
    // A writer that has marked its pages has posted its writes when this is held.
    let held = pool.try_hold().await?;
    // A witness has no pages.
    let members = held.members().iter().enumerate().filter(|(_, member)| held.state(member).has_data());
    let members = members.fold(0, |members, (position, _)| members | 1 << position);
    pool.with_older(|older| older.set_aside(written, members));
    Some(pool.begin_map(held).await)
}
