//! The world that writers live in: targets, the network between them, and the truth.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
    task::Poll,
};

use pmof_control::{OpenFor, PoolState, Reply, Request, Role, Roster, RosterMember, SettledVersion};
use pmof_mem::Evidence;
use pmof_replication::keeper::KeptBy;
use pmof_target::engine::OpenReplica;

use super::{
    areas::Areas,
    faults::Fault,
    keeper::{LostJoin, Outside},
    media::{Media, TargetRules},
    names,
    plan::{Control, Plan},
    random::Random,
    target::{Answer, Message, Restored, Target},
    truth::{Pages, Truth},
};
use crate::{
    PoolUrl, ReplicaDomain,
    roster::{FoundMember, made},
};

/// A connection of a writer to a target. Both ends learn of its end by themselves.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) writer: usize,
    pub(super) target: usize,
    pub(super) is_open_here: bool,
    pub(super) is_open_there: bool,
    /// With the steps at which they were sent.
    pub(super) requests: VecDeque<(u64, u64, Message)>,
    pub(super) replies: VecDeque<(u64, Answer)>,
    /// How often its target had been put back to an older copy when it was made.
    restored_times: u64,
    /// The version of its requests, at the target.
    pub(super) version: SettledVersion,
    /// The replica that it has open for reading.
    pub(super) reading: Option<OpenReplica<TargetRules>>,
    /// The next control message arrives twice.
    pub(super) duplicates: bool,
}

/// Which way between a writer and a target nothing goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    pub(super) requests_blocked: bool,
    pub(super) replies_blocked: bool,
}

/// By how much a clock that is right is ahead of the steps.
pub(super) const WALL_CLOCK_MS: u64 = 2000;

/// A writer's clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Milliseconds in a hundred steps.
    pub(super) rate: u64,
    /// How far the time of day is ahead of that.
    pub(super) ahead_ms: u64,
}

impl Clock {
    /// One that drifts, mostly.
    fn any(random: &mut Random) -> Self {
        Self { rate: [60, 90, 100, 110, 170][random.below(5)], ahead_ms: WALL_CLOCK_MS }
    }
}

pub(super) struct World {
    pub(super) random: Random,
    /// Of what happens to state pages.
    pub(super) decay: Random,
    pub(super) step: u64,
    pub(super) targets: Vec<Target>,
    /// Where each of them is found.
    pub(super) urls: Vec<Arc<PoolUrl>>,
    /// The failure domains that they are in; `None`: it is unknown.
    domains: Vec<Option<u16>>,
    /// Where replicas have been that somebody might ask for.
    pub(super) known: Vec<bool>,
    pub(super) plan: Plan,
    /// An operator of the writer is changing the members.
    pub(super) is_changing: Vec<bool>,
    pub(super) connections: Vec<Connection>,
    /// Those that are open at either end.
    live: Vec<usize>,
    pub(super) links: Vec<Vec<Link>>,
    /// Of each writer.
    pub(super) clocks: Vec<Clock>,
    answers: BTreeMap<u64, Answer>,
    next_question: u64,
    pub(super) truth: Truth,
    /// That of the epochs, where it is outside of the members.
    pub(super) keeper: Option<Outside>,
    pub(super) lost_join: Option<LostJoin>,
    pub(super) faults: BTreeMap<Fault, u64>,
    pub(super) control: Option<Control>,
    /// What replicas held when they told their states to the process that looks at the pool.
    pub(super) looked: BTreeMap<usize, Pages>,
    /// Replicas that readers have read.
    pub(super) readers: u64,
    /// How often a byte has rotted.
    pub(super) rotten: u64,
    /// Nothing goes wrong any more.
    pub(super) is_faultless: bool,
    /// The asynchronous member that a pool was made of.
    pub(super) promoted: Option<usize>,
    /// From now on no member is lost.
    pub(super) is_at_rest: bool,
    /// What happened, where it is asked for.
    pub(super) trace: Option<Vec<String>>,
}

