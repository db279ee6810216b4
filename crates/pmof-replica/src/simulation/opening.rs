//! How a writer opens the pool, as `pool/opening.rs` has it, with its own decisions.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use pmof_control::{Claim, Request, Role, Roster};
use pmof_replication::member_state::MemberState;

use super::{
    faults::Fault,
    plan::{Control, PAGES},
    session::{Member, Open, Session, ask, fail, positions},
    target::{Answer, Message, Replica},
    tasks::{Lock, Shared, Tasks, sleep},
    truth::{Pages, is_rotten, sound},
    versions::{Version, is_left_out},
    world::World,
};
use crate::{
    electorate::{Electorate, Word},
    lineage::{Agreement, Found, agree, votes_needed},
    pages::{PAGE_BYTES, PageMap},
    roster::{FoundMember, elsewhere, newest, noted},
    view::{Rule, View},
};

/// A target that has opened its replica.
struct Opened {
    target: usize,
    connection: usize,
    replica: Replica,
    roster: Option<Roster>,
}

/// What those say that were asked.
#[derive(Default)]
struct Asked {
    /// In the order of their places.
    targets: Vec<usize>,
    opened: Vec<Opened>,
    /// Somebody else has one of them open.
    is_busy: bool,
    /// One of them has another version, without which nobody goes on.
    is_refused: bool,
}

/// Opens the pool. `None`: not this time.
pub(super) async fn open(world: &Shared, tasks: &Rc<Tasks>, writer: usize) -> Option<Rc<Session>> {
    let asked = ask_all(world, writer).await;
    let session = if asked.is_busy || asked.is_refused {
        release(world, &asked.opened).await;
        None
    } else {
        open_those(world, tasks, writer, asked).await
    };
    if session.is_none() {
        world.borrow_mut().count(Fault::OpeningAbandoned);
    }
    session
}

/// Asks those that a program would name, and then those that they know of.
async fn ask_all(world: &Shared, writer: usize) -> Asked {
    let (takes_over, named) = {
        let mut world = world.borrow_mut();
        let is_partial = world.plan.has_changes && !world.is_faultless && world.random.once_in(4);
        let takes_over = world.random.once_in(6);
        let mut known: Vec<_> = (0..world.targets.len()).filter(|target| world.known[*target]).collect();
        known.retain(|_| !is_partial || world.random.once_in(2));
        (takes_over, known)
    };
    let mut asked = Asked::default();
    ask_those(world, (writer, takes_over), &named, &mut asked).await;
    let mut followed: Option<Roster> = None;
    loop {
        let newest = newest(asked.opened.iter().filter_map(|opened| opened.roster.as_ref()));
        let newer = newest.filter(|newest| followed.as_ref().is_none_or(|followed| newest.age() > followed.age()));
        let Some(roster) = newer.cloned() else { return asked };
        let others = {
            let world = world.borrow();
            let named: Vec<_> = asked.targets.iter().map(|target| Arc::clone(&world.urls[*target])).collect();
            let others = elsewhere(&roster, &found_at(&asked.opened, &world.urls), &named);
            let target_of = |other: FoundMember| world.urls.iter().position(|url| *url == other.url);
            others.into_iter().filter_map(target_of).collect::<Vec<_>>()
        };
        if !others.is_empty() {
            world.borrow_mut().count(Fault::OpenedByFollowedAddress);
        }
        ask_those(world, (writer, takes_over), &others, &mut asked).await;
        followed = Some(roster);
    }
}

async fn ask_those(world: &Shared, (writer, takes_over): (usize, bool), targets: &[usize], asked: &mut Asked) {
    let mut order = targets.to_vec();
    order.sort_by_key(|target| world.borrow().targets[*target].restored.is_some());
    for target in order {
        let Some(connection) = world.borrow_mut().connect(writer, target) else { continue };
        let member = Member::new(target, Some(connection), false);
        match ask(world, &member, Message::Open { takes_over, claim: Claim::None }).await {
            Some(Answer::Opened(replica)) => {
                let roster = replica.roster.as_deref().cloned();
                asked.opened.push(Opened { target, connection, replica: *replica, roster });
            }
            Some(Answer::Busy) => {
                asked.is_busy = true;
                fail(world, &member);
            }
            Some(Answer::OtherVersion(version, reply)) => {
                asked.is_refused |= !goes_on_without(&mut world.borrow_mut(), version, &reply);
                fail(world, &member);
            }
            Some(_) => fail(world, &member),
            None => {}
        }
    }
    asked.targets.extend(targets);
    let place = |opened: &Opened| asked.targets.iter().position(|target| *target == opened.target);
    asked.opened.sort_by_key(place);
}

/// Whether an opening goes on without a member of another version, of which the writer is told.
fn goes_on_without(world: &mut World, version: Version, reply: &[u8]) -> bool {
    match is_left_out(version, reply) {
        Ok(is_left_out) => {
            world.count(if is_left_out { Fault::VersionLeftOut } else { Fault::VersionRefusedPool });
            is_left_out
        }
        Err(text) => {
            world.truth.violate(|| text);
            true
        }
    }
}

