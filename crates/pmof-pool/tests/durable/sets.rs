//! Pool sets: drains of all local replicas, and what a target digested.

use std::{fs, path::PathBuf};

use pmof_access::Medium as _;
use pmof_control::SetName;
use pmof_pool::{Pool, PoolError, RemoteSetOptions, ReplicaError, SshReplicas, TargetOptions, TargetUrl};
use pmof_pool_set::{Attributes, NewPool, NewSet, OpenFor, PoolSet, Reached};
use pmof_target::{Service, ServiceOptions};
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

fn create(set: &PoolSet) -> Pool {
    let new = NewSet::new(NewPool::Obj { layout: "test".to_owned() });
    Pool::from_set(set.clone()).create(&new).unwrap()
}

#[test]
fn a_drain_flushes_every_local_replica_once() {
    let Some(directory) = on_disk() else { return };
    let (set, paths) = set(&directory);
    let act = || {
        let pool = create(&set);
        let mut lane = pool.lane();
        lane.persist().unwrap();
        mark();
        let memory = pool.mirror().unwrap();
        memory.store(OFFSET, b"everywhere").unwrap();
        lane.write_range(OFFSET..OFFSET + 10).unwrap();
        mark();
        let pending = lane.flush();
        mark();
        pending.wait().unwrap();
        mark();
        memory.store(OFFSET, b"once more ").unwrap();
        pool.persist_range(OFFSET..OFFSET + 10).unwrap();
        mark();
        pool.close().unwrap();
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    let syncs = |calls: &[Call]| paths.each_ref().map(|path| syncs_of(calls, path));
    let [_, write, flush, wait, persist, _close] = stretches(&calls)[..] else { panic!("{calls:?}") };
    assert_eq!(syncs(write), [0; REPLICAS], "a write only begins");
    assert_eq!(syncs(flush), [0; REPLICAS], "and so does a flush");
    assert_eq!(syncs(wait), [1; REPLICAS]);
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
            pool.mirror().unwrap().store(OFFSET, b"not everywhere").unwrap();
            pool.persist_range(OFFSET..OFFSET + 14)
        };
        let Some((outcome, calls)) = available(record(judge, act)) else { return };
        let Err(PoolError::Persist(failure)) = &outcome else { panic!("{failing}: {outcome:?}") };
        let [(replica, why)] = &failure.failed[..] else { panic!("{failing}: {failure}") };
        assert!(replica.index() == Some(failing) && matches!(**why, ReplicaError::Memory(_)), "{failing}: {failure}");
        assert_eq!(failure.receipt.replicas.len(), REPLICAS - 1);
        let syncs = paths.each_ref().map(|path| syncs_of(&calls, path));
        assert_eq!(syncs, [1; REPLICAS], "the others have it all the same");
        assert!(pool.lane().persist().is_err(), "what was lost once stays lost");
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
        let attributes = Attributes { signature: *b"TESTPOOL", incompat: 2, ..Attributes::default() };
        let remote = RemoteSetOptions::new(url.clone(), set.clone());
        remote.create(8 << 20, Some(&attributes)).unwrap().close().unwrap();
        let opened = SshReplicas::new(&TargetOptions::default()).open_at(&url, &set, 0, OpenFor::Write);
        let Ok(Reached::Whole(mut replica)) = opened else { panic!("it is whole") };
        let all = 0..replica.len_bytes();
        let contents = replica.contents();
        contents.write(OFFSET, b"flushed").unwrap();
        contents.persist(OFFSET..OFFSET + 7).unwrap();
        mark();
        contents.persist(all.clone()).unwrap();
        mark();
        contents.digests(OFFSET..OFFSET + (1 << 20)).unwrap();
        contents.persist(all).unwrap();
        mark();
        replica.close().unwrap();
        part
    };
    let Some((part, calls)) = available(observe(act)) else { return };
    let [_, idle, digested, _close] = stretches(&calls)[..] else { panic!("{calls:?}") };
    assert_eq!(syncs_of(idle, &part), 0, "all was flushed");
    assert!(syncs_of(digested, &part) > 0, "{digested:?}");
}

/// What is the same on all replicas may be durable on some: a program may have died between its stores and its flush.
#[test]
fn local_replicas_found_equal_at_an_opening_are_flushed() {
    let Some(directory) = on_disk() else { return };
    let (set, paths) = set(&directory);
    let act = || {
        create(&set).close().unwrap();
        mark();
        let pool = Pool::from_set(set.clone()).open().unwrap();
        mark();
        assert_eq!(pool.copied_bytes(), 0);
        pool.close().unwrap();
    };
    let Some(((), calls)) = available(observe(act)) else { return };
    let [_, opened, _close] = stretches(&calls)[..] else { panic!("{calls:?}") };
    let syncs = paths.each_ref().map(|path| syncs_of(opened, path));
    assert!(syncs.iter().all(|syncs| *syncs >= 3), "settled, its header written, flushed: {syncs:?}");
}
