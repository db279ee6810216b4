use std::ops::Range;

use pmof_mem::{Medium as _, Memory, causes};

use super::{BlockDigests, Comparison, Copied, DIFFERENCES_MAX, Difference};
use crate::{
    AccessError, Contents, DIGEST_BLOCK_LEN_BYTES, NewPool, PendingDigests, PoolKind, WINDOW_LEN_BYTES, Window,
    data_ranges, digests_of,
};

/// A replica in memory, whose power fails after a number of calls.
#[derive(Debug)]
struct InMemory {
    memory: Memory,
    calls_left: u64,
    read_bytes: u64,
    persisted_bytes: u64,
    digested_bytes: u64,
    /// Digests that it leaves out, at the end of a range.
    missing_digests: usize,
}

impl InMemory {
    fn new(len_bytes: u64) -> Self {
        Self::of(Memory::anonymous(len_bytes).unwrap())
    }

    fn of(memory: Memory) -> Self {
        let (read_bytes, persisted_bytes, digested_bytes) = (0, 0, 0);
        Self { memory, calls_left: u64::MAX, read_bytes, persisted_bytes, digested_bytes, missing_digests: 0 }
    }

    fn call(&mut self) -> Result<&Memory, AccessError> {
        self.calls_left = self.calls_left.checked_sub(1).ok_or("the power failed")?;
        Ok(&self.memory)
    }
}

impl Contents for InMemory {
    fn data_ranges(&mut self, range: Range<u64>) -> Result<Vec<Range<u64>>, AccessError> {
        Ok(data_ranges(&self.memory, range, usize::MAX)?.0)
    }
    fn start_digests(&mut self, range: Range<u64>, block_bytes: u64) -> PendingDigests<'_> {
        self.digested_bytes += range.end - range.start;
        Box::new(move || {
            let missing_digests = self.missing_digests;
            let mut digests = digests_of(self.call()?, range.start, range.end - range.start, block_bytes)?;
            digests.truncate(digests.len().saturating_sub(missing_digests));
            Ok(digests)
        })
    }
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.read_bytes += into.len() as u64;
        Ok(self.call()?.read(offset, into)?)
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        Ok(self.call()?.store(offset, bytes)?)
    }
    fn persist(&mut self, range: Range<u64>) -> Result<(), AccessError> {
        self.persisted_bytes += range.end - range.start;
        self.call().map(drop)
    }
}

const LEN_BYTES: u64 = 9 << 20;

fn pair() -> (InMemory, InMemory) {
    let (one, other) = (InMemory::new(LEN_BYTES), InMemory::new(LEN_BYTES));
    for offset in (0..LEN_BYTES).step_by(4096) {
        let bytes = [(offset >> 12) as u8; 4096];
        one.memory.store(offset, &bytes).unwrap();
        other.memory.store(offset, &bytes).unwrap();
    }
    (one, other)
}

#[test]
fn every_byte_that_differs_is_found_where_it_is() {
    let comparison = Comparison::of_kind(None, LEN_BYTES);
    let places = [4096, DIGEST_BLOCK_LEN_BYTES, DIGEST_BLOCK_LEN_BYTES + 4095, WINDOW_LEN_BYTES + 4096, LEN_BYTES - 1];
    let (mut one, mut other) = pair();
    other.memory.store(100, &[0xee; 50]).unwrap();
    let mut seen = 0;
    let same = comparison.differences(&mut one, &mut other, &mut |bytes| seen += bytes).unwrap();
    assert!(same.is_empty() && same.told.is_empty(), "headers are not compared");
    assert_eq!((seen, one.read_bytes), (LEN_BYTES - 4096, 0), "only digests were read");
    for offset in places {
        other.memory.store(offset, &[0xee]).unwrap();
    }
    let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
    let expected: Vec<_> =
        places.iter().map(|offset| Difference { range: *offset..offset + 1, is_unused: false }).collect();
    assert_eq!(found.told, expected);
    assert!(one.read_bytes <= 5 * DIGEST_BLOCK_LEN_BYTES);
    // Near ones are one.
    other.memory.store(LEN_BYTES - 6, &[0xee]).unwrap();
    let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
    assert_eq!(found.told.last().unwrap().range, LEN_BYTES - 6..LEN_BYTES);
}