fn found_at(opened: &[Opened], urls: &[Arc<crate::PoolUrl>]) -> Vec<FoundMember> {
    let found = |opened: &Opened| {
        let Replica { index, uuid: replica_uuid, .. } = opened.replica;
        FoundMember { index, replica_uuid, url: Arc::clone(&urls[opened.target]) }
    };
    opened.iter().map(found).collect()
}

async fn release(world: &Shared, opened: &[Opened]) {
    for Opened { target, connection, .. } in opened {
        let member = Member::new(*target, Some(*connection), false);
        let _ = ask(world, &member, Message::Tell(Request::Close { in_order: false })).await;
        fail(world, &member);
    }
}

fn words(opened: &[Opened]) -> Vec<Word<'_>> {
    let words = opened.iter().map(|opened| Word {
        found: Found { index: opened.replica.index, state: &opened.replica.state },
        replica_uuid: opened.replica.uuid,
        roster: opened.roster.as_ref(),
    });
    words.collect()
}

/// As `Opening::judge` does, of members.
fn judge(control: Option<Control>, opened: &[Opened], electorate: &Electorate) -> Option<Agreement> {
    if opened.is_empty() {
        return None;
    }
    let mut states: Vec<_> = opened.iter().map(|opened| opened.replica.state.clone()).collect();
    if control == Some(Control::MarksNotCompared) {
        for state in &mut states {
            state.mark = 0;
        }
    }
    let found = opened.iter().zip(&states).map(|(opened, state)| Found { index: opened.replica.index, state });
    let found: Vec<_> = found.collect();
    let mut agreement = agree(&found, electorate.count()).ok()?;
    agreement.put_stale_behind(&found);
    agreement.put_late_behind();
    if control == Some(Control::BehindAsSource) {
        agreement.in_sync.extend(agreement.behind.drain(..).map(|(position, _)| position));
        agreement.source = agreement.in_sync.last().copied()?;
    }
    let votes = agreement.in_sync.len() + agreement.behind.iter().filter(|(_, apart)| apart.votes()).count();
    let is_enough = match control {
        Some(Control::TooFewVotes) => true,
        Some(Control::RemovedVotes) => votes >= votes_needed(electorate.count().into()),
        _ => electorate.is_enough(&agreement, &found),
    };
    is_enough.then_some(agreement)
}

async fn open_those(world: &Shared, tasks: &Rc<Tasks>, writer: usize, asked: Asked) -> Option<Rc<Session>> {
    let Asked { targets, mut opened, .. } = asked;
    let (control, made) = (world.borrow().control, world.borrow().plan.made as u16);
    if control == Some(Control::AnnouncedHolds) {
        for roster in opened.iter_mut().filter_map(|opened| opened.roster.as_mut()) {
            *roster = roster.settled(|_| true);
        }
    }
    let electorate = Electorate::of(&words(&opened), made);
    let is_member = |opened: &Opened| {
        let Replica { index, uuid: replica_uuid, .. } = opened.replica;
        control == Some(Control::RemovedVotes) || electorate.has(index, replica_uuid)
    };
    let (mut opened, others): (Vec<_>, Vec<_>) = opened.into_iter().partition(is_member);
    if !others.is_empty() {
        world.borrow_mut().count(Fault::NonMemberLeftOut);
    }
    release(world, &others).await;
    let Some(agreement) = judge(control, &opened, &electorate) else {
        release(world, &opened).await;
        return None;
    };
    let source = opened[agreement.source].target;
    let (is_clean, source) = (agreement.is_clean, targets.iter().position(|target| *target == source)?);
    let session = new_session(world, tasks, writer, (&targets, &mut opened, &others), &electorate, agreement);
    let leaving = session.leaving_places(&electorate);
    let found = session.begin(is_clean, source).await;
    let Some(found) = found else {
        session.give_up();
        return None;
    };
    session.pause_before_success().await;
    for (position, _) in leaving {
        session.take_out(position).await;
    }
    Some(started(world, session, &found, &electorate))
}

