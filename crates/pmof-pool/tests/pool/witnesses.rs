//! Witnesses: members that keep the pool's epochs and none of its bytes.

use std::{fs, os::unix::fs::MetadataExt as _, sync::Arc, sync::atomic::Ordering, thread, time::Duration};

use pmof_access::Durability;
use pmof_control::{NewPool, Reply, Request, WITNESS_BYTES};
use pmof_pool::{ChangeError, Event, MemberState, Pool, PoolError, PromotionError, ReplicaError, ReplicaState};
use uuid::Uuid;

use crate::{interrupted::Ways, support::*};

const POOL_BYTES: u64 = 1 << 20;

/// A pool of two with a witness on the third target.
fn made(three: &[Target; 3]) -> Pool {
    let pool = options(urls(&three[..2])).witness(three[2].url("orders")).create(POOL_BYTES).unwrap();
    pool.persist(0, b"made").unwrap();
    pool
}

fn fixed() -> [Target; 3] {
    std::array::from_fn(|_| Target::start_fixed())
}

/// Waits until both replicas are in sync and the witness is there.
#[track_caller]
fn wait_whole(pool: &Pool) {
    wait_in_sync(pool);
    let is_there =
        || matches!(pool.status().unwrap().witnesses[..], [ref one] if matches!(one.state, ReplicaState::InSync));
    let until = std::time::Instant::now() + LONG;
    while !is_there() {
        assert!(std::time::Instant::now() < until, "{:?}", pool.status());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_pool_of_two_and_a_witness_goes_on_and_opens_without_any_one_of_them() {
    for lost in 0..3 {
        let mut three = fixed();
        let pool = made(&three);
        three[lost].stop();
        let receipt = pool.persist(0, b"left").unwrap();
        assert_eq!(
            (receipt.replicas.len(), receipt.made_count, receipt.is_degraded()),
            if lost == 2 { (2, 2, false) } else { (1, 2, true) }
        );
        pool.close().unwrap();

        // Each of those that are left leads to the other, the witness too.
        for named in (0..3).filter(|at| *at != lost) {
            let pool = options([three[named].url("orders")]).open().unwrap();
            assert_eq!(read(&pool, 0, 4), b"left", "{lost}: {named}");
            pool.persist(4, b"more").unwrap();
            pool.close().unwrap();
            let reader = options([three[named].url("orders")]).open_read_only().unwrap();
            assert_eq!(read(&reader, 0, 8), b"leftmore", "{lost}: {named}");
        }
        three[lost].restart();
        let pool = options([three[lost].url("orders")]).open().unwrap();
        wait_whole(&pool);
        assert_eq!((read(&pool, 0, 8), pool.made_count(), pool.left_out().len()), (b"leftmore".to_vec(), 2, 0));
        pool.close().unwrap();
    }
}

#[test]
fn any_one_is_lost_after_another_was_back_and_the_writer_goes_on() {
    let mut three = fixed();
    let pool = made(&three);
    let mut events = pool.events();
    for lost in [2, 0, 2, 1, 0] {
        three[lost].stop();
        pool.persist(0, &[lost as u8; 64]).unwrap();
        // A witness is asked once a second only.
        let is_noticed = |event: &Event| matches!(event, Event::Lost { .. });
        while { events.next_for(Duration::from_millis(50)) }.is_none_or(|event| !is_noticed(&event)) {
            pool.persist(0, &[lost as u8; 64]).unwrap();
        }
        three[lost].restart();
        wait_whole(&pool);
    }
    pool.close().unwrap();
    let pool = options([three[2].url("orders")]).open().unwrap();
    assert_eq!(read(&pool, 0, 64), [0; 64]);
}

#[test]
fn one_that_was_left_behind_opens_neither_alone_nor_with_the_witness() {
    let mut three = fixed();
    let pool = made(&three);
    three[0].stop();
    pool.persist(0, b"only").unwrap();
    pool.close().unwrap();
    three[1].stop();
    three[0].restart();
    let stale = three[0].url("orders");
    for opened in
        [options([&stale]).open(), options([&three[2].url("orders")]).open(), options([&stale]).open_read_only()]
    {
        let error = opened.unwrap_err();
        assert!(format!("{error:?}").contains("it was left behind at opening"), "{error:?}");
        assert!(format!("{error:?}").contains(&three[2].url("orders")), "the witness is named: {error:?}");
    }
    three[2].stop();
    let error = options([&stale]).open().unwrap_err();
    assert!(error.is_replica_lost(), "alone it has too few votes: {error:?}");
    three[1].restart();
    let pool = options([&stale]).open().unwrap();
    wait_in_sync(&pool);
    assert_eq!(read(&pool, 0, 4), b"only");
    pool.close().unwrap();
}

#[test]
fn an_older_copy_of_the_only_replica_in_sync_is_told_by_the_witness() {
    let mut three = fixed();
    let pool = made(&three);
    three[1].stop();
    pool.persist(0, b"old").unwrap();
    let path = three[0].root.path().join("orders");
    let copy = fs::read(&path).unwrap();
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(1050));
        pool.persist(0, b"new").unwrap();
    }
    drop(pool);
    three[0].stop();
    fs::write(&path, copy).unwrap();
    three[0].restart();
    let error = options([three[0].url("orders")]).open().unwrap_err();
    assert!(format!("{error:?}").contains("it is an older state of opening"), "{error:?}");
}

