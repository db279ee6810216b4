//! Pools that get their name when they are closed.

use std::time::Instant;

use pmof_control::PoolRefusal;
use pmof_pool::list_pools;

use crate::support::{LONG, Target, assert_refused, options, read};

fn wait_until_empty(target: &Target) {
    let start = Instant::now();
    while !target.files().is_empty() {
        assert!(start.elapsed() < LONG, "left behind: {:?}", target.files());
        std::thread::yield_now();
    }
}

#[test]
fn the_name_comes_with_the_close() {
    let (a, b) = (Target::start(), Target::start());
    let pools = options([a.url("orders"), b.url("orders")]);
    let pool = pools.clone().publish_on_close(true).create(4096).expect("a pool");
    pool.persist(0, b"hello").expect("a receipt");
    assert_refused(&pools.open_read_only().expect_err("unseen"), &a.url("orders"), PoolRefusal::NotFound);
    assert!(list_pools(&b.address().into(), &pools).expect("a list").is_empty());
    assert!(a.files().iter().all(|file| file.starts_with(".pmof.")));
    pool.close().expect("published");
    assert_eq!((a.files(), b.files()), (vec!["orders".to_owned()], vec!["orders".to_owned()]));
    assert_eq!(read(&pools.open().expect("the pool"), 0, 5), b"hello");
}

#[test]
fn without_a_close_nothing_is_left() {
    let mut target = Target::start();
    let pools = options([target.url("orders")]).publish_on_close(true);
    drop(pools.create(4096).expect("a pool"));
    wait_until_empty(&target);
    let pool = pools.create(4096).expect("a pool");
    assert_eq!(target.files().len(), 1, "positive control");
    target.stop();
    assert!(target.files().is_empty());
    assert!(pool.close().is_err());
}

#[test]
fn a_name_that_was_taken_meanwhile_is_left_to_its_owner() {
    let (a, b) = (Target::start(), Target::start());
    let pools = options([a.url("orders"), b.url("orders")]);
    let late = pools.clone().publish_on_close(true).create(4096).expect("a pool");
    let theirs = options([b.url("orders")]).create(4096).expect("somebody's pool");
    theirs.persist(0, b"theirs").expect("a receipt");
    let error = late.close().expect_err("a taken name");
    assert_refused(&error, &b.url("orders"), PoolRefusal::AlreadyExists);
    assert!(a.files().is_empty(), "published first, and undone");
    assert_eq!(b.files(), ["orders"]);
    assert_eq!(read(&theirs, 0, 6), b"theirs");
}

#[test]
fn a_dead_replica_keeps_the_name_from_the_others() {
    let (a, mut b, c) = (Target::start(), Target::start(), Target::start());
    let urls = [&a, &b, &c].map(|target| target.url("orders"));
    let pool = options(urls).publish_on_close(true).create(4096).expect("a pool");
    b.stop();
    // That it was told makes no difference here.
    assert!(pool.persist(0, b"x").expect("two are enough").is_degraded());
    pool.close().expect_err("one is dead");
    assert!(a.files().is_empty() && b.files().is_empty());
    wait_until_empty(&c);
}

#[test]
fn a_refused_create_leaves_nothing() {
    let (a, b) = (Target::start(), Target::start());
    let pools = options([a.url("orders"), b.url("orders")]).publish_on_close(true);
    options([b.url("orders")]).create(1).expect("somebody's pool").close().expect("closed");
    let error = pools.create(4096).expect_err("a taken name");
    assert_refused(&error, &b.url("orders"), PoolRefusal::AlreadyExists);
    wait_until_empty(&a);
}
