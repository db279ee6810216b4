//! What of an obj pool's heap is in use: libpmemobj keeps what it likes in space that is not, in the first replica only.
//!
//! The heap is made of zones, each of a header of 64 bytes, 65528 chunk headers of 8 bytes, and as many chunks of 256 KiB.
//! A chunk header has a type (2 bytes), flags (2) and a count of chunks (4) that it stands for; those that follow in that
//! count are not kept up to date. A run is chunks that are cut into blocks of one length, with a bit for each in use.

use std::ops::{Range, RangeInclusive};

use pmof_mem::Medium;

use crate::{
    PoolSetError,
    format::{CHUNK_LEN_BYTES, CHUNKS_OF_A_ZONE, HEAP, HEAP_HEADER_LEN_BYTES, OBJ_HEAP_LEN},
};

const ZONE_HEADER_LEN_BYTES: u64 = 64;
const CHUNK_HEADER_LEN_BYTES: u64 = 8;
const ZONE_MAGIC: u32 = 0xc3f0_a2d2;
/// Zone headers and chunk headers together.
const ZONE_META_LEN_BYTES: u64 = ZONE_HEADER_LEN_BYTES + CHUNKS_OF_A_ZONE * CHUNK_HEADER_LEN_BYTES;
const ZONE_LEN_BYTES: u64 = ZONE_META_LEN_BYTES + CHUNKS_OF_A_ZONE * CHUNK_LEN_BYTES;
const ZONES: u64 = HEAP + HEAP_HEADER_LEN_BYTES as u64;

/// Of chunk headers: footer, free, used, run, run's data.
const KINDS: RangeInclusive<u16> = 1..=5;
const FLAGS: u16 = 15;
const TYPE_FREE: u16 = 2;
const TYPE_RUN: u16 = 4;
const FLAG_ALIGNED: u16 = 4;
const FLAG_FLEXIBLE_BITMAP: u16 = 8;

/// The head of a run: length of a block, alignment.
const RUN_HEADER_LEN_BYTES: u64 = 16;
/// Words of the bitmap of runs whose bitmap is not fitted to them.
const FIXED_BITMAP_WORDS: u64 = 38;

/// Ranges of the pool that are not in use, in bytes, sorted and apart; all else is. A heap that cannot be read as one, such as
/// that of a pool which was never opened, is in use as a whole.
pub(crate) fn unused(medium: &impl Medium, len_bytes: u64) -> Result<Vec<Range<u64>>, PoolSetError> {
    let mut found = Found(Vec::new());
    let heap_len_bytes = u64::from_le_bytes(read(medium, OBJ_HEAP_LEN)?);
    let end = HEAP.saturating_add(heap_len_bytes).min(len_bytes);
    let mut zone = ZONES;
    while zone + ZONE_META_LEN_BYTES + CHUNK_LEN_BYTES <= end {
        let header: [u8; 8] = read(medium, zone)?;
        let [magic, count] = [0, 4].map(|at| u32_at(header, at));
        let room = ((end - zone - ZONE_META_LEN_BYTES) / CHUNK_LEN_BYTES).min(CHUNKS_OF_A_ZONE);
        if magic == ZONE_MAGIC && u64::from(count) <= room {
            of_zone(medium, zone, u64::from(count), &mut found)?;
        }
        zone += ZONE_LEN_BYTES;
    }
    let mut ranges = found.0;
    ranges.sort_by_key(|range| range.start);
    Ok(ranges)
}

/// What is wrong with the zones, if anything, as `pmemobj_open` of PMDK 1.12 looks for it: each begins with a mark, or with zero where
/// nothing was ever allocated, and its chunks fill it. `read` copies bytes out.
pub(crate) fn zones_defect<E>(
    heap_len_bytes: u64,
    root_offset: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Option<&'static str>, E> {
    let end = HEAP.saturating_add(heap_len_bytes);
    let mut zone = ZONES;
    while zone + ZONE_META_LEN_BYTES + CHUNK_LEN_BYTES <= end {
        let mut header = [0; 8];
        read(zone, &mut header)?;
        let [magic, count] = [0, 4].map(|at| u32_at(header, at));
        let room = ((end - zone - ZONE_META_LEN_BYTES) / CHUNK_LEN_BYTES).min(CHUNKS_OF_A_ZONE);
        match magic {
            ZONE_MAGIC if count == 0 || u64::from(count) > room => {
                return Ok(Some("the length of a zone of its heap cannot be"));
            }
            ZONE_MAGIC => {
                let mut headers = vec![0; count as usize * CHUNK_HEADER_LEN_BYTES as usize];
                read(zone + ZONE_HEADER_LEN_BYTES, &mut headers)?;
                if let Some(defect) = chunks_defect(&headers) {
                    return Ok(Some(defect));
                }
            }
            0 if (zone..zone + ZONE_LEN_BYTES).contains(&root_offset) => {
                return Ok(Some("the zone of its heap that has its root object is blank"));
            }
            0 => {}
            _ => return Ok(Some("the head of a zone of its heap is damaged")),
        }
        zone += ZONE_LEN_BYTES;
    }
    Ok(None)
}

