//! What of an obj pool's heap is in use: libpmemobj keeps what it likes in space that is not, in the first replica only.
//!
//! The heap is made of zones, each of a header of 64 bytes, 65528 chunk headers of 8 bytes, and as many chunks of 256 KiB.
//! A chunk header has a type (2 bytes), flags (2) and a count of chunks (4) that it covers. A run is chunks that are cut into blocks of
//! one length, with a bit for each in use; the headers of its second and later chunks have the type of a run's data and the distance to
//! its first chunk, by which libpmemobj finds the run of an object. The headers of other chunks behind the first are not kept up to date:
//! libpmemobj writes the last one anew when it first looks at the zone.

use std::ops::{Range, RangeInclusive};

use pmof_mem::Medium;

use crate::{
    PoolSetError,
    format::{CHUNK_LEN_BYTES, CHUNKS_OF_A_ZONE, HEAP, HEAP_HEADER_LEN_BYTES, OBJ_HEAP_LEN},
    header::array,
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
const TYPE_USED: u16 = 3;
const TYPE_RUN: u16 = 4;
const TYPE_RUN_DATA: u16 = 5;
const FLAG_COMPACT_OBJECT_HEADER: u16 = 1;
const FLAG_NO_OBJECT_HEADER: u16 = 2;
const FLAG_ALIGNED: u16 = 4;
const FLAG_FLEXIBLE_BITMAP: u16 = 8;

/// What is looked at of a run or of an object: its first two words. The length of an object is the second word of its header, or the low
/// 48 bits of the first of a compact one.
const OBJECT_HEAD_LEN_BYTES: usize = 16;
const OBJECT_LEN_MASK: u64 = (1 << 48) - 1;
/// The head of a run: length of a block, alignment.
const RUN_HEADER_LEN_BYTES: u64 = 16;
/// Where the first block of an aligned run begins depends on where the pool is mapped, which is known to whole pages.
const RUN_ALIGNMENT_MAX_BYTES: u64 = 4096;
const COMPACT_OBJECT_HEADER_LEN_BYTES: u64 = 16;
const OBJECT_HEADER_LEN_BYTES: u64 = 64;
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

/// What is wrong with the zones, if anything: each begins with a mark, or with zero where nothing was ever allocated, and its chunks fill it,
/// as `pmemobj_open` of PMDK 1.12 looks for it; and the chunks of a run lead to its first one, which that does not look for. `read` copies bytes out.
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
    let mut chunks = Chunks::of(headers);
    let is_damaged = |chunk: Chunk| {
        !KINDS.contains(&chunk.kind) || chunk.flags & !FLAGS != 0 || !chunk.has_its_data_headers(headers)
    };
    if chunks.by_ref().any(is_damaged) {
        return Some("the head of a chunk of its heap is damaged");
    }
    (!chunks.is_at_end()).then_some("the chunks of a zone of its heap do not fill it")
}

/// What the chunk headers of a heap say of a range of the pool.
pub(crate) struct ChunksIn {
    range: Range<u64>,
    /// Those that have bytes in the range, with the places of their zones.
    chunks: Vec<(u64, Chunk)>,
    /// No zone of the range is without them.
    is_all: bool,
}

impl ChunksIn {
    /// `read` copies bytes out.
    pub(crate) fn read<E>(
        heap_len_bytes: u64,
        range: &Range<u64>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let end = HEAP.saturating_add(heap_len_bytes).min(range.end);
        let mut found = Self { range: range.start..end, chunks: Vec::new(), is_all: true };
        let mut zone = ZONES;
        while zone + ZONE_META_LEN_BYTES + CHUNK_LEN_BYTES <= end {
            if range.start < zone + ZONE_LEN_BYTES {
                let mut header = [0; 8];
                read(zone, &mut header)?;
                let count = u64::from(u32_at(header, 4));
                let is_zone = u32_at(header, 0) == ZONE_MAGIC && count <= CHUNKS_OF_A_ZONE;
                let mut headers = vec![0; if is_zone { (count * CHUNK_HEADER_LEN_BYTES) as usize } else { 0 }];
                read(zone + ZONE_HEADER_LEN_BYTES, &mut headers)?;
                let mut chunks = Chunks::of(&headers);
                let is_inside = |chunk: &Chunk| {
                    let place = chunk.place(zone);
                    place.start < end && range.start < place.end
                };
                found.chunks.extend(chunks.by_ref().filter(is_inside).map(|chunk| (zone, chunk)));
                found.is_all &= is_zone && chunks.is_at_end();
            }
            zone += ZONE_LEN_BYTES;
        }
        Ok(found)
    }

    /// Whether something in the range is in use; `None` where headers are missing, as in a heap in which nothing was ever allocated, or which is none.
    pub(crate) fn are_in_use(&self) -> Option<bool> {
        self.is_all.then(|| self.chunks.iter().any(|(_, chunk)| matches!(chunk.kind, TYPE_USED | TYPE_RUN)))
    }