/// Something of the network that can happen next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Deliver(usize),
    Return(usize),
    NoticeThere(usize),
    NoticeHere(usize),
    TimeOut(usize),
}

impl World {
    pub(super) fn new(seed: u64, plan: Plan, control: Option<Control>) -> Self {
        names::begin(seed);
        let url = |machine: usize| format!("tcp://t{machine}:1/p").parse().map(Arc::new).expect("an address");
        let urls: Vec<Arc<PoolUrl>> = (0..plan.machines).map(url).collect();
        let state = PoolState::new(names::fresh(), plan.made as u16).closed();
        let target = |machine: usize| Target::new(machine as u16, state.clone(), machine < plan.made);
        let mut targets: Vec<_> = (0..plan.machines).map(target).collect();
        let of = |machine: usize| FoundMember {
            index: machine as u16,
            replica_uuid: targets[machine].replica_uuid,
            url: Arc::clone(&urls[machine]),
        };
        let members: Vec<_> = (0..plan.made).map(of).collect();
        let mut roster = made(&members);
        if let Some(machine) = plan.asynchronous {
            let (index, target) = (plan.made as u16, &mut targets[machine]);
            let (role, replica_uuid) = (Role::Asynchronous, target.replica_uuid);
            let url = urls[machine].to_string();
            let of_roster = RosterMember { index, role, replica_uuid, url, domain: String::new() };
            roster = pmof_replication::roster::with_uncounted(&roster, index, Some(of_roster));
            (target.is_there, target.index, target.areas) = (true, index, Some(Box::new(Areas::new())));
            // It knows that it is behind.
            target.state.is_behind = true;
        }
        let roster = Rc::new(roster);
        for target in targets.iter_mut().filter(|target| target.is_there) {
            target.media = Media::made(&target.state, Some(&roster));
            target.roster = Some(Rc::clone(&roster));
        }
        let mut random = Random::new(seed);
        let mut of_domains = Random::new(seed.rotate_left(20));
        let mut domain = |_| (!of_domains.once_in(6)).then(|| of_domains.below(3) as u16);
        Self {
            domains: (0..plan.machines).map(&mut domain).collect(),
            clocks: (0..plan.writers + 2).map(|_| Clock::any(&mut random)).collect(),
            random,
            decay: Random::new(seed.rotate_left(16)),
            step: 0,
            targets,
            urls,
            known: (0..plan.machines).map(|machine| machine < plan.made).collect(),
            connections: Vec::new(),
            live: Vec::new(),
            links: vec![vec![Link::default(); plan.machines]; plan.writers + 2],
            is_changing: vec![false; plan.writers + 1],
            plan,
            answers: BTreeMap::new(),
            next_question: 0,
            truth: Truth::new(),
            keeper: (plan.keeper == KeptBy::Outside).then(|| Outside::new(seed, &state)),
            faults: BTreeMap::new(),
            control,
            rotten: 0,
            is_faultless: false,
            promoted: None,
            is_at_rest: false,
            looked: BTreeMap::new(),
            readers: 0,
            lost_join: None,
            trace: None,
        }
    }

