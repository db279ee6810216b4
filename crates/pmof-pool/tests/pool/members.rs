//! What is told of a pool's members without opening it for writing.

use std::{
    thread,
    time::{Duration, Instant},
};

use pmof_control::{MemberProgress, MemberStanding, WriterStatus};
use pmof_pool::{MemberState, PoolMembers};

use crate::support::*;

fn fixed<const N: usize>() -> [Target; N] {
    std::array::from_fn(|_| Target::start_fixed())
}

/// What a writer knows of its members is told to their targets, for whoever asks these.
#[test]
fn what_the_writer_knows_is_told_to_others() {
    let mut three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let far = Target::start_fixed();
    // As much as to take some seconds.
    let limited = options(urls(&three)).asynchronous(far.url("orders")).catch_up_limit(2 << 20);
    let pool = limited.create(8 << 20).unwrap();
    let named = three[0].url("orders");
    let told = |wanted: &dyn Fn(&WriterStatus) -> bool| {
        let until = Instant::now() + LONG;
        loop {
            let status = options([named.clone()]).members().unwrap().writer_status;
            if let Some(status) = status.filter(wanted) {
                return status;
            }
            assert!(Instant::now() < until, "{:?}", options([named.clone()]).members());
            thread::sleep(Duration::from_millis(20));
        }
    };
    let standing = |status: &WriterStatus, index: u16| {
        status.members.iter().find(|one| one.index == index).map(|one| one.standing)
    };
    let status = told(&|status| standing(status, 3) == Some(MemberStanding::Following));
    assert_eq!([0, 1, 2].map(|index| standing(&status, index)), [Some(MemberStanding::InSync); 3]);
    three[2].stop();
    pool.persist(0, &vec![1; 8 << 20]).unwrap();
    let is_told = |status: &WriterStatus| status.events.iter().any(|event| event.text.contains("lost"));
    told(&|status| standing(status, 2) == Some(MemberStanding::Lost) && is_told(status));
    three[2].restart();
    let is_copied_to = |one: &MemberProgress| one.index == 2 && one.missing_bytes > 0 && one.bytes_per_second > 0;
    told(&|status| status.members.iter().any(is_copied_to));
    wait_in_sync(&pool);
    told(&|status| standing(status, 2) == Some(MemberStanding::InSync));
    pool.close().unwrap();
    assert_eq!(options([three[0].url("orders")]).members().unwrap().writer_status, None);
}

fn members(target: &Target) -> PoolMembers {
    options([target.url("orders")]).members().unwrap()
}

/// Until the third member is in such a state.
#[track_caller]
fn wait_until_third(target: &Target, is_so: fn(&MemberState) -> bool) {
    let began = Instant::now();
    while !is_so(&members(target).members[2].state) {
        assert!(began.elapsed() < LONG, "{:?}", members(target).members[2]);
        thread::sleep(Duration::from_millis(10));
    }
}

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn as_many_losses_are_survived_as_is_told_and_no_more() {
    for made in [1, 2, 3, 5] {
        let mut targets: Vec<Target> = (0..made).map(|_| Target::start_fixed()).collect();
        options(urls(&targets)).create(64 << 10).unwrap().close().unwrap();
        let told = members(&targets[0]);
        assert_eq!((told.made_count, told.in_sync_count()), (made, made));
        let survived = told.losses_survived.expect("all are here");
        for lost in 1..made {
            targets[made - lost].stop();
            let (left, can_open) = (members(&targets[0]).losses_survived, lost <= survived);
            assert_eq!(left, can_open.then(|| survived - lost), "{lost} of {made} are lost");
            assert_eq!(options([targets[0].url("orders")]).open_read_only().is_ok(), can_open, "{lost} of {made}");
        }
    }
}

#[test]
fn one_that_catches_up_is_syncing_until_it_is_in_sync() {
    let mut three: [Target; 3] = fixed();
    let pool = options(urls(&three)).catch_up_limit(1).create(8 << 20).unwrap();
    three[2].stop();
    assert!(pool.persist(0, &vec![7; 4 << 20]).unwrap().is_degraded());
    assert!(matches!(members(&three[0]).members[2].state, MemberState::Lost(_)));
    three[2].restart();
    wait_until_third(&three[0], |state| matches!(state, MemberState::Syncing));
    assert_eq!(members(&three[0]).losses_survived, Some(1), "it has a vote");
    drop(pool);
    wait_until_third(&three[0], |state| matches!(state, MemberState::Behind(_)));
}
