//! What an asynchronous member has yet to be sent, bounded: decided without input or output.
//!
//! Each write is kept from when it was posted on the members in sync. A consistency point makes those before it ready to be sent, once
//! they are durable there. Where more is kept than the bound allows, either those who write wait, or all of it is dropped and only the pages are
//! remembered.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use pmof_control::ConsistencyPoint;

use crate::{
    member::{Atomicity, Written},
    pages::PageMap,
};

mod names;
#[cfg(test)]
mod tests;

use names::{Made, Names};
pub(crate) use names::{WriteCount, Writing};

/// What happens where an asynchronous member has as much to be sent as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtLagBound {
    /// What it has yet to be sent is dropped, and later copied from the members in sync. It stays at its point until then. Nobody waits.
    #[default]
    FallBehind,
    /// Those who write wait until it has been sent enough, as long as it is connected.
    Wait,
}

/// How far an asynchronous member may lag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LagBound {
    pub(crate) bytes: u64,
    pub(crate) age: Duration,
    pub(crate) then: AtLagBound,
    /// How often a point is made by itself; `None`: only the program makes points.
    pub(crate) interval: Option<Duration>,
}

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) offset: u64,
    pub(crate) bytes: Arc<[u8]>,
    at: Instant,
}

impl Entry {
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// Where a point is that is made now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boundary {
    /// `None`: no writes are kept that lead to it.
    kept: Option<KeptTo>,
    /// Writes that had begun.
    writes: u64,
    /// Points that wait are at this moment, too.
    has_names: bool,
}

/// Up to where writes have been kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptTo {
    session: u64,
    /// Writes before it.
    end: u64,
    /// What has to be durable for it; `None`: all that anybody has written.
    pub(crate) written: Option<Written>,
}

impl Boundary {
    /// Up to where writes have been kept that lead to it, if so.
    pub(crate) fn kept(&self) -> Option<&KeptTo> {
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
pub(crate) enum Due {
    /// These writes, which lead to a point.
    Send(Vec<Entry>, ConsistencyPoint),
    /// It has fallen behind: it is to be sent pages.
    Copy,
    /// There are writes, and no point yet that is behind them.
    Point,
    /// Nothing, for as long as was waited.
    Nothing,
    /// The pool is being closed, or the member was removed.
    Ended,
}

/// How far a member lags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    /// Bytes of the writes that it has yet to be sent; where it fell behind, of their pages.
    pub(crate) bytes: u64,
    /// How long ago the oldest of them was written.
    pub(crate) age: Duration,
    /// It fell behind, or is copied to for the first time: it has yet to be sent pages.
    pub(crate) is_behind: bool,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    bound: LagBound,
    size_bytes: u64,
    clock: fn() -> Instant,
    writes: Arc<WriteCount>,
    kept: Mutex<Kept>,
    /// There is something to do for the member.
    due: Condvar,
    /// There is room for writes.
    room: Condvar,
}

#[derive(Debug)]
struct Kept {
    mode: Mode,
    /// One more each time that writes are kept anew.
    session: u64,
    entries: VecDeque<Entry>,
    /// Writes kept since the beginning, those that were taken included.
    end: u64,
    /// Points, and how many writes that were kept are before each.
    points: VecDeque<(u64, Made)>,
    /// The point of the writes that were taken and are not applied yet.
    taken_point: Option<Made>,
    /// Points with names that none of these writes lead to.
    names: Names,
    /// Bytes of the writes that are kept, and of those that were taken and are not applied yet.
    bytes: u64,
    taken_bytes: u64,
    /// Bytes of the pages that it is sent besides, at most.
    copied_bytes: u64,
    /// Bytes that those who write now have room for.
    reserved: u64,
    /// The oldest write that is not applied.
    oldest: Option<Instant>,
    oldest_taken: Option<Instant>,
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

/// Room for a write, which is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    outbox: Arc<Outbox>,
    bytes: u64,
}

/// Whether there is room for a write.
enum HasRoom {
    /// Nobody waits for it.
    NotNeeded,
    Given,
    NotYet,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut kept = self.outbox.kept.lock();
        kept.reserved = kept.reserved.saturating_sub(self.bytes);
        drop(kept);
        self.outbox.room.notify_all();
    }
}

impl Kept {
    fn lag_bytes(&self) -> u64 {
        self.bytes + self.taken_bytes
    }