/// What the members are, and what they keep, before the opening's epoch.
fn new_session(
    world: &Shared,
    tasks: &Rc<Tasks>,
    writer: usize,
    (targets, opened, others): (&[usize], &mut Vec<Opened>, &[Opened]),
    electorate: &Electorate,
    agreement: Agreement,
) -> Session {
    let place = |target: usize| targets.iter().position(|known| *known == target);
    let is_witness_at = |target: usize| {
        let url = world.borrow().urls[target].to_string();
        electorate.roster.members.iter().any(|member| member.role == Role::Witness && member.url == url)
    };
    let absent = |target: &usize| Member::new(*target, None, false).of_witness(is_witness_at(*target));
    let mut members: Vec<_> = targets.iter().map(absent).map(Rc::new).collect();
    for other in others {
        members[place(other.target).unwrap_or(0)] = Rc::new(Member::none(other.target));
    }
    let mut indexes = vec![None; targets.len()];
    for (at, Opened { target, connection, replica, .. }) in opened.iter().enumerate() {
        let Some(position) = place(*target) else { continue };
        let is_witness = electorate.is_witness(replica.index, replica.uuid);
        let member = Member::new(*target, Some(*connection), !agreement.in_sync.contains(&at)).of_witness(is_witness);
        if agreement.foreign.iter().any(|(foreign, _)| *foreign == at) {
            fail(world, &member);
        } else {
            indexes[position] = Some(replica.index);
        }
        members[position] = Rc::new(member);
    }
    let without = |rule: Rule, is_out: &dyn Fn(u16) -> bool| {
        let known = indexes.iter().enumerate().filter_map(|(position, index)| Some((position, (*index)?)));
        known.filter(|(_, index)| is_out(*index)).fold(rule, |rule, (position, _)| rule.without(position))
    };
    let rule = without(Rule::of(electorate.count().into()), &|index| electorate.is_leaving(index));
    let before = electorate.before().map(|(count, has)| without(Rule::of(count), &|index| !has(index)));
    let in_use = positions(&members, MemberState::is_in_sync);
    let mut view = View::new(rule, indexes, agreement.base, agreement.mark, in_use);
    if let Some(before) = before {
        view.found_changed(before);
        world.borrow_mut().count(Fault::OpenedInChange);
    }
    let mut membership = crate::membership::Membership::default();
    if let Some(kept) = electorate.kept() {
        let roster = noted(kept, &found_at(opened, &world.borrow().urls));
        let keeps = |opened: &&Opened| opened.roster.as_ref().is_none_or(|kept| *kept == roster);
        let keepers = opened.iter().filter(keeps).filter_map(|opened| place(opened.target));
        let keepers = keepers.fold(0, |all, position| all | 1 << position);
        membership.keep(roster, keepers);
    }
    let count = members.len();
    let written = Arc::new(PageMap::new(PAGES as u64 * PAGE_BYTES));
    let open = Open { members: members.clone(), catching_up: Vec::new(), written };
    Session {
        world: Rc::clone(world),
        tasks: Rc::clone(tasks),
        writer,
        number: None,
        open: RefCell::new(Rc::new(open)),
        members: RefCell::new(members),
        view: RefCell::new(view),
        membership: RefCell::new(membership),
        changing: Lock::default(),
        diverged: Cell::new(0),
        followings: RefCell::default(),
        first_opening: Cell::new(0),
        written_bytes: Cell::new(0),
        kept_pages: RefCell::default(),
        pointing: Lock::default(),
        writes: Arc::default(),
        under_way: RefCell::default(),
        view_lock: Lock::default(),
        hold: Lock::default(),
        posting: Cell::new(0),
        older: RefCell::default(),
        is_stopping: Cell::new(false),
        has_ended: Cell::new(false),
        changes: Cell::new(0),
        is_marked: Cell::new(false),
        page_locks: Default::default(),
        lanes: Cell::new(0),
        attended: RefCell::new(vec![false; count]),
    }
}

/// The pool is open: what it holds is what whoever opened it is told.
fn started(world: &Shared, mut session: Session, found: &Pages, electorate: &Electorate) -> Rc<Session> {
    let opening = session.view.borrow().opening();
    session.first_opening.set(opening);
    *session.kept_pages.borrow_mut() = sound(found);
    if found.iter().any(is_rotten) {
        world.borrow_mut().count(Fault::RotFoundByOpening);
    }
    session.number = world.borrow_mut().truth.opened(session.writer, opening, found);
    if session.number.is_some() {
        session.check_equal();
    } else {
        world.borrow_mut().count(Fault::FencedWhileOpening);
    }
    let in_use = session.in_use();
    if (in_use.count_ones() as usize) < electorate.data_count() {
        world.borrow_mut().count(Fault::OpenedWithoutAll);
    }
    let witnesses = positions(&session.members.borrow(), |state| state.is_witness() && state.is_connected());
    if in_use.is_power_of_two() && witnesses != 0 {
        world.borrow_mut().count(Fault::OpenedByReplicaAndWitness);
    }
    let writer = session.writer;
    world.borrow_mut().note(|| format!("w{writer} has opened the pool, in sync {in_use:b}: {found:?}"));
    Rc::new(session)
}

impl Session {
    /// The process is stopped now and then when all is done and it does not know yet.
    async fn pause_before_success(&self) {
        let pause = {
            let world = &mut *self.world.borrow_mut();
            let is_paused = !world.is_faultless && world.plan.writers > 1 && world.random.once_in(5);
            if is_paused { 50 + world.random.below(400) } else { 0 }
        };
        if pause > 0 {
            self.world.borrow_mut().count(Fault::WriterPausedWhileOpening);
            sleep(&self.world, pause).await;
        }
    }

    /// Those that a change of the members has removed before the pool was opened, and that may not know.
    fn leaving_places(&self, electorate: &Electorate) -> Vec<(usize, u16)> {
        let view = self.view.borrow();
        let known = (0..self.members.borrow().len()).filter_map(|position| Some((position, view.index(position)?)));
        known.filter(|(_, index)| electorate.is_leaving(*index)).collect()
    }
}
