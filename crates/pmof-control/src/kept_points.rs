//! The index of the consistency points that an asynchronous member keeps. Numbers are little-endian.

use crate::{
    CONSISTENCY_POINT_BYTES, ConsistencyPoint,
    checksum::{crc32c, crc32c_append},
};
use alloc::{vec, vec::Vec};

#[cfg(test)]
mod tests;

/// Consistency points that a member keeps, at most.
pub const KEPT_POINTS_MAX: usize = 64;

/// Bytes of an index before its entries.
pub const POINT_INDEX_HEAD_BYTES: usize = 72;

/// Bytes of an index with as many points as there may be.
pub const POINT_INDEX_MAX_BYTES: usize = POINT_INDEX_HEAD_BYTES + KEPT_POINTS_MAX * ENTRY_BYTES;

const MAGIC: [u8; 8] = *b"pmofpnts";
const ENTRY_BYTES: usize = 8 + CONSISTENCY_POINT_BYTES;
const HEAD_CHECKSUM: usize = 64;

/// What an index says before its entries.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `pmofpnts` |
/// | 8 | 8 | sequence number, from 1 |
/// | 16 | 8 | identity of the points area: random, not 0 |
/// | 24 | 8 | number of the last change set whose old bytes are in the log |
/// | 32 | 8 | position in the log of the first byte that counts |
/// | 40 | 8 | position behind the last one |
/// | 48 | 2 | points that are kept, at most |
/// | 50 | 2 | points that are kept |
/// | 52 | 8 | zero |
/// | 60 | 4 | CRC32C of the entries, without the checksum that each ends with: with it, what it covers would not count |
/// | 64 | 4 | CRC32C of the bytes before |
/// | 68 | 4 | zero |
/// | 72 | 520 n | entries, the oldest point first: position in the log where its old bytes begin u64, consistency point |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointIndexHead {
    /// Incremented by each change.
    pub sequence: u64,
    /// Which area it is of: the member's staging area names the one that counts.
    pub area: u64,
    /// The last change set whose old bytes are in the log.
    pub last: u64,
    /// Where in the log what counts begins.
    pub begin: u64,
    /// Where in the log it ends.
    pub end: u64,
    /// Points that are kept, at most [`KEPT_POINTS_MAX`].
    pub keep: u16,
    /// Points that are kept now.
    count: u16,
    entries_crc: u32,
}

/// A consistency point that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptPoint {
    /// Where in the log lie the old bytes of what was changed since.
    pub start: u64,
    /// The point.
    pub point: ConsistencyPoint,
}

/// Which consistency points a member keeps, and where in the log of old bytes each begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PointIndex {
    /// All but the points. What it says of their number is set when it is [written](Self::to_bytes).
    pub head: PointIndexHead,
    /// The points, the oldest first; at most [`KEPT_POINTS_MAX`].
    pub points: Vec<KeptPoint>,
}

impl PointIndexHead {
    /// Reads what stands before the entries. `None`: it is none, or damaged.
    pub fn parse(bytes: &[u8; POINT_INDEX_HEAD_BYTES]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let crc = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC || crc(HEAD_CHECKSUM)? != crc32c(&bytes[..HEAD_CHECKSUM]) {
            return None;
        }
        let head = Self {
            sequence: word(8)?,
            area: word(16)?,
            last: word(24)?,
            begin: word(32)?,
            end: word(40)?,
            keep: short(48),
            count: short(50),
            entries_crc: crc(60)?,
        };
        let is_sound = usize::from(head.count) <= KEPT_POINTS_MAX && head.begin <= head.end && head.area != 0;
        is_sound.then_some(head)
    }

    /// Bytes of the entries.
    pub fn entries_bytes(&self) -> usize {
        usize::from(self.count) * ENTRY_BYTES
    }

    fn to_bytes(self) -> [u8; POINT_INDEX_HEAD_BYTES] {
        let mut bytes = [0; POINT_INDEX_HEAD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let words = [self.sequence, self.area, self.last, self.begin, self.end];
        for (at, word) in words.into_iter().enumerate() {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes[48..50].copy_from_slice(&self.keep.to_le_bytes());
        bytes[50..52].copy_from_slice(&self.count.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.entries_crc.to_le_bytes());
        let crc = crc32c(&bytes[..HEAD_CHECKSUM]);
        bytes[HEAD_CHECKSUM..HEAD_CHECKSUM + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl PointIndex {
    /// The index's bytes: the head, and the entries behind it. Of more points than there may be the first are taken.
    pub fn to_bytes(&self) -> Vec<u8> {
        let points = &self.points[..self.points.len().min(KEPT_POINTS_MAX)];
        let mut bytes = vec![0; POINT_INDEX_HEAD_BYTES];
        for KeptPoint { start, point } in points {
            bytes.extend(start.to_le_bytes());
            bytes.extend(point.to_bytes());
        }
        let entries_crc = entries_checksum(&bytes[POINT_INDEX_HEAD_BYTES..]);
        let head = PointIndexHead { count: points.len() as u16, entries_crc, ..self.head };
        bytes[..POINT_INDEX_HEAD_BYTES].copy_from_slice(&head.to_bytes());
        bytes
    }

    /// Reads the entries that belong to a head. `None`: they are damaged.
    pub fn parse(head: PointIndexHead, entries: &[u8]) -> Option<Self> {
        if entries.len() != head.entries_bytes() || entries_checksum(entries) != head.entries_crc {
            return None;
        }
        let entry = |bytes: &[u8]| {
            let start = u64::from_le_bytes(*bytes.first_chunk()?);
            let point = ConsistencyPoint::parse(bytes[8..].first_chunk()?)?;
            (head.begin <= start && start <= head.end).then_some(KeptPoint { start, point })
        };
        let points = entries.chunks(ENTRY_BYTES).map(entry).collect::<Option<Vec<_>>>()?;
        let is_in_order =
            |pair: &[KeptPoint]| pair[0].start <= pair[1].start && pair[0].point.number < pair[1].point.number;
        points.windows(2).all(is_in_order).then_some(Self { head, points })
    }
}

fn entries_checksum(entries: &[u8]) -> u32 {
    entries.chunks(ENTRY_BYTES).fold(0, |crc, entry| crc32c_append(crc, &entry[..entry.len() - 4]))
}
