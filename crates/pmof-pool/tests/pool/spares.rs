//! Spares: addresses where a member is made in the place of one that is lost for long.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_pool::{
    ChangeError, Event, MemberState, Pool, PoolError, PoolOptions, ReplicaState, ReplicaStatus, SpareState,
};

use crate::{interrupted::Ways, support::*};

const POOL_BYTES: u64 = 1 << 20;

fn fixed<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start_fixed())
}

/// Options that take a spare as soon as a member is found lost.
fn at_once<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> PoolOptions {
    options(urls).spare_after(Duration::ZERO)
}

#[track_caller]
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn spares(pool: &Pool) -> Vec<String> {
    pool.status().unwrap().spares.iter().map(|spare| spare.replica.to_string()).collect()
}

#[test]
fn a_spare_takes_the_place_of_a_lost_member_while_the_pool_is_written() {
    let mut four: [Target; 4] = fixed();
    let spare = four[3].url("orders");
    let pool = at_once(urls(&four[..3])).spare(&spare).create(POOL_BYTES).unwrap();
    pool.persist(0, &pattern(POOL_BYTES as usize, 5)).unwrap();
    assert_eq!(spares(&pool)[0], spare);
    assert!(four[3].files().is_empty(), "nothing lies there before");
    let mut events = pool.events();
    four[1].stop();
    let lost = four[1].url("orders");
    let mut number = 0_u8;
    let taken = loop {
        number = number.wrapping_add(1);
        pool.persist(7, &[number]).unwrap();
        let event = events.next_for(Duration::from_millis(10));
        if let Some(Event::SpareTaken { replica, lost: Some(of), index: 1 }) = event {
            break (replica.to_string(), of.to_string());
        }
    };
    assert_eq!(taken, (spare.clone(), lost.clone()));
    pool.persist(9, b"behind").unwrap();
    wait_until("the new one is in sync", || !pool.status().unwrap().is_degraded());
    assert_eq!((spares(&pool).len(), pool.made_count()), (0, 3));
    let copies = [0, 1, 2].map(|at| {
        let mut bytes = vec![0; POOL_BYTES as usize];
        pool.read_replica(at, 0, &mut bytes).unwrap();
        bytes
    });
    assert!(copies[0][9..15] == *b"behind" && copies.iter().all(|bytes| *bytes == copies[0]));
    pool.close().unwrap();

    // The former member leads to the others, and is none.
    four[1].restart();
    four[0].stop();
    let pool = options([&lost]).open().unwrap();
    assert_eq!((pool.made_count(), read(&pool, 9, 6)), (3, b"behind".to_vec()));
    pool.close().unwrap();
    four[2].stop();
    four[3].stop();
    assert!(options([&lost]).open().unwrap_err().is_replica_lost(), "alone it has too few votes");
}

/// Of two members: the one whose place a spare took, and whose other one is lost since, has the word of the spare that it is none.
#[test]
fn a_former_member_leads_to_the_spare_that_took_its_place() {
    let mut three: [Target; 3] = fixed();
    let (former, spare) = (three[1].url("orders"), three[2].url("orders"));
    let pool = at_once(urls(&three[..2])).spare(&spare).create(POOL_BYTES).unwrap();
    let mut events = pool.events();
    three[1].stop();
    pool.persist(0, b"newer").unwrap();
    wait_for(&mut events, |event| matches!(event, Event::SpareTaken { index: 1, .. }));
    wait_in_sync(&pool);
    pool.close().unwrap();

    three[0].stop();
    three[1].restart();
    let named = options([&former]);
    let members = named.members().unwrap();
    let states: Vec<_> = members.members.iter().map(|member| (member.index, &member.state)).collect();
    assert!(
        matches!(
            &states[..],
            [(None, MemberState::Foreign(_)), (Some(0), MemberState::Lost(_)), (Some(3), MemberState::InSync)]
        ),
        "{states:?}"
    );
    assert_eq!((members.made_count, members.in_sync_count()), (2, 1));
    let error = named.clone().min_replicas(1).open().unwrap_err();
    assert!(format!("{error:?}").contains("it is no member of the pool"), "{error:?}");
    named.open().unwrap_err();
    assert_eq!(options([&spare]).members().unwrap().forced, None);
    // While somebody writes it, too; and by its number it is read all the same.
    let alone = options([&spare]).min_replicas(1).open().unwrap();
    let error = named.clone().min_replicas(1).open().unwrap_err();
    assert!(format!("{error:?}").contains("it is no member of the pool"), "{error:?}");
    assert_eq!(read(&named.clone().min_replicas(1).open_read_only().unwrap(), 0, 5), [0; 5]);
    alone.close().unwrap();
    // It has kept that since it was opened for writing: where nobody else is left it is read, and not gone on with.
    three[2].stop();
    assert!(named.clone().min_replicas(1).open().is_err());
    assert_eq!(read(&named.min_replicas(1).open_read_only().unwrap(), 0, 5), [0; 5]);
}