fn chunks_defect(headers: &[u8]) -> Option<&'static str> {
    let headers = headers.as_chunks::<{ CHUNK_HEADER_LEN_BYTES as usize }>().0;
    let mut left = headers;
    while let Some(header) = left.first() {
        let [kind, flags] = [0, 2].map(|at| u16::from_le_bytes([header[at], header[at + 1]]));
        if !KINDS.contains(&kind) || flags & !FLAGS != 0 {
            return Some("the head of a chunk of its heap is damaged");
        }
        let count = u32_at(*header, 4) as usize;
        left = match left.split_at_checked(count) {
            Some((_, behind)) if count > 0 => behind,
            _ => return Some("the chunks of a zone of its heap do not fill it"),
        };
    }
    None
}

fn u32_at(bytes: [u8; 8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Ranges in the order they were found in; one that continues the last one makes it longer.
struct Found(Vec<Range<u64>>);

impl Found {
    fn add(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.0.push(range),
        }
    }
}

fn of_zone(medium: &impl Medium, zone: u64, count: u64, found: &mut Found) -> Result<(), PoolSetError> {
    let header = |chunk: u64| zone + ZONE_HEADER_LEN_BYTES + chunk * CHUNK_HEADER_LEN_BYTES;
    let mut chunk = 0;
    while chunk < count {
        let bytes: [u8; 8] = read(medium, header(chunk))?;
        let kind = u16::from_le_bytes([bytes[0], bytes[1]]);
        let flags = u16::from_le_bytes([bytes[2], bytes[3]]);
        let chunks = u64::from(u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
        if chunks == 0 || chunks > count - chunk {
            // Not a heap from here on: all of it counts.
            return Ok(());
        }
        found.add(header(chunk + 1)..header(chunk + chunks));
        let start = zone + ZONE_META_LEN_BYTES + chunk * CHUNK_LEN_BYTES;
        match kind {
            TYPE_FREE => found.add(start..start + chunks * CHUNK_LEN_BYTES),
            TYPE_RUN => of_run(medium, start, chunks, flags, found)?,
            _ => {}
        }
        chunk += chunks;
    }
    Ok(())
}

fn of_run(medium: &impl Medium, start: u64, chunks: u64, flags: u16, found: &mut Found) -> Result<(), PoolSetError> {
    let block_len_bytes = u64::from_le_bytes(read(medium, start)?);
    let content = start + RUN_HEADER_LEN_BYTES;
    let content_len_bytes = chunks * CHUNK_LEN_BYTES - RUN_HEADER_LEN_BYTES;
    let is_aligned = flags & FLAG_ALIGNED != 0;
    // Aligned runs begin their blocks somewhere else: they count as a whole, as do those that make no sense.
    if is_aligned || block_len_bytes == 0 || block_len_bytes > content_len_bytes {
        return Ok(());
    }
    let words = if flags & FLAG_FLEXIBLE_BITMAP == 0 {
        FIXED_BITMAP_WORDS
    } else {
        // As many as all blocks need, and to the end of a cache line, of which the run's head is the first two words.
        let words = (content_len_bytes / block_len_bytes).div_ceil(64);
        (words + 2).next_multiple_of(8) - 2
    };
    let blocks = ((content_len_bytes - words * 8) / block_len_bytes).min(words * 64);
    let mut bitmap = vec![0; words as usize * 8];
    medium.read(content, &mut bitmap)?;
    let first = content + words * 8;
    for block in 0..blocks {
        if bitmap[block as usize / 8] & (1 << (block % 8)) == 0 {
            let place = first + block * block_len_bytes;
            found.add(place..place + block_len_bytes);
        }
    }
    let end = start + chunks * CHUNK_LEN_BYTES;
    found.add(first + blocks * block_len_bytes..end);
    Ok(())
}

fn read<const N: usize>(medium: &impl Medium, offset: u64) -> Result<[u8; N], PoolSetError> {
    let mut bytes = [0; N];
    medium.read(offset, &mut bytes)?;
    Ok(bytes)
}
