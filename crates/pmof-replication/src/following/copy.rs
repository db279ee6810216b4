//! What an asynchronous member lacks is copied to it in rounds: while pages are copied, the pages that are written are remembered, which the next round copies. When few are left
//! they are read at once, with the writes behind them up to a point, which the member is at then.

use alloc::{vec, vec::Vec};
use core::time::Duration;

use super::{
    driver::{Follows, Progress, Stop, Stopped},
    outbox::{Entry, Outbox},
    replica::Replica,
    rules::Rules,
    send::Sending,
};
use crate::{asking::Reason, pages::PageMap};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Pages that were read, and where they lie.
type Pages = Vec<(u64, Vec<u8>)>;

/// A copy that is in progress.
struct Copy<S> {
    /// What leads to the point. Of a member that is at none its pages are no part of it: they are written to the data as they come.
    set: S,
    /// Pages that it was not given as they are.
    left: PageMap,
    /// Which of those differ is not known.
    is_compared: bool,
    copied_bytes: u64,
    began: Duration,
}

type CopyTo<D> = Copy<<<D as Follows>::Replica as Replica>::ChangeSet>;

impl<D: Follows> Sending<'_, D> {
    /// Makes the member equal to those in sync at a point: what is `missing`, and what is written meanwhile. Adds to `missing` what was
    /// dropped before and what is written. Returns the bytes of pages that were copied.
    ///
    /// A page may hold writes that come behind it in the change set. They do no harm: all writes from the beginning of the last round on are in it, in their order,
    /// and those before are on a page that was read later, or is read again.
    pub(super) async fn copy(&mut self, missing: &PageMap) -> Stopped<u64, D> {
        let mut copy = CopyTo::<D> {
            set: Default::default(),
            left: PageMap::new(missing.size_bytes()),
            is_compared: !self.is_known,
            copied_bytes: 0,
            began: self.driver.now(),
        };
        copy.left.add(missing);
        let mut before_bytes = u64::MAX;
        loop {
            self.note_written(&self.outbox(Outbox::remember), missing, &copy.left);
            let left_bytes = copy.left.count_bytes();
            let (bound_bytes, has_writers_wait) =
                self.outbox(|outbox| (outbox.bound_bytes(), outbox.has_writers_wait()));
            // They are read sooner than they are sent.
            let is_held = left_bytes <= (bound_bytes / 2).max(self.driver.limits().held_bytes);
            let is_last = is_held || has_writers_wait;
            if left_bytes >= before_bytes {
                self.driver.note(Progress::Overtaken { left_bytes });
                self.pause(self.driver.limits().retry_pause).await?;
            }
            before_bytes = left_bytes;
            if is_last {
                self.note_written(&self.outbox(Outbox::begin), missing, &copy.left);
            }
            self.outbox(|outbox| outbox.copies(if copy.is_compared { 0 } else { left_bytes }));
            // What was posted before can be read from now on.
            if !self.driver.flush_all().await {
                return Err(self.later());
            }
            let mut held = Pages::new();
            self.copy_left(&mut copy, is_held.then_some(&mut held)).await?;
            if is_last {
                self.outbox(Outbox::all_is_read);
                if !self.driver.make_point().await {
                    return Err(self.later());
                }
            }
            let taken = if is_last { self.outbox(Outbox::take_to_point) } else { None };
            if let Some((entries, _)) = &taken {
                // Before anything can fail: the outbox has them no longer.
                self.note_taken(entries);
            }
            // Where writes were dropped meanwhile, their pages are remembered, and the others are as they were read.
            for (offset, bytes) in &held {
                self.place(&mut copy, *offset, bytes).await?;
            }
            let Some((entries, point)) = taken else { continue };
            if self.replica.add_all(&mut copy.set, &entries)? {
                self.commit(copy.set, &point).await?;
                self.hear()?;
                return Ok(copy.copied_bytes);
            }
            entries.iter().map(Entry::range).for_each(|range| copy.left.mark(range));
            missing.add(&copy.left);
        }
    }

    /// Notes pages that were written: the member lacks them, and they are left to be copied.
    fn note_written(&self, written: &PageMap, missing: &PageMap, left: &PageMap) {
        missing.add(written);
        if self.driver.rules().is_dropped_copied() {
            left.add(written);
        }
    }

    async fn pause(&self, pause: Duration) -> Stopped<(), D> {
        if self.driver.pause(pause).await { Ok(()) } else { Err(Stop::Ended) }
    }

    /// Copies all that is left, or reads it only.
    async fn copy_left(&self, copy: &mut CopyTo<D>, mut held: Option<&mut Pages>) -> Stopped<(), D> {
        let (mut from, is_compared) = (0, core::mem::replace(&mut copy.is_compared, false));
        let limits = self.driver.limits();
        while let Some(window) = copy.left.take(from, limits.window_bytes) {
            from = window.end;
            let differing =
                if is_compared { self.driver.differing(&self.replica, &window).await? } else { vec![window] };
            for range in differing {
                let mut begin = range.start;
                while begin < range.end {
                    let end = range.end.min(begin + limits.read_bytes);
                    let bytes = self.driver.read(&(begin..end)).await.ok_or_else(|| self.later())?;
                    match &mut held {
                        Some(held) => held.push((begin, bytes)),
                        None => self.place(copy, begin, &bytes).await?,
                    }
                    begin = end;
                }
            }
            if !self.replica.is_at_point() {
                self.replica.flush_unstaged()?;
            }
            self.pause(Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Has the member be given pages: beside its data where that is at a point, which it stays at until the next one.
    async fn place(&self, copy: &mut CopyTo<D>, offset: u64, bytes: &[u8]) -> Stopped<(), D> {
        if !self.replica.is_at_point() {
            self.replica.write_unstaged(offset, bytes)?;
        } else if !self.replica.put(&mut copy.set, offset, bytes)? {
            // The staging area was made with room for each page once.
            return Err(Stop::Lost(self.driver.unfit(Reason::Unexpected)));
        }
        copy.copied_bytes += bytes.len() as u64;
        // While more was copied than the pool's limit lets through.
        let Some(limit) = self.driver.limits().bytes_per_second else { return Ok(()) };
        let due = u128::from(copy.copied_bytes) * NANOS_PER_SECOND / u128::from(limit.max(1));
        let due = Duration::from_nanos(u64::try_from(due).unwrap_or(u64::MAX));
        let passed = self.driver.now().saturating_sub(copy.began);
        self.pause(due.saturating_sub(passed)).await
    }
}
