//! The consistency points that a member keeps to go back to: an index of them, and a log of the bytes that were overwritten since the oldest.
//!
//! Before a change set is applied, the pages that it touches are saved as they are, unless they were since the newest point that is kept. So what the pool was at a point
//! is on each page the first that was saved since, or, where none was, what the data holds. The points area:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0, 40960 | 40960 | the index, with an even and an odd sequence number; the higher one that is whole counts |
//! | 81920 | | the log, a ring: position *p* lies at *p* modulo its length |
//!
//! The log holds sets of old bytes, in the form of change sets: each under the number of the change set before which it was saved. What a set or an index tells of is durable
//! before it counts, and the index tells of a set before the data changes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
};

use pmof_control::{
    CHANGE_HEADER_BYTES, CHANGE_SET_HEADER_BYTES, ChangeHeader, ChangeSetHeader, ConsistencyPoint, KEPT_POINTS_MAX,
    KeptPoint, POINT_INDEX_HEAD_BYTES, POINT_INDEX_MAX_BYTES, PointIndex, PointIndexHead,
};

use pmof_replication::following::is_same;

use super::{
    AREA, FollowerBytes, FollowerMemory,
    body::{PIECE_BYTES, checksum, each_write},
    seen,
};
use crate::pages::{PAGE_BYTES, PageMap};

#[cfg(test)]
mod tests;

const SLOT_BYTES: u64 = 40_960;
const LOG: u64 = 2 * SLOT_BYTES;

const _: () = assert!(POINT_INDEX_MAX_BYTES as u64 <= SLOT_BYTES);

/// Bytes of a points area whose log has so many.
pub(crate) fn points_area_bytes(log_bytes: u64) -> u64 {
    LOG + log_bytes
}

/// Bytes of a log that has room for all pages of a pool of so many bytes, also where each is saved with headers of its own.
pub(crate) fn points_space_of_all(data_bytes: u64) -> u64 {
    let headers = (CHANGE_SET_HEADER_BYTES + CHANGE_HEADER_BYTES) as u64;
    data_bytes.saturating_add(data_bytes.div_ceil(PAGE_BYTES).saturating_mul(headers))
}

/// Bytes of the log of a points area.
pub(crate) fn log_bytes_of(area_bytes: u64) -> u64 {
    area_bytes.saturating_sub(LOG)
}

/// What a member says of the points that it keeps.
#[derive(Debug)]
pub(crate) enum Kept {
    /// It keeps none.
    None,
    Points(PointIndex),
    /// It keeps some, and its points area does not say which, or not all that it should.
    Damaged,
}

/// Why a point cannot be read.
#[derive(Debug)]
pub(crate) enum PointReadError<E> {
    Memory(E),
    /// It is not kept, or not any more.
    Gone,
    /// What was saved of it is not whole.
    Damaged,
}

impl<E> From<E> for PointReadError<E> {
    fn from(error: E) -> Self {
        Self::Memory(error)
    }
}

/// Why a member did not go back to a point.
#[derive(Debug)]
pub(crate) enum RollBackError<E> {
    /// It is where it was.
    Unread(PointReadError<E>),
    /// It may be at the point, or be there when it is opened next.
    Interrupted(E),
}

impl<E> From<PointReadError<E>> for RollBackError<E> {
    fn from(error: PointReadError<E>) -> Self {
        Self::Unread(error)
    }
}

/// The points that a member keeps.
pub(crate) fn kept_points<M: FollowerBytes>(memory: &M) -> Result<Kept, M::Error> {
    // First: a writer saves what the data is to lose before it applies more.
    let seen = seen(memory)?;
    let Some(area_bytes) = memory.points_bytes() else {
        return Ok(if seen.area == 0 { Kept::None } else { Kept::Damaged });
    };
    if seen.area == 0 {
        return Ok(Kept::None);
    }
    if seen.is_of_other_time {
        return Ok(Kept::Damaged);
    }
    let Some(index) = read_index(memory)? else { return Ok(Kept::Damaged) };
    let PointIndexHead { area, last, begin, end, .. } = index.head;
    let is_whole = area == seen.area && end - begin <= log_bytes_of(area_bytes);
    let is_complete = index.points.is_empty() || last >= seen.applied;
    Ok(if is_whole && is_complete { Kept::Points(index) } else { Kept::Damaged })
}