    fn oldest(&self) -> Option<Instant> {
        self.oldest_taken.or(self.oldest)
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
    fn note_page(&mut self, range: Range<u64>, clock: fn() -> Instant) {
        self.missing.mark(range);
        if self.mode == Mode::Dropped {
            self.oldest.get_or_insert_with(clock);
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
        for entry in std::mem::take(&mut self.entries) {
            self.missing.mark(entry.range());
        }
        for (_, made) in std::mem::take(&mut self.points) {
            self.miss(made);
        }
        self.is_reading = false;
        let mode = if self.mode == Mode::Away { Mode::Away } else { Mode::Dropped };
        (self.mode, self.bytes, self.unsettled) = (mode, 0, Written::default());
    }
}

impl Outbox {
    /// Of a pool of this size.
    pub(crate) fn new(bound: LagBound, size_bytes: u64, writes: Arc<WriteCount>) -> Self {
        let kept = Kept {
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
        };
        let (kept, due, room) = (Mutex::new(kept), Condvar::new(), Condvar::new());
        Self { bound, size_bytes, clock: Instant::now, writes, kept, due, room }
    }

    /// The same by another clock.
    #[cfg(test)]
    pub(crate) fn with_clock(self, clock: fn() -> Instant) -> Self {
        Self { clock, ..self }
    }

    fn age(&self, kept: &Kept) -> Duration {
        kept.oldest().map_or(Duration::ZERO, |oldest| (self.clock)().saturating_duration_since(oldest))
    }

    /// Waits for room for a write of so many bytes, where those who write wait for this member. `None`: nobody does.
    pub(crate) fn wait_for_room(self: &Arc<Self>, len_bytes: u64) -> Option<Room> {
        if !self.is_waited_for(len_bytes) {
            return None;
        }
        let mut kept = self.kept.lock();
        loop {
            match self.room_in(&mut kept, len_bytes) {
                HasRoom::NotNeeded => return None,
                HasRoom::Given => return Some(Room { outbox: Arc::clone(self), bytes: len_bytes }),
                HasRoom::NotYet => self.room.wait(&mut kept),
            }
        }
    }

    /// The same without waiting. `Err`: there is none yet.
    #[cfg(test)]
    pub(crate) fn try_room(self: &Arc<Self>, len_bytes: u64) -> Result<Option<Room>, ()> {
        if !self.is_waited_for(len_bytes) {
            return Ok(None);
        }
        match self.room_in(&mut self.kept.lock(), len_bytes) {
            HasRoom::NotNeeded => Ok(None),
            HasRoom::Given => Ok(Some(Room { outbox: Arc::clone(self), bytes: len_bytes })),
            HasRoom::NotYet => Err(()),
        }
    }

    fn is_waited_for(&self, len_bytes: u64) -> bool {
        self.bound.then == AtLagBound::Wait && len_bytes <= self.bound.bytes
    }

    fn room_in(&self, kept: &mut Kept, len_bytes: u64) -> HasRoom {
        if kept.mode != Mode::Kept || kept.has_ended {
            return HasRoom::NotNeeded;
        }
        let is_old = kept.oldest().is_some() && self.age(kept) >= self.bound.age;
        if kept.lag_bytes() + kept.reserved + len_bytes <= self.bound.bytes && !is_old {
            kept.reserved += len_bytes;
            return HasRoom::Given;
        }
        self.due.notify_all();
        let has_point = !kept.points.is_empty() || kept.taken_bytes > 0 || kept.needs_everything;
        if self.bound.interval.is_none() && !has_point {
            // The point that would make room is the program's, which would wait here.
            kept.drop_all();
            return HasRoom::NotNeeded;
        }
        HasRoom::NotYet
    }

    /// Keeps a write that was posted.
    pub(crate) fn keep(&self, offset: u64, bytes: &Arc<[u8]>, atomicity: Atomicity) {
        let mut kept = self.kept.lock();
        let len_bytes = bytes.len() as u64;
        let range = offset..offset + len_bytes;
        match kept.mode {
            Mode::Off => {}
            Mode::Dropped | Mode::Away => kept.note_page(range, self.clock),
            Mode::Kept if kept.lag_bytes() + len_bytes > self.bound.bytes => {
                kept.drop_all();
                kept.missing.mark(range);
                self.due.notify_all();
                self.room.notify_all();
            }
            Mode::Kept => {
                let at = (self.clock)();
                kept.entries.push_back(Entry { offset, bytes: Arc::clone(bytes), at });
                kept.oldest.get_or_insert(at);
                kept.unsettled.add(atomicity, (range.start, range.end));
                (kept.end, kept.bytes) = (kept.end + 1, kept.bytes + len_bytes);
                // Well before the bound, so that nobody has to wait for a point.
                if kept.bytes >= self.bound.bytes / 2 {
                    self.due.notify_all();
                }
            }
        }
    }

    /// A part of a range may have been written, and nobody knows which.
    pub(crate) fn lose_track(&self, range: &Range<u64>) {
        let mut kept = self.kept.lock();
        if kept.mode != Mode::Off {
            kept.drop_all();
            kept.missing.mark(range.clone());
            self.due.notify_all();
            self.room.notify_all();
        }
    }

    /// Whether nothing of a write is kept.
    pub(crate) fn is_off(&self) -> bool {
        self.kept.lock().mode == Mode::Off
    }

    /// Remembers the pages that are written from now on, while the member is sent others. Returns those that were written since it was asked last, or fell behind.
    pub(crate) fn remember(&self) -> PageMap {
        let mut kept = self.kept.lock();
        kept.oldest = kept.oldest();
        kept.give_up_taken();
        kept.drop_all();
        kept.mode = Mode::Dropped;
        std::mem::replace(&mut kept.missing, PageMap::new(self.size_bytes))
    }

    /// Keeps what is written from now on, for a member that is sent pages besides: those that were written since it fell behind, which this returns.
    pub(crate) fn begin(&self) -> PageMap {
        let mut kept = self.kept.lock();
        kept.oldest = kept.oldest();
        kept.give_up_taken();
        kept.drop_all();
        let missing = std::mem::replace(&mut kept.missing, PageMap::new(self.size_bytes));
        (kept.mode, kept.session, kept.needs_everything, kept.is_reading) = (Mode::Kept, kept.session + 1, true, true);
        (kept.oldest_taken, kept.oldest) = (kept.oldest, None);
        missing
    }

    /// All pages that the member is sent besides are read: from now on points are those that it can be at.
    pub(crate) fn all_is_read(&self) {
        let mut kept = self.kept.lock();
        (kept.session, kept.is_reading) = (kept.session + 1, false);
    }

    /// Whether those who write wait for the member at the bound.
    pub(crate) fn has_writers_wait(&self) -> bool {
        self.bound.then == AtLagBound::Wait
    }

    /// Bytes that are kept of the member's, at most.
    pub(crate) fn bound_bytes(&self) -> u64 {
        self.bound.bytes
    }

    /// So many bytes of pages are sent to it.
    pub(crate) fn copies(&self, bytes: u64) {
        self.kept.lock().copied_bytes = bytes;
    }

    /// The member is not connected any more. `lacks`: pages that it lacks besides what is kept, where it is at a point that is known; then pages are remembered from now on, too.
    pub(crate) fn switch_off(&self, lacks: Option<&PageMap>) {
        let mut kept = self.kept.lock();
        kept.give_up_taken();
        kept.drop_all();
        match lacks {
            Some(pages) => kept.missing.add(pages),
            None => kept.missing.clear(),
        }
        let mode = if lacks.is_some() { Mode::Away } else { Mode::Off };
        (kept.mode, kept.needs_everything, kept.copied_bytes) = (mode, false, 0);
        kept.oldest = None;
        drop(kept);
        self.room.notify_all();
    }

    /// Nothing is sent any more.
    pub(crate) fn end(&self) {
        self.kept.lock().has_ended = true;
        self.due.notify_all();
        self.room.notify_all();
    }

    /// Where a point is that is made now.
    pub(crate) fn boundary(&self) -> Boundary {
        let kept = self.kept.lock();
        let written = (!kept.needs_everything).then_some(kept.unsettled);
        let to = KeptTo { session: kept.session, end: kept.end, written };
        // Behind what is kept: none of that was begun later.
        let (has_names, writes) = (kept.names.are_due(self.writes.settled()), self.writes.begun());
        Boundary { kept: kept.leads_to_points().then_some(to), writes, has_names }
    }

    /// What was written before a point is durable on the members in sync.
    pub(crate) fn reach(&self, boundary: Boundary, point: &ConsistencyPoint) {
        let mut kept = self.kept.lock();
        let made = Made { writes: boundary.writes, point: point.clone() };
        let session = kept.session;
        let to = boundary.kept.filter(|to| kept.leads_to_points() && to.session == session);
        let Some(to) = to else {
            kept.miss(made);
            self.due.notify_all();
            return;
        };
        if to.end == kept.end {
            kept.unsettled = Written::default();
        }
        if boundary.has_names {
            let named = kept.names.take(boundary.writes);
            kept.points.extend(named.into_iter().map(|made| (to.end, made)));
        }
        kept.points.push_back((to.end, made));
        self.due.notify_all();
    }

    /// Takes the writes before the next point that the member is to be at, and the point: the last, or the first with a name where it keeps those. `None`: there is none, or it has
    /// fallen behind again.
    pub(crate) fn take_to_point(&self) -> Option<(Vec<Entry>, ConsistencyPoint)> {
        let mut kept = self.kept.lock();
        let last = kept.points.len().checked_sub(1)?;
        let named = kept.points.iter().position(|(_, made)| !made.point.name.is_empty());
        let next = named.filter(|_| kept.stops_at_names == Some(true)).unwrap_or(last);
        kept.take_to(next)
    }

    /// Whether the member is to be at each point that has a name: it keeps them. `at`: the point that it is at.
    pub(crate) fn stop_at_names(&self, stops: bool, at: Option<&ConsistencyPoint>) {
        let mut kept = self.kept.lock();
        kept.stops_at_names = Some(stops);
        if !stops {
            kept.names = Names::default();
        } else if let Some(at) = at {
            kept.names.found(at);
        }
    }

    /// Takes the points with names that the member cannot be at any more, where it keeps those.
    pub(crate) fn take_gone(&self) -> VecDeque<ConsistencyPoint> {
        self.kept.lock().names.take_gone(self.writes.begun())
    }

    /// Takes all points with names that the member is not known to be at: the pool is closed.
    pub(crate) fn take_unsent(&self) -> VecDeque<ConsistencyPoint> {
        let mut kept = self.kept.lock();
        kept.give_up_taken();
        kept.drop_all();
        kept.names.take_all()
    }

    /// Whether a point with a name waits for a member that is not connected, or copied to, and nothing was written behind it.
    pub(crate) fn has_name_wait(&self) -> bool {
        let kept = self.kept.lock();
        kept.names.await_member(self.writes.begun())
    }

    /// The member has applied what was taken.
    pub(crate) fn applied(&self) {
        let mut kept = self.kept.lock();
        (kept.taken_bytes, kept.oldest_taken) = (0, None);
        (kept.needs_everything, kept.copied_bytes, kept.taken_point) = (false, 0, None);
        drop(kept);
        self.room.notify_all();
    }

    /// Waits for something to do, for so long at most.
    pub(crate) fn wait(&self, limit: Duration) -> Due {
        let until = (self.clock)() + limit;
        let mut kept = self.kept.lock();
        loop {
            if kept.has_ended {
                return Due::Ended;
            }
            if kept.mode == Mode::Dropped {
                return Due::Copy;
            }
            if !kept.points.is_empty() {
                drop(kept);
                return self.take_to_point().map_or(Due::Nothing, |(entries, point)| Due::Send(entries, point));
            }
            let now = (self.clock)();
            // Soon enough for the member to be sent it before the bound.
            let interval = self.bound.interval.map(|interval| interval.min(self.bound.age / 2));
            let at = interval.and_then(|interval| Some(kept.oldest? + interval));
            let is_full = interval.is_some() && kept.bytes >= self.bound.bytes / 2;
            if is_full || at.is_some_and(|at| at <= now) || kept.names.are_due(self.writes.settled()) {
                return Due::Point;
            }
            if now >= until {
                return Due::Nothing;
            }
            self.due.wait_until(&mut kept, at.map_or(until, |at| at.min(until)));
        }
    }

    /// Whether the member has been sent and has applied all that was written.
    pub(crate) fn is_sent(&self) -> bool {
        let kept = self.kept.lock();
        matches!(kept.mode, Mode::Off | Mode::Away)
            || (kept.mode == Mode::Kept
                && kept.lag_bytes() == 0
                && kept.points.is_empty()
                && kept.taken_point.is_none()
                && !kept.needs_everything)
    }

    /// How far the member lags, as long as it is connected.
    pub(crate) fn lag(&self) -> Option<Lag> {
        let kept = self.kept.lock();
        let bytes = match kept.mode {
            Mode::Off | Mode::Away => return None,
            Mode::Kept => kept.lag_bytes() + kept.copied_bytes,
            Mode::Dropped => kept.missing.count_bytes() + kept.taken_bytes + kept.copied_bytes,
        };
        let age = self.age(&kept);
        Some(Lag { bytes, age, is_behind: kept.mode == Mode::Dropped })
    }
}
