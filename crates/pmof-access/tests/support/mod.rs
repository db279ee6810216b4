//! What the tests of the access layer share.

use pmof_access::Region;

/// Bytes that differ by place and by seed.
pub(crate) fn pattern(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    for (index, chunk) in (1_u64..).zip(bytes.chunks_mut(8)) {
        let word = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// A copy of a range.
#[track_caller]
pub(crate) fn content(region: &Region, offset: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    region.read(offset, &mut bytes).expect("inside the region");
    bytes
}
