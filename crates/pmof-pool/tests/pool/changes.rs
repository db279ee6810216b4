//! Changes of the members of a pool that is being written.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pmof_mem::causes;
use pmof_pool::{Acknowledge, ChangeError, Event, MemberState, Pool, PoolError, ReplicaError};

use crate::{interrupted::Ways, support::*};

const POOL_BYTES: u64 = 1 << 20;

fn fixed<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start_fixed())
}

/// Writes records again and again while something is done; each has to be acknowledged.
fn while_written(pool: &Pool, done: impl FnOnce()) {
    let (is_done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let number = written.load(Ordering::Relaxed) + 1;
                let page = number * number % 97;
                pool.persist(page * 4096 + number % 3000, &pattern(600, number)).unwrap();
                written.store(number, Ordering::Relaxed);
            }
        });
        let before = written.load(Ordering::Relaxed);
        done();
        let until = Instant::now() + LONG;
        while written.load(Ordering::Relaxed) <= before {
            assert!(Instant::now() < until, "nothing is written");
            thread::yield_now();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Waits until so many members are all there are, and in sync.
#[track_caller]
fn wait_whole(pool: &Pool, count: usize) {
    wait_in_sync(pool);
    let status = pool.status().unwrap();
    assert_eq!((status.made_count, status.replicas.len()), (count, count), "{status:?}");
}

/// Its replicas are so many, each is read by its place in the list, and all hold the same.
#[track_caller]
fn assert_equal(pool: &Pool, count: usize) {
    let read = |index: usize| {
        let mut bytes = vec![0; POOL_BYTES as usize];
        pool.read_replica(index, 0, &mut bytes).unwrap();
        bytes
    };
    let all: Vec<_> = (0..count).map(read).collect();
    assert!(all.iter().all(|bytes| *bytes == all[0]), "replicas differ");
    assert_eq!((pool.replicas().len(), pool.status().unwrap().replicas.len()), (count, count));
    let none = pool.read_replica(count, 0, &mut [0]).unwrap_err();
    assert!(matches!(none, PoolError::NoSuchReplica { replica_count, .. } if replica_count == count), "{none}");
}

/// A writer that opened it since it was looked at may have added a member, which is not named here.
#[test]
fn a_pool_that_was_opened_since_is_not_removed() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start());
    let all = options(urls(&two));
    all.create(POOL_BYTES).unwrap().close().unwrap();
    let seen = all.info().unwrap();
    let pool = all.open().unwrap();
    assert!(all.remove_unchanged(&seen).is_err(), "it is open");
    pool.close().unwrap();
    let error = all.remove_unchanged(&seen).unwrap_err();
    assert!(causes(&error).to_string().contains("opened"), "{}", causes(&error));
    all.remove_unchanged(&[]).unwrap_err();
    assert_eq!(all.open().unwrap().replica_count(), 2, "both are there");
    all.remove_unchanged(&all.info().unwrap()).unwrap();
    assert!(two[0].files().is_empty() && two[1].files().is_empty());
}

#[test]
fn a_member_is_added_while_the_pool_is_written_and_counts_from_then_on() {
    let mut four: [Target; 4] = fixed();
    let pool = options(urls(&four[..3])).create(POOL_BYTES).unwrap();
    let mut events = pool.events();
    while_written(&pool, || {
        pool.add(&four[3].url("orders")).unwrap();
        let event = wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
        assert!(event.to_string().contains(&four[3].url("orders")), "{event}");
    });
    wait_whole(&pool, 4);
    assert_eq!(pool.persist(0, b"four").unwrap().replicas.len(), 4);
    assert_equal(&pool, 4);
    pool.close().unwrap();

    // One address finds it, and two of four are too few.
    let pool = options([four[0].url("orders")]).open().unwrap();
    wait_whole(&pool, 4);
    pool.close().unwrap();
    let members = options([four[3].url("orders")]).members().unwrap();
    assert_eq!((members.made_count, members.quorum, members.losses_survived), (4, 3, Some(1)));
    four[0].stop();
    four[1].stop();
    options(urls(&four)).open().expect_err("two of four are no majority");
    four[1].restart();
    let pool = options(urls(&four)).open().unwrap();
    assert_eq!(read(&pool, 0, 4), b"four");
}

