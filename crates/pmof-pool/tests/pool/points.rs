//! Consistency points that asynchronous members keep, over real connections to targets in this process.

use std::{
    fs::OpenOptions,
    os::unix::fs::FileExt as _,
    thread,
    time::{Duration, Instant},
};

use pmof_pool::{AsynchronousState, Event, MemberState, Pool, PoolError, PoolOptions, ReplicaError, RollbackError};

use crate::support::*;

const POOL_BYTES: u64 = 1 << 20;

fn writing(a: &Target) -> PoolOptions {
    options([a.url("orders")]).point_interval(None)
}

#[track_caller]
fn wait_until(mut is: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < until, "in time");
        thread::sleep(Duration::from_millis(2));
    }
}

#[track_caller]
fn wait_following(pool: &Pool) {
    wait_until(|| matches!(pool.status().unwrap().asynchronous[0].state, AsynchronousState::Following));
}

/// Makes a point, and waits until the member is at it.
#[track_caller]
fn point(pool: &Pool, name: &str) {
    pool.consistency_point(name).unwrap();
    wait_until(|| pool.status().unwrap().asynchronous[0].point.as_ref().is_some_and(|point| point.name == name));
}

/// The names of the points that the only asynchronous member keeps.
fn kept(options: &PoolOptions) -> Vec<String> {
    let members = options.points().unwrap();
    assert_eq!(members.len(), 1, "{members:?}");
    members[0].points.as_ref().unwrap().iter().map(|kept| kept.point.name.clone()).collect()
}

/// Four days, of which each writes what it is to the same page, and to one of its own.
fn write_day(pool: &Pool, day: u64) {
    pool.persist(100, &pattern(3000, day)).unwrap();
    pool.persist(day * 40_000, &pattern(10_000, day + 10)).unwrap();
}

#[track_caller]
fn check_day(pool: &Pool, day: u64) {
    assert!(read(pool, 100, 3000) == pattern(3000, day), "day {day}");
    for other in 1..=4 {
        let expected = if other <= day { pattern(10_000, other + 10) } else { vec![0; 10_000] };
        assert!(read(pool, other * 40_000, 10_000) == expected, "what day {other} wrote, at day {day}");
    }
}

