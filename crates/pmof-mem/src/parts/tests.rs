use std::{
    fs,
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tempfile::{TempDir, tempdir_in};

use super::{ExistingFile, FilePart, NewFile};
use crate::{
    Declaration, Durability, Evidence, Mechanism, Medium, MediumKind, MemError, Memory, Promise, RegionProbe, System,
    flush::{EARLY_WRITE_MIN_BYTES, Flush},
    judge::{Judgement, Power},
    part_flush::PartFlush,
    sysfs::{fixture::Tree, region_above},
};

const PAGE: u64 = 4096;
const TMPFS: &str = "/dev/shm";
const DISK: &str = env!("CARGO_MANIFEST_DIR");

fn part(path: &Path, file_offset: u64, len_bytes: u64) -> FilePart {
    let file = fs::File::options().read(true).write(true).open(path).unwrap().into();
    FilePart { file, path: path.into(), file_offset, len_bytes }
}

/// Three files of `pages`, all but their first page as one memory.
fn three(parents: [&str; 3], pages: [u64; 3]) -> (Vec<TempDir>, Vec<PathBuf>, Memory) {
    let directories: Vec<_> = parents.iter().map(|parent| tempdir_in(parent).unwrap()).collect();
    let paths: Vec<_> = directories.iter().map(|directory| directory.path().join("part")).collect();
    for (path, pages) in paths.iter().zip(pages) {
        NewFile::create(path, pages * PAGE).unwrap().keep();
    }
    let parts = paths.iter().zip(pages).map(|(path, pages)| part(path, PAGE, (pages - 1) * PAGE));
    let memory = Memory::concatenate(parts.collect(), true, None).unwrap();
    (directories, paths, memory)
}

fn parts_of(memory: &mut Memory) -> &mut Vec<PartFlush> {
    match memory.flush_mut() {
        Flush::Parts(parts) => parts,
        other => panic!("{other:?}"),
    }
}

/// What a flush of one part takes is said, and not what the weakest takes.
#[test]
fn a_range_keeps_what_the_parts_under_it_keep() {
    let directories = [TMPFS, DISK].map(|parent| tempdir_in(parent).unwrap());
    let paths = directories.each_ref().map(|directory| directory.path().join("part"));
    for path in &paths {
        NewFile::create(path, 2 * PAGE).unwrap().keep();
    }
    let parts = paths.iter().map(|path| part(path, 0, 2 * PAGE)).collect();
    let memory = Memory::concatenate(parts, true, Some(Declaration::BatteryBacked)).unwrap();
    let level = Durability::PowerFailure;
    let on_tmpfs = Promise { mechanism: Mechanism::Store, evidence: Evidence::Declared };
    let on_disk = Promise { mechanism: Mechanism::FileSync, evidence: Evidence::Probed };
    let on_both = Promise { mechanism: Mechanism::FileSync, evidence: Evidence::Declared };
    assert_eq!(memory.promise(level), Some(on_both));
    for (offset, len_bytes, expected) in [
        (0, 2 * PAGE, on_tmpfs),
        (8, 8, on_tmpfs),
        (2 * PAGE - 1, 1, on_tmpfs),
        (2 * PAGE - 1, 2, on_both),
        (2 * PAGE, 8, on_disk),
        (0, 4 * PAGE, on_both),
        (0, 0, on_both),
    ] {
        assert_eq!(memory.promise_in(level, offset, len_bytes), Some(expected), "{offset}, {len_bytes}");
        assert_eq!(memory.flush(level, offset, len_bytes).unwrap(), Some(expected));
    }
    assert_eq!(memory.promise_in(Durability::ProcessCrash, 2 * PAGE, 8), memory.promise(Durability::ProcessCrash));
    let paths = paths.iter().map(|path| part(path, 0, 2 * PAGE)).collect();
    let undeclared = Memory::concatenate(paths, true, None).unwrap();
    assert_eq!(undeclared.flush(level, 0, 8).unwrap(), None);
    assert_eq!(undeclared.flush(level, 2 * PAGE, 8).unwrap(), Some(on_disk));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Every method, across every border, against an array of bytes; then the files hold it, each its own piece.
    #[test]
    fn parts_are_one_memory(
        pages in [2_u64..5, 2_u64..5, 2_u64..5],
        steps in prop::collection::vec((0_u64..0x8000, 1_u64..0x3000, any::<u8>()), 1..40),
    ) {
        let (_directories, paths, memory) = three([TMPFS, DISK, TMPFS], pages);
        let len = (pages.iter().sum::<u64>() - 3) * PAGE;
        prop_assert_eq!(memory.len_bytes(), len);
        let mut model = vec![0_u8; len as usize];
        let (mut near, far) = UnixStream::pair().unwrap();
        for (number, (offset, count, seed)) in steps.into_iter().enumerate() {
            let offset = offset % len;
            let count = count.min(len - offset);
            let range = offset as usize..(offset + count) as usize;
            let bytes: Vec<_> = (0..count).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect();
            match number % 4 {
                0 => memory.store(offset, &bytes).unwrap(),
                1 => {
                    near.write_all(&bytes).unwrap();
                    let mut done = 0;
                    while done < count {
                        done += memory.receive(far.as_fd(), offset + done, count - done, &mut []).unwrap() as u64;
                    }
                }
                2 => memory.atomic_store(offset & !7, u64::from(seed)).unwrap(),
                _ => {
                    let mut found = vec![0; count as usize];
                    memory.read(offset, &mut found).unwrap();
                    prop_assert_eq!(&found, &model[range.clone()]);
                    prop_assert_eq!(memory.crc32c(offset, count).unwrap(), crc32c::crc32c(&found));
                    prop_assert_eq!(memory.send(far.as_fd(), &[], offset, count, &[]).unwrap() as u64, count);
                    near.read_exact(&mut found).unwrap();
                    prop_assert_eq!(&found, &model[range.clone()]);
                }
            }
            match number % 4 {
                0 | 1 => model[range].copy_from_slice(&bytes),
                2 => {
                    let at = (offset & !7) as usize;
                    model[at..at + 8].copy_from_slice(&u64::from(seed).to_le_bytes());
                }
                _ => {}
            }
            memory.write_back(offset, count).unwrap();
            memory.fence().unwrap();
        }
        drop(memory);
        let mut rest = model.as_slice();
        for (path, pages) in paths.iter().zip(pages) {
            let (own, others) = rest.split_at(((pages - 1) * PAGE) as usize);
            let file = fs::read(path).unwrap();
            prop_assert!(file[..PAGE as usize].iter().all(|byte| *byte == 0), "what is not mapped is not touched");
            prop_assert_eq!(&file[PAGE as usize..], own);
            rest = others;
        }
    }
}

#[test]
fn atomics_work_on_both_sides_of_a_border() {
    let (_directories, _paths, memory) = three([TMPFS, DISK, TMPFS], [2, 2, 2]);
    for offset in [PAGE - 8, PAGE, 2 * PAGE - 8, 2 * PAGE, 3 * PAGE - 8] {
        assert_eq!(memory.fetch_and_add(offset, 5).unwrap(), 0);
        assert_eq!(memory.compare_and_swap(offset, 5, 9).unwrap(), 5);
    }
    assert!(matches!(memory.store(3 * PAGE - 1, &[1, 2]), Err(MemError::OutOfBounds { size_bytes: 12_288, .. })));
    assert!(memory.address() % super::HUGE_PAGE_BYTES == 0);
}

#[test]
fn the_memory_promises_what_its_weakest_part_does() {
    let power = Durability::PowerFailure;
    let (_directories, paths, memory) = three([DISK, TMPFS, DISK], [2, 2, 2]);
    assert_eq!((memory.kind(), memory.promise(power)), (MediumKind::Tmpfs, None));
    let told = memory.not_durable(power).to_string();
    assert!(told.contains(&paths[1].display().to_string()) && told.contains("tmpfs"), "{told}");
    assert!(memory.evidence().iter().any(|sentence| sentence.starts_with(&paths[2].display().to_string())));
    drop(memory);
    let parts = paths.iter().map(|path| part(path, 0, PAGE)).collect();
    let memory = Memory::concatenate(parts, true, Some(Declaration::BatteryBacked)).unwrap();
    let declared = Promise { mechanism: Mechanism::FileSync, evidence: Evidence::Declared };
    assert_eq!(memory.promise(power), Some(declared), "the files are synced, and the tmpfs is believed");
    let (_directories, _paths, memory) = three([DISK, DISK, DISK], [2, 2, 2]);
    let probed = Promise { mechanism: Mechanism::FileSync, evidence: Evidence::Probed };
    assert_eq!((memory.kind(), memory.promise(power)), (MediumKind::PageCache, Some(probed)));
}

#[test]
fn judgements_are_joined_to_the_weakest() {
    let judgement = |kind, power| Judgement {
        kind,
        file_system: "ext4".into(),
        power,
        evidence: vec!["made up".into()],
        regions: Vec::new(),
        is_filtered: false,
    };
    let lines = || Power::Probed(Mechanism::CacheLineWriteBack);
    let undecided = |mechanism| Power::Undecided { mechanism, why: "?".into() };
    let never = || Power::Never { why: "!".into() };
    for (powers, expected) in [
        ([lines(), Power::Probed(Mechanism::Fence)], "Probed(CacheLineWriteBack)"),
        ([lines(), Power::Probed(Mechanism::FileSync)], "Probed(FileSync)"),
        ([lines(), undecided(Mechanism::Store)], "Undecided { mechanism: CacheLineWriteBack"),
        ([undecided(Mechanism::FileSync), undecided(Mechanism::Store)], "Undecided { mechanism: FileSync"),
        ([never(), lines()], "Never"),
        ([undecided(Mechanism::Store), never()], "Never"),
    ] {
        for powers in [powers.clone(), {
            let [one, other] = powers;
            [other, one]
        }] {
            let parts = powers.map(|power| judgement(MediumKind::FsDax, power));
            let whole = Judgement::of_parts(parts.iter().map(|part| (Path::new("/p"), part)));
            assert!(format!("{:?}", whole.power).starts_with(expected), "{:?}", whole.power);
        }
    }
    let tree = Tree::new();
    let region = |number| region_above(&tree.region(number, None, "nd")).unwrap();
    let (first, second) = (region(0), region(1));
    let on = |regions: &[&RegionProbe]| Judgement {
        regions: regions.iter().map(|region| (*region).clone()).collect(),
        ..judgement(MediumKind::FsDax, lines())
    };
    let parts = [on(&[&first]), on(&[&second, &first]), on(&[])];
    let whole = Judgement::of_parts(parts.iter().map(|part| (Path::new("/p"), part)));
    assert_eq!(whole.regions, [first, second], "each once");
    let kinds = [MediumKind::DevDax, MediumKind::FsDax, MediumKind::PageCache].map(|kind| judgement(kind, lines()));
    let whole = Judgement::of_parts(kinds.iter().map(|part| (Path::new("/p"), part)));
    assert_eq!((whole.kind, whole.file_system.as_str(), whole.evidence.len()), (MediumKind::PageCache, "ext4", 3));
}

/// fdatasync of a pipe fails: a fence that fails is a fence that asked.
#[test]
fn each_part_is_flushed_by_its_own_file_and_names_it() {
    let (_directories, paths, mut memory) = three([DISK, DISK, DISK], [2, 2, 2]);
    memory.fence().unwrap();
    parts_of(&mut memory)[1].file = rustix::pipe::pipe().unwrap().1;
    memory.write_back(0, PAGE).unwrap();
    memory.write_back(2 * PAGE, PAGE).unwrap();
    memory.fence().unwrap();
    // One byte on each side of the border.
    memory.write_back(2 * PAGE - 1, 2).unwrap();
    match memory.fence() {
        Err(MemError::Io { call: "fdatasync", path, .. }) => assert_eq!(path, paths[1]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(memory.fence(), Err(MemError::Poisoned { path }) if path == paths[1]));
    memory.write_back(0, PAGE).unwrap();
    assert!(matches!(memory.write_back(0, 3 * PAGE), Err(MemError::Poisoned { .. })));
}

#[test]
fn a_long_range_is_written_early_at_its_place_in_each_file() {
    let pages = EARLY_WRITE_MIN_BYTES / PAGE + 2;
    let (_directories, _paths, memory) = three([DISK, DISK, TMPFS], [pages, pages, pages]);
    memory.store(PAGE, &vec![7; 2 * EARLY_WRITE_MIN_BYTES as usize]).unwrap();
    memory.write_back(PAGE, 2 * EARLY_WRITE_MIN_BYTES).unwrap();
    memory.fence().unwrap();
}

#[test]
fn one_part_is_a_piece_of_a_file() {
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path().join("part");
    NewFile::create(&path, 3 * PAGE).unwrap().keep();
    let memory = Memory::concatenate(vec![part(&path, PAGE, PAGE)], true, None).unwrap();
    assert_eq!((memory.len_bytes(), memory.file_offset(), memory.path()), (PAGE, PAGE, path.as_path()));
    assert!(memory.file().is_some() && memory.is_writable());
    memory.store(0, b"here").unwrap();
    memory.write_back(0, 4).unwrap();
    memory.fence().unwrap();
    assert_eq!(&fs::read(&path).unwrap()[PAGE as usize..][..4], b"here");
    let memory = Memory::concatenate(vec![part(&path, PAGE, PAGE)], false, None).unwrap();
    assert!(!memory.is_writable());
    assert!(matches!(memory.store(0, b"x"), Err(MemError::ReadOnly { .. })));
}

#[test]
fn what_cannot_be_a_part_is_refused_by_name() {
    let directory = tempdir_in(DISK).unwrap();
    let path = |name: &str| directory.path().join(name);
    NewFile::create(&path("good"), 4 * PAGE).unwrap().keep();
    fs::File::create(path("sparse")).unwrap().set_len(4 * PAGE).unwrap();
    let joined = |second: FilePart| Memory::concatenate(vec![part(&path("good"), 0, PAGE), second], true, None);
    for (file, offset, len, why) in [("good", PAGE, 4 * PAGE, "shorter"), ("sparse", 0, PAGE, "holes")] {
        match joined(part(&path(file), offset, len)) {
            Err(MemError::Unsuitable { path: told, why: said, .. }) => {
                assert!(told == path(file) && said.contains(why), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
    for (offset, len) in [(0, 0), (1, PAGE), (0, PAGE + 1), (0, u64::MAX), (u64::MAX - PAGE + 1, PAGE)] {
        let outcome = joined(part(&path("good"), offset, len));
        assert!(matches!(outcome, Err(MemError::BadLength { .. } | MemError::Unsuitable { .. })), "{outcome:?}");
    }
    assert!(matches!(Memory::concatenate(Vec::new(), true, None), Err(MemError::BadLength { .. })));
    let read_only: OwnedFd = fs::File::open(path("good")).unwrap().into();
    let refused = joined(FilePart { file: read_only, path: path("good"), file_offset: 0, len_bytes: PAGE });
    assert!(matches!(&refused, Err(MemError::Io { call: "mmap", path: told, .. }) if *told == path("good")));
}

/// A mapping that fails half-way leaves nothing behind: the addresses can be used again, as often as one likes.
#[test]
fn a_refused_part_leaves_no_mapping() {
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path().join("part");
    NewFile::create(&path, 4 * PAGE).unwrap().keep();
    let mappings = || fs::read_to_string("/proc/self/maps").unwrap().matches(path.to_str().unwrap()).count();
    for _ in 0..100 {
        let read_only: OwnedFd = fs::File::open(&path).unwrap().into();
        let last = FilePart { file: read_only, path: path.clone(), file_offset: 0, len_bytes: PAGE };
        Memory::concatenate(vec![part(&path, 0, PAGE), part(&path, PAGE, PAGE), last], true, None).unwrap_err();
    }
    assert_eq!(mappings(), 0);
    let memory = Memory::concatenate(vec![part(&path, 0, PAGE), part(&path, 2 * PAGE, PAGE)], true, None).unwrap();
    assert_eq!(mappings(), 2);
    drop(memory);
    assert_eq!(mappings(), 0);
}

#[test]
fn a_new_file_that_is_not_kept_goes_again() {
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path().join("part");
    let new = NewFile::create(&path, PAGE).unwrap();
    assert!(path.exists() && NewFile::create(&path, PAGE).is_err());
    drop(new);
    assert!(!path.exists());
    NewFile::create(&path, PAGE).unwrap().keep();
    let found = ExistingFile::open(&path, true).unwrap();
    assert_eq!((found.len_bytes, found.devdax_align_bytes), (PAGE, None));
    assert!(System::real().sysfs_root().is_absolute());
}

/// It dies with the last process that holds it, on whatever disk it lies.
#[test]
fn a_part_without_a_name_survives_nothing() {
    let (_directories, paths, memory) = three([DISK, DISK, DISK], [2, 2, 2]);
    assert!(memory.promise(Durability::ProcessCrash).is_some());
    drop(memory);
    for nameless in [1, 2] {
        let parts: Vec<_> = paths[..nameless].iter().map(|path| part(path, 0, PAGE)).collect();
        fs::remove_file(&paths[nameless - 1]).unwrap();
        let memory = Memory::concatenate(parts, true, Some(Declaration::BatteryBacked)).unwrap();
        assert_eq!(memory.kind(), MediumKind::Anonymous);
        for level in [Durability::ProcessCrash, Durability::PowerFailure] {
            assert_eq!(memory.promise(level), None, "{nameless} {level}");
        }
        NewFile::create(&paths[nameless - 1], 2 * PAGE).unwrap().keep();
    }
}

#[test]
fn each_part_is_settled_by_its_own_file() {
    let (_directories, paths, mut memory) = three([DISK, DISK, DISK], [2, 2, 2]);
    memory.settle().unwrap();
    parts_of(&mut memory)[1].file = rustix::pipe::pipe().unwrap().1;
    assert!(matches!(memory.settle(), Err(MemError::Io { call: "fdatasync", path, .. }) if path == paths[1]));
}

/// A process that waits for the lock of a file that is being created gets it when the name is removed, or when the file is kept.
#[test]
fn a_new_file_is_locked_until_its_name_is_gone() {
    for _ in 0..200 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let new = NewFile::create(&path, PAGE).unwrap();
        let other = fs::File::open(&path).unwrap();
        let lock = || flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock(), Err(Errno::WOULDBLOCK));
        let is_waiting = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let links = scope.spawn(|| {
                is_waiting.wait();
                while lock().is_err() {}
                std::os::unix::fs::MetadataExt::nlink(&other.metadata().unwrap())
            });
            is_waiting.wait();
            drop(new);
            assert_eq!(links.join().unwrap(), 0, "it is locked by another, and removed after that");
        });
    }
}