    /// The first place in the range where something is in use and nothing of it is there: a chunk, or an object of a run that begins before the
    /// range, whose header cannot be one. What lies there is not the pool's.
    pub(crate) fn foreign_place<E>(
        &self,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        for (zone, chunk) in &self.chunks {
            if let Some(place) = chunk.foreign_place(*zone, &self.range, &mut read)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

/// What a chunk header says.
struct Chunk {
    /// The first chunk that it covers, in its zone.
    index: u64,
    /// How many it covers.
    count: u64,
    kind: u16,
    flags: u16,
}

impl Chunk {
    fn place(&self, zone: u64) -> Range<u64> {
        let start = zone + ZONE_META_LEN_BYTES + self.index * CHUNK_LEN_BYTES;
        start..start + self.count * CHUNK_LEN_BYTES
    }

    /// Whether the headers of a run's second and later chunks lead to its first; of other chunks they say nothing. `headers`: the zone's.
    fn has_its_data_headers(&self, headers: &[u8]) -> bool {
        let leads = |distance: u64| {
            let at = ((self.index + distance) * CHUNK_HEADER_LEN_BYTES) as usize;
            headers.get(at..).and_then(<[u8]>::first_chunk).is_some_and(|header: &[u8; 8]| {
                u16::from_le_bytes([header[0], header[1]]) == TYPE_RUN_DATA && u64::from(u32_at(*header, 4)) == distance
            })
        };
        self.kind != TYPE_RUN || (1..self.count).all(leads)
    }

    /// The first place of it in a range where its contents cannot be what the header says.
    fn foreign_place<E>(
        &self,
        zone: u64,
        within: &Range<u64>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let Range { start, .. } = self.place(zone);
        if start + OBJECT_HEAD_LEN_BYTES as u64 > within.end {
            return Ok(None);
        }
        if start >= within.start {
            let mut head = [0; OBJECT_HEAD_LEN_BYTES];
            read(start, &mut head)?;
            return Ok((!self.can_begin_with(head)).then_some(start));
        }
        let run = if self.kind == TYPE_RUN { Run::read(start, self.count, self.flags, &mut read)? } else { None };
        run.map_or(Ok(None), |run| run.foreign_object(self.flags, within, read))
    }

    /// Whether the head of a run gives blocks that fit into it, and that of an object a length that does. Chunks that are not in use begin with anything.
    fn can_begin_with(&self, head: [u8; OBJECT_HEAD_LEN_BYTES]) -> bool {
        let [block_len_bytes, alignment] = words(head);
        let room = self.count * CHUNK_LEN_BYTES;
        match self.kind {
            TYPE_RUN => {
                let is_aligned = alignment == 0 || alignment.is_power_of_two();
                is_aligned && (1..=room - RUN_HEADER_LEN_BYTES).contains(&block_len_bytes)
            }
            TYPE_USED => object_len_bytes(head, self.flags).is_none_or(|len_bytes| (1..=room).contains(&len_bytes)),
            _ => true,
        }
    }
}

/// The chunk headers of a zone that count, until one whose count cannot be: there it is not a heap any more.
struct Chunks<'h> {
    headers: &'h [u8],
    count: usize,
    at: usize,
}

impl<'h> Chunks<'h> {
    fn of(headers: &'h [u8]) -> Self {
        Self { headers, count: headers.len() / CHUNK_HEADER_LEN_BYTES as usize, at: 0 }
    }

    fn is_at_end(&self) -> bool {
        self.at == self.count
    }
}

impl Iterator for Chunks<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        let header = *self.headers.get(self.at * CHUNK_HEADER_LEN_BYTES as usize..)?.first_chunk()?;
        let [kind, flags] = [0, 2].map(|at| u16::from_le_bytes([header[at], header[at + 1]]));
        let count = u32_at(header, 4);
        if count == 0 || count as usize > self.count - self.at {
            return None;
        }
        let index = self.at as u64;
        self.at += count as usize;
        Some(Chunk { index, count: count.into(), kind, flags })
    }
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
    let mut headers = vec![0; (count * CHUNK_HEADER_LEN_BYTES) as usize];
    medium.read(header(0), &mut headers)?;
    for Chunk { index, count, kind, flags } in Chunks::of(&headers) {
        if kind != TYPE_RUN {
            found.add(header(index + 1)..header(index + count));
        }
        let start = zone + ZONE_META_LEN_BYTES + index * CHUNK_LEN_BYTES;
        match kind {
            TYPE_FREE => found.add(start..start + count * CHUNK_LEN_BYTES),
            TYPE_RUN => of_run(medium, start, count, flags, found)?,
            _ => {}
        }
    }
    Ok(())
}

