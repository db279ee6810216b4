//! Replicas that are lost while the pool is written, and come back.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_pool::{Acknowledge, Event, Pool, PoolError, ReplicaState};
use pmof_target::ServiceOptions;
use uuid::Uuid;

use crate::support::*;

fn targets<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start())
}

fn contents(pool: &Pool, replica: usize) -> Vec<u8> {
    let mut bytes = vec![0; pool.len_bytes() as usize];
    pool.read_replica(replica, 0, &mut bytes).unwrap();
    bytes
}

#[track_caller]
fn assert_equal(pool: &Pool) {
    let first = contents(pool, 0);
    for replica in 1..pool.replica_count() {
        assert!(first == contents(pool, replica), "replica {replica} differs from the first");
    }
}

#[test]
fn a_lost_replica_is_no_error_and_the_receipt_says_so() {
    let mut three: [Target; 3] = targets();
    let pool = options(urls(&three)).create(4096).unwrap();
    let mut events = pool.events();
    assert!(!pool.persist(0, b"whole").unwrap().is_degraded());
    let lost = three[1].url("orders");
    three[1].stop();
    let receipt = pool.persist(0, b"fewer").unwrap();
    assert!(receipt.is_degraded());
    assert!(receipt.missing.iter().map(ToString::to_string).eq([lost.as_str()]), "{receipt}");
    assert!(receipt.to_string().contains(&format!("on 2/3: {}", three[0].url("orders"))), "{receipt}");
    assert!(receipt.to_string().ends_with(&format!("; degraded, without {lost}")), "{receipt}");
    let status = pool.status().unwrap();
    assert_eq!((status.in_sync_count(), status.made_count, status.quorum), (2, 3, 2));
    assert!(matches!(status.replicas[1].state, ReplicaState::Lost(_)));
    assert!(status.replicas[1].lost_for.is_some() && status.replicas[0].lost_for.is_none());
    let event = wait_for(&mut events, |event| matches!(event, Event::Lost { .. }));
    assert!(event.to_string().contains(&lost), "{event}");
    pool.close().unwrap();
    assert!(events.next_for(LONG).is_none(), "nothing happens to a closed pool");
}

#[test]
fn below_the_quorum_a_persist_fails_until_a_replica_is_back() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(1 << 20).unwrap();
    pool.persist(0, b"of three").unwrap();
    three[1].stop();
    pool.persist(0, b"of two").unwrap();
    three[2].stop();
    for _ in 0..2 {
        let error = pool.persist(0, b"of one").unwrap_err();
        let PoolError::Persist(failure) = error else { panic!("{error:?}") };
        assert_eq!((failure.is_total(), failure.receipt.replicas.len(), failure.failed.len()), (false, 1, 2));
        assert!(!failure.must_reopen());
    }
    // Nobody knows that the second loss is one, so that the first member may not go on.
    three[2].restart();
    let until = Instant::now() + LONG;
    while pool.persist(8, b"of two again").is_err() {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    three[1].restart();
    wait_in_sync(&pool);
    assert_equal(&pool);
    assert_eq!(contents(&pool, 2)[..20], *b"of oneeeof two again");
    pool.close().unwrap();
}

/// With one of five connected no epoch can begin, nor with the first that is back: it waits for another one, connected.
#[test]
fn four_of_five_that_are_lost_at_once_come_back() {
    let mut five: [Target; 5] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&five)).create(1 << 20).unwrap();
    for round in 0..3_u8 {
        pool.persist(0, &[round]).unwrap();
        five[1..].iter_mut().for_each(Target::stop);
        assert!(pool.persist(1, &[round]).is_err());
        for target in &mut five[1..] {
            target.restart();
            thread::sleep(Duration::from_millis(50));
        }
        wait_in_sync(&pool);
    }
    pool.persist(2, b"all").unwrap();
    assert_equal(&pool);
    pool.close().unwrap();
}

