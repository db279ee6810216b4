//! Drives the engine's openings in the simulated world, and makes a writer's session of what they find.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use pmof_access::Durability;
use pmof_control::{OpenFor, Role};
use pmof_replication::{
    asking::{Cause, Reason, SiteId},
    epochs::Epochs,
    keeper::Kept,
    member_state::MemberState,
    opening::{self as engine, FoundPool, Left, OpenedReplica, Outcome, Refusal, Rules, ShippedRules},
    posting::AckTerms,
};
use uuid::Uuid;

use super::{
    asking::drive,
    faults::Fault,
    judging::CheckedRules,
    plan::{Control, PAGES},
    session::{Member, Open, Session, positions},
    tasks::{Lock, Shared, Tasks, sleep},
    terms,
    truth::{Pages, is_rotten, sound},
};
use crate::{
    PoolUrl, ReplicaError,
    electorate::{Electorate, Word},
    lineage::{Agreement, Apart, Found, votes_needed},
    pages::{PAGE_BYTES, PageMap},
    roster::{FoundMember, noted},
    view::{Rule, View},
};

/// Opens the pool. `None`: not this time.
pub(super) async fn open(world: &Shared, tasks: &Rc<Tasks>, writer: usize) -> Option<Rc<Session>> {
    let (takes_over, named, acknowledge) = {
        let mut world = world.borrow_mut();
        let is_partial = world.plan.has_changes && !world.is_faultless && world.random.once_in(4);
        let takes_over = world.random.once_in(6);
        let mut known: Vec<_> = (0..world.targets.len()).filter(|target| world.known[*target]).collect();
        known.retain(|_| !is_partial || world.random.once_in(2));
        (takes_over, known, terms::draw(&mut world))
    };
    let mut session = None;
    // As `in_haste`.
    for is_patient in [false, true] {
        let (outcome, sites) = ask(world, writer, &named, (takes_over, is_patient, &acknowledge)).await;
        let is_busy = matches!(&outcome.pool, Err(Refusal::Replica { cause, .. }) if is_busy(cause));
        let may_try = outcome.was_hasty && !is_busy && outcome.pool.is_err();
        if outcome.was_hasty {
            world.borrow_mut().count(Fault::OpenedInHaste);
        }
        session = match outcome.pool {
            Ok(ref pool) => open_those((world, tasks, acknowledge), writer, (&outcome, pool, &sites)).await,
            Err(_) => None,
        };
        if !may_try {
            break;
        }
    }
    if session.is_none() {
        world.borrow_mut().count(Fault::OpeningAbandoned);
    }
    session
}

fn is_busy(cause: &Cause<ReplicaError>) -> bool {
    matches!(cause, Cause::Failed(failure) if failure.is_busy())
}

/// The rules, of which a control breaks one.
struct Broken(Option<Control>);

