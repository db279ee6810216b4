//! One pool used through many handles: by threads, by lanes, by flushes in flight.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use pmof_access::Durability;
use pmof_control::{OpenFor, PoolName, Reply, Request};
use pmof_mem::causes;
use pmof_pool::{Acknowledge, Lane, Pending, Pool, PoolError, ReplicaError};

use crate::support::{LONG, RawInitiator, Target, options, read};

const POOL_BYTES: u64 = 1 << 20;

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(Duration::from_secs(10));
    }
}

fn two() -> ([Target; 2], Pool) {
    let targets = [Target::start(), Target::start()];
    let pool = options(targets.each_ref().map(|target| target.url("orders"))).create(POOL_BYTES).expect("a pool");
    (targets, pool)
}

#[test]
fn sixty_four_threads_persist_at_once_and_each_receipt_is_its_own() {
    let (targets, pool) = two();
    thread::scope(|scope| {
        for index in 0..64_u64 {
            let pool = pool.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let receipt = pool.persist(index * 64, &[round + 1; 64]).expect("a receipt");
                    assert_eq!(receipt.replicas.len(), 2, "{receipt}");
                }
            });
        }
    });
    for replica in 0..2 {
        let mut bytes = vec![0; 64 * 64];
        pool.read_replica(replica, 0, &mut bytes).expect("a read");
        assert!(bytes.iter().all(|byte| *byte == 20), "replica {replica}");
    }
    pool.close().expect("closed");
    let again = options(targets.each_ref().map(|target| target.url("orders"))).open().expect("the pool");
    assert!(again.was_closed() && again.copied_bytes() == 0);
}

#[test]
fn a_replica_that_dies_among_many_threads_is_left_behind_before_any_persist_returns() {
    let ([first, mut second], pool) = two();
    let urls = [first.url("orders"), second.url("orders")];
    thread::scope(|scope| {
        for index in 0..8_u64 {
            let (pool, first) = (pool.clone(), &urls[0]);
            scope.spawn(move || {
                let receipt = loop {
                    let receipt = pool.persist(index * 512, &[7; 512]).expect("one is enough of two");
                    if receipt.is_degraded() {
                        break receipt;
                    }
                    assert_eq!(receipt.replicas.len(), 2, "{receipt}");
                };
                assert_eq!((receipt.replicas.len(), receipt.missing.len()), (1, 1), "{receipt}");
                // Whoever is told finds it written down where the bytes are.
                let info = options([first.clone()]).info().expect("an answer");
                assert_eq!(info[0].state.epoch.members.count_ones(), 1, "{:?}", info[0].state);
            });
        }
        thread::sleep(Duration::from_millis(50));
        second.stop();
    });
    assert!(matches!(pool.check_replicas(), Err(PoolError::Replica { .. })));
    pool.close().expect("that one is dead was told");
}

#[test]
fn a_closed_pool_is_closed_for_every_handle_and_free_for_the_next() {
    let (targets, pool) = two();
    let (other, mut lane): (Pool, Lane) = (pool.clone(), pool.lane());
    lane.write(0, b"before").expect("posted");
    let pending = lane.flush();
    lane.write(64, b"unflushed").expect("posted");
    pool.close().expect("closed");
    assert_eq!(pending.wait().expect("it was posted before").replicas.len(), 2);
    assert!(matches!(lane.write(128, b"x"), Err(PoolError::Closed)));
    assert!(matches!(lane.persist(), Err(PoolError::Closed)));
    assert!(matches!(other.persist(0, b"x"), Err(PoolError::Closed)));
    assert!(matches!(other.read(0, &mut [0]), Err(PoolError::Closed)));
    assert!(matches!(other.close(), Err(PoolError::Closed)));
    assert_eq!((other.len_bytes(), other.replica_count()), (POOL_BYTES, 2), "what it was is known still");
    // The handles are there, and keep nothing from anybody: it is free at once, without asking again.
    for target in &targets {
        let next = RawInitiator::connect(&target.address());
        let (name, require) = (PoolName::new("orders").expect("a name"), Durability::ProcessCrash);
        let opened = next.ask(&Request::Open { name, access: OpenFor::Write, require, may_be_older: false });
        assert!(matches!(opened, Reply::Opened { .. }), "{opened:?}");
        assert_eq!(next.ask(&Request::Close { in_order: true }), Reply::Closed);
    }
    let again = options(targets.each_ref().map(|target| target.url("orders"))).open().expect("the pool");
    assert_eq!((read(&again, 0, 6), read(&again, 64, 9)), (b"before".to_vec(), b"unflushed".to_vec()));
    assert!(again.was_closed());
}

