use std::{
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use pmof_mem::{Medium as _, MemError};
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, flock, seek};
use tempfile::tempdir_in;

use super::{LocalSet, NewSet};
use crate::{
    ContentsState, Feature, NewPool, OpenFor, PartSpec, PoolKind, PoolSet, PoolSetError, RemoteSpec, ReplicaSpec,
    SetOptions, memory_state, part_header,
};

const DISK: &str = env!("CARGO_MANIFEST_DIR");
const MIB: u64 = 1 << 20;
const SINGLE: SetOptions = SetOptions { single_header: true, no_headers: false };

fn obj() -> NewSet {
    NewSet::new(NewPool::Obj { layout: "test".into() })
}

/// A set of replicas with two parts each, with these sizes in MiB.
fn set(directory: &Path, options: SetOptions, sizes: &[[u64; 2]]) -> PoolSet {
    let replica = |(replica, sizes): (usize, &[u64; 2])| {
        let part = |(part, mib): (usize, &u64)| PartSpec::new(directory.join(format!("r{replica}p{part}")), mib * MIB);
        ReplicaSpec::Local(sizes.iter().enumerate().map(part).collect())
    };
    PoolSet { path: directory.join("set"), replicas: sizes.iter().enumerate().map(replica).collect(), options }
}

fn create(set: &PoolSet, new: &NewSet) -> Result<LocalSet, PoolSetError> {
    LocalSet::create(set, new, &new.plan(set)?)
}

fn open(set: &PoolSet) -> Result<LocalSet, PoolSetError> {
    LocalSet::open(set, OpenFor::Write, None)
}

#[test]
fn replicas_are_linked_in_a_ring_and_hold_the_same() {
    for options in [SetOptions::default(), SINGLE] {
        let directory = tempdir_in(DISK).unwrap();
        let set = set(directory.path(), options, &[[6, 6], [10, 4], [5, 5]]);
        let made = create(&set, &obj()).unwrap();
        let header_bytes = if options.single_header { 0 } else { crate::part::page_bytes() };
        let len_bytes = 10 * MIB - header_bytes;
        assert_eq!(made.len_bytes(), len_bytes);
        let headers: Vec<_> =
            made.replicas().iter().map(|replica| replica.as_ref().unwrap().header(0).unwrap()).collect();
        for (index, header) in headers.iter().enumerate() {
            assert_eq!(header.next_replica_uuid, headers[(index + 1) % 3].uuid);
            assert_eq!(header.prev_replica_uuid, headers[(index + 2) % 3].uuid);
            assert_eq!(header.poolset_uuid, headers[0].poolset_uuid);
            assert_eq!(header.features.has(Feature::SingleHeader), options.single_header);
        }
        made.close().unwrap();
        let opened = open(&set).unwrap();
        let sum =
            |index: usize| opened.replicas()[index].as_ref().unwrap().memory().crc32c(4096, len_bytes - 4096).unwrap();
        assert_eq!((sum(0), sum(0)), (sum(1), sum(2)));
        let memory = opened.replicas()[1].as_ref().unwrap().memory();
        assert_eq!(memory_state(Some(PoolKind::Obj), &memory).unwrap(), ContentsState::Sound);
        drop(memory);
        opened.close().unwrap();
    }
}

#[test]
fn replicas_that_do_not_belong_are_distinguished() {
    let directory = tempdir_in(DISK).unwrap();
    let whole = set(directory.path(), SINGLE, &[[5, 5], [5, 5], [5, 5]]);
    create(&whole, &obj()).unwrap().close().unwrap();
    let elsewhere = tempdir_in(DISK).unwrap();
    let other = set(elsewhere.path(), SINGLE, &[[5, 5], [5, 5]]);
    create(&other, &obj()).unwrap().close().unwrap();
    let mut mixed = whole.clone();
    mixed.replicas[1] = other.replicas[1].clone();
    assert!(matches!(open(&mixed), Err(PoolSetError::OtherSet { .. })));
    let mut swapped = whole.clone();
    swapped.replicas.swap(0, 1);
    assert!(matches!(open(&swapped), Err(PoolSetError::WrongNeighbour { neighbour: "previous replica", .. })));
    let mut fewer = whole.clone();
    fewer.replicas.pop();
    assert!(matches!(open(&fewer), Err(PoolSetError::WrongNeighbour { .. })));
    let ReplicaSpec::Local(parts) = &whole.replicas[2] else { panic!() };
    let path = &parts[0].path;
    let change = |edit: fn(&mut crate::PoolHeader)| {
        let before = fs::read(path).unwrap();
        let mut header = part_header(path).unwrap();
        edit(&mut header);
        let mut bytes = before.clone();
        bytes[..4096].copy_from_slice(&header.encode());
        fs::write(path, bytes).unwrap();
        let outcome = open(&whole);
        fs::write(path, before).unwrap();
        outcome.map(drop)
    };
    change(|_| {}).unwrap();
    assert!(matches!(change(|header| header.arch.machine = 1), Err(PoolSetError::OtherMachine { machine: 1, .. })));
    assert!(matches!(change(|header| header.major = 5), Err(PoolSetError::OtherFormat { .. })));
    let features = change(|header| header.features = header.features.without(Feature::CheckBadBlocks));
    assert!(matches!(features, Err(PoolSetError::Differs { what: "set of features", .. })), "{features:?}");
    let examined = LocalSet::examine(&swapped, OpenFor::Read, None);
    assert!(examined.iter().all(|replica| matches!(replica, Some(Ok(_)))), "each is sound by itself");
}

