//! Writers that change the members of a pool and die at any step, and targets that come and go: no acknowledged write is lost, no two writers go on
//! apart, and the pool opens when all are back. Before each message anything may go wrong: another writer may take over and live, too.

use std::{collections::BTreeMap, iter};

use pmof_control::{PoolState, Reply, Request, Role, Roster, RosterMember};
use uuid::Uuid;

use super::super::{Electorate, Word};
use crate::{
    lineage::{Agreement, Found, agree, of_returning, votes_needed},
    roster::{free_index, has_after, settled},
    view::{Change, Introduction, Positions, Rule, Step, View},
};

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// Only the members after a change have to know of it.
    OldMembersNotAsked,
    /// One that was removed goes on to vote.
    RemovedVotes,
    /// A change holds as soon as a roster says so.
    AnnouncedHolds,
    /// The epoch that makes a change is announced to members that do not know what it makes.
    EpochFirst,
    /// Whoever names the epoch that a replica is at counts as its writer, also where another has it open and has begun none.
    FoundEpochNames,
    /// A writer goes on with a replica that its successor has told of an epoch, and lost.
    SuccessorIgnored,
    /// A witness that is back counts as one that has everything.
    WitnessJoins,
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A replica on its target.
#[derive(Clone, Debug)]
struct Node {
    index: u16,
    replica_uuid: Uuid,
    /// It has no data.
    is_witness: bool,
    state: PoolState,
    roster: Roster,
    data: u64,
    is_up: bool,
    /// The session that has it open; 0 for none.
    open_by: u64,
    /// The epoch by which its target knows that session again: one that it has begun, or has named.
    named_epoch: Option<Uuid>,
}

impl Node {
    fn found(&self) -> Found<'_> {
        Found { index: self.index, state: &self.state }
    }
}

struct World {
    random: Random,
    nodes: Vec<Node>,
    broken: Option<Broken>,
    /// Some of those that are added are witnesses.
    has_witnesses: bool,
    /// Nothing goes wrong any more.
    is_calm: bool,
    sessions: u64,
    issued: u64,
    acknowledged: u64,
    /// What each opening that came in force has found, by the number of its session.
    recovered: BTreeMap<u64, u64>,
    depth: usize,
    violation: Option<String>,
    counts: BTreeMap<&'static str, u64>,
}

/// The writer is dead.
struct Dead;

/// One opening.
struct Session {
    number: u64,
    /// The node at each position, and whether it is lost.
    places: Vec<(usize, bool)>,
    in_sync: Positions,
    view: View,
    roster: Roster,
    kept: Positions,
    leaving: Positions,
    /// Positions of nobody.
    gone: Positions,
    /// Those that were told of an epoch which never came in force, and that nobody knew who went on: they are left out, and left as they are.
    diverged: Positions,
}

/// Replicas that are made in one run, at most.
const NODES_MAX: usize = 9;

