//! Members of a pool that are found by what other members know of them.

use std::{fs, os::unix::fs::FileExt};

use pmof_control::{ROSTER_BYTES, ROSTER_OFFSET};
use pmof_mem::causes;
use pmof_pool::{MemberState, Pool, ReplicaError, ReplicaState};

use crate::support::*;

const POOL_BYTES: u64 = 64 << 10;

fn fixed<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start_fixed())
}

/// Makes a pool on all targets that holds `bytes`, and closes it.
fn make(targets: &[Target], bytes: &[u8]) {
    let pool = options(urls(targets)).create(POOL_BYTES).unwrap();
    pool.persist(0, bytes).unwrap();
    pool.close().unwrap();
}

fn places(pool: &Pool) -> Vec<String> {
    let mut places: Vec<_> = pool.replicas().iter().map(|(place, _)| place.to_string()).collect();
    places.sort();
    places
}

#[track_caller]
fn assert_whole(pool: &Pool, targets: &[Target]) {
    let mut expected = urls(targets);
    expected.sort();
    assert_eq!(places(pool), expected);
    assert_eq!((pool.replica_count(), pool.made_count()), (targets.len(), targets.len()));
    let receipt = pool.persist(8, b"written").unwrap();
    assert_eq!((receipt.replicas.len(), receipt.missing.len()), (targets.len(), 0), "{receipt}");
}

#[test]
fn one_address_is_enough_to_find_all_members() {
    let three: [Target; 3] = fixed();
    make(&three, b"here");
    for target in &three {
        let reader = options([target.url("orders")]).open_read_only().unwrap();
        assert_eq!((reader.replica_count(), read(&reader, 0, 4)), (3, b"here".to_vec()));
        let pool = options([target.url("orders")]).open().unwrap();
        assert_whole(&pool, &three);
        pool.close().unwrap();
    }
}

