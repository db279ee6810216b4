//! Blocks of 4096 bytes, in which format 4 keeps what a pool must not lose: a sector that a device loses takes one copy with it.

use alloc::{vec, vec::Vec};

use crate::checksum::crc32c;

#[cfg(test)]
mod tests;

/// How a structure that a file keeps in several copies is replaced, as byte offsets of the file and what is stored there: all of a step is durable before the next one begins.
/// A crash leaves the old structure or the new one whole in some copy; once the last step is durable, any whole copy has the new one.
pub type CopySteps = Vec<Vec<(u64, Vec<u8>)>>;

pub(crate) const BLOCK_BYTES: usize = 4096;
const CHECKSUM_OFFSET: usize = BLOCK_BYTES - 4;

/// The blocks of what was read from several places.
pub(crate) fn blocks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(BLOCK_BYTES)
}

/// A block with what a slot of former formats holds before its checksum.
pub(crate) fn of_slot(slot: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    let fields = &slot[..slot.len() - 4];
    block[..fields.len()].copy_from_slice(fields);
    let checksum = crc32c(&block[..CHECKSUM_OFFSET]);
    block[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// What [`of_slot`] was given, without its checksum; `None` where the block is damaged.
pub(crate) fn to_slot<const N: usize>(block: &[u8]) -> Option<[u8; N]> {
    let (fields, checksum) = block.get(..BLOCK_BYTES)?.split_last_chunk::<4>()?;
    let mut slot = [0; N];
    slot[..N - 4].copy_from_slice(&fields[..N - 4]);
    (u32::from_le_bytes(*checksum) == crc32c(fields)).then_some(slot)
}
