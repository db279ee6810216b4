//! What an asynchronous member keeps: always a prefix of its writer's change sets, whenever its writer, its target or the connection dies.
//!
//! A change set is written to a staging area beside the member's data, durably, and only then applied, so that whoever opens the member
//! next makes up for a crash in the middle. The area:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | number of the change set that is staged |
//! | 8 | 8 | number of the last change set that was applied |
//! | 16 | 8 | identity of the points area that counts; 0: no points are kept |
//! | 24 | 8 | mark that the data was about to be told last; 0: none yet |
//! | 32 | 8 | mark that the data was told |
//! | 512, 1024 | 512 | the consistency points that change sets with an even and an odd number lead to |
//! | 1536, 2048 | 512 | how far the writer was when it was heard last: a point with an even or an odd number, of which the higher one counts |
//! | 4096 | | the change set that is staged |
//!
//! Each number is written in 8 bytes at once, after all that it tells of is durable. Equal numbers: the data is that of the change set. The first is
//! one more: that change set is applied again, which changes nothing where it was. Anything else, or a change set that is not whole, is damage: the
//! data is that of no point until a change set with all that differs is applied.
//!
//! Data and staging area are files of their own, of which one may be put back to an older copy. The data's file is told the pool's mark, which rises once a second while the pool is
//! written: a mark that is not one of the two that are noted here is that of another time, and the data is that of no point.

use pmof_control::{CHANGE_SET_HEADER_BYTES, CONSISTENCY_POINT_BYTES, ChangeSetHeader, ConsistencyPoint};

use pmof_replication::following::{Entry, Replica};

use self::body::{checksum, each_write, in_memory};
use crate::pages::PageMap;

mod body;
mod change_set;
mod points;
#[cfg(test)]
mod tests;

pub(crate) use change_set::ChangeSet;
use change_set::TooLong;
pub(crate) use points::{
    AtPoint, Kept, PointReadError, Points, RollBackError, find_point, kept_points, points_area_bytes,
    points_space_of_all,
};

const STAGED: u64 = 0;
const APPLIED: u64 = 8;
const AREA: u64 = 16;
const TELLING: u64 = 24;
const TOLD: u64 = 32;
const POINTS: u64 = 512;
const HEARD: u64 = 1536;
const FRAME: u64 = 4096;
const BODY: u64 = FRAME + CHANGE_SET_HEADER_BYTES as u64;

/// What can be read of a member: its data, the staging area beside it, and the points area, where it has one.
pub(crate) trait FollowerBytes {
    type Error;

    fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// The mark that the data's file was told last.
    fn data_mark(&self) -> Result<u64, Self::Error>;

    /// Bytes of the points area. `None`: there is none.
    fn points_bytes(&self) -> Option<u64>;