impl World {
    fn new(seed: u64, broken: Option<Broken>) -> Self {
        let mut random = Random(seed);
        let count = 1 + random.below(4) as u16;
        let state = PoolState::new(Uuid::new_v4(), count).closed();
        let mut roster = Roster { notes: 1, ..Roster::made(count) };
        roster.members.iter_mut().for_each(|member| member.replica_uuid = Uuid::new_v4());
        let node = |member: &RosterMember| Node {
            index: member.index,
            replica_uuid: member.replica_uuid,
            is_witness: false,
            state: state.clone(),
            roster: roster.clone(),
            data: 0,
            is_up: true,
            open_by: 0,
            named_epoch: None,
        };
        Self {
            random,
            nodes: roster.members.iter().map(node).collect(),
            broken,
            has_witnesses: !FOUND.contains(&seed),
            is_calm: false,
            sessions: 0,
            issued: 0,
            acknowledged: 0,
            recovered: BTreeMap::new(),
            depth: 0,
            violation: None,
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Before a message: whatever goes wrong.
    fn disturb(&mut self) -> Result<(), Dead> {
        if self.is_calm {
            return Ok(());
        }
        let node = self.random.below(self.nodes.len() as u64) as usize;
        if self.random.once_in(25) {
            (self.nodes[node].is_up, self.nodes[node].open_by) = (false, 0);
            self.count("target stopped");
        }
        if self.random.once_in(12) {
            self.nodes[node].is_up = true;
        }
        if self.depth < 2 && self.random.once_in(60) {
            self.count("taken over in the middle");
            self.live();
        }
        if self.random.once_in(50) {
            self.count("writer died");
            return Err(Dead);
        }
        Ok(())
    }

    fn is_reached(&self, session: u64, node: usize) -> bool {
        self.nodes[node].is_up && self.nodes[node].open_by == session
    }

    /// Sends a message. `None`: there is no answer, whether it arrived or not.
    fn ask(&mut self, session: u64, node: usize, request: &Request) -> Result<Option<Reply>, Dead> {
        self.disturb()?;
        if !self.is_reached(session, node) {
            return Ok(None);
        }
        let node = &mut self.nodes[node];
        let (state, reply) = match request {
            Request::Begin { opening, epoch, ancestors } => {
                (Some(node.state.begun(node.index, *epoch, *opening, ancestors)), Reply::Begun)
            }
            Request::Confirm { epoch } => (node.state.confirmed(node.index, *epoch), Reply::Confirmed),
            _ => (None, Reply::Closed),
        };
        let Some(state) = state else { return Ok(None) };
        node.state = state;
        if let Request::Begin { epoch, .. } = request {
            node.named_epoch = Some(epoch.id);
        }
        let is_heard = self.is_calm || !self.random.once_in(40);
        Ok(is_heard.then_some(reply))
    }

    /// A writer that opens the pool, changes it for a while, and dies.
    fn live(&mut self) {
        self.depth += 1;
        let number = self.sessions + 1;
        if let Ok(Some(mut session)) = self.open() {
            for _ in 0..=self.random.below(8) {
                if self.violation.is_some() || session.act(self).is_err() {
                    break;
                }
            }
        }
        self.depth -= 1;
        // Some targets notice that it is gone, others not yet.
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if node.open_by == number && (at as u64 + node.open_by) % 3 != 0 {
                node.open_by = 0;
            }
        }
    }

    /// Opens the pool with those that are reached. `None`: they are too few.
    fn open(&mut self) -> Result<Option<Session>, Dead> {
        self.sessions += 1;
        let number = self.sessions;
        let mut reached = Vec::new();
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_up && (self.is_calm || !self.random.once_in(4)) {
                (self.nodes[node].open_by, self.nodes[node].named_epoch) = (number, None);
                reached.push(node);
            }
        }
        let Some((electorate, agreement, members)) = self.judge(&reached) else { return Ok(None) };
        if members.iter().any(|node| self.nodes[*node].is_witness) {
            self.count(if members.len() == 2 { "opened by a replica and a witness" } else { "opened with a witness" });
        }
        let source = self.nodes[members[agreement.source]].data;
        let mut session = self.session(number, &electorate, agreement, &members);
        if !session.change(self, Change::default())? {
            return Ok(None);
        }
        for position in each(session.in_use()) {
            self.disturb()?;
            let node = session.places[position].0;
            if self.is_reached(number, node) {
                if !self.nodes[node].is_witness {
                    self.nodes[node].data = source;
                }
            } else {
                session.lose(position);
            }
        }
        if session.in_use() != session.view.current() && !session.change(self, Change::default())? {
            return Ok(None);
        }
        // One that another has fenced finds nothing out.
        if self.recovered.keys().next_back().is_some_and(|last| *last > number) {
            return Ok(None);
        }
        if source < self.acknowledged {
            let text = format!("session {number} found {source}; {} was acknowledged", self.acknowledged);
            self.violation.get_or_insert(text);
        }
        self.recovered.insert(number, source);
        session.view.note_equal(session.in_use());
        Ok(Some(session))
    }

