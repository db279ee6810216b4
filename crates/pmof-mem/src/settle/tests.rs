use std::{
    fs::{self, File},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use syscall_recorder::{Call, Verdict, record};
use tempfile::tempdir_in;
use thin_disk::{Cached, ThinDisk};

use super::Pages;
use crate::{
    Declaration, FilePart, Mechanism, Medium, MediumKind, MemError, Memory, Settled,
    flush::Flushed,
    judge::{Judgement, Power},
    mapping::Mapping,
};

const LEN_BYTES: u64 = 4 << 20;
const LOST: u64 = 1 << 20;

fn shown_by(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len_bytes() as usize];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// A file whose first bytes are durable, and whose bytes from `LOST` on are in the page cache only: a flush of them failed. What keeps them
/// there is to be dropped before anybody wants the cache to forget them.
fn file_after_a_failed_flush(disk: &ThinDisk) -> (PathBuf, Cached) {
    file_of_len_after_a_failed_flush(disk, LEN_BYTES)
}

fn file_of_len_after_a_failed_flush(disk: &ThinDisk, len_bytes: u64) -> (PathBuf, Cached) {
    let path = disk.files().join("pool");
    let memory = Memory::create(&path, len_bytes, None).unwrap();
    let lost_bytes = LOST.min(len_bytes - LOST);
    assert_eq!(memory.kind(), MediumKind::PageCache);
    memory.store(0, &[1; 8192]).unwrap();
    memory.write_back(0, 8192).unwrap();
    memory.fence().unwrap();
    let cached = Cached::new(&path, LOST, lost_bytes as usize).unwrap();
    disk.fill().unwrap();
    memory.store(LOST, &vec![2; lost_bytes as usize]).unwrap();
    memory.write_back(LOST, lost_bytes).and_then(|()| memory.fence()).unwrap_err();
    assert!(matches!(memory.fence(), Err(MemError::Poisoned { .. })));
    drop(memory);
    disk.free().unwrap();
    (path, cached)
}

fn is_lost(bytes: &[u8]) -> bool {
    bytes[..8192] == [1; 8192] && bytes[LOST as usize..2 * LOST as usize].iter().any(|byte| *byte != 2)
}

#[test]
fn after_a_failed_flush_what_is_read_is_on_the_disk() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let (path, cached) = file_after_a_failed_flush(&disk);
    let memory = Memory::open(&path, None).unwrap();
    // The premise: nothing tells, and a flush that succeeds changes nothing.
    assert!(!is_lost(&shown_by(&memory)));
    memory.write_back(0, LEN_BYTES).unwrap();
    memory.fence().unwrap();
    assert!(is_lost(&ThinDisk::on_disk(&path).unwrap()));
    drop(cached);
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
    let (path, cached) = file_after_a_failed_flush(&disk);
    let holder = Memory::open(&path, None).unwrap();
    assert!(!is_lost(&shown_by(&holder)), "and so its pages are mapped");
    drop(cached);
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

/// Direct writes are of whole sectors, and the last page of a file may end within one.
#[test]
fn the_last_page_of_a_file_is_compared_too_wherever_it_ends() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let (path, cached) = file_of_len_after_a_failed_flush(&disk, 2 * LOST - 4096 + 700);
    let holder = Memory::open(&path, None).unwrap();
    assert_eq!(shown_by(&holder).last(), Some(&2));
    assert_eq!(ThinDisk::on_disk(&path).unwrap().last(), Some(&0), "the end of the file was lost");
    drop(cached);
    let memory = Memory::open(&path, None).unwrap();
    assert!(memory.settle().unwrap().rewritten_bytes > 0);
    assert!(shown_by(&memory) == ThinDisk::on_disk(&path).unwrap());
    assert!(shown_by(&holder) == shown_by(&memory));
}

#[test]
fn a_reader_settles_what_nobody_holds() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let (path, cached) = file_after_a_failed_flush(&disk);
    let memory = Memory::open_read_only(&path, None).unwrap();
    assert!(!is_lost(&shown_by(&memory)));
    drop(cached);
    memory.settle().unwrap();
    assert!(shown_by(&memory) == ThinDisk::on_disk(&path).unwrap());
}

