//! What a target may hold for its connections, and what becomes of those for which there is no more.

use std::time::{Duration, Instant};

use pmof_access::{ConnectError, Refusal};
use pmof_pool::ReplicaError;
use pmof_target::{Service, ServiceError, ServiceOptions};

use crate::support::{LONG, Target, of_replica, options, pattern, read};

/// What a connection over tcp takes, as `docs/design.md` has it.
const CONNECTION_BYTES: u64 = 48 << 10;

fn with_budget(memory_budget_bytes: u64) -> ServiceOptions {
    ServiceOptions::default().memory_budget_bytes(memory_budget_bytes)
}

#[test]
fn a_connection_without_memory_left_is_refused_until_another_goes() {
    let target = Target::start_with(tempfile::tempdir().unwrap(), with_budget(2 * CONNECTION_BYTES));
    let one = options([target.url("one")]).create(1 << 20).expect("room for the first");
    let _two = options([target.url("two")]).create(1 << 20).expect("and for the second");
    let error = options([target.url("three")]).create(1 << 20).unwrap_err();
    let refused =
        matches!(of_replica(&error).1, ReplicaError::Connect(ConnectError::Refused { refusal: Refusal::NoMemory, .. }));
    assert!(refused, "{error:?}");
    drop(one);
    let begun = Instant::now();
    while let Err(error) = options([target.url("three")]).create(1 << 20) {
        assert!(begun.elapsed() < LONG, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn with_memory_for_only_one_connection_everything_works() {
    let target = Target::start_with(tempfile::tempdir().unwrap(), with_budget(CONNECTION_BYTES));
    let bytes = pattern(9 << 20, 3);
    let pool = options([target.url("orders")]).create(9 << 20).expect("a pool");
    pool.persist(0, &bytes).expect("durable");
    assert!(read(&pool, 0, bytes.len()) == bytes);
    for at in (0..1 << 20).step_by(100_003) {
        pool.persist(at, &[7; 5000]).expect("durable");
        assert_eq!(read(&pool, at, 5000), [7; 5000]);
    }
    pool.close().expect("closed");
}

#[test]
fn a_budget_for_no_connection_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let listen = ["tcp://127.0.0.1:0".parse().unwrap()];
    let error = Service::start(root.path(), &listen, with_budget(CONNECTION_BYTES - 1)).unwrap_err();
    let ServiceError::MemoryBudget { given_bytes, least_bytes } = error else { panic!("{error}") };
    assert_eq!((given_bytes, least_bytes), (CONNECTION_BYTES - 1, CONNECTION_BYTES));
}
