//! Bytes that a medium changed: found by comparing replicas, and repaired where most of them agree.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pmof_pool::{Event, Events, Pool, PoolError, ScrubReport};

use crate::support::*;

fn pool_on<const N: usize>(size_bytes: u64) -> ([Target; N], Pool) {
    let targets: [Target; N] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(targets.each_ref().map(|target| target.url("orders"))).create(size_bytes).unwrap();
    (targets, pool)
}

fn scrub(pool: &Pool) -> ScrubReport {
    let mut told = 0;
    let report = pool.scrub(&mut |bytes| told = bytes).unwrap();
    assert_eq!(told, pool.len_bytes());
    report
}

#[test]
fn a_flipped_byte_is_repaired_by_the_majority() {
    const SIZE_BYTES: u64 = (20 << 20) + 100;
    let (targets, pool) = pool_on::<3>(SIZE_BYTES);
    pool.persist(9 << 20, &pattern(100_000, 1)).unwrap();
    let clean = scrub(&pool);
    assert_eq!((clean.compared_bytes, clean.replica_count), (SIZE_BYTES, 3));
    assert!(clean.repaired.is_empty() && clean.undecided.is_empty());

    for (target, offset) in [(0, 5), (1, (9 << 20) + 70_000), (1, (9 << 20) + 76_000), (2, SIZE_BYTES - 1)] {
        flip(&targets[target], offset);
    }
    let report = scrub(&pool);
    let repaired = report.repaired.iter().map(|repaired| (repaired.replica.to_string(), repaired.range.clone()));
    let page = |offset: u64| offset / 4096 * 4096..(offset / 4096 * 4096 + 4096).min(SIZE_BYTES);
    let urls = targets.each_ref().map(|target| target.url("orders"));
    let expected =
        [(0, page(5)), (1, page((9 << 20) + 70_000)), (1, page((9 << 20) + 76_000)), (2, page(SIZE_BYTES - 1))];
    assert_eq!(repaired.collect::<Vec<_>>(), expected.map(|(target, range)| (urls[target].clone(), range)));
    assert!(report.undecided.is_empty());
    assert!(scrub(&pool).repaired.is_empty());
    assert_eq!(read(&pool, 9 << 20, 100_000), pattern(100_000, 1));
}

#[test]
fn of_two_that_differ_nothing_says_which_is_right() {
    let (targets, pool) = pool_on::<2>(1 << 20);
    flip(&targets[0], 4096);
    let contents = |replica| {
        let mut bytes = vec![0; 1 << 20];
        pool.read_replica(replica, 0, &mut bytes).unwrap();
        bytes
    };
    let before = [contents(0), contents(1)];
    let report = scrub(&pool);
    assert!(report.repaired.is_empty() && report.undecided.iter().eq([&(4096..8192)]), "{report:?}");
    assert!(before == [contents(0), contents(1)]);
}