#[test]
fn a_pool_that_lost_all_replicas_in_sync_says_that_it_must_be_opened_again() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let options = options(urls(&three));
    let pool = options.create(1 << 20).unwrap();
    let mut events = pool.events();
    let mut lane = pool.lane();
    pool.persist(0, b"acknowledged").unwrap();
    lane.write(4096, b"lost with the connections").unwrap();
    three.iter_mut().for_each(Target::stop);
    let error = lane.persist().unwrap_err();
    assert!(error.must_reopen() && error.is_replica_lost() && !error.is_fenced(), "{error}");
    assert!(error.to_string().contains("open it again"), "{error}");
    three.iter_mut().for_each(Target::restart);
    wait_for(&mut events, |event| matches!(event, Event::NoneLeft));
    // What the lane wrote is nowhere, so that nobody may call it durable; and nobody is said to come back.
    assert!(lane.persist().unwrap_err().must_reopen());
    assert!(events.next_for(Duration::from_millis(500)).is_none());
    assert!(pool.read(0, &mut [0; 4]).unwrap_err().must_reopen());
    drop(lane);
    pool.close().unwrap();
    let pool = options.open().unwrap();
    assert_eq!(contents(&pool, 0)[..12], *b"acknowledged");
    assert_eq!(pool.persist(4096, b"written again").unwrap().replicas.len(), 3);
    pool.close().unwrap();
}

#[test]
fn a_persist_may_ask_for_more_replicas_than_a_majority() {
    let mut three: [Target; 3] = targets();
    let pool = options(urls(&three)).acknowledge(Acknowledge::AtLeast(3)).create(4096).unwrap();
    assert_eq!(pool.persist(0, b"of three").unwrap().replicas.len(), 3);
    three[1].stop();
    let PoolError::Persist(failure) = pool.persist(0, b"of two").unwrap_err() else { panic!("another error") };
    assert_eq!((failure.receipt.replicas.len(), failure.failed.len()), (2, 1));
    pool.close().unwrap();
}

#[test]
fn what_was_written_meanwhile_is_copied_and_nothing_else() {
    const SIZE_BYTES: u64 = 32 << 20;
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&two)).create(SIZE_BYTES).unwrap();
    let mut events = pool.events();
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        pool.persist(at, &pattern(1 << 20, at)).unwrap();
    }
    // All of that is forgotten once both have it.
    thread::sleep(Duration::from_millis(2500));
    two[1].stop();
    for page in [3_u64, 4, 1000, 8191] {
        assert!(pool.persist(page * 4096 + 100, b"while it was away").unwrap().is_degraded());
    }
    two[1].restart();
    let event = wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
    let Event::InSync { copied_bytes, .. } = event else { unreachable!() };
    assert_eq!(copied_bytes, 4 * 4096);
    assert!(!pool.persist(0, b"both").unwrap().is_degraded());
    assert_equal(&pool);
    pool.close().unwrap();
    let pool = options(urls(&two)).open().unwrap();
    assert!(pool.was_closed() && !pool.status().unwrap().is_degraded());
}

#[test]
fn a_replica_catches_up_while_the_pool_is_written() {
    const SIZE_BYTES: u64 = 8 << 20;
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(SIZE_BYTES).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..3_u64 {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || {
                let mut number = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    number += 1;
                    // Each has pages of its own, a few of which it writes again and again.
                    let page = (number * number % 97) * 3 + writer;
                    let bytes = pattern(600, number * 3 + writer);
                    pool.persist(page * 4096 + number % 3000, &bytes).unwrap();
                }
            });
        }
        for round in 0..6 {
            let target = &mut three[round % 3];
            target.stop();
            thread::sleep(Duration::from_millis(60));
            target.restart();
            wait_in_sync(&pool);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!pool.persist(0, b"the end").unwrap().is_degraded());
    assert_equal(&pool);
    pool.close().unwrap();
}

