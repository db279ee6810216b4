use core::time::Duration;

use pmof_control::{Claim, Epoch, MeantReplica, OpenFor, PoolRefusal, PoolState, Reply, Request};
use pmof_terms::Durability;
use uuid::Uuid;

use super::*;
use crate::{
    asking::{
        Action, Answer, CallId, Cause, Question, Reason,
        net::{At, Failed, Net, POOL, SIZE_BYTES, net, places, roster, state, uuid},
    },
    keeper::{KeeperError, Kept, KeptBy},
};

mod kept_outside;

fn terms() -> Terms {
    Terms {
        require: Durability::Visible,
        min_replicas: None,
        take_over: None,
        least_replicas: 1,
        least_domains: 1,
        is_patient: false,
        keeper: KeptBy::Members,
    }
}

impl Net {
    fn open(&mut self, terms: Terms, access: OpenFor, of: &[&str]) -> Outcome<At, Failed, FoundPool> {
        self.run(Opening::open(terms, access, places(of), ShippedRules))
    }
}

fn positions(pool: &FoundPool) -> Vec<usize> {
    pool.opened.iter().map(|opened| opened.position).collect()
}

#[test]
fn opens_in_two_round_trips() {
    let mut net = net(3);
    let outcome = net.open(terms(), OpenFor::Write, &["0", "1", "2"]);
    let pool = outcome.pool.unwrap();
    assert_eq!((positions(&pool), pool.left, pool.source), (vec![0, 1, 2], Left::Closed, 0));
    assert!(pool.opened.iter().all(|opened| opened.intent == Some(vec![7])));
    // Connect, open.
    assert_eq!((net.rounds, net.now), (2, Duration::from_millis(2)), "{:?}", net.asked);
    assert!(!outcome.was_hasty && outcome.left_out.is_empty());
}

#[test]
fn what_an_older_target_does_not_tell_is_asked_for() {
    let mut net = net(3);
    net.node("1").is_older = true;
    let pool = net.open(terms(), OpenFor::Write, &["0", "1", "2"]).pool.unwrap();
    // Connect, open, roster, failure domain.
    assert_eq!(net.rounds, 4, "{:?}", net.asked);
    assert_eq!((net.asked("Roster"), net.asked("Domain")), (vec!["1"], vec!["1"]));
    assert!(pool.opened.iter().all(|opened| opened.roster == Some(roster(3))));
    assert_eq!(pool.opened.iter().filter(|opened| opened.intent.is_none()).count(), 1);
}

#[test]
fn one_that_is_lost_before_it_tells_its_roster_is_left_out() {
    let mut net = net(3);
    net.node("1").is_older = true;
    net.node("1").ends_at = Some("Roster");
    let outcome = net.open(terms(), OpenFor::Write, &["0", "1", "2"]);
    assert_eq!(positions(&outcome.pool.unwrap()), [0, 2]);
}

#[test]
fn finds_members_that_were_not_named() {
    let mut net = net(3);
    let outcome = net.open(terms(), OpenFor::Write, &["1"]);
    assert_eq!(outcome.places.iter().map(ToString::to_string).collect::<Vec<_>>(), ["1", "0", "2"]);
    assert_eq!(positions(&outcome.pool.unwrap()), [0, 1, 2]);
    assert_eq!(net.rounds, 4, "{:?}", net.asked);
}

#[test]
fn silent_members_have_a_grace() {
    for (named, grace_ms) in [(["0", "1", "2", "3", "4"], 300), (["0", "1", "s2", "3", "4"], 3000)] {
        let mut net = net(5);
        let started = net.nodes["2"].clone();
        net.nodes.insert("s2".to_owned(), started);
        net.node("3").is_silent = true;
        net.node("4").is_silent = true;
        let outcome = net.open(terms(), OpenFor::Write, &named);
        assert_eq!(positions(&outcome.pool.unwrap()), [0, 1, 2]);
        let silent = |(position, cause): &(usize, Cause<Failed>)| cause.is_silence().then_some(*position);
        assert_eq!(outcome.left_out.iter().filter_map(silent).collect::<Vec<_>>(), [3, 4]);
        assert!(outcome.was_hasty && net.dropped.len() == 2);
        let expected = Duration::from_millis(grace_ms + 4);
        assert!(net.now <= expected, "{:?}", net.now);
    }
}