#[test]
fn a_witness_alone_leads_to_the_members_that_have_the_bytes() {
    let mut three = fixed();
    made(&three).close().unwrap();
    let witness = three[2].url("orders");
    let file = fs::metadata(three[2].root.path().join("orders")).unwrap();
    assert!(file.len() < POOL_BYTES && file.blocks() * 512 < POOL_BYTES, "it takes {} bytes", file.len());
    let require = options([&witness]);
    assert!(matches!(require.promote(true), Err(PromotionError::Witness { .. })));
    let error = require.clone().min_replicas(1).open().unwrap_err();
    assert!(format!("{error:?}").contains("it is a witness"), "{error:?}");
    three[0].stop();
    three[1].stop();
    for opened in [require.open(), require.open_read_only()] {
        let error = opened.unwrap_err();
        let said = format!("{error:?}");
        let data = [three[0].url("orders"), three[1].url("orders")];
        assert!(said.contains("none of its bytes") && data.iter().all(|url| said.contains(url)), "{said}");
        assert!(error.is_replica_lost() && matches!(error, PoolError::NoneOpened { .. }), "{said}");
    }
    let members = require.members().unwrap();
    assert_eq!((members.losses_survived, members.witness_count, members.made_count), (None, 1, 2));
    three[0].restart();
    let pool = options([&witness]).open().unwrap();
    assert_eq!(read(&pool, 0, 4), b"made");
    pool.close().unwrap();
}

#[test]
fn states_tell_witnesses_from_replicas() {
    let mut three = fixed();
    let pool = made(&three);
    let status = pool.status().unwrap();
    assert_eq!((status.made_count, status.quorum, status.replicas.len(), status.witnesses.len()), (2, 2, 2, 1));
    assert!(matches!(status.witnesses[0].state, ReplicaState::InSync) && !status.is_degraded());
    assert_eq!((pool.replicas().len(), pool.replica_count(), pool.made_count()), (2, 2, 2));
    pool.check_replicas().unwrap();
    let is_witness =
        |members: &[pmof_pool::MemberStatus]| -> Vec<_> { members.iter().map(|member| member.is_witness).collect() };
    let members = options([three[2].url("orders")]).members().unwrap();
    assert_eq!((members.made_count, members.witness_count, members.quorum), (2, 1, 2));
    assert_eq!((members.losses_survived, members.size_bytes, members.in_sync_count()), (Some(1), POOL_BYTES, 2));
    assert!(matches!(members.members[0].state, MemberState::Witness), "{members:?}");
    assert_eq!(is_witness(&members.members), [true, false, false]);
    pool.close().unwrap();
    three[2].stop();
    let members = options([three[0].url("orders")]).members().unwrap();
    assert!(matches!(members.members[2].state, MemberState::Lost(_)), "{members:?}");
    assert_eq!((is_witness(&members.members), members.losses_survived), (vec![false, false, true], Some(0)));
}

