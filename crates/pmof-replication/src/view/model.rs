//! All that writers of a pool do to each other: they open it by the decisions that the library ships, take it over from each other at any moment, write, lose
//! members and have them back, close the pool or die, between any two messages. `stateright` visits every state.
//!
//! A message to a target arrives or is lost with its connection, before or after it had its effect. A target that fails is no other thing to its writer: what
//! it was told is durable. What is on its way from a writer that is slow arrives when others have done as much as the bounds allow.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
};

use pmof_control::{Epoch, PoolState, Request};
use stateright::{Checker, HasDiscoveries, Model, Property};
use uuid::Uuid;

use super::{Positions, View, bits};
use crate::lineage::{Found, agree, quorum, votes_needed};
use writer::{Doing, Phase, Session};

mod writer;

/// What may happen in all, of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    members: u16,
    openings: u8,
    writes: u8,
    /// Messages that are lost with their connections.
    losses: u8,
    /// Members that come back to a writer that had lost them.
    returns: u8,
    /// Writers that die; one that closes the pool, is fenced or gives up needs none.
    crashes: u8,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// Targets go on to take what a writer sends from which another has taken the pool over.
    NotFenced,
    /// A write is acknowledged before the view that leaves out who lacks it is durable.
    AcknowledgedEarly,
    /// An opening goes on with whom it finds.
    TooFewVotes,
}

struct Space {
    bounds: Bounds,
    broken: Option<Broken>,
}

/// A replica on its target.
#[derive(Clone, Debug)]
struct Target {
    state: PoolState,
    /// The last write that it holds, durably.
    holds: u8,
    /// The session that has it open.
    open_by: Option<u8>,
}

#[derive(Clone, Debug)]
struct World {
    targets: Vec<Target>,
    writers: [Phase; 2],
    left: Bounds,
    sessions: u8,
    issued: u8,
    acknowledged: u8,
    /// Openings that came in force: their numbers, and what they found.
    opened: Vec<(u64, u8)>,
    /// The epochs that writes were acknowledged under, and the sessions to which.
    acknowledged_by: Vec<(Uuid, u8)>,
    /// A write that was acknowledged was not found.
    is_lost: bool,
    /// A target has taken something from a session that another had fenced.
    is_changed_by_fenced: bool,
    broken: Option<Broken>,
    key: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The next target is asked to open its replica, and is reached or not.
    Open {
        writer: usize,
        is_reached: bool,
    },
    /// A message arrives, and its answer.
    Deliver {
        writer: usize,
        target: usize,
    },
    /// The connection is lost, behind the message or before it.
    Lose {
        writer: usize,
        target: usize,
        arrives: bool,
    },
    Write {
        writer: usize,
    },
    Return {
        writer: usize,
        target: usize,
    },
    Close {
        writer: usize,
    },
    Crash {
        writer: usize,
    },
}