    pub(super) fn count(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let step = self.step;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{step:>5} {}", what()));
        }
    }

    /// The milliseconds that have passed for a writer.
    pub(super) fn passed_ms(&self, writer: usize) -> u64 {
        self.step * self.clocks[writer].rate / 100
    }

    /// The time of day at a writer.
    pub(super) fn unix_ms(&self, writer: usize) -> u64 {
        self.passed_ms(writer) + self.clocks[writer].ahead_ms
    }

    /// The process that looks at the pool, behind the writers and the one that writes when nothing fails.
    pub(super) fn looker(&self) -> usize {
        self.plan.writers + 1
    }

    /// The failure domain of a target, by its number in the pool.
    pub(super) fn domain(&self, target: usize) -> Option<ReplicaDomain> {
        self.domains[target].map(|number| ReplicaDomain { number, evidence: Evidence::Declared })
    }

    /// `None`: the target is not reached.
    pub(super) fn connect(&mut self, writer: usize, target: usize) -> Option<usize> {
        if self.may_judge(writer, target) { self.connect_to_open(writer, target) } else { None }
    }

    /// The same for an opening: what an older copy is to be told by is asked at the same time.
    pub(super) fn connect_to_open(&mut self, writer: usize, target: usize) -> Option<usize> {
        let link = self.links[writer][target];
        if !self.targets[target].is_up
            || self.targets[target].is_paused
            || link.requests_blocked
            || link.replies_blocked
        {
            return None;
        }
        let (requests, replies) = (VecDeque::new(), VecDeque::new());
        self.connections.push(Connection {
            writer,
            target,
            is_open_here: true,
            is_open_there: true,
            requests,
            replies,
            restored_times: self.targets[target].restored_times,
            version: SettledVersion::default(),
            reading: None,
            duplicates: false,
        });
        self.live.push(self.connections.len() - 1);
        Some(self.connections.len() - 1)
    }

    /// What an older copy is told by, as promised: of a replica in sync, by one other that the writer has, which knows of the epoch and of the
    /// marks since; of one that is behind, whose word on epochs counts, by all others together.
    pub(super) fn may_judge(&self, writer: usize, target: usize) -> bool {
        let is_own = |connection: &Connection| connection.writer == writer && connection.is_open_here;
        let has = |of: &Target| of.open_by().is_some_and(|open_by| is_own(&self.connections[open_by]));
        let mut others = self.targets[..self.plan.made]
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != target)
            .map(|(_, other)| other);
        let (of, mark) = (&self.targets[target], self.targets[target].state.mark);
        let knows =
            |state: &PoolState, epoch| state.epoch.id == epoch || state.ancestors.iter().any(|of| of.id == epoch);
        match of.restored {
            None => true,
            Some(Restored::InSync { epoch }) => {
                others.any(|other| has(other) && other.state.mark >= mark + 2 && knows(&other.state, epoch))
            }
            Some(Restored::Voter) => others.all(has),
        }
    }

    /// Whether the replica was put back to an older copy since this connection to it was made.
    pub(super) fn was_put_back(&self, connection: usize) -> bool {
        let connection = &self.connections[connection];
        self.targets[connection.target].restored_times != connection.restored_times
    }

    pub(super) fn send(&mut self, connection: usize, message: Message) -> u64 {
        self.next_question += 1;
        if self.connections[connection].is_open_here {
            self.connections[connection].requests.push_back((self.next_question, self.step, message));
        }
        self.next_question
    }

    /// `Ready(None)`: the connection is lost.
    pub(super) fn answer(&mut self, connection: usize, question: u64) -> Poll<Option<Answer>> {
        match self.answers.remove(&question) {
            Some(answer) => Poll::Ready(Some(answer)),
            None if self.connections[connection].is_open_here => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    pub(super) fn close_here(&mut self, connection: usize) {
        self.connections[connection].is_open_here = false;
    }

    /// Requests arrive at the keeper of epochs.
    pub(super) fn advance_keeper(&mut self) {
        let (step, control) = (self.step, self.control);
        let done = self.keeper.as_mut().map(|keeper| keeper.advance(step, control));
        for (text, fault) in done.into_iter().flatten() {
            if let Some(fault) = fault {
                self.count(fault);
            }
            self.note(|| text);
        }
    }

    /// Something of the network happens.
    pub(super) fn advance(&mut self) {
        let mut events = Vec::new();
        let connections = &self.connections;
        self.live.retain(|index| connections[*index].is_open_here || connections[*index].is_open_there);
        for index in self.live.iter().copied() {
            let connection = &self.connections[index];
            let link = self.links[connection.writer][connection.target];
            let (here, there) = (connection.is_open_here, connection.is_open_there);
            let is_paused = self.targets[connection.target].is_paused || self.is_held_back(index);
            let is_on_disk = connection.requests.front().is_some_and(|(question, sent, message)| {
                self.step < sent + self.disk_steps(connection.target, *question, message)
            });
            if there && !is_paused && !is_on_disk && !connection.requests.is_empty() && !link.requests_blocked {
                events.extend([Event::Deliver(index); 6]);
            }
            if here && !connection.replies.is_empty() && !link.replies_blocked {
                events.extend([Event::Return(index); 6]);
            }
            if !here && there && !is_paused {
                events.extend([Event::NoticeThere(index); 2]);
            }
            if here && !there {
                events.extend([Event::NoticeHere(index); 2]);
            }
            let is_blocked = link.requests_blocked || link.replies_blocked || is_paused;
            if here && is_blocked && !(connection.requests.is_empty() && connection.replies.is_empty()) {
                events.push(Event::TimeOut(index));
            }
        }
        if events.is_empty() {
            return;
        }
        let event = events[self.random.below(events.len())];
        self.happen(event);
    }

    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver(index) => {
                let Some((question, sent, message)) = self.connections[index].requests.pop_front() else { return };
                let (writer, target) = (self.connections[index].writer, self.connections[index].target);
                self.count_order(writer, question, sent);
                if sent < self.targets[target].resumed_at {
                    self.count(Fault::ServedAfterPause);
                }
                if self.disk_steps(target, question, &message) > 0 {
                    self.count(Fault::DiskSlow);
                }
                if self.connections[index].duplicates && may_come_twice(&message) {
                    self.connections[index].duplicates = false;
                    self.count(Fault::ControlDuplicated);
                    let _ = self.handle(index, &message);
                }
                let answer = self.handle(index, &message);
                self.note(|| {
                    let answer = match &answer {
                        Some(Answer::Encoded(reply)) => match Reply::decode(reply) {
                            Ok((_, Reply::Opened { state, .. })) => brief(&state),
                            Ok((_, Reply::Info(info))) => brief(&info.state),
                            reply => format!("{reply:?}"),
                        },
                        other => format!("{other:?}"),
                    };
                    format!("w{writer} -> t{target} {}: {answer}", brief_message(&message))
                });
                self.connections[index].replies.extend(answer.map(|answer| (question, answer)));
            }
            Event::Return(index) => {
                let Some((question, answer)) = self.connections[index].replies.pop_front() else { return };
                self.answers.insert(question, answer);
            }
            Event::NoticeThere(index) => self.end_there(index),
            Event::NoticeHere(index) | Event::TimeOut(index) => self.close_here(index),
        }
    }

    /// The steps that a flush takes, or a change of a state: on some disks, and now and then on all.
    fn disk_steps(&self, target: usize, question: u64, message: &Message) -> u64 {
        if self.is_faultless || matches!(message, Message::Write { .. } | Message::Read) {
            return 0;
        }
        let now_and_then = if question % SLOW_RATE == 0 { question / SLOW_RATE % SLOW_STEPS } else { 0 };
        now_and_then.max(self.targets[target].disk_steps)
    }

    /// What it is to be late, or before what was sent first.
    fn count_order(&mut self, writer: usize, question: u64, sent: u64) {
        if self.step > sent + DELAYED_STEPS {
            self.count(Fault::MessageDelayed);
        }
        let is_older = |connection: &&Connection| {
            let of_writer = connection.writer == writer && connection.is_open_there;
            of_writer && connection.requests.front().is_some_and(|(first, ..)| *first < question)
        };
        if self.live.iter().any(|index| is_older(&&self.connections[*index])) {
            self.count(Fault::MessageOvertaken);
        }
    }

    /// Whether a request to open a replica, or to begin an epoch there, waits until its writer has the others that expose an older copy.
    fn is_held_back(&self, index: usize) -> bool {
        let connection = &self.connections[index];
        let opens = |message: &Message| {
            let Message::Encoded(request) = message else { return false };
            match Request::decode(request) {
                Ok((_, Request::Open { access, .. })) => access == OpenFor::Write,
                // Of an opening, and not of a return.
                Ok((_, Request::TakeOver { silent_ms, .. })) => silent_ms != u64::MAX,
                // Another may be gone since the replica was opened. Of a writer that is gone the epoch is only announced.
                Ok((_, Request::Begin { .. })) => connection.is_open_here,
                _ => false,
            }
        };
        let is_older = self.targets[connection.target].restored.is_some();
        let asks = is_older && connection.requests.front().is_some_and(|(.., message)| opens(message));
        asks && !self.may_judge(connection.writer, connection.target)
    }

    /// Whether a target serves a connection, and answers come back.
    pub(super) fn is_served(&self, index: usize) -> bool {
        let connection = &self.connections[index];
        let (target, link) = (&self.targets[connection.target], self.links[connection.writer][connection.target]);
        let is_open = connection.is_open_here && connection.is_open_there && target.open_by() == Some(index);
        is_open && target.is_up && !target.is_paused && !link.requests_blocked && !link.replies_blocked
    }

    pub(super) fn end_there(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if std::mem::replace(&mut connection.is_open_there, false) && !connection.requests.is_empty() {
            connection.requests.clear();
        }
        let target = &mut self.targets[connection.target];
        let target_number = connection.target;
        if target.open_by() == Some(index) {
            target.open = None;
            self.read_media(target_number);
        }
    }
}

