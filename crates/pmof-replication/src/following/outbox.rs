//! What an asynchronous member has yet to be sent, bounded.
//!
//! Each write is kept from when it was posted on the members in sync. A consistency point makes those before it ready to be sent, once
//! they are durable there. Where more is kept than the bound allows, either writers wait, or all of it is dropped and only the pages are
//! remembered. Times are those since any fixed moment.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::{ops::Range, time::Duration};

use pmof_control::ConsistencyPoint;

use crate::{
    pages::PageMap,
    written::{Atomicity, Written},
};

mod names;
#[cfg(test)]
mod tests;

use names::{Made, Names};
pub use names::{WriteCount, Writing, is_same};

/// What happens where an asynchronous member has as much to be sent as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtLagBound {
    /// What it has yet to be sent is dropped, and later copied from the members in sync. It stays at its point until then. No writer waits.
    #[default]
    FallBehind,
    /// Writers wait until it has been sent enough, as long as it is connected.
    Wait,
}

/// How far an asynchronous member may lag.
#[derive(Clone, Copy, Debug)]
pub struct LagBound {
    /// Bytes of the writes that are kept for it, the ones that are being applied included.
    pub bytes: u64,
    /// Where writers wait: the age of the oldest of them.
    pub age: Duration,
    /// What happens at the bound.
    pub then: AtLagBound,
    /// How often a point is made by itself; `None`: only the program makes points.
    pub interval: Option<Duration>,
}

impl LagBound {
    /// Whether a write of so many bytes may have to wait.
    pub fn waits_for(&self, len_bytes: u64) -> bool {
        self.then == AtLagBound::Wait && len_bytes <= self.bytes
    }
}

/// One write.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it begins.
    pub offset: u64,
    /// What was written.
    pub bytes: Arc<[u8]>,
    at: Duration,
}

impl Entry {
    /// The bytes of the pool that it has changed.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// Where a point is that is made now.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// `None`: no writes are kept that lead to it.
    kept: Option<KeptTo>,
    /// Writes that had begun.
    writes: u64,
    /// Points that wait are at this moment, too.
    has_names: bool,
}

/// Up to where writes have been kept.
#[derive(Clone, Copy, Debug)]
pub struct KeptTo {
    session: u64,
    /// Writes before it.
    end: u64,
    /// What has to be durable for it; `None`: all that was written.
    pub written: Option<Written>,
}

impl Boundary {
    /// Up to where writes have been kept that lead to it, if so.
    pub fn kept(&self) -> Option<&KeptTo> {
        self.kept.as_ref()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Nothing is kept: the member is not connected.
    #[default]
    Off,
    Kept,
    /// The member has fallen behind, or is copied to: pages are remembered.
    Dropped,
    /// The member is not connected, and was at a point that is known: pages are remembered.
    Away,
}

/// What there is to do for a member.
#[derive(Debug)]
pub enum Due {
    /// These writes are to be sent, which lead to a point.
    Send(Vec<Entry>, ConsistencyPoint),
    /// It has fallen behind: it is to be sent pages.
    Copy,
    /// There are writes, and no point yet that is behind them.
    Point,
    /// Nothing.
    Nothing,
    /// The pool is being closed, or the member was removed.
    Ended,
}

/// How far a member lags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Bytes of the writes that it has yet to be sent; where it fell behind, of their pages.
    pub bytes: u64,
    /// How long ago the oldest of them was written.
    pub age: Duration,
    /// It fell behind, or is copied to for the first time: it has yet to be sent pages.
    pub is_behind: bool,
}

/// Whether there is room for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HasRoom {
    /// The write does not wait for it.
    NotNeeded,
    /// It is reserved, until it is [given back](Outbox::give_back).
    Given,
    /// There is none yet.
    NotYet,
}

/// What a member has yet to be sent.
#[derive(Debug)]
pub struct Outbox {
    bound: LagBound,
    size_bytes: u64,
    writes: Arc<WriteCount>,
    mode: Mode,
    /// One more each time that writes are kept anew.
    session: u64,
    entries: VecDeque<Entry>,
    /// Writes kept since the beginning, with the ones that were taken.
    end: u64,
    /// Points, and how many writes that were kept are before each.
    points: VecDeque<(u64, Made)>,
    /// The point of the writes that were taken and are not applied yet.
    taken_point: Option<Made>,
    /// Points with names that none of these writes lead to.
    names: Names,
    /// Bytes of the writes that are kept, and of the ones that were taken and are not applied yet.
    bytes: u64,
    taken_bytes: u64,
    /// Bytes of the pages that it is sent besides, at most.
    copied_bytes: u64,
    /// Bytes that are reserved for writes in progress.
    reserved: u64,
    /// The oldest write that is not applied.
    oldest: Option<Duration>,
    oldest_taken: Option<Duration>,
    /// What is not known to be durable on the members in sync.
    unsettled: Written,
    /// The next point needs all to be durable: the member is sent pages.
    needs_everything: bool,
    /// Of those pages not all are read: they may hold what is behind a point that is made now.
    is_reading: bool,
    missing: PageMap,
    /// Whether the member is to be at each point with a name. `None`: it was not connected yet.
    stops_at_names: Option<bool>,
    has_ended: bool,
}