/// Of an address that was named, and where nothing was, only the member is left that is made there: it is not looked for at two places, of which
/// one would take it from the other again and again.
#[test]
fn a_member_made_where_none_was_found() {
    let three: [Target; 3] = fixed();
    options(urls(&three[..2])).create(POOL_BYTES).unwrap().close().unwrap();
    let pool = options(urls(&three)).open().unwrap();
    assert_eq!(pool.left_out().len(), 1, "{:?}", pool.left_out());
    let mut events = pool.events();
    pool.add(&three[2].url("orders")).unwrap();
    wait_for(&mut events, |event| matches!(event, Event::InSync { .. }));
    wait_whole(&pool, 3);
    let receipt = pool.persist(0, b"on all").unwrap();
    assert_eq!((receipt.replicas.len(), receipt.missing.len(), receipt.replica_count), (3, 0, 3), "{receipt:?}");
    pool.close().unwrap();
}

#[test]
fn a_pool_of_one_grows() {
    let mut three: [Target; 3] = fixed();
    let pool = options(urls(&three[..1])).create(POOL_BYTES).unwrap();
    for (count, target) in (2..).zip(&three[1..]) {
        while_written(&pool, || {
            pool.add(&target.url("orders")).unwrap();
            wait_whole(&pool, count);
        });
        assert_equal(&pool, count);
    }
    // It outlives what it was made on.
    three[0].stop();
    pool.persist(0, b"without the first").unwrap();
    drop(pool);
    let pool = options(urls(&three[1..])).open().unwrap();
    assert_eq!(read(&pool, 0, 17), b"without the first");
    three[0].restart();
    wait_whole(&pool, 3);
    assert_equal(&pool, 3);
    pool.close().unwrap();
}

