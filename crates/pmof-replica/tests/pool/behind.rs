//! Replicas that missed acknowledged writes are known by their generation.

use pmof_replica::{Pool, PoolError, ReplicaError};

use crate::support::*;

fn targets<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start())
}

fn urls(targets: &[Target]) -> Vec<String> {
    targets.iter().map(|target| target.url("orders")).collect()
}

fn persist_fails(pool: &mut Pool, bytes: &[u8]) {
    assert!(matches!(pool.persist(0, bytes), Err(PoolError::Persist(_))));
}

#[track_caller]
fn assert_left_behind(opened: Result<Pool, PoolError>, url: &str) {
    match of_replica(&opened.expect_err("a replica was left behind")) {
        (replica, ReplicaError::LeftBehind { generation, newest }) => {
            assert_eq!(replica.to_string(), url);
            assert!(generation < newest);
        }
        (_, other) => panic!("{other}"),
    }
}

#[test]
fn a_replica_that_was_lost_is_not_opened_with_the_others() {
    let mut three: [Target; 3] = targets();
    let mut pool = options(urls(&three)).create(4096).unwrap();
    pool.persist(0, b"old").unwrap();
    three[0].stop();
    persist_fails(&mut pool, b"new");
    pool.close().unwrap_err();
    three[0].restart();

    // The positive control: each replica is sound, and without the check its old bytes would be read.
    let mut alone = options([three[0].url("orders")]).open_read_only().unwrap();
    assert_eq!(read(&mut alone, 0, 3), b"old");
    alone.close().unwrap();
    assert_left_behind(options(urls(&three)).open(), &three[0].url("orders"));
    assert_left_behind(options(urls(&three)).open_read_only(), &three[0].url("orders"));

    // The others go on, and an open in vain left nothing open.
    let mut rest = options(urls(&three[1..])).open().unwrap();
    assert_eq!(read(&mut rest, 0, 3), b"new");
    rest.persist(0, b"newer").unwrap();
}

#[test]
fn every_loss_leaves_one_more_behind() {
    let mut three: [Target; 3] = targets();
    let mut pool = options(urls(&three)).create(4096).unwrap();
    three[2].stop();
    persist_fails(&mut pool, b"one");
    three[1].stop();
    persist_fails(&mut pool, b"two");
    drop(pool);
    three[1].restart();
    three[2].restart();
    assert_left_behind(options(urls(&three[..2])).open(), &three[1].url("orders"));
    assert_left_behind(options([three[0].url("orders"), three[2].url("orders")]).open(), &three[2].url("orders"));
    let infos: Vec<_> = urls(&three).iter().map(|url| options([url]).info().unwrap()[0].header.generation).collect();
    assert_eq!(infos, [2, 1, 0]);
}

#[test]
fn writing_to_a_part_leaves_the_rest_behind() {
    let two: [Target; 2] = targets();
    options(urls(&two)).create(4096).unwrap().close().unwrap();
    // Reading a part changes nothing.
    options([two[1].url("orders")]).open_read_only().unwrap().close().unwrap();
    options(urls(&two)).open().unwrap().close().unwrap();

    let mut part = options([two[1].url("orders")]).open().unwrap();
    part.persist(0, b"new").unwrap();
    part.close().unwrap();
    assert_left_behind(options(urls(&two)).open(), &two[0].url("orders"));
}

#[test]
fn generations_survive_the_target() {
    let mut two: [Target; 2] = targets();
    let mut pool = options(urls(&two)).create(4096).unwrap();
    two[1].stop();
    persist_fails(&mut pool, b"new");
    drop(pool);
    two[0].restart();
    two[1].restart();
    assert_left_behind(options(urls(&two)).open(), &two[1].url("orders"));
}

#[test]
fn a_misaligned_atomic_write_is_refused_and_the_pool_goes_on() {
    let target = Target::start();
    let mut pool = options([target.url("orders")]).create(4096).unwrap();
    let mut batch = pool.batch();
    assert!(matches!(batch.atomic_write(4, 1), Err(PoolError::Misaligned { offset: 4 })));
    batch.atomic_write(8, 1).unwrap();
    batch.persist().unwrap();
    assert_eq!(read(&mut pool, 8, 8), 1_u64.to_le_bytes());
}