#[test]
fn points_are_kept_read_and_gone_back_to() {
    let [mut a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(3).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    for day in 1..=3 {
        write_day(&pool, day);
        point(&pool, &format!("day {day}"));
    }
    // One without a name is not kept.
    let reading = options([a.url("orders")]);
    assert_eq!(kept(&reading), ["day 1", "day 2", "day 3"]);
    let listed = reading.points().unwrap().remove(0).points.unwrap();
    assert!(listed[0].saved_bytes > 10_000 && listed[2].saved_bytes == 0, "{listed:?}");
    // By any of the members, while the pool is written.
    let one = reading.open_at_point("day 1").unwrap();
    let two = options([far.url("orders")]).open_at_point(&listed[1].point.number.to_string()).unwrap();
    assert_eq!((one.len_bytes(), one.uuid()), (POOL_BYTES, pool.uuid()));
    check_day(&one, 1);
    write_day(&pool, 4);
    point(&pool, "day 4");
    check_day(&two, 2);
    assert_eq!(kept(&reading), ["day 2", "day 3", "day 4"]);
    let error = one.read(0, &mut [0; 10]).unwrap_err();
    assert!(matches!(error.replica_error(), Some(ReplicaError::NoSuchPoint { .. })), "{error:?}");
    assert!(matches!(one.persist(0, b"x"), Err(PoolError::ReadOnly)));
    let error = reading.open_at_point("day 1").unwrap_err();
    assert!(matches!(&error, PoolError::NoPoint { replicas, .. } if replicas.len() == 1), "{error}");
    // Not beside a writer, whichever of its members is asked; and only of an asynchronous member.
    let alone = options([far.url("orders")]);
    let error = alone.roll_back("day 2").unwrap_err();
    assert!(matches!(error, RollbackError::Written { .. }), "{error}");
    pool.close().unwrap();
    let error = reading.roll_back("day 2").unwrap_err();
    assert!(matches!(error, RollbackError::NotAsynchronous { .. }), "{error}");
    let error = alone.roll_back("day 1").unwrap_err();
    assert!(
        matches!(&error, RollbackError::Pool(error) if matches!(error.replica_error(), Some(ReplicaError::NoSuchPoint { .. }))),
        "{error}"
    );
    // The next writer keeps as many without being told.
    let pool = writing(&a).open().unwrap();
    wait_following(&pool);
    assert_eq!(kept(&reading), ["day 2", "day 3", "day 4"]);
    pool.persist(0, b"unnamed").unwrap();
    pool.close().unwrap();
    drop((pool, two));
    let rolled = alone.roll_back("day 3").unwrap();
    assert_eq!((rolled.to.name.as_str(), rolled.dropped_bytes()), ("day 3", None));
    assert_eq!(kept(&reading), ["day 2", "day 3", "day 4"], "it pushes none out");
    // Further back, and forward again.
    alone.roll_back("day 2").unwrap();
    alone.roll_back("day 4").unwrap();
    assert!(alone.roll_back("day 3").unwrap().dropped_points.is_empty());
    assert_eq!(kept(&reading), ["day 2", "day 3", "day 4"]);
    assert!((10_000..100_000).contains(&rolled.changed_bytes), "{rolled:?}");
    check_day(&reading.open_at_point("day 4").unwrap(), 4);
    check_day(&reading.open_at_point("day 3").unwrap(), 3);
    a.stop();
    assert_eq!(alone.promote(false).unwrap().point.unwrap().name, "day 3");
    assert_eq!(far.files(), ["orders"]);
    check_day(&alone.open().unwrap(), 3);
}

/// What a member had itself before it went back is lost by a promotion, also where its writer was heard last before it had that.
#[test]
fn what_going_back_drops_is_lost_by_a_promotion() {
    let [mut a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(8).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    for day in 1..=3 {
        write_day(&pool, day);
        point(&pool, &format!("day {day}"));
    }
    pool.close().unwrap();
    drop(pool);
    let alone = options([far.url("orders")]);
    let newest = alone.points().unwrap().remove(0).points.unwrap().pop().unwrap().point.unix_ms;
    assert_eq!(alone.roll_back("day 2").unwrap().dropped_bytes(), Some(13_000));
    assert_eq!(alone.roll_back("day 1").unwrap().dropped_bytes(), Some(13_000));
    a.stop();
    let promotion = alone.promote(false).unwrap();
    assert_eq!(promotion.lost_bytes(), Some(26_000), "{promotion:?}");
    assert!(promotion.heard.as_ref().unwrap().unix_ms >= newest, "{promotion:?}");
}

/// What leads to a point and was not applied to the end is shown as staged, and applied by whoever opens the member.
#[test]
fn a_rollback_that_was_interrupted_is_shown_and_done_by_a_promotion() {
    let [mut a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(8).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    for day in 1..=2 {
        write_day(&pool, day);
        point(&pool, &format!("day {day}"));
    }
    pool.close().unwrap();
    drop(pool);
    let alone = options([far.url("orders")]);
    let staged = || {
        let members = alone.members().unwrap().members;
        let staged = members.into_iter().find_map(|member| match member.state {
            MemberState::Asynchronous { staged, .. } => Some(staged),
            _ => None,
        });
        staged.unwrap().map(|point| point.name)
    };
    assert_eq!(staged(), None);
    alone.roll_back("day 1").unwrap();
    assert_eq!(staged(), None);
    // Back to before its last step.
    let file = OpenOptions::new().read(true).write(true).open(far.root.path().join("orders.changes")).unwrap();
    let (mut applied, at) = ([0; 8], 65_536 + 8);
    file.read_exact_at(&mut applied, at).unwrap();
    file.write_all_at(&(u64::from_le_bytes(applied) - 1).to_le_bytes(), at).unwrap();
    assert_eq!(staged().as_deref(), Some("day 1"));
    a.stop();
    assert_eq!(alone.promote(false).unwrap().point.unwrap().name, "day 1");
    check_day(&alone.open().unwrap(), 1);
}

/// A member that went back is brought forward by the next writer, and keeps points all the time.
#[test]
fn a_member_that_went_back_follows_again() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(8).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    for day in 1..=2 {
        write_day(&pool, day);
        point(&pool, &format!("day {day}"));
    }
    pool.close().unwrap();
    drop(pool);
    let alone = options([far.url("orders")]);
    let rolled = alone.roll_back("day 1").unwrap();
    assert_eq!(rolled.dropped_bytes(), Some(13_000), "{rolled:?}");
    let pool = writing(&a).open().unwrap();
    wait_following(&pool);
    write_day(&pool, 3);
    point(&pool, "day 3");
    for day in 1..=3 {
        check_day(&alone.open_at_point(&format!("day {day}")).unwrap(), day);
    }
    pool.close().unwrap();
    // It is told to keep none.
    let pool = writing(&a).keep_points(0).open().unwrap();
    wait_following(&pool);
    assert!(kept(&alone).is_empty());
    assert_eq!(far.files(), ["orders", "orders.changes"]);
}

#[test]
fn points_that_do_not_fit_are_dropped_with_an_event() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(8).points_space(64 << 10);
    let pool = pool.asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    let mut events = pool.events();
    for day in 1..=4 {
        write_day(&pool, day);
        point(&pool, &format!("day {day}"));
    }
    let reading = options([a.url("orders")]);
    assert_eq!(kept(&reading).last().unwrap(), "day 4");
    // Far more than there is room for.
    pool.persist(0, &pattern(200_000, 9)).unwrap();
    point(&pool, "day 5");
    assert_eq!(kept(&reading), ["day 5"]);
    let dropped = wait_for(&mut events, |event| matches!(event, Event::PointDropped { .. }));
    assert!(dropped.to_string().contains("\"day 1\""), "{dropped}");
    assert!(read(&options([a.url("orders")]).open_at_point("day 5").unwrap(), 0, 200_000) == pattern(200_000, 9));
}

/// The default space is enough for what all pages were, also where each is saved by itself.
#[test]
fn a_point_of_a_pool_that_is_rewritten_is_kept() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(1).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    pool.persist(0, &pattern(POOL_BYTES as usize, 1)).unwrap();
    point(&pool, "before");
    let mut events = pool.events();
    for page in [0, 2, 4] {
        pool.persist(page << 12, &pattern(4096, 2)).unwrap();
        pool.consistency_point("").unwrap();
    }
    pool.persist(0, &pattern(POOL_BYTES as usize, 3)).unwrap();
    pool.consistency_point("").unwrap();
    pool.close().unwrap();
    let dropped = std::iter::from_fn(|| events.next_for(Duration::ZERO))
        .find(|event| matches!(event, Event::PointDropped { .. }));
    assert!(dropped.is_none(), "{dropped:?}");
    let alone = options([far.url("orders")]);
    assert_eq!(kept(&alone), ["before"]);
    let before = alone.open_at_point("before").unwrap();
    assert!(read(&before, 0, POOL_BYTES as usize) == pattern(POOL_BYTES as usize, 1));
}

