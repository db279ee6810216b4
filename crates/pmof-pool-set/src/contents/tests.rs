use std::sync::Arc;

use pmof_mem::{Medium as _, Memory};

use super::{ContentsState, log_range, memory_state, state_of};
use crate::{
    NewPool, PoolKind,
    format::{DESCRIPTOR, HEAP, OBJ_HEAP_LEN, OBJ_ROOT, clear},
    header::{Checksummed, checksum},
};

const LEN_BYTES: u64 = 8 << 20;
const BLK_LEN_BYTES: u64 = (16 << 20) + 8192;
/// Behind the head of the heap: the head of its first zone.
const ZONE: u64 = HEAP + 1024;

fn made(pool: &NewPool, len_bytes: u64) -> Arc<Memory> {
    let memory = Memory::anonymous(len_bytes).unwrap();
    pool.write(&memory, len_bytes).unwrap();
    Arc::new(memory)
}

fn obj() -> Arc<Memory> {
    made(&NewPool::Obj { layout: "lay".into() }, LEN_BYTES)
}

fn blank() -> Arc<Memory> {
    Arc::new(Memory::anonymous(LEN_BYTES).unwrap())
}

/// What is wrong; empty where nothing is.
fn damage(kind: PoolKind, memory: &Arc<Memory>) -> &'static str {
    match memory_state(Some(kind), memory).unwrap() {
        ContentsState::Sound => "",
        ContentsState::Empty => panic!("it holds something"),
        ContentsState::Damaged(damage) => damage,
    }
}

/// Gives a structure that was changed a checksum that fits.
fn reseal(memory: &Memory, offset: u64, len_bytes: usize) {
    let mut bytes = vec![0; len_bytes];
    memory.read(offset, &mut bytes).unwrap();
    let sum = checksum(&bytes, &Checksummed { field: len_bytes - 8, end: len_bytes });
    memory.store(offset + len_bytes as u64 - 8, &sum.to_le_bytes()).unwrap();
}

#[test]
fn bytes_of_pools_of_objects_that_are_wrong_are_found() {
    for (offset, change, expected) in [
        (DESCRIPTOR + 3, &b"x"[..], "checksum of its descriptor"),
        (HEAP + 40, b"\x01", "checksum of its heap's head"),
        (OBJ_HEAP_LEN + 4, b"\x01", "heap is longer"),
        (OBJ_HEAP_LEN, &[0; 8], "heap is shorter"),
        (OBJ_ROOT + 8, b"\x03", "odd"),
        (ZONE, b"\x01", "head of a zone"),
        // An object in a zone that was never used.
        (OBJ_ROOT, &(HEAP + (1 << 20)).to_le_bytes(), "root object is blank"),
        (100, b"x", ""),
    ] {
        let memory = obj();
        assert_eq!(damage(PoolKind::Obj, &memory), "");
        memory.store(offset, change).unwrap();
        let found = damage(PoolKind::Obj, &memory);
        assert!(found.is_empty() == expected.is_empty() && found.contains(expected), "{offset}: {found:?}");
    }
}

#[test]
fn fields_of_pools_of_objects_that_cannot_be_are_found_whatever_the_checksum() {
    for (start, len_bytes, field, expected) in [
        (DESCRIPTOR, 2048, 1024, "lanes"),
        (DESCRIPTOR, 2048, 1032, "lanes"),
        (DESCRIPTOR, 2048, 1040, "lanes"),
        (HEAP, 1024, 0, "no signature"),
        (HEAP, 1024, 8, "no signature"),
    ] {
        for value in [0, 1, 4096, u64::from(u32::MAX), u64::MAX] {
            let memory = obj();
            memory.store(start + field, &value.to_le_bytes()).unwrap();
            reseal(&memory, start, len_bytes);
            let found = damage(PoolKind::Obj, &memory);
            assert!(found.contains(expected), "{field} of {start}, {value}: {found:?}");
        }
    }
}