/// What a replica holds of the first MiB.
fn held(pool: &Pool, replica: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    pool.read_replica(replica, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_has_rotted_on_one_is_not_copied_to_one_that_comes_back() {
    for rotten in [0, 1] {
        let (mut targets, pool) = pool_on::<3>(1 << 20);
        pool.persist(0, &pattern(1 << 20, 3)).unwrap();
        pool.close().unwrap();
        let named = options(targets.each_ref().map(|target| target.url("orders")));
        targets[2].stop();
        // It is left behind, and its writer forgets what it lacks.
        named.open().unwrap().close().unwrap();
        flip(&targets[rotten], 600_000);
        targets[2].restart();
        let pool = named.open().unwrap();
        wait_in_sync(&pool);
        assert!(held(&pool, 2) == pattern(1 << 20, 3), "replica {rotten} has rotted");
        let report = scrub(&pool);
        assert_eq!((report.repaired.len(), report.undecided.len()), (1, 0), "{report:?}");
        assert_eq!(report.repaired[0].replica.to_string(), targets[rotten].url("orders"));
        assert!(held(&pool, rotten) == pattern(1 << 20, 3));
    }
}

#[test]
fn what_rots_while_one_is_away_is_found_by_its_verification() {
    let (mut targets, pool) = pool_on::<3>(1 << 20);
    pool.persist(0, &pattern(1 << 20, 3)).unwrap();
    pool.close().unwrap();
    // What was written before the opening no member lacks.
    let pool = options(targets.each_ref().map(|target| target.url("orders"))).open().unwrap();
    let mut events = pool.events();
    // The members' boots are asked for once a second: one that comes back in the same boot is sent what it is known to lack.
    thread::sleep(Duration::from_millis(1500));
    targets[2].stop();
    pool.persist(0, &pattern(4096, 4)).unwrap();
    flip(&targets[0], 600_000);
    targets[2].restart();
    let report = scrubbed(&mut events);
    assert_eq!((report.repaired.len(), report.replica_count), (1, 3), "{report:?}");
    wait_for(&mut events, |event| {
        assert!(!matches!(event, Event::Differs { .. }), "{event}");
        matches!(event, Event::Verified { .. })
    });
    let all = [0, 1, 2].map(|replica| held(&pool, replica));
    assert!(all[0] == all[1] && all[1] == all[2] && all[0][4096..] == pattern(1 << 20, 3)[4096..]);
}

#[test]
fn what_has_rotted_on_one_is_not_copied_behind_a_writers_death() {
    for rotten in 0..3 {
        let (targets, pool) = pool_on::<3>(1 << 20);
        pool.persist(0, &pattern(1 << 20, 3)).unwrap();
        drop(pool);
        flip(&targets[rotten], 600_000);
        let pool = options(targets.each_ref().map(|target| target.url("orders"))).open_waiting(LONG).unwrap();
        assert!(pool.compared_bytes() > 0);
        for replica in 0..3 {
            assert!(held(&pool, replica) == pattern(1 << 20, 3), "replica {replica}, and {rotten} had rotted");
        }
    }
}

#[test]
fn writes_under_way_are_no_differences() {
    let (targets, pool) = pool_on::<3>(4 << 20);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..2_u64 {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                for number in 0.. {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    pool.persist((number * 7 % 500 * 2 + writer) * 4096, &pattern(4096, number)).unwrap();
                }
            });
        }
        for round in 0..8 {
            flip(&targets[round % 3], (1010 + round as u64) * 4096);
            let report = scrub(&pool);
            assert_eq!((report.repaired.len(), report.undecided.len()), (1, 0), "{report:?}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_pool_that_is_read_is_not_scrubbed() {
    let (targets, pool) = pool_on::<1>(4096);
    assert_eq!(scrub(&pool), ScrubReport { replica_count: 1, ..ScrubReport::default() });
    pool.close().unwrap();
    assert!(matches!(pool.scrub(&mut |_| {}), Err(PoolError::Closed)));
    let reader = options([targets[0].url("orders")]).open_read_only().unwrap();
    assert!(matches!(reader.scrub(&mut |_| {}), Err(PoolError::ReadOnly)));
}

/// What the next scrub in the background finds.
fn scrubbed(events: &mut Events) -> Arc<ScrubReport> {
    loop {
        let event = events.next_for(Duration::from_secs(30)).expect("the pool is scrubbed again and again");
        if let Event::Scrubbed { report, .. } = event {
            return report;
        }
    }
}

#[test]
fn a_pool_is_scrubbed_in_the_background() {
    let mut targets: [Target; 3] = std::array::from_fn(|_| Target::start());
    let urls = targets.each_ref().map(|target| target.url("orders"));
    let pool = options(urls.clone()).scrub_every(Duration::ZERO).create(20 << 20).unwrap();
    let mut events = pool.events();
    pool.persist(9 << 20, &pattern(100_000, 1)).unwrap();
    let mut report = scrubbed(&mut events);
    assert_eq!((report.compared_bytes, report.replica_count), (20 << 20, 3));
    assert!(report.repaired.is_empty());
    flip(&targets[1], (9 << 20) + 5);
    while report.repaired.is_empty() {
        report = scrubbed(&mut events);
    }
    assert_eq!(report.repaired[0].replica.to_string(), urls[1]);
    let mut bytes = vec![0; 100_000];
    pool.read_replica(1, 9 << 20, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(100_000, 1));

    targets[2].stop();
    while report.replica_count == 3 {
        report = scrubbed(&mut events);
    }
    flip(&targets[0], 4096);
    while report.undecided.is_empty() {
        report = scrubbed(&mut events);
    }
    assert!(report.replica_count == 2 && report.undecided.iter().eq([&(4096..8192)]), "{report:?}");
    pool.close().unwrap();
    while events.next_for(Duration::from_secs(30)).is_some() {}
}

#[test]
fn nobody_scrubs_a_pool_that_was_not_asked_for() {
    let (targets, pool) = pool_on::<3>(1 << 20);
    let mut events = pool.events();
    flip(&targets[1], 5);
    while let Some(event) = events.next_for(Duration::from_secs(2)) {
        assert!(!matches!(event, Event::Scrubbed { .. }), "{event}");
    }
    assert_eq!(scrub(&pool).repaired.len(), 1);
}