/// States that differ in the names of epochs alone are the same.
impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl World {
    fn new(Space { bounds, broken }: &Space) -> Self {
        let state = PoolState::new(Uuid::new_v4(), bounds.members).closed();
        let target = Target { state, holds: 0, open_by: None };
        let world = Self {
            targets: vec![target; bounds.members.into()],
            writers: [Phase::Away, Phase::Away],
            left: *bounds,
            sessions: 0,
            issued: 0,
            acknowledged: 0,
            opened: vec![(0, 0)],
            acknowledged_by: Vec::new(),
            is_lost: false,
            is_changed_by_fenced: false,
            broken: *broken,
            key: Vec::new(),
        };
        world.keyed()
    }

    fn keyed(mut self) -> Self {
        let mut key = Key::default();
        key.words.extend([self.left.openings, self.left.writes, self.left.losses].map(u64::from));
        key.words.extend([self.left.returns, self.left.crashes, self.sessions].map(u64::from));
        key.words.extend([self.issued, self.acknowledged, u8::from(self.is_lost)].map(u64::from));
        key.words.push(self.is_changed_by_fenced.into());
        for Target { state, holds, open_by } in &self.targets {
            key.state(state);
            key.words.extend([u64::from(*holds), open_by.map_or(0, u64::from)]);
        }
        for writer in &self.writers {
            writer.add_to(&mut key);
        }
        for writer in &self.writers {
            writer.add_own_to(&mut key);
        }
        let newest = self.opened.last().expect("there is always one");
        key.words.extend([newest.0, newest.1.into()]);
        // Of the others only what one of them may yet be told counts.
        for (opening, found) in &self.opened {
            key.words.extend([*opening, (*found).into()]);
        }
        for (epoch, session) in &self.acknowledged_by {
            if let Some(name) = key.names.get(epoch).copied() {
                key.words.extend([name, (*session).into()]);
            }
        }
        self.key = key.words;
        self
    }

    fn found(&self, of: Positions) -> Vec<Found<'_>> {
        bits(of).map(|target| Found { index: target as u16, state: &self.targets[target].state }).collect()
    }

    /// Whether an opening of these goes on.
    fn is_enough(&self, of: Positions) -> bool {
        let (found, made) = (self.found(of), self.targets.len() as u16);
        let Ok(mut agreement) = agree(&found, made) else { return false };
        agreement.put_stale_behind(&found);
        agreement.is_enough(&found, (1 << made) - 1, true)
    }

    /// Whether all members together open the pool; and as long as a writer has a view that enough of them know durably, one of its members in sync
    /// with so many others as an opening needs, or all of those in sync where one is enough to know.
    fn is_survivor_taken(&self) -> bool {
        let made = self.targets.len();
        let all = (1 << made) - 1;
        let current = |phase: &Phase| match phase {
            Phase::Open(session) => session.durable(self),
            _ => 0,
        };
        let is_taken = |current: Positions| {
            let is_all = |of: &Positions| quorum(made) == 1 && of & current == current;
            let is_enough = |of: &Positions| is_all(of) || of.count_ones() as usize >= votes_needed(made);
            (1..all).filter(|of| of & current != 0 && is_enough(of)).all(|of| self.is_enough(of))
        };
        self.is_enough(all) && self.writers.iter().map(current).all(is_taken)
    }

    fn actions(&self, actions: &mut Vec<Action>) {
        let made = self.targets.len();
        for (writer, phase) in self.writers.iter().enumerate() {
            match phase {
                Phase::Away if self.left.openings == 0 => continue,
                Phase::Away | Phase::Opening { .. } => {
                    actions.extend([true, false].map(|is_reached| Action::Open { writer, is_reached }));
                }
                Phase::Open(session) => {
                    for target in bits(session.pending) {
                        actions.push(Action::Deliver { writer, target });
                        if self.left.losses > 0 {
                            let lose = |arrives| Action::Lose { writer, target, arrives };
                            actions.extend([true, false].map(lose));
                        }
                    }
                    if matches!(session.doing, Doing::Serve) {
                        actions.push(Action::Close { writer });
                        actions.extend((self.left.writes > 0).then_some(Action::Write { writer }));
                        let lost = (0..made).filter(|target| session.connected & (1 << target) == 0);
                        let lost =
                            lost.filter(|target| self.left.returns > 0 && self.targets[*target].open_by.is_none());
                        actions.extend(lost.map(|target| Action::Return { writer, target }));
                    }
                }
            }
            if !matches!(phase, Phase::Away) && self.left.crashes > 0 {
                actions.push(Action::Crash { writer });
            }
        }
    }

    fn after(&self, action: Action) -> Option<Self> {
        let mut world = self.clone();
        let (Action::Open { writer, .. }
        | Action::Deliver { writer, .. }
        | Action::Lose { writer, .. }
        | Action::Write { writer }
        | Action::Return { writer, .. }
        | Action::Close { writer }
        | Action::Crash { writer }) = action;
        let phase = std::mem::replace(&mut world.writers[writer], Phase::Away);
        let phase = match (phase, action) {
            (Phase::Away, Action::Open { is_reached, .. }) => {
                world.left.openings -= 1;
                world.sessions += 1;
                let number = world.sessions;
                world.open_next(number, Vec::new(), (0, is_reached))
            }
            (Phase::Opening { number, next, opened }, Action::Open { is_reached, .. }) => {
                world.open_next(number, opened, (next, is_reached))
            }
            (phase @ Phase::Opening { .. }, Action::Crash { .. }) => {
                world.left.crashes -= 1;
                world.hang_up(phase)
            }
            (Phase::Open(session), action) => session.after(&mut world, action)?,
            _ => return None,
        };
        world.writers[writer] = phase;
        Some(world.keyed())
    }

    /// Opens the replica of the next target, or leaves it out; behind the last one it is judged what was found.
    fn open_next(
        &mut self,
        number: u8,
        mut opened: Vec<(usize, PoolState)>,
        (next, is_reached): (usize, bool),
    ) -> Phase {
        if is_reached {
            let target = &mut self.targets[next];
            target.open_by = Some(number);
            opened.push((next, target.state.clone()));
        }
        let next = next + 1;
        if next < self.targets.len() {
            return Phase::Opening { number, next, opened };
        }
        match Session::new(self, number, &opened) {
            Some(session) => session.go_on(self),
            None => self.hang_up(Phase::Opening { number, next, opened }),
        }
    }

    /// The writer's connections end.
    fn hang_up(&mut self, phase: Phase) -> Phase {
        let number = match phase {
            Phase::Away => return Phase::Away,
            Phase::Opening { number, .. } => number,
            Phase::Open(session) => session.number,
        };
        self.targets
            .iter_mut()
            .filter(|target| target.open_by == Some(number))
            .for_each(|target| target.open_by = None);
        Phase::Away
    }

    /// Whether a target takes what this session sends.
    fn is_served(&mut self, number: u8, target: usize) -> bool {
        if self.targets[target].open_by == Some(number) {
            return true;
        }
        let is_taken = self.broken == Some(Broken::NotFenced);
        self.is_changed_by_fenced |= is_taken;
        is_taken
    }

    /// The target's own change of its state, by the methods that it ships. False: it refuses.
    fn tell(&mut self, number: u8, target: usize, request: &Request) -> bool {
        if !self.is_served(number, target) {
            return false;
        }
        let (state, index) = (&mut self.targets[target].state, target as u16);
        let next = match request {
            Request::Begin { opening, epoch, ancestors } => Some(state.begun(index, *epoch, *opening, ancestors)),
            Request::Confirm { epoch } => state.confirmed(index, *epoch),
            _ => Some(state.closed()),
        };
        next.map(|next| *state = next).is_some()
    }

    fn store(&mut self, number: u8, target: usize, value: u8) -> bool {
        let is_served = self.is_served(number, target);
        if is_served {
            self.targets[target].holds = value;
        }
        is_served
    }

    /// An opening is in force, and has found this. False: another one is, since.
    fn note_opened(&mut self, opening: u64, found: u8) -> bool {
        let is_newest = self.opened.last().is_none_or(|(newest, _)| *newest < opening);
        if is_newest {
            self.is_lost |= found < self.acknowledged;
            self.opened.push((opening, found));
        }
        is_newest
    }

    fn acknowledge(&mut self, number: u8, (opening, epoch): (u64, Option<Uuid>), value: u8) {
        self.is_lost |= self.opened.iter().any(|(later, found)| *later > opening && *found < value);
        self.acknowledged = self.acknowledged.max(value);
        let by = epoch.map(|epoch| (epoch, number));
        if let Some(by) = by.filter(|by| !self.acknowledged_by.contains(by)) {
            self.acknowledged_by.push(by);
        }
    }
}

