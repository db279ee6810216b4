use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::{MetadataExt, symlink},
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    sync::Arc,
};

use crate::causes;
use rustix::fs::{FlockOperation, flock};
use tempfile::{TempDir, tempdir_in};

use super::{Flush, LEN_BYTES_MAX, Memory, PWRITE_MAX_BYTES};
use crate::{
    CacheWriteBack, Declaration, Durability, Evidence, Lent, Mechanism, Medium, MediumKind, MemError, Promise,
    SyncChoice, SyncMethod,
    flush::{EARLY_WRITE_MIN_BYTES, promise_of},
    judge::{Judgement, Power},
    mapping::Mapping,
    sync_calls::waits_in_cache,
};

const BATTERY: Option<Declaration> = Some(Declaration::BatteryBacked);
const TMPFS: &str = "/dev/shm";
const DISK: &str = env!("CARGO_MANIFEST_DIR");

fn directories() -> [TempDir; 2] {
    [TMPFS, DISK].map(|parent| tempdir_in(parent).unwrap())
}

fn names(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn bytes_at(medium: &impl Medium, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    medium.read(offset, &mut bytes).unwrap();
    bytes
}

/// Memory as on DAX, by what is asked of the CPU; the bytes are ordinary ones.
pub(super) fn as_if_dax(kind: MediumKind, mechanism: Mechanism) -> Memory {
    let judgement = Judgement {
        kind,
        file_system: "ext4".into(),
        power: Power::Probed(mechanism),
        evidence: vec!["made up by a test".into()],
        regions: Vec::new(),
        is_filtered: false,
    };
    Memory::assemble("(test)".into(), None, Mapping::anonymous(1 << 16).unwrap(), judgement, None)
}

#[test]
fn what_is_stored_is_read_and_outlives_the_mapping() {
    for directory in directories() {
        let path = directory.path().join("pool");
        let memory = Memory::create(&path, 10_000, None).unwrap();
        assert_eq!((memory.len_bytes(), memory.path()), (10_000, path.as_path()));
        assert!(memory.file().is_some() && !memory.evidence().is_empty());
        memory.store(9_990, b"0123456789").unwrap();
        memory.atomic_store(8, 0x0102).unwrap();
        memory.write_back(0, 10_000).unwrap();
        memory.fence().unwrap();
        drop(memory);
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o7777, found.len()), (0o600, 10_000));
        assert!(found.blocks() * 512 >= 10_000, "space is allocated");
        assert_eq!(&fs::read(&path).unwrap()[8..10], &[2, 1], "numbers are little-endian");
        let memory = Memory::open(&path, None).unwrap();
        assert_eq!(bytes_at(&memory, 9_990, 10), b"0123456789");
        assert_eq!(memory.crc32c(9_990, 10).unwrap(), crc32c::crc32c(b"0123456789"));
    }
}

#[test]
fn a_file_that_is_there_is_never_created_again() {
    for directory in directories() {
        let path = directory.path().join("pool");
        fs::write(&path, "mine").unwrap();
        symlink(directory.path().join("elsewhere"), directory.path().join("link")).unwrap();
        for name in ["pool", "link"] {
            let error = Memory::create(&directory.path().join(name), 4096, None).unwrap_err();
            assert!(matches!(&error, MemError::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists));
        }
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert!(!directory.path().join("elsewhere").exists());
        let error = Memory::create(&directory.path().join("no/such"), 4096, None).unwrap_err();
        assert!(matches!(error, MemError::Io { call: "open", .. }), "{error}");
    }
}

#[test]
fn without_room_nothing_is_left_behind() {
    for directory in directories() {
        for len_bytes in [1 << 46, LEN_BYTES_MAX] {
            let error = Memory::create(&directory.path().join("pool"), len_bytes, None).unwrap_err();
            assert!(matches!(error, MemError::NoSpace { len_bytes: told, .. } if told == len_bytes), "{error}");
            assert_eq!(names(directory.path()), [""; 0]);
        }
    }
    assert!(matches!(Memory::anonymous(1 << 62), Err(MemError::NoSpace { .. })));
}

#[test]
fn lengths_that_cannot_be_are_refused_before_anything_is_made() {
    let directory = tempdir_in(TMPFS).unwrap();
    for len_bytes in [0, LEN_BYTES_MAX + 1, u64::MAX] {
        let made = Memory::create(&directory.path().join("pool"), len_bytes, None);
        for outcome in [made, Memory::anonymous(len_bytes)] {
            assert!(matches!(outcome, Err(MemError::BadLength { .. })), "{len_bytes}");
        }
    }
    assert_eq!(names(directory.path()), [""; 0]);
}

