//! A writer of the model, as `pool/opening.rs` and `pool/epochs.rs` have it, with their own decisions.

use std::collections::VecDeque;

use pmof_control::{PoolState, Request};
use uuid::Uuid;

use super::{Action, Broken, Key, World, bits};
use crate::{
    lineage::{Found, agree, of_returning},
    view::{Change, Introduction, Positions, Rule, Step, View},
};

/// Where a writer is.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    Away,
    /// It asks one target after the other.
    Opening {
        number: u8,
        next: usize,
        /// The targets that were reached, and what they said.
        opened: Vec<(usize, PoolState)>,
    },
    Open(Box<Session>),
}

/// One opening of the pool. Members have the positions of their targets.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) number: u8,
    view: View,
    pub(super) connected: Positions,
    in_sync: Positions,
    source: usize,
    is_clean: bool,
    pub(super) doing: Doing,
    asked: Asked,
    /// Targets that have yet to answer.
    pub(super) pending: Positions,
    /// Those that have answered what was asked last.
    answered: Positions,
}

#[derive(Clone, Debug)]
pub(super) enum Doing {
    Change(Change, Then),
    Equalize,
    Serve,
    Persist(u8),
    /// Tells a member that is back what it has to know.
    Introduce(usize, VecDeque<Request>),
    Copy(usize),
    Close,
}

/// What a change of the view is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Equalize,
    BeOpen,
    Acknowledge { value: u8, reached: Positions },
    Copy(usize),
    Serve,
    Close,
}

#[derive(Clone, Debug)]
enum Asked {
    Nothing,
    Tell(Request),
    Store(u8),
}

impl Phase {
    pub(super) fn add_to(&self, key: &mut Key) {
        match self {
            Self::Away => key.words.push(0),
            Self::Opening { number, next, opened } => {
                key.words.extend([1, (*number).into(), *next as u64, opened.len() as u64]);
                for (target, state) in opened {
                    key.words.push(*target as u64);
                    key.state(state);
                }
            }
            Self::Open(session) => session.add_to(key),
        }
    }

    pub(super) fn add_own_to(&self, key: &mut Key) {
        if let Self::Open(session) = self {
            key.own(&session.view);
        }
    }
}

impl Session {
    /// As `Opening::judge` does. `None`: those that were opened are not enough.
    pub(super) fn new(world: &World, number: u8, opened: &[(usize, PoolState)]) -> Option<Box<Self>> {
        let made = world.targets.len();
        let found: Vec<_> = opened.iter().map(|(target, state)| Found { index: *target as u16, state }).collect();
        let mut agreement = agree(&found, made as u16).ok()?;
        agreement.put_stale_behind(&found);
        agreement.put_late_behind();
        let is_enough = agreement.is_enough(&found, (1 << made) - 1, true);
        if !is_enough && (world.broken != Some(Broken::TooFewVotes) || agreement.in_sync.is_empty()) {
            return None;
        }
        let mask = |at: &mut dyn Iterator<Item = usize>| at.fold(0, |all, position| all | 1 << opened[position].0);
        let in_sync = mask(&mut agreement.in_sync.iter().copied());
        let foreign = mask(&mut agreement.foreign.iter().map(|(position, _)| *position));
        let connected = opened.iter().fold(0, |all, (target, _)| all | 1 << target) & !foreign;
        let source = opened[agreement.source].0;
        let indexes = (0..made).map(|target| (connected & (1 << target) != 0).then_some(target as u16)).collect();
        let is_clean = agreement.is_clean;
        let view = View::new(Rule::of(made), indexes, agreement.base, agreement.mark, in_sync);
        let doing = Doing::Change(Change::default(), Then::Equalize);
        let (asked, pending, answered) = (Asked::Nothing, 0, 0);
        let session = Self { number, view, connected, in_sync, source, is_clean, doing, asked, pending, answered };
        Some(Box::new(session))
    }

    fn in_use(&self) -> Positions {
        self.in_sync & self.connected
    }

    /// The members in sync by a view that enough know durably, while nobody has taken one over.
    pub(super) fn durable(&self, world: &World) -> Positions {
        let has_all = bits(self.connected).all(|target| world.targets[target].open_by == Some(self.number));
        let is_settled = matches!(self.doing, Doing::Serve) && self.in_use() == self.view.current();
        if has_all && is_settled { self.view.current() } else { 0 }
    }

    fn lose(&mut self, target: usize) {
        self.connected &= !(1 << target);
        self.in_sync &= !(1 << target);
        self.pending &= !(1 << target);
    }

    fn ask(mut self: Box<Self>, asked: Asked, of: Positions) -> Phase {
        (self.asked, self.pending, self.answered) = (asked, of, 0);
        Phase::Open(self)
    }