    /// As `Opening::judge`: the members, and which of those that are open they are.
    fn judge(&self, reached: &[usize]) -> Option<(Electorate, Agreement, Vec<usize>)> {
        let settled = |node: &usize| match self.broken {
            Some(Broken::AnnouncedHolds) => self.nodes[*node].roster.settled(|_| true),
            _ => self.nodes[*node].roster.clone(),
        };
        let rosters: Vec<_> = reached.iter().map(settled).collect();
        let word = |(node, roster): (&usize, _)| Word {
            found: self.nodes[*node].found(),
            replica_uuid: self.nodes[*node].replica_uuid,
            roster: Some(roster),
        };
        let words: Vec<_> = reached.iter().zip(&rosters).map(word).collect();
        let electorate = Electorate::of(&words, 1);
        let all_vote = self.broken == Some(Broken::RemovedVotes);
        let has = |node: &usize| all_vote || electorate.has(self.nodes[*node].index, self.nodes[*node].replica_uuid);
        let members: Vec<_> = reached.iter().copied().filter(has).collect();
        let found: Vec<_> = members.iter().map(|node| self.nodes[*node].found()).collect();
        if found.is_empty() {
            return None;
        }
        let agreement = agree(&found, electorate.count()).ok()?;
        let votes = agreement.in_sync.len() + agreement.behind.iter().filter(|(_, apart)| apart.votes()).count();
        let is_enough = if all_vote {
            votes >= votes_needed(electorate.count().into())
        } else {
            electorate.is_enough(&agreement, &found)
        };
        is_enough.then_some((electorate, agreement, members))
    }

    fn session(&mut self, number: u64, electorate: &Electorate, agreement: Agreement, members: &[usize]) -> Session {
        let in_sync = agreement.in_sync.iter().fold(0, |all, position| all | 1 << position);
        let foreign = agreement.foreign.iter().fold(0_u64, |all, (position, _)| all | 1 << position);
        let mut places: Vec<_> =
            members.iter().enumerate().map(|(position, node)| (*node, foreign & (1 << position) != 0)).collect();
        let mut indexes: Vec<_> = members.iter().map(|node| Some(self.nodes[*node].index)).collect();
        let mut rule = Rule::of(electorate.count().into());
        let mut before = electorate.before().map(|(count, has)| (Rule::of(count), has));
        let mut gone = 0;
        for (position, index) in indexes.iter().flatten().enumerate() {
            if electorate.is_leaving(*index) {
                rule = rule.without(position);
                gone |= 1 << position;
            }
            before = before.map(|(rule, has)| (if has(*index) { rule } else { rule.without(position) }, has));
        }
        // Those that were not reached have their places.
        for (node, of) in self.nodes.iter().enumerate() {
            if !members.contains(&node) && electorate.has(of.index, of.replica_uuid) {
                places.push((node, true));
                indexes.push(None);
            }
        }
        let mut view = View::new(rule, indexes, agreement.base, agreement.mark, in_sync);
        if let Some((rule, _)) = before {
            view.found_changed(rule);
            self.count("opened in a change");
        }
        let roster = electorate.kept().unwrap_or(&electorate.roster).clone();
        Session { number, places, in_sync, view, roster, kept: 0, leaving: 0, gone, diverged: 0 }
    }
}

fn each(positions: Positions) -> impl Iterator<Item = usize> {
    (0..64).filter(move |position| positions & (1 << position) != 0)
}

impl Session {
    fn connected(&self) -> Positions {
        let alive = self.places.iter().enumerate().filter(|(_, (_, is_lost))| !is_lost);
        alive.fold(0, |all, (position, _)| all | 1 << position)
    }

    fn in_use(&self) -> Positions {
        self.in_sync & self.connected() & !self.leaving
    }

    fn lose(&mut self, position: usize) {
        self.places[position].1 = true;
        self.in_sync &= !(1 << position);
        self.kept &= !(1 << position);
    }

    /// As `State::informed`.
    fn informed(&mut self, world: &mut World) -> Result<Positions, Dead> {
        for position in each(self.connected() & !self.kept) {
            world.disturb()?;
            let node = self.places[position].0;
            if world.is_reached(self.number, node) {
                world.nodes[node].roster = self.roster.clone();
                self.kept |= 1 << position;
            } else {
                self.lose(position);
            }
        }
        Ok(self.connected() & self.kept)
    }