/// What a state is told from others by.
#[derive(Default)]
struct Key {
    words: Vec<u64>,
    names: HashMap<Uuid, u64>,
}

impl Key {
    fn id(&mut self, id: Uuid) {
        let next = self.names.len() as u64;
        self.words.push(*self.names.entry(id).or_insert(next));
    }

    fn line<'e>(&mut self, line: impl IntoIterator<Item = &'e Epoch>) {
        let from = self.words.len();
        self.words.push(0);
        for epoch in line {
            self.id(epoch.id);
            self.words.push(epoch.members);
        }
        self.words[from] = (self.words.len() - from) as u64;
    }

    fn state(&mut self, state: &PoolState) {
        self.words.extend([state.opening, state.flags().into()]);
        self.line(std::iter::once(&state.epoch).chain(&state.ancestors));
    }

    fn request(&mut self, request: &Request) {
        match request {
            Request::Begin { opening, epoch, ancestors } => {
                self.words.extend([1, *opening]);
                self.line(std::iter::once(epoch).chain(ancestors));
            }
            Request::Confirm { epoch } => {
                self.words.push(2);
                self.id(*epoch);
            }
            _ => self.words.push(3),
        }
    }

    /// What a writer's view goes on by. Marks are never raised here, and where a member was left behind is asked by none.
    fn view(&mut self, view: &View) {
        self.words.extend([view.base.opening, view.in_force, view.current, view.equal, view.needed]);
        self.line(&view.base.ancestors);
        self.words.push(view.overruled.len() as u64);
        for (epoch, parent) in &view.overruled {
            self.line([epoch]);
            self.id(*parent);
        }
    }

    /// Of a writer's own epochs those count that somebody knows: all else is in the key.
    fn own(&mut self, view: &View) {
        let own: Vec<_> = view.own.iter().filter_map(|own| self.names.get(own).copied()).collect();
        self.words.push(own.len() as u64);
        self.words.extend(own);
    }
}