    pub(super) fn after(mut self: Box<Self>, world: &mut World, action: Action) -> Option<Phase> {
        match action {
            Action::Deliver { target, .. } => {
                if self.arrive(world, target) {
                    self.answered |= 1 << target;
                    self.pending &= !(1 << target);
                } else {
                    self.lose(target);
                }
            }
            Action::Lose { target, arrives, .. } => {
                world.left.losses -= 1;
                if arrives {
                    self.arrive(world, target);
                }
                let holder = &mut world.targets[target].open_by;
                *holder = holder.filter(|holder| *holder != self.number);
                self.lose(target);
            }
            Action::Write { .. } => {
                world.left.writes -= 1;
                world.issued += 1;
                let in_use = self.in_use();
                self.doing = Doing::Persist(world.issued);
                return Some(self.ask(Asked::Store(world.issued), in_use));
            }
            Action::Return { target, .. } => {
                world.left.returns -= 1;
                return Some(self.take_back(world, target));
            }
            Action::Close { .. } => self.doing = Doing::Change(Change::default(), Then::Close),
            Action::Crash { .. } => {
                world.left.crashes -= 1;
                return Some(world.hang_up(Phase::Open(self)));
            }
            Action::Open { .. } => return None,
        }
        Some(if self.pending == 0 { self.go_on(world) } else { Phase::Open(self) })
    }

    fn arrive(&self, world: &mut World, target: usize) -> bool {
        match &self.asked {
            Asked::Nothing => false,
            Asked::Tell(request) => world.tell(self.number, target, request),
            Asked::Store(value) => world.store(self.number, target, *value),
        }
    }

    /// Nothing is on its way: what is done next.
    pub(super) fn go_on(mut self: Box<Self>, world: &mut World) -> Phase {
        loop {
            match std::mem::replace(&mut self.doing, Doing::Serve) {
                Doing::Change(mut change, then) => {
                    let is_needless = then == Then::Close && self.in_use() == self.view.current();
                    if is_needless {
                        return self.close();
                    }
                    let (connected, in_use) = (self.connected, self.in_use());
                    match self.view.step(&mut change, connected, in_use, Uuid::new_v4()) {
                        Step::TellAll(question) => {
                            self.doing = Doing::Change(change, then);
                            return self.ask(Asked::Tell(question.0), connected);
                        }
                        Step::Done(is_in_force) => match self.changed(world, is_in_force, then) {
                            Ok(phase) => return phase,
                            Err(session) => self = session,
                        },
                    }
                }
                Doing::Equalize => {
                    let is_current = self.in_use() == self.view.current();
                    if is_current {
                        return self.be_open(world);
                    }
                    self.doing = Doing::Change(Change::default(), Then::BeOpen);
                }
                Doing::Serve => return Phase::Open(self),
                Doing::Persist(value) => {
                    let reached = self.answered;
                    if world.broken == Some(Broken::AcknowledgedEarly) || self.in_use() == self.view.current() {
                        self.acknowledge(world, value, reached, true);
                    }
                    if self.in_use() == self.view.current() {
                        return Phase::Open(self);
                    }
                    self.doing = Doing::Change(Change::default(), Then::Acknowledge { value, reached });
                }
                Doing::Introduce(target, mut told) => {
                    let next = told.pop_front().filter(|_| self.connected & (1 << target) != 0);
                    match next {
                        Some(request) => {
                            self.doing = Doing::Introduce(target, told);
                            return self.ask(Asked::Tell(request), 1 << target);
                        }
                        None if self.connected & (1 << target) == 0 => return Phase::Open(self),
                        None => match self.copy_to(world, target) {
                            Ok(phase) => return phase,
                            Err(session) => self = session,
                        },
                    }
                }
                Doing::Copy(target) => {
                    if self.connected & (1 << target) == 0 {
                        return Phase::Open(self);
                    }
                    self.in_sync |= 1 << target;
                    self.doing = Doing::Change(Change::default(), Then::Serve);
                }
                Doing::Close => return world.hang_up(Phase::Open(self)),
            }
        }
    }

    /// A change of the view came in force, or did not.
    fn changed(mut self: Box<Self>, world: &mut World, is_in_force: bool, then: Then) -> Result<Phase, Box<Self>> {
        match then {
            Then::Equalize | Then::BeOpen if !is_in_force => Ok(world.hang_up(Phase::Open(self))),
            Then::Equalize if self.is_clean => Ok(self.be_open(world)),
            Then::Equalize => {
                let source = &world.targets[self.source];
                if self.in_use() & (1 << self.source) == 0 || source.open_by != Some(self.number) {
                    return Ok(world.hang_up(Phase::Open(self)));
                }
                let (asked, of) = (Asked::Store(source.holds), self.in_use());
                self.doing = Doing::Equalize;
                Ok(self.ask(asked, of))
            }
            Then::BeOpen => Ok(self.be_open(world)),
            Then::Acknowledge { value, reached } => {
                self.acknowledge(world, value, reached, is_in_force);
                Err(self)
            }
            Then::Copy(target) if is_in_force => self.copy_to(world, target),
            Then::Copy(_) | Then::Serve => Err(self),
            Then::Close => Ok(self.close()),
        }
    }

