//! Pool sets: drains of all local replicas, and what a target digested.

use std::{fs, path::PathBuf};

use pmof_access::Medium as _;
use pmof_pool::{Attributes, NewPool, NewSet, PoolSet};
use pmof_replica::{
    Atomicity, OpenFor, RemotePool, RemotePoolOptions, Service, ServiceOptions, SetName, SetPool, SetPoolError,
    SetPoolOptions, TargetUrl,
};
use syscall_recorder::{Call, Verdict, observe, record};
use tempfile::TempDir;

use crate::support::{EIO, available, mark, on_disk, stretches, syncs_of};

const REPLICAS: usize = 3;
const OFFSET: u64 = 5 << 20;

/// A set of local replicas, one part each.
fn set(directory: &TempDir) -> (PoolSet, [PathBuf; REPLICAS]) {
    let paths = [0, 1, 2].map(|replica: usize| directory.path().join(format!("part{replica}")));
    let lines = paths.each_ref().map(|path| format!("9M {}\n", path.display()));
    let file = directory.path().join("x.set");
    fs::write(&file, format!("PMEMPOOLSET\n{}", lines.join("REPLICA\n"))).unwrap();
    (PoolSet::read(&file).unwrap(), paths)
}

fn create(set: &PoolSet) -> SetPool {
    let new = NewSet::new(NewPool::Obj { layout: "test".to_owned() });
    SetPool::create(set, &new, &SetPoolOptions::default()).unwrap()
}

#[test]
fn a_drain_flushes_every_local_replica_once() {
    let Some(directory) = on_disk() else { return };
    let (set, paths) = set(&directory);
    let act = || {
        let pool = create(&set);
        pool.drain(0).unwrap();
        mark();
        pool.memory().store(OFFSET, b"everywhere").unwrap();
        pool.flush(0, OFFSET, 10, Atomicity::Words).unwrap();
        mark();
        pool.drain(0).unwrap();
        mark();
        pool.drain(0).unwrap();
        mark();
        pool.memory().store(OFFSET, b"once more ").unwrap();
        pool.persist(1, OFFSET, 10, Atomicity::Relaxed).unwrap();
        mark();
        pool.close().unwrap();
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    let syncs = |calls: &[Call]| paths.each_ref().map(|path| syncs_of(calls, path));
    let [_, flush, drain, idle, persist, _close] = stretches(&calls)[..] else { panic!("{calls:?}") };
    assert_eq!(syncs(flush), [0; REPLICAS], "a flush only begins");
    assert_eq!(syncs(drain), [1; REPLICAS]);
    assert_eq!(syncs(idle), [0; REPLICAS], "there is nothing to be made durable");
    assert_eq!(syncs(persist), [1; REPLICAS]);
}

#[test]
fn a_drain_fails_with_the_local_replica_that_could_not_be_flushed() {
    for failing in 0..REPLICAS {
        let Some(directory) = on_disk() else { return };
        let (set, paths) = set(&directory);
        let pool = create(&set);
        let judge = |call: &Call| if call.is_sync_of(&paths[failing]) { Verdict::Fail(EIO) } else { Verdict::Pass };
        let act = || {
            pool.memory().store(OFFSET, b"not everywhere").unwrap();
            pool.persist(0, OFFSET, 14, Atomicity::Words)
        };
        let Some((outcome, calls)) = available(record(judge, act)) else { return };
        let is_named = matches!(&outcome, Err(SetPoolError::Memory { replica, .. }) if *replica == failing);
        assert!(is_named, "{failing}: {outcome:?}");
        let syncs = paths.each_ref().map(|path| syncs_of(&calls, path));
        assert_eq!(syncs, [1; REPLICAS], "the others have it all the same");
        assert!(pool.drain(0).is_err(), "what was lost once stays lost");
    }
}

/// A target with one set on a disk, the file of its part, and the set's name.
fn target(directory: &TempDir) -> (Service, TargetUrl, PathBuf, SetName) {
    let part = directory.path().join("part");
    fs::write(directory.path().join("x.set"), format!("PMEMPOOLSET\n9M {}\n", part.display())).unwrap();
    let service =
        Service::start(directory.path(), &["tcp://127.0.0.1:0".parse().unwrap()], ServiceOptions::default()).unwrap();
    let url = service.addresses()[0].clone().into();
    (service, url, part, SetName::new("x.set").unwrap())
}

/// Whoever compares digests takes what is the same for durable after the next flush: also what a target stored that did not
/// live to write it back.
#[test]
fn what_was_digested_is_durable_after_the_next_flush() {
    let Some(directory) = on_disk() else { return };
    let act = || {
        let (_service, url, part, set) = target(&directory);
        let options = RemotePoolOptions::default();
        let attributes = Attributes { signature: *b"TESTPOOL", incompat: 2, ..Attributes::default() };
        let pool = RemotePool::create(&url, &set, 8 << 20, Some(&attributes), &options).unwrap();
        pool.close().unwrap();
        let (pool, _) = RemotePool::open(&url, &set, 0, OpenFor::Write, &options).unwrap();
        pool.persist_bytes(0, OFFSET, b"flushed", Atomicity::Words).unwrap();
        mark();
        pool.make_durable(0, 0, pool.len_bytes()).unwrap();
        mark();
        pool.digests(OFFSET, 1 << 20, 64 << 10).unwrap();
        pool.make_durable(0, 0, pool.len_bytes()).unwrap();
        mark();
        pool.close().unwrap();
        part
    };
    let Some((part, calls)) = available(observe(act)) else { return };
    let [_, idle, digested, _close] = stretches(&calls)[..] else { panic!("{calls:?}") };
    assert_eq!(syncs_of(idle, &part), 0, "all was flushed");
    assert!(syncs_of(digested, &part) > 0, "{digested:?}");
}
