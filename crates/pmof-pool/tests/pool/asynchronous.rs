//! Asynchronous members over real connections to targets in this process.

use std::{
    thread,
    time::{Duration, Instant},
};

use pmof_pool::{
    Acknowledge, AsynchronousState, AsynchronousStatus, AtLagBound, ChangeError, Event, MemberState, MemberStatus,
    Pool, PoolError, PromotionError, ReplicaError,
};

use crate::support::*;

const POOL_BYTES: u64 = 1 << 20;

fn asynchronous(pool: &Pool) -> AsynchronousStatus {
    pool.status().unwrap().asynchronous.remove(0)
}

/// Waits until the pool's asynchronous member is at a point of this name.
#[track_caller]
fn wait_at(pool: &Pool, name: &str) -> AsynchronousStatus {
    let until = Instant::now() + LONG;
    loop {
        let status = asynchronous(pool);
        if status.point.as_ref().is_some_and(|point| point.name == name) {
            return status;
        }
        assert!(Instant::now() < until, "{status:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
pub(crate) fn wait_following(pool: &Pool) {
    let until = Instant::now() + LONG;
    while !matches!(asynchronous(pool).state, AsynchronousState::Following) {
        assert!(Instant::now() < until, "{:?}", asynchronous(pool));
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_member_follows_counts_for_nothing_and_becomes_a_pool() {
    let [mut a, mut b, far] = std::array::from_fn(|_| Target::start_fixed());
    let urls = [a.url("orders"), b.url("orders")];
    let pool = options(urls.clone()).asynchronous(far.url("orders")).point_interval(None).create(POOL_BYTES).unwrap();
    pool.persist(0, b"before the first point").unwrap();
    wait_following(&pool);
    let receipt = pool.consistency_point("first").unwrap();
    assert_eq!((receipt.replicas.len(), receipt.replica_count, receipt.made_count), (2, 2, 2));
    let status = wait_at(&pool, "first");
    assert_eq!(status.lag_bytes, Some(0), "{status:?}");
    pool.persist(100, b"behind the point").unwrap();
    let status = pool.status().unwrap();
    assert_eq!((status.replicas.len(), status.made_count, status.quorum, status.in_sync_count()), (2, 2, 1, 2));
    assert_eq!(status.asynchronous[0].lag_bytes, Some(16));
    // All that count are lost.
    drop((pool, a.stop(), b.stop()));
    let alone = options([far.url("orders")]);
    let error = alone.open().unwrap_err();
    assert!(matches!(of_replica(&error).1, ReplicaError::Asynchronous { index: 2 }), "{error:?}");
    let error = alone.clone().min_replicas(1).open_read_only().unwrap_err();
    assert!(matches!(of_replica(&error).1, ReplicaError::Asynchronous { .. }), "{error:?}");
    let promotion = alone.promote(false).unwrap();
    assert_eq!(promotion.point.as_ref().map(|point| point.name.as_str()), Some("first"));
    let mark = alone.members().unwrap().forced.expect("a mark");
    assert_eq!((mark.went_on, mark.left_out), (0b100, 0b11));
    let pool = alone.open().expect("a pool of its own");
    assert_eq!(pool.status().unwrap().forced, Some(mark));
    assert_eq!((pool.clear_forced().unwrap(), pool.status().unwrap().forced), (Some(mark), None));
    assert_eq!(read(&pool, 0, 22), b"before the first point");
    assert_eq!(read(&pool, 100, 16), [0; 16]);
    pool.persist(100, b"another line").unwrap();
    assert_eq!(pool.made_count(), 1);
    pool.close().unwrap();
    assert_eq!(far.files(), ["orders"]);
    let error = alone.promote(false).unwrap_err();
    assert!(matches!(error, PromotionError::NotAsynchronous { .. }), "{error}");
    // The former members come back, and lead to it.
    a.restart();
    b.restart();
    let pool = options(urls).open().unwrap();
    assert_eq!((read(&pool, 100, 12), pool.made_count()), (b"another line".to_vec(), 1));
    pool.close().unwrap();
    assert_eq!(read(&alone.open().unwrap(), 100, 12), b"another line");
}

#[test]
fn a_member_that_answers_is_not_given_up_unless_forced() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options([a.url("orders")]).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    pool.persist(0, b"orders").unwrap();
    wait_following(&pool);
    let alone = options([far.url("orders")]);
    let error = alone.promote(true).unwrap_err();
    assert!(matches!(&error, PromotionError::Pool(error) if error.is_busy()), "{error}");
    pool.close().unwrap();
    let error = alone.promote(false).unwrap_err();
    assert!(matches!(error, PromotionError::MemberAnswers { .. }), "{error}");
    // Closed in order: all was sent.
    let promotion = alone.promote(true).unwrap();
    assert_eq!(promotion.lost_bytes(), Some(0));
    assert_eq!(read(&alone.open().unwrap(), 0, 6), b"orders");
}

#[test]
fn a_member_comes_and_goes_while_the_pool_is_written() {
    let [a, b, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options([a.url("orders"), b.url("orders")]).create(POOL_BYTES).unwrap();
    pool.persist(0, &pattern(500_000, 1)).unwrap();
    pool.add_asynchronous(&far.url("orders")).unwrap();
    let error = pool.add_asynchronous(&far.url("orders")).unwrap_err();
    assert!(matches!(error, ChangeError::AlreadyMember { .. }), "{error}");
    wait_following(&pool);
    let mut events = pool.events();
    // Its death is nothing to those who write.
    far.stop();
    wait_for(&mut events, |event| matches!(event, Event::NotFollowing { .. }));
    let receipt = pool.persist(700_000, b"while it was away").unwrap();
    assert_eq!(receipt.replicas.len(), 2);
    assert!(asynchronous(&pool).lag_bytes.is_some_and(|bytes| bytes >= 17));
    far.restart();
    wait_for(&mut events, |event| matches!(event, Event::Following { .. }));
    pool.consistency_point("back").unwrap();
    wait_at(&pool, "back");
    pool.close().unwrap();
    // The next writer finds it by the members.
    let pool = options([a.url("orders")]).open().unwrap();
    wait_following(&pool);
    assert_eq!(pool.made_count(), 2);
    pool.persist(1, b"x").unwrap();
    pool.consistency_point("again").unwrap();
    wait_at(&pool, "again");
    pool.remove(&far.url("orders")).unwrap();
    assert!(pool.status().unwrap().asynchronous.is_empty());
    let mut expected = pattern(500_000, 1);
    expected[1] = b'x';
    pool.close().unwrap();
    drop(pool);
    let alone = options([far.url("orders")]);
    alone.promote(true).unwrap();
    let promoted = alone.open().unwrap();
    assert!(read(&promoted, 0, 500_000) == expected);
    assert_eq!(read(&promoted, 700_000, 17), b"while it was away");
}

#[test]
fn a_member_named_beside_the_others_is_left_out() {
    let [a, b, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options([a.url("orders"), b.url("orders")]).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    pool.close().unwrap();
    let pool = options([far.url("orders"), a.url("orders"), b.url("orders")]).open().unwrap();
    assert!(matches!(*pool.left_out()[0].1, ReplicaError::Asynchronous { .. }), "{:?}", pool.left_out());
    assert_eq!((pool.made_count(), pool.status().unwrap().in_sync_count()), (2, 2));
    wait_following(&pool);
    pool.close().unwrap();
    // It leads to the others.
    let pool = options([far.url("orders")]).open().unwrap();
    assert_eq!(pool.status().unwrap().in_sync_count(), 2);
    wait_following(&pool);
}

/// Far more than the bound is written at once: the member falls behind and is copied to, or those who write wait.
fn at_the_bound(then: AtLagBound) -> (Vec<Event>, u64) {
    const BOUND: u64 = 256 << 10;
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let options = options([a.url("orders")]).lag_bound(BOUND, Duration::MAX, then);
    let pool = options.asynchronous(far.url("orders")).create(4 << 20).unwrap();
    wait_following(&pool);
    let mut events = pool.events();
    let bytes = pattern(48 << 10, 7);
    let mut most = 0;
    for round in 0..200_u64 {
        let offset = round * 20_011 % ((4 << 20) - bytes.len() as u64);
        pool.persist(offset, &bytes).unwrap();
        if matches!(asynchronous(&pool).state, AsynchronousState::Following) {
            most = most.max(asynchronous(&pool).lag_bytes.unwrap());
        }
    }
    pool.consistency_point("end").unwrap();
    let until = Instant::now() + LONG;
    while asynchronous(&pool).lag_bytes != Some(0) {
        assert!(Instant::now() < until, "{:?}", asynchronous(&pool));
        thread::sleep(Duration::from_millis(2));
    }
    let expected = read(&pool, 0, 4 << 20);
    pool.close().unwrap();
    let told = std::iter::from_fn(|| events.next_for(Duration::ZERO)).collect();
    let alone = crate::support::options([far.url("orders")]);
    alone.promote(true).unwrap();
    assert!(read(&alone.open().unwrap(), 0, 4 << 20) == expected);
    (told, most)
}

#[test]
fn those_who_write_wait_at_the_bound() {
    let (told, most) = at_the_bound(AtLagBound::Wait);
    assert!(!told.iter().any(|event| matches!(event, Event::FellBehind { .. })), "{told:?}");
    assert!(most <= 256 << 10, "{most}");
}

#[test]
fn a_member_falls_behind_at_the_bound_and_is_copied_to() {
    let (told, _) = at_the_bound(AtLagBound::FallBehind);
    let fell = told.iter().position(|event| matches!(event, Event::FellBehind { .. }));
    let back = told.iter().rposition(|event| matches!(event, Event::Following { .. }));
    assert!(fell.is_some() && fell < back, "{told:?}");
}

#[test]
fn a_pool_without_asynchronous_members_makes_points_too() {
    let a = Target::start();
    let pool = options([a.url("orders")]).create(POOL_BYTES).unwrap();
    pool.lane().write(0, b"orders").unwrap();
    assert_eq!(pool.consistency_point("nobody follows").unwrap().replicas.len(), 1);
    let error = pool.add_asynchronous(&a.url(&"n".repeat(250))).unwrap_err();
    assert!(matches!(error, ChangeError::NameTooLong { limit_bytes: 247, .. }), "{error}");
    let unpublished = options([a.url("later")]).publish_on_close(true).asynchronous(a.url("far"));
    let error = unpublished.create(POOL_BYTES).unwrap_err();
    assert!(matches!(error, PoolError::Asynchronous(_)), "{error}");
}

/// A writer that hangs, and whose pool is taken over, sends nothing to the member any more; the next one does.
#[test]
fn a_member_is_taken_over_with_the_pool() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let hung =
        options([a.url("orders")]).asynchronous(far.url("orders")).point_interval(None).create(POOL_BYTES).unwrap();
    wait_following(&hung);
    hung.persist(0, b"one").unwrap();
    hung.consistency_point("one").unwrap();
    wait_at(&hung, "one");
    let next = options([a.url("orders")]).point_interval(None).take_over(Duration::ZERO).open().unwrap();
    wait_following(&next);
    hung.persist(0, b"hung").unwrap_err();
    hung.consistency_point("hung").unwrap_err();
    next.persist(10, b"two").unwrap();
    next.consistency_point("two").unwrap();
    wait_at(&next, "two");
    let until = Instant::now() + LONG;
    while !matches!(asynchronous(&hung).state, AsynchronousState::Lost(_)) {
        assert!(Instant::now() < until, "{:?}", asynchronous(&hung));
        thread::sleep(Duration::from_millis(2));
    }
    next.persist(20, b"three").unwrap();
    next.consistency_point("three").unwrap();
    wait_at(&next, "three");
    next.close().unwrap();
    drop(hung);
    let alone = options([far.url("orders")]);
    let promotion = alone.promote(true).unwrap();
    assert_eq!(promotion.point.map(|point| point.name), Some(String::new()), "the one of the close");
    assert_eq!(read(&alone.open().unwrap(), 0, 25), b"one\0\0\0\0\0\0\0two\0\0\0\0\0\0\0three");
}

/// A point that was not acknowledged is none: what is before it may still be lost.
#[test]
fn a_member_has_nothing_that_was_not_acknowledged() {
    let [a, mut b, far] = std::array::from_fn(|_| Target::start_fixed());
    let options = options([a.url("orders"), b.url("orders")]).acknowledge(Acknowledge::AtLeast(2)).point_interval(None);
    let pool = options.asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    pool.persist(0, b"one").unwrap();
    pool.consistency_point("one").unwrap();
    wait_at(&pool, "one");
    b.stop();
    pool.persist(0, b"two").unwrap_err();
    pool.consistency_point("two").unwrap_err();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(asynchronous(&pool).point.map(|point| point.name), Some("one".to_owned()));
    b.restart();
    wait_in_sync(&pool);
    pool.consistency_point("three").unwrap();
    wait_at(&pool, "three");
    drop(pool);
    let alone = crate::support::options([far.url("orders")]).take_over(Duration::ZERO);
    alone.promote(true).unwrap();
    assert_eq!(read(&alone.open().unwrap(), 0, 3), b"two");
}

/// Slots of 64 bytes, of which write number *n* goes to slot *n* mod 1000.
const SLOTS: u64 = 1000;

/// The number of the last write that is there, if all before it are, and none behind it.
fn prefix(bytes: &[u8]) -> Option<u64> {
    let at = |slot: u64| u64::from_le_bytes(bytes[slot as usize * 64..][..8].try_into().unwrap());
    let last = (0..SLOTS).map(at).max()?;
    // The newest number up to the last that goes to a slot; 0 before the first.
    let newest = |slot: u64| last.saturating_sub((last + SLOTS - slot) % SLOTS);
    (0..SLOTS).all(|slot| at(slot) == newest(slot)).then_some(last)
}

#[test]
fn a_prefix_is_told_from_others() {
    let mut bytes = vec![0; SLOTS as usize * 64];
    assert_eq!(prefix(&bytes), Some(0));
    for number in 1..=2 * SLOTS + 5 {
        bytes[(number % SLOTS) as usize * 64..][..8].copy_from_slice(&number.to_le_bytes());
        assert_eq!(prefix(&bytes), Some(number));
    }
    bytes[3 * 64..][..8].copy_from_slice(&3_u64.to_le_bytes());
    assert_eq!(prefix(&bytes), None);
}

/// Writers die at random moments, the member's target too, and more is written than is kept: what is promoted in the end is a prefix, with all that the writer knew to
/// be there.
#[test]
fn what_is_left_of_writers_and_targets_that_die_is_a_prefix() {
    let mut random = pattern(256, 11).into_iter();
    let mut next = || u64::from(random.next().unwrap());
    for round in 0..6_u64 {
        let a = Target::start_fixed();
        let mut far = Target::start_fixed();
        let options = options([a.url("orders")])
            .lag_bound(4 << 10, Duration::MAX, AtLagBound::FallBehind)
            .point_interval(Some(Duration::from_millis(5)));
        let mut pool = Some(options.clone().asynchronous(far.url("orders")).create(SLOTS * 64).unwrap());
        let (mut number, mut known) = (0_u64, 0);
        for death in 0..4 {
            // The one before is gone when its targets have noticed.
            let writer = pool.take().unwrap_or_else(|| options.open_waiting(LONG).unwrap());
            if death == 0 {
                // Before that there is nothing to promote.
                wait_following(&writer);
            }
            for _ in 0..100 + 2 * next() {
                number += 1;
                writer.persist(number % SLOTS * 64, &number.to_le_bytes()).unwrap();
                if number % 50 == 0 {
                    writer.consistency_point(&format!("write {number}")).unwrap();
                }
                let name = asynchronous(&writer).point.map(|point| point.name).unwrap_or_default();
                known = name.strip_prefix("write ").map_or(known, |name| known.max(name.parse().unwrap()));
            }
            if death % 2 == round % 2 {
                far.stop();
                thread::sleep(Duration::from_millis(next() / 4));
                far.restart();
            }
            // Not closed.
            drop(writer);
        }
        let alone = crate::support::options([far.url("orders")]).take_over(Duration::ZERO);
        let left = match alone.promote(true) {
            Err(PromotionError::NoPoint { .. }) if known == 0 => continue,
            promoted => promoted.map(|_| read(&alone.open().unwrap(), 0, (SLOTS * 64) as usize)).unwrap(),
        };
        let last = prefix(&left).unwrap_or_else(|| panic!("no prefix in round {round}"));
        assert!(known <= last && last <= number, "write {known} was known to be there of {number}, {last} is");
    }
}

/// A member that was away is copied to by the map of what was written meanwhile, and not compared: what changed there behind its back is not noticed. The next writer compares it.
#[test]
fn a_member_that_was_away_is_copied_to_by_the_map() {
    let [a, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let options = options([a.url("orders")]).point_interval(None);
    let pool = options.asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    pool.persist(0, &pattern(500_000, 1)).unwrap();
    wait_following(&pool);
    pool.consistency_point("one").unwrap();
    wait_at(&pool, "one");
    let mut events = pool.events();
    // Not sent: it is lost first.
    pool.persist(100_000, b"before").unwrap();
    far.stop();
    wait_for(&mut events, |event| matches!(event, Event::NotFollowing { .. }));
    assert!(asynchronous(&pool).lost_for.is_some());
    let told = pool.status().unwrap().last_events.pop();
    assert!(matches!(told, Some((Event::NotFollowing { .. }, _))), "{told:?}");
    pool.persist(900_000, b"while it was away").unwrap();
    pool.persist(900_100, b"again").unwrap();
    flip(&far, 700_000);
    far.restart();
    let back = wait_for(&mut events, |event| matches!(event, Event::Following { .. }));
    assert!(matches!(back, Event::Following { copied_bytes: 8192, .. }), "{back:?}");
    assert!(asynchronous(&pool).lost_for.is_none());
    pool.consistency_point("two").unwrap();
    wait_at(&pool, "two");
    pool.close().unwrap();
    drop(pool);
    let pool = crate::support::options([a.url("orders")]).open().unwrap();
    wait_following(&pool);
    let expected = read(&pool, 0, POOL_BYTES as usize);
    pool.close().unwrap();
    drop(pool);
    let alone = crate::support::options([far.url("orders")]);
    alone.promote(true).unwrap();
    let found = read(&alone.open().unwrap(), 0, POOL_BYTES as usize);
    assert!(found == expected && found[900_000..900_017] == *b"while it was away");
}

/// The data, or what lies beside it, is put back to a copy that is older than the rest: it is made equal by whoever writes the pool, and no pool is made of it.
#[test]
fn a_member_whose_files_are_of_different_times_is_at_no_point() {
    // The mark rises once a second.
    const A_MARK_LATER: Duration = Duration::from_millis(1100);
    let [a, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let options = options([a.url("orders")]).point_interval(None).keep_points(4);
    let pool = options.asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    let mut events = pool.events();
    pool.persist(0, &pattern(500_000, 1)).unwrap();
    wait_following(&pool);
    // Behind the state: what follows must not take it for the next one.
    wait_for(&mut events, |event| matches!(event, Event::Following { .. }));
    let reach = |at: u64, name: &str, pool: &Pool| {
        thread::sleep(A_MARK_LATER);
        pool.persist(at, name.as_bytes()).unwrap();
        pool.consistency_point(name).unwrap();
        wait_at(pool, name);
    };
    reach(600_000, "one", &pool);
    let paths = ["orders", "orders.changes"].map(|name| far.root.path().join(name));
    let copies = |far: &mut Target| {
        far.stop();
        let copies = paths.each_ref().map(|path| std::fs::read(path).unwrap());
        far.restart();
        copies
    };
    let old = copies(&mut far);
    wait_for(&mut events, |event| matches!(event, Event::Following { .. }));
    reach(700_000, "two", &pool);
    reach(800_000, "three", &pool);
    far.stop();
    std::fs::write(&paths[0], &old[0]).unwrap();
    far.restart();
    // Nothing was written meanwhile: by the map it would lack nothing.
    let back = wait_for(&mut events, |event| matches!(event, Event::Following { .. }));
    assert!(matches!(back, Event::Following { copied_bytes, .. } if copied_bytes > 0), "{back:?}");
    reach(900_000, "four", &pool);
    pool.close().unwrap();
    drop(pool);
    // The next opening keeps points again.
    let pool = crate::support::options([a.url("orders")]).point_interval(None).keep_points(4).open().unwrap();
    wait_following(&pool);
    reach(1_000_000, "five", &pool);
    let expected = read(&pool, 0, POOL_BYTES as usize);
    pool.close().unwrap();
    drop(pool);

    let alone = crate::support::options([far.url("orders")]);
    let new = copies(&mut far);
    for [data, staging] in [[&old[0], &new[1]], [&new[0], &old[1]]] {
        far.stop();
        std::fs::write(&paths[0], data).unwrap();
        std::fs::write(&paths[1], staging).unwrap();
        far.restart();
        let members = alone.members().unwrap().members;
        let is_at_none = |member: &MemberStatus| matches!(member.state, MemberState::Asynchronous { point: None, .. });
        assert!(members.iter().any(is_at_none), "{members:?}");
        let kept = alone.points().unwrap().remove(0).points;
        assert!(kept.is_err_and(|why| matches!(*why, ReplicaError::PointsDamaged)));
        assert!(alone.open_at_point("five").is_err());
        let refused = alone.promote(true).unwrap_err();
        assert!(matches!(refused, PromotionError::NoPoint { .. }), "{refused}");
    }
    far.stop();
    paths.iter().zip(&new).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    far.restart();
    alone.promote(true).unwrap();
    assert!(read(&alone.open().unwrap(), 0, POOL_BYTES as usize) == expected);
}

/// What is copied to a member is bounded as what is copied to one that counts.
#[test]
fn copies_to_a_member_are_limited() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options([a.url("orders")]).catch_up_limit(4 << 20).create(4 << 20).unwrap();
    let bytes = pattern(4 << 20, 1);
    pool.persist(0, &bytes).unwrap();
    let began = Instant::now();
    pool.add_asynchronous(&far.url("orders")).unwrap();
    let mut writes = 0_u64;
    while !matches!(asynchronous(&pool).state, AsynchronousState::Following) {
        pool.persist(writes % 1000 * 64, &writes.to_le_bytes()).unwrap();
        writes += 1;
        assert!(began.elapsed() < LONG, "{:?}", asynchronous(&pool));
    }
    assert!(began.elapsed() >= Duration::from_millis(990), "{:?}", began.elapsed());
    pool.consistency_point("end").unwrap();
    wait_at(&pool, "end");
    let expected = read(&pool, 0, 4 << 20);
    pool.close().unwrap();
    let alone = options([far.url("orders")]);
    drop(pool);
    alone.promote(true).unwrap();
    assert!(read(&alone.open().unwrap(), 0, 4 << 20) == expected);
}

/// Some pages are written far faster than others are copied: the copy goes on in rounds, and comes to an end. So does that of one that has a point already, at which it stays until then.
#[test]
fn a_copy_comes_to_an_end_while_the_pool_is_written_fast() {
    const SIZE: u64 = 8 << 20;
    const BOUND: u64 = 1 << 20;
    const HOT: u64 = 512 << 10;
    let (near, mut far) = (Target::start_fixed(), Target::start_fixed());
    let options = options([near.url("orders")]).lag_bound(BOUND, Duration::MAX, AtLagBound::FallBehind);
    let pool = options.catch_up_limit(8 << 20).point_interval(None).create(SIZE).unwrap();
    pool.persist(0, &pattern(SIZE as usize, 1)).unwrap();
    let mut written_bytes = 0_u64;
    let pages = pattern(64 << 10, 3);
    let mut copied = |pool: &Pool, point: Option<&str>| {
        let (before, mut events) = (written_bytes, pool.events());
        loop {
            pool.persist(written_bytes % HOT, &pages).unwrap();
            written_bytes += pages.len() as u64;
            // Eight times as fast as the copy at most: without a limit a fast machine writes more than the bound while a message is under way.
            thread::sleep(Duration::from_millis(1));
            match events.next_for(Duration::ZERO) {
                Some(Event::Following { copied_bytes, .. }) => {
                    assert!(written_bytes - before > 2 * BOUND, "{}", written_bytes - before);
                    return copied_bytes;
                }
                Some(Event::FellBehind { .. }) => panic!("the copy was overtaken"),
                _ => {}
            }
            let status = asynchronous(pool);
            let name = status.point.as_ref().map(|point| point.name.as_str());
            assert!(name == point || name == Some(""), "{status:?}");
        }
    };
    pool.add_asynchronous(&far.url("orders")).unwrap();
    let copied_bytes = copied(&pool, None);
    assert!((SIZE..=SIZE + 4 * HOT).contains(&copied_bytes), "{copied_bytes}");
    // Nothing is left to be sent that would have it fall behind meanwhile.
    let until = Instant::now() + LONG;
    while asynchronous(&pool).lag_bytes != Some(0) || asynchronous(&pool).point.is_none_or(|point| point.name != "one")
    {
        assert!(Instant::now() < until, "{:?}", asynchronous(&pool));
        pool.consistency_point("one").unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    let mut lost = pool.events();
    far.stop();
    wait_for(&mut lost, |event| matches!(event, Event::NotFollowing { .. }));
    pool.persist(0, &pattern(SIZE as usize, 2)).unwrap();
    far.restart();
    let copied_bytes = copied(&pool, Some("one"));
    assert!((SIZE..=SIZE + 4 * HOT).contains(&copied_bytes), "{copied_bytes}");
    let expected = read(&pool, 0, SIZE as usize);
    pool.close().unwrap();
    drop(pool);
    let alone = crate::support::options([far.url("orders")]);
    alone.promote(true).unwrap();
    assert!(read(&alone.open().unwrap(), 0, SIZE as usize) == expected);
}