impl Outbox {
    /// Of a pool of this size, whose writes are counted. Nothing is kept until the member is connected.
    pub fn new(bound: LagBound, size_bytes: u64, writes: Arc<WriteCount>) -> Self {
        Self {
            bound,
            size_bytes,
            writes,
            mode: Mode::Off,
            session: 0,
            entries: VecDeque::new(),
            end: 0,
            points: VecDeque::new(),
            taken_point: None,
            names: Names::default(),
            bytes: 0,
            taken_bytes: 0,
            copied_bytes: 0,
            reserved: 0,
            oldest: None,
            oldest_taken: None,
            unsettled: Written::default(),
            needs_everything: false,
            is_reading: false,
            missing: PageMap::new(size_bytes),
            stops_at_names: None,
            has_ended: false,
        }
    }

    fn lag_bytes(&self) -> u64 {
        self.bytes + self.taken_bytes
    }

    fn oldest(&self) -> Option<Duration> {
        self.oldest_taken.or(self.oldest)
    }

    fn age(&self, now: Duration) -> Duration {
        self.oldest().map_or(Duration::ZERO, |oldest| now.saturating_sub(oldest))
    }

    fn take(&mut self, count: usize) -> Vec<Entry> {
        let taken: Vec<_> = self.entries.drain(..count).collect();
        let bytes = taken.iter().map(|entry| entry.bytes.len() as u64).sum::<u64>();
        (self.bytes, self.taken_bytes) = (self.bytes - bytes, self.taken_bytes + bytes);
        self.oldest_taken = self.oldest_taken.or(taken.first().map(|entry| entry.at));
        self.oldest = self.entries.front().map(|entry| entry.at);
        taken
    }

    /// Takes the writes before one of the points, and the point.
    fn take_to(&mut self, point: usize) -> Option<(Vec<Entry>, ConsistencyPoint)> {
        if self.mode != Mode::Kept {
            return None;
        }
        let (end, made) = self.points.drain(..=point).next_back()?;
        let behind = (self.end - end) as usize;
        let count = self.entries.len().saturating_sub(behind);
        let point = made.point.clone();
        self.taken_point = Some(made);
        Some((self.take(count), point))
    }

    /// Remembers the pages of a write.
    fn note_page(&mut self, range: Range<u64>, now: Duration) {
        self.missing.mark(range);
        if self.mode == Mode::Dropped {
            self.oldest.get_or_insert(now);
        }
    }

    /// Notes a point that no kept writes lead to.
    fn miss(&mut self, made: Made) {
        if self.stops_at_names != Some(false) {
            self.names.add(made);
        }
    }

    /// The member does not apply what was taken, as far as is known.
    fn give_up_taken(&mut self) {
        (self.oldest_taken, self.taken_bytes) = (None, 0);
        if let Some(made) = self.taken_point.take() {
            self.miss(made);
        }
    }

    /// Whether writes are kept that lead to a point which is made now.
    fn leads_to_points(&self) -> bool {
        self.mode == Mode::Kept && !self.is_reading
    }

    /// Drops what is kept, and remembers the pages.
    fn drop_all(&mut self) {
        for entry in core::mem::take(&mut self.entries) {
            self.missing.mark(entry.range());
        }
        for (_, made) in core::mem::take(&mut self.points) {
            self.miss(made);
        }
        self.is_reading = false;
        let mode = if self.mode == Mode::Away { Mode::Away } else { Mode::Dropped };
        (self.mode, self.bytes, self.unsettled) = (mode, 0, Written::default());
    }

    fn take_missing(&mut self) -> PageMap {
        core::mem::replace(&mut self.missing, PageMap::new(self.size_bytes))
    }

