use core::{fmt, time::Duration};
use std::{collections::BTreeMap, sync::Arc};

use pmof_control::{
    Claim, Enclosed, Epoch, Header, MeantReplica, OpenFor, PoolFormat, PoolInfo, PoolName, PoolRefusal, PoolState,
    Reply, Request, Role, Roster, RosterMember, RosterPart,
};
use pmof_terms::{Durability, MediumKind};
use uuid::Uuid;

use super::*;
use crate::{
    keeper::{KeeperError, Kept, KeptBy},
    place::Place,
};

mod kept_outside;

const SIZE_BYTES: u64 = 1 << 20;
const POOL: Uuid = Uuid::from_u128(77);

/// `N` is a place without a start, `sN` one where a target is started.
#[derive(Clone, Debug, PartialEq)]
struct At(String, PoolName);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Place for At {
    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned(), PoolName::new("p").unwrap()))
    }

    fn pool_name(&self) -> &PoolName {
        &self.1
    }

    fn may_be_followed(&self) -> bool {
        !self.starts_target()
    }

    fn is_local(&self) -> bool {
        false
    }

    fn starts_target(&self) -> bool {
        self.0.starts_with('s')
    }
}

#[derive(Debug)]
enum Failed {
    Lost,
    Refused(PoolRefusal),
}

impl Failure for Failed {
    fn may_be_lost(&self) -> bool {
        matches!(self, Self::Lost | Self::Refused(PoolRefusal::NotFound))
    }

    fn refusal(&self) -> Option<PoolRefusal> {
        match self {
            Self::Lost => None,
            Self::Refused(refusal) => Some(*refusal),
        }
    }
}

/// What a target does.
#[derive(Clone, Debug)]
struct Node {
    index: u16,
    state: PoolState,
    roster: Option<Roster>,
    /// It refuses so many openings.
    busy_times: u32,
    is_silent: bool,
    is_gone: bool,
    refuses: Option<PoolRefusal>,
    /// It is of a release whose replies to an opening enclose nothing.
    is_older: bool,
}

/// Targets by their places, a virtual clock, and all that was asked.
struct Net {
    nodes: BTreeMap<String, Node>,
    now: Duration,
    /// One way and back.
    round_trip: Duration,
    asked: Vec<String>,
    rounds: usize,
    at: BTreeMap<SiteId, String>,
    dropped: Vec<SiteId>,
    /// Each answer comes twice, and once more at the end.
    repeats: bool,
    /// What the keeper outside of the members has.
    kept: Option<Kept>,
}

fn uuid(index: u16) -> Uuid {
    Uuid::from_u128(1000 + u128::from(index))
}

fn state(members: u64, opening: u64, is_open: bool) -> PoolState {
    let made = PoolState::new(Uuid::from_u128(1), members.count_ones() as u16).closed();
    let epoch = Epoch { id: Uuid::from_u128(100 + u128::from(opening)), members };
    PoolState { opening, epoch, ancestors: vec![made.epoch], is_open, is_confirmed: true, ..made }
}

fn roster(count: u16) -> Roster {
    let member = |index: u16| RosterMember {
        index,
        role: Role::Data,
        replica_uuid: uuid(index),
        url: index.to_string(),
        domain: String::new(),
    };
    Roster { notes: 1, members: (0..count).map(member).collect(), ..Roster::made(count) }
}

fn net(count: u16) -> Net {
    let node = |index: u16| Node {
        index,
        state: state((1 << count) - 1, 2, false),
        roster: Some(roster(count)),
        busy_times: 0,
        is_silent: false,
        is_gone: false,
        refuses: None,
        is_older: false,
    };
    Net {
        nodes: (0..count).map(|index| (index.to_string(), node(index))).collect(),
        now: Duration::ZERO,
        round_trip: Duration::from_millis(1),
        asked: Vec::new(),
        rounds: 0,
        at: BTreeMap::new(),
        dropped: Vec::new(),
        repeats: false,
        kept: None,
    }
}

