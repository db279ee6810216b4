//! Flushes as futures, whatever becomes of the runtime, the task or the handles that started them.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pmof::{Background, Durability, Lane, Pool, PoolError, PoolOptions, Service, ServiceOptions};
use tempfile::TempDir;

const POOL_BYTES: u64 = 1 << 20;

fn target() -> (Service, TempDir, PoolOptions) {
    let root = tempfile::tempdir().unwrap();
    let address = "tcp://127.0.0.1:0".parse().unwrap();
    let target = Service::start(root.path(), &[address], ServiceOptions::default()).unwrap();
    let url = format!("{}/orders", target.addresses()[0]);
    (target, root, Pool::options().replica(url).require(Durability::ProcessCrash))
}

fn pool() -> (Service, TempDir, Pool) {
    let (target, root, options) = target();
    (target, root, options.create(POOL_BYTES).unwrap())
}

async fn persist_for_ever(mut lane: Lane, at: u64) -> Result<(), PoolError> {
    for round in 0_u64.. {
        lane.write(at, &round.to_le_bytes())?;
        lane.flush().await?;
    }
    Ok(())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn a_runtime_that_is_shut_down_takes_no_other_flush_with_it() {
    let (_target, _root, pool) = pool();
    let runtime = runtime();
    runtime.block_on(async {
        for task in 0..8 {
            tokio::spawn(persist_for_ever(pool.lane(), 64 * task));
        }
        // Each has a flush in flight.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    drop(runtime);
    assert_eq!(pool.persist(4096, b"after it").unwrap().replicas.len(), 1);
    pool.close().unwrap();
}

#[test]
fn a_task_that_is_cancelled_takes_nothing_back() {
    let (_target, _root, pool) = pool();
    runtime().block_on(async {
        let task = tokio::spawn(persist_for_ever(pool.lane(), 0));
        let mut lane = pool.lane();
        for round in 0..50_u64 {
            lane.write(64, &round.to_le_bytes()).unwrap();
            lane.flush().await.unwrap();
        }
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        lane.write(64, b"as usual").unwrap();
        assert_eq!(lane.flush().await.unwrap().replicas.len(), 1);
    });
    pool.close().unwrap();
}

#[test]
fn a_flush_outlives_its_lane_and_its_pool() {
    let (_target, _root, pool) = pool();
    let mut lane = pool.lane();
    lane.write(0, b"in flight").unwrap();
    let pending = lane.flush();
    drop((lane, pool));
    assert_eq!(pending.wait().unwrap().replicas.len(), 1);
}

#[test]
fn a_pool_is_opened_read_and_closed_by_futures() {
    let (_target, _root, options) = target();
    runtime().block_on(async {
        let pool = options.create_async(POOL_BYTES).await.unwrap();
        let mut lane = pool.lane();
        lane.write(64, b"awaited").unwrap();
        lane.flush().await.unwrap();
        assert_eq!(pool.read_async(64, 7).await.unwrap(), b"awaited");
        let error = pool.read_async(POOL_BYTES, usize::MAX >> 1).await.unwrap_err();
        assert!(matches!(error, PoolError::OutOfBounds { .. }), "{error}");
        pool.close_async().await.unwrap();
        assert!(matches!(pool.close_async().await, Err(PoolError::Closed)));
        let reader = options.open_read_only_async().await.unwrap();
        assert!(reader.was_closed() && reader.read_async(64, 7).await.unwrap() == b"awaited");
        reader.close_async().await.unwrap();
        // Many at once, of one handle.
        let pool = options.open_or_create_async(POOL_BYTES).await.unwrap();
        let reads: Vec<_> = (0..100).map(|_| pool.read_async(64, 7)).collect();
        for read in reads {
            assert_eq!(read.await.unwrap(), b"awaited");
        }
        pool.close_async().await.unwrap();
    });
}

/// Polls a future once, and drops it.
fn begin_and_cancel<T>(future: Background<T>) {
    let mut future = pin!(future);
    let _: Poll<T> = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn an_opening_that_is_cancelled_leaves_the_pool_as_it_was() {
    let (_target, _root, options) = target();
    let pool = options.create(POOL_BYTES).unwrap();
    pool.persist(0, b"before it").unwrap();
    pool.close().unwrap();
    for _ in 0..10 {
        begin_and_cancel(options.open_async());
    }
    // Those have it one after the other, and leave it.
    let pool = options.open_waiting(Duration::from_secs(60)).unwrap();
    let mut bytes = [0; 9];
    pool.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"before it");
    pool.persist(0, b"after it.").unwrap();
    pool.close().unwrap();
}

#[test]
fn a_close_that_is_cancelled_closes_the_pool() {
    let (_target, _root, options) = target();
    let pool = options.create(POOL_BYTES).unwrap();
    pool.persist(0, b"before it").unwrap();
    begin_and_cancel(pool.close_async());
    drop(pool);
    let pool = options.open_waiting(Duration::from_secs(60)).unwrap();
    assert!(pool.was_closed());
    pool.close().unwrap();
}

#[test]
fn a_runtime_that_is_shut_down_ends_no_opening_halfway() {
    let (_target, _root, options) = target();
    options.create(POOL_BYTES).unwrap().close().unwrap();
    let runtime = runtime();
    let opening = options.clone();
    runtime.block_on(async {
        tokio::spawn(async move { opening.open_async().await.map(drop) });
        tokio::task::yield_now().await;
    });
    drop(runtime);
    options.open_waiting(Duration::from_secs(60)).unwrap().close().unwrap();
}
