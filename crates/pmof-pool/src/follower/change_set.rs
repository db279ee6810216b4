//! Writing a change set to the staging area of a member: writes in their order, and before them pages, each of which is there once however often it is copied.

use std::{collections::BTreeMap, ops::Range};

use pmof_control::{CHANGE_HEADER_BYTES, ChangeHeader};

use super::{
    BODY, Follower, FollowerMemory,
    body::{PIECE_BYTES, checksum, in_memory},
    staged_body,
};

/// Bytes of a change set that are kept in memory until it is applied; of a longer one all are read again.
const KEPT_BYTES: usize = 8 << 20;

/// A change set that is being written to the staging area.
#[derive(Debug)]
pub(crate) struct ChangeSet {
    /// Bytes of the body so far.
    body_bytes: u64,
    /// The checksum of the body as it was written first.
    crc: u32,
    /// Something of it was written anew since.
    is_rewritten: bool,
    /// The end of the body, which is yet to be written.
    unwritten: Vec<u8>,
    /// All of the body, as long as it is short.
    kept: Option<Vec<u8>>,
    /// Pages in it, by where they begin.
    pages: BTreeMap<u64, Placed>,
}

/// Pages in a row that lie in a change set.
#[derive(Clone, Copy, Debug)]
struct Placed {
    len_bytes: u64,
    /// Where in the body their bytes lie.
    at: u64,
}

/// The change set is longer than the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// One without any write.
impl Default for ChangeSet {
    fn default() -> Self {
        let (unwritten, pages) = (Vec::new(), BTreeMap::new());
        Self { body_bytes: 0, crc: 0, is_rewritten: false, unwritten, kept: Some(Vec::new()), pages }
    }
}

impl ChangeSet {
    /// A change set without any write.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(super) fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// All of the body, if it is short.
    pub(super) fn kept(&self) -> Option<&[u8]> {
        self.kept.as_deref()
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

    /// The parts of a range, and where in the body those lie that are in it.
    fn parts(&self, range: &Range<u64>) -> Vec<(Range<u64>, Option<u64>)> {
        let (mut parts, mut at) = (Vec::new(), range.start);
        let before = self.pages.range(..=range.start).next_back();
        let first = before.map_or(range.start, |(begin, _)| *begin);
        for (begin, placed) in self.pages.range(first..range.end) {
            let common = at.max(*begin)..range.end.min(begin + placed.len_bytes);
            if common.is_empty() {
                continue;
            }
            if at < common.start {
                parts.push((at..common.start, None));
            }
            at = common.end;
            parts.push((common.clone(), Some(placed.at + common.start - begin)));
        }
        if at < range.end {
            parts.push((at..range.end, None));
        }
        parts
    }
}

impl<M: FollowerMemory> Follower<M> {
    /// Adds a write to a change set, behind those before. The outer error is the memory's.
    pub(super) fn add(&self, set: &mut ChangeSet, offset: u64, bytes: &[u8]) -> Result<Result<(), TooLong>, M::Error> {
        assert!(
            offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.data_bytes),
            "a write lies beyond the member's data"
        );
        let len_bytes = bytes.len() as u64;
        if !self.has_room(set, [len_bytes]) {
            return Ok(Err(TooLong));
        }
        set.take_in(&ChangeHeader { offset, len_bytes }.to_bytes());
        set.take_in(bytes);
        if set.unwritten.len() >= PIECE_BYTES {
            self.write_out(set)?;
        }
        Ok(Ok(()))
    }

    /// Puts pages into a change set, as `Replica::put` does.
    pub(super) fn put_pages(&self, set: &mut ChangeSet, offset: u64, bytes: &[u8]) -> Result<bool, M::Error> {
        for (part, at) in set.parts(&(offset..offset + bytes.len() as u64)) {
            let of_part = &bytes[(part.start - offset) as usize..(part.end - offset) as usize];
            if let Some(at) = at {
                self.rewrite(set, at, of_part)?;
                continue;
            }
            if self.add(set, part.start, of_part)?.is_err() {
                return Ok(false);
            }
            let len_bytes = part.end - part.start;
            set.pages.insert(part.start, Placed { len_bytes, at: set.body_bytes - len_bytes });
        }
        Ok(true)
    }

    /// Whether writes of these lengths fit into a change set.
    pub(super) fn has_room(&self, set: &ChangeSet, lens_bytes: impl IntoIterator<Item = u64>) -> bool {
        let more = lens_bytes.into_iter().map(|len_bytes| CHANGE_HEADER_BYTES as u64 + len_bytes).sum::<u64>();
        set.body_bytes + more <= self.capacity_bytes
    }

    fn rewrite(&self, set: &mut ChangeSet, at: u64, bytes: &[u8]) -> Result<(), M::Error> {
        self.write_out(set)?;
        self.memory.write_staging(BODY + at, bytes)?;
        if let Some(kept) = &mut set.kept {
            kept[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        set.is_rewritten = true;
        Ok(())
    }

    /// Writes what was not yet. Returns the checksum of the body.
    pub(super) fn finish(&self, set: &mut ChangeSet) -> Result<u32, M::Error> {
        self.write_out(set)?;
        match &set.kept {
            _ if !set.is_rewritten => Ok(set.crc),
            Some(body) => checksum(set.body_bytes, &mut in_memory(body)),
            None => checksum(set.body_bytes, &mut staged_body(&self.memory)),
        }
    }

    fn write_out(&self, set: &mut ChangeSet) -> Result<(), M::Error> {
        let at = BODY + set.body_bytes - set.unwritten.len() as u64;
        if !set.unwritten.is_empty() {
            self.memory.write_staging(at, &set.unwritten)?;
            set.unwritten.clear();
        }
        Ok(())
    }
}