#[test]
fn a_witness_comes_and_goes_and_is_replaced() {
    let (mut three, fourth) = (fixed(), Target::start_fixed());
    let pool = options(urls(&three[..2])).create(POOL_BYTES).unwrap();
    pool.persist(0, b"here").unwrap();
    pool.add_witness(&three[2].url("orders")).unwrap();
    assert!(matches!(pool.add_witness(&three[2].url("orders")), Err(ChangeError::AlreadyMember { .. })));
    // Also one that is lost: its place is another's at once.
    three[2].stop();
    pool.replace(&three[2].url("orders"), &fourth.url("orders")).unwrap();
    assert_eq!(pool.status().unwrap().witnesses[0].replica.to_string(), fourth.url("orders"));
    pool.persist(0, b"then").unwrap();
    three[1].stop();
    pool.persist(0, b"both").unwrap();
    assert!(matches!(pool.remove("0"), Err(ChangeError::LastInSync { .. })), "a witness has nothing");
    three[1].restart();
    wait_in_sync(&pool);
    pool.remove(&fourth.url("orders")).unwrap();
    let status = pool.status().unwrap();
    assert_eq!((status.witnesses.len(), status.made_count, status.quorum), (0, 2, 1));
    pool.persist(0, b"gone").unwrap();
    pool.close().unwrap();
    let error = options([fourth.url("orders")]).min_replicas(1).open().unwrap_err();
    assert!(format!("{error:?}").contains("no member"), "{error:?}");
    let pool = options([fourth.url("orders")]).open().unwrap();
    assert_eq!((read(&pool, 0, 4), pool.status().unwrap().witnesses.len()), (b"gone".to_vec(), 0));
    pool.close().unwrap();
}

#[test]
fn what_cannot_be_a_pool_is_refused() {
    let three = fixed();
    let witness = three[2].url("orders");
    let none = options([] as [String; 0]).witness(&witness).create(POOL_BYTES);
    assert!(matches!(none, Err(PoolError::NoReplicas)), "a pool of witnesses only");
    let twice = options([&witness]).witness(&witness).create(POOL_BYTES);
    assert!(matches!(twice, Err(PoolError::Twice { .. })));
    // What lies there stays, and what was made is taken away.
    options([&witness]).create(8192).unwrap().close().unwrap();
    let error = options(urls(&three[..2])).witness(&witness).create(POOL_BYTES).unwrap_err();
    assert!(matches!(error, PoolError::Witness(_)), "{error:?}");
    assert_eq!(options([&witness]).info().unwrap()[0].header.size_bytes, 8192);
    assert!(three[0].files().is_empty() && three[1].files().is_empty());
}

#[test]
fn a_pool_as_small_as_a_witness_has_one() {
    let mut three = fixed();
    let pool = options(urls(&three[..2])).witness(three[2].url("orders")).create(8).unwrap();
    pool.persist(0, b"the end!").unwrap();
    drop(pool);
    three[0].stop();
    let pool = options([three[2].url("orders")]).open_waiting(LONG).unwrap();
    assert_eq!((read(&pool, 0, 8), pool.made_count()), (b"the end!".to_vec(), 2));
    three[0].restart();
    wait_whole(&pool);
    for index in 0..2 {
        let mut bytes = [0; 8];
        pool.read_replica(index, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"the end!");
    }
    let none = pool.read_replica(2, 0, &mut [0]).unwrap_err();
    assert!(matches!(none, PoolError::NoSuchReplica { replica_count: 2, .. }), "the witness is no replica: {none}");
}

