//! A pool that is opened again after a flush failed: the kernel shows bytes that no disk has. Needs root and loop devices.

use std::{fs, path::Path};

use pmof_access::Durability;
use pmof_mem::Declaration;
use pmof_pool::{Pool, PoolError, PoolOptions};
use pmof_target::{ServiceOptions, StoreOptions};
use thin_disk::{Cached, ThinDisk};

use crate::support::*;

const MIB: u64 = 1 << 20;
const POOL_BYTES: u64 = 8 * MIB;
/// Where user data begins in the file.
const DATA_OFFSET: usize = pmof_control::DATA_OFFSET as usize;
/// What was flushed, and what was to be when it failed.
const FLUSHED: u64 = MIB;
const LOST: u64 = 6 * MIB;

fn on_disk(disk: &ThinDisk) -> Target {
    // Declared, since below the disk there is a tmpfs.
    let store = StoreOptions::default().declaration(Some(Declaration::BatteryBacked));
    let root = tempfile::tempdir_in(disk.files()).expect("a directory");
    Target::start_with(root, ServiceOptions::default().store(store))
}

fn durable(target: &Target) -> PoolOptions {
    Pool::options().replica(target.url("orders")).require(Durability::PowerFailure)
}

/// Whether the bytes whose flush failed are in this file; what was acknowledged must be.
fn has_lost(file: &[u8]) -> bool {
    let has = |offset: u64, value: u8| {
        file[DATA_OFFSET + offset as usize..][..MIB as usize].iter().all(|byte| *byte == value)
    };
    assert!(has(FLUSHED, 1), "what was acknowledged is there");
    has(LOST, 2)
}

/// A target with a pool whose last flush failed, and what keeps in the page cache the bytes that the disk lacks: to be dropped
/// before the target is started, as it will want the cache to forget them.
fn failed(disk: &ThinDisk) -> (Target, Cached) {
    let mut target = on_disk(disk);
    let pool = durable(&target).create(POOL_BYTES).unwrap();
    pool.persist(FLUSHED, &vec![1; MIB as usize]).unwrap();
    let path = target.root.path().join("orders");
    let cached = Cached::new(&path, DATA_OFFSET as u64 + LOST, MIB as usize).unwrap();
    disk.fill().unwrap();
    let error = pool.persist(LOST, &vec![2; MIB as usize]).unwrap_err();
    assert!(matches!(error, PoolError::Persist(_)), "{error}");
    pool.close().unwrap();
    target.stop();
    disk.free().unwrap();
    assert!(has_lost(&fs::read(&path).unwrap()), "the premise: the page cache has it");
    assert!(!has_lost(&ThinDisk::on_disk(&path).unwrap()), "and the disk has not");
    (target, cached)
}

/// What opening, reading and closing the pool shows, and what the disk has afterwards.
#[track_caller]
fn shows_what_the_disk_has(target: &Target, path: &Path) {
    let pool = durable(target).open().unwrap();
    assert_eq!(read(&pool, FLUSHED, MIB as usize), vec![1; MIB as usize]);
    let shown = read(&pool, LOST, MIB as usize);
    let begin = DATA_OFFSET + LOST as usize;
    assert!(shown == ThinDisk::on_disk(path).unwrap()[begin..begin + MIB as usize], "bytes that may vanish");
    pool.persist(0, b"and on").unwrap();
    pool.close().unwrap();
}

#[test]
fn a_pool_reopened_after_a_failed_flush_shows_what_the_disk_has() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let (mut target, cached) = failed(&disk);
    let path = target.root.path().join("orders");
    drop(cached);
    target.restart();
    shows_what_the_disk_has(&target, &path);
    assert!(!has_lost(&fs::read(&path).unwrap()));
}

/// Apart from the writer's: whoever opens the pool first drops what the disk does not have, for all that follow.
#[test]
fn a_reader_after_a_failed_flush_is_shown_what_the_disk_has() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let (mut target, cached) = failed(&disk);
    drop(cached);
    target.restart();
    let reader = durable(&target).open_read_only().unwrap();
    assert_ne!(read(&reader, LOST, MIB as usize), vec![2; MIB as usize], "bytes that may vanish");
    reader.close().unwrap();
}

#[test]
fn a_copy_of_a_poisoned_pool_is_not_taken_for_closed() {
    let Some(disk) = ThinDisk::of_test() else { return };
    let (mut target, cached) = failed(&disk);
    let root = target.root.path();
    fs::copy(root.join("orders"), root.join("copy")).unwrap();
    fs::rename(root.join("copy"), root.join("orders")).unwrap();
    let path = root.join("orders");
    drop(cached);
    target.restart();
    let info = durable(&target).info().unwrap().remove(0);
    assert!(info.state.is_open && info.open_by.is_none(), "nobody closed it");
    // The copy was made through the cache, so it has them all, and they are durable once they are shown.
    shows_what_the_disk_has(&target, &path);
    assert!(has_lost(&ThinDisk::on_disk(&path).unwrap()));
}
