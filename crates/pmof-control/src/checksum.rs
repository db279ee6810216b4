//! CRC32C (Castagnoli), by which torn and damaged bytes are noticed.

use crc::{CRC_32_ISCSI, Crc, Table};

static TABLE: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// Of these bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    TABLE.checksum(bytes)
}

/// Of the bytes that gave `before`, and of these behind them.
pub(crate) fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    // The register holds the complement of what it gives, and is given bit by bit the other way round.
    let mut digest = TABLE.digest_with_initial((!before).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

/// Whether nothing was ever written there.
pub(crate) fn is_all_zero(bytes: &[u8]) -> bool {
    // Without a way out of its middle a block is compared by the processor's widest registers.
    bytes.chunks(64).all(|block| block.iter().fold(0, |any, byte| any | byte) == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn checksums_are_those_of_the_processors_instruction(bytes: Vec<u8>, at: prop::sample::Index) {
            let (before, rest) = bytes.split_at(at.index(bytes.len() + 1));
            prop_assert_eq!(crc32c(&bytes), crc32c::crc32c(&bytes));
            prop_assert_eq!(crc32c_append(crc32c(before), rest), crc32c::crc32c(&bytes));
        }
    }
}