    /// The members in sync are equal: what they hold is what the opening has found.
    fn be_open(mut self: Box<Self>, world: &mut World) -> Phase {
        let in_use = self.in_use();
        self.view.note_equal(in_use);
        let is_read = |target: &usize| world.targets[*target].open_by == Some(self.number);
        let source = std::iter::once(self.source).filter(|source| in_use & (1 << source) != 0);
        let found = source.chain(bits(in_use)).find(is_read).map(|target| world.targets[target].holds);
        match found {
            Some(found) if world.note_opened(self.view.opening(), found) => {
                self.doing = Doing::Serve;
                Phase::Open(self)
            }
            _ => world.hang_up(Phase::Open(self)),
        }
    }

    /// As `Open::receipt`.
    fn acknowledge(&self, world: &mut World, value: u8, reached: Positions, is_settled: bool) {
        let has_it = reached & self.in_use();
        let is_missed = (has_it.count_ones() as usize) < world.targets.len();
        if has_it != 0 && (!is_missed || is_settled) {
            world.acknowledge(self.number, (self.view.opening(), self.view.epoch()), value);
        }
    }

    fn close(mut self: Box<Self>) -> Phase {
        let in_use = self.in_use();
        self.doing = Doing::Close;
        self.ask(Asked::Tell(Request::Close { in_order: true }), in_use)
    }

    /// As `Returns::returning`: connects to a member that was lost.
    fn take_back(mut self: Box<Self>, world: &mut World, target: usize) -> Phase {
        let state = world.targets[target].state.clone();
        let found = Found { index: target as u16, state: &state };
        if self.view.is_superseded_by(&state) {
            return world.hang_up(Phase::Open(self));
        }
        let apart = of_returning(&found, self.view.line(), self.view.opening());
        if apart.is_some_and(|apart| !apart.may_catch_up()) {
            return Phase::Open(self);
        }
        let Some(introduction) = self.view.introduction(target as u16, Some(&state)) else { return Phase::Open(self) };
        world.targets[target].open_by = Some(self.number);
        self.view.identify(target, target as u16);
        self.connected |= 1 << target;
        self.doing = match introduction {
            Introduction::ByChange => Doing::Change(Change::default(), Then::Copy(target)),
            Introduction::Tell(told) => {
                Doing::Introduce(target, told.into_iter().map(|(request, _)| request).collect())
            }
        };
        self.go_on(world)
    }

    /// Copies to a member what the others hold.
    fn copy_to(mut self: Box<Self>, world: &World, target: usize) -> Result<Phase, Box<Self>> {
        let is_read = |source: &usize| world.targets[*source].open_by == Some(self.number);
        let source = bits(self.in_use()).find(is_read);
        let Some(source) = source.filter(|_| self.connected & (1 << target) != 0) else { return Err(self) };
        self.doing = Doing::Copy(target);
        Ok(self.ask(Asked::Store(world.targets[source].holds), 1 << target))
    }

    fn add_to(&self, key: &mut Key) {
        key.words.extend([2, self.number.into(), self.connected, self.in_sync, self.pending, self.answered]);
        key.words.extend([self.source as u64, self.is_clean.into()]);
        match &self.asked {
            Asked::Tell(request) if self.pending != 0 => key.request(request),
            Asked::Store(value) if self.pending != 0 => key.words.extend([4, (*value).into()]),
            _ => key.words.push(0),
        }
        let change = match &self.doing {
            Doing::Change(change, _) => *change,
            _ => Change::default(),
        };
        match change {
            Change::Idle | Change::Named(_) => key.words.push(0),
            Change::Announced(announced) | Change::Confirmed(announced) => {
                let is_confirmed = matches!(change, Change::Confirmed(_));
                key.words.extend([1, is_confirmed.into(), announced.opening, announced.connected, announced.in_use]);
                key.line([&announced.epoch]);
            }
        }
        let doing = match &self.doing {
            Doing::Change(_, then) => 100 + then.number(),
            Doing::Equalize => 1,
            Doing::Serve => 2,
            Doing::Persist(value) => 200 + u64::from(*value),
            Doing::Introduce(target, told) => 300 + 10 * *target as u64 + told.len() as u64,
            Doing::Copy(target) => 400 + *target as u64,
            Doing::Close => 3,
        };
        key.words.push(doing);
        if let Doing::Introduce(_, told) = &self.doing {
            for request in told {
                key.request(request);
            }
        }
        key.view(&self.view);
    }
}

impl Then {
    fn number(self) -> u64 {
        match self {
            Self::Equalize => 0,
            Self::BeOpen => 1,
            Self::Serve => 2,
            Self::Close => 3,
            Self::Copy(target) => 10 + target as u64,
            Self::Acknowledge { value, reached } => 1000 + 100 * u64::from(value) + reached,
        }
    }
}