#[test]
fn a_remote_replica_has_its_place_in_the_ring() {
    let directory = tempdir_in(DISK).unwrap();
    let mut set = set(directory.path(), SetOptions::default(), &[[6, 6], [6, 6]]);
    let remote = ReplicaSpec::Remote(RemoteSpec { node: "host".into(), set: "far.set".into(), line: 0 });
    set.replicas.insert(1, remote);
    let plan = obj().plan(&set).unwrap();
    let made = LocalSet::create(&set, &obj(), &plan).unwrap();
    assert!(made.replicas()[1].is_none() && made.replicas().len() == 3);
    assert_eq!(made.replicas()[0].as_ref().unwrap().attributes().unwrap().next_uuid, plan[1].uuid);
    assert_eq!(made.replicas()[2].as_ref().unwrap().attributes().unwrap().prev_uuid, plan[1].uuid);
    made.close().unwrap();
    open(&set).unwrap();
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path();
    let no_headers = SetOptions { no_headers: true, ..SetOptions::default() };
    let unsupported = |outcome| matches!(outcome, Err(PoolSetError::Unsupported { .. }));
    assert!(unsupported(create(&set(path, no_headers, &[[5, 5]]), &obj())));
    assert!(unsupported(create(&set(path, SINGLE, &[[5, 5], [5, 5]]), &NewSet::new(NewPool::Log))));
    let mut remote_first = set(path, SINGLE, &[[5, 5]]);
    remote_first.replicas.insert(0, ReplicaSpec::Remote(RemoteSpec { node: "h".into(), set: "s".into(), line: 0 }));
    assert!(unsupported(create(&remote_first, &obj())));
    let small = create(&set(path, SINGLE, &[[5, 5], [3, 4]]), &obj()).unwrap_err();
    assert!(matches!(&small, PoolSetError::PoolTooSmall { least, .. } if *least == 8 * MIB), "{small}");
    let mut huge = set(path, SINGLE, &[[5, 5], [5, 5]]);
    huge.replicas[1] = ReplicaSpec::Local(vec![PartSpec::new(path.join("huge"), 1 << 46)]);
    assert!(matches!(create(&huge, &obj()), Err(PoolSetError::Mem(_))));
    let same = ReplicaSpec::Local(vec![PartSpec::new(path.join("r0p1"), 10 * MIB)]);
    huge.replicas[1] = same;
    assert!(matches!(create(&huge, &obj()), Err(PoolSetError::SameFile { .. })));
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn each_kind_of_pool_is_made() {
    for (pool, kind, sizes) in [
        (NewPool::Log, PoolKind::Log, [2, 2]),
        (NewPool::Blk { block_len_bytes: 512 }, PoolKind::Blk, [16, 2]),
        (NewPool::Obj { layout: String::new() }, PoolKind::Obj, [6, 6]),
    ] {
        let directory = tempdir_in(DISK).unwrap();
        let set = set(directory.path(), SetOptions::default(), &[sizes]);
        let made = create(&set, &NewSet::new(pool)).unwrap();
        let replica = made.replicas()[0].as_ref().unwrap();
        assert_eq!(replica.header(0).unwrap().kind(), Some(kind));
        assert_eq!(memory_state(Some(kind), &replica.memory()).unwrap(), ContentsState::Sound);
        made.close().unwrap();
        open(&set).unwrap();
    }
}

/// What a creation left that was killed: it says so, and is nobody's. What a former pool left behind a cleared header is somebody's.
#[test]
fn what_a_killed_creation_left_becomes_the_pool_that_new_files_would() {
    for options in [SetOptions::default(), SINGLE] {
        let directory = tempdir_in(DISK).unwrap();
        let set = set(directory.path(), options, &[[6, 6], [6, 6]]);
        let files = ["r0p0", "r1p0"].map(|name| directory.path().join(name));
        let zeros = directory.path().join("r0p1");
        let lay = |begin: &[u8]| {
            let mut bytes = vec![0xab; 6 * MIB as usize];
            bytes[..4096].fill(0);
            bytes[..begin.len()].copy_from_slice(begin);
            for file in &files {
                fs::write(file, &bytes).unwrap();
            }
            fs::write(&zeros, vec![0; 6 << 20]).unwrap();
        };
        lay(&[]);
        let refused = create(&set, &obj()).unwrap_err();
        assert!(matches!(&refused, PoolSetError::Exists { path, .. } if *path == files[0]), "{refused}");
        assert!(files.iter().all(|file| fs::read(file).unwrap()[4096..].iter().all(|byte| *byte == 0xab)));
        lay(&crate::header::left_by_creation());
        let made = create(&set, &obj()).unwrap();
        let len_bytes = made.len_bytes();
        let sum =
            |index: usize| made.replicas()[index].as_ref().unwrap().memory().crc32c(4096, len_bytes - 4096).unwrap();
        assert_eq!(sum(0), sum(1));
        let memory = made.replicas()[0].as_ref().unwrap().memory();
        let mut rest = vec![1; MIB as usize];
        memory.read(5 * MIB, &mut rest).unwrap();
        assert!(rest.iter().all(|byte| *byte == 0));
        drop(memory);
        made.close().unwrap();
        open(&set).unwrap().close().unwrap();
    }
}

/// Files that were there are of zeros again, so that the next one takes them.
#[test]
fn a_creation_taken_back_leaves_given_files_without_owner() {
    let directory = tempdir_in(DISK).unwrap();
    let set = set(directory.path(), SetOptions::default(), &[[6, 6], [6, 6]]);
    let files = ["r0p0", "r0p1"].map(|name| directory.path().join(name));
    for file in &files {
        fs::write(file, vec![0; 6 << 20]).unwrap();
    }
    let new = obj();
    let plan = new.plan(&set).unwrap();
    let made = LocalSet::create(&set, &new, &plan).unwrap();
    made.discard().unwrap();
    assert!(files.iter().all(|file| fs::read(file).unwrap().iter().all(|byte| *byte == 0)));
    assert!(!directory.path().join("r1p0").exists());
    create(&set, &new).unwrap().close().unwrap();
}

/// Another process gets hold of each file the moment it is there, as a second creation of the same set does: it must keep it.
#[test]
fn a_creation_that_fails_never_removes_a_file_that_another_has_locked() {
    for _ in 0..20 {
        let directory = tempdir_in(DISK).unwrap();
        let set = set(directory.path(), SetOptions::default(), &[[5, 5]]);
        let path = directory.path().join("r0p1");
        let is_over = AtomicBool::new(false);
        let (made, locked) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(file) = fs::File::open(&path) else { continue };
                    let is_locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
                    if is_locked && file.metadata().is_ok_and(|file| file.nlink() > 0) {
                        return Some(file);
                    }
                }
                None
            });
            let made = create(&set, &obj());
            is_over.store(true, Ordering::Relaxed);
            (made, other.join().unwrap())
        });
        match (made, locked) {
            (Ok(made), _) => made.close().unwrap(),
            (Err(PoolSetError::Busy { path }), Some(locked)) => {
                assert!(locked.metadata().unwrap().nlink() > 0, "{} was removed", path.display());
                assert!(!directory.path().join("r0p0").exists(), "what it made itself is gone");
            }
            (Err(error), locked) => panic!("{error}, {locked:?}"),
        }
    }
}

