use std::{
    fs::{self, File},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use tempfile::tempdir_in;
use thin_disk::ThinDisk;

use crate::{Declaration, FilePart, Medium, MediumKind, MemError, Memory};

const LEN_BYTES: u64 = 4 << 20;
const LOST: u64 = 1 << 20;

fn shown_by(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len_bytes() as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// A file whose first bytes are durable, and whose bytes from `LOST` on are in the page cache only: a flush of them failed.
fn file_after_a_failed_flush(disk: &ThinDisk) -> PathBuf {
    let path = disk.files().join("pool");
    let memory = Memory::create(&path, LEN_BYTES, None).unwrap();
    assert_eq!(memory.kind(), MediumKind::PageCache);
    memory.store(0, &[1; 8192]).unwrap();
    memory.write_back(0, 8192).unwrap();
    memory.fence().unwrap();
    disk.fill().unwrap();
    memory.store(LOST, &vec![2; LOST as usize]).unwrap();
    memory.write_back(LOST, LOST).and_then(|()| memory.fence()).unwrap_err();
    assert!(matches!(memory.fence(), Err(MemError::Poisoned { .. })));
    drop(memory);
    disk.free().unwrap();
    path
}

fn is_lost(bytes: &[u8]) -> bool {
    bytes[..8192] == [1; 8192] && bytes[LOST as usize..2 * LOST as usize].iter().any(|byte| *byte != 2)
}

#[test]
fn after_a_failed_flush_what_is_read_is_on_the_disk() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let path = file_after_a_failed_flush(&disk);
    let memory = Memory::open(&path, None).unwrap();
    // The premise: nothing tells, and a flush that succeeds changes nothing.
    assert!(!is_lost(&shown_by(&memory)));
    memory.write_back(0, LEN_BYTES).unwrap();
    memory.fence().unwrap();
    assert!(is_lost(&ThinDisk::on_disk(&path).unwrap()));
    let settled = memory.settle().unwrap();
    assert_eq!(settled.rewritten_bytes, 0);
    assert!(is_lost(&shown_by(&memory)));
    assert!(shown_by(&memory) == ThinDisk::on_disk(&path).unwrap());
    memory.store(LOST, &[3; 4096]).unwrap();
    memory.fence().unwrap();
    assert_eq!(ThinDisk::on_disk(&path).unwrap()[LOST as usize], 3);
}

#[test]
fn pages_that_somebody_holds_are_compared_with_the_disk() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let path = file_after_a_failed_flush(&disk);
    let holder = Memory::open(&path, None).unwrap();
    assert!(!is_lost(&shown_by(&holder)), "and so its pages are mapped");
    let reader = Memory::open_read_only(&path, None).unwrap();
    let error = reader.settle().unwrap_err();
    assert!(matches!(&error, MemError::Unverified { len_bytes, .. } if (1..=LOST).contains(len_bytes)), "{error}");
    let memory = Memory::open(&path, None).unwrap();
    let settled = memory.settle().unwrap();
    assert!((1..=LOST).contains(&settled.rewritten_bytes), "{settled:?}");
    assert!(is_lost(&shown_by(&memory)) && is_lost(&shown_by(&holder)));
    assert!(shown_by(&memory) == ThinDisk::on_disk(&path).unwrap());
    reader.settle().unwrap();
}

#[test]
fn a_reader_settles_what_nobody_holds() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let path = file_after_a_failed_flush(&disk);
    let memory = Memory::open_read_only(&path, None).unwrap();
    assert!(!is_lost(&shown_by(&memory)));
    memory.settle().unwrap();
    assert!(shown_by(&memory) == ThinDisk::on_disk(&path).unwrap());
}

#[test]
fn a_write_back_that_failed_unseen_is_told_and_its_bytes_go() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let path = disk.files().join("pool");
    let memory = Memory::create(&path, LEN_BYTES, None).unwrap();
    memory.store(0, &[1; 8192]).unwrap();
    memory.fence().unwrap();
    disk.fill().unwrap();
    memory.store(LOST, &vec![2; LOST as usize]).unwrap();
    drop(memory);
    let memory = Memory::open(&path, None).unwrap();
    let settled = memory.settle().unwrap();
    assert!(settled.has_lost_writes, "{settled:?}");
    assert!(is_lost(&shown_by(&memory)));
    assert!(shown_by(&memory) == ThinDisk::on_disk(&path).unwrap());
}

#[test]
fn a_poisoned_memory_stays_poisoned() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let memory = Memory::create(&disk.files().join("pool"), LEN_BYTES, None).unwrap();
    disk.fill().unwrap();
    memory.store(0, &vec![2; LOST as usize]).unwrap();
    memory.write_back(0, LOST).and_then(|()| memory.fence()).unwrap_err();
    disk.free().unwrap();
    memory.settle().unwrap();
    assert!(matches!(memory.fence(), Err(MemError::Poisoned { .. })), "whoever stored has to hear of it");
}

fn part(path: &Path, pages: u64) -> FilePart {
    File::create(path).unwrap().set_len(pages * 4096).unwrap();
    fs::write(path, vec![7; pages as usize * 4096]).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    FilePart { file: file.into(), path: path.into(), file_offset: 4096, len_bytes: (pages - 1) * 4096 }
}

#[test]
fn nothing_is_changed_whatever_the_medium() {
    let anonymous = Memory::anonymous(10_000).unwrap();
    anonymous.store(100, &[5; 100]).unwrap();
    let before = shown_by(&anonymous);
    anonymous.settle().unwrap();
    assert_eq!(shown_by(&anonymous), before);
    let (tmpfs, disk) = (tempdir_in("/dev/shm").unwrap(), tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap());
    for directory in [tmpfs.path(), disk.path()] {
        for declaration in [None, Some(Declaration::MemoryKept), Some(Declaration::BatteryBacked)] {
            let path = directory.join(format!("{declaration:?}"));
            let memory = Memory::create(&path, 10_000, declaration).unwrap();
            memory.store(9_000, &[6; 1_000]).unwrap();
            let before = shown_by(&memory);
            memory.settle().unwrap();
            assert_eq!(shown_by(&memory), before);
            memory.store(9_000, &[8]).unwrap();
            memory.fence().unwrap();
        }
    }
    let parts =
        vec![part(&tmpfs.path().join("a"), 3), part(&disk.path().join("b"), 5), part(&disk.path().join("c"), 2)];
    let memory = Memory::concatenate(parts, true, None).unwrap();
    memory.store(3 * 4096 - 4, &[9; 8]).unwrap();
    let before = shown_by(&memory);
    memory.settle().unwrap();
    assert_eq!(shown_by(&memory), before);
    assert!(memory.file().map(|file| file.as_fd().try_clone_to_owned()).is_none());
}