#[test]
fn one_that_comes_back_in_time_stays() {
    let mut four: [Target; 4] = fixed();
    let pool = options(urls(&four[..3])).spare(four[3].url("orders")).spare_after(LONG).create(POOL_BYTES).unwrap();
    four[1].stop();
    pool.persist(0, b"left").unwrap();
    // It is looked for losses once a second.
    thread::sleep(Duration::from_millis(1500));
    four[1].restart();
    wait_in_sync(&pool);
    assert_eq!((spares(&pool).len(), pool.made_count()), (1, 3));
    assert!(four[3].files().is_empty());
    pool.close().unwrap();
    assert_eq!(spares(&options([four[2].url("orders")]).open().unwrap()).len(), 1, "the next writer knows it");
}

/// A pool whose second member is lost, and whose spare is being copied to, slowly.
fn making_a_spare(four: &mut [Target; 4], spare: &str) -> Pool {
    const SIZE: u64 = 8 << 20;
    let named = at_once(urls(&four[..3])).catch_up_limit(1 << 20);
    let pool = named.clone().spare(spare).create(SIZE).unwrap();
    pool.persist(0, &pattern(SIZE as usize, 5)).unwrap();
    pool.close().unwrap();
    // What was written before the opening no member lacks.
    let pool = named.open_waiting(LONG).unwrap();
    four[1].stop();
    pool.persist(7, b"left").unwrap();
    let is_copied_to = || {
        let states: Vec<_> = pool.status().unwrap().spares.into_iter().map(|spare| spare.state).collect();
        matches!(states[..], [SpareState::CopiedTo { missing_bytes }] if missing_bytes < SIZE)
    };
    wait_until("the spare is copied to", is_copied_to);
    assert_eq!((pool.made_count(), spares(&pool).len()), (3, 1), "it is no member yet");
    let (status, receipt) = (pool.status().unwrap(), pool.persist(7, b"left").unwrap());
    assert_eq!((status.replicas.len(), receipt.replica_count, receipt.missing.len()), (3, 3, 1), "{receipt}");
    pool
}

#[test]
fn a_member_that_is_in_sync_before_its_spare_stays() {
    let mut four: [Target; 4] = fixed();
    let spare = four[3].url("orders");
    let pool = making_a_spare(&mut four, &spare);
    let mut events = pool.events();
    four[1].restart();
    let is_whole = || {
        let status = pool.status().unwrap();
        let is_in_sync = |replica: &ReplicaStatus| matches!(replica.state, ReplicaState::InSync);
        status.replicas.len() == 3 && status.replicas.iter().all(is_in_sync)
    };
    wait_until("all three are in sync", is_whole);
    wait_until("the spare is given back", || four[3].files().is_empty());
    pool.persist(7, b"here").unwrap();
    assert_eq!(spares(&pool), [four[3].url("orders")]);
    let is_change =
        |event: &Event| matches!(event, Event::SpareTaken { .. } | Event::Removed { .. } | Event::Added { .. });
    assert!(!std::iter::from_fn(|| events.next_for(Duration::ZERO)).any(|event| is_change(&event)));
    // It is taken when it is needed again.
    four[2].stop();
    pool.persist(7, b"more").unwrap();
    wait_for(&mut events, |event| matches!(event, Event::SpareTaken { index: 2, .. }));
    assert_eq!((pool.made_count(), spares(&pool).len()), (3, 0));
}