impl Model for Space {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        world.after(action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LOST, |_, world: &World| !world.is_lost),
            Property::always(ONE_WRITER, |_, world: &World| {
                let mut pairs = world.acknowledged_by.iter().enumerate();
                pairs.all(|(at, (epoch, _))| world.acknowledged_by[..at].iter().all(|(other, _)| other != epoch))
            }),
            Property::always(FENCED, |_, world: &World| !world.is_changed_by_fenced),
            Property::always(REFUSED, |_, world: &World| world.is_survivor_taken()),
            Property::sometimes(BOTH, |_, world: &World| world.opened.len() > 2),
        ]
    }
}

const LOST: &str = "no acknowledged write is lost";
const ONE_WRITER: &str = "one writer's bytes are acknowledged in an epoch";
const FENCED: &str = "a writer that was fenced changes nothing";
const REFUSED: &str = "members that have everything, and are enough, open the pool";
const BOTH: &str = "both writers have opened the pool";

/// Visits all states within these bounds. Returns their number.
#[track_caller]
fn assert_holds(bounds: Bounds) -> usize {
    let checker = Space { bounds, broken: None }.checker().spawn_dfs().join();
    let (states, all, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    println!("{bounds:?}: {states} states, {all} steps, none longer than {depth}");
    checker.assert_properties();
    assert!(checker.is_done());
    states
}

const OF_THREE: Bounds = Bounds { members: 3, openings: 2, writes: 1, losses: 0, returns: 0, crashes: 0 };
const OF_TWO: Bounds = Bounds { members: 2, openings: 2, writes: 2, losses: 1, returns: 1, crashes: 0 };

#[test]
fn of_three_members_every_state_of_two_writers_is_sound() {
    assert_holds(OF_THREE);
}

#[test]
fn of_two_members_every_state_of_two_writers_is_sound() {
    assert_holds(OF_TWO);
}

/// `cargo xtask simulate --exhaustive`.
#[test]
#[ignore = "minutes, and a gigabyte of states"]
fn exhaustive() {
    let states = [
        Bounds { writes: 2, losses: 1, crashes: 1, ..OF_THREE },
        Bounds { losses: 1, returns: 1, ..OF_THREE },
        Bounds { openings: 3, writes: 1, crashes: 1, ..OF_TWO },
    ]
    .map(assert_holds);
    assert!(states.iter().all(|states| *states >= 1_000_000), "{states:?}");
}

/// What the search finds with a rule broken: a run that leads there.
fn counterexample(bounds: Bounds, broken: Broken, property: &'static str) -> Vec<Action> {
    let finish = HasDiscoveries::AnyOf([property].into());
    let checker = Space { bounds, broken: Some(broken) }.checker().finish_when(finish).spawn_dfs().join();
    let found = checker.discovery(property).unwrap_or_else(|| panic!("{broken:?} breaks nothing: {property}"));
    let actions = found.into_actions();
    println!("{broken:?}: {property}: {actions:?}");
    actions
}

#[test]
fn each_broken_rule_has_a_counterexample() {
    let with_a_loss = Bounds { losses: 1, ..OF_THREE };
    for (broken, property, bounds) in [
        (Broken::NotFenced, FENCED, OF_THREE),
        (Broken::NotFenced, LOST, OF_THREE),
        (Broken::AcknowledgedEarly, LOST, with_a_loss),
        (Broken::TooFewVotes, LOST, OF_TWO),
    ] {
        assert!(!counterexample(bounds, broken, property).is_empty());
    }
}
