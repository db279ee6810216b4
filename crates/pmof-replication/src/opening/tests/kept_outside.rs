//! Openings of a pool whose epochs a keeper outside of its members decides on.

use pmof_control::Epoch;

use super::*;
use crate::keeper::EpochRecord;

fn kept_terms() -> Terms {
    Terms { keeper: KeptBy::Outside, ..terms() }
}

fn epoch(id: u128, members: u64) -> Epoch {
    Epoch { id: Uuid::from_u128(id), members }
}

/// The keeper has what all members have, and then an epoch of some of them behind it.
fn kept(net: &Net, behind: Option<Epoch>) -> Kept {
    let PoolState { epoch, opening, ancestors, .. } = net.nodes["0"].state.clone();
    let in_force = match behind {
        None => EpochRecord { epoch, opening, ancestors },
        Some(later) => {
            let ancestors = core::iter::once(epoch).chain(ancestors).collect();
            EpochRecord { epoch: later, opening: opening + 1, ancestors }
        }
    };
    Kept { in_force, announced: None }
}

/// One of the members has been told of an epoch behind the one that all have.
fn told(net: &mut Net, place: &str, later: Epoch, is_confirmed: bool) {
    let node = net.node(place);
    let ancestors: Vec<_> = core::iter::once(node.state.epoch).chain(node.state.ancestors.iter().copied()).collect();
    let begun = node.state.begun(node.index, later, node.state.opening + 1, &ancestors);
    node.state = if is_confirmed { begun.confirmed(node.index, later.id).unwrap() } else { begun };
}

fn gone(net: &mut Net, of: &[&str]) {
    for place in of {
        net.node(place).is_gone = true;
    }
}

#[test]
fn one_member_of_the_epoch_is_enough() {
    for count in [2, 3, 5] {
        let mut net = net(count);
        net.kept = Some(kept(&net, None));
        let others: Vec<_> = (1..count).map(|index| index.to_string()).collect();
        gone(&mut net, &others.iter().map(String::as_str).collect::<Vec<_>>());
        let all: Vec<_> = (0..count).map(|index| index.to_string()).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let pool = net.open(kept_terms(), OpenFor::Write, &all).pool.unwrap();
        assert_eq!((positions(&pool), pool.is_forced), (vec![0], false));
        assert_eq!(pool.base.ancestors[0], net.nodes["0"].state.epoch);
        // By the members themselves it is not: nothing says that the others did not go on.
        assert!(net.open(terms(), OpenFor::Write, &all).pool.is_err());
    }
}

#[test]
fn reading_the_keeper_costs_the_targets_nothing() {
    let mut net = net(3);
    net.kept = Some(kept(&net, None));
    let pool = net.open(kept_terms(), OpenFor::Write, &["0", "1", "2"]).pool.unwrap();
    assert_eq!((positions(&pool), net.rounds), (vec![0, 1, 2], 2));
}

#[test]
fn what_the_keeper_left_behind_opens_nothing() {
    let mut net = net(2);
    net.kept = Some(kept(&net, Some(epoch(200, 0b10))));
    gone(&mut net, &["1"]);
    let outcome = net.open(kept_terms(), OpenFor::Write, &["0", "1"]);
    let Err(Refusal::Apart { replicas }) = outcome.pool else { panic!("{:?}", outcome.pool) };
    assert_eq!(replicas.len(), 1);
    assert_eq!(net.asked("Close"), ["0"], "it is released");
    // With the other one it catches up.
    net.node("1").is_gone = false;
    told(&mut net, "1", epoch(200, 0b10), true);
    let pool = net.open(kept_terms(), OpenFor::Write, &["0", "1"]).pool.unwrap();
    assert_eq!((pool.source, positions(&pool)), (1, vec![0, 1]));
    assert!(pool.opened[0].behind.is_some() && pool.opened[1].behind.is_none());
}