#[test]
fn what_cannot_be_mapped_is_refused_by_name() {
    for directory in directories() {
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("directory")).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        fs::write(path("empty"), "").unwrap();
        fs::File::create(path("sparse")).unwrap().set_len(1 << 20).unwrap();
        fs::write(path("whole"), [1; 8192]).unwrap();
        symlink(path("whole"), path("link")).unwrap();
        for (name, expected) in [
            ("directory", "directory"),
            ("socket", "socket"),
            ("pipe", "pipe"),
            ("empty", "empty"),
            ("sparse", "holes"),
            ("link", "link"),
        ] {
            for outcome in [Memory::open(&path(name), None), Memory::open_read_only(&path(name), None)] {
                let error = outcome.unwrap_err();
                assert!(matches!(error, MemError::Unsuitable { .. }), "{error:?}");
                assert!(causes(&error).to_string().contains(expected), "{name}: {error}");
            }
        }
        assert!(matches!(Memory::open(&path("nothing"), None), Err(MemError::Io { .. })));
        Memory::open(&path("whole"), None).unwrap();
    }
    assert!(matches!(Memory::open(Path::new("/dev/zero"), None), Err(MemError::Unsuitable { .. })));
}

#[test]
fn read_only_memory_refuses_every_change() {
    for directory in directories() {
        let path = directory.path().join("pool");
        fs::write(&path, [6; 4096]).unwrap();
        let memory = Memory::open_read_only(&path, None).unwrap();
        let swap = memory.compare_and_swap(0, 1, 2).map(drop);
        let add = memory.fetch_and_add(0, 1).map(drop);
        for outcome in [memory.store(0, &[1]), memory.atomic_store(0, 1), swap, add] {
            assert!(matches!(&outcome, Err(MemError::ReadOnly { path: told }) if *told == path), "{outcome:?}");
        }
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"x").unwrap();
        let error = memory.receive(far.as_fd(), 0, 1, &mut []).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(memory.receive(far.as_fd(), 0, 0, &mut [0; 9]).unwrap(), 1, "none of it is for the memory");
        assert_eq!(memory.send(far.as_fd(), &[], 0, 4, &[]).unwrap(), 4);
        // What another process left in the page cache can still be made durable.
        memory.write_back(0, 4096).unwrap();
        memory.fence().unwrap();
        assert_eq!(bytes_at(&memory, 0, 4096), [6; 4096]);
    }
}

#[test]
fn promises_are_those_of_the_medium() {
    let power = Durability::PowerFailure;
    let store = Some(Promise { mechanism: Mechanism::Store, evidence: Evidence::Probed });
    let [tmpfs, disk] = directories();
    for (declaration, expected) in
        [(None, None), (BATTERY, Some(Promise { mechanism: Mechanism::Store, evidence: Evidence::Declared }))]
    {
        let path = tmpfs.path().join(format!("{declaration:?}"));
        let memory = Memory::create(&path, 4096, declaration).unwrap();
        assert_eq!((memory.kind(), memory.file_system()), (MediumKind::Tmpfs, "tmpfs"));
        assert_eq!(memory.evidence()[0], "statfs: magic 0x1021994: tmpfs");
        assert_eq!((memory.promise(Durability::ProcessCrash), memory.promise(power)), (store, expected));
        let again = Memory::open(&path, declaration).unwrap();
        assert_eq!(again.promise(power), expected);
    }
    let memory = Memory::create(&disk.path().join("pool"), 4096, None).unwrap();
    assert_eq!(memory.kind(), MediumKind::PageCache);
    assert_eq!(memory.promise(Durability::Visible), store);
    let file_sync = Promise { mechanism: Mechanism::FileSync, evidence: Evidence::Probed };
    assert_eq!(memory.promise(power), Some(file_sync), "{:?}", memory.evidence());
}

#[test]
fn a_refusal_names_the_medium_and_the_mend() {
    let anonymous = Memory::anonymous(4096).unwrap();
    assert_eq!(anonymous.promise(Durability::ProcessCrash), None);
    let told = anonymous.not_durable(Durability::ProcessCrash).to_string();
    assert!(
        told.contains("process-crash") && told.contains("anonymous") && told.contains("keep it in a file"),
        "{told}"
    );
    let directory = tempdir_in(TMPFS).unwrap();
    let memory = Memory::create(&directory.path().join("pool"), 4096, None).unwrap();
    let told = memory.not_durable(Durability::PowerFailure).to_string();
    assert!(told.contains("pool") && told.contains("tmpfs") && told.contains("battery-backed"), "{told}");
}

