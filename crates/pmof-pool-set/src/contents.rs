//! Whether the bytes behind a replica's header can be a pool of its kind. Check, sync and transform trust a replica by this.

use std::{ops::Range, sync::Arc};

use pmof_mem::{Medium as _, Memory};

use crate::{
    AccessError, Behind, BehindContents, Contents, HEADER_LEN_BYTES, PoolKind, ReplicaAccess, Window, btt,
    contents_in_common,
    format::{
        DATA, DESCRIPTOR, HEAP, HEAP_HEADER_LEN_BYTES, HEAP_SIGNATURE, LANE_COUNT, OBJ_DESCRIPTOR_LEN_BYTES,
        OBJ_HEAP_LEN, OBJ_ROOT, is_sealed,
    },
    heap,
    part::page_bytes,
    windows, zero_digests,
};

#[cfg(test)]
mod tests;

/// The state of a replica's contents, judged by their beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentsState {
    /// They begin like those of a pool of its kind; for kinds that PMDK has no library for: something was written.
    Sound,
    /// All zeros: the pool was created, as by a client of librpmem, and never written. It can be opened, but is not a source if another
    /// replica holds data.
    Empty,
    /// What is wrong.
    Damaged(&'static str),
}

/// The message about a replica that is [empty](ContentsState::Empty).
pub const EMPTY: &str = "it is empty: it was created and never written";

/// Where in the descriptor of an obj pool the lanes begin, how many there are, and where the heap begins.
const OBJ_LAYOUT: usize = 1024;
const OBJ_ROOT_LEN_BYTES: usize = 32;

/// The state of a replica's contents, local or remote. Block tables are checked only if they are mapped.
///
/// # Errors
/// Those of reading it.
pub fn contents_state(kind: Option<PoolKind>, replica: &mut dyn ReplicaAccess) -> Result<ContentsState, AccessError> {
    if let Some(memory) = replica.memory() {
        return memory_state(kind, &memory);
    }
    let len_bytes = replica.len_bytes();
    state_of(kind, replica.contents(), len_bytes)
}

/// The same for a mapped replica, header first.
///
/// # Errors
/// Those of reading it.
pub fn memory_state(kind: Option<PoolKind>, memory: &Arc<Memory>) -> Result<ContentsState, AccessError> {
    match state_of(kind, &mut Arc::clone(memory), memory.len_bytes())? {
        ContentsState::Sound if kind == Some(PoolKind::Blk) => {
            let mut block_len_bytes = [0; 4];
            memory.read(DESCRIPTOR, &mut block_len_bytes)?;
            let block_len_bytes = u32::from_le_bytes(block_len_bytes);
            let defect = btt::defect(&**memory, DATA, memory.len_bytes(), Some(block_len_bytes))?;
            Ok(defect.map_or(ContentsState::Sound, ContentsState::Damaged))
        }
        state => Ok(state),
    }
}

/// The state of `contents` of `len_bytes`, without block tables. For log and block pools zeros are damage: both begin with a
/// descriptor, which libpmemlog and libpmemblk write before the header, and clients of librpmem do not create them.
///
/// # Errors
/// Those of reading it.
pub fn state_of(
    kind: Option<PoolKind>,
    contents: &mut dyn Contents,
    len_bytes: u64,
) -> Result<ContentsState, AccessError> {
    let defect = match kind {
        None if is_zero(kind, contents, len_bytes)? => return Ok(ContentsState::Empty),
        None => None,
        Some(PoolKind::Obj) if len_bytes < HEAP + HEAP_HEADER_LEN_BYTES as u64 => {
            if is_zero(None, contents, len_bytes)? {
                return Ok(ContentsState::Empty);
            }
            Some("it is shorter than the shortest object pool")
        }
        Some(PoolKind::Obj) => return obj_state(contents, len_bytes),
        Some(PoolKind::Log) => log_defect(contents, len_bytes)?,
        Some(PoolKind::Blk) => {
            let block_len_bytes: [u8; 4] = read(contents, DESCRIPTOR)?;
            (block_len_bytes == [0; 4]).then_some("its blocks have no bytes")
        }
    };
    Ok(defect.map_or(ContentsState::Sound, ContentsState::Damaged))
}

/// How many pages of a range are not zero: exact below `enough`, where it stops counting.
pub(crate) fn data_pages(contents: &mut dyn Contents, range: Range<u64>, enough: usize) -> Result<usize, AccessError> {
    let (mut count, mut bytes) = (0, Vec::new());
    let data = contents.data_ranges(range.clone())?;
    for Window { range: window, .. } in windows(range, &[data]) {
        let len_bytes = window.end - window.start;
        if contents.digests(window.clone())? == zero_digests(len_bytes) {
            continue;
        }
        if enough <= 1 {
            return Ok(1);
        }
        bytes.resize(len_bytes as usize, 0);
        contents.read(window.start, &mut bytes)?;
        count += bytes.chunks(page_bytes() as usize).filter(|page| page.iter().any(|byte| *byte != 0)).count();
        if count >= enough {
            return Ok(enough);
        }
    }
    Ok(count)
}

