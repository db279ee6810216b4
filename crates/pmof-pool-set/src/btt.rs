//! Block tables (BTT, as libpmemblk 1.12.1 writes them): heads, their copies, maps and write logs. Numbers are little-endian.
//!
//! | offset in an arena | length | field |
//! |---|---|---|
//! | 0 | 16 | `BTT_ARENA_INFO` |
//! | 56, 64 | 4 each | length of a block, and of its place |
//! | 60, 68, 72 | 4 each | blocks that users see, blocks there are, free ones |
//! | 80 | 8 | where the next arena begins; 0 in the last |
//! | 88, 96, 104, 112 | 8 each | where the blocks, the map, the write log and the copy of the head are |
//! | 4088 | 8 | checksum of the 4096 bytes |
//!
//! The map has 4 bytes a block: bits 30 and 31 are 0 if the block is at its original place, otherwise the low 30 are its place. The write
//! log has 64 bytes a free block: two records of 16, each block, its old and its new place, and a sequence number of 1 to 3.

use std::path::Path;

use pmof_mem::{Medium, Memory};

use crate::{
    PoolSetError,
    header::{Checksummed, array, checksum},
    words::words,
};

#[cfg(test)]
mod tests;

const SIGNATURE: &[u8; 16] = b"BTT_ARENA_INFO\0\0";
const INFO_LEN_BYTES: u64 = 4096;
const CHECKSUM: usize = 4088;
const ARENA_LEN_BYTES_MAX: u64 = 1 << 39;
/// A shorter remainder of the pool has no arena.
const ARENA_LEN_BYTES_MIN: u64 = 1 << 24;
/// Blocks that PMDK keeps free in each arena that it makes.
const FREE: u64 = 256;
/// The length of a block's place is a multiple of this.
const PLACE_LEN_BYTES_MIN: u64 = 512;
const PLACE_ALIGN_BYTES: u64 = 256;
const PLACE_MASK: u32 = 0x3fff_ffff;
const LOG_STRIDE: u64 = 64;
/// Bytes of the map that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Where the first arena of a file without a pool's header begins.
const BARE: u64 = 4096;

/// A file or device that is a block table without a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTable {
    /// What is wrong with it, if anything.
    pub defect: Option<&'static str>,
}

impl BlockTable {
    /// The block table without a pool in the file or device at `path`; `None` if it is none, or cannot be mapped.
    ///
    /// # Errors
    /// `Mem`
    pub fn at(path: &Path) -> Result<Option<Self>, PoolSetError> {
        Memory::open_read_only(path, None).map_or(Ok(None), |memory| block_table(&memory))
    }
}

/// The block table without a pool in `memory`; `None` if it is none.
///
/// # Errors
/// `Mem`
pub fn block_table(memory: &Memory) -> Result<Option<BlockTable>, PoolSetError> {
    let len_bytes = memory.len_bytes();
    if len_bytes < BARE + 2 * INFO_LEN_BYTES {
        return Ok(None);
    }
    let is_table = Info::read(memory, BARE)?.is_valid() || Info::read(memory, copy_offset(BARE, len_bytes))?.is_valid();
    if !is_table {
        return Ok(None);
    }
    Ok(Some(BlockTable { defect: defect(memory, BARE, len_bytes, None)? }))
}

/// What is wrong with the arenas from `offset` on, if anything. One that was never written is not. `block_len_bytes`: as the pool has
/// it.
pub(crate) fn defect(
    medium: &impl Medium,
    offset: u64,
    len_bytes: u64,
    block_len_bytes: Option<u32>,
) -> Result<Option<&'static str>, PoolSetError> {
    let mut offset = offset;
    let first = Info::read(medium, offset)?;
    if first.0.iter().all(|byte| *byte == 0) && !Info::read(medium, copy_offset(offset, len_bytes))?.is_valid() {
        let has_room = block_len_bytes.is_none_or(|block| has_room(len_bytes.saturating_sub(offset), block));
        return Ok((!has_room).then_some("its blocks are longer than the pool has room for"));
    }
    loop {
        let info = Info::read(medium, offset)?;
        if !info.is_valid() {
            return Ok(Some("the head of its block table (BTT info) is damaged"));
        }
        let Some(arena) = Arena::of(&info, offset, len_bytes) else {
            return Ok(Some("its block table does not lie inside of it"));
        };
        if block_len_bytes.is_some_and(|len_bytes| len_bytes != arena.block_len_bytes) {
            return Ok(Some("its block table is of blocks of another length than the pool"));
        }
        if !Info::read(medium, arena.copy)?.is_valid() {
            return Ok(Some("the copy of the head of its block table (BTT info backup) is damaged"));
        }
        if let Some(defect) = arena.blocks_defect(medium)? {
            return Ok(Some(defect));
        }
        match arena.next {
            Some(next) => offset = next,
            None => return Ok(None),
        }
    }
}