#[test]
fn ranges_and_alignment_are_checked() {
    let memory = Memory::anonymous(4096).unwrap();
    for offset in [4096, u64::MAX] {
        for outcome in [
            memory.read(offset, &mut [0]),
            memory.store(offset, &[0]),
            memory.atomic_store(offset & !7, 0),
            memory.write_back(offset, 1),
            memory.crc32c(offset, 1).map(drop),
        ] {
            assert!(matches!(outcome, Err(MemError::OutOfBounds { size_bytes: 4096, .. })), "{offset}: {outcome:?}");
        }
    }
    assert!(matches!(memory.fetch_and_add(4, 1), Err(MemError::Misaligned { offset: 4 })));
    memory.store(4096, &[]).unwrap();
    let (_near, far) = UnixStream::pair().unwrap();
    for outcome in [memory.receive(far.as_fd(), 4090, 7, &mut []), memory.send(far.as_fd(), &[], 4090, 7, &[])] {
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn atomics_are_atomic_among_threads() {
    const ROUNDS: u64 = 10_000;
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..ROUNDS).map(|_| memory.fetch_and_add(16, 3).unwrap()).max());
        }
    });
    assert_eq!(memory.compare_and_swap(16, 2 * ROUNDS * 3, 1).unwrap(), 2 * ROUNDS * 3);
    assert_eq!(memory.compare_and_swap(16, 5, 9).unwrap(), 1);
    memory.atomic_store(16, u64::MAX).unwrap();
    assert_eq!(memory.fetch_and_add(16, 2).unwrap(), u64::MAX);
    assert_eq!(bytes_at(&memory, 16, 8), 1_u64.to_le_bytes());
}

#[test]
fn sockets_reach_the_memory_directly() {
    let memory = Memory::anonymous(1 << 16).unwrap();
    let (mut near, far) = UnixStream::pair().unwrap();
    let blocked = memory.receive(far.as_fd(), 0, 16, &mut []).unwrap_err();
    assert_eq!(blocked.kind(), io::ErrorKind::WouldBlock);
    near.write_all(b"payload|next frame").unwrap();
    let mut tail = [0; 64];
    assert_eq!(memory.receive(far.as_fd(), 100, 7, &mut tail).unwrap(), 18);
    assert_eq!((bytes_at(&memory, 100, 8), &tail[..11]), (b"payload\0".to_vec(), &b"|next frame"[..]));
    near.write_all(b"only the tail").unwrap();
    assert_eq!(memory.receive(far.as_fd(), 0, 0, &mut tail).unwrap(), 13);
    assert_eq!(memory.receive(far.as_fd(), 0, 0, &mut []).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(memory.send(far.as_fd(), b"[", 100, 7, b"]").unwrap(), 9);
    assert_eq!(memory.send(far.as_fd(), &[], 100, 0, &[]).unwrap(), 0);
    let mut came = [0; 9];
    near.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"[payload]");
    drop(near);
    assert_eq!(memory.receive(far.as_fd(), 0, 16, &mut []).unwrap(), 0, "end of the stream");
    // Rust ignores SIGPIPE from the start; with its own action the signal would end the tests.
    // SAFETY: the default action is no handler of ours, and no other test writes to a broken pipe.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let broken = memory.send(far.as_fd(), b"x", 0, 0, &[]).unwrap_err();
    // SAFETY: ignoring a signal runs no handler; it is what Rust set before.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
}

/// fdatasync of a pipe fails: a fence that fails is a fence that asked.
fn with_failing_file() -> (TempDir, Memory) {
    let directory = tempdir_in(DISK).unwrap();
    let mut memory = Memory::create(&directory.path().join("pool"), 4 << 20, None).unwrap();
    memory.fence().unwrap();
    memory.file = Some(rustix::pipe::pipe().unwrap().1);
    (directory, memory)
}

#[test]
fn a_fence_flushes_the_file_only_if_something_was_written_back() {
    let (_directory, memory) = with_failing_file();
    assert!(matches!(memory.flush, Flush::Sync(_)));
    memory.fence().unwrap();
    memory.store(0, &[1]).unwrap();
    memory.fence().unwrap();
    memory.write_back(0, 1).unwrap();
    assert!(matches!(memory.fence(), Err(MemError::Io { call: "fdatasync", .. })));
}