#[test]
fn a_write_back_that_failed_unseen_is_reported_and_its_bytes_go() {
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

/// So that settling costs no comparison where nobody holds pages.
#[test]
fn pages_that_nobody_holds_are_gone_once_dropped() {
    let directory = tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("pool");
    fs::write(&path, [7; 10_000]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    if Memory::open(&path, None).unwrap().kind() != MediumKind::PageCache {
        return skip_report::skipped!("the sources do not lie behind the page cache");
    }
    let mapping = Mapping::of_file(file.as_fd(), 10_000, false, false).unwrap();
    let flushed = Flushed { path: &path, file: Some(file.as_fd()), file_offset: 0, mapping_offset: 0 };
    let pages = Pages::new(flushed, file.as_fd(), &mapping, 0, 10_000).unwrap();
    mapping.read(0, &mut [0; 10_000]).unwrap();
    assert_eq!(pages.resident_bytes().unwrap(), 3 * 4096);
    assert_eq!(pages.drop_cached().unwrap(), 0);
}

#[test]
fn what_was_done_to_the_parts_was_done_to_the_whole() {
    let of = |has_lost_writes, rewritten_bytes| Settled { has_lost_writes, rewritten_bytes };
    assert_eq!(of(true, 3).join(of(false, 4)), of(true, 7));
    assert_eq!(of(false, 0).join(of(true, 5)), of(true, 5));
    assert_eq!(of(false, 0).join(of(false, 0)), of(false, 0));
}

/// The file of 10,000 sevens at `path`, judged to be of `kind`.
fn as_if(kind: MediumKind, mechanism: Mechanism, path: &Path, is_writable: bool) -> Memory {
    fs::write(path, [7; 10_000]).unwrap();
    let file = File::options().read(true).write(is_writable).open(path).unwrap();
    let mapping = Mapping::of_file(file.as_fd(), 10_000, is_writable, false).unwrap();
    let judgement = Judgement {
        kind,
        file_system: "ext4".into(),
        power: Power::Probed(mechanism),
        evidence: vec!["made up by a test".into()],
        regions: Vec::new(),
        is_filtered: false,
    };
    Memory::assemble(path.into(), Some(file.into()), mapping, judgement, None)
}

/// Settles while flushes of the file get this verdict; also how many there were. `None` where they cannot be seen.
fn settled_with(memory: &Memory, path: &Path, verdict: Verdict) -> Option<(Result<Settled, MemError>, usize)> {
    let judge = |call: &Call| if call.is_sync_of(path) { verdict } else { Verdict::Pass };
    let outcome = record(judge, || memory.settle()).inspect_err(|error| skip_report::skipped!("{error}"));
    outcome.ok().map(|(settled, calls)| (settled, calls.iter().filter(|call| call.is_sync_of(path)).count()))
}

/// The host's page cache is out of reach, so that nothing but a write brings its disk into agreement.
#[test]
fn where_the_host_caches_every_page_is_written_again_and_flushed() {
    let directory = tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("pool");
    for (is_writable, expected_bytes, expected_flushes) in [(true, 3 * 4096, 2), (false, 0, 1)] {
        let memory = as_if(MediumKind::VirtioPmem, Mechanism::FileSync, &path, is_writable);
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let Settled { has_lost_writes, rewritten_bytes } = memory.settle().unwrap();
        let is_stored_to = fs::metadata(&path).unwrap().modified().unwrap() > SystemTime::UNIX_EPOCH;
        assert_eq!(is_stored_to, is_writable, "a store through a mapping changes the time of the file");
        assert_eq!((has_lost_writes, rewritten_bytes), (false, expected_bytes));
        assert_eq!(shown_by(&memory), [7; 10_000]);
        let Some((settled, flushes)) = settled_with(&memory, &path, Verdict::Pass) else { return };
        assert_eq!((settled.unwrap().rewritten_bytes, flushes), (expected_bytes, expected_flushes));
    }
}

/// An earlier user of a file on DAX may not have used `MAP_SYNC`.
#[test]
fn a_file_on_dax_is_flushed_by_the_kernel_once() {
    const EIO: i32 = 5;
    const EINVAL: i32 = 22;
    let directory = tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("pool");
    for mechanism in [Mechanism::Fence, Mechanism::CacheLineWriteBack] {
        let memory = as_if(MediumKind::FsDax, mechanism, &path, true);
        // A devdax device has no fsync.
        for verdict in [Verdict::Pass, Verdict::Fail(EINVAL)] {
            let Some((settled, flushes)) = settled_with(&memory, &path, verdict) else { return };
            assert_eq!((settled.unwrap(), flushes), (Settled::default(), 1));
        }
        let Some((settled, _)) = settled_with(&memory, &path, Verdict::Fail(EIO)) else { return };
        let error = settled.unwrap_err();
        assert!(matches!(&error, MemError::Io { source, .. } if source.raw_os_error() == Some(EIO)), "{error}");
    }
}