    fn read_points(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error>;
}

/// The memory of a member that is written. Nothing need be durable before it is flushed.
pub(crate) trait FollowerMemory: FollowerBytes {
    fn write_staging(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Writes 8 bytes at once.
    fn set_staging(&self, offset: u64, number: u64) -> Result<(), Self::Error>;

    fn flush_staging(&self) -> Result<(), Self::Error>;

    fn write_data(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    fn flush_data(&self) -> Result<(), Self::Error>;

    /// Tells the data's file a mark, durably.
    fn mark_data(&self, mark: u64) -> Result<(), Self::Error>;

    fn write_points(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    fn flush_points(&self) -> Result<(), Self::Error>;
}

/// Which points a member is to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// How many of those with names, the newest. `None`: as many as it did.
    pub(crate) count: Option<u16>,
    /// The identity of a points area that begins anew: random.
    pub(crate) fresh: u64,
}

/// What happened to points that were kept, or were to be.
#[derive(Debug)]
pub(crate) enum PointNews<E> {
    /// The oldest gave way: the bytes of a change did not fit beside those that it needs.
    NoRoom(ConsistencyPoint),
    /// None is kept any more. `None`: what the points area says is damaged, or it is not there.
    Stopped(Option<E>),
}

/// An asynchronous member that is open for writing.
#[derive(Debug)]
pub(crate) struct Follower<M: FollowerBytes> {
    memory: M,
    /// Bytes of a change set's body, at most.
    capacity_bytes: u64,
    data_bytes: u64,
    /// The last change set that was applied. `None`: the data is that of no point.
    applied: Option<u64>,
    /// The number of the next change set.
    next: u64,
    point: Option<ConsistencyPoint>,
    heard: Option<ConsistencyPoint>,
    /// The mark that the data was told.
    mark: u64,
    /// The mark that the data may have.
    telling: u64,
    /// Points to go back to, where it keeps any.
    points: Option<Points>,
    news: Vec<PointNews<M::Error>>,
}

/// What the first bytes of a staging area say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    staged: u64,
    applied: u64,
    /// The points area that counts.
    area: u64,
    points: [Option<ConsistencyPoint>; 2],
    heard: Option<ConsistencyPoint>,
    /// Marks that the data may have: from the one to the other. `None`: it was told none from here.
    marks: Option<[u64; 2]>,
    /// The data has another: it is not what this area tells of.
    is_of_other_time: bool,
}

/// Bytes of a staging area before the change set.
const SEEN_BYTES: usize = FRAME as usize;

impl Seen {
    fn parse(bytes: &[u8; SEEN_BYTES]) -> Self {
        let word = |at: u64| bytes[at as usize..][..8].try_into().map_or(0, u64::from_le_bytes);
        let point = |at: u64| ConsistencyPoint::parse(bytes[at as usize..].first_chunk()?);
        let two = |first: u64| [point(first), point(point_at(first, 1))];
        let heard = two(HEARD).into_iter().flatten().max_by_key(|heard| heard.number);
        let (staged, applied, area) = (word(STAGED), word(APPLIED), word(AREA));
        let marks = Some([word(TOLD), word(TELLING)]).filter(|[_, telling]| *telling > 0);
        Self { staged, applied, area, points: two(POINTS), heard, marks, is_of_other_time: false }
    }

    /// The same of a member whose data has this mark.
    fn beside(self, data_mark: u64) -> Self {
        let is_of_other_time = self.marks.is_some_and(|[told, telling]| !(told..=telling).contains(&data_mark));
        Self { is_of_other_time, ..self }
    }

    /// The point of the last change set that was applied.
    pub(crate) fn applied_point(&self) -> Option<&ConsistencyPoint> {
        self.point(self.applied).filter(|_| !self.is_of_other_time)
    }

    /// The point of a change set that is staged and not applied yet: whoever opens the member next has it be there.
    pub(crate) fn staged_point(&self) -> Option<&ConsistencyPoint> {
        let is_staged = self.staged == self.applied.wrapping_add(1) && !self.is_of_other_time;
        self.point(self.staged).filter(|_| is_staged)
    }

    /// How far the writer was when it was heard last.
    pub(crate) fn heard(&self) -> Option<&ConsistencyPoint> {
        self.heard.as_ref()
    }

    fn point(&self, number: u64) -> Option<&ConsistencyPoint> {
        self.points[(number % 2) as usize].as_ref().filter(|point| point.number == number)
    }
}

/// Bytes of a staging area that any one change of the whole pool fits into, with as many bytes of writes that come meanwhile.
pub(crate) fn staging_bytes(size_bytes: u64, queued_bytes: u64) -> u64 {
    // Of each page that is copied there are its bytes and where they go.
    BODY + size_bytes + size_bytes / 128 + queued_bytes
}

impl<M: FollowerMemory> Follower<M> {
    /// Opens a member and finishes the change set that a crash has interrupted. A staging area of zeros is a new member's, at change set 0.
    pub(crate) fn open(memory: M, staging_bytes: u64, data_bytes: u64, keep: Keep) -> Result<Self, M::Error> {
        let seen = seen(&memory)?;
        let Seen { staged, applied, .. } = seen;
        let mut follower = Self {
            memory,
            capacity_bytes: staging_bytes.saturating_sub(BODY),
            data_bytes,
            applied: None,
            next: staged.max(applied) + 1,
            point: None,
            heard: seen.heard.clone(),
            // Of another time it is told anew.
            mark: seen.marks.filter(|_| !seen.is_of_other_time).map_or(0, |[told, _]| told),
            telling: seen.marks.filter(|_| !seen.is_of_other_time).map_or(0, |[_, telling]| telling),
            points: None,
            news: Vec::new(),
        };
        follower.keep_numbers(&seen)?;
        follower.open_points(&seen, keep)?;
        if seen.is_of_other_time {
            log::warn!(
                "an asynchronous member's data and its staging area are of different times: one of both was put back to an older copy"
            );
        } else if staged == applied {
            follower.applied = Some(applied);
        } else if staged == applied.wrapping_add(1) {
            if let Some(header) = follower.staged_header(staged)? {
                follower.save_old(header, None)?;
                follower.apply_body(header, None)?;
                follower.applied = Some(staged);
            }
        }
        follower.point = follower.applied.and_then(|number| seen.point(number)).cloned();
        match follower.point.clone() {
            Some(point) => follower.keep_point(&point)?,
            // What is written next does not lead from a point, and not back to one.
            None if follower.applied.is_none() && follower.points.is_some() => follower.stop_points(None)?,
            None => {}
        }
        Ok(follower)
    }