    /// As `Epochs::go_on`.
    fn change(&mut self, world: &mut World, mut change: Change) -> Result<bool, Dead> {
        let is_late = world.broken == Some(Broken::EpochFirst) && matches!(change, Change::Named(_));
        loop {
            let told = if is_late { self.connected() } else { self.informed(world)? };
            let in_use = self.in_use();
            match self.view.step(&mut change, told, in_use, Uuid::new_v4()) {
                Step::TellAll(question) => {
                    for position in each(told) {
                        let reply = world.ask(self.number, self.places[position].0, &question.0)?;
                        if reply.as_ref() != Some(&question.1) {
                            self.lose(position);
                        }
                    }
                }
                Step::Done(is_done) => {
                    if is_done {
                        self.settle(world)?;
                    }
                    return Ok(is_done);
                }
            }
        }
    }

    /// As `State::settle_members`.
    fn settle(&mut self, world: &mut World) -> Result<(), Dead> {
        if self.roster.change.is_some_and(|change| self.view.has_begun(change.epoch)) {
            self.view.adopt();
            world.count("change settled");
            (self.roster, self.kept) = (settled(&self.roster, self.view.opening()), 0);
            self.informed(world)?;
        }
        Ok(())
    }

    /// One thing that a writer does.
    fn act(&mut self, world: &mut World) -> Result<(), Dead> {
        match world.random.below(6) {
            0 => self.add(world),
            1 => self.remove(world),
            2 => self.bring_back(world),
            _ => self.write(world),
        }
    }

    fn write(&mut self, world: &mut World) -> Result<(), Dead> {
        world.issued += 1;
        let value = world.issued;
        for position in each(self.in_use()) {
            world.disturb()?;
            let node = self.places[position].0;
            if world.is_reached(self.number, node) {
                if !world.nodes[node].is_witness {
                    world.nodes[node].data = value;
                }
            } else {
                self.lose(position);
            }
        }
        let is_settled = self.in_use() == self.view.current() || self.change(world, Change::default())?;
        if !is_settled || self.in_use() == 0 {
            return Ok(());
        }
        world.count("acknowledged");
        world.acknowledged = world.acknowledged.max(value);
        if let Some((later, found)) = world.recovered.range(self.number + 1..).find(|(_, found)| **found < value) {
            let text = format!("{value} was acknowledged to session {}; {later} had found {found}", self.number);
            world.violation.get_or_insert(text);
        }
        Ok(())
    }

    /// As `Pool::add`.
    fn add(&mut self, world: &mut World) -> Result<(), Dead> {
        if self.roster.change.is_some() && !self.change(world, Change::default())? {
            return Ok(());
        }
        let index = free_index(&self.roster, self.view.line());
        let Some(index) = index.filter(|_| world.nodes.len() < NODES_MAX) else { return Ok(()) };
        let count = (self.roster.members.len() as u16 + 1).max(index + 1);
        let is_witness = world.has_witnesses && world.random.once_in(3);
        let (replica_uuid, role) = (Uuid::new_v4(), if is_witness { Role::Witness } else { Role::Data });
        let member = RosterMember { index, role, replica_uuid, url: String::new(), domain: String::new() };
        world.nodes.push(Node {
            index,
            replica_uuid,
            is_witness,
            state: PoolState::new(Uuid::new_v4(), count),
            roster: Roster::made(count),
            data: 0,
            is_up: true,
            open_by: self.number,
            named_epoch: None,
        });
        self.places.push((world.nodes.len() - 1, false));
        self.view.add_place(index);
        let position = self.places.len() - 1;
        let (node, state) = (world.nodes.len() - 1, PoolState::new(Uuid::nil(), count));
        world.nodes[node].roster = self.roster.clone();
        let Some(Introduction::Tell(to_tell)) = self.view.introduction(index, Some(&state)) else {
            self.let_go(position);
            return Ok(());
        };
        for (request, expected) in to_tell {
            if world.ask(self.number, node, &request)? != Some(expected) {
                self.let_go(position);
                return Ok(());
            }
        }
        if !self.make(world, &|roster, epoch| roster.adding(member.clone(), epoch), (Some(position), true))? {
            self.let_go(position);
        } else if is_witness {
            world.count("witness added");
        }
        Ok(())
    }