/// Whether all that replicas have in common is zero. Stops at the first block that is not.
fn is_zero(kind: Option<PoolKind>, contents: &mut dyn Contents, len_bytes: u64) -> Result<bool, AccessError> {
    for range in contents_in_common(kind, len_bytes) {
        if data_pages(contents, range, 1)? > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where the contents of a log lie, from the pool's first byte, as the descriptor of a pool of [`PoolKind::Log`] says. It is not
/// checked: see [`contents_state`].
///
/// # Errors
/// Those of reading it.
pub fn log_range(contents: &mut dyn Contents) -> Result<Range<u64>, AccessError> {
    let [start, _, next] = log_descriptor(contents)?;
    Ok(start..next)
}

/// Where a log begins, where it ends, and where the next bytes are appended.
fn log_descriptor(contents: &mut dyn Contents) -> Result<[u64; 3], AccessError> {
    let fields: [u8; 24] = read(contents, DESCRIPTOR)?;
    Ok([0, 8, 16].map(|at| number(&fields[at..at + 8])))
}

fn log_defect(contents: &mut dyn Contents, len_bytes: u64) -> Result<Option<&'static str>, AccessError> {
    let [start, end, next] = log_descriptor(contents)?;
    // A pool is whole pages.
    Ok(if start != DATA || end != len_bytes - len_bytes % HEADER_LEN_BYTES as u64 {
        Some("the log does not take up the pool: its start or its end is wrong")
    } else if next < start || next > end {
        Some("the end of the log's contents does not lie inside the log")
    } else {
        None
    })
}

fn obj_state(contents: &mut dyn Contents, len_bytes: u64) -> Result<ContentsState, AccessError> {
    let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let descriptor: [u8; OBJ_DESCRIPTOR_LEN_BYTES] = read(contents, DESCRIPTOR)?;
    let head: [u8; HEAP_HEADER_LEN_BYTES] = read(contents, HEAP)?;
    // The checksum of zeros is zero.
    let defect = match (is_blank(&descriptor), is_blank(&head)) {
        (true, true) if is_zero(Some(PoolKind::Obj), contents, len_bytes)? => return Ok(ContentsState::Empty),
        (true, true) => Some("its descriptor and its heap's head are zero, but the rest of it is not"),
        (true, false) => Some("its descriptor is zero"),
        (false, true) => Some("its heap's head is zero"),
        (false, false) => obj_defect(contents, len_bytes, &descriptor, &head)?,
    };
    Ok(defect.map_or(ContentsState::Sound, ContentsState::Damaged))
}

/// What `pmemobj_open` of PMDK 1.12 refuses, and values with which it would overwrite other data or crash.
fn obj_defect(
    contents: &mut dyn Contents,
    len_bytes: u64,
    descriptor: &[u8],
    head: &[u8],
) -> Result<Option<&'static str>, AccessError> {
    let root: [u8; OBJ_ROOT_LEN_BYTES] = read(contents, OBJ_ROOT)?;
    let heap_len_bytes = number(&read::<8>(contents, OBJ_HEAP_LEN)?);
    let [lanes, lane_count, heap_start] = [0, 8, 16].map(|at| number(&descriptor[OBJ_LAYOUT + at..][..8]));
    let [root_offset, openings] = [0, 8].map(|at| number(&root[at..at + 8]));
    let heap_len_bytes_min = PoolKind::Obj.len_bytes_min() - HEAP;
    Ok(if !is_sealed(descriptor) {
        Some("the checksum of its descriptor is wrong")
    } else if (lanes, lane_count, heap_start) != (DATA, LANE_COUNT, HEAP) {
        Some("its lanes or its heap are not where those of an object pool are")
    } else if heap_len_bytes > len_bytes.saturating_sub(HEAP) {
        Some("its heap is longer than the pool")
    } else if heap_len_bytes < heap_len_bytes_min {
        Some("its heap is shorter than that of the shortest pool")
    } else if !is_sealed(head) {
        Some("the checksum of its heap's head is wrong")
    } else if !head.starts_with(HEAP_SIGNATURE) {
        Some("its heap's head has no signature")
    } else if openings % 2 != 0 {
        Some("the count of its openings is odd: it was being opened when its program died")
    } else {
        heap::zones_defect(heap_len_bytes, root_offset, |offset, into| contents.read(offset, into))?
    })
}

fn read<const N: usize>(contents: &mut dyn Contents, offset: u64) -> Result<[u8; N], AccessError> {
    let mut bytes = [0; N];
    contents.read(offset, &mut bytes)?;
    Ok(bytes)
}

/// A little-endian number of at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The pool behind a first header, judged without the header; `None` if nothing shows that it is a pool.
pub fn behind_header(memory: &Arc<Memory>) -> Option<Behind> {
    let mut signature = [0; 8];
    memory.read(0, &mut signature).ok()?;
    let contents = |kind| match memory_state(Some(kind), memory) {
        Ok(ContentsState::Sound) => BehindContents::Intact,
        Ok(ContentsState::Empty) => BehindContents::Empty,
        Ok(ContentsState::Damaged(defect)) => BehindContents::Defect(defect),
        Err(_) => BehindContents::Unreadable,
    };
    // Only object pools have checksums that rule out a coincidence.
    let by_contents = || Some(PoolKind::Obj).filter(|kind| contents(*kind) == BehindContents::Intact);
    let kind = PoolKind::of_signature(&signature).or_else(by_contents)?;
    Some(Behind { kind, contents: contents(kind) })
}