    /// Has the numbers be durable that were read: the connection of the writer before may have ended before it had flushed them. A later one that outlives
    /// a loss of power alone would tell of a change set that is not there.
    fn keep_numbers(&self, seen: &Seen) -> Result<(), M::Error> {
        if seen.staged == 0 && seen.applied == 0 {
            return Ok(());
        }
        self.memory.set_staging(APPLIED, seen.applied)?;
        self.set(STAGED, seen.staged)
    }

    /// Goes on with the points that are kept, or begins.
    fn open_points(&mut self, seen: &Seen, keep: Keep) -> Result<(), M::Error> {
        let found = match keep.count {
            Some(0) => Ok(Kept::None),
            _ => kept_points(&self.memory),
        };
        let wanted = keep.count.filter(|count| *count > 0 && self.memory.points_bytes().is_some());
        match found {
            Ok(Kept::Points(index)) => {
                self.points = Points::go_on(&self.memory, self.data_bytes, index, keep.count);
                return Ok(());
            }
            Ok(Kept::None) => {
                if seen.area != 0 {
                    self.memory.set_staging(AREA, 0)?;
                    self.memory.flush_staging()?;
                }
            }
            Ok(Kept::Damaged) => self.stop_points(None)?,
            Err(error) => self.stop_points(Some(error))?,
        }
        if let Some(count) = wanted {
            match Points::begin(&self.memory, self.data_bytes, count, keep.fresh) {
                Ok(points) => {
                    self.points = points;
                    self.memory.set_staging(AREA, keep.fresh)?;
                    self.memory.flush_staging()?;
                }
                Err(error) => self.stop_points(Some(error))?,
            }
        }
        Ok(())
    }

