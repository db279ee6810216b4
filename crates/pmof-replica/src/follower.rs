//! What an asynchronous member keeps: always a prefix of its writer's change sets, whenever its writer, its target or the connection dies.
//!
//! A change set is written to a staging area beside the member's data, durably, and only then applied, so that whoever opens the member
//! next makes up for a crash in the middle. The area:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | number of the change set that is staged |
//! | 8 | 8 | number of the last change set that was applied |
//! | 512, 1024 | 512 | the consistency points that change sets with an even and an odd number lead to |
//! | 1536, 2048 | 512 | how far the writer was when it was heard last: a point with an even or an odd number, of which the higher one counts |
//! | 4096 | | the change set that is staged |
//!
//! Each number is written in 8 bytes at once, after all that it tells of is durable. Equal numbers: the data is that of the change set. The first is
//! one more: that change set is applied again, which changes nothing where it was. Anything else, or a change set that is not whole, is damage: the
//! data is that of no point until a change set with all that differs is applied.

use pmof_control::{
    CHANGE_HEADER_BYTES, CHANGE_SET_HEADER_BYTES, CONSISTENCY_POINT_BYTES, ChangeHeader, ChangeSetHeader,
    ConsistencyPoint,
};

#[cfg(test)]
mod tests;

const STAGED: u64 = 0;
const APPLIED: u64 = 8;
const POINTS: u64 = 512;
const HEARD: u64 = 1536;
const FRAME: u64 = 4096;
const BODY: u64 = FRAME + CHANGE_SET_HEADER_BYTES as u64;

/// Bytes of a change set that are written, or read again, at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes of a change set that are kept in memory until it is applied; of a longer one all are read again.
const KEPT_BYTES: usize = 8 << 20;

/// The memory of a member: its data, and the staging area beside it. Nothing need be durable before it is flushed.
pub(crate) trait FollowerMemory {
    type Error;

    fn write_staging(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Writes 8 bytes at once.
    fn set_staging(&self, offset: u64, number: u64) -> Result<(), Self::Error>;

    fn flush_staging(&self) -> Result<(), Self::Error>;

    fn read_staging(&self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    fn write_data(&self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    fn flush_data(&self) -> Result<(), Self::Error>;
}

/// An asynchronous member that is open for writing.
#[derive(Debug)]
pub(crate) struct Follower<M> {
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
}

/// A change set that is being written to the staging area.
#[derive(Debug, Default)]
pub(crate) struct ChangeSet {
    /// Bytes of the body so far.
    body_bytes: u64,
    crc: u32,
    /// The end of the body, which is yet to be written.
    unwritten: Vec<u8>,
    /// All of the body, as long as it is short.
    kept: Option<Vec<u8>>,
}

/// What the first bytes of a staging area say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    staged: u64,
    applied: u64,
    points: [Option<ConsistencyPoint>; 2],
    heard: Option<ConsistencyPoint>,
}

/// Bytes of a staging area before the change set.
pub(crate) const SEEN_BYTES: usize = FRAME as usize;

impl Seen {
    pub(crate) fn parse(bytes: &[u8; SEEN_BYTES]) -> Self {
        let word = |at: u64| bytes[at as usize..][..8].try_into().map_or(0, u64::from_le_bytes);
        let point = |at: u64| ConsistencyPoint::parse(bytes[at as usize..].first_chunk()?);
        let two = |first: u64| [point(first), point(point_at(first, 1))];
        let heard = two(HEARD).into_iter().flatten().max_by_key(|heard| heard.number);
        Self { staged: word(STAGED), applied: word(APPLIED), points: two(POINTS), heard }
    }

    /// The point of the last change set that was applied, and how far the writer was when it was heard last.
    pub(crate) fn into_points(self) -> (Option<ConsistencyPoint>, Option<ConsistencyPoint>) {
        (self.point(self.applied).cloned(), self.heard)
    }

    fn point(&self, number: u64) -> Option<&ConsistencyPoint> {
        self.points[(number % 2) as usize].as_ref().filter(|point| point.number == number)
    }
}

/// The change set is longer than the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Bytes of a staging area that any one change of the whole pool fits into, with as many bytes of writes that come meanwhile.
pub(crate) fn staging_bytes(size_bytes: u64, queued_bytes: u64) -> u64 {
    // Of each page that is copied there are its bytes and where they go.
    BODY + size_bytes + size_bytes / 128 + queued_bytes
}

impl ChangeSet {
    /// A change set without any write.
    pub(crate) fn new() -> Self {
        Self { kept: Some(Vec::new()), ..Self::default() }
    }

    fn take_in(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.body_bytes += bytes.len() as u64;
        self.unwritten.extend_from_slice(bytes);
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(bytes);
        }
        self.kept.take_if(|kept| kept.len() > KEPT_BYTES);
    }
}

impl<M: FollowerMemory> Follower<M> {
    /// Opens a member and finishes the change set that a crash has interrupted. A staging area of zeros is a new member's, at change set 0.
    pub(crate) fn open(memory: M, staging_bytes: u64, data_bytes: u64) -> Result<Self, M::Error> {
        let mut bytes = [0; SEEN_BYTES];
        memory.read_staging(0, &mut bytes)?;
        let seen = Seen::parse(&bytes);
        let Seen { staged, applied, .. } = seen;
        let capacity_bytes = staging_bytes.saturating_sub(BODY);
        let next = staged.max(applied) + 1;
        let mut follower = Self { memory, capacity_bytes, data_bytes, applied: None, next, point: None, heard: None };
        if staged == applied {
            follower.applied = Some(applied);
        } else if staged == applied.wrapping_add(1) {
            if let Some(header) = follower.staged_header(staged)? {
                follower.apply(header, None)?;
                follower.applied = Some(staged);
            }
        }
        follower.point = follower.applied.and_then(|number| seen.point(number)).cloned();
        follower.heard = seen.heard;
        Ok(follower)
    }