/// Where the arenas from `offset` on end; `offset` where none was written. `number` reads 8 bytes at an offset.
pub(crate) fn end<E>(mut offset: u64, mut number: impl FnMut(u64) -> Result<u64, E>) -> Result<u64, E> {
    let signature = [0, 8].map(|at| u64::from_le_bytes(array(SIGNATURE, at)));
    let mut end = offset;
    while [number(offset)?, number(offset.saturating_add(8))?] == signature {
        let (next, copy) = (number(offset + 80)?, number(offset + 112)?);
        end = offset.saturating_add(copy).saturating_add(INFO_LEN_BYTES);
        match offset.checked_add(next) {
            Some(behind) if behind > offset => offset = behind,
            _ => break,
        }
    }
    Ok(end)
}

/// Whether arenas with blocks of this length can be made: each needs twice as many places as are kept free, as in libpmemblk 1.12.1.
pub(crate) fn has_room(len_bytes: u64, block_len_bytes: u32) -> bool {
    let place_len_bytes = u64::from(block_len_bytes).max(PLACE_LEN_BYTES_MIN).next_multiple_of(PLACE_ALIGN_BYTES);
    let mut left = len_bytes;
    while left >= ARENA_LEN_BYTES_MIN {
        let arena = left.min(ARENA_LEN_BYTES_MAX);
        // Both heads, the write log, and up to a page between the blocks and the map.
        let log = (FREE * LOG_STRIDE).next_multiple_of(INFO_LEN_BYTES);
        let room = arena - 3 * INFO_LEN_BYTES - log;
        if room / (place_len_bytes + 4) < 2 * FREE {
            return false;
        }
        left -= arena;
    }
    true
}

/// Where the copy of an arena's head is, computed from its length.
fn copy_offset(offset: u64, len_bytes: u64) -> u64 {
    let end = len_bytes - len_bytes % INFO_LEN_BYTES;
    end.min(offset + ARENA_LEN_BYTES_MAX).saturating_sub(INFO_LEN_BYTES)
}

/// The head of an arena.
struct Info(Vec<u8>);

impl Info {
    fn read(medium: &impl Medium, offset: u64) -> Result<Self, PoolSetError> {
        let mut bytes = vec![0; INFO_LEN_BYTES as usize];
        medium.read(offset, &mut bytes)?;
        Ok(Self(bytes))
    }

    fn is_valid(&self) -> bool {
        let sum = checksum(&self.0, &Checksummed { field: CHECKSUM, end: INFO_LEN_BYTES as usize });
        self.0.starts_with(SIGNATURE) && self.u64(CHECKSUM) == sum
    }

    fn u32(&self, at: usize) -> u32 {
        word(&self.0, at)
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }
}

/// The number at `at`; 0 behind the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// The layout of an arena in the medium.
struct Arena {
    block_len_bytes: u32,
    seen: u32,
    all: u32,
    free: u32,
    map: u64,
    log: u64,
    copy: u64,
    next: Option<u64>,
}

impl Arena {
    /// `None` if it does not fit.
    fn of(info: &Info, offset: u64, len_bytes: u64) -> Option<Self> {
        let at = |field: usize| offset.checked_add(info.u64(field));
        let (data, map, log, copy) = (at(88)?, at(96)?, at(104)?, at(112)?);
        let (block_len_bytes, place_len_bytes) = (info.u32(56), info.u32(64));
        let (seen, all, free) = (info.u32(60), info.u32(68), info.u32(72));
        let next = match info.u64(80) {
            0 => None,
            next => Some(offset.checked_add(next)?),
        };
        let ends_before = |start: u64, count: u32, len_bytes: u64, end: u64| {
            start.checked_add(u64::from(count) * len_bytes).is_some_and(|own_end| own_end <= end)
        };
        let is_inside = ends_before(offset, 1, INFO_LEN_BYTES, data)
            && ends_before(data, all, u64::from(place_len_bytes), map)
            && ends_before(map, seen, 4, log)
            && ends_before(log, free, LOG_STRIDE, copy)
            && ends_before(copy, 1, INFO_LEN_BYTES, next.unwrap_or(len_bytes))
            && next.is_none_or(|next| ends_before(next, 1, INFO_LEN_BYTES, len_bytes));
        let counts = u64::from(seen) + u64::from(free) == u64::from(all) && u64::from(all) <= len_bytes;
        let is_block = block_len_bytes > 0 && block_len_bytes <= place_len_bytes;
        (is_inside && counts && is_block).then_some(Self { block_len_bytes, seen, all, free, map, log, copy, next })
    }

