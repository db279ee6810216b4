//! What an asynchronous member lacks is copied to it in rounds: while pages are copied, those that are written are remembered, which the next round copies. When few are left
//! they are read at once, with the writes behind them up to a point, which the member is at then.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Stop,
    send::{PAUSE, Sending},
};
use crate::{
    ReplicaError,
    follower::{ChangeSet, TooLong},
    outbox::Entry,
    pages::PageMap,
    pool::{events::Event, returns::differing_pages},
};

/// Bytes that are compared, or copied, between two looks at whether the pool is being closed.
const WINDOW_BYTES: u64 = 16 << 20;

/// Bytes that are read from a member in sync at a time.
const READ_BYTES: u64 = 1 << 20;

/// Pages that were read, and where they lie.
type Pages = Vec<(u64, Vec<u8>)>;

/// A copy that is under way.
struct Copy {
    /// What leads to the point. Of a member that is at none its pages are no part of it: they are written to the data as they come.
    set: ChangeSet,
    /// Pages that it was not given as they are.
    left: PageMap,
    /// Which of those differ is not known.
    is_compared: bool,
    copied_bytes: u64,
    began: Instant,
}

impl Sending<'_> {
    /// Makes the member equal to those in sync at a point: what is `missing`, and what is written meanwhile. Adds to `missing` what was
    /// dropped before and what is written. Returns the bytes of pages that were copied.
    ///
    /// A page may hold writes that come behind it in the change set. They do no harm: all writes from the beginning of the last round on are in it, in their order,
    /// and those before are on a page that was read later, or is read again.
    pub(super) fn copy(&mut self, missing: &PageMap) -> Result<u64, Stop> {
        let outbox = Arc::clone(&self.following.outbox);
        let mut copy = Copy {
            set: ChangeSet::new(),
            left: PageMap::new(missing.size_bytes()),
            is_compared: !self.is_known,
            copied_bytes: 0,
            began: Instant::now(),
        };
        copy.left.add(missing);
        let mut before_bytes = u64::MAX;
        loop {
            note(&outbox.remember(), missing, &copy.left);
            let left_bytes = copy.left.count_bytes();
            // They are read sooner than they are sent.
            let is_held = left_bytes <= (outbox.bound_bytes() / 2).max(READ_BYTES);
            let is_last = is_held || outbox.has_writers_wait();
            if left_bytes >= before_bytes {
                self.note_overtaken(left_bytes)?;
            }
            before_bytes = left_bytes;
            if is_last {
                note(&outbox.begin(), missing, &copy.left);
            }
            outbox.copies(if copy.is_compared { 0 } else { left_bytes });
            // What was posted before can be read from now on.
            self.flush_all()?;
            let mut held = Pages::new();
            self.copy_left(&mut copy, is_held.then_some(&mut held))?;
            if is_last {
                outbox.all_is_read();
                self.shared()?.make_point("").map_err(|_| self.later())?;
            }
            let taken = if is_last { outbox.take_to_point() } else { None };
            // Where writes were dropped meanwhile, their pages are remembered, and the others are those that were read.
            held.iter().try_for_each(|(offset, bytes)| self.place(&mut copy, *offset, bytes))?;
            let Some((entries, point)) = taken else { continue };
            if self.add(&mut copy.set, &entries)? {
                self.commit(copy.set, &point)?;
                self.hear()?;
                return Ok(copy.copied_bytes);
            }
            entries.iter().map(Entry::range).for_each(|range| copy.left.mark(range));
            missing.add(&copy.left);
        }
    }

    /// Writes come as fast as pages are copied, or faster.
    fn note_overtaken(&self, lag_bytes: u64) -> Result<(), Stop> {
        self.event(Event::FellBehind { replica: Arc::clone(&self.following.place), lag_bytes })?;
        if self.followers.pause(PAUSE) { Ok(()) } else { Err(Stop::Ended) }
    }

    /// Copies all that is left, or reads it only.
    fn copy_left(&self, copy: &mut Copy, mut held: Option<&mut Pages>) -> Result<(), Stop> {
        let (mut from, is_compared) = (0, std::mem::replace(&mut copy.is_compared, false));
        while let Some(window) = copy.left.take(from, WINDOW_BYTES) {
            from = window.end;
            let ranges = if is_compared { self.differing(&window)? } else { vec![window] };
            for range in ranges {
                for begin in (range.start..range.end).step_by(READ_BYTES as usize) {
                    let bytes = self.read(&(begin..(begin + READ_BYTES).min(range.end)))?;
                    match &mut held {
                        Some(held) => held.push((begin, bytes)),
                        None => self.place(copy, begin, &bytes)?,
                    }
                }
            }
            if !self.follower.is_at_point() {
                self.follower.flush_unstaged()?;
            }
            if !self.followers.pause(Duration::ZERO) {
                return Err(Stop::Ended);
            }
        }
        Ok(())
    }

    /// Has the member be given pages: beside its data where that is at a point, which it stays at until the next one.
    fn place(&self, copy: &mut Copy, offset: u64, bytes: &[u8]) -> Result<(), Stop> {
        if self.follower.is_at_point() {
            // The staging area was made with room for each page once.
            let put = self.follower.put(&mut copy.set, offset, bytes)?;
            put.map_err(|TooLong| Stop::Lost(Arc::new(ReplicaError::Unexpected)))?;
        } else {
            self.follower.write_unstaged(offset, bytes)?;
        }
        copy.copied_bytes += bytes.len() as u64;
        self.throttle(copy)
    }

    /// Waits while more was copied than the pool's limit lets through.
    fn throttle(&self, copy: &Copy) -> Result<(), Stop> {
        let Some(limit) = self.followers.bytes_per_second else { return Ok(()) };
        let due = Duration::from_secs_f64(copy.copied_bytes as f64 / limit.max(1) as f64);
        let wait = due.saturating_sub(copy.began.elapsed());
        if self.followers.pause(wait) { Ok(()) } else { Err(Stop::Ended) }
    }

    fn read(&self, range: &Range<u64>) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.open()?.read(range.start, &mut bytes).map_err(|_| self.later())?;
        Ok(bytes)
    }

    /// The pages of a range that differ between the member and one in sync.
    fn differing(&self, range: &Range<u64>) -> Result<Vec<Range<u64>>, Stop> {
        let (open, data) = (self.open()?, &self.follower.memory().data);
        let source = open.members_in_use().into_iter().find(|(_, member)| member.control().is_some());
        let source = source.ok_or_else(|| self.later())?;
        differing_pages([source, (open.members.len(), &**data)], range).map_err(|_| match data.standing().failure() {
            Some(why) => Stop::Lost(Arc::clone(why)),
            None => self.later(),
        })
    }
}

/// Notes pages that were written: the member lacks them, and they are left to be copied.
fn note(written: &PageMap, missing: &PageMap, left: &PageMap) {
    missing.add(written);
    left.add(written);
}