#[test]
fn a_replica_that_gives_too_few_digests_is_not_equal() {
    let comparison = Comparison::of_kind(None, LEN_BYTES);
    for is_first in [true, false] {
        let (mut one, mut other) = pair();
        // It differs where a digest is missing.
        other.memory.store(LEN_BYTES - 1, &[0xee]).unwrap();
        if is_first { &mut one } else { &mut other }.missing_digests = 1;
        let error = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap_err();
        assert!(
            error.replica == usize::from(!is_first)
                && causes(&error).to_string().contains("digests were received instead of"),
            "{error}"
        );
    }
}

#[test]
fn of_several_replicas_those_are_told_that_differ_and_those_that_failed() {
    let (mut one, mut two) = pair();
    let (mut three, mut four) = pair();
    let at = DIGEST_BLOCK_LEN_BYTES;
    two.memory.store(at + 5, &[0xee]).unwrap();
    four.memory.store(3 * at, &[0xee]).unwrap();
    three.calls_left = 0;
    let range = at..4 * at + 100;
    let mut digests = BlockDigests::of_range(&mut [&mut one, &mut two, &mut three, &mut four], &range, at);
    assert_eq!(digests.differing(), [at..2 * at, 3 * at..4 * at]);
    assert_eq!(digests.failed().collect::<Vec<_>>(), [2]);
    let error = digests.take_failure(2);
    assert_eq!((error.replica, error.to_string()), (2, "the power failed".to_owned()));
    let given: Vec<_> = digests.into_digests().iter().map(Option::is_some).collect();
    assert_eq!(given, [true, true, false, true], "one whose failure was told has given none");
    let window = Window { range, is_hole: vec![true, false] };
    let digests = BlockDigests::of_window(&mut [&mut one, &mut two], &window).of_all().unwrap();
    let last = 4 * at..4 * at + 100;
    let all = [at..2 * at, 2 * at..3 * at, 3 * at..4 * at, last];
    assert_eq!(digests.differing(), all, "a hole is zeros, and was not asked for");
    let counts: Vec<_> = digests.into_digests().into_iter().flatten().map(|digests| digests.len()).collect();
    assert_eq!(counts, [4, 4]);
    let error = BlockDigests::of_range(&mut [&mut one, &mut three], &(0..at), at).of_all().unwrap_err();
    assert_eq!(error.replica, 1);
}

/// Where all replicas hold the same by agreement, there is nothing else to know.
#[test]
fn ranges_that_a_format_names_are_compared_and_no_others() {
    let comparison = Comparison::of_ranges(vec![0..4096, 2 << 20..LEN_BYTES]);
    let (mut one, mut other) = pair();
    assert_eq!(comparison.len_bytes(), 4096 + LEN_BYTES - (2 << 20));
    other.memory.store(4096, &[0xee]).unwrap();
    other.memory.store((2 << 20) - 1, &[0xee]).unwrap();
    assert_eq!(comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap().count, 0);
    other.memory.store(0, &[0xee]).unwrap();
    let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
    assert_eq!(found.told, [Difference { range: 0..1, is_unused: false }]);
}

#[test]
fn a_block_differs_in_what_counts_only() {
    let comparison = Comparison::of_kind(Some(PoolKind::Obj), LEN_BYTES);
    let (mut one, mut other) = pair();
    other.memory.store(6688, &[0xee; 1504]).unwrap();
    let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
    assert!(found.is_empty(), "no two replicas have that in common");
    other.memory.store(8192, &[0xee]).unwrap();
    assert!(comparison.differs(&(8192..12288), &mut one, &mut other).unwrap());
    assert!(!comparison.differs(&(12288..16384), &mut one, &mut other).unwrap());
}

