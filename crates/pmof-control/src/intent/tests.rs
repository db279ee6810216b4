use super::*;
use crate::{DATA_OFFSET, MAX_SIZE_BYTES};

const MIB: u64 = 1 << 20;

#[test]
fn the_golden_words_are_read_and_written() {
    for (index, bits, word) in [
        (0, 0, 0x8c28_b28a_0000_0000_u64),
        (0, 1, 0x516d_1832_0000_0001),
        (1, 0, 0xc514_cfad_0000_0000),
        (3071, u32::MAX, 0xd28d_be1c_ffff_ffff),
    ] {
        assert_eq!(
            IntentLayout::encode(index, bits),
            word,
            "{index} {bits:#x}: {:#x}",
            IntentLayout::encode(index, bits)
        );
        assert_eq!(IntentLayout::decode(index, word), bits);
    }
}

#[test]
fn zero_is_no_word_anywhere() {
    for index in 0..INTENT_WORDS_MAX {
        assert_ne!(IntentLayout::encode(index, 0), 0);
        assert_eq!(IntentLayout::decode(index, 0), u32::MAX);
    }
}

/// Also one that lies where another belongs.
#[test]
fn of_a_damaged_word_all_extents_may_differ() {
    for bits in [0, 1, 0x8000_0000, 0x1234_5678] {
        let word = IntentLayout::encode(5, bits);
        for bit in 0..64 {
            assert_eq!(IntentLayout::decode(5, word ^ 1 << bit), u32::MAX, "bit {bit} of {bits:#x}");
        }
        assert_eq!(IntentLayout::decode(6, word), u32::MAX);
    }
}

#[test]
fn all_extents_of_a_pool_have_a_bit() {
    assert_eq!(INTENT_OFFSET + INTENT_BYTES as u64, DATA_OFFSET);
    for (size_bytes, extent_bytes, word_count) in [
        (1, MIB, 1),
        (32 * MIB, MIB, 1),
        (32 * MIB + 1, MIB, 2),
        (16 << 30, MIB, 512),
        (96 << 30, MIB, INTENT_WORDS_MAX),
        ((96 << 30) + 1, 2 * MIB, INTENT_WORDS_MAX / 2 + 1),
        (16 << 40, 256 * MIB, 2048),
        (MAX_SIZE_BYTES, 1 << 47, 2048),
    ] {
        let layout = IntentLayout::new(size_bytes);
        assert_eq!((layout.extent_bytes(), layout.word_count()), (extent_bytes, word_count), "{size_bytes}");
        assert!(layout.word_count() <= INTENT_WORDS_MAX);
        let all = vec![u32::MAX; layout.word_count()];
        assert_eq!(layout.ranges(&all).first(), Some(&(0..size_bytes)));
    }
}

#[test]
fn extents_that_touch_are_one_range() {
    let layout = IntentLayout::new(70 * MIB + 5);
    assert_eq!(layout.ranges(&[0, 0, 0]), []);
    let words = [0x8000_0003, 1, 1 << 6 | 1 << 7];
    assert_eq!(layout.ranges(&words), [0..2 * MIB, 31 * MIB..33 * MIB, 70 * MIB..70 * MIB + 5]);
}