#[test]
fn an_opening_takes_a_majority_and_the_others_catch_up() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let all = options(urls(&three));
    let pool = all.create(1 << 20).unwrap();
    pool.persist(0, b"old").unwrap();
    three[2].stop();
    pool.persist(0, b"new").unwrap();
    pool.close().unwrap();

    // Without the one that is away.
    let pool = all.open().unwrap();
    assert_eq!(pool.left_out().len(), 1);
    assert!(pool.persist(4096, b"without the third").unwrap().is_degraded());
    three[2].restart();
    wait_in_sync(&pool);
    assert_equal(&pool);
    three[0].stop();
    pool.persist(8192, b"without the first").unwrap();
    drop(pool);

    // With one that was left behind.
    three[0].restart();
    let pool = all.open().unwrap();
    assert!(pool.left_out().is_empty());
    wait_in_sync(&pool);
    assert_eq!(read(&pool, 8192, 17), b"without the first");
    assert_equal(&pool);
    pool.close().unwrap();
    let pool = all.open().unwrap();
    assert!(pool.was_closed() && !pool.status().unwrap().is_degraded());
}

#[test]
fn a_replica_that_does_not_know_the_newest_epoch_opens_nothing() {
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&two)).create(4096).unwrap();
    pool.persist(0, b"old").unwrap();
    two[1].stop();
    pool.persist(0, b"new").unwrap();
    drop(pool);
    two[0].stop();
    two[1].restart();
    // The one that was left behind does not know that, and is not opened alone.
    options(urls(&two)).open().unwrap_err();
    options([two[1].url("orders")]).open().unwrap_err();
    two[0].restart();
    two[1].stop();
    // The one that went on alone does.
    let pool = options(urls(&two)).open().unwrap();
    assert_eq!(read(&pool, 0, 3), b"new");
    two[1].restart();
    wait_in_sync(&pool);
    assert_equal(&pool);
}

#[test]
fn an_older_copy_is_updated_and_a_foreign_one_is_left_alone() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let all = options(urls(&three));
    let pool = all.create(1 << 20).unwrap();
    pool.persist(0, b"old").unwrap();
    pool.close().unwrap();
    let path = three[2].root.path().join("orders");
    let copy = std::fs::read(&path).unwrap();
    let pool = all.open().unwrap();
    pool.persist(0, b"new").unwrap();
    let mut events = pool.events();
    three[2].stop();
    pool.persist(4096, b"newer").unwrap();
    std::fs::write(&path, copy).unwrap();
    three[2].restart();
    wait_in_sync(&pool);
    assert_equal(&pool);

    // Another pool of the same name.
    three[2].stop();
    pool.persist(4096, b"newest").unwrap();
    let elsewhere = Target::start();
    options([elsewhere.url("orders")]).create(1 << 20).unwrap().close().unwrap();
    std::fs::copy(elsewhere.root.path().join("orders"), &path).unwrap();
    let foreign = std::fs::read(&path).unwrap();
    three[2].restart();
    let event = wait_for(&mut events, |event| matches!(event, Event::Rejected { .. }));
    assert!(event.to_string().contains("cannot come back"), "{event}");
    assert!(pool.persist(4096, b"newest").unwrap().is_degraded());
    pool.close().unwrap();
    three[2].stop();
    assert!(foreign == std::fs::read(&path).unwrap());
}

#[test]
fn a_catch_up_that_is_interrupted_goes_on() {
    const SIZE_BYTES: u64 = 16 << 20;
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&two)).catch_up_limit(1 << 20).create(SIZE_BYTES).unwrap();
    let mut events = pool.events();
    two[1].stop();
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        pool.persist(at, &pattern(1 << 20, at + 1)).unwrap();
    }
    for _ in 0..3 {
        two[1].restart();
        wait_for(&mut events, |event| matches!(event, Event::CatchingUp { .. }));
        thread::sleep(Duration::from_millis(200));
        // On a busy machine it may have been lost since, and return once more.
        let until = Instant::now() + LONG;
        while !matches!(pool.status().unwrap().replicas[1].state, ReplicaState::CatchingUp { .. }) {
            assert!(Instant::now() < until, "{:?}", pool.status());
            thread::sleep(Duration::from_millis(1));
        }
        two[1].stop();
        pool.persist(77, b"meanwhile").unwrap();
    }
    // The writer dies too.
    two[1].restart();
    wait_for(&mut events, |event| matches!(event, Event::CatchingUp { .. }));
    drop(pool);
    let pool = options(urls(&two)).open().unwrap();
    assert_eq!(read(&pool, 77, 9), b"meanwhile");
    wait_in_sync(&pool);
    assert_equal(&pool);
}