#[test]
fn one_that_cannot_be_reached_is_missing_as_if_it_had_been_named() {
    let mut three: [Target; 3] = fixed();
    make(&three, b"here");
    three[2].stop();
    let pool = options([three[0].url("orders")]).open().unwrap();
    let [(replica, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert_eq!(replica.to_string(), three[2].url("orders"));
    assert!(matches!(**why, ReplicaError::Connect(_)), "{why}");
    assert!(pool.persist(0, b"gone").unwrap().is_degraded());
    three[2].restart();
    wait_in_sync(&pool);
    assert_whole(&pool, &three);
    pool.close().unwrap();
    three[1].stop();
    three[2].stop();
    let error = options([three[0].url("orders")]).open().unwrap_err();
    assert_eq!(of_replica(&error).0.to_string(), three[1].url("orders"));
}

#[test]
fn who_asks_for_a_number_of_replicas_gets_those_that_are_named() {
    let three: [Target; 3] = fixed();
    make(&three, b"here");
    let pool = options(urls(&three[..2])).min_replicas(2).open().unwrap();
    assert_eq!(places(&pool).len(), 2);
}

#[test]
fn a_member_that_moved_is_known_where_it_was_found_last() {
    // One starts on another port each time.
    let (mut moving, still): (Target, [Target; 2]) = (Target::start(), fixed());
    let all = |moving: &Target| [still[0].url("orders"), still[1].url("orders"), moving.url("orders")];
    options(all(&moving)).create(POOL_BYTES).unwrap().close().unwrap();
    moving.restart();
    let one = || options([still[0].url("orders")]);
    let pool = one().open().unwrap();
    assert_eq!((places(&pool).len(), pool.status().unwrap().in_sync_count()), (3, 2));
    pool.persist(0, b"here").unwrap();
    pool.close().unwrap();
    // The address that is named counts, and is told.
    let pool = options([still[0].url("orders"), moving.url("orders")]).open().unwrap();
    wait_in_sync(&pool);
    assert_eq!(places(&pool).len(), 3);
    pool.close().unwrap();
    let pool = one().open().unwrap();
    let states = pool.status().unwrap().replicas;
    assert!(states.iter().all(|replica| matches!(replica.state, ReplicaState::InSync)), "{states:?}");
    assert!(places(&pool).contains(&moving.url("orders")), "{:?}", places(&pool));
}

#[test]
fn another_pool_at_a_members_address_is_not_touched() {
    let mut three: [Target; 3] = fixed();
    make(&three, b"here");
    options([three[1].url("orders")]).remove().unwrap();
    let theirs = options([three[1].url("orders")]);
    theirs.create(POOL_BYTES).unwrap().close().unwrap();
    let pool = options([three[0].url("orders")]).open().unwrap();
    let [(replica, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert_eq!(replica.to_string(), three[1].url("orders"));
    assert!(matches!(**why, ReplicaError::Mismatch { .. }), "{why}");
    pool.close().unwrap();
    theirs.open().expect("it is nobody's").close().unwrap();

    // Nor does another replica of the pool take its place.
    let [second, third] = [1, 2].map(|index: usize| three[index].root.path().join("orders"));
    three[1].stop();
    fs::copy(third, second).unwrap();
    three[1].restart();
    let pool = options([three[0].url("orders")]).open().unwrap();
    let [(_, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert!(matches!(**why, ReplicaError::NotTheMember { index: 1, found: 2 }), "{why}");
}

#[test]
fn a_member_that_somebody_else_has_open_is_busy_though_it_was_not_named() {
    let three: [Target; 3] = fixed();
    make(&three, b"here");
    let theirs = options([three[2].url("orders")]).min_replicas(1).open().unwrap();
    let error = options([three[0].url("orders")]).open().unwrap_err();
    assert!(error.is_busy(), "{error}");
    assert_eq!(of_replica(&error).0.to_string(), three[2].url("orders"));
    theirs.close().unwrap();
}

#[test]
fn a_pool_that_is_older_than_rosters_gets_one_when_it_is_opened() {
    let three: [Target; 3] = fixed();
    make(&three, b"here");
    for target in &three {
        let file = fs::File::options().write(true).open(target.root.path().join("orders")).unwrap();
        file.write_all_at(&vec![0; ROSTER_BYTES], ROSTER_OFFSET).unwrap();
    }
    options([three[0].url("orders")]).open().expect_err("nothing says where the others are");
    options(urls(&three)).open().unwrap().close().unwrap();
    let pool = options([three[0].url("orders")]).open().unwrap();
    assert_whole(&pool, &three);
}

/// Flips bytes of the slots of a member's roster that is at rest.
fn garble(target: &Target, slots: std::ops::Range<u64>) {
    let file = fs::File::options().write(true).open(target.root.path().join("orders")).unwrap();
    for slot in slots {
        file.write_all_at(&[0xee; 8], ROSTER_OFFSET + slot * ROSTER_BYTES as u64 / 2 + 100).unwrap();
    }
}

#[test]
fn one_garbled_copy_of_a_roster_changes_nothing() {
    let three: [Target; 3] = fixed();
    make(&three, b"here");
    for target in &three {
        garble(target, 0..1);
    }
    let pool = options([three[1].url("orders")]).open().unwrap();
    assert_whole(&pool, &three);
}

#[test]
fn a_member_whose_roster_is_garbled_is_left_out_and_two_of_three_are_too_many() {
    let three: [Target; 3] = fixed();
    make(&three, b"here");
    garble(&three[2], 0..2);
    let members = options([three[0].url("orders")]).members().unwrap();
    let MemberState::Lost(why) = &members.members[2].state else { panic!("{members:?}") };
    assert!(causes(why).to_string().contains("the list of its members is damaged"), "{why}");
    assert_eq!((members.in_sync_count(), members.losses_survived), (2, Some(0)));
    let pool = options([three[0].url("orders")]).open().unwrap();
    let [(replica, why)] = pool.left_out() else { panic!("{:?}", pool.left_out()) };
    assert_eq!(replica.to_string(), three[2].url("orders"));
    assert!(matches!(**why, ReplicaError::Refused { .. }), "{why}");
    assert_eq!(read(&pool, 0, 4), b"here");
    assert!(pool.persist(0, b"more").unwrap().is_degraded());
    pool.close().unwrap();

    garble(&three[1], 0..2);
    let error = options([three[0].url("orders")]).open().unwrap_err();
    let (replica, why) = of_replica(&error);
    assert_eq!(replica.to_string(), three[1].url("orders"));
    assert!(causes(why).to_string().contains("restore it from another replica"), "{why}");
    assert_eq!(options([three[0].url("orders")]).members().unwrap().losses_survived, None);
    // Its bytes are there for an operator who says that it counts.
    let pool = options([three[0].url("orders")]).min_replicas(1).open_read_only().unwrap();
    assert_eq!(read(&pool, 0, 4), b"more");
}