#[test]
fn a_spare_that_is_being_made_gives_way_to_whoever_changes_the_members() {
    let mut four: [Target; 4] = fixed();
    let witness = Target::start_fixed();
    let spare = four[3].url("orders");
    let pool = making_a_spare(&mut four, &spare);
    let mut events = pool.events();
    pool.add_witness(&witness.url("orders")).unwrap();
    pool.remove("1").unwrap();
    assert_eq!((pool.made_count(), spares(&pool)), (2, vec![four[3].url("orders")]));
    wait_until("what was made is taken away", || four[3].files().is_empty());
    let told: Vec<_> = std::iter::from_fn(|| events.next_for(Duration::ZERO)).collect();
    assert!(!told.iter().any(|event| matches!(event, Event::SpareTaken { .. })), "{told:?}");
    // The next one is tried after a pause.
    four[2].stop();
    pool.persist(7, b"more").unwrap();
    wait_for(&mut events, |event| matches!(event, Event::SpareTaken { index: 2, .. }));
    wait_in_sync(&pool);
    assert_eq!((pool.made_count(), spares(&pool).len()), (2, 0));
}

/// A spare that is lost at any message, once, is a member in the end: also when it is lost while the others are told that it counts.
#[test]
fn a_spare_that_is_lost_at_any_message_is_a_member_in_the_end() {
    let run = |at: u64| {
        let mut four: [Target; 4] = fixed();
        let ways = Arc::<Ways>::default();
        ways.is_once.store(true, Ordering::Release);
        let spare = ways.to(&four[3]);
        let pool = at_once(urls(&four[..3])).spare(&spare).create(64 << 10).unwrap();
        ways.left.store(at, Ordering::Release);
        four[1].stop();
        pool.persist(0, b"here").unwrap();
        let is_done = || {
            let status = pool.status().unwrap();
            status.spares.is_empty() && status.made_count == 3 && !status.is_degraded()
        };
        wait_until(&format!("lost at {at}"), is_done);
        // It may have been a member before so many messages had passed.
        ways.left.store(0, Ordering::Release);
        wait_until(&format!("lost at {at} or not at all"), is_done);
        let mut bytes = [0; 4];
        pool.read_replica(2, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"here", "lost at {at}");
    };
    let run = &run;
    thread::scope(|scope| (1..=40).for_each(|at| _ = scope.spawn(move || run(at))));
}

#[test]
fn no_spare_is_taken_while_too_few_members_are_there_to_agree() {
    let mut four: [Target; 4] = fixed();
    let pool = at_once(urls(&four[..3])).spare(four[3].url("orders")).create(POOL_BYTES).unwrap();
    let mut events = pool.events();
    four[1].stop();
    four[2].stop();
    assert!(pool.persist(0, b"lost").is_err());
    let until = Instant::now() + Duration::from_millis(2500);
    while let Some(event) = events.next_for(until.saturating_duration_since(Instant::now())) {
        assert!(!matches!(event, Event::SpareTaken { .. }), "{event}");
    }
    assert!(four[3].files().is_empty(), "what was made is taken away");
    assert_eq!((spares(&pool).len(), pool.made_count()), (1, 3));
    four[1].restart();
    wait_for(&mut events, |event| matches!(event, Event::SpareTaken { index: 2, .. }));
    wait_in_sync(&pool);
    pool.persist(0, b"here").unwrap();
    assert_eq!((spares(&pool).len(), pool.made_count()), (0, 3));
}

#[test]
fn a_spare_that_is_of_no_use_leaves_the_place_to_the_next_one() {
    let mut five: [Target; 5] = fixed();
    let (first, second) = (five[3].url("orders"), five[4].url("orders"));
    let pool = at_once(urls(&five[..3])).spare(&first).spare(&second).create(POOL_BYTES).unwrap();
    let mut events = pool.events();
    five[3].stop();
    five[0].stop();
    pool.persist(0, b"here").unwrap();
    let event = wait_for(&mut events, |event| matches!(event, Event::SpareNotTaken { .. }));
    let told =
        format!("the spare {first} did not take the place of a lost member: replica {first} cannot be made a member: ");
    assert!(event.to_string().starts_with(&told), "{event}");
    let event = wait_for(&mut events, |event| matches!(event, Event::SpareTaken { .. }));
    assert!(event.to_string().contains(&second), "{event}");
    wait_in_sync(&pool);
    assert_eq!(spares(&pool), [first]);
    let state = pool.status().unwrap().spares.remove(0).state;
    assert!(matches!(&state, SpareState::NotTaken(why) if matches!(**why, ChangeError::NotMade { .. })), "{state:?}");
    // It is of use again when the next one is lost.
    five[3].restart();
    five[1].stop();
    pool.persist(0, b"more").unwrap();
    wait_for(&mut events, |event| matches!(event, Event::SpareTaken { .. }));
    wait_in_sync(&pool);
    assert_eq!((spares(&pool).len(), pool.made_count()), (0, 3));
}