    /// As `Pool::remove`.
    fn remove(&mut self, world: &mut World) -> Result<(), Dead> {
        let at = world.random.below(self.roster.members.len() as u64) as usize;
        let index = self.roster.members[at].index;
        let position = self.view.position(index);
        let bit = position.map_or(0, |position| 1 << position);
        if self.in_use() & !bit == 0 {
            return Ok(());
        }
        self.leaving = bit;
        let is_made = self.make(world, &|roster, epoch| roster.removing(index, epoch), (position, false));
        self.leaving = 0;
        if let Some(position) = position.filter(|_| matches!(is_made, Ok(true))) {
            self.let_go(position);
        }
        is_made.map(drop)
    }

    fn let_go(&mut self, position: usize) {
        self.gone |= 1 << position;
        self.lose(position);
        self.view.remove_place(position);
    }

    /// As `Epochs::change`, once. Whether it may hold.
    fn make(
        &mut self,
        world: &mut World,
        changed: &dyn Fn(&Roster, Uuid) -> Roster,
        (position, is_added): (Option<usize>, bool),
    ) -> Result<bool, Dead> {
        if self.roster.change.is_some() && !self.change(world, Change::default())? {
            return Ok(false);
        }
        let (old, epoch) = (self.roster.clone(), Uuid::new_v4());
        self.view.plan(position, is_added);
        if world.broken == Some(Broken::OldMembersNotAsked) {
            self.view.adopt();
        }
        (self.roster, self.kept) = (changed(&old, epoch), 0);
        let told = if world.broken == Some(Broken::EpochFirst) { self.connected() } else { self.informed(world)? };
        if self.view.may_go_on_with(told, self.in_use()) {
            let is_in_force = self.change(world, Change::Named(epoch))?;
            if self.view.has_begun(epoch) {
                world.count(if is_in_force { "change made" } else { "change undecided" });
                return Ok(true);
            }
        }
        world.count("change not made");
        self.view.give_up_plan();
        (self.roster, self.kept) = (old, 0);
        self.informed(world)?;
        Ok(false)
    }

    /// As `Returns::returning`, the copy, and `Epochs::join`, of all that are not in sync.
    fn bring_back(&mut self, world: &mut World) -> Result<(), Dead> {
        for position in 0..self.places.len() {
            let of = &world.nodes[self.places[position].0];
            let is_member = has_after(&self.roster, of.index, of.replica_uuid);
            let is_out = (self.in_sync | self.gone) & (1 << position) == 0;
            if is_out && is_member && of.is_up && self.may_take(world, position) {
                self.bring_back_to(world, position)?;
            }
        }
        Ok(())
    }

    /// Whether its target gives it to this session again, by the epoch that this one names.
    fn may_take(&self, world: &mut World, position: usize) -> bool {
        let (of, epoch) = (&world.nodes[self.places[position].0], self.view.epoch_of(position));
        let named = match world.broken {
            Some(Broken::FoundEpochNames) => Some(of.state.epoch.id),
            _ => of.named_epoch,
        };
        let is_given = of.open_by <= self.number || (named.is_some() && named == epoch);
        // Its target has not noticed that the successor is gone: that one may live.
        if is_given && of.open_by > self.number {
            let text = format!("session {} takes {position} from its successor {}", self.number, of.open_by);
            world.violation.get_or_insert(text);
        }
        is_given
    }

    fn bring_back_to(&mut self, world: &mut World, position: usize) -> Result<(), Dead> {
        let (node, is_lost) = self.places[position];
        if is_lost {
            (world.nodes[node].open_by, world.nodes[node].named_epoch) = (self.number, self.view.epoch_of(position));
            let (index, state) = (world.nodes[node].index, world.nodes[node].state.clone());
            if world.broken != Some(Broken::SuccessorIgnored) && self.view.is_superseded_by(&state) {
                return Err(Dead);
            }
            let apart = of_returning(&Found { index, state: &state }, self.view.line(), self.view.opening());
            if apart.is_some_and(|apart| !apart.may_catch_up()) {
                self.diverged |= 1 << position;
                return Ok(());
            }
            world.nodes[node].roster = self.roster.clone();
            let introduction = self.view.introduction(index, Some(&state));
            if let Some(Introduction::Tell(to_tell)) = &introduction {
                for (request, expected) in to_tell {
                    if world.ask(self.number, node, request)?.as_ref() != Some(expected) {
                        return Ok(());
                    }
                }
            }
            self.view.identify(position, index);
            self.places[position].1 = false;
            self.kept |= 1 << position;
            let is_by_change = matches!(introduction, Some(Introduction::ByChange));
            if is_by_change && !self.change(world, Change::default())? {
                return Ok(());
            }
        }
        if world.nodes[node].is_witness && world.broken != Some(Broken::WitnessJoins) {
            world.count("witness back");
            return Ok(());
        }
        let Some(source) = each(self.in_use()).next() else { return Ok(()) };
        world.disturb()?;
        let source = self.places[source].0;
        if !self.places[position].1 && world.is_reached(self.number, node) && world.is_reached(self.number, source) {
            if !world.nodes[node].is_witness {
                world.nodes[node].data = world.nodes[source].data;
            }
            self.in_sync |= 1 << position;
            self.change(world, Change::default())?;
        }
        Ok(())
    }
}