#[test]
fn slow_answers_lengthen_the_grace() {
    let mut net = net(3);
    net.round_trip = Duration::from_millis(200);
    net.node("2").is_silent = true;
    let outcome = net.open(terms(), OpenFor::Write, &["0", "1", "2"]);
    assert_eq!(positions(&outcome.pool.unwrap()), [0, 1]);
    assert!(net.now >= Duration::from_millis(200 + 600), "{:?}", net.now);
}

#[test]
fn patient_openings_await_all() {
    let mut net = net(3);
    net.node("2").is_silent = true;
    let patient = Terms { is_patient: true, ..terms() };
    let mut opening = Opening::<At, Failed, _>::open(patient, OpenFor::Write, places(&["0", "1", "2"]), ShippedRules);
    assert!(opening.step(Duration::ZERO, None).is_none());
    let mut last = None;
    while let Some(Question { call, action }) = opening.next_question() {
        match net.answer(&action) {
            Some(answer) => assert!(opening.step(Duration::ZERO, Some((call, answer))).is_none()),
            None => last = Some(call),
        }
    }
    assert_eq!(opening.wakes_at(), None, "no time ends it");
    assert!(opening.step(Duration::from_secs(60), Some((last.unwrap(), Err(Failed::Lost)))).is_none());
    assert!(matches!(opening.next_question(), Some(Question { action: Action::Drop { .. }, .. })));
    assert!(matches!(opening.next_question(), Some(Question { action: Action::Send { .. }, .. })));
}

/// Two have opened, and the third is asked and does not answer: carried out late, it would fence a later writer, or keep the replica busy.
#[test]
fn requests_that_change_something_are_awaited() {
    for (take_over, verb) in [(Some(Duration::ZERO), "TakeOver"), (None, "Open")] {
        let mut net = net(3);
        let terms = Terms { take_over, ..terms() };
        let mut opening = Opening::<At, Failed, _>::open(terms, OpenFor::Write, places(&["0", "1", "2"]), ShippedRules);
        let (mut now, mut held) = (Duration::ZERO, None);
        while held.is_none() {
            now += Duration::from_millis(1);
            assert!(opening.step(now, None).is_none());
            while let Some(Question { call, action }) = opening.next_question() {
                let opens =
                    matches!(&action, Action::Send { request: Request::TakeOver { .. } | Request::Open { .. }, .. });
                if opens && net.asked(verb).len() == 2 {
                    held = Some((call, action));
                } else if let Some(answered) = net.answer(&action) {
                    assert!(opening.step(now, Some((call, answered))).is_none());
                }
            }
        }
        assert_eq!(opening.wakes_at(), None, "no time ends {verb}");
        let (call, action) = held.unwrap();
        now += Duration::from_secs(100);
        let answered = net.answer(&action).unwrap();
        let mut outcome = opening.step(now, Some((call, answered)));
        while outcome.is_none() {
            let Some(Question { call, action }) = opening.next_question() else { panic!("it waits") };
            if let Some(answered) = net.answer(&action) {
                outcome = opening.step(now, Some((call, answered)));
            }
        }
        assert_eq!(positions(&outcome.unwrap().pool.unwrap()), [0, 1, 2]);
    }
}

#[test]
fn contenders_ask_in_the_order_of_indexes() {
    let mut net = net(3);
    net.node("1").busy_times = 2;
    let outcome = net.open(terms(), OpenFor::Write, &["2", "1", "0"]);
    assert_eq!(positions(&outcome.pool.unwrap()), [0, 1, 2]);
    assert_eq!(net.asked("Open")[3..], ["0", "1", "1", "2"], "after all were asked at once");
    assert_eq!(net.asked("Close"), ["2", "0"], "opened replicas are released meanwhile");
}

#[test]
fn one_that_stays_busy_ends_the_opening() {
    let mut net = net(3);
    net.node("1").busy_times = u32::MAX;
    let outcome = net.open(terms(), OpenFor::Write, &["0", "1", "2"]);
    assert!(matches!(outcome.pool, Err(Refusal::Replica { position: 1, ref cause }) if cause.is_busy()), "{outcome:?}");
    assert!(net.now >= Duration::from_secs(1) && net.now < Duration::from_secs(2), "{:?}", net.now);
    assert_eq!(net.asked("Close").len(), 3, "what was opened is released: {:?}", net.asked);
}