#[test]
fn only_what_differs_is_copied_and_an_interrupted_copy_goes_on() {
    let comparison = Comparison::of_kind(None, LEN_BYTES);
    let (mut one, mut other) = pair();
    for offset in (4096..LEN_BYTES).step_by(1 << 20) {
        one.memory.store(offset, &[0xaa; 3]).unwrap();
    }
    let mut calls = 3;
    let mut interrupted = 0;
    let copied = loop {
        other.calls_left = calls;
        match comparison.copy(&mut one, &mut other, &mut |_| {}) {
            Ok(copied) => break copied,
            Err(error) => assert_eq!(error.to_string(), "the power failed"),
        }
        interrupted += 1;
        calls += 1;
    };
    assert!(interrupted > 2 && copied.blocks < 9, "what was copied before is not copied again: {copied:?}");
    other.calls_left = u64::MAX;
    assert_eq!(
        one.memory.crc32c(4096, LEN_BYTES - 4096).unwrap(),
        other.memory.crc32c(4096, LEN_BYTES - 4096).unwrap()
    );
    let mut seen = 0;
    assert_eq!(comparison.copy(&mut one, &mut other, &mut |bytes| seen += bytes).unwrap(), Copied::default());
    assert_eq!(seen, comparison.len_bytes());
    other.memory.store(LEN_BYTES - 1, &[1]).unwrap();
    other.persisted_bytes = 0;
    let copied = comparison.copy(&mut one, &mut other, &mut |_| {}).unwrap();
    // All is made durable, also what is the same: who stored it may not have lived to do it.
    assert_eq!((copied.blocks, other.persisted_bytes), (1, LEN_BYTES - 4096));
    assert!(copied.bytes <= DIGEST_BLOCK_LEN_BYTES, "{copied:?}");
}

#[test]
fn countless_differences_are_counted() {
    let comparison = Comparison::of_kind(None, LEN_BYTES);
    let (mut one, mut other) = pair();
    for offset in (4096..4096 + 64 * (DIFFERENCES_MAX as u64 + 10)).step_by(64) {
        other.memory.store(offset, &[0xee]).unwrap();
    }
    let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
    assert_eq!((found.told.len(), found.count), (DIFFERENCES_MAX, DIFFERENCES_MAX as u64 + 10));
}