#[test]
fn the_first_fence_flushes_what_a_process_before_may_have_left() {
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path().join("pool");
    drop(Memory::create(&path, 4096, None).unwrap());
    let mut memory = Memory::open(&path, None).unwrap();
    memory.file = Some(rustix::pipe::pipe().unwrap().1);
    assert!(matches!(memory.fence(), Err(MemError::Io { call: "fdatasync", .. })));
}

#[test]
fn a_failed_flush_poisons_the_medium() {
    let (_directory, memory) = with_failing_file();
    memory.write_back(0, 1).unwrap();
    memory.fence().unwrap_err();
    for outcome in [memory.fence(), memory.write_back(0, 1), memory.write_back(0, EARLY_WRITE_MIN_BYTES)] {
        assert!(matches!(outcome, Err(MemError::Poisoned { .. })), "{outcome:?}");
    }
}

#[test]
fn a_synced_range_vouches_for_nothing_else() {
    let directory = tempdir_in(DISK).unwrap();
    let memory = Memory::create(&directory.path().join("pool"), 1 << 20, None).unwrap();
    memory.sync_range(100, 8).unwrap();
    assert!(matches!(memory.sync_range(1 << 20, 1), Err(MemError::OutOfBounds { .. })));
    let Flush::Sync(state) = &memory.flush else { panic!("a file on disk is flushed") };
    assert_eq!(state.turns.covered(), 0, "it vouches for nothing else");
    memory.fence().unwrap();
}

/// Behind the page cache, with all of it on the disk. `None` where the build lies elsewhere.
fn flushed_file(directory: &TempDir) -> Option<Memory> {
    let memory = Memory::create(&directory.path().join("pool"), 1 << 20, None).unwrap();
    if !memory.uses_pwrite {
        skip_report::skipped!("the build directory lies on {}, or file sizes are limited", memory.kind());
        return None;
    }
    memory.fence().unwrap();
    Some(memory)
}

#[test]
fn a_short_store_uses_pwrite_where_the_page_was_flushed() {
    let directory = tempdir_in(DISK).unwrap();
    let Some(mut memory) = flushed_file(&directory) else { return };
    // Another file receives what pwrite stores.
    let other_path = directory.path().join("other");
    fs::write(&other_path, vec![0; 1 << 20]).unwrap();
    let other = fs::OpenOptions::new().read(true).write(true).open(&other_path).unwrap();
    memory.file = Some(other.into());
    let stored = |memory: &Memory, offset: u64, value: u8| -> bool {
        memory.store(offset, &[value; 16]).unwrap();
        let is_in_other = fs::read(&other_path).unwrap()[offset as usize] == value;
        assert_ne!(is_in_other, bytes_at(memory, offset, 1) == [value], "it is in one of them");
        is_in_other
    };
    assert!(stored(&memory, 0, 1));
    assert!(!stored(&memory, 32, 2), "the page is dirty: a write-back of it may begin at any time");
    assert!(stored(&memory, 128 << 10, 3), "another page is clean");
    memory.atomic_store(512 << 10, 4).unwrap();
    assert!(!stored(&memory, (512 << 10) + 8, 5), "a store through the mapping dirties too");
    memory.write_back(0, 1).unwrap();
    memory.fence().unwrap();
    assert!(stored(&memory, 64, 6) && stored(&memory, (512 << 10) + 64, 7), "all of it was flushed");
    let long = vec![8; PWRITE_MAX_BYTES + 8];
    memory.store(256 << 10, &long).unwrap();
    assert_eq!(bytes_at(&memory, 256 << 10, long.len()), long, "a long store goes through the mapping");
}

#[test]
fn what_pwrite_cannot_store_goes_through_the_mapping() {
    let directory = tempdir_in(DISK).unwrap();
    let Some(mut memory) = flushed_file(&directory) else { return };
    memory.file = Some(rustix::pipe::pipe().unwrap().1);
    memory.store(8, b"stored").unwrap();
    assert_eq!(bytes_at(&memory, 8, 6), b"stored");
    assert!(matches!(memory.store(1 << 20, b"x"), Err(MemError::OutOfBounds { .. })));
}

#[test]
fn pwrite_does_not_extend_a_file_that_was_truncated() {
    let directory = tempdir_in(DISK).unwrap();
    let Some(memory) = flushed_file(&directory) else { return };
    let path = directory.path().join("pool");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert!(matches!(memory.store(8192, b"lost"), Err(MemError::MediumFailed { .. })));
    assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
}