    /// The last change set that was applied; 0 before the first. `None`: the data is that of no point.
    pub(crate) fn applied(&self) -> Option<u64> {
        self.applied
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// What happened to points since it was asked last.
    pub(crate) fn take_news(&mut self) -> Vec<PointNews<M::Error>> {
        std::mem::take(&mut self.news)
    }

    /// Saves what a change set that is staged will overwrite, as far as the points that are kept need it.
    fn save_old(&mut self, header: ChangeSetHeader, kept: Option<&[u8]>) -> Result<(), M::Error> {
        let Some(points) = self.points.as_mut().filter(|points| points.needs(header.number)) else { return Ok(()) };
        let touched = PageMap::new(self.data_bytes);
        let touch = |offset: u64, _, bytes: &[u8]| {
            touched.mark(offset..offset + bytes.len() as u64);
            Ok(())
        };
        let sizes = (header.body_bytes, self.data_bytes);
        match kept {
            Some(body) => drop(each_write(sizes, &mut in_memory(body), touch)?),
            None => drop(each_write(sizes, &mut staged_body(&self.memory), touch)?),
        }
        let mut dropped = Vec::new();
        let saved = points.save(&self.memory, header.number, &touched, &mut dropped);
        self.news.extend(dropped.into_iter().map(PointNews::NoRoom));
        saved.or_else(|error| self.stop_points(Some(error)))
    }

    /// Keeps the point that the data is at, where it has a name and is not kept, be it from before the member went back to it.
    fn keep_point(&mut self, point: &ConsistencyPoint) -> Result<(), M::Error> {
        let Some(points) = self.points.as_mut().filter(|_| !point.name.is_empty()) else { return Ok(()) };
        points.keep(&self.memory, point).or_else(|error| self.stop_points(Some(error)))
    }

    /// Keeps no points any more, and has whoever reads one know before the data changes.
    fn stop_points(&mut self, why: Option<M::Error>) -> Result<(), M::Error> {
        self.points = None;
        self.set(AREA, 0)?;
        self.news.push(PointNews::Stopped(why));
        Ok(())
    }

    /// Has the data be as it was at a point that is kept, as one change set, whose point has the name of that one. Nothing is changed where what is kept is not whole.
    /// Returns the bytes of the pages that changed.
    pub(crate) fn roll_back(&mut self, number: u64) -> Result<u64, RollBackError<M::Error>> {
        let view = AtPoint::open(&self.memory, self.data_bytes, number)?;
        let (mut set, mut bytes, mut changed_bytes) = (ChangeSet::new(), Vec::new(), 0);
        for range in view.changed() {
            changed_bytes += range.end - range.start;
            bytes.resize((range.end - range.start) as usize, 0);
            view.read_old(&self.memory, range.start, &mut bytes)?;
            let added = self.add(&mut set, range.start, &bytes).map_err(PointReadError::Memory)?;
            added.map_err(|TooLong| PointReadError::Damaged)?;
        }
        self.hear_own_point().map_err(PointReadError::Memory)?;
        let staged = self.stage(&mut set, view.point()).map_err(PointReadError::Memory)?;
        self.flush_staged().map_err(PointReadError::Memory)?;
        self.apply(&set, staged).map_err(RollBackError::Interrupted)?;
        Ok(changed_bytes)
    }

    /// Notes that its writer was at least at the point that the member leaves, which tells what is lost by that.
    fn hear_own_point(&mut self) -> Result<(), M::Error> {
        let far = |point: &ConsistencyPoint| (point.opening, point.written_bytes);
        let heard = self.heard.as_ref();
        match self.point.clone().filter(|point| heard.is_none_or(|heard| far(heard) < far(point))) {
            Some(point) => self.hear(&point),
            None => Ok(()),
        }
    }

    /// Applies the change set that is staged. `kept`: its body, else it is read.
    fn apply_body(&self, header: ChangeSetHeader, kept: Option<&[u8]>) -> Result<(), M::Error> {
        let write = |offset: u64, _, bytes: &[u8]| self.memory.write_data(offset, bytes);
        let sizes = (header.body_bytes, self.data_bytes);
        match kept {
            Some(body) => drop(each_write(sizes, &mut in_memory(body), write)?),
            None => drop(each_write(sizes, &mut staged_body(&self.memory), write)?),
        }
        self.memory.flush_data()?;
        self.set(APPLIED, header.number)
    }

    /// The header of the change set that is staged, if it is that one, and whole.
    fn staged_header(&self, number: u64) -> Result<Option<ChangeSetHeader>, M::Error> {
        let mut bytes = [0; CHANGE_SET_HEADER_BYTES];
        self.memory.read_staging(FRAME, &mut bytes)?;
        let is_that = |header: &ChangeSetHeader| header.number == number && header.body_bytes <= self.capacity_bytes;
        let Some(header) = ChangeSetHeader::parse(&bytes).filter(is_that) else { return Ok(None) };
        let (sizes, mut read) = ((header.body_bytes, self.data_bytes), staged_body(&self.memory));
        let is_whole = checksum(header.body_bytes, &mut read)? == header.body_crc
            && each_write(sizes, &mut read, |_, _, _| Ok(()))?;
        Ok(is_whole.then_some(header))
    }

    fn set(&self, field: u64, number: u64) -> Result<(), M::Error> {
        self.memory.set_staging(field, number)?;
        self.memory.flush_staging()
    }
}

impl<M: FollowerMemory> Replica for Follower<M> {
    type Failure = M::Error;
    type ChangeSet = ChangeSet;
    type Staged = (ChangeSetHeader, ConsistencyPoint);

    fn point(&self) -> Option<&ConsistencyPoint> {
        self.point.as_ref()
    }

    fn heard(&self) -> Option<&ConsistencyPoint> {
        self.heard.as_ref()
    }

    fn is_at_point(&self) -> bool {
        self.applied().is_some_and(|applied| applied > 0)
    }