fn places(of: &[&str]) -> Vec<Arc<At>> {
    of.iter().map(|text| Arc::new(At::parse(text).unwrap())).collect()
}

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
    fn node(&mut self, place: &str) -> &mut Node {
        self.nodes.get_mut(place).unwrap()
    }

    fn answer(&mut self, action: &Action<At>) -> Option<Result<Answer, Failed>> {
        let count = self.nodes.len() as u16;
        match action {
            Action::Connect { site, place, .. } => {
                self.asked.push(format!("{place} connect"));
                self.at.insert(*site, place.0.clone());
                let node = self.nodes.get(&place.0);
                if node.is_some_and(|node| node.is_silent) {
                    return None;
                }
                Some(node.filter(|node| !node.is_gone).map(|_| Answer::Done).ok_or(Failed::Lost))
            }
            Action::Send { site, request } => {
                let place = self.at[site].clone();
                let name = format!("{request:?}");
                let verb = name.split([' ', '(']).next().unwrap();
                self.asked.push(format!("{place} {verb}"));
                let node = self.nodes.get_mut(&place).unwrap();
                if node.is_silent {
                    return None;
                }
                Some(node.reply(request, count).map(|reply| Answer::Reply(Box::new(reply))).map_err(Failed::Refused))
            }
            Action::Map { .. } | Action::Survey => Some(Ok(Answer::Done)),
            Action::ReadKeeper => {
                Some(Ok(Answer::Kept(self.kept.clone().ok_or(KeeperError::Unreachable).map(Box::new))))
            }
            Action::Unmap { .. } => None,
            Action::Drop { site } => {
                self.dropped.push(*site);
                None
            }
        }
    }

    /// Answers all questions together after a round trip, until there is an outcome.
    fn run<T>(&mut self, mut opening: Opening<At, Failed, T>) -> Outcome<At, Failed, T> {
        let mut answers: Vec<(CallId, Result<Answer, Failed>)> = Vec::new();
        let mut outcome = opening.step(self.now, None);
        loop {
            let mut is_sent = false;
            while let Some(Question { call, action }) = opening.next_question() {
                is_sent |= matches!(action, Action::Connect { .. } | Action::Send { .. });
                if let Some(answer) = self.answer(&action) {
                    answers.push((call, answer));
                }
            }
            if let Some(outcome) = outcome {
                return outcome;
            }
            self.rounds += usize::from(is_sent);
            if answers.is_empty() {
                self.now = self.now.max(opening.wakes_at().expect("it waits for something"));
            } else if is_sent {
                self.now += self.round_trip;
            }
            for (call, answer) in core::mem::take(&mut answers) {
                if self.repeats {
                    let again = match &answer {
                        Ok(Answer::Reply(reply)) => Ok(Answer::Reply(reply.clone())),
                        _ => Err(Failed::Lost),
                    };
                    outcome = outcome.or_else(|| opening.step(self.now, Some((call, answer))));
                    if outcome.is_none() {
                        outcome = opening.step(self.now, Some((call, again)));
                    }
                } else {
                    outcome = outcome.or_else(|| opening.step(self.now, Some((call, answer))));
                }
            }
            if outcome.is_none() {
                outcome = opening.step(self.now, None);
            }
        }
    }

    fn open(&mut self, terms: Terms, access: OpenFor, of: &[&str]) -> Outcome<At, Failed, FoundPool> {
        self.run(Opening::open(terms, access, places(of), ShippedRules))
    }

    fn asked(&self, what: &str) -> Vec<&str> {
        self.asked.iter().filter(|asked| asked.ends_with(what)).map(|asked| asked.split(' ').next().unwrap()).collect()
    }
}

impl Node {
    fn reply(&mut self, request: &Request, count: u16) -> Result<Reply, PoolRefusal> {
        let Self { index, state, roster, busy_times, refuses, is_older, .. } = self;
        Ok(match request {
            Request::Open { access: OpenFor::Write, .. } | Request::Create { .. } if *busy_times > 0 => {
                *busy_times -= 1;
                return Err(PoolRefusal::Busy);
            }
            Request::Open { .. } | Request::TakeOver { .. } | Request::Create { .. } => match refuses {
                Some(refusal) => return Err(*refusal),
                None => Reply::Opened {
                    pool_uuid: POOL,
                    replica_uuid: uuid(*index),
                    size_bytes: SIZE_BYTES,
                    replica_count: count.max(*index + 1),
                    replica_index: *index,
                    user_flags: Default::default(),
                    state: state.clone(),
                    descriptor: Vec::new(),
                    enclosed: Box::new(if *is_older {
                        Enclosed::default()
                    } else {
                        Enclosed { roster: roster.clone(), domain: Some(None), intent: Some(vec![7]) }
                    }),
                },
            },
            Request::Info { name } => Reply::Info(Box::new(PoolInfo {
                name: name.clone(),
                header: Header {
                    format: PoolFormat::Three,
                    compatible_features: 0,
                    pool_uuid: POOL,
                    replica_uuid: uuid(*index),
                    size_bytes: SIZE_BYTES,
                    created_at_unix_s: 0,
                    replica_count: count.max(*index + 1),
                    replica_index: *index,
                    user_flags: Default::default(),
                },
                state: state.clone(),
                file_len_bytes: SIZE_BYTES,
                medium: MediumKind::PageCache,
                promises: [None; 3],
                open_by: None,
            })),
            Request::Roster { offset } => {
                let encoded = roster.as_ref().ok_or(PoolRefusal::NotFound)?.encode().unwrap();
                Reply::Roster(RosterPart::of(&encoded, *offset))
            }
            Request::Domain => Reply::Domain(None),
            Request::Close { .. } => Reply::Closed,
            Request::Remove { .. } => Reply::Removed,
            Request::SetRoster { .. } => Reply::RosterSet,
            other => panic!("{other:?}"),
        })
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
    Creation { uuid: POOL, epoch, size_bytes: SIZE_BYTES, user_flags, publish_on_close: false }
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