impl Rules for Broken {
    fn electorate(&self, words: &[Word<'_>], made: u16, kept: Option<&Kept>) -> Electorate {
        if self.0 != Some(Control::AnnouncedHolds) {
            return ShippedRules.electorate(words, made, kept);
        }
        let settled: Vec<_> = words.iter().map(|word| word.roster.map(|roster| roster.settled(|_| true))).collect();
        let words = words.iter().zip(&settled).map(|(word, roster)| Word { roster: roster.as_ref(), ..*word });
        ShippedRules.electorate(&words.collect::<Vec<_>>(), made, kept)
    }

    fn is_member(&self, electorate: &Electorate, index: u16, replica_uuid: Uuid) -> bool {
        self.0 == Some(Control::RemovedVotes) || electorate.has(index, replica_uuid)
    }

    fn agree(&self, found: &[Found<'_>], made: u16, kept: Option<&Kept>) -> Result<Agreement, Vec<(usize, Apart)>> {
        if self.0 != Some(Control::MarksNotCompared) {
            return ShippedRules.agree(found, made, kept);
        }
        let mut states: Vec<_> = found.iter().map(|found| found.state.clone()).collect();
        for state in &mut states {
            state.mark = 0;
        }
        let found = found.iter().zip(&states).map(|(found, state)| Found { state, ..*found });
        ShippedRules.agree(&found.collect::<Vec<_>>(), made, kept)
    }

    fn put_behind(&self, agreement: &mut Agreement, found: &[Found<'_>]) {
        if self.0 == Some(Control::MarksNotCompared) {
            return;
        }
        agreement.put_stale_behind(found);
        agreement.put_late_behind();
        if self.0 == Some(Control::BehindAsSource) {
            agreement.in_sync.extend(agreement.behind.drain(..).map(|(position, _)| position));
            agreement.source = agreement.in_sync.last().copied().unwrap_or(agreement.source);
        }
    }

    fn is_enough(
        &self,
        electorate: &Electorate,
        agreement: &Agreement,
        found: &[Found<'_>],
        kept: Option<&Kept>,
    ) -> bool {
        match self.0 {
            Some(Control::TooFewVotes) => true,
            Some(Control::RemovedVotes) => agreement.voters().count() >= votes_needed(electorate.count().into()),
            _ => ShippedRules.is_enough(electorate, agreement, found, kept),
        }
    }
}

type Opened = Outcome<PoolUrl, ReplicaError, FoundPool>;

async fn ask(
    world: &Shared,
    writer: usize,
    named: &[usize],
    (takes_over, is_patient, acknowledge): (bool, bool, &AckTerms),
) -> (Opened, BTreeMap<SiteId, usize>) {
    let terms = engine::Terms {
        require: Durability::Visible,
        min_replicas: None,
        take_over: takes_over.then_some(Duration::ZERO),
        least_replicas: acknowledge.least,
        least_domains: acknowledge.domains,
        is_patient,
        keeper: world.borrow().plan.keeper,
    };
    let (places, rules) = {
        let world = world.borrow();
        (named.iter().map(|target| Arc::clone(&world.urls[*target])).collect::<Vec<_>>(), Broken(world.control))
    };
    drive(world, writer, named, engine::Opening::open(terms, OpenFor::Write, places, rules)).await
}

async fn open_those(
    (world, tasks, terms): (&Shared, &Rc<Tasks>, AckTerms),
    writer: usize,
    (outcome, pool, sites): (&Opened, &FoundPool, &BTreeMap<SiteId, usize>),
) -> Option<Rc<Session>> {
    let is_outside = |(_, cause): &&(usize, Cause<ReplicaError>)| {
        matches!(cause, Cause::Reason(Reason::Outside { .. } | Reason::Asynchronous { .. }))
    };
    let outsiders: Vec<_> = outcome.left_out.iter().filter(is_outside).map(|(position, _)| *position).collect();
    if !outsiders.is_empty() {
        world.borrow_mut().count(Fault::NonMemberLeftOut);
    }
    let session = new_session((world, tasks, terms), writer, (outcome, pool, sites), &outsiders);
    // What the opening has released is of no use any more.
    let of_member = |connection: &usize| pool.opened.iter().any(|opened| sites.get(&opened.site) == Some(connection));
    sites
        .values()
        .filter(|connection| !of_member(connection))
        .for_each(|connection| world.borrow_mut().close_here(*connection));
    let leaving = session.leaving_places(&pool.electorate);
    let found = session.begin(pool.left == Left::Closed, pool.source).await;
    let Some(found) = found else {
        session.give_up();
        return None;
    };
    session.pause_before_success().await;
    for (position, _) in leaving {
        session.take_out(position).await;
    }
    Some(started(world, session, &found, &pool.electorate))
}

/// What the members are, and what they keep, before the opening's epoch.
fn new_session(
    (world, tasks, terms): (&Shared, &Rc<Tasks>, AckTerms),
    writer: usize,
    (outcome, pool, sites): (&Opened, &FoundPool, &BTreeMap<SiteId, usize>),
    outsiders: &[usize],
) -> Session {
    let electorate = &pool.electorate;
    let target_of = |url: &Arc<PoolUrl>| world.borrow().urls.iter().position(|known| known == url).unwrap_or(0);
    let targets: Vec<_> = outcome.places.iter().map(target_of).collect();
    let is_witness_at = |target: usize| {
        let url = world.borrow().urls[target].to_string();
        electorate.roster.members.iter().any(|member| member.role == Role::Witness && member.url == url)
    };
    let absent = |target: &usize| Member::new(*target, None, false).of_witness(is_witness_at(*target));
    let mut members: Vec<_> = targets.iter().map(absent).map(Rc::new).collect();
    for position in outsiders {
        members[*position] = Rc::new(Member::none(targets[*position]));
    }
    let mut indexes = vec![None; targets.len()];
    for OpenedReplica { position, site, index, behind, is_witness, .. } in &pool.opened {
        let connection = sites.get(site).copied();
        let member = Member::new(targets[*position], connection, behind.is_some()).of_witness(*is_witness);
        indexes[*position] = Some(*index);
        members[*position] = Rc::new(member);
    }
    let without = |rule: Rule, is_out: &dyn Fn(u16) -> bool| {
        let known = indexes.iter().enumerate().filter_map(|(position, index)| Some((position, (*index)?)));
        known.filter(|(_, index)| is_out(*index)).fold(rule, |rule, (position, _)| rule.without(position))
    };
    let keeper = world.borrow().plan.keeper;
    let rule_of = |count: usize| Rule::of(count).kept_by(keeper);
    let rule = without(rule_of(electorate.count().into()), &|index| electorate.is_leaving(index));
    let before = electorate.before().map(|(count, has)| without(rule_of(count), &|index| !has(index)));
    let in_use = positions(&members, MemberState::is_in_sync);
    let mut view = View::new(rule, indexes, pool.base.clone(), pool.mark, in_use);
    let marked = pool.opened.iter().filter(|opened| opened.state.mark == pool.mark);
    view.note_found_marked(marked.fold(0, |all, opened| all | 1 << opened.position));
    if let Some(before) = before {
        view.found_changed(before);
        world.borrow_mut().count(Fault::OpenedInChange);
    }
    let mut membership = crate::membership::Membership::default();
    if let Some(kept) = electorate.kept() {
        let found = pool.opened.iter().map(|opened| FoundMember {
            index: opened.index,
            replica_uuid: opened.replica_uuid,
            url: Arc::clone(&outcome.places[opened.position]),
        });
        let roster = noted(kept, &found.collect::<Vec<_>>());
        let keeps = |opened: &&OpenedReplica| opened.roster.as_ref().is_none_or(|kept| *kept == roster);
        let keepers = pool.opened.iter().filter(keeps).fold(0, |all, opened| all | 1 << opened.position);
        membership.keep(roster, keepers);
    }
    let count = members.len();
    let written = Arc::new(PageMap::new(PAGES as u64 * PAGE_BYTES));
    let rules = CheckedRules { world: Rc::clone(world) };
    let open = Open { rules, members: members.clone(), catching_up: Vec::new(), written };
    Session {
        world: Rc::clone(world),
        tasks: Rc::clone(tasks),
        writer,
        number: None,
        open: RefCell::new(Rc::new(open)),
        members: RefCell::new(members),
        epochs: RefCell::new(Epochs::new(view, membership)),
        changing: Lock::default(),
        diverged: Cell::new(0),
        followings: RefCell::default(),
        first_opening: Cell::new(0),
        written_bytes: Cell::new(0),
        kept_pages: RefCell::default(),
        pointing: Lock::default(),
        at_point: RefCell::default(),
        has_stopped_following: Cell::new(false),
        writes: Arc::default(),
        under_way: RefCell::default(),
        view_lock: Lock::default(),
        hold: Lock::default(),
        posting: Cell::new(0),
        older: RefCell::default(),
        terms,
        is_stopping: Cell::new(false),
        is_marked: Cell::new(false),
        page_locks: Default::default(),
        lanes: Cell::new(0),
        attended: RefCell::new(vec![false; count]),
        candidate: Cell::new(None),
        trust: RefCell::default(),
        verifying: Cell::new(0),
    }
}
/// The pool is open: what it holds is what whoever opened it is told.
fn started(world: &Shared, mut session: Session, found: &Pages, electorate: &Electorate) -> Rc<Session> {
    let opening = session.view().opening();
    session.first_opening.set(opening);
    *session.kept_pages.borrow_mut() = sound(found);
    if found.iter().any(is_rotten) {
        world.borrow_mut().count(Fault::RotFoundByOpening);
    }
    let promoted = world.borrow().promoted;
    // What the former members are found to be is no longer a pool.
    let is_former = promoted.is_some_and(|promoted| !session.targets_in_use().contains(&promoted));
    session.number = if is_former { None } else { world.borrow_mut().truth.opened(session.writer, opening, found) };
    if session.number.is_some() {
        session.check_equal();
    } else {
        world.borrow_mut().count(Fault::FencedWhileOpening);
    }
    let in_use = session.in_use();
    if (in_use.count_ones() as usize) < electorate.data_count() {
        world.borrow_mut().count(Fault::OpenedWithoutAll);
    }
    let connected = positions(&session.members.borrow(), MemberState::is_connected).count_ones() as usize;
    if connected < votes_needed(electorate.count().into()) {
        world.borrow_mut().count(Fault::OpenedByKeeper);
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
        let view = self.view();
        let known = (0..self.members.borrow().len()).filter_map(|position| Some((position, view.index(position)?)));
        known.filter(|(_, index)| electorate.is_leaving(*index)).collect()
    }
}
