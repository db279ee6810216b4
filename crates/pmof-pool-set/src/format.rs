//! What a new pool of PMDK 1.12.1 holds behind its header, for each kind. Numbers are little-endian.
//!
//! | log, offset | length | field |
//! |---|---|---|
//! | 4096 | 8 | where the log begins: 8192 |
//! | 4104 | 8 | where it ends: the pool's length |
//! | 4112 | 8 | where the next bytes go: 8192 |
//!
//! | blk, offset | length | field |
//! |---|---|---|
//! | 4096 | 4 | length of a block |
//! | 4100 | 4 | 1 if all behind 8192 is zero, which the first write then makes a block table of |
//!
//! | obj, offset | length | field |
//! |---|---|---|
//! | 4096 | 1024 | name of the layout, ends in zero |
//! | 5120 | 8 | where the lanes begin: 8192 |
//! | 5128 | 8 | how many there are: 1024 |
//! | 5136 | 8 | where the heap begins: 0x302000 |
//! | 5144 | 992 | zero |
//! | 6136 | 8 | checksum of the 2048 bytes from 4096 on |
//! | 6144 | 8 + 8 + 8 + 8 | root object: its offset, the count of openings (2 each), its length, flags of conversion; all 0 |
//! | 6176 | 8 | length of the heap |
//! | 6184 | 504 | statistics, reserved; zero |
//! | 6688 | 1504 | what the running program keeps there: differs in every opening and every replica |
//! | 8192 | 1024 x 3072 | lanes, each three logs with a head of 64 bytes, which has the capacity at 16: 192, 640 and 2048 bytes |
//! | 0x302000 | 1024 | head of the heap: `MEMORY_HEAP_HDR`, version 1 at 16, chunk 262144 at 40, chunks of a zone 65528 at 48, checksum at 1016 |

use std::ops::Range;

use pmof_mem::Medium;

use crate::{
    PoolKind, PoolSetError, btt,
    header::{Checksummed, checksum},
};

/// The longest name of an obj pool's layout; one byte of 1024 is the zero behind it.
pub const LAYOUT_LEN_BYTES_MAX: usize = 1023;

pub(crate) const DESCRIPTOR: u64 = 4096;
pub(crate) const DATA: u64 = 8192;

pub(crate) const OBJ_DESCRIPTOR_LEN_BYTES: usize = 2048;
pub(crate) const OBJ_ROOT: u64 = DESCRIPTOR + OBJ_DESCRIPTOR_LEN_BYTES as u64;
/// What libpmemobj counts its openings in.
pub(crate) const OBJ_OPENINGS: Range<u64> = OBJ_ROOT + 8..OBJ_ROOT + 16;
pub(crate) const OBJ_HEAP_LEN: u64 = OBJ_ROOT + 32;
/// What no two replicas have in common.
pub(crate) const OBJ_RUNTIME: Range<u64> = OBJ_ROOT + 544..DATA;
pub(crate) const LANE_COUNT: u64 = 1024;
const LANE_LEN_BYTES: u64 = 3072;
/// The logs of a lane: where each begins, and what fits into it.
const LANE_LOGS: [(u64, u64); 3] = [(0, 192), (256, 640), (960, 2048)];
/// Where in the head of a log its capacity lies.
const LOG_CAPACITY: u64 = 16;
pub(crate) const HEAP: u64 = DATA + LANE_COUNT * LANE_LEN_BYTES;
pub(crate) const HEAP_SIGNATURE: &[u8; 16] = b"MEMORY_HEAP_HDR\0";
pub(crate) const HEAP_HEADER_LEN_BYTES: usize = 1024;
pub(crate) const CHUNK_LEN_BYTES: u64 = 256 << 10;
pub(crate) const CHUNKS_OF_A_ZONE: u64 = 65_528;

/// Zeros compared or written at a time.
const ZEROS_LEN_BYTES: usize = 1 << 20;

/// What a new pool is for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewPool {
    /// Objects, with a layout of this name: at most [`LAYOUT_LEN_BYTES_MAX`] bytes, none of them zero.
    Obj {
        /// The name, which programs give when they open the pool; may be empty.
        layout: String,
    },
    /// A log.
    Log,
    /// An array of blocks.
    Blk {
        /// Bytes of a block, at least 1.
        block_len_bytes: u32,
    },
}