#[test]
fn of_two_creations_of_one_set_at_once_the_winner_has_all_of_it() {
    for round in 0..20 {
        let directory = tempdir_in(DISK).unwrap();
        let set = set(directory.path(), SetOptions::default(), &[[5, 5], [6, 6]]);
        let make = || create(&set, &obj()).map(|made| made.close().unwrap());
        let won = std::thread::scope(|scope| {
            let threads = [scope.spawn(make), scope.spawn(make)];
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(won.iter().any(Result::is_err), "round {round}: both made it");
        if won.iter().any(Result::is_ok) {
            open(&set).unwrap_or_else(|error| panic!("round {round}: {error}")).close().unwrap();
        } else {
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "round {round}: {won:?}");
        }
    }
}

/// Each of them has room, and both have not; nothing is allocated to find that out.
#[test]
fn parts_together_need_the_room() {
    let directory = tempdir_in(DISK).unwrap();
    let stat = rustix::fs::statvfs(directory.path()).unwrap();
    let most = (stat.f_bfree * stat.f_frsize / 3 * 2).next_multiple_of(1 << 20);
    let part = |name: &str| ReplicaSpec::Local(vec![PartSpec::new(directory.path().join(name), most)]);
    let one = PoolSet { path: "set".into(), replicas: vec![part("one")], options: SetOptions::default() };
    let two = PoolSet { replicas: vec![part("one"), part("two")], ..one.clone() };
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    LocalSet::check_new(&one, &new).unwrap();
    let error = LocalSet::check_new(&two, &new).unwrap_err();
    assert!(matches!(&error, PoolSetError::Mem(MemError::NoSpace { path, .. }) if path.ends_with("two")), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Bytes that this thread has read by system calls.
fn read_bytes() -> u64 {
    let counts = fs::read_to_string("/proc/thread-self/io").unwrap();
    counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// Bytes of a file that are on the disk as data or in the page cache.
fn cached_bytes(path: &Path) -> u64 {
    let file = fs::File::open(path).unwrap();
    let (mut at, mut bytes) = (0, 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        bytes += at - start;
    }
    bytes
}

/// A read brings pages into the cache, which count as data from then on; so do those that the kernel reads ahead.
#[test]
fn preallocated_parts_are_not_read() {
    const LEN_BYTES: u64 = 256 * MIB;
    let directory = tempdir_in(DISK).unwrap();
    let path = |name: &str| directory.path().join(name);
    let replica = |names: [&str; 2]| ReplicaSpec::Local(names.map(|name| PartSpec::new(path(name), LEN_BYTES)).into());
    let set = PoolSet { path: path("set"), replicas: vec![replica(["a", "b"])], options: SetOptions::default() };
    for name in ["a", "b"] {
        let file = fs::File::create_new(path(name)).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, LEN_BYTES).unwrap();
        assert_eq!(cached_bytes(&path(name)), 0, "the test needs a file system that tells what was never written");
    }
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    let before = read_bytes();
    let made = LocalSet::create(&set, &new, &new.plan(&set).unwrap()).unwrap();
    let read = read_bytes() - before;
    let cached = ["a", "b"].map(|name| cached_bytes(&path(name)));
    assert!(read < 16 * MIB, "{} MiB were read", read / MIB);
    assert!(cached.iter().all(|cached| *cached < 32 * MIB), "{cached:?} bytes were read");
    let (state, len_bytes) =
        (memory_state(Some(PoolKind::Obj), &made.replicas()[0].as_ref().unwrap().memory()), made.len_bytes());
    assert_eq!((state.unwrap(), len_bytes), (ContentsState::Sound, 2 * LEN_BYTES - 4096));
    made.close().unwrap();
}

/// What a creation that was killed left in preallocated files is found all the same.
#[test]
fn what_lies_far_out_in_preallocated_parts_is_found() {
    const LEN_BYTES: u64 = 64 * MIB;
    let directory = tempdir_in(DISK).unwrap();
    let path = directory.path().join("a");
    let file = fs::File::create_new(&path).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, LEN_BYTES).unwrap();
    file.write_all_at(&[7], 0).unwrap();
    file.write_all_at(&[0], 0).unwrap();
    file.write_all_at(&[7], LEN_BYTES - 1).unwrap();
    let replica = ReplicaSpec::Local(vec![PartSpec::new(&path, LEN_BYTES)]);
    let set = PoolSet { path: directory.path().join("set"), replicas: vec![replica], options: SetOptions::default() };
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    let create = || LocalSet::create(&set, &new, &new.plan(&set).unwrap());
    let error = create().unwrap_err();
    let found = format!("from byte {} on", LEN_BYTES - 1);
    assert!(matches!(&error, PoolSetError::Exists { found: told, .. } if told.contains(&found)), "{error}");
    // As a creation that was killed has it.
    file.write_all_at(&crate::header::left_by_creation(), 0).unwrap();
    create().unwrap().close().unwrap();
    let mut last = [1];
    file.read_exact_at(&mut last, LEN_BYTES - 1).unwrap();
    assert_eq!(last, [0]);
}