    /// Checks that every place belongs to exactly one block: in the map, or free in the log.
    fn blocks_defect(&self, medium: &impl Medium) -> Result<Option<&'static str>, PoolSetError> {
        let (mut used, mut free) = (Places::new(self.all), Places::new(self.all));
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut block = 0;
        while block < self.seen {
            let count = (self.seen - block).min(CHUNK_BYTES as u32 / 4);
            let bytes = &mut chunk[..count as usize * 4];
            medium.read(self.map + u64::from(block) * 4, bytes)?;
            for (index, entry) in words(bytes).enumerate() {
                match used.add(place(block + index as u32, u32::from_le_bytes(entry))) {
                    Some(true) => {}
                    Some(false) => return Ok(Some("two entries of its block map (BTT map) name the same block")),
                    None => return Ok(Some("an entry of its block map (BTT map) names no block")),
                }
            }
            block += count;
        }
        for index in 0..self.free {
            let mut pair = [0; 32];
            medium.read(self.log + u64::from(index) * LOG_STRIDE, &mut pair)?;
            if !self.is_sound_record(medium, &pair, &mut used, &mut free)? {
                return Ok(Some("a record of its write log (BTT flog) is damaged"));
            }
        }
        let is_whole = (0..self.all).all(|place| used.has(place));
        Ok((!is_whole).then_some("a block of it is neither mapped nor free (BTT map, flog)"))
    }

    /// Whether the newer record of a pair names a free block. An interrupted write is completed by the next opening.
    fn is_sound_record(
        &self,
        medium: &impl Medium,
        pair: &[u8; 32],
        used: &mut Places,
        free: &mut Places,
    ) -> Result<bool, PoolSetError> {
        let [one, other] = [0, 16].map(|at| [0, 4, 8, 12].map(|field| word(pair, at + field)));
        let is_next = |seq: u32, next: u32| matches!((seq, next), (1, 2) | (2, 3) | (3, 1));
        let is_first = match (one[3], other[3]) {
            (1..=3, 0) => true,
            (0, 1..=3) => false,
            (one, other) if is_next(one, other) => false,
            (one, other) if is_next(other, one) => true,
            _ => return Ok(false),
        };
        let [block, old, new, sequence] = if is_first { one } else { other };
        let (old, new) = (old & PLACE_MASK, new & PLACE_MASK);
        if block >= self.seen || old >= self.all || new >= self.all || free.has(old) {
            return Ok(false);
        }
        free.add(old);
        if used.has(old) {
            // The map still has the old place.
            return Ok(self.place_of(medium, block)? == old && used.add(new) == Some(true));
        }
        used.add(old);
        // After another lane's later write the map is newer; a pair that was never written has only its first record.
        Ok(old != new || (is_first && sequence == 1 && other == [0; 4]))
    }

    fn place_of(&self, medium: &impl Medium, block: u32) -> Result<u32, PoolSetError> {
        let mut entry = [0; 4];
        medium.read(self.map + u64::from(block) * 4, &mut entry)?;
        Ok(place(block, u32::from_le_bytes(entry)))
    }
}

/// Where a block is by its entry of the map.
fn place(block: u32, entry: u32) -> u32 {
    if entry & !PLACE_MASK == 0 { block } else { entry & PLACE_MASK }
}

/// A set of places, 0 to a count.
struct Places {
    bits: Vec<u64>,
    count: u32,
}

impl Places {
    fn new(count: u32) -> Self {
        Self { bits: vec![0; count.div_ceil(64) as usize], count }
    }

    fn has(&self, place: u32) -> bool {
        self.bits.get(place as usize / 64).is_some_and(|bits| bits >> (place % 64) & 1 == 1)
    }

    /// Whether it is new; `None` for one behind the end.
    fn add(&mut self, place: u32) -> Option<bool> {
        let is_new = !self.has(place);
        let bits = self.bits.get_mut(place as usize / 64).filter(|_| place < self.count)?;
        *bits |= 1 << (place % 64);
        Some(is_new)
    }
}