#[test]
fn spares_come_and_go_and_what_cannot_be_one_is_refused() {
    let (three, mut fourth): ([Target; 3], _) = (fixed(), Target::start_fixed());
    let pool = options(urls(&three[..2])).create(POOL_BYTES).unwrap();
    let (third, fourth_url) = (three[2].url("orders"), fourth.url("orders"));
    pool.add_spare(&third).unwrap();
    for result in
        [pool.add_spare(&third), pool.add_witness(&three[0].url("orders")), pool.add_spare(&three[1].url("orders"))]
    {
        assert!(matches!(result, Err(ChangeError::AlreadyMember { .. })), "{result:?}");
    }
    for result in [pool.add_witness(&third), pool.add_asynchronous(&third)] {
        assert!(matches!(result, Err(ChangeError::IsSpare { .. })), "{result:?}");
    }
    pool.add_witness(&fourth_url).unwrap();
    for result in [pool.add_spare(&fourth_url), pool.add(&fourth_url), pool.add_asynchronous(&fourth_url)] {
        assert!(matches!(result, Err(ChangeError::IsWitness { .. })), "{result:?}");
    }
    pool.remove(&fourth_url).unwrap();
    options([&fourth_url]).remove().unwrap();
    options([fourth.url("theirs")]).create(4096).unwrap().close().unwrap();
    assert!(matches!(pool.add_spare(&fourth.url("theirs")), Err(ChangeError::OtherPool { .. })));
    pool.replace(&third, &fourth_url).unwrap();
    assert_eq!(spares(&pool)[0], fourth_url);
    fourth.stop();
    assert!(
        matches!(pool.add_spare(&fourth.url("more")), Err(ChangeError::NotMade { .. })),
        "no room that is known of"
    );
    fourth.restart();
    let members = options([three[0].url("orders")]).members().unwrap();
    assert!(
        matches!(members.members.last().unwrap().state, MemberState::Spare) && members.made_count == 2,
        "{members:?}"
    );
    assert_eq!(members.losses_survived, Some(0));
    // One that is added is a spare no more.
    pool.add(&fourth_url).unwrap();
    wait_in_sync(&pool);
    assert_eq!((spares(&pool).len(), pool.made_count()), (0, 3));
    pool.add_spare(&third).unwrap();
    pool.remove(&third).unwrap();
    assert_eq!((spares(&pool).len(), pool.made_count()), (0, 3));
    // So is one that takes a member's place because it is told to.
    pool.add_spare(&third).unwrap();
    pool.replace(&three[1].url("orders"), &third).unwrap();
    assert_eq!((spares(&pool).len(), pool.made_count()), (0, 3));
    pool.remove(&third).unwrap();
    options([&third]).remove().unwrap();
    pool.close().unwrap();
    let error = options(urls(&three[2..])).spare("tcp://127.0.0.1:1/orders").create(POOL_BYTES).unwrap_err();
    assert!(matches!(error, PoolError::Spare(_)), "{error:?}");
    assert!(three[2].files().is_empty());
}

#[test]
fn a_writer_that_dies_at_any_message_while_it_takes_a_spare_leaves_three_members_in_the_end() {
    for at in (1..=57).step_by(7) {
        let mut four: [Target; 4] = fixed();
        let spare = four[3].url("orders");
        options(urls(&four[..3])).spare(&spare).create(POOL_BYTES).unwrap().close().unwrap();
        four[1].stop();
        let ways = Arc::<Ways>::default();
        let named = [&four[0], &four[2]].map(|target| ways.to(target));
        let pool = at_once(named).open_waiting(LONG).unwrap();
        ways.left.store(at, Ordering::Release);
        let mut events = pool.events();
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until && ways.left.load(Ordering::Acquire) > 0 {
            if let Some(Event::SpareTaken { .. }) = events.next_for(Duration::from_millis(20)) {
                break;
            }
        }
        ways.cut();
        drop(pool);
        let pool = at_once([four[0].url("orders"), four[2].url("orders")]).open_waiting(LONG).unwrap();
        let is_done = || {
            pool.status()
                .is_ok_and(|status| status.spares.is_empty() && status.made_count == 3 && !status.is_degraded())
        };
        wait_until(&format!("{at}: {:?}", pool.status()), is_done);
        assert!(pool.replicas().iter().any(|(place, _)| place.to_string() == spare), "{at}");
        pool.close().unwrap();
    }
}