#[test]
fn readers_do_not_read_members_that_are_behind() {
    let mut net = net(3);
    net.node("2").state = state(0b111, 1, true);
    for place in ["0", "1"] {
        let older = state(0b111, 1, true);
        net.node(place).state = PoolState {
            ancestors: std::iter::once(older.epoch).chain(older.ancestors).collect(),
            ..state(0b011, 2, true)
        };
    }
    let pool = net.open(terms(), OpenFor::Read, &["0", "1", "2"]).pool.unwrap();
    assert_eq!((positions(&pool), pool.unread[0].position), (vec![0, 1], 2));
    let pool = net.open(terms(), OpenFor::Write, &["0", "1", "2"]).pool.unwrap();
    assert!(matches!(pool.opened[2].behind, Some(Reason::Apart { .. })), "{pool:?}");
    assert_eq!(pool.left, Left::Alike);
}

/// An epoch was announced at one of them. Another one was opened before that, and taken by the writer that may have confirmed the epoch there.
#[test]
fn one_that_was_taken_meanwhile_does_not_say_what_was_given_up() {
    let announced = |net: &mut Net| {
        let found = net.node("1").state.clone();
        let epoch = Epoch { id: Uuid::from_u128(9), members: 0b111 };
        net.node("1").state = found.begun(1, epoch, 3, &[&[found.epoch], &found.ancestors[..]].concat());
    };
    let mut whole = net(3);
    announced(&mut whole);
    let pool = whole.open(terms(), OpenFor::Write, &["0", "1", "2"]).pool.unwrap();
    assert_eq!((whole.asked("Mark"), whole.rounds, pool.base.ancestors[1].members), (vec!["0", "1", "2"], 3, 0));

    let mut taken = net(3);
    announced(&mut taken);
    taken.node("0").ends_at = Some("Mark");
    let outcome = taken.open(terms(), OpenFor::Write, &["0", "1", "2"]);
    assert_eq!(positions(&outcome.pool.unwrap()), [1, 2]);
    assert_eq!((outcome.left_out[0].0, taken.dropped.len()), (0, 1));
    taken.node("2").ends_at = Some("Mark");
    let outcome = taken.open(terms(), OpenFor::Write, &["0", "1", "2"]);
    assert!(matches!(outcome.pool, Err(Refusal::TooFew { here: 1, .. })), "{outcome:?}");

    // Where no epoch was announced there is nothing to give up, and a reader gives nothing up.
    let mut settled = net(3);
    settled.open(terms(), OpenFor::Write, &["0", "1", "2"]).pool.unwrap();
    whole.asked.clear();
    whole.open(terms(), OpenFor::Read, &["0", "1", "2"]).pool.unwrap();
    assert_eq!((settled.asked("Mark"), whole.asked("Mark")), (vec![], vec![]));
}