/// One of so many flushes and requests takes a disk fewer steps than this.
const SLOW_RATE: u64 = 12;
const SLOW_STEPS: u64 = 60;

/// A message that takes longer is delayed.
const DELAYED_STEPS: u64 = 30;

/// Whether a target may be told this again.
fn may_come_twice(message: &Message) -> bool {
    let Message::Encoded(request) = message else { return false };
    let request = Request::decode(request).map(|(_, request)| request);
    matches!(request, Ok(Request::Begin { .. } | Request::Confirm { .. } | Request::Mark { .. }))
}

fn brief_message(message: &Message) -> String {
    match message {
        Message::Encoded(request) => match Request::decode(request) {
            Ok((_, Request::Begin { epoch, .. })) => format!("Begin {}", names::of(&epoch)),
            Ok((_, Request::Confirm { epoch })) => format!("Confirm {}", names::of_id(epoch)),
            Ok((_, Request::SetRoster { part, .. })) => match Roster::decode(&part.bytes) {
                Ok(roster) => format!("Keep {}", brief_roster(&roster)),
                Err(_) => "Keep a part of a roster".to_owned(),
            },
            Ok((_, request)) => format!("{request:?}"),
            Err(error) => error.to_string(),
        },
        other => format!("{other:?}"),
    }
}

pub(super) fn brief_roster(roster: &Roster) -> String {
    let members: Vec<_> = roster.members.iter().map(|member| (member.index, member.role)).collect();
    let change = roster.change.map(|change| (names::of_id(change.epoch), change.index, change.is_added));
    format!("version {} notes {:x} {members:?} change {change:?}", roster.version, roster.notes)
}

/// A state in a line.
pub(super) fn brief(state: &PoolState) -> String {
    let is = |is: bool, what: &'static str| if is { what } else { "" };
    let ancestors: Vec<_> = state.ancestors.iter().map(names::of).collect();
    let (behind, open) = (is(state.is_behind, " behind"), is(state.is_open, " open"));
    let announced = is(!state.is_confirmed, " announced");
    let (epoch, opening, mark) = (names::of(&state.epoch), state.opening, state.mark);
    format!("{epoch} opening {opening} mark {mark}{announced}{behind}{open} after {}", ancestors.join(" "))
}