/// A byte that no map of written pages knows of.
#[test]
fn a_replica_that_differs_after_its_catch_up_is_compared_as_a_whole() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(8 << 20).unwrap();
    let mut events = pool.events();
    pool.persist(0, &pattern(4 << 20, 7)).unwrap();
    let mut come_back = |is_spoiled: bool| {
        three[1].stop();
        pool.persist(9000, b"while it was away").unwrap();
        if is_spoiled {
            flip(&three[1], 3 << 20);
        }
        three[1].restart();
        let back = wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
        assert!(matches!(back, Event::InSync { is_verified: false, .. }), "{back}");
        wait_for(&mut events, |event| matches!(event, Event::Verified { .. } | Event::Differs { .. }))
    };
    let Event::Verified { compared_bytes, .. } = come_back(false) else { panic!("nothing differs") };
    assert!((4 << 20..=8 << 20).contains(&compared_bytes), "{compared_bytes}");
    let Event::Differs { range, .. } = come_back(true) else { panic!("a byte differs") };
    assert_eq!(range, 3 << 20..(3 << 20) + 4096);
    let back = wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
    assert!(matches!(back, Event::InSync { is_verified: true, copied_bytes: 4096.., .. }), "{back}");
    assert_equal(&pool);
    pool.close().unwrap();
}

/// It is compared with the first of the others, which is lost meanwhile, and then with the other one.
#[test]
fn a_comparison_whose_source_is_lost_begins_again_with_another() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(32 << 20).unwrap();
    let mut events = pool.events();
    pool.persist(0, &pattern(32 << 20, 7)).unwrap();
    three[1].stop();
    pool.persist(9000, b"while it was away").unwrap();
    three[1].restart();
    wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
    three[0].stop();
    let done = wait_for(&mut events, |event| matches!(event, Event::Verified { .. } | Event::Differs { .. }));
    let Event::Verified { replica, compared_bytes, .. } = done else { panic!("{done}") };
    assert_eq!((replica.to_string(), compared_bytes), (three[1].url("orders"), 32 << 20));
    pool.close().unwrap();
}

/// Below `PowerFailure` nothing says what a machine has that lost power: the map of written pages knows of those that were written since.
#[test]
fn a_replica_whose_machine_was_started_anew_is_compared_as_a_whole() {
    let boot = |number| ServiceOptions::default().boot(Uuid::from_u128(number));
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    three[1].start_otherwise(boot(1));
    let pool = options(urls(&three)).create(8 << 20).unwrap();
    let mut events = pool.events();
    pool.persist(0, &pattern(4 << 20, 7)).unwrap();
    // It is asked when the machines were started, in the background.
    thread::sleep(Duration::from_millis(300));
    for (number, is_known) in [(1, true), (2, false), (2, true)] {
        three[1].stop();
        pool.persist(9000, b"while it was away").unwrap();
        if !is_known {
            flip(&three[1], 3 << 20);
        }
        three[1].start_otherwise(boot(number));
        let back = wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
        let Event::InSync { is_verified, .. } = back else { unreachable!() };
        assert_eq!(is_verified, !is_known, "{number}: {back}");
        assert_equal(&pool);
    }
    pool.close().unwrap();
}

#[test]
fn the_reason_of_a_loss_is_the_latest_one() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(4096).unwrap();
    let mut events = pool.events();
    let until_reason = |wanted: &str| {
        let until = Instant::now() + LONG;
        loop {
            let state = pool.status().unwrap().replicas[1].state.clone();
            let ReplicaState::Lost(why) = &state else { panic!("{state:?}") };
            if why.to_string().contains(wanted) {
                return;
            }
            assert!(Instant::now() < until, "{why}");
            thread::sleep(Duration::from_millis(10));
        }
    };
    three[1].stop();
    std::fs::remove_file(three[1].root.path().join("orders")).unwrap();
    three[1].restart();
    pool.persist(0, b"without it").unwrap();
    until_reason("there is no pool orders");
    options([three[1].url("orders")]).create(4096).unwrap().close().unwrap();
    let Event::Rejected { why, .. } = wait_for(&mut events, |event| matches!(event, Event::Rejected { .. })) else {
        return;
    };
    until_reason(&why.to_string());
}