/// The writer died between the keeper's swap and the members' Confirm.
#[test]
fn what_the_keeper_confirmed_is_in_force() {
    let mut net = net(2);
    let later = epoch(200, 0b01);
    told(&mut net, "0", later, false);
    net.kept = Some(Kept { in_force: kept(&self::net(2), Some(later)).in_force, announced: None });
    let pool = net.open(kept_terms(), OpenFor::Write, &["0", "1"]).pool.unwrap();
    assert_eq!(pool.base.ancestors[0], later);
    assert!(pool.opened[0].behind.is_none() && pool.opened[1].behind.is_some());
}

/// The writer died before the keeper's swap: what it announced counts for nothing.
#[test]
fn what_the_keeper_did_not_confirm_is_given_up() {
    let mut net = net(2);
    net.kept = Some(kept(&net, None));
    let (before, later) = (net.nodes["1"].state.epoch, epoch(200, 0b01));
    told(&mut net, "0", later, false);
    gone(&mut net, &["0"]);
    let pool = net.open(kept_terms(), OpenFor::Write, &["0", "1"]).pool.unwrap();
    assert_eq!((pool.base.ancestors[0], positions(&pool)), (before, vec![1]));
    net.node("0").is_gone = false;
    let pool = net.open(kept_terms(), OpenFor::Write, &["0", "1"]).pool.unwrap();
    assert_eq!(pool.base.ancestors[0], before);
    assert!(pool.opened.iter().all(|opened| opened.behind.is_none()));
    assert_eq!(pool.base.announced, [later]);
}

#[test]
fn without_the_keeper_nothing_is_opened() {
    let mut net = net(3);
    let outcome = net.open(kept_terms(), OpenFor::Write, &["0", "1", "2"]);
    assert!(matches!(outcome.pool, Err(Refusal::Keeper(KeeperError::Unreachable))), "{:?}", outcome.pool);
    assert_eq!(net.asked("Close"), ["0", "1", "2"]);
}

/// It was restored from a backup: by what it says a member that lacks acknowledged bytes is in sync.
#[test]
fn a_keeper_that_was_put_back_is_refused() {
    let mut net = net(3);
    net.kept = Some(kept(&net, None));
    for place in ["0", "1"] {
        told(&mut net, place, epoch(200, 0b011), true);
    }
    let outcome = net.open(kept_terms(), OpenFor::Write, &["0", "1", "2"]);
    let known = Uuid::from_u128(200);
    let is_put_back = matches!(outcome.pool, Err(Refusal::Keeper(KeeperError::PutBack { known: by })) if by == known);
    assert!(is_put_back, "{:?}", outcome.pool);
}

/// A change of the members holds by the keeper's word, also where no member was told that its epoch is in force.
#[test]
fn a_change_holds_by_the_keeper() {
    for is_confirmed in [false, true] {
        let mut net = net(3);
        let settled = epoch(200, 0b011);
        let is_in_force = |behind| kept(&self::net(3), behind);
        net.kept = Some(if is_confirmed { is_in_force(Some(settled)) } else { is_in_force(None) });
        for place in ["0", "1"] {
            let roster = net.node(place).roster.take().map(|roster| roster.removing(2, settled.id));
            net.node(place).roster = roster;
            told(&mut net, place, settled, false);
        }
        let pool = net.open(kept_terms(), OpenFor::Write, &["0", "1"]).pool.unwrap();
        assert_eq!(pool.electorate.count(), if is_confirmed { 2 } else { 3 });
        assert_eq!(pool.electorate.is_leaving(2), is_confirmed);
    }
}

#[test]
fn a_takeover_needs_no_survey() {
    let mut net = net(3);
    net.kept = Some(kept(&net, None));
    gone(&mut net, &["1", "2"]);
    let terms = Terms { take_over: Some(Duration::ZERO), ..kept_terms() };
    let pool = net.open(terms, OpenFor::Write, &["0", "1", "2"]).pool.unwrap();
    assert_eq!((positions(&pool), net.asked("TakeOver")), (vec![0], vec!["0"]));
}