/// The newest point of that name, else the one of that number.
pub(crate) fn find_point<'i>(index: &'i PointIndex, wanted: &str) -> Option<&'i KeptPoint> {
    let number = wanted.parse::<u64>().ok();
    let named = index.points.iter().rev().find(|kept| kept.point.name == wanted);
    named.or_else(|| index.points.iter().find(|kept| Some(kept.point.number) == number))
}

/// The head of the index that counts, its slot first.
fn read_heads<M: FollowerBytes>(memory: &M) -> Result<Vec<(u64, PointIndexHead)>, M::Error> {
    let mut heads = Vec::with_capacity(2);
    for slot in [0, 1] {
        let mut bytes = [0; POINT_INDEX_HEAD_BYTES];
        memory.read_points(slot * SLOT_BYTES, &mut bytes)?;
        heads.extend(PointIndexHead::parse(&bytes).map(|head| (slot, head)));
    }
    heads.sort_by_key(|(_, head)| std::cmp::Reverse(head.sequence));
    Ok(heads)
}

fn read_index<M: FollowerBytes>(memory: &M) -> Result<Option<PointIndex>, M::Error> {
    for (slot, head) in read_heads(memory)? {
        let mut entries = vec![0; head.entries_bytes()];
        memory.read_points(slot * SLOT_BYTES + POINT_INDEX_HEAD_BYTES as u64, &mut entries)?;
        // One that is being written is not whole: then the one before counts.
        if let Some(index) = PointIndex::parse(head, &entries) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Where a range of positions lies in the points area: in one piece, or in two.
fn pieces(log_bytes: u64, at: u64, len_bytes: usize) -> [(u64, Range<usize>); 2] {
    let begin = at % log_bytes;
    let first = (log_bytes - begin).min(len_bytes as u64) as usize;
    [(LOG + begin, 0..first), (LOG, first..len_bytes)]
}

fn read_log<M: FollowerBytes>(memory: &M, log_bytes: u64, at: u64, into: &mut [u8]) -> Result<(), M::Error> {
    for (offset, part) in pieces(log_bytes, at, into.len()) {
        if !part.is_empty() {
            memory.read_points(offset, &mut into[part])?;
        }
    }
    Ok(())
}

/// The points of a member that is open for writing.
#[derive(Debug)]
pub(crate) struct Points {
    index: PointIndex,
    log_bytes: u64,
    data_bytes: u64,
    /// Pages that were saved since the newest point. After an opening none is known to be: one that is saved twice takes room, and the first counts.
    saved: PageMap,
}

impl Points {
    /// Begins with no point. `None`: the area has no room for a log.
    pub(super) fn begin<M: FollowerMemory>(
        memory: &M,
        data_bytes: u64,
        keep: u16,
        fresh: u64,
    ) -> Result<Option<Self>, M::Error> {
        let log_bytes = memory.points_bytes().map_or(0, log_bytes_of);
        if log_bytes == 0 {
            return Ok(None);
        }
        // Above what the area held before.
        let sequence = read_heads(memory)?.first().map_or(0, |(_, head)| head.sequence);
        let keep = keep.min(KEPT_POINTS_MAX as u16);
        let mut index = PointIndex::default();
        (index.head.sequence, index.head.area, index.head.keep) = (sequence, fresh, keep);
        let mut points = Self { index, log_bytes, data_bytes, saved: PageMap::new(data_bytes) };
        points.write_index(memory)?;
        Ok(Some(points))
    }

    /// Goes on with those that are kept.
    pub(super) fn go_on<M: FollowerBytes>(
        memory: &M,
        data_bytes: u64,
        mut index: PointIndex,
        keep: Option<u16>,
    ) -> Option<Self> {
        let log_bytes = log_bytes_of(memory.points_bytes()?);
        index.head.keep = keep.map_or(index.head.keep, |keep| keep.min(KEPT_POINTS_MAX as u16));
        Some(Self { index, log_bytes, data_bytes, saved: PageMap::new(data_bytes) })
    }

    /// Whether old bytes are to be saved before a change set is applied: they were not, and there is a point that may need them.
    pub(super) fn needs(&self, number: u64) -> bool {
        !self.index.points.is_empty() && self.index.head.last < number
    }

    /// Saves the pages of `touched` that were not since the newest point. Points that there is no room for are dropped, the oldest first.
    pub(super) fn save<M: FollowerMemory>(
        &mut self,
        memory: &M,
        number: u64,
        touched: &PageMap,
        dropped: &mut Vec<ConsistencyPoint>,
    ) -> Result<(), M::Error> {
        let (mut ranges, mut from) = (Vec::new(), 0);
        while let Some(range) = touched.take(from, PIECE_BYTES as u64) {
            from = range.end;
            self.add_unsaved(&range, &mut ranges);
        }
        let bytes_of = |range: &Range<u64>| CHANGE_HEADER_BYTES as u64 + range.end - range.start;
        let body_bytes: u64 = ranges.iter().map(bytes_of).sum();
        let set_bytes = CHANGE_SET_HEADER_BYTES as u64 + body_bytes;
        if self.make_room(set_bytes, dropped) {
            self.write_index(memory)?;
        }
        if self.index.points.is_empty() {
            return Ok(());
        }
        if !ranges.is_empty() {
            self.write_set(memory, number, body_bytes, &ranges)?;
            self.index.head.end += set_bytes;
        }
        self.index.head.last = number;
        self.write_index(memory)?;
        for range in ranges {
            self.saved.mark(range);
        }
        Ok(())
    }

    /// The parts of a range of pages that were not saved.
    fn add_unsaved(&self, range: &Range<u64>, ranges: &mut Vec<Range<u64>>) {
        for page in (range.start..range.end).step_by(PAGE_BYTES as usize) {
            let page = page..(page + PAGE_BYTES).min(self.data_bytes);
            if self.saved.meets(&page) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == page.start && page.end - last.start <= PIECE_BYTES as u64 => {
                    last.end = page.end;
                }
                _ => ranges.push(page),
            }
        }
    }

    /// Drops points until so many bytes fit. Whether there were any to drop.
    fn make_room(&mut self, set_bytes: u64, dropped: &mut Vec<ConsistencyPoint>) -> bool {
        let before = dropped.len();
        while self.index.head.end - self.index.head.begin + set_bytes > self.log_bytes {
            if self.index.points.is_empty() {
                break;
            }
            dropped.push(self.drop_oldest());
        }
        dropped.len() > before
    }

    fn drop_oldest(&mut self) -> ConsistencyPoint {
        let oldest = self.index.points.remove(0);
        self.index.head.begin = self.index.points.first().map_or(self.index.head.end, |next| next.start);
        oldest.point
    }

    fn write_set<M: FollowerMemory>(
        &self,
        memory: &M,
        number: u64,
        body_bytes: u64,
        ranges: &[Range<u64>],
    ) -> Result<(), M::Error> {
        let (mut at, mut crc, mut bytes) = (self.index.head.end + CHANGE_SET_HEADER_BYTES as u64, 0, Vec::new());
        for range in ranges {
            let len_bytes = range.end - range.start;
            let header = ChangeHeader { offset: range.start, len_bytes }.to_bytes();
            bytes.resize(CHANGE_HEADER_BYTES + len_bytes as usize, 0);
            bytes[..CHANGE_HEADER_BYTES].copy_from_slice(&header);
            memory.read_data(range.start, &mut bytes[CHANGE_HEADER_BYTES..])?;
            crc = crc32c::crc32c_append(crc, &bytes);
            self.write_log(memory, at, &bytes)?;
            at += bytes.len() as u64;
        }
        let header = ChangeSetHeader { number, body_bytes, body_crc: crc };
        self.write_log(memory, self.index.head.end, &header.to_bytes())?;
        memory.flush_points()
    }

    fn write_log<M: FollowerMemory>(&self, memory: &M, at: u64, bytes: &[u8]) -> Result<(), M::Error> {
        for (offset, part) in pieces(self.log_bytes, at, bytes.len()) {
            if !part.is_empty() {
                memory.write_points(offset, &bytes[part])?;
            }
        }
        Ok(())
    }

    /// Keeps a point that the data is at, unless it is kept, and drops the oldest where there are too many.
    pub(super) fn keep<M: FollowerMemory>(&mut self, memory: &M, point: &ConsistencyPoint) -> Result<(), M::Error> {
        let is_newer = self.index.points.last().is_none_or(|newest| newest.point.number < point.number);
        // One that the member went back to is kept already.
        let is_kept = || self.index.points.iter().any(|kept| is_same(&kept.point, point));
        if !is_newer || is_kept() || self.index.head.keep == 0 {
            return Ok(());
        }
        if self.index.points.is_empty() {
            self.index.head.begin = self.index.head.end;
        }
        self.index.points.push(KeptPoint { start: self.index.head.end, point: point.clone() });
        while self.index.points.len() > usize::from(self.index.head.keep) {
            self.drop_oldest();
        }
        self.index.head.last = point.number;
        self.write_index(memory)?;
        self.saved.clear();
        Ok(())
    }

    fn write_index<M: FollowerMemory>(&mut self, memory: &M) -> Result<(), M::Error> {
        self.index.head.sequence += 1;
        memory.write_points(self.index.head.sequence % 2 * SLOT_BYTES, &self.index.to_bytes())?;
        memory.flush_points()
    }
}

/// A member as it was at a point, while a writer may change it.
#[derive(Debug)]
pub(crate) struct AtPoint {
    point: ConsistencyPoint,
    data_bytes: u64,
    log_bytes: u64,
    area: u64,
    sequence: u64,
    /// The sets of old bytes up to there, and the number of the last.
    known: u64,
    last: u64,
    /// Pages that changed since the point, and where in the log their old bytes lie.
    old: BTreeMap<u64, u64>,
}

impl AtPoint {
    /// Reads, and checks, which pages changed since the point.
    pub(crate) fn open<M: FollowerBytes>(
        memory: &M,
        data_bytes: u64,
        number: u64,
    ) -> Result<Self, PointReadError<M::Error>> {
        let index = match kept_points(memory)? {
            Kept::Points(index) => index,
            Kept::None => return Err(PointReadError::Gone),
            Kept::Damaged => return Err(PointReadError::Damaged),
        };
        let kept = index.points.iter().find(|kept| kept.point.number == number).ok_or(PointReadError::Gone)?;
        let mut view = Self {
            point: kept.point.clone(),
            data_bytes,
            log_bytes: memory.points_bytes().map_or(0, log_bytes_of),
            area: index.head.area,
            sequence: index.head.sequence,
            known: kept.start,
            last: number,
            old: BTreeMap::new(),
        };
        view.learn(memory, index.head.end)?;
        Ok(view)
    }

    pub(crate) fn point(&self) -> &ConsistencyPoint {
        &self.point
    }

    /// The pages that changed since, piece by piece.
    pub(crate) fn changed(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for page in self.old.keys() {
            let page = *page..(page + PAGE_BYTES).min(self.data_bytes);
            match ranges.last_mut() {
                Some(last) if last.end == page.start && page.end - last.start <= PIECE_BYTES as u64 => {
                    last.end = page.end;
                }
                _ => ranges.push(page),
            }
        }
        ranges
    }

    /// Takes note of the sets of old bytes up to `end`.
    fn learn<M: FollowerBytes>(&mut self, memory: &M, end: u64) -> Result<(), PointReadError<M::Error>> {
        while self.known < end {
            let mut bytes = [0; CHANGE_SET_HEADER_BYTES];
            read_log(memory, self.log_bytes, self.known, &mut bytes)?;
            let body = self.known + CHANGE_SET_HEADER_BYTES as u64;
            let is_next = |header: &ChangeSetHeader| {
                header.number > self.last && body.checked_add(header.body_bytes).is_some_and(|behind| behind <= end)
            };
            let header = ChangeSetHeader::parse(&bytes).filter(is_next).ok_or(PointReadError::Damaged)?;
            let mut read = |at: u64, into: &mut [u8]| read_log(memory, self.log_bytes, body + at, into);
            if checksum(header.body_bytes, &mut read)? != header.body_crc {
                return Err(PointReadError::Damaged);
            }
            let (old, mut is_aligned) = (&mut self.old, true);
            let note = |offset: u64, at: u64, bytes: &[u8]| {
                is_aligned &= offset % PAGE_BYTES == 0;
                for page in (0..bytes.len() as u64).step_by(PAGE_BYTES as usize) {
                    // The first that was saved is the one of the point.
                    if let Entry::Vacant(entry) = old.entry(offset + page) {
                        entry.insert(body + at + page);
                    }
                }
                Ok(())
            };
            if !each_write((header.body_bytes, self.data_bytes), &mut read, note)? || !is_aligned {
                return Err(PointReadError::Damaged);
            }
            (self.known, self.last) = (body + header.body_bytes, header.number);
        }
        Ok(())
    }

    /// Looks what was saved since the last time, and whether the point is kept still.
    fn refresh<M: FollowerBytes>(&mut self, memory: &M) -> Result<(), PointReadError<M::Error>> {
        let mut area = [0; 8];
        memory.read_staging(AREA, &mut area)?;
        let newest = read_heads(memory)?.first().map(|(_, head)| head.sequence);
        if u64::from_le_bytes(area) != self.area {
            return Err(PointReadError::Gone);
        }
        if newest == Some(self.sequence) {
            return Ok(());
        }
        let index = read_index(memory)?.ok_or(PointReadError::Damaged)?;
        if !index.points.iter().any(|kept| kept.point.number == self.point.number) {
            return Err(PointReadError::Gone);
        }
        self.sequence = index.head.sequence;
        self.learn(memory, index.head.end)
    }

    /// Copies out what the pool was at the point. A writer may go on meanwhile: what it is about to overwrite it has saved, and the index says so, before it does.
    pub(crate) fn read<M: FollowerBytes>(
        &mut self,
        memory: &M,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), PointReadError<M::Error>> {
        memory.read_data(offset, into)?;
        // Behind the read: whatever it may have met that was newer is in the log by now.
        self.refresh(memory)?;
        self.read_old(memory, offset, into)?;
        // The log may have been written over meanwhile, if the point was dropped.
        self.refresh(memory)
    }

    /// Puts old bytes in the place of those that changed.
    pub(crate) fn read_old<M: FollowerBytes>(
        &self,
        memory: &M,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), PointReadError<M::Error>> {
        let range = offset..offset + into.len() as u64;
        let first = range.start - range.start % PAGE_BYTES;
        for (page, at) in self.old.range(first..range.end) {
            let begin = range.start.max(*page);
            let end = range.end.min(page + PAGE_BYTES);
            let part = (begin - range.start) as usize..(end - range.start) as usize;
            read_log(memory, self.log_bytes, at + (begin - page), &mut into[part])?;
        }
        Ok(())
    }
}