#[test]
fn answers_that_come_twice_change_nothing() {
    let outcomes = [false, true].map(|repeats| {
        let mut net = net(5);
        net.repeats = repeats;
        net.node("3").is_silent = true;
        net.node("1").busy_times = 1;
        let pool = net.open(terms(), OpenFor::Write, &["0", "1", "2", "3"]).pool.unwrap();
        (positions(&pool), pool.mark, pool.source, net.asked)
    });
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn answers_to_nothing_change_nothing() {
    let mut opening = Opening::<At, Failed, _>::open(terms(), OpenFor::Write, places(&["0"]), ShippedRules);
    assert!(opening.step(Duration::ZERO, Some((CallId(99), Ok(Answer::Done)))).is_none());
    // A connection that says something: it is none.
    let Some(Question { call, .. }) = opening.next_question() else { panic!() };
    let reply = Answer::Reply(Box::new(Reply::Closed));
    let outcome = opening.step(Duration::ZERO, Some((call, Ok(reply)))).unwrap();
    let is_unexpected = |cause: &Cause<Failed>| matches!(cause, Cause::Reason(Reason::Unexpected));
    assert!(
        matches!(outcome.pool, Err(Refusal::Replica { position: 0, ref cause }) if is_unexpected(cause)),
        "{outcome:?}"
    );
}

#[test]
#[should_panic(expected = "clock went back")]
fn the_clock_does_not_go_back() {
    let mut opening = Opening::<At, Failed, _>::open(terms(), OpenFor::Write, places(&["0"]), ShippedRules);
    opening.step(Duration::from_secs(1), None);
    opening.step(Duration::ZERO, None);
}

#[test]
fn replicas_of_other_pools_are_refused() {
    for (wrong, at) in [(POOL, 1), (Uuid::from_u128(5), 1)] {
        let mut found = None;
        let one = Identity { uuid: POOL, size_bytes: SIZE_BYTES, user_flags: Default::default(), replica_count: 2 };
        Identity::check(one, &mut found).unwrap();
        let other = Identity { uuid: wrong, size_bytes: SIZE_BYTES * 2, ..one };
        assert!(matches!(Identity::check(other, &mut found), Err(Reason::Mismatch { .. })), "{at}");
    }
}

fn creation() -> Creation {
    let (epoch, user_flags) = (Uuid::from_u128(9), Default::default());
    Creation { uuid: POOL, epoch, size_bytes: SIZE_BYTES, user_flags, publish_on_close: false, protection: None }
}

#[test]
fn a_pool_is_made_everywhere_or_nowhere() {
    let mut whole = net(3);
    let made = whole.run(Opening::create(terms(), creation(), places(&["2", "0", "1"]))).pool.unwrap();
    assert_eq!(made.opened.len(), 3);
    assert_eq!(whole.asked("Create"), ["0", "2", "1"], "one before the others");

    let mut refused = net(3);
    refused.node("1").refuses = Some(PoolRefusal::NoSpace);
    let outcome = refused.run(Opening::create(terms(), creation(), places(&["0", "1", "2"])));
    assert!(matches!(outcome.pool, Err(Refusal::Replica { position: 1, .. })), "{outcome:?}");
    assert_eq!(refused.asked("Remove"), ["0", "2"]);

    let mut contended = net(3);
    contended.node("0").refuses = Some(PoolRefusal::AlreadyExists);
    let outcome = contended.run(Opening::create(terms(), creation(), places(&["0", "1", "2"])));
    assert!(matches!(outcome.pool, Err(Refusal::Replica { position: 0, .. })), "{outcome:?}");
    assert_eq!((contended.asked("Create"), contended.asked("Remove")), (vec!["0"], vec![]));
}

/// A target that takes long to close what was made removes it all the same.
#[test]
fn what_was_made_is_removed_however_long_it_takes() {
    let mut opening = Opening::<At, Failed, _>::create(terms(), creation(), places(&["0", "1"]));
    let mut net = net(2);
    net.node("1").refuses = Some(PoolRefusal::NoSpace);
    let (mut now, mut outcome) = (Duration::ZERO, opening.step(Duration::ZERO, None));
    while outcome.is_none() {
        let Some(Question { call, action }) = opening.next_question() else { panic!("it waits") };
        if matches!(&action, Action::Send { request: Request::Close { .. }, .. }) {
            now += Duration::from_secs(30);
            assert!(opening.step(now, None).is_none(), "it is awaited");
        }
        if let Some(answer) = net.answer(&action) {
            outcome = opening.step(now, Some((call, answer)));
        }
    }
    assert_eq!(net.asked("Remove"), ["0"]);
}

#[test]
fn what_is_undone_is_named_by_its_epoch() {
    let mut opening = Opening::<At, Failed, _>::create(terms(), creation(), places(&["0", "1"]));
    let mut net = net(2);
    net.node("1").refuses = Some(PoolRefusal::NoSpace);
    let (mut removed, mut outcome) = (None, opening.step(Duration::ZERO, None));
    while outcome.is_none() {
        let Some(Question { call, action }) = opening.next_question() else { panic!("it waits") };
        if let Action::Send { request: Request::Remove { meant, .. }, .. } = &action {
            removed = *meant;
        }
        if let Some(answer) = net.answer(&action) {
            outcome = opening.step(Duration::ZERO, Some((call, answer)));
        }
    }
    assert_eq!(removed, Some(MeantReplica { uuid: uuid(0), epoch: Some(Uuid::from_u128(9)) }));
}

#[test]
fn a_take_over_claims_nothing() {
    let mut net = net(1);
    let terms = Terms { take_over: Some(Duration::from_millis(7)), ..terms() };
    let mut opening = Opening::<At, Failed, _>::open(terms, OpenFor::Write, places(&["0"]), ShippedRules);
    let mut outcome = opening.step(Duration::ZERO, None);
    let mut taken = None;
    while outcome.is_none() {
        let Some(Question { call, action }) = opening.next_question() else { panic!("it waits") };
        if let Action::Send { request: Request::TakeOver { silent_ms, claim, .. }, .. } = &action {
            taken = Some((*silent_ms, *claim));
        }
        if let Some(answer) = net.answer(&action) {
            outcome = opening.step(Duration::ZERO, Some((call, answer)));
        }
    }
    assert_eq!(taken, Some((7, Claim::None)));
}