/// By `cachestat(2)`: what a flush left out is seen, whatever call it was.
#[test]
fn a_fence_leaves_nothing_dirty_that_was_written_back() {
    let directory = tempdir_in(DISK).unwrap();
    for method in SyncMethod::ALL {
        let path = directory.path().join(method.to_string());
        let memory = Memory::create(&path, 4 << 20, None).unwrap().synced_by(SyncChoice::always(method));
        memory.fence().unwrap();
        let waits = |offset: u64| waits_in_cache(memory.file().unwrap(), offset, 4096);
        // Short ones by pwrite, of a clean and then of a dirty unit, one through the mapping, and the last bytes of the file.
        let places = [(1 << 20, 512), ((1 << 20) + 4096, 512), (2 << 20, 200 << 10), ((4 << 20) - 8, 8)];
        for round in 0..3_u8 {
            for (offset, len_bytes) in places {
                memory.store(offset, &vec![round + 1; len_bytes]).unwrap();
                memory.write_back(offset, len_bytes as u64).unwrap();
            }
            memory.atomic_store(3 << 20, u64::from(round)).unwrap();
            memory.write_back(3 << 20, 8).unwrap();
            if waits(2 << 20).is_none() {
                return skip_report::skipped!("cachestat(2) does not say which pages are dirty");
            }
            memory.fence().unwrap();
            for (offset, len_bytes) in places.into_iter().chain([(3 << 20, 8)]) {
                let pages = (offset / 4096..(offset + len_bytes as u64).div_ceil(4096)).map(|page| page * 4096);
                let dirty: Vec<_> = pages.filter(|page| waits(*page) != Some(false)).collect();
                assert!(dirty.is_empty(), "{method}, round {round}: {dirty:?} of {offset}");
            }
        }
        // The control: what was not written back, outside the range, is seen to wait where only a range is flushed.
        memory.store(0, &[1; 8]).unwrap();
        memory.store(2 << 20, &[1; 8]).unwrap();
        memory.write_back(2 << 20, 8).unwrap();
        memory.fence().unwrap();
        let is_ranged = method == SyncMethod::Msync && method.is_usable(memory.kind(), memory.file_system());
        assert_eq!(waits(0), Some(is_ranged), "{method}");
    }
}

#[test]
fn short_stores_use_pwrite_again_after_a_range_was_flushed() {
    let directory = tempdir_in(DISK).unwrap();
    let Some(memory) = flushed_file(&directory) else { return };
    let memory = memory.synced_by(SyncChoice::always(SyncMethod::Msync));
    let Flush::Sync(state) = &memory.flush else { panic!("a file on disk is flushed") };
    let is_clean = |offset: u64| state.dirty_pages.write_clean(offset, 8, || ()).is_some();
    memory.fence().unwrap();
    memory.store(128 << 10, &[1; 8]).unwrap();
    assert!(!is_clean(128 << 10));
    memory.write_back(128 << 10, 8).unwrap();
    memory.fence().unwrap();
    assert!(is_clean(128 << 10));
}

#[test]
fn many_threads_flush_one_file() {
    let directory = tempdir_in(DISK).unwrap();
    let memory = Memory::create(&directory.path().join("pool"), 4 << 20, None).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..4 {
                    let offset = u64::from(thread) << 20;
                    memory.store(offset, &vec![round; 1 << 20]).unwrap();
                    memory.write_back(offset, 1 << 20).unwrap();
                    memory.fence().unwrap();
                }
            });
        }
    });
    let Flush::Sync(state) = &memory.flush else { panic!("a file on disk is flushed") };
    // The first counts what may have been there before.
    assert_eq!(state.turns.covered(), 17);
}

#[test]
fn dax_media_store_past_the_caches_and_write_lines_back() {
    for (kind, mechanism) in [
        (MediumKind::FsDax, Mechanism::CacheLineWriteBack),
        (MediumKind::FsDax, Mechanism::Fence),
        (MediumKind::DevDax, Mechanism::CacheLineWriteBack),
    ] {
        let memory = as_if_dax(kind, mechanism);
        let by_lines = matches!(memory.flush, Flush::Lines(_));
        assert_eq!(by_lines, mechanism == Mechanism::CacheLineWriteBack && CacheWriteBack::detect().is_some());
        for (offset, len) in [(1, 255), (3, 256), (64, 4096), (777, 10_001)] {
            let bytes: Vec<u8> = (0..len).map(|number| (number % 251) as u8).collect();
            memory.store(offset, &bytes).unwrap();
            memory.write_back(offset, len).unwrap();
            memory.fence().unwrap();
            assert_eq!(bytes_at(&memory, offset, bytes.len()), bytes);
        }
        memory.write_back(1 << 16, 0).unwrap();
        memory.write_back((1 << 16) - 1, 1).unwrap();
    }
}