    /// The last change set that was applied; 0 before the first. `None`: the data is that of no point.
    pub(crate) fn applied(&self) -> Option<u64> {
        self.applied
    }

    /// The point that the data is at, if it is known.
    pub(crate) fn point(&self) -> Option<&ConsistencyPoint> {
        self.point.as_ref()
    }

    /// How far its writer was when it was heard last.
    pub(crate) fn heard(&self) -> Option<&ConsistencyPoint> {
        self.heard.as_ref()
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Adds a write to a change set, behind those before. The outer error is the memory's.
    pub(crate) fn add(&self, set: &mut ChangeSet, offset: u64, bytes: &[u8]) -> Result<Result<(), TooLong>, M::Error> {
        assert!(
            offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.data_bytes),
            "a write lies beyond the member's data"
        );
        let len_bytes = bytes.len() as u64;
        if set.body_bytes + CHANGE_HEADER_BYTES as u64 + len_bytes > self.capacity_bytes {
            return Ok(Err(TooLong));
        }
        set.take_in(&ChangeHeader { offset, len_bytes }.to_bytes());
        set.take_in(bytes);
        if set.unwritten.len() >= PIECE_BYTES {
            self.write_out(set)?;
        }
        Ok(Ok(()))
    }

    fn write_out(&self, set: &mut ChangeSet) -> Result<(), M::Error> {
        let at = BODY + set.body_bytes - set.unwritten.len() as u64;
        if !set.unwritten.is_empty() {
            self.memory.write_staging(at, &set.unwritten)?;
            set.unwritten.clear();
        }
        Ok(())
    }

    /// Has the member be at the point that a change set leads to: stages it durably, and applies it. The number of `point` is that of the change set, whatever
    /// it was.
    pub(crate) fn commit(&mut self, mut set: ChangeSet, point: &ConsistencyPoint) -> Result<(), M::Error> {
        let number = self.next;
        let point = ConsistencyPoint { number, ..point.clone() };
        self.write_out(&mut set)?;
        let header = ChangeSetHeader { number, body_bytes: set.body_bytes, body_crc: set.crc };
        self.memory.write_staging(FRAME, &header.to_bytes())?;
        self.memory.write_staging(point_at(POINTS, number), &point.to_bytes())?;
        self.memory.flush_staging()?;
        self.set(STAGED, number)?;
        self.apply(header, set.kept.as_deref())?;
        (self.applied, self.next, self.point) = (Some(number), number + 1, Some(point));
        Ok(())
    }