    /// Whether there is room for a write of so many bytes, which is reserved then.
    pub fn try_room(&mut self, len_bytes: u64, now: Duration) -> HasRoom {
        if !self.bound.waits_for(len_bytes) || self.mode != Mode::Kept || self.has_ended {
            return HasRoom::NotNeeded;
        }
        let is_old = self.oldest().is_some() && self.age(now) >= self.bound.age;
        if self.lag_bytes() + self.reserved + len_bytes <= self.bound.bytes && !is_old {
            self.reserved += len_bytes;
            return HasRoom::Given;
        }
        let has_point = !self.points.is_empty() || self.taken_bytes > 0 || self.needs_everything;
        if self.bound.interval.is_none() && !has_point {
            // The point that would make room is the program's, which would wait here.
            self.drop_all();
            return HasRoom::NotNeeded;
        }
        HasRoom::NotYet
    }

    /// Gives back room that was reserved: the write is kept, or was none.
    pub fn give_back(&mut self, bytes: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }

    /// Keeps a write that was posted. Whether anything is due for the member by that, or writers need not wait for it.
    #[must_use]
    pub fn keep(&mut self, offset: u64, bytes: &Arc<[u8]>, atomicity: Atomicity, now: Duration) -> bool {
        let len_bytes = bytes.len() as u64;
        let range = offset..offset + len_bytes;
        match self.mode {
            Mode::Off => false,
            Mode::Dropped | Mode::Away => {
                self.note_page(range, now);
                false
            }
            Mode::Kept if self.lag_bytes() + len_bytes > self.bound.bytes => {
                self.drop_all();
                self.missing.mark(range);
                true
            }
            Mode::Kept => {
                self.entries.push_back(Entry { offset, bytes: Arc::clone(bytes), at: now });
                self.oldest.get_or_insert(now);
                self.unsettled.add(atomicity, (range.start, range.end));
                (self.end, self.bytes) = (self.end + 1, self.bytes + len_bytes);
                // Well before the bound, so that no write has to wait for a point.
                self.bytes >= self.bound.bytes / 2
            }
        }
    }

    /// A part of a range may have been written, and it is not known which.
    pub fn lose_track(&mut self, range: &Range<u64>) {
        if self.mode != Mode::Off {
            self.drop_all();
            self.missing.mark(range.clone());
        }
    }

    /// Whether nothing of a write is kept.
    pub fn is_off(&self) -> bool {
        self.mode == Mode::Off
    }

    /// Remembers the pages that are written from now on, while the member is sent others. Returns the pages that were written since it was asked last, or fell behind.
    pub fn remember(&mut self) -> PageMap {
        self.oldest = self.oldest();
        self.give_up_taken();
        self.drop_all();
        self.mode = Mode::Dropped;
        self.take_missing()
    }

    /// Keeps what is written from now on, for a member that is sent pages besides: the ones that were written since it fell behind, which this returns.
    pub fn begin(&mut self) -> PageMap {
        self.oldest = self.oldest();
        self.give_up_taken();
        self.drop_all();
        let missing = self.take_missing();
        (self.mode, self.session, self.needs_everything, self.is_reading) = (Mode::Kept, self.session + 1, true, true);
        (self.oldest_taken, self.oldest) = (self.oldest, None);
        missing
    }

    /// All pages that the member is sent besides are read: from now on it can be at points that are made.
    pub fn all_is_read(&mut self) {
        (self.session, self.is_reading) = (self.session + 1, false);
    }

    /// Whether writers wait for the member at the bound.
    pub fn has_writers_wait(&self) -> bool {
        self.bound.then == AtLagBound::Wait
    }

    /// Bytes that are kept of the member's, at most.
    pub fn bound_bytes(&self) -> u64 {
        self.bound.bytes
    }

    /// So many bytes of pages are sent to it.
    pub fn copies(&mut self, bytes: u64) {
        self.copied_bytes = bytes;
    }

    /// The member is no longer connected. `lacks`: pages that it lacks besides what is kept, where it is at a point that is known; then pages are remembered from now on, too.
    pub fn switch_off(&mut self, lacks: Option<&PageMap>) {
        self.give_up_taken();
        self.drop_all();
        match lacks {
            Some(pages) => self.missing.add(pages),
            None => self.missing.clear(),
        }
        let mode = if lacks.is_some() { Mode::Away } else { Mode::Off };
        (self.mode, self.needs_everything, self.copied_bytes) = (mode, false, 0);
        self.oldest = None;
    }

    /// The pages that a member lacks which is not connected, where it is at a point that is known.
    pub fn lacks(&self) -> Option<&PageMap> {
        (self.mode == Mode::Away).then_some(&self.missing)
    }

