//! Points with names that a member is yet to be at, though no writes are kept that lead to them: as long as nothing is written behind such a point, a copy of the pool is it.

use alloc::collections::VecDeque;

use pmof_control::{ConsistencyPoint, KEPT_POINTS_MAX};

use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Whether two points are the same but for their numbers, which are those of change sets.
pub fn is_same(one: &ConsistencyPoint, other: &ConsistencyPoint) -> bool {
    let of_writer = |point: &ConsistencyPoint| ConsistencyPoint { number: 0, ..point.clone() }.to_bytes();
    of_writer(one) == of_writer(other)
}

/// Counts a pool's writes, so that it can be told whether any came behind a point.
#[derive(Debug, Default)]
pub struct WriteCount {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl WriteCount {
    /// Counts a write before anything of it is posted, until it is kept for the members and what this returns is dropped.
    pub fn begin(&self) -> Writing<'_> {
        self.begun.fetch_add(1, SeqCst);
        Writing(self)
    }

    pub(super) fn begun(&self) -> u64 {
        self.begun.load(SeqCst)
    }

    /// How many were begun. `None`: one has not ended.
    pub(super) fn settled(&self) -> Option<u64> {
        // In this order: none is under way at the first of the moments, and none begins until the second.
        let ended = self.ended.load(SeqCst);
        (self.begun() == ended).then_some(ended)
    }
}

/// A write that is under way.
#[derive(Debug)]
pub struct Writing<'c>(&'c WriteCount);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

/// A point, and how many writes had begun when it was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) writes: u64,
    pub(super) point: ConsistencyPoint,
}

/// The newest are kept here too: a member keeps no more.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Nothing was written behind them as far as is known, and they are all of one moment.
    waiting: VecDeque<Made>,
    /// Something was, and the member cannot be at them any more.
    gone: VecDeque<ConsistencyPoint>,
}

impl Names {
    pub(super) fn add(&mut self, made: Made) {
        if made.point.name.is_empty() {
            return;
        }
        if self.waiting.back().is_some_and(|last| last.writes > made.writes) {
            return push(&mut self.gone, made.point);
        }
        self.settle(made.writes);
        push(&mut self.waiting, made);
    }

    /// Whether the pool is what it was at a point that waits.
    pub(super) fn are_due(&self, settled: Option<u64>) -> bool {
        self.waiting.back().is_some_and(|made| Some(made.writes) == settled)
    }

    /// Whether a point waits behind which nothing was written, or is being written.
    pub(super) fn await_member(&self, begun: u64) -> bool {
        self.waiting.back().is_some_and(|made| made.writes == begun)
    }

    /// Takes those that the pool was at when so many writes had begun.
    pub(super) fn take(&mut self, writes: u64) -> VecDeque<Made> {
        self.settle(writes);
        core::mem::take(&mut self.waiting)
    }

    /// So many writes have begun: points with fewer before them are gone.
    fn settle(&mut self, writes: u64) {
        if self.waiting.back().is_some_and(|made| made.writes != writes) {
            self.waiting.drain(..).for_each(|made| push(&mut self.gone, made.point));
        }
    }

    /// Takes those that are gone.
    pub(super) fn take_gone(&mut self, begun: u64) -> VecDeque<ConsistencyPoint> {
        self.settle(begun);
        core::mem::take(&mut self.gone)
    }

    /// Takes all.
    pub(super) fn take_all(&mut self) -> VecDeque<ConsistencyPoint> {
        let mut all = core::mem::take(&mut self.gone);
        all.extend(core::mem::take(&mut self.waiting).into_iter().map(|made| made.point));
        all
    }

    /// The member is at this point, which it may have been sent before it was lost.
    pub(super) fn found(&mut self, at: &ConsistencyPoint) {
        let is_other = |point: &ConsistencyPoint| !is_same(point, at);
        self.waiting.retain(|made| is_other(&made.point));
        self.gone.retain(is_other);
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == KEPT_POINTS_MAX {
        queue.pop_front();
    }
    queue.push_back(item);
}