fn of_run(medium: &impl Medium, start: u64, chunks: u64, flags: u16, found: &mut Found) -> Result<(), PoolSetError> {
    // Those that make no sense count as a whole.
    let Some(run) = Run::read(start, chunks, flags, |offset, into| medium.read(offset, into))? else { return Ok(()) };
    // What lies between the bitmap and the first block of an aligned run.
    found.add(run.blocks_start..run.place(0));
    for block in (0..run.blocks).filter(|block| !run.is_used(*block)) {
        found.add(run.place(block)..run.place(block + 1));
    }
    found.add(run.place(run.blocks)..start + chunks * CHUNK_LEN_BYTES);
    Ok(())
}

/// The blocks of a run.
struct Run {
    block_len_bytes: u64,
    blocks: u64,
    /// Where the bitmap ends.
    blocks_start: u64,
    /// Where the first one is.
    first: u64,
    bitmap: Vec<u8>,
}

impl Run {
    /// `None` for runs that make no sense, and for those that are aligned to more than a page.
    fn read<E>(
        start: u64,
        chunks: u64,
        flags: u16,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        let mut head = [0; RUN_HEADER_LEN_BYTES as usize];
        read(start, &mut head)?;
        let [block_len_bytes, alignment] = words(head);
        let content = start + RUN_HEADER_LEN_BYTES;
        let content_len_bytes = chunks * CHUNK_LEN_BYTES - RUN_HEADER_LEN_BYTES;
        let is_known = alignment == 0 || alignment.is_power_of_two() && alignment <= RUN_ALIGNMENT_MAX_BYTES;
        if !is_known || block_len_bytes == 0 || block_len_bytes > content_len_bytes {
            return Ok(None);
        }
        let words = if flags & FLAG_FLEXIBLE_BITMAP == 0 {
            FIXED_BITMAP_WORDS
        } else {
            // As many as all blocks need, and to the end of a cache line, of which the run's head is the first two words.
            let words = (content_len_bytes / block_len_bytes).div_ceil(64);
            (words + 2).next_multiple_of(8) - 2
        };
        // With an alignment a block is given up for it.
        let blocks = ((content_len_bytes - words * 8) / block_len_bytes).min(words * 64);
        let blocks = blocks.saturating_sub(u64::from(alignment != 0));
        let mut bitmap = vec![0; words as usize * 8];
        read(content, &mut bitmap)?;
        let blocks_start = content + words * 8;
        let mut first = blocks_start;
        if flags & FLAG_ALIGNED != 0 && alignment != 0 {
            // What is aligned is the object behind its header.
            let header_len_bytes = object_header_len_bytes(flags);
            first = (first + header_len_bytes).next_multiple_of(alignment) - header_len_bytes;
        }
        Ok(Some(Self { block_len_bytes, blocks, blocks_start, first, bitmap }))
    }

    fn is_used(&self, block: u64) -> bool {
        self.bitmap[block as usize / 8] & (1 << (block % 8)) != 0
    }

    fn place(&self, block: u64) -> u64 {
        self.first + block * self.block_len_bytes
    }

    /// The first object in a range whose header cannot be one. An object is one block or several, of which only the
    /// first has a header, so that all of the run are looked at.
    fn foreign_object<E>(
        &self,
        flags: u16,
        within: &Range<u64>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<u64>, E> {
        let mut block = 0;
        while block < self.blocks && self.place(block) + OBJECT_HEAD_LEN_BYTES as u64 <= within.end {
            if !self.is_used(block) {
                block += 1;
                continue;
            }
            let mut head = [0; OBJECT_HEAD_LEN_BYTES];
            read(self.place(block), &mut head)?;
            let Some(len_bytes) = object_len_bytes(head, flags) else { return Ok(None) };
            let blocks = len_bytes.div_ceil(self.block_len_bytes);
            if blocks == 0 || blocks > self.blocks - block {
                return Ok(Some(self.place(block)).filter(|place| within.contains(place)));
            }
            block += blocks;
        }
        Ok(None)
    }
}

fn object_header_len_bytes(flags: u16) -> u64 {
    if flags & FLAG_NO_OBJECT_HEADER != 0 {
        0
    } else if flags & FLAG_COMPACT_OBJECT_HEADER != 0 {
        COMPACT_OBJECT_HEADER_LEN_BYTES
    } else {
        OBJECT_HEADER_LEN_BYTES
    }
}

/// How long an object is by its header; `None` where objects have none.
fn object_len_bytes(head: [u8; OBJECT_HEAD_LEN_BYTES], flags: u16) -> Option<u64> {
    let [first, second] = words(head);
    if flags & FLAG_NO_OBJECT_HEADER != 0 {
        return None;
    }
    Some(if flags & FLAG_COMPACT_OBJECT_HEADER != 0 { first & OBJECT_LEN_MASK } else { second })
}

fn words(head: [u8; OBJECT_HEAD_LEN_BYTES]) -> [u64; 2] {
    [0, 8].map(|at| u64::from_le_bytes(array(&head, at)))
}

fn read<const N: usize>(medium: &impl Medium, offset: u64) -> Result<[u8; N], PoolSetError> {
    let mut bytes = [0; N];
    medium.read(offset, &mut bytes)?;
    Ok(bytes)
}
