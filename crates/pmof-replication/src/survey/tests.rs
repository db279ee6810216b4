use core::time::Duration;
use std::{format, string::ToString, sync::Arc, vec, vec::Vec};

use pmof_control::{Epoch, PoolState, RosterMember};
use pmof_terms::Durability;
use uuid::Uuid;

use super::{
    State, Survey, Surveyed, Unsurveyed, infos, judge::losses_survived, looks, promoted_at, release, remove_unfinished,
};
use crate::{
    asking::{
        Cause, Reason,
        net::{At, Failed, Net, POOL, TIMEOUT, net, places, roster, state, uuid},
    },
    electorate::Electorate,
    keeper::KeptBy,
    lineage::{Found, agree},
    opening::{Opening, Refusal, ShippedRules, Terms},
    place::Place,
};

type Outcome = Result<Surveyed<At, Failed>, Unsurveyed<At, Failed>>;

fn survey(net: &mut Net, of: &[&str]) -> Outcome {
    net.run(Survey::quick(places(of), ShippedRules))
}

/// The members' states in short, by their places.
fn states(surveyed: &Surveyed<At, Failed>) -> Vec<String> {
    let short = |state: &State<At, Failed>| match state {
        State::Copy { index, home } => format!("copy of {index} at {home}"),
        State::Lost(cause) if cause.is_silence() => "silent".to_owned(),
        State::Lost(_) => "lost".to_owned(),
        State::Foreign(Reason::Mismatch { .. }) => "of another pool".to_owned(),
        state => format!("{state:?}").split([' ', '(']).next().unwrap_or_default().to_owned(),
    };
    let of = |member: &super::SurveyedMember<At, Failed>| {
        format!("{}: {}", member.place.as_ref().map_or(String::new(), ToString::to_string), short(&member.state))
    };
    surveyed.members.iter().map(of).collect()
}

#[test]
fn a_look_takes_four_round_trips() {
    let mut net = net(3);
    let surveyed = survey(&mut net, &["0", "1", "2"]).unwrap();
    assert_eq!(states(&surveyed), ["0: InSync", "1: InSync", "2: InSync"]);
    assert_eq!((surveyed.made_count, surveyed.losses_survived, surveyed.is_closed), (3, Some(1), true));
    // Connect, info, open, close.
    assert_eq!((net.rounds, net.asked.len(), net.dropped.len()), (4, 12, 3), "{:?}", net.asked);
}

#[test]
fn an_older_target_is_asked_for_more() {
    let mut net = net(1);
    net.node("0").is_older = true;
    assert_eq!(states(&survey(&mut net, &["0"]).unwrap()), ["0: InSync"]);
    assert_eq!(net.asked, ["0 connect", "0 Info", "0 Open", "0 Roster", "0 Close", "0 Domain"]);
}

/// As one that keeps no roster it would speak of the members that the pool was made with.
#[test]
fn one_that_is_lost_before_it_tells_its_roster_is_lost() {
    let mut net = net(2);
    net.node("0").is_older = true;
    net.node("0").ends_at = Some("Roster");
    assert_eq!(states(&survey(&mut net, &["0", "1"]).unwrap()), ["0: lost", "1: InSync"]);
    assert!(survey(&mut net, &["0"]).is_err());
}

#[test]
fn finds_members_that_were_not_named() {
    let mut net = net(3);
    assert_eq!(states(&survey(&mut net, &["1"]).unwrap()), ["1: InSync", "0: InSync", "2: InSync"]);
    net.node("0").is_gone = true;
    assert_eq!(states(&survey(&mut net, &["1"]).unwrap()), ["1: InSync", "0: lost", "2: InSync"]);
}

#[test]
fn silent_members_are_named_within_the_look() {
    for named in [&["0", "1", "2", "3", "4"][..], &["2"]] {
        let mut net = net(5);
        net.node("0").is_silent = true;
        net.node("3").is_silent = true;
        let surveyed = survey(&mut net, named).unwrap();
        let silent: Vec<_> = states(&surveyed).into_iter().filter(|state| state.ends_with("silent")).collect();
        assert_eq!((silent, surveyed.losses_survived), (vec!["0: silent".to_owned(), "3: silent".to_owned()], Some(0)));
        assert!(net.now <= Duration::from_millis(610), "{:?}", net.now);
    }
}

#[test]
fn where_too_few_answer_all_are_awaited() {
    let mut net = net(3);
    net.node("1").is_silent = true;
    net.node("2").is_silent = true;
    let surveyed = survey(&mut net, &["0"]).unwrap();
    assert_eq!(states(&surveyed), ["0: InSync", "1: lost", "2: lost"]);
    assert_eq!(surveyed.losses_survived, None);
    assert_eq!((net.now >= TIMEOUT, net.asked("connect").len()), (true, 6));
}