#[test]
fn more_points_than_a_member_keeps_are_refused() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let refused = |result: Result<Pool, PoolError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, PoolError::TooManyPoints { wanted: 65, limit: 64 }), "{error:?}");
    };
    let options = writing(&a).asynchronous(far.url("orders"));
    refused(options.clone().keep_points(65).create(POOL_BYTES));
    options.keep_points(64).create(POOL_BYTES).unwrap().close().unwrap();
    refused(writing(&a).keep_points(65).open());
}

/// A program that opens the pool, writes, names a point and closes it: each of these points is kept, though the member follows only then.
#[test]
fn points_of_short_sessions_are_kept() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(8).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    for day in 1..=4 {
        let pool = if day == 1 { pool.clone() } else { writing(&a).open().unwrap() };
        let mut events = pool.events();
        write_day(&pool, day);
        pool.consistency_point(&format!("day {day}")).unwrap();
        if day == 4 {
            pool.consistency_point("end").unwrap();
        }
        pool.close().unwrap();
        let told = std::iter::from_fn(|| events.next_for(Duration::ZERO))
            .find(|event| matches!(event, Event::PointNotKept { .. }));
        assert!(told.is_none(), "{told:?}");
    }
    let alone = options([far.url("orders")]);
    assert_eq!(kept(&alone), ["day 1", "day 2", "day 3", "day 4", "end"]);
    for day in 1..=4 {
        check_day(&alone.open_at_point(&format!("day {day}")).unwrap(), day);
    }
    check_day(&alone.open_at_point("end").unwrap(), 4);
}