    /// Nothing is sent from now on.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Where a point is that is made now.
    pub fn boundary(&self) -> Boundary {
        let written = (!self.needs_everything).then_some(self.unsettled);
        let to = KeptTo { session: self.session, end: self.end, written };
        // Behind what is kept: none of that was begun later.
        let (has_names, writes) = (self.names.are_due(self.writes.settled()), self.writes.begun());
        Boundary { kept: self.leads_to_points().then_some(to), writes, has_names }
    }

    /// What was written before a point is durable on the members in sync.
    pub fn reach(&mut self, boundary: Boundary, point: &ConsistencyPoint) {
        let made = Made { writes: boundary.writes, point: point.clone() };
        let to = boundary.kept.filter(|to| self.leads_to_points() && to.session == self.session);
        let Some(to) = to else { return self.miss(made) };
        if to.end == self.end {
            self.unsettled = Written::default();
        }
        if boundary.has_names {
            let named = self.names.take(boundary.writes);
            self.points.extend(named.into_iter().map(|made| (to.end, made)));
        }
        self.points.push_back((to.end, made));
    }

    /// Takes the writes before the next point that the member is to be at, and the point: the last, or the first with a name where it keeps those. `None`: there is none, or it has
    /// fallen behind again.
    pub fn take_to_point(&mut self) -> Option<(Vec<Entry>, ConsistencyPoint)> {
        let last = self.points.len().checked_sub(1)?;
        let named = self.points.iter().position(|(_, made)| !made.point.name.is_empty());
        let next = named.filter(|_| self.stops_at_names == Some(true)).unwrap_or(last);
        self.take_to(next)
    }

    /// Whether the member is to be at each point that has a name: it keeps them. `at`: the point that it is at.
    pub fn stop_at_names(&mut self, stops: bool, at: Option<&ConsistencyPoint>) {
        self.stops_at_names = Some(stops);
        if !stops {
            self.names = Names::default();
        } else if let Some(at) = at {
            self.names.found(at);
        }
    }

    /// Takes the points with names that the member can no longer be at, where it keeps those.
    pub fn take_gone(&mut self) -> VecDeque<ConsistencyPoint> {
        self.names.take_gone(self.writes.begun())
    }

    /// Takes all points with names that the member is not known to be at: the pool is closed.
    pub fn take_unsent(&mut self) -> VecDeque<ConsistencyPoint> {
        self.give_up_taken();
        self.drop_all();
        self.names.take_all()
    }

    /// Whether a point with a name waits for a member that is not connected, or copied to, and nothing was written behind it.
    pub fn has_name_wait(&self) -> bool {
        self.names.await_member(self.writes.begun())
    }

    /// The member has applied what was taken.
    pub fn applied(&mut self) {
        (self.taken_bytes, self.oldest_taken) = (0, None);
        (self.needs_everything, self.copied_bytes, self.taken_point) = (false, 0, None);
    }

    /// What there is to do now. `None`: nothing, until something changes or [`wakes_at`](Self::wakes_at).
    pub fn due(&mut self, now: Duration) -> Option<Due> {
        if self.has_ended {
            return Some(Due::Ended);
        }
        if self.mode == Mode::Dropped {
            return Some(Due::Copy);
        }
        if !self.points.is_empty() {
            return Some(self.take_to_point().map_or(Due::Nothing, |(entries, point)| Due::Send(entries, point)));
        }
        let is_full = self.bound.interval.is_some() && self.bytes >= self.bound.bytes / 2;
        let is_late = self.wakes_at().is_some_and(|at| at <= now);
        (is_full || is_late || self.names.are_due(self.writes.settled())).then_some(Due::Point)
    }

    /// When a point is due for what is kept, if nothing changes.
    pub fn wakes_at(&self) -> Option<Duration> {
        // Soon enough for the member to be sent it before the bound.
        let interval = self.bound.interval?.min(self.bound.age / 2);
        Some(self.oldest?.saturating_add(interval))
    }

    /// Whether the member has been sent and has applied all that was written.
    pub fn is_sent(&self) -> bool {
        matches!(self.mode, Mode::Off | Mode::Away)
            || (self.mode == Mode::Kept
                && self.lag_bytes() == 0
                && self.points.is_empty()
                && self.taken_point.is_none()
                && !self.needs_everything)
    }

    /// How far the member lags, as long as it is connected.
    pub fn lag(&self, now: Duration) -> Option<Lag> {
        let bytes = match self.mode {
            Mode::Off | Mode::Away => return None,
            Mode::Kept => self.lag_bytes() + self.copied_bytes,
            Mode::Dropped => self.missing.count_bytes() + self.taken_bytes + self.copied_bytes,
        };
        Some(Lag { bytes, age: self.age(now), is_behind: self.mode == Mode::Dropped })
    }
}
