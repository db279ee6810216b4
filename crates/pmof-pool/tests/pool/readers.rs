//! A pool that is open for reading follows the members in sync.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_pool::{Pool, PoolError};

use crate::{interrupted::Ways, slow::Relay, support::*};

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
    assert!(matches!(error, PoolError::TooFew { .. }), "{error:?}");
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

/// Which of two replicas is read first shows by a byte that was changed behind the pool's back.
#[test]
fn a_reader_reads_from_the_nearest_member() {
    let [far, near] = std::array::from_fn(|_| Target::start_fixed());
    let relay = Relay::before(&far);
    let urls = [relay.url.clone(), near.url("orders")];
    let pool = options(urls.clone()).create(POOL_BYTES).unwrap();
    pool.persist(0, b"all").unwrap();
    pool.close().unwrap();
    flip(&near, 10_000);
    relay.set_late(40);
    for urls in [urls.clone(), { [urls[1].clone(), urls[0].clone()] }] {
        let reader = options(urls).open_read_only().unwrap();
        assert_eq!(read(&reader, 10_000, 1), [0x10]);
        assert_eq!(read(&reader, 0, 3), b"all");
    }
}

#[test]
fn a_reader_reads_from_its_own_machine_first() {
    let (near, here) = (Target::start_fixed(), tempfile::tempdir().unwrap());
    let file = here.path().join("orders");
    let both = || options([near.url("orders")]).replica_file(&file);
    both().create(POOL_BYTES).unwrap().close().unwrap();
    flip(&near, 10_000);
    assert_eq!(read(&both().open_read_only().unwrap(), 10_000, 1), [0]);
}

/// However near a member is: it is not read where it is behind.
#[test]
fn a_near_member_that_is_behind_is_not_read() {
    let [far, mut near, third] = std::array::from_fn(|_| Target::start_fixed());
    let relay = Relay::before(&far);
    let urls = [relay.url.clone(), near.url("orders"), third.url("orders")];
    let pool = options(urls.clone()).create(POOL_BYTES).unwrap();
    pool.persist(0, b"old").unwrap();
    near.stop();
    pool.persist(0, b"new").unwrap();
    drop(pool);
    near.restart();
    drop(third);
    relay.set_late(20);
    let reader = options(urls).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 3), b"new");
}