/// Members that a writer has told of an epoch, and others that it has not: asked again, they may agree.
#[test]
fn while_the_epoch_changes_it_looks_again() {
    let mut net = net(3);
    for place in ["0", "1", "2"] {
        net.node(place).open_by = Some(7);
        net.node(place).state = state(0b111, 2, true);
    }
    net.node("1").is_gone = true;
    net.node("2").is_gone = true;
    assert_eq!(survey(&mut net, &["0", "1", "2"]).unwrap().losses_survived, None);
    assert_eq!(net.asked("Info").len(), 4);
}

#[test]
fn none_that_answers_is_an_error() {
    let mut net = net(2);
    net.node("0").is_gone = true;
    net.node("1").is_gone = true;
    let Err(Unsurveyed::NoneAnswered(lost)) = survey(&mut net, &["0", "1"]) else { panic!("none is there") };
    assert!(lost.iter().map(|(place, _)| place.to_string()).eq(["0", "1"]));
}

#[test]
fn the_writer_is_asked_for_its_view() {
    let mut net = net(3);
    for place in ["1", "2"] {
        net.node(place).open_by = Some(7);
    }
    let other = Net::node(&mut net, "0");
    (other.pool_uuid, other.open_by) = (Uuid::from_u128(5), Some(5));
    let surveyed = survey(&mut net, &["1", "0", "2"]).unwrap();
    assert_eq!(surveyed.writer_status.map(|status| status.scrubbed_unix_ms), Some(7));
    // That of another pool, which comes first, is none of this pool's.
    net.node("1").open_by = None;
    let surveyed = survey(&mut net, &["1", "0", "2"]).unwrap();
    assert_eq!(states(&surveyed)[1], "0: of another pool");
    assert_eq!(surveyed.writer_status.map(|status| status.scrubbed_unix_ms), Some(7));
    assert_eq!(net.asked("WriterStatus"), ["1", "2"]);
}

/// The same replica at another address than the member's: a copy, unless both addresses lead to one directory.
#[test]
fn copies_are_told_from_members() {
    for (root, expected) in [("/copies", "copy of 0 at 0"), ("/", "InSync")] {
        let mut net = net(3);
        let mut copied = net.nodes["0"].clone();
        copied.root = root;
        net.nodes.insert("c".to_owned(), copied);
        let surveyed = survey(&mut net, &["c", "1"]).unwrap();
        assert_eq!(states(&surveyed)[0], format!("c: {expected}"));
        let is_found = states(&surveyed).contains(&"0: InSync".to_owned());
        assert_eq!((is_found, surveyed.losses_survived), (root != "/", Some(1)));
    }
}

#[test]
fn one_replica_at_two_addresses_is_an_error() {
    let mut net = net(3);
    let twice = net.nodes["0"].clone();
    net.nodes.insert("c".to_owned(), twice);
    let Err(Unsurveyed::SameReplica { place, other, index }) = survey(&mut net, &["0", "c"]) else { panic!("it is") };
    assert_eq!((place.to_string(), other.to_string(), index), ("c".to_owned(), "0".to_owned(), 0));
}

