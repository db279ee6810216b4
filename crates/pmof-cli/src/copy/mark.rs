//! The mark of a pool created by `pmof cp`, in its user flags: 8 bytes `PMOFCP`, 0, 1, then the file's length in bytes as
//! a little-endian `u64`. An empty file, whose pool has the minimum size of 1 byte, thus comes back empty.

const TAG: [u8; 8] = *b"PMOFCP\0\x01";

/// The user flags of a pool that holds a file of `len_bytes`.
pub(crate) fn encode(len_bytes: u64) -> [u8; 16] {
    let mut flags = [0; 16];
    flags[..8].copy_from_slice(&TAG);
    flags[8..].copy_from_slice(&len_bytes.to_le_bytes());
    flags
}

/// The length of the file that a pool holds; `None` if the pool is not a copy of a file.
pub(crate) fn decode(flags: &[u8; 16]) -> Option<u64> {
    let (tag, len_bytes) = flags.split_first_chunk::<8>()?;
    let len_bytes = u64::from_le_bytes(*len_bytes.first_chunk()?);
    (*tag == TAG).then_some(len_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_back_and_other_flags_are_none() {
        for len_bytes in [0, 1, u64::MAX] {
            assert_eq!(decode(&encode(len_bytes)), Some(len_bytes));
        }
        assert_eq!(encode(258), *b"PMOFCP\0\x01\x02\x01\0\0\0\0\0\0");
        assert_eq!(decode(&[0; 16]), None);
        assert_eq!(decode(b"PMOFCP\0\x02\x02\x01\0\0\0\0\0\0"), None);
    }
}
