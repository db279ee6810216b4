//! A pool that is open for reading follows the members in sync.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_replica::{Pool, PoolError};

use crate::{interrupted::Ways, support::*};

const POOL_BYTES: u64 = 1 << 20;

/// Reads until something comes of it.
#[track_caller]
fn read_until<T>(reader: &Pool, is: impl Fn(Result<Vec<u8>, PoolError>) -> Option<T>) -> T {
    let until = Instant::now() + LONG;
    loop {
        let mut bytes = vec![0; 3];
        if let Some(found) = is(reader.read(0, &mut bytes).map(|()| bytes)) {
            return found;
        }
        assert!(Instant::now() < until, "the same for ever");
        thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn wait_for_new(reader: &Pool) {
    read_until(reader, |read| (read.unwrap() == b"new").then_some(()));
}

#[test]
fn a_reader_of_a_member_that_is_removed_reads_from_the_others() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(POOL_BYTES).unwrap();
    pool.persist(0, b"old").unwrap();
    let reader = options([three[2].url("orders")]).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 3), b"old");
    pool.remove(&three[2].url("orders")).unwrap();
    pool.persist(0, b"new").unwrap();
    wait_for_new(&reader);
    // It follows on: to one that came, when both of the first have gone.
    pool.close().unwrap();
    options([three[2].url("orders")]).remove().unwrap();
    let pool = options(urls(&three[..2])).open().unwrap();
    pool.add(&three[2].url("orders")).unwrap();
    wait_in_sync(&pool);
    pool.remove(&three[0].url("orders")).unwrap();
    pool.persist(0, b"far").unwrap();
    read_until(&reader, |read| (read.unwrap() == b"far").then_some(()));
}

#[test]
fn a_reader_of_a_member_that_is_left_behind_reads_from_the_others() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    // Only the writer loses it.
    let way = Arc::<Ways>::default();
    let pool = options([three[0].url("orders"), three[1].url("orders"), way.to(&three[2])]).create(POOL_BYTES).unwrap();
    pool.persist(0, b"old").unwrap();
    let reader = options([three[2].url("orders"), three[0].url("orders")]).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 3), b"old");
    way.cut();
    let receipt = pool.persist(0, b"new").unwrap();
    assert_eq!(receipt.missing.len(), 1, "{receipt}");
    wait_for_new(&reader);
}

#[test]
fn a_reader_that_cannot_know_who_is_in_sync_gets_an_error() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(POOL_BYTES).unwrap();
    pool.persist(0, b"old").unwrap();
    pool.close().unwrap();
    let reader = options([three[2].url("orders")]).open_read_only().unwrap();
    three[0].stop();
    wait_fresh(&reader, b"old");
    three[1].stop();
    // The two may go on without it, for all that it knows.
    let error = read_until(&reader, Result::err);
    assert!(matches!(error, PoolError::Replica { .. }), "{error:?}");
    three[1].restart();
    read_until(&reader, |read| read.is_ok_and(|bytes| bytes == b"old").then_some(()));
}

/// Reads for longer than what was found counts.
fn wait_fresh(reader: &Pool, expected: &[u8]) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1200) {
        assert_eq!(read(reader, 0, 3), expected);
        thread::sleep(Duration::from_millis(50));
    }
}
