//! Flushes as futures, whatever becomes of the runtime, the task or the handles that started them.

use pmof::{Durability, Lane, Pool, PoolError, Service, ServiceOptions};
use tempfile::TempDir;

const POOL_BYTES: u64 = 1 << 20;

fn pool() -> (Service, TempDir, Pool) {
    let root = tempfile::tempdir().unwrap();
    let address = "tcp://127.0.0.1:0".parse().unwrap();
    let target = Service::start(root.path(), &[address], ServiceOptions::default()).unwrap();
    let url = format!("{}/orders", target.addresses()[0]);
    let pool = Pool::options().replica(url).require(Durability::ProcessCrash).create(POOL_BYTES).unwrap();
    (target, root, pool)
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
