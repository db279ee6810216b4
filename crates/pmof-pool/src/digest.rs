//! Digests of blocks of memory, by which two copies are compared without being sent.

use pmof_mem::{Medium, MemError};

/// Bytes of a digest: BLAKE3's.
pub const DIGEST_BYTES: usize = blake3::OUT_LEN;

/// The digest of a block.
pub type Digest = [u8; DIGEST_BYTES];

/// Bytes that are digested at a time: enough for the hash to work on in parallel, small enough for the cache.
const CHUNK_BYTES: usize = 128 << 10;

/// BLAKE3 digests of the blocks of `block_bytes` (at least 1) of a range, in order; the last may be shorter.
///
/// # Errors
/// Those of reading `memory`.
pub fn digests_of(memory: &dyn Medium, offset: u64, len_bytes: u64, block_bytes: u64) -> Result<Vec<Digest>, MemError> {
    let block_bytes = block_bytes.max(1);
    let mut chunk = vec![0; CHUNK_BYTES.min(block_bytes as usize)];
    let mut digests = Vec::with_capacity(len_bytes.div_ceil(block_bytes) as usize);
    let (mut at, end) = (offset, offset.saturating_add(len_bytes));
    while at < end {
        let block_end = end.min(at.saturating_add(block_bytes));
        let mut hasher = blake3::Hasher::new();
        while at < block_end {
            let part = (block_end - at).min(chunk.len() as u64) as usize;
            memory.read(at, &mut chunk[..part])?;
            hasher.update(&chunk[..part]);
            at += part as u64;
        }
        digests.push(*hasher.finalize().as_bytes());
    }
    Ok(digests)
}