#[test]
fn flushes_that_nobody_waits_for_are_done_and_leave_nothing() {
    let (_targets, pool) = two();
    let mut lane = pool.lane();
    for round in 0..2000_u32 {
        lane.write(0, &round.to_le_bytes()).expect("posted");
        drop(lane.flush());
    }
    assert_eq!(pool.persist(64, b"the last").expect("a receipt").replicas.len(), 2);
    assert_eq!(read(&pool, 0, 4), 1999_u32.to_le_bytes());
    // What nobody asks for does not pile up: few are remembered.
    assert!(!format!("{pool:?}").contains("abandoned"));
    pool.close().expect("closed");
}

#[test]
fn a_flush_is_polled_and_awaited() {
    let (_targets, pool) = two();
    let mut lane = pool.lane();
    lane.write(0, b"polled").expect("posted");
    let mut pending = lane.flush();
    let begun = Instant::now();
    let receipt = loop {
        if let Some(outcome) = pending.poll() {
            break outcome.expect("a receipt");
        }
        assert!(begun.elapsed() < LONG);
    };
    assert_eq!(receipt.replicas.len(), 2);
    // Many futures at once, of several lanes, and some that are given up.
    let mut lanes: Vec<_> = (0..8).map(|_| pool.lane()).collect();
    for round in 0..50_u64 {
        let mut flushes: Vec<Pending> = Vec::new();
        for (index, lane) in lanes.iter_mut().enumerate() {
            lane.write(4096 * index as u64, &round.to_le_bytes()).expect("posted");
            flushes.push(lane.flush());
        }
        let mut given_up = pin!(flushes.pop().expect("eight"));
        let _ = given_up.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        for flush in flushes {
            assert_eq!(block_on(flush).expect("a receipt").replicas.len(), 2);
        }
    }
    pool.close().expect("closed");
    assert!(matches!(block_on(lanes[0].flush()), Err(PoolError::Closed)));
}

#[test]
fn a_future_reports_a_dead_replica() {
    let ([_first, mut second], pool) = two();
    second.stop();
    let mut lane = pool.lane();
    lane.write(0, b"to one").expect("posted");
    let receipt = block_on(lane.flush()).expect("one is enough of two");
    assert_eq!((receipt.replicas.len(), receipt.missing.len()), (1, 1));
}

#[test]
fn ranges_of_a_mirror_are_persisted_and_the_mirror_follows_writes() {
    let targets = [Target::start(), Target::start()];
    let pools = options(targets.each_ref().map(|target| target.url("orders"))).mirror(true);
    let pool = pools.create(POOL_BYTES).expect("a pool");
    let mirror = pool.mirror().expect("it has one");
    mirror.store(5000, b"from the mirror").expect("memory");
    assert_eq!(read(&pool, 5000, 15), [0; 15], "it is not written before it is persisted");
    pool.persist_range(5000..5015).expect("a receipt");
    pool.persist(9000, b"from the caller").expect("a receipt");
    let mut bytes = [0; 15];
    mirror.read(9000, &mut bytes).expect("memory");
    assert_eq!(&bytes, b"from the caller");
    assert!(matches!(pool.persist_range(POOL_BYTES - 1..POOL_BYTES + 1), Err(PoolError::OutOfBounds { .. })));
    pool.close().expect("closed");
    assert!(pool.mirror().is_none());

    let pool = pools.open().expect("the pool");
    let mirror = pool.mirror().expect("it has one");
    mirror.read(5000, &mut bytes).expect("memory");
    assert_eq!(&bytes, b"from the mirror");
    let plain = options([targets[0].url("plain")]).create(4096).expect("a pool");
    assert!(matches!(plain.persist_range(0..1), Err(PoolError::NoMirror)));
    let error = pool.set_attributes(&pmof_pool_set::Attributes { major: 1, ..Default::default() });
    assert!(matches!(error, Err(PoolError::NoHeader)));
}

#[test]
fn an_error_says_which_replica_and_why() {
    let (mut targets, pool) = two();
    let dead = targets[1].url("orders");
    targets[1].stop();
    assert!(pool.persist(0, b"x").expect("one is enough of two").is_degraded());
    let error = pool.check_replicas().expect_err("one is dead");
    assert!(matches!(error.replica_error(), Some(ReplicaError::Ended(_) | ReplicaError::Operation(_))), "{error:?}");
    assert!(causes(&error).to_string().contains(&dead), "{error}");
    let states: Vec<_> =
        pool.replicas().into_iter().map(|(place, failure)| (place.to_string(), failure.is_some())).collect();
    assert_eq!(states, [(targets[0].url("orders"), false), (dead, true)]);
}

