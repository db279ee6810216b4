//! Targets with their media, and the network between them and writers; what goes wrong in them.

use std::{
    collections::{BTreeMap, VecDeque},
    task::Poll,
};

use pmof_control::{PoolState, Reply, Request};

use super::{
    names,
    plan::{Control, PAGES, WORDS},
    random::Random,
    truth::{Page, Pages, Truth},
};
use crate::lineage::{Found, agree};

/// What goes wrong, each counted when it has really changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fault {
    WriterCrashed,
    WriterPaused,
    TargetLostPower,
    UnflushedWordLost,
    UnflushedWordKept,
    PageTorn,
    TargetKilled,
    CutAtWriter,
    CutAtTarget,
    CutBehindRequest,
    LateNotice,
    RequestsBlocked,
    RepliesBlocked,
    BothWaysBlocked,
    MessageDelayed,
    MessageOvertaken,
    ControlDuplicated,
    ClockJumped,
    OlderCopyRestored,
    FlushFailed,
    DiskFull,
    StateNotWritten,
    StateWrittenAndRefused,
    OpeningAbandoned,
    OpenedWithoutAll,
    TakenOver,
    FencedWhileOpening,
    CatchUpInterrupted,
    ChangeAbandoned,
    AcknowledgedDegraded,
    NotAcknowledged,
    WrittenWhileCatchingUp,
    SlowLeftBehind,
    SlowAsked,
    SlowTakenBack,
    NoRoom,
    LostBeforeForgotten,
    SuccessorMet,
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    /// Opens the replica; `takes_over`: whoever else has it open is fenced first.
    Open {
        takes_over: bool,
    },
    Tell(Request),
    Write {
        page: usize,
        words: Page,
    },
    Flush,
    Read,
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Opened(PoolState),
    Busy,
    Told(Reply),
    Flushed,
    Pages(Pages),
    Refused,
}

/// A replica on its target: what is durable, what the page cache shows, and who has it open.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault that may have met it")]
pub(super) struct Target {
    pub(super) state: PoolState,
    pub(super) durable: Pages,
    pub(super) cache: Pages,
    /// The connection that has it open.
    pub(super) open_by: Option<usize>,
    has_begun: bool,
    pub(super) is_up: bool,
    copies: Vec<(PoolState, Pages)>,
    /// The next flush fails; the next state is not written, or written and refused.
    fails_flush: bool,
    fails_state: bool,
    /// A flush failed: all that follow do, until the replica is opened anew.
    is_poisoned: bool,
    /// What is flushed finds no room, or not for all.
    is_full: bool,
    /// It was put back to an older copy, and does not know yet that it is behind.
    pub(super) restored: Option<Restored>,
    /// How often it was put back.
    restored_times: u64,
}

/// What was put back to an older copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restored {
    /// A replica in sync by this epoch.
    InSync { epoch: uuid::Uuid },
    /// One that was behind already, or has been when the copy was made.
    Voter,
}

/// A connection of a writer to a target. Both ends learn of its end by themselves.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) writer: usize,
    pub(super) target: usize,
    pub(super) is_open_here: bool,
    pub(super) is_open_there: bool,
    /// With the steps at which they were sent.
    requests: VecDeque<(u64, u64, Message)>,
    replies: VecDeque<(u64, Answer)>,
    /// How often its target had been put back to an older copy when it was made.
    restored_times: u64,
    /// The next control message arrives twice.
    duplicates: bool,
}

/// Which way between a writer and a target nothing goes.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    requests_blocked: bool,
    replies_blocked: bool,
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) step: u64,
    pub(super) targets: Vec<Target>,
    pub(super) connections: Vec<Connection>,
    links: Vec<Vec<Link>>,
    answers: BTreeMap<u64, Answer>,
    next_question: u64,
    pub(super) truth: Truth,
    pub(super) faults: BTreeMap<Fault, u64>,
    pub(super) control: Option<Control>,
    /// Replicas that readers have read.
    pub(super) readers: u64,
    /// Nothing goes wrong any more.
    pub(super) is_faultless: bool,
    /// What happened, where it is asked for.
    pub(super) trace: Option<Vec<String>>,
}