    /// Notes how far the writer is, for whoever goes on without it.
    pub(crate) fn hear(&mut self, far: &ConsistencyPoint) -> Result<(), M::Error> {
        let number = self.heard.as_ref().map_or(0, |heard| heard.number) + 1;
        let heard = ConsistencyPoint { number, ..far.clone() };
        self.memory.write_staging(point_at(HEARD, number), &heard.to_bytes())?;
        self.memory.flush_staging()?;
        self.heard = Some(heard);
        Ok(())
    }

    /// Applies the change set that is staged. `kept`: its body, else it is read.
    fn apply(&self, header: ChangeSetHeader, kept: Option<&[u8]>) -> Result<(), M::Error> {
        let write = |offset: u64, bytes: &[u8]| self.memory.write_data(offset, bytes);
        match kept {
            Some(body) => drop(self.each_write(header.body_bytes, &mut in_memory(body), write)?),
            None => drop(self.each_write(header.body_bytes, &mut self.staged_body(), write)?),
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
        let (mut crc, mut at, mut piece) = (0, 0, vec![0; PIECE_BYTES]);
        while at < header.body_bytes {
            let part = (header.body_bytes - at).min(PIECE_BYTES as u64) as usize;
            self.memory.read_staging(BODY + at, &mut piece[..part])?;
            crc = crc32c::crc32c_append(crc, &piece[..part]);
            at += part as u64;
        }
        let is_whole =
            crc == header.body_crc && self.each_write(header.body_bytes, &mut self.staged_body(), |_, _| Ok(()))?;
        Ok(is_whole.then_some(header))
    }

    fn staged_body(&self) -> impl FnMut(u64, &mut [u8]) -> Result<(), M::Error> + use<'_, M> {
        |at, into| self.memory.read_staging(BODY + at, into)
    }

    /// Goes through the writes of a body, long ones piece by piece. False: they do not make up the body, or go beyond the data.
    fn each_write(
        &self,
        body_bytes: u64,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), M::Error>,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), M::Error>,
    ) -> Result<bool, M::Error> {
        let mut window = Window { bytes: Vec::new(), begin: 0, end: body_bytes };
        let mut at = 0;
        while at < body_bytes {
            let behind_header = at + CHANGE_HEADER_BYTES as u64;
            let Some(header) = window.get(at, CHANGE_HEADER_BYTES, read)?.and_then(|bytes| bytes.try_into().ok())
            else {
                return Ok(false);
            };
            let ChangeHeader { offset, len_bytes } = ChangeHeader::parse(header);
            let is_in = |begin: u64, limit: u64| begin.checked_add(len_bytes).is_some_and(|end| end <= limit);
            if !is_in(offset, self.data_bytes) || !is_in(behind_header, body_bytes) {
                return Ok(false);
            }
            let mut done = 0;
            while done < len_bytes {
                let part = (len_bytes - done).min(PIECE_BYTES as u64);
                let Some(bytes) = window.get(behind_header + done, part as usize, read)? else { return Ok(false) };
                each(offset + done, bytes)?;
                done += part;
            }
            at = behind_header + len_bytes;
        }
        Ok(true)
    }

    fn set(&self, field: u64, number: u64) -> Result<(), M::Error> {
        self.memory.set_staging(field, number)?;
        self.memory.flush_staging()
    }
}

/// The part of a body that was read last.
struct Window {
    bytes: Vec<u8>,
    begin: u64,
    end: u64,
}

impl Window {
    /// Bytes of the body, at most a piece. `None`: they lie beyond its end.
    fn get<E>(
        &mut self,
        at: u64,
        len_bytes: usize,
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<&[u8]>, E> {
        let behind = at + len_bytes as u64;
        if behind > self.end {
            return Ok(None);
        }
        if at < self.begin || behind > self.begin + self.bytes.len() as u64 {
            self.begin = at;
            self.bytes.resize((self.end - at).min(PIECE_BYTES as u64) as usize, 0);
            read(at, &mut self.bytes)?;
        }
        let first = (at - self.begin) as usize;
        Ok(self.bytes.get(first..first + len_bytes))
    }
}

fn in_memory<E>(body: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), E> + use<'_, E> {
    |at, into| {
        into.copy_from_slice(&body[at as usize..at as usize + into.len()]);
        Ok(())
    }
}

/// Where the record of a number lies, of two.
fn point_at(first: u64, number: u64) -> u64 {
    first + (number % 2) * CONSISTENCY_POINT_BYTES as u64
}