#[test]
fn a_member_that_was_removed_counts_for_nothing() {
    let three: [Target; 3] = fixed();
    let pool = options(urls(&three)).create(POOL_BYTES).unwrap();
    pool.persist(0, b"old").unwrap();
    while_written(&pool, || pool.remove(&three[2].url("orders")).unwrap());
    wait_whole(&pool, 2);
    assert_equal(&pool, 2);
    let receipt = pool.persist(0, b"new").unwrap();
    assert_eq!((receipt.replicas.len(), receipt.missing.len(), receipt.is_degraded()), (2, 0, false), "{receipt}");
    assert!(matches!(pool.remove("2"), Err(ChangeError::NotAMember { .. })));
    pool.close().unwrap();

    // It leads to the others, and is none of them.
    let pool = options([three[2].url("orders")]).open().unwrap();
    let [(replica, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert_eq!(replica.to_string(), three[2].url("orders"));
    assert!(matches!(**why, ReplicaError::NotAMember { index: 2 }), "{why}");
    assert_eq!(read(&pool, 0, 3), b"new");
    wait_whole(&pool, 2);
    pool.close().unwrap();
    let members = options([three[2].url("orders")]).members().unwrap();
    assert_eq!((members.made_count, members.members.len()), (2, 3));
    assert!(matches!(members.members[0].state, MemberState::Foreign(_)), "{members:?}");
}

#[test]
fn a_lost_member_that_was_removed_is_outvoted_when_it_comes_back() {
    let mut three: [Target; 3] = fixed();
    let pool = options(urls(&three)).create(POOL_BYTES).unwrap();
    pool.persist(0, b"old").unwrap();
    three[2].stop();
    pool.persist(0, b"new").unwrap();
    pool.remove("2").unwrap();
    wait_whole(&pool, 2);
    drop(pool);
    three[0].stop();
    three[2].restart();
    // It knows nothing of that, and two of the three that it knows would be enough.
    let error = options([three[1].url("orders"), three[2].url("orders")]).open().unwrap_err();
    assert_eq!(of_replica(&error).0.to_string(), three[0].url("orders"), "{error}");
    options([three[2].url("orders")]).open().expect_err("one of three");
    three[0].restart();
    let pool = options(urls(&three)).open().unwrap();
    assert_eq!((read(&pool, 0, 3), pool.left_out().len()), (b"new".to_vec(), 1));
}

#[test]
fn a_lost_member_is_replaced_while_the_pool_is_written() {
    let mut four: [Target; 4] = fixed();
    let pool = options(urls(&four[..3])).create(POOL_BYTES).unwrap();
    pool.persist(0, &pattern(500_000, 3)).unwrap();
    four[1].stop();
    let (old, new) = (four[1].url("orders"), four[3].url("orders"));
    while_written(&pool, || {
        assert!(pool.replace(&old, &new).unwrap());
        wait_whole(&pool, 3);
    });
    assert_equal(&pool, 3);
    assert!(!pool.replace(&old, &new).unwrap(), "it is done");
    pool.close().unwrap();
    four[1].restart();
    let pool = options([four[3].url("orders"), four[1].url("orders")]).open().unwrap();
    assert_eq!(pool.left_out().len(), 1);
    wait_whole(&pool, 3);
    pool.close().unwrap();
}

#[test]
fn a_member_in_sync_is_replaced_when_the_new_one_has_everything() {
    let mut three: [Target; 3] = fixed();
    let pool = options(urls(&three[..2])).create(POOL_BYTES).unwrap();
    while_written(&pool, || assert!(pool.replace("0", &three[2].url("orders")).unwrap()));
    wait_whole(&pool, 2);
    pool.persist(0, b"here").unwrap();
    drop(pool);
    three[0].stop();
    let pool = options(urls(&three[1..])).open().unwrap();
    assert_eq!(read(&pool, 0, 4), b"here");
    wait_whole(&pool, 2);
    pool.close().unwrap();
}

#[test]
fn a_new_member_that_is_lost_before_it_has_everything_takes_nobodys_place() {
    let mut three: [Target; 3] = fixed();
    let limited = options(urls(&three[..2])).catch_up_limit(64 << 10);
    let pool = limited.create(POOL_BYTES).unwrap();
    pool.persist(0, &vec![7; POOL_BYTES as usize]).unwrap();
    let new = three[2].url("orders");
    thread::scope(|scope| {
        let replaced = scope.spawn(|| pool.replace("0", &new));
        while pool.made_count() < 3 {
            thread::sleep(Duration::from_millis(1));
        }
        three[2].stop();
        let error = replaced.join().unwrap().unwrap_err();
        assert!(matches!(error, ChangeError::NewMemberLost { .. }), "{error}");
    });
    assert_eq!(pool.made_count(), 3);
    pool.remove(&new).unwrap();
    wait_whole(&pool, 2);
    pool.close().unwrap();
}

#[test]
fn changes_that_cannot_be_are_refused_and_nothing_is_changed() {
    let mut four: [Target; 4] = fixed();
    let all = options(urls(&four[..2]));
    let pool = all.clone().acknowledge(Acknowledge::AtLeast(2)).create(POOL_BYTES).unwrap();
    let url = |index: usize| four[index].url("orders");
    let whole = || wait_whole(&pool, 2);
    assert!(matches!(pool.add("nonsense"), Err(ChangeError::Url(_))));
    assert!(matches!(pool.add(&url(1)), Err(ChangeError::AlreadyMember { .. })));
    assert!(matches!(pool.remove(&url(2)), Err(ChangeError::NotAMember { .. })));
    assert!(matches!(pool.remove("7"), Err(ChangeError::NotAMember { .. })));
    assert!(
        matches!(pool.replace("1", &url(1)), Err(ChangeError::ItsOwnPlace { index: 1, .. })),
        "the old and the new are one"
    );
    assert!(matches!(pool.replace("nonsense", &url(1)), Err(ChangeError::NotAMember { .. })));
    let error = pool.replace("0", &url(1)).unwrap_err();
    assert!(matches!(error, ChangeError::NotNew { old: 0, .. }), "the other member is not new: {error}");
    let error = pool.remove("1").unwrap_err();
    assert!(matches!(error, ChangeError::PromiseBroken { wanted: 2, left: 1, .. }), "{error}");
    whole();
    options([url(2)]).create(4096).unwrap().close().unwrap();
    assert!(matches!(pool.add(&url(2)), Err(ChangeError::OtherPool { .. })));
    assert!(matches!(pool.add("tcp://127.0.0.1:1/orders"), Err(ChangeError::NotMade { .. })));
    assert_eq!(options([url(2)]).info().unwrap()[0].header.size_bytes, 4096, "it is another's");
    whole();
    pool.close().unwrap();
    assert!(matches!(pool.add(&url(3)), Err(ChangeError::Pool(PoolError::Closed))));
    let reader = all.clone().open_read_only().unwrap();
    assert!(matches!(reader.remove("1"), Err(ChangeError::Pool(PoolError::ReadOnly))));
    drop(reader);
    let forced = all.clone().min_replicas(2).open().unwrap();
    assert!(matches!(forced.remove("1"), Err(ChangeError::Forced)));
    forced.close().unwrap();

    let pool = all.open().unwrap();
    four[1].stop();
    pool.persist(0, b"alone").unwrap();
    let error = pool.remove("0").unwrap_err();
    assert!(matches!(error, ChangeError::LastInSync { .. }), "{error}");
    assert_eq!(pool.made_count(), 2);
    pool.persist(0, b"still").unwrap();
    drop(pool);
    assert!(four[3].files().is_empty(), "nothing was left there");
}

#[test]
fn one_that_was_away_leads_to_members_that_came_meanwhile() {
    let mut four: [Target; 4] = fixed();
    let pool = options(urls(&four[..3])).create(POOL_BYTES).unwrap();
    four[2].stop();
    pool.replace("1", &four[3].url("orders")).unwrap();
    // The one that stays is found by the one that was away, and the new one by that.
    while pool.status().unwrap().in_sync_count() < 2 {
        thread::yield_now();
    }
    pool.persist(0, b"here").unwrap();
    pool.close().unwrap();
    four[2].restart();
    let away = four[2].url("orders");
    let members = options([&away]).members().unwrap();
    let state =
        |index: u16| members.members.iter().find(|member| member.index == Some(index)).map(|member| &member.state);
    assert!(matches!(state(3), Some(MemberState::InSync)), "{members:?}");
    assert!(matches!(state(2), Some(MemberState::Behind(_))), "{members:?}");
    let pool = options([&away]).open().unwrap();
    wait_whole(&pool, 3);
    assert_eq!(read(&pool, 0, 4), b"here");
    pool.close().unwrap();
}

#[test]
fn one_that_was_removed_and_finds_no_other_says_why_it_does_not_open() {
    let mut two: [Target; 2] = fixed();
    let pool = options(urls(&two)).create(POOL_BYTES).unwrap();
    pool.remove("1").unwrap();
    pool.close().unwrap();
    two[0].stop();
    let error = options([two[1].url("orders")]).open().unwrap_err();
    assert!(!format!("{error}").ends_with(':') && !matches!(error, PoolError::Apart { .. }), "{error}");
    assert!(format!("{error:?}").contains("it is no member of the pool"), "{error:?}");
}

#[test]
fn a_fenced_writer_changes_no_members_and_says_so() {
    let two: [Target; 2] = fixed();
    let pool = options(urls(&two)).create(POOL_BYTES).unwrap();
    let successor = options(urls(&two)).take_over(Duration::ZERO).open().unwrap();
    pool.persist(0, b"late").unwrap_err();
    for error in [pool.remove("1").unwrap_err(), pool.add("tcp://127.0.0.1:1/orders").unwrap_err()] {
        assert!(matches!(&error, ChangeError::Pool(error) if error.is_fenced()), "{error}");
    }
    successor.close().unwrap();
}

#[test]
fn a_replica_of_the_pool_that_is_no_member_is_not_taken_for_room() {
    let three: [Target; 3] = fixed();
    let pool = options(urls(&three)).create(POOL_BYTES).unwrap();
    pool.persist(0, b"here").unwrap();
    pool.remove("2").unwrap();
    let url = three[2].url("orders");
    assert!(matches!(pool.add(&url), Err(ChangeError::Leftover { .. })));
    options([url.clone()]).remove().unwrap();
    pool.add(&url).unwrap();
    wait_whole(&pool, 3);
    assert_equal(&pool, 3);
    pool.close().unwrap();
    options([url]).open().unwrap().close().unwrap();
}

#[test]
fn a_change_that_too_few_could_know_of_is_not_made() {
    let mut five: [Target; 5] = fixed();
    let pool = options(urls(&five[..3])).create(POOL_BYTES).unwrap();
    five[1].stop();
    five[2].stop();
    assert!(pool.persist(0, b"lost").is_err());
    let error = pool.add(&five[3].url("orders")).unwrap_err();
    assert!(matches!(error, ChangeError::TooFew), "{error}");
    assert!(matches!(pool.remove("2"), Err(ChangeError::TooFew)));
    assert!(five[3].files().is_empty(), "what was made is taken away");
    five[1].restart();
    five[2].restart();
    wait_whole(&pool, 3);
    pool.add(&five[4].url("orders")).unwrap();
    wait_whole(&pool, 4);
    assert_equal(&pool, 4);
}

#[test]
fn a_new_member_that_hangs_before_it_has_everything_is_given_up() {
    thread::scope(|scope| {
        // While it is made, and early and late in its catch-up: none of them ends its connection.
        for at in [12, 30, 90] {
            scope.spawn(move || {
                let three: [Target; 3] = fixed();
                let (way, limit) = (Arc::<Ways>::default(), Duration::from_millis(500));
                let limited = options(urls(&three[..2])).loss_timeout(limit).connect_timeout(limit);
                let pool = limited.catch_up_limit(1 << 20).create(4 * POOL_BYTES).unwrap();
                pool.persist(0, &pattern(4 * POOL_BYTES as usize, 3)).unwrap();
                way.hangs.store(true, Ordering::Release);
                way.left.store(at, Ordering::Release);
                let error = pool.replace("0", &way.to(&three[2])).unwrap_err();
                assert!(matches!(error, ChangeError::NotMade { .. } | ChangeError::NewMemberLost { .. }), "{error}");
                pool.persist(0, b"here").unwrap();
            });
        }
    });
}