/// Something of the network that can happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Deliver(usize),
    Return(usize),
    NoticeThere(usize),
    NoticeHere(usize),
    TimeOut(usize),
}

impl World {
    pub(super) fn new(seed: u64, target_count: usize, writer_count: usize, control: Option<Control>) -> Self {
        let made = PoolState::new(uuid::Uuid::new_v4(), target_count as u16).closed();
        names::forget();
        let target = Target {
            state: made,
            durable: [[0; WORDS]; PAGES],
            cache: [[0; WORDS]; PAGES],
            open_by: None,
            has_begun: false,
            is_up: true,
            copies: Vec::new(),
            fails_flush: false,
            fails_state: false,
            is_poisoned: false,
            is_full: false,
            restored: None,
            restored_times: 0,
        };
        Self {
            random: Random::new(seed),
            step: 0,
            targets: vec![target; target_count],
            connections: Vec::new(),
            links: vec![vec![Link::default(); target_count]; writer_count],
            answers: BTreeMap::new(),
            next_question: 0,
            truth: Truth::new(),
            faults: BTreeMap::new(),
            control,
            is_faultless: false,
            readers: 0,
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

    /// `None`: the target is not reached.
    pub(super) fn connect(&mut self, writer: usize, target: usize) -> Option<usize> {
        let link = self.links[writer][target];
        if !self.targets[target].is_up
            || link.requests_blocked
            || link.replies_blocked
            || !self.may_judge(writer, target)
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
            duplicates: false,
        });
        Some(self.connections.len() - 1)
    }