/// A heap with a free chunk, a run with used and free blocks, and a huge object.
#[test]
fn differences_in_unused_space_of_a_heap_mean_nothing() {
    const CHUNK: u64 = 256 << 10;
    let (mut one, mut other) = (InMemory::new(LEN_BYTES), InMemory::new(LEN_BYTES));
    let (zone, chunks) = (0x30_2400, 0x38_2400);
    for memory in [&one.memory, &other.memory] {
        NewPool::Obj { layout: String::new() }.write(memory, LEN_BYTES).unwrap();
        let word =
            |offset: u64, words: [u32; 2]| memory.store(offset, words.map(u32::to_le_bytes).as_flattened()).unwrap();
        word(zone, [0xc3f0_a2d2, 20]);
        // Free, one chunk; a run with a fitted bitmap, two; in use, three; free, the rest.
        for (chunk, header) in [(0, [2, 1]), (1, [4 | 8 << 16, 2]), (2, [5, 1]), (3, [3, 3]), (6, [2, 14])] {
            word(zone + 64 + chunk * 8, header);
        }
        // Blocks of 1024 bytes: 511 of them need 8 words, and with the head and the padding 14.
        word(chunks + CHUNK, [1024, 0]);
        memory.store(chunks + CHUNK + 16, &[0b101]).unwrap();
    }
    let blocks = chunks + CHUNK + 16 + 14 * 8;
    for (offset, is_unused) in [
        (chunks + 64, true),
        (chunks + CHUNK - 1, true),
        (chunks + CHUNK, false),
        (chunks + CHUNK + 16, false),
        (chunks + CHUNK + 20, false),
        (blocks, false),
        (blocks + 1023, false),
        (blocks + 1024, true),
        (blocks + 2047, true),
        (blocks + 2048, false),
        (blocks + 3072, true),
        (chunks + 3 * CHUNK - 1, true),
        (chunks + 3 * CHUNK, false),
        (chunks + 6 * CHUNK - 1, false),
        (chunks + 6 * CHUNK, true),
        (zone, false),
        (zone + 64, false),
        (zone + 64 + 8, false),
        // By it libpmemobj finds the run's first chunk.
        (zone + 64 + 2 * 8, false),
        (zone + 64 + 3 * 8, false),
        (zone + 64 + 4 * 8, true),
        (zone + 64 + 5 * 8, true),
        (zone + 64 + 19 * 8, true),
        (zone + 64 + 20 * 8, false),
        (8192, false),
        (4096, false),
    ] {
        let comparison = Comparison::of_pool(Some(PoolKind::Obj), &one.memory, LEN_BYTES).unwrap();
        let mut byte = [0];
        other.memory.read(offset, &mut byte).unwrap();
        other.memory.store(offset, &[byte[0] ^ 0xff]).unwrap();
        let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
        assert_eq!((found.count, found.unused_count), if is_unused { (0, 1) } else { (1, 0) }, "{offset:#x}");
        assert_eq!((found.unused_bytes, found.runtime_bytes), (u64::from(is_unused), 0), "{offset:#x}");
        other.memory.store(offset, &byte).unwrap();
    }
    // What a running program keeps in the descriptor is nobody's.
    other.memory.store(7000, &[1]).unwrap();
    let comparison = Comparison::of_pool(Some(PoolKind::Obj), &one.memory, LEN_BYTES).unwrap();
    let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
    assert_eq!(found, super::Differences { runtime_bytes: 1, ..super::Differences::default() }, "but it is told");
    // A heap that makes no sense counts as a whole.
    one.memory.store(zone + 64 + 4, &[0xff; 4]).unwrap();
    other.memory.store(zone + 64 + 4, &[0xff; 4]).unwrap();
    other.memory.store(chunks + 64, &[1]).unwrap();
    let comparison = Comparison::of_pool(Some(PoolKind::Obj), &one.memory, LEN_BYTES).unwrap();
    assert_eq!(comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap().count, 1);
}

/// In an aligned run the first block's object lies at the alignment, and a block less is there.
#[test]
fn differences_in_unused_space_of_aligned_runs_mean_nothing() {
    const CHUNK: u64 = 256 << 10;
    let (zone, chunks) = (0x30_2400, 0x38_2400);
    // Without a header, with a compact one, with a full one; the last run may begin its blocks anywhere.
    for (flags, header, alignment) in [(2, 0, 4096), (1, 16, 4096), (0, 64, 512), (2, 0, 8192)] {
        let (mut one, mut other) = (InMemory::new(LEN_BYTES), InMemory::new(LEN_BYTES));
        for memory in [&one.memory, &other.memory] {
            NewPool::Obj { layout: String::new() }.write(memory, LEN_BYTES).unwrap();
            let word = |offset: u64, words: [u32; 2]| {
                memory.store(offset, words.map(u32::to_le_bytes).as_flattened()).unwrap();
            };
            word(zone, [0xc3f0_a2d2, 20]);
            word(zone + 64, [4 | (flags | 4 | 8) << 16, 1]);
            word(zone + 64 + 8, [2, 19]);
            // Blocks of 8192 bytes: 31, of which one is given up, and the second is in use.
            word(chunks, [8192, 0]);
            word(chunks + 8, [alignment, 0]);
            memory.store(chunks + 16, &[0b10, 0, 0, 0x80]).unwrap();
        }
        let bitmap_end = chunks + 16 + 6 * 8;
        let first = (bitmap_end + header).next_multiple_of(alignment.into()) - header;
        let is_known = alignment <= 4096;
        for (offset, is_unused) in [
            (chunks, false),
            (chunks + 8, false),
            (bitmap_end - 1, false),
            (bitmap_end, is_known),
            (first - 1, is_known),
            (first, is_known),
            (first + 8191, is_known),
            (first + 8192, false),
            (first + 2 * 8192 - 1, false),
            (first + 2 * 8192, is_known),
            (first + 30 * 8192 - 1, is_known),
            (first + 30 * 8192, is_known),
            (chunks + CHUNK - 1, is_known),
            (chunks + CHUNK, true),
        ] {
            let comparison = Comparison::of_pool(Some(PoolKind::Obj), &one.memory, LEN_BYTES).unwrap();
            let mut byte = [0];
            other.memory.read(offset, &mut byte).unwrap();
            other.memory.store(offset, &[byte[0] ^ 0xff]).unwrap();
            let found = comparison.differences(&mut one, &mut other, &mut |_| {}).unwrap();
            let expected = if is_unused { (0, 1) } else { (1, 0) };
            assert_eq!(
                (found.count, found.unused_count),
                expected,
                "{offset:#x}, aligned to {alignment}, flags {flags}"
            );
            other.memory.store(offset, &byte).unwrap();
        }
    }
}