#[test]
fn a_pool_is_opened_or_made_and_never_made_over_another() {
    let targets = [Target::start(), Target::start()];
    let urls = targets.each_ref().map(|target| target.url("orders"));
    let pools = options(urls.clone());
    let made = pools.open_or_create(POOL_BYTES).expect("made");
    made.persist(0, b"first").expect("a receipt");
    made.close().expect("closed");
    let error = pools.open_or_create(2 * POOL_BYTES).expect_err("it has another size");
    assert!(matches!(error, PoolError::OtherSize { size_bytes: POOL_BYTES, .. }), "{error}");
    let opened = pools.open_or_create(POOL_BYTES).expect("opened");
    assert!(opened.was_closed(), "as it was found");
    assert_eq!((opened.len_bytes(), read(&opened, 0, 5)), (POOL_BYTES, b"first".to_vec()));
    opened.close().expect("closed");
    // One replica has it, the other has not: whichever is asked first.
    options([urls[1].clone()]).remove().expect("removed");
    for order in [[0, 1], [1, 0]] {
        let error =
            options(order.map(|index: usize| urls[index].clone())).open_or_create(POOL_BYTES).expect_err("half there");
        assert!(causes(&error).to_string().contains(&urls[1]), "{error}");
        assert!(targets[1].files().is_empty());
    }
    let left = options([urls[0].clone()]).min_replicas(1).open_read_only().expect("it is there");
    assert_eq!(read(&left, 0, 5), b"first");
}

#[test]
fn of_several_programs_that_open_or_make_a_pool_at_once_one_makes_it() {
    let targets = [Target::start(), Target::start()];
    for round in 0..4 {
        let name = format!("orders{round}");
        let urls = targets.each_ref().map(|target| target.url(&name));
        let programs: Vec<_> = (0..4)
            .map(|index| {
                let mut urls = urls.clone();
                urls.rotate_left(index % 2);
                thread::spawn(move || options(urls).open_or_create(POOL_BYTES))
            })
            .collect();
        let outcomes: Vec<_> = programs.into_iter().map(|program| program.join().expect("no panic")).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert!(error.is_busy(), "{}", causes(error));
        }
    }
}

#[test]
fn more_replicas_than_the_pool_has_are_refused_with_their_number() {
    let targets = [Target::start(), Target::start()];
    let urls = targets.each_ref().map(|target| target.url("orders"));
    options(urls.clone()).create(POOL_BYTES).expect("made").close().expect("closed");
    let error = options(urls.clone()).min_replicas(3).open().expect_err("there are two");
    assert!(matches!(error, PoolError::Degraded { opened: 2, made: 2, needed: 3, .. }), "{error:?}");
    assert!(causes(&error).to_string().contains("it never had so many"), "{error}");
    options(urls).min_replicas(2).open().expect("both are there");
}

#[test]
fn a_pool_that_could_acknowledge_nothing_is_not_opened() {
    let targets = [Target::start(), Target::start()];
    let options = || options(targets.each_ref().map(|target| target.url("orders")));
    let on = |count| options().acknowledge(Acknowledge::AtLeast(count));
    let assert_refused = |refused: Result<Pool, PoolError>| match refused {
        Err(PoolError::NeverAcknowledged { wanted: 3, made: 2 }) => {}
        other => panic!("{other:?}"),
    };
    assert_refused(on(3).create(POOL_BYTES));
    // Nothing was made.
    on(2).create(POOL_BYTES).expect("made").close().expect("closed");
    assert_refused(on(3).open());
    // The replicas are free again; and who only reads asks for no acknowledgement.
    let pool = on(2).open().expect("both are there");
    on(3).open_read_only().expect("for reading");
    pool.persist(0, b"on both").expect("a receipt");
}

#[test]
fn a_range_that_ends_before_it_starts_is_refused() {
    let target = Target::start();
    let pool = options([target.url("orders")]).mirror(true).create(POOL_BYTES).expect("made");
    let mut lane = pool.lane();
    let (start, end) = (16, 8);
    for refused in [lane.write_range(start..end), pool.persist_range(start..end).map(drop)] {
        assert!(matches!(refused, Err(PoolError::Reversed { start: 16, end: 8 })), "{refused:?}");
    }
    lane.write_range(8..8).expect("nothing to write");
}

#[test]
fn a_waker_that_panics_takes_no_other_future_with_it() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the program's");
        }
    }
    let (_targets, pool) = two();
    let (mut one, mut other) = (pool.lane(), pool.lane());
    for at in 0..50 {
        one.write(0, &[at; 8]).expect("written");
        other.write(64, &[at; 8]).expect("written");
        let (mut flush, next) = (pin!(one.flush()), other.flush());
        let waker = Waker::from(Arc::new(Panics));
        let _ = flush.as_mut().poll(&mut Context::from_waker(&waker));
        block_on(next).expect("a receipt");
    }
}
