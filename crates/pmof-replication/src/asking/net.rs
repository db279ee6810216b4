//! Targets on a virtual clock, which answer what the engine asks.

use core::{fmt, time::Duration};
use std::{
    boxed::Box,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use pmof_control::{
    Enclosed, Epoch, Header, OpenFor, PoolFormat, PoolInfo, PoolName, PoolRefusal, PoolState, Reply, Request, Role,
    Roster, RosterMember, RosterPart, SpokenVersions, TargetStatus, WriterStatus,
};
use pmof_terms::MediumKind;
use uuid::Uuid;

use super::{Action, Answer, Asking, Failure, Question, SiteId};
use crate::{
    keeper::{KeeperError, Kept},
    place::Place,
};

pub(crate) const SIZE_BYTES: u64 = 1 << 20;
/// After which silent targets are lost, where nothing else ends the wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const POOL: Uuid = Uuid::from_u128(77);

/// `N` is a place without a start, `sN` one where a target is started.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct At(String, PoolName);

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
pub(crate) enum Failed {
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
#[expect(clippy::struct_excessive_bools, reason = "each is a fault that may have met it")]
pub(crate) struct Node {
    pub(crate) index: u16,
    pub(crate) state: PoolState,
    pub(crate) roster: Option<Roster>,
    /// It refuses so many openings.
    pub(crate) busy_times: u32,
    pub(crate) is_silent: bool,
    pub(crate) is_gone: bool,
    /// Its connection ends when it is asked this.
    pub(crate) ends_at: Option<&'static str>,
    pub(crate) refuses: Option<PoolRefusal>,
    /// It is of a release whose replies to an opening enclose nothing.
    pub(crate) is_older: bool,
    /// Its target has no such replica.
    pub(crate) is_absent: bool,
    pub(crate) pool_uuid: Uuid,
    /// Who has it open for writing: what this one told is its name.
    pub(crate) open_by: Option<u64>,
    /// The directory that it lies in.
    pub(crate) root: &'static str,
}

/// Targets by their places, a virtual clock, and all that was asked.
pub(crate) struct Net {
    /// Replicas of the pool.
    count: u16,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) now: Duration,
    /// One way and back.
    pub(crate) round_trip: Duration,
    pub(crate) asked: Vec<String>,
    pub(crate) rounds: usize,
    at: BTreeMap<SiteId, String>,
    pub(crate) dropped: Vec<SiteId>,
    /// Each answer comes twice, and once more at the end.
    pub(crate) repeats: bool,
    /// What the keeper outside of the members has.
    pub(crate) kept: Option<Kept>,
}

pub(crate) fn uuid(index: u16) -> Uuid {
    Uuid::from_u128(1000 + u128::from(index))
}

pub(crate) fn state(members: u64, opening: u64, is_open: bool) -> PoolState {
    let made = PoolState::new(Uuid::from_u128(1), members.count_ones() as u16).closed();
    let epoch = Epoch { id: Uuid::from_u128(100 + u128::from(opening)), members };
    PoolState { opening, epoch, ancestors: vec![made.epoch], is_open, is_confirmed: true, ..made }
}

pub(crate) fn roster(count: u16) -> Roster {
    let member = |index: u16| RosterMember {
        index,
        role: Role::Data,
        replica_uuid: uuid(index),
        url: index.to_string(),
        domain: String::new(),
    };
    Roster { notes: 1, members: (0..count).map(member).collect(), ..Roster::made(count) }
}

pub(crate) fn net(count: u16) -> Net {
    let node = |index: u16| Node {
        index,
        state: state((1 << count) - 1, 2, false),
        roster: Some(roster(count)),
        busy_times: 0,
        is_silent: false,
        is_gone: false,
        ends_at: None,
        refuses: None,
        is_older: false,
        is_absent: false,
        pool_uuid: POOL,
        open_by: None,
        root: "/",
    };
    Net {
        count,
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

fn status() -> TargetStatus {
    TargetStatus {
        version: String::new(),
        protocol_version: 1,
        control_versions: SpokenVersions::OURS,
        pool_format: 3,
        is_draining: false,
        is_root_writable: true,
        is_root_attached: true,
        uptime_ms: 0,
        connections: 1,
        max_connections: 1,
        memory_bytes: 0,
        memory_budget_bytes: 0,
        free_bytes: 0,
        total_bytes: 0,
        root: String::new(),
    }
}

pub(crate) fn places(of: &[&str]) -> Vec<Arc<At>> {
    of.iter().map(|text| Arc::new(At::parse(text).unwrap())).collect()
}

impl Net {
    pub(crate) fn node(&mut self, place: &str) -> &mut Node {
        self.nodes.get_mut(place).unwrap()
    }

    pub(crate) fn answer(&mut self, action: &Action<At>) -> Option<Result<Answer, Failed>> {
        let count = self.count;
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
                if node.ends_at == Some(verb) {
                    return Some(Err(Failed::Lost));
                }
                Some(node.reply(request, count).map(|reply| Answer::Reply(Box::new(reply))).map_err(Failed::Refused))
            }
            Action::Map { .. } => Some(Ok(Answer::Done)),
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
    pub(crate) fn run<T>(&mut self, mut asking: Asking<At, Failed, T>) -> T {
        let (mut answers, mut unanswered) = (Vec::new(), Vec::new());
        let mut outcome = asking.step(self.now, None);
        loop {
            let mut is_sent = false;
            while let Some(Question { call, action }) = asking.next_question() {
                let is_request = matches!(action, Action::Connect { .. } | Action::Send { .. });
                is_sent |= is_request;
                match self.answer(&action) {
                    Some(answer) => answers.push((call, answer)),
                    None if is_request => unanswered.push(call),
                    None => {}
                }
            }
            if let Some(outcome) = outcome {
                return outcome;
            }
            self.rounds += usize::from(is_sent);
            if answers.is_empty() {
                self.now = self.now.max(asking.wakes_at().unwrap_or(self.now + TIMEOUT));
                if asking.wakes_at().is_none() {
                    assert!(!unanswered.is_empty(), "it waits for nothing");
                    answers.extend(unanswered.drain(..).map(|call| (call, Err(Failed::Lost))));
                }
            } else if is_sent {
                self.now += self.round_trip;
            }
            for (call, answer) in core::mem::take(&mut answers) {
                if self.repeats {
                    let again = match &answer {
                        Ok(Answer::Reply(reply)) => Ok(Answer::Reply(reply.clone())),
                        _ => Err(Failed::Lost),
                    };
                    outcome = outcome.or_else(|| asking.step(self.now, Some((call, answer))));
                    if outcome.is_none() {
                        outcome = asking.step(self.now, Some((call, again)));
                    }
                } else {
                    outcome = outcome.or_else(|| asking.step(self.now, Some((call, answer))));
                }
            }
            if outcome.is_none() {
                outcome = asking.step(self.now, None);
            }
        }
    }

    pub(crate) fn asked(&self, what: &str) -> Vec<&str> {
        self.asked.iter().filter(|asked| asked.ends_with(what)).map(|asked| asked.split(' ').next().unwrap()).collect()
    }
}

impl Node {
    fn reply(&mut self, request: &Request, count: u16) -> Result<Reply, PoolRefusal> {
        let Self { index, state, roster, busy_times, refuses, is_older, pool_uuid, open_by, .. } = self;
        if self.is_absent {
            return Err(PoolRefusal::NotFound);
        }
        Ok(match request {
            Request::Open { access: OpenFor::Write, .. } | Request::Create { .. } if *busy_times > 0 => {
                *busy_times -= 1;
                return Err(PoolRefusal::Busy);
            }
            Request::Open { .. } | Request::TakeOver { .. } | Request::Create { .. } => match refuses {
                Some(refusal) => return Err(*refusal),
                None => Reply::Opened {
                    pool_uuid: *pool_uuid,
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
                        Enclosed { roster: roster.clone(), domain: Some(None), intent: Some(vec![7]), protection: None }
                    }),
                },
            },
            Request::Mark { mark: 0 } => Reply::Marked,
            Request::Info { name } => Reply::Info(Box::new(PoolInfo {
                name: name.clone(),
                header: Header {
                    format: PoolFormat::Three,
                    layout: pmof_control::FileLayout::default(),
                    compatible_features: 0,
                    pool_uuid: *pool_uuid,
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
                open_by: open_by.map(|name| name.to_string()),
            })),
            Request::Status => Reply::Status(Box::new(TargetStatus { root: self.root.to_owned(), ..status() })),
            Request::WriterStatus { .. } => Reply::WriterStatus(
                open_by.map(|scrubbed_unix_ms| WriterStatus { scrubbed_unix_ms, ..WriterStatus::default() }),
            ),
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
