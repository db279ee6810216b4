//! What an asynchronous member keeps: always a prefix of its writer's change sets, whenever it is cut off or killed.
//!
//! A change set comes over a stream ([`ChangeSet`](pmof_control::ChangeSet)). It is gathered in memory until it is whole, written beside the data, durably, and only
//! then applied, so that a crash in the middle of that is made up for by the next opening. The area beside the data:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | number of the change set that is staged |
//! | 8 | 8 | number of the last change set that was applied |
//! | 64 | | the change set that is staged, as it came |
//!
//! Both numbers are written in 8 bytes at once, each after all that it tells of is durable. Equal numbers: nothing is to be done. The first is
//! one more: the change set is applied again, which changes nothing where it was.

use std::ops::Range;

use pmof_control::{CHANGE_SET_HEADER_BYTES, Change, ChangeSetError, ChangeSetHeader};
use pmof_mem::{Durability, Medium, MemError};

const STAGED: u64 = 0;
const APPLIED: u64 = 8;
const FRAME: u64 = 64;

#[cfg(test)]
mod tests;

/// An asynchronous member: the data and the staging area are ranges of one medium.
#[derive(Debug)]
pub struct Follower<'m> {
    medium: &'m dyn Medium,
    level: Durability,
    data: Range<u64>,
    staging: Range<u64>,
    applied: u64,
    /// What came of the change set that is not whole yet.
    partial: Vec<u8>,
    /// Its stream had an error: what follows is not read.
    has_failed: bool,
}

/// Why a member cannot follow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowerError {
    /// The medium failed.
    #[error("the member's memory failed")]
    Medium(#[from] MemError),
    /// The medium cannot give the level.
    #[error("the member's memory does not give {level:?}")]
    NotDurable {
        /// The level that was asked for.
        level: Durability,
    },
    /// The stream holds no change set here, or a damaged one.
    #[error("the stream of change sets is damaged")]
    ChangeSet(#[from] ChangeSetError),
    /// Change sets before this one are missing: the stream is to begin with the one after the last that was applied.
    #[error("change set {number} came, and {applied} is the last that was applied; send from {} on", applied + 1)]
    Gap {
        /// The change set that came.
        number: u64,
        /// The last that was applied.
        applied: u64,
    },
    /// The change set is longer than the staging area.
    #[error("change set {number} has {len_bytes} bytes, and {capacity_bytes} can be staged")]
    TooLong {
        /// The change set.
        number: u64,
        /// Its bytes, header included.
        len_bytes: u64,
        /// Bytes that the staging area holds.
        capacity_bytes: u64,
    },
    /// A write ends beyond the data; nothing of the change set was applied.
    #[error("change set {number} writes {len_bytes} bytes at {offset}, beyond the member's {size_bytes}")]
    OutOfBounds {
        /// The change set.
        number: u64,
        /// Where.
        offset: u64,
        /// How many.
        len_bytes: u64,
        /// Bytes of the data.
        size_bytes: u64,
    },
    /// The staging area says what a member never leaves there.
    #[error(
        "the staging area is damaged: change set {staged} is staged and {applied} applied; the member has to be copied anew"
    )]
    Damaged {
        /// The number of the change set that is staged.
        staged: u64,
        /// That of the last that was applied.
        applied: u64,
    },
    /// An earlier call failed: what the stream says next is not known.
    #[error("the member stopped at an error before; open it again")]
    Stopped,
}

