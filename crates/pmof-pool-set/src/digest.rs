//! Digests of blocks of memory, by which two copies are compared without being sent.

use std::ops::Range;

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
    let mut digester = Digester::new(offset, len_bytes, block_bytes);
    digester.advance(memory, u64::MAX)?;
    Ok(digester.digests)
}

/// The same in parts, for who has other work to do between them.
#[derive(Debug)]
pub struct Digester {
    at: u64,
    end: u64,
    block_bytes: u64,
    /// Where the block ends that `hasher` is in.
    block_end: u64,
    hasher: Box<blake3::Hasher>,
    digests: Vec<Digest>,
}

impl Digester {
    /// Of the blocks of `block_bytes` (at least 1) of this range.
    pub fn new(offset: u64, len_bytes: u64, block_bytes: u64) -> Self {
        let (block_bytes, end) = (block_bytes.max(1), offset.saturating_add(len_bytes));
        let block_end = end.min(offset.saturating_add(block_bytes));
        Self { at: offset, end, block_bytes, block_end, hasher: Box::default(), digests: Vec::new() }
    }

    /// What [`advance`](Self::advance) of so many bytes reads next.
    pub fn next(&self, part_bytes: u64) -> Range<u64> {
        self.at..self.end.min(self.at.saturating_add(part_bytes))
    }

    /// Reads up to `part_bytes` more of `memory`.
    ///
    /// # Errors
    /// Those of reading `memory`.
    pub fn advance(&mut self, memory: &dyn Medium, part_bytes: u64) -> Result<(), MemError> {
        let part_end = self.next(part_bytes).end;
        let mut chunk = vec![0; CHUNK_BYTES.min((part_end - self.at) as usize)];
        while self.at < part_end {
            let len_bytes = (part_end.min(self.block_end) - self.at).min(chunk.len() as u64) as usize;
            memory.read(self.at, &mut chunk[..len_bytes])?;
            self.hasher.update(&chunk[..len_bytes]);
            self.at += len_bytes as u64;
            if self.at == self.block_end {
                self.digests.push(*std::mem::take(&mut *self.hasher).finalize().as_bytes());
                self.block_end = self.end.min(self.at.saturating_add(self.block_bytes));
            }
        }
        Ok(())
    }

    /// The digests, once all of the range was read.
    pub fn finish(self) -> Result<Vec<Digest>, Self> {
        if self.at == self.end { Ok(self.digests) } else { Err(self) }
    }
}
