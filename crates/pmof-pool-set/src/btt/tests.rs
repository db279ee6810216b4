use pmof_mem::{Medium as _, Memory};

use super::{BARE, BlockTable, block_table, defect};
use crate::{
    NewPool,
    header::{Checksummed, checksum},
};

const LEN_BYTES: u64 = 32 << 20;
const START: u64 = 8192;
const SEEN: u32 = 100;
const FREE: u32 = 8;
const MAP: u64 = 1 << 20;
const LOG: u64 = 2 << 20;

/// A head, sealed.
fn info(copy: u64, next: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[..14].copy_from_slice(b"BTT_ARENA_INFO");
    for (at, number) in [(56, 512), (64, 512), (60, SEEN), (68, SEEN + FREE), (72, FREE)] {
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    for (at, number) in [(80, next), (88, 4096), (96, MAP), (104, LOG), (112, copy)] {
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    let sum = checksum(&bytes, &Checksummed { field: 4088, end: 4096 });
    bytes[4088..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn record(memory: &Memory, start: u64, index: u64, fields: [u32; 8]) {
    memory.store(start + LOG + index * 64, fields.map(u32::to_le_bytes).as_flattened()).unwrap();
}

fn map(memory: &Memory, start: u64, block: u64, entry: u32) {
    memory.store(start + MAP + block * 4, &entry.to_le_bytes()).unwrap();
}

fn arena(memory: &Memory, start: u64, copy: u64, next: u64) {
    memory.store(start, &info(copy, next)).unwrap();
    memory.store(start + copy, &info(copy, next)).unwrap();
    for free in 0..FREE {
        let place = 0x8000_0000 | (SEEN + free);
        record(memory, start, u64::from(free), [0, place, place, 1, 0, 0, 0, 0]);
    }
}

/// A pool of blocks that was written: two arenas; block 3 was moved to the first free place.
fn written() -> Memory {
    let memory = Memory::anonymous(LEN_BYTES).unwrap();
    NewPool::Blk { block_len_bytes: 512 }.write(&memory, LEN_BYTES).unwrap();
    arena(&memory, START, (8 << 20) - 4096, 8 << 20);
    let second = START + (8 << 20);
    arena(&memory, second, LEN_BYTES - second - 4096, 0);
    map(&memory, START, 3, 0xc000_0000 | SEEN);
    record(&memory, START, 0, [0, SEEN, SEEN, 1, 3, 3, SEEN, 2]);
    memory
}

fn found(memory: &Memory) -> Option<&'static str> {
    defect(memory, START, LEN_BYTES, Some(512)).unwrap()
}

#[test]
fn a_table_that_is_whole_or_was_never_written_is_sound() {
    assert_eq!(found(&written()), None);
    let memory = Memory::anonymous(LEN_BYTES).unwrap();
    NewPool::Blk { block_len_bytes: 512 }.write(&memory, LEN_BYTES).unwrap();
    assert_eq!(found(&memory), None);
    // Another lane moved block 3 once more: the first one's record is of before.
    let memory = written();
    map(&memory, START, 3, 0xc000_0000 | (SEEN + 1));
    record(&memory, START, 1, [0, SEEN + 1, SEEN + 1, 1, 3, SEEN, SEEN + 1, 2]);
    assert_eq!(found(&memory), None);
    // A write was under way: the log has it and the map has not.
    let memory = written();
    record(&memory, START, 1, [0, SEEN + 1, SEEN + 1, 1, 4, 4, SEEN + 1, 2]);
    assert_eq!(found(&memory), None);
}

#[test]
fn what_is_damaged_is_found() {
    type Change = (u64, &'static [u8], &'static str);
    let second = START + (8 << 20);
    let changes: [Change; 11] = [
        (START + 3, b"x", "head"),
        (START + 2000, b"x", "head"),
        (START, &[0; 4096], "head"),
        (second + 2000, b"x", "head"),
        (START + (8 << 20) - 4096 + 9, b"x", "copy"),
        (LEN_BYTES - 4096 + 60, b"x", "copy"),
        (START + MAP + 20, &[1, 0, 0, 0xc0], "same block"),
        (START + MAP + 20, &[200, 0, 0, 0xc0], "no block"),
        (START + LOG + 12, &[7, 0, 0, 0], "write log"),
        (START + LOG + 64 + 4, &[2], "write log"),
        (START + LOG + 64, &[0; 16], "write log"),
    ];
    for (offset, change, expected) in changes {
        let memory = written();
        memory.store(offset, change).unwrap();
        let found = found(&memory);
        assert!(found.is_some_and(|found| found.contains(expected)), "{offset:#x}: {expected}: {found:?}");
    }
    // A last head of zeros, and lengths that lead out.
    let memory = written();
    memory.store(START, &info(LEN_BYTES, 0)).unwrap();
    assert!(found(&memory).unwrap().contains("inside"));
    let memory = written();
    memory.store(START, &info(u64::MAX - 5, u64::MAX)).unwrap();
    assert!(found(&memory).unwrap().contains("inside"));
}

#[test]
fn a_table_without_a_pool_is_recognized() {
    let memory = Memory::anonymous(LEN_BYTES).unwrap();
    assert_eq!(block_table(&memory).unwrap(), None);
    arena(&memory, BARE, LEN_BYTES - BARE - 4096, 0);
    assert_eq!(block_table(&memory).unwrap(), Some(BlockTable { defect: None }));
    memory.store(BARE + 70, b"x").unwrap();
    assert!(block_table(&memory).unwrap().unwrap().defect.unwrap().contains("head"), "its copy says what it is");
    memory.store(LEN_BYTES - 4000, b"x").unwrap();
    assert_eq!(block_table(&memory).unwrap(), None);
    assert_eq!(block_table(&Memory::anonymous(4096).unwrap()).unwrap(), None);
    assert_eq!(defect(&memory, 8192, LEN_BYTES, None).unwrap(), None);
}

#[test]
fn the_end_of_the_last_arena_is_known() {
    let memory = written();
    let number = |offset: u64| {
        let mut bytes = [0; 8];
        memory.read(offset, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    assert_eq!(super::end(START, number).unwrap(), LEN_BYTES);
    assert_eq!(super::end(START + 4096, number).unwrap(), START + 4096, "none was written there");
    // One that leads back ends there.
    memory.store(START + (8 << 20) + 80, &u64::MAX.to_le_bytes()).unwrap();
    assert_eq!(super::end(START, number).unwrap(), LEN_BYTES);
}