/// One run: the first rule that was broken, and what has happened.
fn run(seed: u64, broken: Option<Broken>) -> (Option<String>, BTreeMap<&'static str, u64>) {
    let mut world = World::new(seed, broken);
    for _ in 0..12 {
        world.live();
        if world.violation.is_some() {
            return (world.violation, world.counts);
        }
    }
    // All is well again: the pool opens, and all of its members are in sync but those that diverged from the others.
    world.is_calm = true;
    world.nodes.iter_mut().for_each(|node| node.is_up = true);
    let Ok(Some(mut session)) = world.open() else {
        let states: Vec<_> = world.nodes.iter().map(|node| (node.index, &node.state, &node.roster)).collect();
        return (Some(format!("with all replicas there the pool does not open: {states:#?}")), world.counts);
    };
    for _ in 0..3 {
        let _ = session.bring_back(&mut world);
    }
    let _ = session.write(&mut world);
    let members = session.roster.with_data().count();
    if session.diverged != 0 {
        world.count("diverged at rest");
    }
    let has_data = |position: &usize| !world.nodes[session.places[*position].0].is_witness;
    if each(session.in_use() | session.diverged).filter(has_data).count() != members
        || world.acknowledged != world.issued
    {
        let text = format!("{:b} of {members} members are in sync: {:?}", session.in_use(), session.roster);
        world.violation.get_or_insert(text);
    }
    (world.violation, world.counts)
}

/// Seeds of the suite; `PMOF_CHANGE_SEEDS` has it run more.
fn seeds() -> u64 {
    std::env::var("PMOF_CHANGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2_000)
}

/// Seeds that have found: a write lost to a member that had been away; a replica that was removed in epochs of the pool again; a pool that did not open, since a
/// writer had overwritten what its successor announced. There were no witnesses then, and are none in these.
const FOUND: [u64; 3] = [14_934, 41_937, 45_960];

#[test]
fn members_change_and_nothing_that_was_acknowledged_is_lost() {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in (0..seeds()).chain(FOUND) {
        let (violation, happened) = run(seed, None);
        assert_eq!(violation, None, "seed {seed}");
        for (what, times) in happened {
            *counts.entry(what).or_default() += times;
        }
    }
    println!("{counts:?}");
    let changes = ["change settled", "change made", "change undecided", "change not made", "opened in a change"];
    let witnesses = ["witness added", "witness back", "opened by a replica and a witness", "opened with a witness"];
    for what in
        [&changes[..], &witnesses, &["writer died", "target stopped", "taken over in the middle", "acknowledged"]]
            .concat()
    {
        assert!(counts.get(what).is_some_and(|times| *times > 10), "{what}: {counts:?}");
    }
}

#[test]
fn each_rule_that_is_broken_is_noticed() {
    // Each with the first seed that found it; where the model has changed, any other one does.
    for (broken, known) in [
        (Broken::OldMembersNotAsked, 402),
        (Broken::RemovedVotes, 39),
        (Broken::AnnouncedHolds, 151),
        (Broken::EpochFirst, 12_404),
        (Broken::FoundEpochNames, 99),
        (Broken::SuccessorIgnored, 45_960),
        (Broken::WitnessJoins, 27),
    ] {
        let found = iter::once(known).chain(FOUND).chain(0..20_000).find(|seed| run(*seed, Some(broken)).0.is_some());
        println!("{broken:?}: {found:?}");
        assert!(found.is_some(), "{broken:?}");
    }
}
