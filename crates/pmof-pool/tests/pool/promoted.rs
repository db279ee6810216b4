//! What becomes of the former members of a pool that was made of an asynchronous one.

use std::{
    thread,
    time::{Duration, Instant},
};

use pmof_pool::{FormerState, MemberState, Pool, PoolError, Promotion, ReplicaError};

use crate::{asynchronous::wait_following, superseded::Path, support::*};

const POOL_BYTES: u64 = 1 << 20;

/// A closed pool on these targets, with an asynchronous member that has all of it.
fn made(near: &[&Target], far: &Target) -> Vec<String> {
    let urls: Vec<_> = near.iter().map(|target| target.url("orders")).collect();
    let pool = options(urls.clone()).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    pool.persist(0, b"former").unwrap();
    wait_following(&pool);
    pool.close().unwrap();
    urls
}

fn is_told(promotion: &Promotion) -> Vec<bool> {
    promotion.former.iter().map(|former| matches!(former.state, FormerState::Told)).collect()
}

fn why_left_out(pool: &Pool) -> Vec<&ReplicaError> {
    pool.left_out().iter().map(|(_, why)| &**why).collect()
}

#[test]
fn former_members_that_answer_are_told_and_lead_to_the_promoted_one() {
    let [a, b, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let urls = made(&[&a, &b], &far);
    let alone = options([far.url("orders")]);
    assert_eq!(is_told(&alone.promote(true).unwrap()), [true, true]);
    for (at, url) in urls.iter().enumerate() {
        let pool = options([url]).open().unwrap();
        assert!(matches!(why_left_out(&pool)[..], [ReplicaError::Superseded { .. }]), "{:?}", pool.left_out());
        assert_eq!(pool.made_count(), 1);
        pool.persist(at as u64 * 10, b"promoted").unwrap();
        pool.close().unwrap();
        let members = options([url]).members().unwrap().members;
        assert!(matches!(members[0].state, MemberState::Foreign(_)), "{members:?}");
        assert!(matches!(members[1].state, MemberState::InSync), "{members:?}");
    }
    // They know it themselves.
    far.stop();
    assert!(options(&urls).open().is_err());
    let former = options([&urls[0]]).min_replicas(1).open_read_only().unwrap();
    assert_eq!(read(&former, 0, 8), b"former\0\0");
    assert!(options([&urls[0]]).min_replicas(1).open().is_err());
}

#[test]
fn former_members_that_were_away_are_told_when_they_meet_the_promoted_one() {
    let [mut a, mut b, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let urls = made(&[&a, &b], &far);
    a.stop();
    b.stop();
    let alone = options([far.url("orders")]);
    let promotion = alone.promote(false).unwrap();
    assert_eq!(is_told(&promotion), [false, false]);
    let indexes: Vec<_> = promotion.former.iter().map(|former| former.index).collect();
    let named: Vec<_> = promotion.former.iter().map(|former| former.url.clone()).collect();
    assert_eq!((indexes, &named), (vec![0, 1], &urls));
    let pool = alone.open().unwrap();
    pool.persist(0, b"promoted").unwrap();
    pool.close().unwrap();
    drop(pool);
    a.restart();
    b.restart();
    let members = options([&urls[1]]).members().unwrap();
    assert_eq!(members.in_sync_count(), 1, "{members:?}");
    let reader = options(&urls).open_read_only().unwrap();
    assert_eq!(read(&reader, 0, 8), b"promoted");
    drop(reader);
    let error = options(&urls).min_replicas(1).open().unwrap_err();
    assert!(format!("{:#}", pmof_mem::causes(&error)).contains("no member of the pool"), "{error:?}");
    let pool = options(&urls).open().unwrap();
    assert!(matches!(why_left_out(&pool)[..], [ReplicaError::Superseded { .. }, ReplicaError::Superseded { .. }]));
    assert_eq!(read(&pool, 0, 8), b"promoted");
    pool.close().unwrap();
    drop(pool);
    far.stop();
    assert!(options(&urls).open().is_err());
}

/// It leads on to those that its pool has now.
#[test]
fn former_members_are_led_by_a_promoted_one_that_was_removed_since() {
    for is_opened_since in [false, true] {
        let [mut a, mut b, far, mut new] = std::array::from_fn(|_| Target::start_fixed());
        let urls = made(&[&a, &b], &far);
        a.stop();
        b.stop();
        let alone = options([far.url("orders")]);
        alone.promote(false).unwrap();
        let pool = alone.open().unwrap();
        pool.add(&new.url("orders")).unwrap();
        wait_in_sync(&pool);
        pool.remove(&far.url("orders")).unwrap();
        pool.persist(0, b"promoted").unwrap();
        pool.close().unwrap();
        drop(pool);
        if is_opened_since {
            options([new.url("orders")]).open().unwrap().close().unwrap();
        }
        a.restart();
        b.restart();
        let members = options([&urls[0]]).members().unwrap();
        assert_eq!((members.in_sync_count(), members.made_count), (1, 1), "{members:?}");
        let reader = options(&urls).open_read_only().unwrap();
        assert_eq!(read(&reader, 0, 8), b"promoted");
        drop(reader);
        new.stop();
        assert!(options(&urls).open().is_err());
        new.restart();
        let pool = options(&urls).open().unwrap();
        assert_eq!((pool.made_count(), read(&pool, 0, 8)), (1, b"promoted".to_vec()));
        pool.close().unwrap();
    }
}

/// A witness has nothing that the promoted one may lack, and leads to it.
#[test]
fn a_witness_keeps_nobody_from_a_promotion_unless_it_is_in_use() {
    let [mut a, witness, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let options_of = options([a.url("orders")]).witness(witness.url("orders")).asynchronous(far.url("orders"));
    let pool = options_of.create(POOL_BYTES).unwrap();
    pool.persist(0, b"former").unwrap();
    wait_following(&pool);
    let alone = options([far.url("orders")]).take_over(Duration::ZERO);
    alone.promote(false).unwrap_err();
    pool.close().unwrap();
    drop(pool);
    a.stop();
    assert_eq!(is_told(&alone.promote(false).unwrap()), [false, true]);
    far.stop();
    a.restart();
    // The witness is one of two, and knows.
    assert!(options([a.url("orders")]).open().is_err());
    far.restart();
    assert_eq!(options([a.url("orders")]).open().unwrap().made_count(), 1);
}

#[test]
fn a_former_member_that_went_on_is_another_history() {
    let [mut a, mut far] = std::array::from_fn(|_| Target::start_fixed());
    let urls = made(&[&a], &far);
    let alone = options([far.url("orders")]);
    a.stop();
    alone.promote(false).unwrap();
    let write = |options: pmof_pool::PoolOptions, bytes: &[u8]| {
        let pool = options.open().unwrap();
        pool.persist(0, bytes).unwrap();
        pool.close().unwrap();
    };
    write(alone.clone(), b"promoted");
    far.stop();
    a.restart();
    // Nobody can tell it.
    write(options(&urls), b"apart");
    far.restart();
    for named in [vec![far.url("orders"), urls[0].clone()], vec![urls[0].clone(), far.url("orders")], urls.clone()] {
        let members = options(named.clone()).members().unwrap().members;
        let is_apart = |state: &MemberState| matches!(state, MemberState::Foreign(why) if matches!(**why, ReplicaError::AnotherHistory { .. }));
        assert_eq!(members.iter().filter(|member| is_apart(&member.state)).count(), 1, "{members:?}");
        let pool = options(named).open().unwrap();
        assert!(matches!(why_left_out(&pool)[..], [ReplicaError::AnotherHistory { index: 0, .. }]), "{pool:?}");
        assert_eq!(read(&pool, 0, 8), b"promoted");
        pool.close().unwrap();
    }
    let apart = options(&urls).min_replicas(1).open_read_only().unwrap();
    assert_eq!(read(&apart, 0, 6), b"apartr");
}

#[test]
fn a_writer_of_a_former_member_is_fenced() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let writer = options([a.url("orders")]).asynchronous(far.url("orders")).create(POOL_BYTES).unwrap();
    writer.persist(0, b"former").unwrap();
    wait_following(&writer);
    writer.consistency_point("last").unwrap();
    let alone = options([far.url("orders")]).take_over(Duration::ZERO);
    let error = alone.promote(false).unwrap_err().to_string();
    assert!(error.contains("is open for writing by the initiator at") && error.contains("--force"), "{error}");
    writer.persist(0, b"former").unwrap();
    assert_eq!(is_told(&alone.promote(true).unwrap()), [true]);
    assert!(writer.persist(0, b"late").unwrap_err().is_fenced());
    assert_eq!(read(&alone.open().unwrap(), 0, 6), b"former");
}

/// It could reach neither those that promoted the member nor the member.
#[test]
fn a_writer_that_meets_the_promoted_one_again_is_fenced() {
    let [a, far] = std::array::from_fn(|_| Target::start_fixed());
    let [near, away] = [&a, &far].map(Path::to);
    let writer = options([&near.url]).asynchronous(&away.url).create(POOL_BYTES).unwrap();
    writer.persist(0, b"former").unwrap();
    wait_following(&writer);
    writer.consistency_point("last").unwrap();
    away.cut();
    near.close();
    let alone = options([far.url("orders")]).take_over(Duration::ZERO);
    assert_eq!(is_told(&alone.promote(true).unwrap()), [false]);
    writer.persist(0, b"apart").unwrap();
    away.heal();
    let until = Instant::now() + LONG;
    let error: PoolError = loop {
        match writer.persist(0, b"apart") {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < until, "it goes on"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = format!("{:#}", pmof_mem::causes(&error));
    assert!(error.is_fenced() && text.contains("pmof pool promote"), "{text}");
    assert_eq!(read(&alone.open().unwrap(), 0, 6), b"former");
}