/// The checksum of zeros is zero.
#[test]
fn zeros_are_no_descriptor_and_no_head() {
    for (ranges, expected) in [
        (std::slice::from_ref(&(DESCRIPTOR..OBJ_ROOT)), "its descriptor is zero"),
        (std::slice::from_ref(&(HEAP..ZONE)), "its heap's head is zero"),
        (&[DESCRIPTOR..OBJ_ROOT, HEAP..ZONE], "are zero, but the rest of it is not"),
        (&[DESCRIPTOR..8192, HEAP..LEN_BYTES], "are zero, but the rest of it is not"),
    ] {
        let memory = obj();
        for range in ranges {
            clear(&*memory, range.clone()).unwrap();
        }
        let found = damage(PoolKind::Obj, &memory);
        assert!(found.contains(expected), "{ranges:?}: {found:?}");
    }
    let memory = made(&NewPool::Log, LEN_BYTES);
    clear(&*memory, DESCRIPTOR..LEN_BYTES).unwrap();
    assert_ne!(damage(PoolKind::Log, &memory), "");
    assert_ne!(damage(PoolKind::Blk, &memory), "");
}

#[test]
fn what_was_never_written_is_empty_until_its_first_byte() {
    for kind in [None, Some(PoolKind::Obj)] {
        let memory = blank();
        // The header, and what a running program keeps for itself.
        memory.store(0, &[7; 4096]).unwrap();
        assert_eq!(memory_state(kind, &memory).unwrap(), ContentsState::Empty);
        for offset in [DESCRIPTOR, 8192 + 5, HEAP, 5 << 20, LEN_BYTES - 1] {
            memory.store(offset, b"x").unwrap();
            let found = memory_state(kind, &memory).unwrap();
            assert_ne!(found, ContentsState::Empty, "{kind:?}, {offset}");
            assert_eq!(kind.is_none(), found == ContentsState::Sound);
            memory.store(offset, b"\0").unwrap();
        }
    }
    let memory = blank();
    memory.store(7000, b"run-time").unwrap();
    assert_eq!(memory_state(Some(PoolKind::Obj), &memory).unwrap(), ContentsState::Empty);
    assert_eq!(memory_state(None, &memory).unwrap(), ContentsState::Sound);
}

/// A client of librpmem may have given it any length.
#[test]
fn pools_of_objects_that_are_too_short_are_reported() {
    let mut memory = blank();
    for len_bytes in [8192, HEAP, HEAP + 1023] {
        assert_eq!(state_of(Some(PoolKind::Obj), &mut memory, len_bytes).unwrap(), ContentsState::Empty);
    }
    memory.store(DESCRIPTOR, b"x").unwrap();
    let found = state_of(Some(PoolKind::Obj), &mut memory, HEAP).unwrap();
    assert!(matches!(found, ContentsState::Damaged(why) if why.contains("shorter")), "{found:?}");
}

#[test]
fn fields_of_logs_that_cannot_be_are_found() {
    let log = || made(&NewPool::Log, LEN_BYTES);
    assert_eq!(damage(PoolKind::Log, &log()), "");
    for (field, values) in [
        (0, &[0, 4096, 8191, 8193, LEN_BYTES, u64::MAX][..]),
        (8, &[0, 8192, LEN_BYTES - 4096, LEN_BYTES - 1, LEN_BYTES + 4096, 1 << 63, u64::MAX]),
        (16, &[0, 8191, LEN_BYTES + 1, 1 << 63, u64::MAX]),
    ] {
        for value in values {
            let memory = log();
            memory.store(DESCRIPTOR + field, &value.to_le_bytes()).unwrap();
            assert_ne!(damage(PoolKind::Log, &memory), "", "{field}: {value}");
        }
    }
    for next in [8192, 8193, LEN_BYTES] {
        let memory = log();
        memory.store(DESCRIPTOR + 16, &next.to_le_bytes()).unwrap();
        assert_eq!(damage(PoolKind::Log, &memory), "", "{next}");
        assert_eq!(log_range(&mut Arc::clone(&memory)).unwrap(), 8192..next);
    }
}

/// The longest that libpmemblk opens in a pool of this length, and the first that it does not.
#[test]
fn lengths_of_blocks_that_a_pool_has_no_room_for_are_found() {
    for (block_len_bytes, is_sound) in
        [(1, true), (511, true), (32_512, true), (32_513, false), (i32::MAX as u32, false), (u32::MAX, false)]
    {
        let memory = made(&NewPool::Blk { block_len_bytes }, BLK_LEN_BYTES);
        let found = damage(PoolKind::Blk, &memory);
        assert_eq!(found.is_empty(), is_sound, "{block_len_bytes}: {found:?}");
    }
}
