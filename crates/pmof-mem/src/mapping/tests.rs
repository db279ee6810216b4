use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::{Mapping, lead_bytes};

proptest! {
    #[test]
    fn copies_are_exact_at_every_alignment(
        offset in 0_u64..40, bytes in prop::collection::vec(any::<u8>(), 0..700), streaming: bool,
    ) {
        let mapping = Mapping::anonymous(4096).unwrap();
        if streaming {
            mapping.store_streaming(offset, &bytes).unwrap();
        } else {
            mapping.store(offset, &bytes).unwrap();
        }
        let mut expected = vec![0; 4096];
        expected[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
        let mut whole = vec![1; 4096];
        mapping.read(0, &mut whole).unwrap();
        prop_assert_eq!(&whole, &expected);
        let mut part = vec![0; bytes.len()];
        mapping.read(offset, &mut part).unwrap();
        prop_assert_eq!(&part, &bytes);
        prop_assert_eq!(mapping.crc32c(offset, bytes.len() as u64).unwrap(), crc32c::crc32c(&bytes));
    }
}

#[test]
fn words_start_at_aligned_addresses() {
    let words = [0_u64; 4];
    let start = words.as_ptr().cast::<u8>();
    for offset in 0..16 {
        let lead = lead_bytes(start.wrapping_add(offset), 100);
        assert!(lead < 8 && (offset + lead) % 8 == 0, "offset {offset}: {lead}");
    }
    assert_eq!(lead_bytes(start.wrapping_add(1), 3), 3);
}

#[test]
fn a_checksum_runs_over_chunk_borders() {
    let mapping = Mapping::anonymous(20_000).unwrap();
    let bytes: Vec<u8> = (0..20_000_u32).map(|number| (number % 251) as u8).collect();
    mapping.store(0, &bytes).unwrap();
    for (offset, len) in [(0, 20_000), (1, 4096), (3, 4097), (100, 8192), (0, 0)] {
        let expected = crc32c::crc32c(&bytes[offset..offset + len]);
        assert_eq!(mapping.crc32c(offset as u64, len as u64).unwrap(), expected);
    }
}

#[test]
fn racing_copies_never_tear_eight_aligned_bytes() {
    const ROUNDS: usize = 20_000;
    let mapping = Mapping::anonymous(4096).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in (0..=u8::MAX).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                mapping.store(0, &[round; 1024]).unwrap();
            }
        });
        let mut buffer = [0; 1024];
        let is_torn = (0..ROUNDS).any(|_| {
            mapping.read(0, &mut buffer).unwrap();
            buffer.chunks_exact(8).any(|word| *word != [word[0]; 8])
        });
        // Stopped first: a failed assertion would leave the writer running, and the scope waiting for it.
        stop.store(true, Ordering::Relaxed);
        assert!(!is_torn);
    });
}

/// A guard against a copy that falls to bytes: far above what the copy takes, far below what bytes would take.
#[test]
#[cfg(not(debug_assertions))]
fn a_page_is_copied_word_by_word() {
    const LIMIT_NS: f64 = 1000.0;
    let mapping = Mapping::anonymous(4096).unwrap();
    let page = [7_u8; 4096];
    let mut best_ns = f64::MAX;
    for _ in 0..50 {
        let start = std::time::Instant::now();
        for _ in 0..200 {
            mapping.store(0, std::hint::black_box(&page)).unwrap();
        }
        best_ns = best_ns.min(start.elapsed().as_nanos() as f64 / 200.0);
    }
    assert!(best_ns < LIMIT_NS, "{best_ns} ns for 4 KiB");
}