/// A takeover whose members are too few fences no writer, and names who is missing.
#[test]
fn a_take_over_that_cannot_open_fences_none() {
    let (require, take_over) = (Durability::Visible, Some(Duration::ZERO));
    let (least_replicas, least_domains) = (1, 1);
    let (is_patient, keeper) = (false, KeptBy::Members);
    let terms = Terms { require, min_replicas: None, take_over, least_replicas, least_domains, is_patient, keeper };
    for (gone, is_opened) in [(&["1", "2"][..], false), (&["2"], true)] {
        let mut net = net(3);
        for place in gone {
            net.node(place).is_gone = true;
        }
        let open = Opening::open(terms, pmof_control::OpenFor::Write, places(&["0"]), ShippedRules);
        let outcome = net.run(open);
        assert_eq!(net.asked("TakeOver").is_empty(), !is_opened, "{:?}", net.asked);
        match outcome.pool {
            Ok(_) => assert!(is_opened),
            Err(Refusal::Replica { position, cause: Cause::Failed(_) }) => {
                assert_eq!((is_opened, outcome.places[position].to_string()), (false, "1".to_owned()));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn release_takes_nothing_from_silent_targets() {
    let mut net = net(5);
    net.node("1").open_by = Some(7);
    net.node("4").is_silent = true;
    let released = net.run(release(places(&["0", "1", "2", "3", "4"]), Durability::Visible, 0));
    let writer = |released: &Result<Option<String>, Cause<Failed>>| released.as_ref().ok().cloned().flatten();
    assert_eq!(released.iter().map(writer).collect::<Vec<_>>(), [None, Some("7".to_owned()), None, None, None]);
    assert!(released[4].as_ref().is_err_and(Cause::is_silence));
    assert!(net.now <= Duration::from_millis(310), "{:?}", net.now);
    assert_eq!((net.asked("TakeOver"), net.asked("Close")), (vec!["0", "1", "2", "3"], vec!["0", "1", "2", "3"]));
}

#[test]
fn what_is_described_or_looked_at_is_awaited() {
    let mut net = net(4);
    net.node("1").is_silent = true;
    net.node("3").is_silent = true;
    let described = net.run(infos(places(&["0", "1", "2", "3"])));
    assert_eq!(described.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false]);
    let looked = net.run(looks(places(&["0", "1", "2", "3"])));
    assert!(looked[2].as_ref().is_ok_and(|look| look.roster == Some(roster(4))));
    assert!(looked[1].is_err() && looked[3].is_err());
    // At the same time, both times.
    assert!((TIMEOUT * 2..TIMEOUT * 2 + Duration::from_secs(1)).contains(&net.now), "{:?}", net.now);
}

#[test]
fn a_promoted_member_leads_to_its_pool() {
    let mut net = net(1);
    let member = RosterMember {
        index: 0,
        role: pmof_control::Role::Asynchronous,
        replica_uuid: uuid(0),
        url: "0".to_owned(),
        domain: String::new(),
    };
    let place = || Arc::new(At::parse("0").unwrap());
    assert_eq!(net.run(promoted_at(place(), POOL, member.clone())).unwrap(), Some(roster(1)));
    assert_eq!(net.run(promoted_at(place(), Uuid::from_u128(5), member.clone())).unwrap(), None);
    net.node("0").state = state(0b10, 2, false);
    net.node("0").state.ancestors.clear();
    assert_eq!(net.run(promoted_at(place(), POOL, member)).unwrap(), None, "none was made of it");
}

/// Only what was made and never written, where not all of it was made, and nothing else is there.
#[test]
fn what_was_left_half_made_is_removed() {
    let unfinished = || {
        let mut net = net(3);
        for node in net.nodes.values_mut() {
            node.state = PoolState::new(Uuid::from_u128(9), 3);
            node.roster = Some(pmof_control::Roster::made(3));
        }
        net.node("2").is_absent = true;
        net
    };
    let all = || remove_unfinished(places(&["0", "1", "2"]));
    let removed = |mut net: Net| net.run(all()).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(removed(unfinished()), ["0", "1"]);
    let kept: [fn(&mut Net); 5] = [
        |net| net.node("2").is_absent = false,
        |net| net.node("1").state.mark = 1,
        |net| net.node("1").open_by = Some(7),
        |net| net.node("1").roster = Some(roster(3)),
        |net| net.node("2").is_gone = true,
    ];
    for (at, change) in kept.iter().enumerate() {
        let mut net = unfinished();
        change(&mut net);
        assert!(removed(net).is_empty(), "{at}");
    }
}

/// How many losses so many replicas survive that have such states: whether each is in sync, and whether it is here.
fn survived<const N: usize>(replicas: [(bool, bool); N]) -> Option<usize> {
    let in_sync = (0..N as u16).filter(|index: &u16| replicas[usize::from(*index)].0);
    let epoch = Epoch { id: Uuid::from_u128(2), ..Epoch::new(Uuid::new_v4(), in_sync) };
    let of = |is_in_sync: bool| PoolState {
        epoch,
        opening: 2,
        is_confirmed: true,
        is_open: true,
        is_behind: !is_in_sync,
        mark: 0,
        ancestors: vec![Epoch { id: Uuid::from_u128(1), members: (1 << N) - 1 }],
    };
    let states = replicas.map(|(is_in_sync, _)| of(is_in_sync));
    let here = (0..N as u16).filter(|index: &u16| replicas[usize::from(*index)].1);
    let found: Vec<_> = here.map(|index| Found { index, state: &states[usize::from(index)] }).collect();
    let (agreement, electorate) = (agree(&found, N as u16).ok()?, Electorate::of(&[], N as u16));
    electorate.is_enough(&agreement, &found).then(|| losses_survived(&agreement, &found, &electorate))?
}

#[test]
fn one_in_sync_is_left_and_a_majority_votes() {
    let (in_sync, behind, lost) = ((true, true), (false, true), (true, false));
    assert_eq!(survived([in_sync; 3]), Some(1));
    assert_eq!(survived([in_sync, in_sync, behind]), Some(1));
    assert_eq!(survived([in_sync, behind, behind]), Some(0), "no other has everything");
    assert_eq!(survived([in_sync, in_sync, lost]), Some(0));
    assert_eq!(survived([in_sync, lost, lost]), None);
    assert_eq!(survived([behind, behind, lost]), None);
}

/// Of four, three have to know of an epoch: a fourth survives no more losses than three.
#[test]
fn an_even_number_survives_no_more_than_the_odd_one_below() {
    let (in_sync, behind, lost) = ((true, true), (false, true), (true, false));
    assert_eq!(survived([in_sync; 4]), Some(1));
    assert_eq!(survived([in_sync, in_sync, in_sync, behind]), Some(1));
    assert_eq!(survived([in_sync, in_sync, in_sync, lost]), Some(0));
    assert_eq!(survived([in_sync, in_sync, lost, lost]), None, "it opens for reading only");
    assert_eq!(survived([in_sync; 2]), Some(0));
    assert_eq!(survived([in_sync; 5]), Some(2));
}