/// Two replicas in new files, which are holes.
fn sparse() -> (tempfile::TempDir, InMemory, InMemory) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let new = |name| InMemory::of(Memory::create(&directory.path().join(name), 64 << 20, None).unwrap());
    let (one, other) = (new("one"), new("other"));
    (directory, one, other)
}

#[test]
fn of_holes_nothing_is_digested_or_copied_and_all_is_equal() {
    const LEN_BYTES: u64 = 64 << 20;
    let comparison = Comparison::of_kind(None, LEN_BYTES);
    let (_directory, mut one, mut other) = sparse();
    let mut done = 0;
    assert_eq!(comparison.copy(&mut one, &mut other, &mut |bytes| done += bytes).unwrap(), Copied::default());
    assert_eq!((done, one.digested_bytes, other.digested_bytes), (comparison.len_bytes(), 0, 0));

    // Only in the first: copied, except zeros; only in the other: zeros are copied; in both.
    one.memory.store(10 << 20, &vec![1; 100_000]).unwrap();
    one.memory.store(20 << 20, &vec![0; 100_000]).unwrap();
    other.memory.store(30 << 20, &[2; 5]).unwrap();
    one.memory.store(40 << 20, b"same").unwrap();
    other.memory.store(40 << 20, b"same").unwrap();
    let (mut done, mut told) = (0, 0);
    let found = comparison.differences(&mut one, &mut other, &mut |bytes| told += bytes).unwrap();
    assert_eq!((found.count, told), (4, comparison.len_bytes()), "{found:?}");
    let would = comparison.would_copy(&mut one, &mut other, &mut |_| {}).unwrap();
    let copied = comparison.copy(&mut one, &mut other, &mut |bytes| done += bytes).unwrap();
    assert_eq!((copied, done), (would, comparison.len_bytes()));
    assert!((3..=4).contains(&copied.blocks), "{copied:?}");
    assert!(one.digested_bytes < 3 << 20 && other.digested_bytes < 3 << 20, "{one:?} {other:?}");
    let (mut bytes, mut expected) = (vec![9; LEN_BYTES as usize], vec![9; LEN_BYTES as usize]);
    one.memory.read(0, &mut expected).unwrap();
    other.memory.read(0, &mut bytes).unwrap();
    assert!(bytes == expected && bytes[30 << 20] == 0);
    assert!(other.persisted_bytes >= 4 * DIGEST_BLOCK_LEN_BYTES, "what was compared is durable");

    let (_directory, mut alone, _) = sparse();
    let mut done = 0;
    comparison.read(&mut alone, &mut |bytes| done += bytes).unwrap();
    assert_eq!((alone.digested_bytes, done), (0, comparison.len_bytes()));
}