#[test]
fn a_writer_that_is_taken_over_at_the_witness_acknowledges_nothing_more() {
    let mut three = fixed();
    let ways = Arc::<Ways>::default();
    let pool = options([ways.to(&three[0])]).create(POOL_BYTES).unwrap();
    pool.add(&three[1].url("orders")).unwrap();
    wait_in_sync(&pool);
    pool.add_witness(&three[2].url("orders")).unwrap();
    pool.persist(0, b"here").unwrap();
    // The successor does not reach the first, which the writer goes on with.
    let successor = options([three[1].url("orders"), three[2].url("orders")]).take_over(Duration::ZERO);
    three[0].stop();
    let opened = successor.open();
    let opened = opened.unwrap();
    opened.persist(0, b"next").unwrap();
    assert!(pool.persist(0, b"late").unwrap_err().is_fenced());
    opened.close().unwrap();
}

#[test]
fn an_addition_of_a_witness_whose_writer_dies_at_any_message_leaves_a_pool_with_or_without_it() {
    let mut outcomes = [0; 2];
    for at in (1..=41).step_by(5) {
        let three: [Target; 3] = std::array::from_fn(|_| Target::start());
        let ways = Arc::<Ways>::default();
        let pool = options(three[..2].iter().map(|target| ways.to(target))).create(POOL_BYTES).unwrap();
        pool.persist(0, b"here").unwrap();
        let third = ways.to(&three[2]);
        ways.left.store(at, Ordering::Release);
        let added = pool.add_witness(&third);
        ways.cut();
        drop(pool);
        let pool = options(urls(&three[..2])).open_waiting(LONG).unwrap();
        let count = pool.status().unwrap().witnesses.len();
        let is_undecided = matches!(added, Err(ChangeError::Undecided));
        assert!(is_undecided || count == usize::from(added.is_ok()), "{at}: {added:?}, {count}");
        outcomes[count] += 1;
        assert_eq!((read(&pool, 0, 4), pool.made_count()), (b"here".to_vec(), 2), "{at}");
        pool.persist(0, b"more").unwrap();
        if count == 0 {
            pool.add_witness(&three[2].url("orders")).unwrap();
        }
        pool.close().unwrap();
        let pool = options([three[0].url("orders"), three[1].url("orders"), three[2].url("orders")])
            .open_waiting(LONG)
            .unwrap();
        wait_whole(&pool);
        pool.close().unwrap();
    }
    assert!(outcomes.iter().all(|times| *times > 0), "{outcomes:?}");
}

#[test]
fn a_replica_as_small_as_a_witness_and_no_member_of_that_kind_is_refused() {
    let three = fixed();
    let uuid = Uuid::new_v4();
    for (replica_index, size_bytes) in [(0, POOL_BYTES), (1, WITNESS_BYTES)] {
        let (require, user_flags) = (Durability::ProcessCrash, [0; 16]);
        let new = NewPool {
            pool_uuid: uuid,
            size_bytes,
            epoch: uuid,
            replica_index,
            replica_count: 2,
            require,
            user_flags,
            protection: None,
        };
        let name = "orders".parse().unwrap();
        let target = RawInitiator::connect(&three[usize::from(replica_index)].address());
        let reply = target.ask(&Request::Create { name, new, publish_on_close: false });
        assert!(matches!(reply, Reply::Opened { .. }), "{reply:?}");
    }
    for named in [[0, 1], [1, 0]] {
        let error = options(named.map(|at: usize| three[at].url("orders"))).open_waiting(LONG).unwrap_err();
        let (place, why) = of_replica(&error);
        assert!(
            matches!(why, ReplicaError::Mismatch { found_bytes: WITNESS_BYTES, size_bytes: POOL_BYTES, .. }),
            "{error:?}"
        );
        assert_eq!(place.to_string(), three[1].url("orders"));
    }
}
