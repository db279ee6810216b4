//! The checksum of PMDK's headers: Fletcher's with sums of 32 bits, modulo 2^32.

use crate::words::words;

/// What of a structure counts for its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksummed {
    /// Where its 8 bytes of checksum lie, a multiple of 4: they count as zero.
    pub(crate) field: usize,
    /// From here on all bytes count as zero, a multiple of 4.
    pub(crate) end: usize,
}

/// The checksum of `bytes`, a multiple of 4, taken as little-endian numbers of 32 bits.
pub(crate) fn checksum(bytes: &[u8], covered: &Checksummed) -> u64 {
    assert!(bytes.len() % 4 == 0, "the checksum is of words of 4 bytes, not of {} bytes", bytes.len());
    let (mut low, mut high) = (0_u32, 0_u32);
    for (index, word) in words(bytes).enumerate() {
        let offset = index * 4;
        let is_field = (covered.field..covered.field + 8).contains(&offset);
        if !is_field && offset < covered.end {
            low = low.wrapping_add(u32::from_le_bytes(word));
        }
        high = high.wrapping_add(low);
    }
    u64::from(high) << 32 | u64::from(low)
}