impl NewPool {
    /// What kind of pool it becomes.
    pub fn kind(&self) -> PoolKind {
        match self {
            Self::Obj { .. } => PoolKind::Obj,
            Self::Log => PoolKind::Log,
            Self::Blk { .. } => PoolKind::Blk,
        }
    }

    /// Fails for names and lengths that cannot be.
    pub(crate) fn check(&self) -> Result<(), PoolSetError> {
        let (why, mend) = match self {
            Self::Obj { layout } if layout.len() > LAYOUT_LEN_BYTES_MAX => {
                ("the name of the layout is too long", "give it at most 1023 bytes")
            }
            Self::Obj { layout } if layout.contains('\0') => ("the name of the layout has a zero in it", "remove it"),
            Self::Blk { block_len_bytes: 0 } => ("blocks of no bytes cannot be", "give the length of a block"),
            _ => return Ok(()),
        };
        Err(PoolSetError::Unsupported { why, mend })
    }

    /// Fails where a pool of `len_bytes` has no room for what it is for.
    pub(crate) fn check_room(&self, len_bytes: u64) -> Result<(), PoolSetError> {
        match self {
            Self::Blk { block_len_bytes } if !btt::has_room(len_bytes.saturating_sub(DATA), *block_len_bytes) => {
                Err(PoolSetError::Unsupported {
                    why: "the blocks are longer than the pool has room for",
                    mend: "give a smaller block size, or make the parts larger",
                })
            }
            _ => Ok(()),
        }
    }

    /// Writes what the pool begins with. `len_bytes`: of the pool, which may be less than the medium's. What is behind the
    /// header must be zero.
    pub(crate) fn write(&self, medium: &impl Medium, len_bytes: u64) -> Result<(), PoolSetError> {
        match self {
            Self::Obj { layout } => write_obj(medium, len_bytes, layout)?,
            Self::Log => {
                let fields = [DATA, len_bytes, DATA].map(u64::to_le_bytes);
                medium.store(DESCRIPTOR, fields.as_flattened())?;
            }
            Self::Blk { block_len_bytes } => {
                let fields = [*block_len_bytes, 1].map(u32::to_le_bytes);
                medium.store(DESCRIPTOR, fields.as_flattened())?;
            }
        }
        let end = if self.kind() == PoolKind::Obj { HEAP + HEAP_HEADER_LEN_BYTES as u64 } else { DATA };
        medium.write_back(DESCRIPTOR, end - DESCRIPTOR)?;
        Ok(medium.fence()?)
    }
}

impl PoolKind {
    /// The shortest pool of this kind, in bytes, as PMDK has it.
    pub fn len_bytes_min(self) -> u64 {
        match self {
            Self::Obj => 8 << 20,
            Self::Log => 2 << 20,
            Self::Blk => (16 << 20) + DATA,
        }
    }

    /// Whether a pool of this kind can have more than one replica: PMDK replicates objects only.
    pub fn can_be_replicated(self) -> bool {
        self == Self::Obj
    }
}

/// What of a pool the replicas have in common, when the pool is closed: all behind the header, but what a running program
/// keeps in the descriptor.
pub fn contents_in_common(kind: Option<PoolKind>, len_bytes: u64) -> Vec<Range<u64>> {
    match kind {
        Some(PoolKind::Obj) => vec![DESCRIPTOR..OBJ_RUNTIME.start, OBJ_RUNTIME.end..len_bytes],
        _ => std::iter::once(DESCRIPTOR..len_bytes).collect(),
    }
}

/// What of a pool no two replicas have in common: what a running program keeps there for itself.
pub(crate) fn contents_apart(kind: Option<PoolKind>) -> Vec<Range<u64>> {
    (kind == Some(PoolKind::Obj)).then_some(OBJ_RUNTIME).into_iter().collect()
}

/// Makes the bytes of a range zero. What is zero is not written.
pub(crate) fn clear(medium: &impl Medium, range: Range<u64>) -> Result<(), PoolSetError> {
    let (mut found, zeros) = (vec![0; ZEROS_LEN_BYTES], vec![0; ZEROS_LEN_BYTES]);
    let mut offset = range.start;
    while offset < range.end {
        let len_bytes = (range.end - offset).min(ZEROS_LEN_BYTES as u64) as usize;
        medium.read(offset, &mut found[..len_bytes])?;
        if found[..len_bytes] != zeros[..len_bytes] {
            medium.store(offset, &zeros[..len_bytes])?;
            medium.write_back(offset, len_bytes as u64)?;
        }
        offset += len_bytes as u64;
    }
    Ok(())
}

