//! Pools that are dropped without being closed, and opened again at once by the same program.

use std::{
    fs,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use pmof_pool::{Differing, Pool, PoolOptions};
use pmof_pool_set::{NewPool, NewSet, PoolSet};

use crate::support::{Target, options, read};

const POOL_BYTES: u64 = 1 << 20;
const ROUNDS: u64 = 20;

/// Opens, persists and drops, without a pause in between: no opening is refused, and what was acknowledged is there.
#[track_caller]
fn drop_and_open_again(create: impl FnOnce() -> Pool, open: impl Fn() -> Pool, at: u64) {
    let mut pool = create();
    for round in 1..=ROUNDS {
        pool.persist(at, &round.to_le_bytes()).expect("a receipt");
        // In flight when it is dropped.
        let mut lane = pool.lane();
        lane.write(at + 64, &[round as u8; 512]).expect("posted");
        drop(lane.flush());
        drop((lane, pool));
        pool = open();
        assert_eq!(read(&pool, at, 8), round.to_le_bytes());
    }
    pool.close().expect("closed");
}

#[track_caller]
fn native(options: &PoolOptions) {
    drop_and_open_again(|| options.create(POOL_BYTES).expect("a pool"), || options.open().expect("the pool"), 0);
}

#[test]
fn a_pool_on_targets_is_opened_again_at_once() {
    let targets = [Target::start(), Target::start()];
    native(&options(targets.each_ref().map(|target| target.url("orders"))));
}

#[test]
fn a_pool_in_files_of_this_machine_is_opened_again_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    native(&options(["a", "b"].map(|name| format!("file://{}/{name}", directory.path().display()))));
}

#[test]
fn a_pool_set_of_this_machine_is_opened_again_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("x.set");
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name).display().to_string());
    fs::write(&file, format!("PMEMPOOLSET\n9M {one}\nREPLICA\n9M {other}\n")).expect("a set");
    let set = Pool::from_set(PoolSet::read(&file).expect("a set")).differing(Differing::Copy);
    let new = NewSet::new(NewPool::Obj { layout: "test".to_owned() });
    drop_and_open_again(|| set.create(&new).expect("a pool"), || set.open().expect("the pool"), 5 << 20);
}

/// Each thread's last receipt names what it has; the handles are dropped in whatever order the threads end.
#[test]
fn a_pool_is_dropped_while_other_threads_have_operations_in_flight() {
    const THREADS: usize = 8;
    let targets = [Target::start(), Target::start()];
    let options = options(targets.each_ref().map(|target| target.url("orders")));
    let pool = options.create(POOL_BYTES).expect("a pool");
    let acknowledged: Arc<[AtomicU64; THREADS]> = Arc::default();
    let begun = Arc::new(Barrier::new(THREADS + 1));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (pool, acknowledged, begun) = (pool.clone(), Arc::clone(&acknowledged), Arc::clone(&begun));
            thread::spawn(move || {
                let (mut lane, at) = (pool.lane(), 64 * thread as u64);
                begun.wait();
                for round in 1..=50_u64 {
                    lane.write(at, &round.to_le_bytes()).expect("posted");
                    lane.flush().wait().expect("a receipt");
                    acknowledged[thread].store(round, Ordering::SeqCst);
                }
                lane.write(at, &u64::MAX.to_le_bytes()).expect("posted");
                // Nobody waits for this one, and the thread's handles go.
                drop(lane.flush());
            })
        })
        .collect();
    begun.wait();
    drop(pool);
    for thread in threads {
        thread.join().expect("no panic");
    }
    let pool = options.open().expect("the pool");
    for (thread, acknowledged) in acknowledged.iter().enumerate() {
        let bytes = read(&pool, 64 * thread as u64, 8);
        let found = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        assert!(found == u64::MAX || found == acknowledged.load(Ordering::SeqCst), "{thread}: {found}");
    }
    pool.close().expect("closed");
}