/// While it catches up it holds bytes of two times: if the writer dies, the next one must know.
#[test]
fn a_returning_replica_knows_that_it_is_behind() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).catch_up_limit(1 << 20).create(8 << 20).unwrap();
    let mut events = pool.events();
    three[1].stop();
    pool.persist(0, &pattern(8 << 20, 7)).unwrap();
    three[1].restart();
    wait_for(&mut events, |event| matches!(event, Event::CatchingUp { .. }));
    let [first, returning] = [0, 1].map(|at| options([three[at].url("orders")]).info().unwrap().remove(0).state);
    assert!(returning.is_behind && !first.is_behind, "{returning:?}");
    assert_eq!(returning.epoch, first.epoch);
}

/// What a returning replica that is compared has lost of what was copied to it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgotten {
    /// Its file was put back to a copy made when its catch-up began.
    OlderCopy,
    /// Its machine lost power.
    NewBoot,
}

/// A catch-up that is interrupted goes on where it was, unless the replica may have lost what was copied.
#[test]
fn an_interrupted_catch_up_believes_no_older_copy() {
    interrupted_and_lost(Forgotten::OlderCopy);
}

#[test]
fn an_interrupted_catch_up_believes_no_new_boot() {
    interrupted_and_lost(Forgotten::NewBoot);
}

fn interrupted_and_lost(forgotten: Forgotten) {
    const SIZE_BYTES: u64 = 16 << 20;
    let boot = |number| ServiceOptions::default().boot(Uuid::from_u128(number));
    let mut two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    two[1].start_otherwise(boot(1));
    let all = options(urls(&two)).catch_up_limit(5 << 20).loss_timeout(LONG);
    let pool = all.create(SIZE_BYTES).unwrap();
    pool.persist(0, b"before").unwrap();
    two[1].stop();
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        pool.persist(at, &pattern(1 << 20, at + 7)).unwrap();
    }
    drop(pool);
    // Of one that was lost before this opening nobody knows what it lacks: it is compared.
    let pool = all.open().unwrap();
    let mut events = pool.events();
    let mark = |target: &Target| options([target.url("orders")]).info().unwrap().remove(0).state.mark;
    let is_catching_up = |event: &Event| matches!(event, Event::CatchingUp { .. });
    let wait_for_mark = |target: &Target, wanted: u64| {
        let until = Instant::now() + LONG;
        while mark(target) < wanted {
            assert!(Instant::now() < until, "the mark is {} instead of {wanted}", mark(target));
            pool.persist(0, &pattern(8, 7)).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
    };
    two[1].restart();
    wait_for(&mut events, is_catching_up);
    wait_for_mark(&two[1], mark(&two[0]));
    two[1].stop();
    let path = two[1].root.path().join("orders");
    let older = std::fs::read(&path).unwrap();
    two[1].restart();
    wait_for(&mut events, is_catching_up);
    // It is told the mark anew whenever something that was copied is durable there.
    let risen = mark(&two[0]) + 1;
    wait_for_mark(&two[0], risen);
    wait_for_mark(&two[1], risen);
    let status = pool.status().unwrap();
    assert!(matches!(status.replicas[1].state, ReplicaState::CatchingUp { .. }), "{status:?}");
    two[1].stop();
    match forgotten {
        Forgotten::OlderCopy => std::fs::write(&path, older).unwrap(),
        Forgotten::NewBoot => {
            flip(&two[1], 1 << 20);
            two[1].start_otherwise(boot(2));
        }
    }
    two[1].restart();
    wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
    assert!(contents(&pool, 0) == contents(&pool, 1), "{forgotten:?}: replicas differ");
}