/// The least length that a pool with these contents can have, as far as they say it; damage gives any number.
///
/// `number` reads 8 bytes at an offset.
pub(crate) fn len_bytes_needed<E>(kind: PoolKind, mut number: impl FnMut(u64) -> Result<u64, E>) -> Result<u64, E> {
    match kind {
        PoolKind::Obj => Ok(HEAP.saturating_add(number(OBJ_HEAP_LEN)?)),
        PoolKind::Log => number(DESCRIPTOR + 8),
        PoolKind::Blk => btt::end(DATA, number),
    }
}

fn write_obj(medium: &impl Medium, len_bytes: u64, layout: &str) -> Result<(), PoolSetError> {
    let mut descriptor = vec![0; OBJ_DESCRIPTOR_LEN_BYTES];
    descriptor[..layout.len()].copy_from_slice(layout.as_bytes());
    for (index, field) in [DATA, LANE_COUNT, HEAP].into_iter().enumerate() {
        descriptor[1024 + index * 8..][..8].copy_from_slice(&field.to_le_bytes());
    }
    seal(&mut descriptor);
    medium.store(DESCRIPTOR, &descriptor)?;
    medium.store(OBJ_HEAP_LEN, &(len_bytes - HEAP).to_le_bytes())?;
    for lane in 0..LANE_COUNT {
        for (log, capacity) in LANE_LOGS {
            medium.store(DATA + lane * LANE_LEN_BYTES + log + LOG_CAPACITY, &u64::to_le_bytes(capacity))?;
        }
    }
    let mut heap = vec![0; HEAP_HEADER_LEN_BYTES];
    heap[..16].copy_from_slice(HEAP_SIGNATURE);
    for (offset, field) in [(16, 1), (40, CHUNK_LEN_BYTES), (48, CHUNKS_OF_A_ZONE)] {
        heap[offset..offset + 8].copy_from_slice(&u64::to_le_bytes(field));
    }
    seal(&mut heap);
    Ok(medium.store(HEAP, &heap)?)
}

/// Puts the checksum of a structure into its last 8 bytes.
fn seal(bytes: &mut [u8]) {
    let field = bytes.len() - 8;
    let sum = checksum(bytes, &Checksummed { field, end: bytes.len() });
    bytes[field..].copy_from_slice(&sum.to_le_bytes());
}

pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    let mut sealed = bytes.to_vec();
    seal(&mut sealed);
    sealed == bytes
}

#[cfg(test)]
mod tests {
    use pmof_mem::{Medium as _, Memory};

    use super::{DESCRIPTOR, HEAP, NewPool, OBJ_HEAP_LEN, contents_in_common as common, is_sealed};
    use crate::{PoolKind, PoolSetError};

    const LEN_BYTES: u64 = 8 << 20;

    fn obj() -> Memory {
        let memory = Memory::anonymous(LEN_BYTES).unwrap();
        NewPool::Obj { layout: "lay".into() }.write(&memory, LEN_BYTES).unwrap();
        memory
    }

    fn bytes(memory: &Memory, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_obj_pool_is_what_pmdk_makes() {
        let memory = obj();
        let descriptor = include_bytes!("../tests/headers/pmdk-1.12.1-obj-descriptor.bin");
        let heap = include_bytes!("../tests/headers/pmdk-1.12.1-obj-heap.bin");
        assert_eq!(bytes(&memory, DESCRIPTOR, 2048), descriptor);
        assert_eq!(bytes(&memory, HEAP, 1024), heap);
        assert_eq!(bytes(&memory, OBJ_HEAP_LEN, 8), 0x004f_e000_u64.to_le_bytes());
        assert!(is_sealed(descriptor) && is_sealed(heap));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for pool in [
            NewPool::Obj { layout: "x".repeat(1024) },
            NewPool::Obj { layout: "a\0b".into() },
            NewPool::Blk { block_len_bytes: 0 },
        ] {
            assert!(matches!(pool.check(), Err(PoolSetError::Unsupported { .. })), "{pool:?}");
        }
        NewPool::Obj { layout: "x".repeat(1023) }.check().unwrap();
    }

    #[test]
    fn what_a_program_keeps_for_itself_is_in_common_with_nobody() {
        assert_eq!(common(Some(PoolKind::Obj), LEN_BYTES), [4096..6688, 8192..LEN_BYTES]);
        assert_eq!(common(None, LEN_BYTES).len(), 1);
    }
}