    /// What an older copy is told by, as promised: of a replica in sync, by one other that the writer has, which knows of the epoch and of the
    /// marks since; of one that is behind, whose word on epochs counts, by all others together.
    fn may_judge(&self, writer: usize, target: usize) -> bool {
        let is_own = |connection: &Connection| connection.writer == writer && connection.is_open_here;
        let has = |of: &Target| of.open_by.is_some_and(|open_by| is_own(&self.connections[open_by]));
        let mut others = self.targets.iter().enumerate().filter(|(other, _)| *other != target).map(|(_, other)| other);
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

    /// Something of the network happens.
    pub(super) fn advance(&mut self) {
        let mut events = Vec::new();
        for (index, connection) in self.connections.iter().enumerate() {
            let link = self.links[connection.writer][connection.target];
            let (here, there) = (connection.is_open_here, connection.is_open_there);
            if there && !connection.requests.is_empty() && !link.requests_blocked {
                events.extend([Event::Deliver(index); 6]);
            }
            if here && !connection.replies.is_empty() && !link.replies_blocked {
                events.extend([Event::Return(index); 6]);
            }
            if !here && there {
                events.extend([Event::NoticeThere(index); 2]);
            }
            if here && !there {
                events.extend([Event::NoticeHere(index); 2]);
            }
            let is_blocked = link.requests_blocked || link.replies_blocked;
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

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver(index) => {
                let Some((question, sent, message)) = self.connections[index].requests.pop_front() else { return };
                let (writer, target) = (self.connections[index].writer, self.connections[index].target);
                self.count_order(writer, question, sent);
                if self.connections[index].duplicates && may_come_twice(&message) {
                    self.connections[index].duplicates = false;
                    self.count(Fault::ControlDuplicated);
                    let _ = self.handle(index, &message);
                }
                let answer = self.handle(index, &message);
                self.note(|| {
                    let answer = match &answer {
                        Some(Answer::Opened(state)) => brief(state),
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

    /// What it is to be late, or before what was sent first.
    fn count_order(&mut self, writer: usize, question: u64, sent: u64) {
        if self.step > sent + DELAYED_STEPS {
            self.count(Fault::MessageDelayed);
        }
        let is_older = |connection: &&Connection| {
            let of_writer = connection.writer == writer && connection.is_open_there;
            of_writer && connection.requests.front().is_some_and(|(first, ..)| *first < question)
        };
        if self.connections.iter().any(|connection| is_older(&connection)) {
            self.count(Fault::MessageOvertaken);
        }
    }

    fn end_there(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if std::mem::replace(&mut connection.is_open_there, false) && !connection.requests.is_empty() {
            connection.requests.clear();
        }
        let target = &mut self.targets[connection.target];
        if target.open_by == Some(index) {
            target.open_by = None;
        }
    }

    fn handle(&mut self, index: usize, message: &Message) -> Option<Answer> {
        let number = self.connections[index].target;
        let (writer, is_left) = (self.connections[index].writer, !self.connections[index].is_open_here);
        let may_judge = self.may_judge(writer, number);
        let target = &mut self.targets[number];
        if let Message::Open { takes_over } = message {
            let holder = target.open_by;
            if (holder.is_some() && !takes_over) || !may_judge {
                if is_left || holder.is_some_and(|by| !self.connections[by].is_open_here) {
                    self.count(Fault::LateNotice);
                }
                return Some(Answer::Busy);
            }
            if let Some(holder) = holder {
                self.count(Fault::TakenOver);
                if self.control != Some(Control::NotFenced) {
                    self.end_there(holder);
                }
            }
            let target = &mut self.targets[number];
            target.open_by = Some(index);
            (target.has_begun, target.is_poisoned) = (false, false);
            if target.state.is_open {
                target.durable = target.cache;
            }
            return Some(Answer::Opened(target.state.clone()));
        }
        if target.open_by != Some(index) && self.control != Some(Control::NotFenced) {
            return Some(Answer::Refused);
        }
        match message {
            Message::Open { .. } => None,
            Message::Write { page, words } => {
                target.cache[*page] = *words;
                None
            }
            Message::Flush if target.is_poisoned => Some(Answer::Refused),
            Message::Flush if std::mem::take(&mut target.fails_flush) => {
                target.is_poisoned = true;
                // The kernel forgets what it could not write.
                target.cache = target.durable;
                self.count(Fault::FlushFailed);
                Some(Answer::Refused)
            }
            Message::Flush if target.is_full && target.cache != target.durable => {
                target.is_poisoned = true;
                self.count(Fault::DiskFull);
                self.drop_unflushed(number);
                Some(Answer::Refused)
            }
            Message::Flush => {
                target.durable = target.cache;
                Some(Answer::Flushed)
            }
            Message::Read => Some(Answer::Pages(target.cache)),
            Message::Tell(request) => Some(self.tell(number, request)),
        }
    }

    /// The target's own change of its state, by the methods that it ships.
    fn tell(&mut self, number: usize, request: &Request) -> Answer {
        let target = &mut self.targets[number];
        let (state, reply) = match request {
            Request::Begin { opening, epoch, ancestors } => {
                (Some(target.state.begun(number as u16, *epoch, *opening, ancestors)), Reply::Begun)
            }
            Request::Confirm { epoch } => match target.state.confirmed(number as u16, *epoch) {
                Some(state) => (Some(state), Reply::Confirmed),
                None => return Answer::Refused,
            },
            Request::Mark { mark } => (target.state.raised(*mark), Reply::Marked),
            Request::Close { in_order } => {
                target.open_by = None;
                let closes = *in_order && target.has_begun && target.state.is_open && !target.is_poisoned;
                (closes.then(|| target.state.closed()), Reply::Closed)
            }
            _ => return Answer::Refused,
        };
        let Some(state) = state else { return Answer::Told(reply) };
        if matches!(request, Request::Close { .. }) {
            target.durable = target.cache;
        } else if std::mem::take(&mut target.fails_state) {
            let is_written = self.random.once_in(2);
            self.count(if is_written { Fault::StateWrittenAndRefused } else { Fault::StateNotWritten });
            if is_written {
                self.targets[number].state = state;
            }
            return Answer::Refused;
        }
        if matches!(request, Request::Begin { .. }) {
            target.has_begun = true;
        }
        if matches!(request, Request::Confirm { .. }) {
            target.restored = None;
        }
        target.state = state;
        Answer::Told(reply)
    }

    /// One thing goes wrong with a target or with the network.
    pub(super) fn fail_something(&mut self) {
        let (target, kind) = (self.random.below(self.targets.len()), self.random.below(32));
        match kind {
            0..=2 => self.stop(target, true),
            3 => self.stop(target, false),
            4..=6 => self.cut(true),
            7..=9 => self.cut(false),
            10..=12 => self.block(target),
            13 | 20..=23 | 28.. => self.restore(target),
            14 => self.targets[target].fails_flush = true,
            15 => self.targets[target].fails_state = true,
            24 => self.targets[target].is_full = true,
            25 => self.jump_clock(),
            26 | 27 => self.duplicate(),
            _ => self.copy(target),
        }
        // Most faults end after a while.
        let other = self.random.below(self.targets.len());
        if self.random.once_in(2) {
            (self.targets[other].is_up, self.targets[other].is_full) = (true, false);
        }
        if self.random.once_in(2) {
            let writer = self.random.below(self.links.len());
            self.links[writer] = vec![Link::default(); self.targets.len()];
        }
    }

    /// All that was broken works again.
    pub(super) fn heal(&mut self) {
        self.is_faultless = true;
        for target in &mut self.targets {
            (target.is_up, target.fails_flush, target.fails_state, target.is_full) = (true, false, false, false);
        }
        for links in &mut self.links {
            links.fill(Link::default());
        }
    }

    /// Stops a target: its process, or its machine.
    fn stop(&mut self, number: usize, loses_power: bool) {
        if !std::mem::replace(&mut self.targets[number].is_up, false) {
            return;
        }
        self.count(if loses_power { Fault::TargetLostPower } else { Fault::TargetKilled });
        self.note(|| format!("t{number} stops, loses power: {loses_power}"));
        for index in 0..self.connections.len() {
            if self.connections[index].target == number && self.connections[index].is_open_there {
                self.end_there(index);
                // Its answers may be on their way.
                if self.random.once_in(2) {
                    self.connections[index].replies.clear();
                }
            }
        }
        if loses_power {
            self.drop_unflushed(number);
        }
    }

    /// Of what is not durable some words become so, and others are gone.
    fn drop_unflushed(&mut self, number: usize) {
        for page in 0..PAGES {
            let mut fates = [false; 2];
            for word in 0..WORDS {
                let target = &self.targets[number];
                if target.durable[page][word] == target.cache[page][word] {
                    continue;
                }
                let is_kept = self.random.once_in(2);
                fates[usize::from(is_kept)] = true;
                let target = &mut self.targets[number];
                if is_kept {
                    target.durable[page][word] = target.cache[page][word];
                } else {
                    target.cache[page][word] = target.durable[page][word];
                }
                self.count(if is_kept { Fault::UnflushedWordKept } else { Fault::UnflushedWordLost });
            }
            if fates == [true; 2] {
                self.count(Fault::PageTorn);
            }
        }
    }

    /// A writer takes all that it waits for to be late.
    fn jump_clock(&mut self) {
        let writer = self.random.below(self.links.len());
        let waits = |connection: &Connection| {
            let has_asked = !connection.requests.is_empty() || !connection.replies.is_empty();
            connection.writer == writer && connection.is_open_here && has_asked
        };
        for index in 0..self.connections.len() {
            if waits(&self.connections[index]) {
                self.count(Fault::ClockJumped);
                self.note(|| format!("connection {index} is given up: a clock has jumped"));
                self.close_here(index);
            }
        }
    }

    /// The next control message of a connection arrives twice, as where a request is sent again over a new one.
    fn duplicate(&mut self) {
        let open = self.connections.iter_mut().filter(|connection| connection.is_open_here && connection.is_open_there);
        let mut open: Vec<_> = open.collect();
        if !open.is_empty() {
            let at = self.random.below(open.len());
            open[at].duplicates = true;
        }
    }

    fn cut(&mut self, at_writer: bool) {
        let open = |connection: &Connection| connection.is_open_here && connection.is_open_there;
        let open: Vec<_> = (0..self.connections.len()).filter(|index| open(&self.connections[*index])).collect();
        if open.is_empty() {
            return;
        }
        let index = open[self.random.below(open.len())];
        let has_request = !self.connections[index].requests.is_empty();
        self.note(|| format!("connection {index} is cut, at the writer: {at_writer}"));
        if at_writer {
            self.count(Fault::CutAtWriter);
            self.close_here(index);
            return;
        }
        if has_request && self.random.once_in(2) {
            // The request arrives, its answer does not.
            self.happen(Event::Deliver(index));
            self.count(Fault::CutBehindRequest);
        }
        self.count(Fault::CutAtTarget);
        self.connections[index].replies.clear();
        self.end_there(index);
    }

    fn block(&mut self, target: usize) {
        let (writer, which) = (self.random.below(self.links.len()), self.random.below(3));
        self.count([Fault::RequestsBlocked, Fault::RepliesBlocked, Fault::BothWaysBlocked][which]);
        self.note(|| format!("between w{writer} and t{target} nothing goes: {which}"));
        self.links[writer][target] = Link { requests_blocked: which != 1, replies_blocked: which != 0 };
    }

    fn copy(&mut self, target: usize) {
        let target = &mut self.targets[target];
        target.copies.push((target.state.clone(), target.durable));
    }

    /// Whether the others have all that a target has, and agree on it with the older copy beside them. What no replica has is lost for good,
    /// and a pool of which most replicas are older copies is for its owner to judge.
    fn is_needless(&self, number: usize, copy: &PoolState) -> bool {
        let made = self.targets.len() as u16;
        // With a mark, too, that is on its way.
        [0, 1].iter().all(|raised| {
            let state = |target: &Target| PoolState { mark: target.state.mark + raised, ..target.state.clone() };
            let states: Vec<_> = self.targets.iter().map(state).collect();
            let found = states.iter().enumerate().map(|(index, state)| Found { index: index as u16, state });
            let now: Vec<_> = found.collect();
            let mut later = now.clone();
            later[number].state = copy;
            let (Ok(now), Ok(mut with_copy)) = (agree(&now, made), agree(&later, made)) else { return false };
            with_copy.put_stale_behind(&later);
            let has_others = with_copy.in_sync.iter().any(|source| *source != number);
            let is_same = now.base.ancestors.first() == with_copy.base.ancestors.first();
            // A change under way may yet be confirmed: without the target's vote, or with it as a member.
            let is_settled = states.iter().all(|state| state.is_confirmed);
            is_settled && has_others && is_same && with_copy.is_enough(&later, (1 << made) - 1, true)
        })
    }

    /// Puts a target's file back to a copy that is older than its marks can explain.
    fn restore(&mut self, number: usize) {
        let target = &self.targets[number];
        let is_older = |(state, _): &&(PoolState, Pages)| state.mark + 2 <= target.state.mark;
        let Some((state, pages)) = target.copies.iter().rfind(is_older).cloned() else { return };
        if self.targets.iter().any(|target| target.restored.is_some()) || !self.is_needless(number, &state) {
            return;
        }
        self.stop(number, true);
        self.count(Fault::OlderCopyRestored);
        self.note(|| format!("t{number} is put back to {} {pages:?}", brief(&state)));
        let target = &mut self.targets[number];
        let is_behind = |state: &PoolState| state.is_behind_own(number as u16) || state.is_behind;
        let restored = if is_behind(&state) || is_behind(&target.state) {
            Restored::Voter
        } else {
            let parent = target.state.ancestors.first().filter(|_| !target.state.is_confirmed);
            Restored::InSync { epoch: parent.unwrap_or(&target.state.epoch).id }
        };
        (target.state, target.durable, target.cache) = (state, pages, pages);
        target.restored_times += 1;
        (target.is_up, target.restored) = (true, Some(restored));
    }
}

/// A message that takes longer is delayed.
const DELAYED_STEPS: u64 = 30;

/// Whether a target may be told this again.
fn may_come_twice(message: &Message) -> bool {
    matches!(message, Message::Tell(Request::Begin { .. } | Request::Confirm { .. } | Request::Mark { .. }))
}

fn brief_message(message: &Message) -> String {
    match message {
        Message::Tell(Request::Begin { epoch, .. }) => format!("Begin {}", names::of(epoch)),
        Message::Tell(Request::Confirm { epoch }) => format!("Confirm {}", names::of_id(*epoch)),
        other => format!("{other:?}"),
    }
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
