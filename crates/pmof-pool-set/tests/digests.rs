//! Digests that are computed in parts are those of the whole.

use pmof_mem::{Medium as _, Memory};
use pmof_pool_set::{Digester, digests_of};

#[test]
fn digests_in_parts_are_those_of_the_whole() {
    let memory = Memory::anonymous(1 << 20).unwrap();
    let bytes: Vec<u8> = (0..1_u32 << 18).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    memory.store(0, &bytes).unwrap();
    for (offset, len_bytes, block_bytes) in
        [(0, 1 << 20, 4096), (3, 700_001, 100_003), (5, 0, 4096), (4096, 4096, 1 << 20), (1, 9, 1)]
    {
        let whole = digests_of(&memory, offset, len_bytes, block_bytes).unwrap();
        let expected: Vec<_> = bytes[offset as usize..(offset + len_bytes) as usize]
            .chunks(block_bytes as usize)
            .map(|block| *blake3::hash(block).as_bytes())
            .collect();
        assert_eq!(whole, expected);
        for part_bytes in [1 << 13, 99_999, 1 << 21] {
            let mut digester = Digester::new(offset, len_bytes, block_bytes);
            let digests = loop {
                assert!(digester.next(part_bytes).end <= offset + len_bytes);
                digester.advance(&memory, part_bytes).unwrap();
                match digester.finish() {
                    Ok(digests) => break digests,
                    Err(unfinished) => digester = unfinished,
                }
            };
            assert_eq!(digests, whole, "{part_bytes}");
        }
    }
}