#[test]
fn kept_memory_has_its_cache_lines_written_back() {
    let [tmpfs, disk] = directories();
    let kept = Some(Declaration::MemoryKept);
    let memory = Memory::create(&tmpfs.path().join("a"), 4096, kept).unwrap();
    let expected = CacheWriteBack::detect()
        .map(|_| Promise { mechanism: Mechanism::CacheLineWriteBack, evidence: Evidence::Declared });
    assert_eq!(memory.promise(Durability::PowerFailure), expected);
    assert_eq!(matches!(memory.flush, Flush::Lines(_)), expected.is_some());
    assert_eq!(memory.declaration(), kept);
    memory.store(100, b"kept").unwrap();
    memory.write_back(100, 4).unwrap();
    memory.fence().unwrap();
    assert_eq!(bytes_at(&memory, 100, 4), b"kept");

    // Of memory that nobody declares, or whose caches are kept too, no line must be written back.
    for (name, declaration) in [("b", None), ("c", BATTERY)] {
        let memory = Memory::create(&tmpfs.path().join(name), 4096, declaration).unwrap();
        assert!(matches!(memory.flush, Flush::Order), "{declaration:?}");
    }
    // It changes nothing for memory that dies with its process, nor for what the kernel itself can answer for.
    let dax = as_if_dax(MediumKind::FsDax, Mechanism::Fence);
    let probed = Promise { mechanism: Mechanism::Fence, evidence: Evidence::Probed };
    assert_eq!(promise_of(&dax.judgement, Durability::PowerFailure, kept), Some(probed));
    let anonymous = Memory::anonymous(4096).unwrap();
    assert_eq!(anonymous.promise(Durability::PowerFailure), None);
    let [with, without] = [("b", kept), ("c", None)]
        .map(|(name, declaration)| Memory::create(&disk.path().join(name), 4096, declaration).unwrap());
    if without.promise(Durability::PowerFailure).is_some() {
        assert_eq!(with.promise(Durability::PowerFailure), without.promise(Durability::PowerFailure));
    }
}

/// Where a target holds a medium as `Arc`, what it looks at before it promises bytes is the medium's own.
#[test]
fn a_shared_medium_is_the_medium() {
    fn check(medium: &impl Medium, is_lent: bool) {
        medium.touch(0, 4096).unwrap();
        assert!(matches!(medium.touch(0, 4097), Err(MemError::OutOfBounds { .. })));
        assert_eq!((medium.memory().is_some(), medium.lent().is_some()), (true, is_lent));
    }
    check(&Arc::new(Memory::anonymous(4096).unwrap()), false);
    check(&Arc::new(Lent::new(Memory::anonymous(4096).unwrap())), true);
}

/// Behind the memory's drop a device may still store to held addresses: nothing of that reaches the file, which is let go of with its lock.
#[test]
fn held_addresses_lead_nowhere_when_the_memory_is_gone() {
    let place = tempdir_in(DISK).unwrap();
    let path = place.path().join("pool");
    let memory = Memory::create(&path, 10_000, None).unwrap();
    flock(memory.file().unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
    memory.store(0, b"the file's").unwrap();
    let held = memory.hold_addresses().unwrap();
    let late: *mut u8 = std::ptr::with_exposed_provenance_mut(memory.address() as usize);
    // SAFETY: the memory is there.
    unsafe { late.write_volatile(b'T') };
    drop(memory);

    // SAFETY: the addresses are held.
    let (found, end) = unsafe { (late.read_volatile(), late.add(9_999)) };
    assert_eq!(found, 0, "what is read there is not the file");
    // SAFETY: as before.
    unsafe { (late.write_volatile(b'X'), end.write_volatile(b'X')) };
    let mut expected = vec![0; 10_000];
    expected[..10].copy_from_slice(b"The file's");
    assert_eq!(fs::read(&path).unwrap(), expected);
    let again = Memory::open(&path, None).unwrap();
    flock(again.file().unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
    drop(held);

    // SAFETY: the address is the test's own.
    let borrowed = unsafe { Memory::borrow(again.address(), 4096, None) }.unwrap();
    assert!(borrowed.hold_addresses().is_none());
}