impl<'m> Follower<'m> {
    /// Opens a member and finishes the change set that a crash has interrupted. A staging area of zeros is a new member's, at change set 0.
    ///
    /// `data`, `staging`: ranges of `medium` that do not overlap; the staging area begins at a multiple of 64. Change sets are durable to `level`.
    ///
    /// # Errors
    /// [`FollowerError::Damaged`], [`FollowerError::Medium`], [`FollowerError::NotDurable`].
    ///
    /// # Panics
    /// If the ranges overlap, or the staging area has no room for a change set, or is not aligned.
    pub fn open(
        medium: &'m dyn Medium,
        level: Durability,
        data: Range<u64>,
        staging: Range<u64>,
    ) -> Result<Self, FollowerError> {
        assert!(data.end <= staging.start || staging.end <= data.start, "data and staging area overlap");
        assert!(
            staging.start % FRAME == 0
                && staging.end.saturating_sub(staging.start) > FRAME + CHANGE_SET_HEADER_BYTES as u64
        );
        let mut numbers = [0; 16];
        medium.read(staging.start, &mut numbers)?;
        let number = |at: usize| numbers[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (staged, applied) = (number(STAGED as usize), number(APPLIED as usize));
        let mut follower = Self { medium, level, data, staging, applied, partial: Vec::new(), has_failed: false };
        if staged == applied {
            return Ok(follower);
        }
        let damaged = || FollowerError::Damaged { staged, applied };
        let frame = follower.staged_frame().map_err(|error| match error {
            FollowerError::Medium(error) => FollowerError::Medium(error),
            _ => damaged(),
        })?;
        let (header, body) = split(&frame).ok_or_else(damaged)?;
        if staged != applied.wrapping_add(1) || header.number != staged {
            return Err(damaged());
        }
        let writes = header.writes(body).map_err(|_| damaged())?;
        follower.check(header.number, &writes).map_err(|_| damaged())?;
        follower.finish(header.number, &writes)?;
        Ok(follower)
    }

    /// The last change set that was applied; 0 before the first. A writer goes on with the next.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Takes in the next bytes of the stream, however they are cut, and applies each change set that they complete. Change sets that were applied before are
    /// passed over. After an error nothing more is taken in.
    ///
    /// # Errors
    /// [`FollowerError`].
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), FollowerError> {
        if self.has_failed {
            return Err(FollowerError::Stopped);
        }
        while !bytes.is_empty() {
            let taken = self.take(bytes).inspect_err(|_| self.has_failed = true)?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Takes in what belongs to the change set that is not whole yet. Returns how many bytes that were.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, FollowerError> {
        let wanted = match self.partial.first_chunk::<CHANGE_SET_HEADER_BYTES>() {
            None => CHANGE_SET_HEADER_BYTES,
            Some(header) => self.check_header(&ChangeSetHeader::parse(header)?)?,
        };
        let taken = bytes.len().min(wanted - self.partial.len());
        self.partial.extend_from_slice(&bytes[..taken]);
        if let Some(header) = self.partial.first_chunk::<CHANGE_SET_HEADER_BYTES>() {
            if self.check_header(&ChangeSetHeader::parse(header)?)? == self.partial.len() {
                let frame = std::mem::take(&mut self.partial);
                self.apply(&frame)?;
            }
        }
        Ok(taken)
    }

    /// The length of a change set, if it may follow.
    fn check_header(&self, header: &ChangeSetHeader) -> Result<usize, FollowerError> {
        let (number, applied) = (header.number, self.applied);
        if number > applied.saturating_add(1) {
            return Err(FollowerError::Gap { number, applied });
        }
        let len_bytes = header.body_bytes.saturating_add(CHANGE_SET_HEADER_BYTES as u64);
        let capacity_bytes = self.staging.end - self.staging.start - FRAME;
        if len_bytes > capacity_bytes {
            return Err(FollowerError::TooLong { number, len_bytes, capacity_bytes });
        }
        Ok(len_bytes as usize)
    }

    fn check(&self, number: u64, writes: &[Change<'_>]) -> Result<(), FollowerError> {
        let size_bytes = self.data.end - self.data.start;
        for write in writes {
            let (offset, len_bytes) = (write.offset, write.bytes.len() as u64);
            if offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
                return Err(FollowerError::OutOfBounds { number, offset, len_bytes, size_bytes });
            }
        }
        Ok(())
    }

    fn apply(&mut self, frame: &[u8]) -> Result<(), FollowerError> {
        let (header, body) = split(frame).ok_or(ChangeSetError::Header)?;
        let writes = header.writes(body)?;
        if header.number <= self.applied {
            return Ok(());
        }
        self.check(header.number, &writes)?;
        self.medium.store(self.staging.start + FRAME, frame)?;
        self.flush(self.staging.start + FRAME, frame.len() as u64)?;
        self.set(STAGED, header.number)?;
        self.finish(header.number, &writes)
    }

    /// Applies the change set that is staged.
    fn finish(&mut self, number: u64, writes: &[Change<'_>]) -> Result<(), FollowerError> {
        for write in writes.iter().filter(|write| !write.bytes.is_empty()) {
            self.medium.store(self.data.start + write.offset, write.bytes)?;
            self.medium.write_back(self.data.start + write.offset, write.bytes.len() as u64)?;
        }
        self.reach(self.data.start, self.data.end - self.data.start)?;
        self.set(APPLIED, number)?;
        self.applied = number;
        Ok(())
    }

    fn staged_frame(&self) -> Result<Vec<u8>, FollowerError> {
        let mut header = [0; CHANGE_SET_HEADER_BYTES];
        self.medium.read(self.staging.start + FRAME, &mut header)?;
        let body_bytes = ChangeSetHeader::parse(&header)?.body_bytes;
        let capacity_bytes = self.staging.end - self.staging.start - FRAME - CHANGE_SET_HEADER_BYTES as u64;
        if body_bytes > capacity_bytes {
            return Err(ChangeSetError::Header.into());
        }
        let mut frame = vec![0; CHANGE_SET_HEADER_BYTES + body_bytes as usize];
        self.medium.read(self.staging.start + FRAME, &mut frame)?;
        Ok(frame)
    }

    fn set(&self, field: u64, number: u64) -> Result<(), FollowerError> {
        self.medium.atomic_store(self.staging.start + field, number)?;
        self.flush(self.staging.start + field, 8)
    }

    fn flush(&self, offset: u64, len_bytes: u64) -> Result<(), FollowerError> {
        self.medium.write_back(offset, len_bytes)?;
        self.reach(offset, len_bytes)
    }

    fn reach(&self, offset: u64, len_bytes: u64) -> Result<(), FollowerError> {
        let level = self.level;
        self.medium.flush(level, offset, len_bytes)?.map(drop).ok_or(FollowerError::NotDurable { level })
    }
}

fn split(frame: &[u8]) -> Option<(ChangeSetHeader, &[u8])> {
    let (header, body) = frame.split_first_chunk::<CHANGE_SET_HEADER_BYTES>()?;
    Some((ChangeSetHeader::parse(header).ok()?, body))
}