    fn keeps_points(&self) -> bool {
        self.points.is_some()
    }

    fn numbered(&self, point: &ConsistencyPoint) -> ConsistencyPoint {
        ConsistencyPoint { number: self.next, ..point.clone() }
    }

    fn write_unstaged(&self, offset: u64, bytes: &[u8]) -> Result<(), M::Error> {
        assert!(!self.is_at_point(), "the member would be at a point no more");
        self.memory.write_data(offset, bytes)
    }

    fn flush_unstaged(&self) -> Result<(), M::Error> {
        self.memory.flush_data()
    }

    fn put(&self, set: &mut ChangeSet, offset: u64, bytes: &[u8]) -> Result<bool, M::Error> {
        self.put_pages(set, offset, bytes)
    }

    fn add_all(&self, set: &mut ChangeSet, entries: &[Entry]) -> Result<bool, M::Error> {
        let has_room = self.has_room(set, entries.iter().map(|entry| entry.bytes.len() as u64));
        for entry in entries.iter().filter(|_| has_room) {
            let added = self.add(set, entry.offset, &entry.bytes)?;
            debug_assert_eq!(added, Ok(()));
        }
        Ok(has_room)
    }

    fn date_copies(&mut self, mark: u64) -> Result<(), M::Error> {
        if mark <= self.mark {
            return Ok(());
        }
        // A writer before may have died before any other member had the mark that it told the data.
        let mark = mark.max(self.telling);
        self.set(TELLING, mark)?;
        self.memory.mark_data(mark)?;
        // Durable with whatever comes next: until then the one before is taken, too.
        self.memory.set_staging(TOLD, mark)?;
        self.mark = mark;
        Ok(())
    }

    fn stage(&mut self, set: &mut ChangeSet, point: &ConsistencyPoint) -> Result<Self::Staged, M::Error> {
        let point = self.numbered(point);
        let number = point.number;
        if !self.is_at_point() {
            self.memory.flush_data()?;
        }
        let header = ChangeSetHeader { number, body_bytes: set.body_bytes(), body_crc: self.finish(set)? };
        self.memory.write_staging(FRAME, &header.to_bytes())?;
        self.memory.write_staging(point_at(POINTS, number), &point.to_bytes())?;
        Ok((header, point))
    }

    fn flush_staged(&self) -> Result<(), M::Error> {
        self.memory.flush_staging()
    }

    fn apply(&mut self, set: &ChangeSet, (header, point): Self::Staged) -> Result<(), M::Error> {
        let number = point.number;
        self.set(STAGED, number)?;
        self.save_old(header, set.kept())?;
        self.apply_body(header, set.kept())?;
        self.keep_point(&point)?;
        (self.applied, self.next, self.point) = (Some(number), number + 1, Some(point));
        Ok(())
    }

    fn hear(&mut self, far: &ConsistencyPoint) -> Result<(), M::Error> {
        let number = self.heard.as_ref().map_or(0, |heard| heard.number) + 1;
        let heard = ConsistencyPoint { number, ..far.clone() };
        self.memory.write_staging(point_at(HEARD, number), &heard.to_bytes())?;
        self.memory.flush_staging()?;
        self.heard = Some(heard);
        Ok(())
    }
}

/// Looks at a member beside a writer that may tell it another mark in between.
const LOOKS: u8 = 3;

/// What the first bytes of a staging area say, and whether it is of the data.
pub(crate) fn seen<M: FollowerBytes>(memory: &M) -> Result<Seen, M::Error> {
    let mut looks = 0;
    loop {
        let (data_mark, mut bytes) = (memory.data_mark()?, [0; SEEN_BYTES]);
        memory.read_staging(0, &mut bytes)?;
        let seen = Seen::parse(&bytes).beside(data_mark);
        looks += 1;
        if !seen.is_of_other_time || looks == LOOKS {
            return Ok(seen);
        }
    }
}

fn staged_body<M: FollowerBytes>(memory: &M) -> impl FnMut(u64, &mut [u8]) -> Result<(), M::Error> + use<'_, M> {
    |at, into| memory.read_staging(BODY + at, into)
}

/// Where the record of a number lies, of two.
fn point_at(first: u64, number: u64) -> u64 {
    first + (number % 2) * CONSISTENCY_POINT_BYTES as u64
}