/// A point that is named while the member is away is kept if nothing is written until it is back; else an event tells that it is not.
#[test]
fn points_that_a_member_misses_are_told() {
    let [a, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(8).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    let mut events = pool.events();
    far.stop();
    for day in 1..=2 {
        write_day(&pool, day);
        pool.consistency_point(&format!("day {day}")).unwrap();
    }
    wait_for(&mut events, |event| matches!(event, Event::NotFollowing { .. }));
    far.restart();
    let told = wait_for(&mut events, |event| matches!(event, Event::PointNotKept { .. }));
    assert!(told.to_string().contains("\"day 1\""), "{told}");
    let alone = options([far.url("orders")]);
    wait_until(|| kept(&alone) == ["day 2"]);
    check_day(&alone.open_at_point("day 2").unwrap(), 2);
    // It is not waited for where it does not answer.
    far.stop();
    pool.persist(0, b"x").unwrap();
    wait_for(&mut events, |event| matches!(event, Event::NotFollowing { .. }));
    pool.consistency_point("day 3").unwrap();
    pool.close().unwrap();
    let told = wait_for(&mut events, |event| matches!(event, Event::PointNotKept { .. }));
    assert!(told.to_string().contains("\"day 3\""), "{told}");
}

/// Where there is no place for points, the member follows without.
#[test]
fn a_member_without_room_for_points_follows_all_the_same() {
    for is_taken in [true, false] {
        let [a, far] = std::array::from_fn(|_| Target::start_fixed());
        if is_taken {
            options([far.url("orders.points")]).create(4096).unwrap().close().unwrap();
        }
        let pool = writing(&a).create(POOL_BYTES).unwrap();
        pool.close().unwrap();
        // More than any disk has.
        let pool = writing(&a).keep_points(2).points_space(1 << 60).open().unwrap();
        let mut events = pool.events();
        pool.add_asynchronous(&far.url("orders")).unwrap();
        let told = wait_for(&mut events, |event| matches!(event, Event::KeepsNoPoints { .. }));
        assert!(matches!(told, Event::KeepsNoPoints { why: Some(_), .. }), "{told}");
        wait_following(&pool);
        pool.persist(0, b"orders").unwrap();
        point(&pool, "day 1");
        let points = options([a.url("orders")]).points().unwrap().remove(0).points;
        if is_taken {
            assert!(matches!(points.map_err(|why| matches!(*why, ReplicaError::Mismatch { .. })), Err(true)));
        } else {
            assert!(points.unwrap().is_empty());
        }
        pool.close().unwrap();
        let alone = options([far.url("orders")]);
        drop(pool);
        alone.promote(true).unwrap();
        assert_eq!(read(&alone.open().unwrap(), 0, 6), b"orders");
    }
}

/// What a member kept of its points is damaged: an error says so, its data is untouched, and the next writer begins anew.
#[test]
fn points_that_are_damaged_are_an_error_and_begin_anew() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let pool = writing(&a).keep_points(4).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    wait_following(&pool);
    for day in 1..=2 {
        write_day(&pool, day);
        point(&pool, &format!("day {day}"));
    }
    pool.close().unwrap();
    drop(pool);
    let file = OpenOptions::new().write(true).open(far.root.path().join("orders.points")).unwrap();
    // Both slots of the index.
    for slot in [0, 40_960] {
        file.write_all_at(&[0xee; 16], 65_536 + slot).unwrap();
    }
    drop(file);
    let alone = options([far.url("orders")]);
    let why = alone.points().unwrap().remove(0).points.unwrap_err();
    assert!(matches!(*why, ReplicaError::PointsDamaged), "{why}");
    let error = alone.open_at_point("day 1").unwrap_err();
    assert!(
        matches!(&error, PoolError::NoPoint { replicas, .. } if matches!(*replicas[0].1, ReplicaError::PointsDamaged)),
        "{error}"
    );
    let pool = writing(&a).keep_points(4).open().unwrap();
    let mut events = pool.events();
    wait_following(&pool);
    write_day(&pool, 3);
    point(&pool, "day 3");
    assert_eq!(kept(&alone), ["day 3"]);
    let told = std::iter::from_fn(|| events.next_for(Duration::ZERO))
        .find(|event| matches!(event, Event::KeepsNoPoints { .. }));
    // It may have been told before anybody listened.
    assert!(told.is_none_or(|event| matches!(event, Event::KeepsNoPoints { why: None, .. })));
    check_day(&alone.open_at_point("day 3").unwrap(), 3);
}

#[test]
fn a_point_whose_name_would_be_taken_for_a_number_is_refused() {
    let target = Target::start();
    let pool = options([target.url("orders")]).create(64 << 10).unwrap();
    for name in ["7", "007", "20261126"] {
        let error = pool.consistency_point(name).unwrap_err();
        assert!(matches!(&error, PoolError::PointName { name: refused } if refused == name), "{error:?}");
    }
    for name in ["", "day 7", "7th", "-7"] {
        pool.consistency_point(name).unwrap();
    }
}
