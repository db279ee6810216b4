//! Writers, targets and a network that fail in every way a seed gives. Openings, looks, epochs, returns, changes of members, writes, persists and asynchronous members are driven by the
//! engine of `pmof-replication`, and targets by that of `pmof-target`, as they ship.
//!
//! One seed is one run. `cargo xtask simulate` runs many of them.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use pmof_replication::keeper::KeptBy;

use faults::Fault;
use plan::{Control, Plan};
use session::Session;
use tasks::{Shared, Tasks, sleep, until};
use world::World;

mod areas;
mod asking;
mod attached;
mod comparing;
mod failing;
mod farm;
mod faults;
mod following;
mod judging;
mod keeper;
mod keeping;
mod lost_join;
mod media;
mod members;
mod names;
mod opening;
mod plan;
mod posting;
mod promoting;
mod random;
mod reading;
mod returning;
mod scrubbing;
mod serving;
mod session;
mod site;
mod surveying;
mod target;
mod tasks;
mod terms;
mod truth;
mod versions;
mod watching;
mod world;

/// Steps within which a pool without faults is whole again.
const FAULTLESS_STEPS: u64 = 20_000;

/// Steps in which a former writer lives on behind a promotion.
const FORMER_STEPS: u64 = 300;

/// Members that are lost then, one after the other: they return by the map of pages that were written meanwhile.
const LOSSES_AT_REST: usize = 4;

/// In one of so many steps a bit of a state page flips, in runs that have such rot.
const STATE_ROT_RATE: usize = 30;

/// How a run ended.
struct Outcome {
    violation: Option<String>,
    /// Steps until it ended, or until things began to go well.
    chaos_steps: u64,
    faults: BTreeMap<Fault, u64>,
    acknowledged: u64,
    readers: u64,
    trace: Vec<String>,
}

/// One run. `limit`: steps after which nothing goes wrong any more, fewer than the seed has.
fn run(seed: u64, control: Option<Control>, limit: Option<u64>, is_traced: bool) -> Outcome {
    let plan = Plan::of(seed).with(control);
    let chaos_steps = limit.map_or(plan.chaos_steps, |limit| limit.min(plan.chaos_steps));
    let mut world = World::new(seed, plan, control);
    world.trace = is_traced.then(Vec::new);
    let world: Shared = Rc::new(RefCell::new(world));
    let tasks = Rc::new(Tasks::default());
    for writer in 0..plan.writers {
        tasks.start(writer, write_again_and_again(Rc::clone(&world), Rc::clone(&tasks), writer));
    }
    // A look asks no keeper but the members.
    if plan.keeper == KeptBy::Members && matches!(control, None | Some(Control::FewSurveyed)) {
        let looker = world.borrow().looker();
        tasks.start(looker, surveying::look_on(Rc::clone(&world)));
    }
    let ran = catch_unwind(AssertUnwindSafe(|| run_all(seed, (&world, &tasks), plan, chaos_steps)));
    let ended_at = ran.unwrap_or_else(|panic| {
        // An assertion of the library has failed.
        let fixed = || panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = panic.downcast_ref::<String>().cloned().or_else(fixed).unwrap_or_default();
        world.borrow_mut().truth.violate(|| format!("panicked: {text}"));
        chaos_steps
    });
    let mut world = world.borrow_mut();
    let trace = world.trace.take().unwrap_or_default();
    let (violation, faults) = (world.truth.violation.take(), std::mem::take(&mut world.faults));
    Outcome {
        violation,
        chaos_steps: ended_at,
        faults,
        acknowledged: world.truth.acknowledged,
        readers: world.readers,
        trace,
    }
}

/// The steps in which something fails, and those in which the pool becomes whole again. Returns how many the first were.
fn run_all(seed: u64, (world, tasks): (&Shared, &Rc<Tasks>), plan: Plan, chaos_steps: u64) -> u64 {
    let is_read = world.borrow().control.is_none();
    let mut readers = random::Random::new(seed.rotate_left(32));
    let mut decay = random::Random::new(seed.rotate_left(40));
    while world.borrow().step < chaos_steps && world.borrow().truth.violation.is_none() {
        step(world, tasks);
        if is_read && readers.once_in(8) {
            reading::read_somewhere(&mut world.borrow_mut(), &mut readers);
        }
        if world.borrow().step % 128 == 0 {
            promoting::check_somewhere(&mut world.borrow_mut());
        }
        if world.borrow_mut().random.once_in(plan.fault_rate) {
            fail_something(world, tasks, plan.writers);
        }
        fail_in_change(world, tasks);
        let has_joined = world.borrow_mut().go_on_with_lost_join();
        if let Some(writer) = has_joined {
            fail_writer(world, tasks, writer, true);
        }
        if plan.has_state_rot && decay.once_in(STATE_ROT_RATE) {
            world.borrow_mut().rot_head();
        }
    }
    let chaos_steps = world.borrow().step;
    if world.borrow().truth.violation.is_none() {
        let former = plan.has_former_writer.then_some(0);
        for writer in (0..plan.writers).filter(|writer| Some(*writer) != former) {
            crash(world, tasks, writer);
        }
        tasks.kill(world.borrow().looker());
        world.borrow_mut().heal();
        if plan.ends_with_promotion {
            promoting::promote(&mut world.borrow_mut());
        }
        if let Some(former) = former {
            live_on(world, tasks, former);
        }
        come_to_rest(world, tasks, plan.writers);
    }
    chaos_steps
}

/// A former writer does not know that the asynchronous member was promoted.
fn live_on(world: &Shared, tasks: &Tasks, former: usize) {
    tasks.resume(former);
    let until = world.borrow().step + FORMER_STEPS;
    while world.borrow().step < until && world.borrow().truth.violation.is_none() {
        step(world, tasks);
    }
    crash(world, tasks, former);
}

fn step(world: &Shared, tasks: &Tasks) {
    let first = {
        let mut world = world.borrow_mut();
        world.step += 1;
        world.advance();
        world.advance_keeper();
        world.random.below(64)
    };
    tasks.poll(first);
}

fn fail_something(world: &Shared, tasks: &Rc<Tasks>, writer_count: usize) {
    let (writer, kind) = {
        let mut world = world.borrow_mut();
        (world.random.below(writer_count), world.random.below(8))
    };
    match kind {
        0 | 1 => fail_writer(world, tasks, writer, kind == 0),
        2 => tasks.resume(writer),
        _ => world.borrow_mut().fail_something(),
    }
}

/// A writer crashes and begins anew, or hangs.
fn fail_writer(world: &Shared, tasks: &Rc<Tasks>, writer: usize, crashes: bool) {
    if crashes {
        crash(world, tasks, writer);
        tasks.start(writer, write_again_and_again(Rc::clone(world), Rc::clone(tasks), writer));
    } else {
        world.borrow_mut().count(Fault::WriterPaused);
        tasks.pause(writer);
    }
}

/// More goes wrong while the members change: between any two steps the writer crashes, or hangs while others go on, or a target stops.
fn fail_in_change(world: &Shared, tasks: &Rc<Tasks>) {
    let (writer, kind) = {
        let mut world = world.borrow_mut();
        let Some(writer) = world.is_changing.iter().position(|is_changing| *is_changing) else { return };
        if !world.random.once_in(80) {
            return;
        }
        (writer, world.random.below(4))
    };
    match kind {
        0 | 1 => fail_writer(world, tasks, writer, kind == 0),
        _ => world.borrow_mut().fail_something(),
    }
}

fn crash(world: &Shared, tasks: &Tasks, writer: usize) {
    tasks.kill(writer);
    let mut world = world.borrow_mut();
    world.count(Fault::WriterCrashed);
    world.note(|| format!("w{writer} crashes"));
    if std::mem::take(&mut world.is_changing[writer]) {
        world.count(Fault::CrashedInChange);
    }
    for connection in world.connections.iter_mut().filter(|connection| connection.writer == writer) {
        connection.is_open_here = false;
    }
}

/// A writer's process: it opens the pool, writes from one or two threads, and closes it.
async fn write_again_and_again(world: Shared, tasks: Rc<Tasks>, writer: usize) {
    loop {
        let pause = world.borrow_mut().random.below(60);
        sleep(&world, pause).await;
        let Some(session) = opening::open(&world, &tasks, writer).await else { continue };
        start_threads(&session);
        let length = 20 + world.borrow_mut().random.below(400);
        sleep(&world, length).await;
        session.close().await;
    }
}

fn start_threads(session: &Rc<Session>) {
    session.tasks.start(session.writer, Rc::clone(session).watch());
    if session.world.borrow_mut().keeper.as_mut().is_some_and(keeper::Outside::is_watched) {
        session.tasks.start(session.writer, Rc::clone(session).watch_keeper());
    }
    let lanes = 1 + session.world.borrow_mut().random.below(2);
    for _ in 0..lanes {
        let session = Rc::clone(session);
        session.tasks.clone().start(session.writer, async move { session.write_on().await });
    }
    if session.world.borrow().plan.has_rot {
        session.tasks.start(session.writer, Rc::clone(session).scrub_on());
    }
    session.start_followers();
    let names_points = !session.followings.borrow().is_empty();
    if names_points {
        session.tasks.start(session.writer, Rc::clone(session).name_points());
    }
    if session.world.borrow().plan.has_changes {
        session.tasks.start(session.writer, Rc::clone(session).look_for_spares());
    }
    let operators = {
        let world = &mut *session.world.borrow_mut();
        if world.plan.has_changes && !world.is_faultless { world.random.below(3) } else { 0 }
    };
    for _ in 0..operators {
        session.tasks.start(session.writer, Rc::clone(session).operate());
    }
}

/// Nothing goes wrong any more: one writer opens the pool, all members come back, and they are equal.
fn come_to_rest(world: &Shared, tasks: &Rc<Tasks>, writer_count: usize) {
    let stage = Rc::new(RefCell::new("opening"));
    let whole = Rc::new(RefCell::new((Vec::new(), Vec::new())));
    tasks.start(writer_count, {
        let (world, tasks, stage, whole) = (Rc::clone(world), Rc::clone(tasks), Rc::clone(&stage), Rc::clone(&whole));
        async move {
            let session = loop {
                if let Some(session) = opening::open(&world, &tasks, writer_count).await {
                    break session;
                }
                sleep(&world, 20).await;
            };
            *stage.borrow_mut() = "catching up";
            start_threads(&session);
            until(|| session.is_whole()).await;
            *stage.borrow_mut() = "losing one member after the other";
            for _ in 0..LOSSES_AT_REST {
                session.lose_one();
                let pause = world.borrow_mut().random.below(60);
                sleep(&world, pause).await;
                until(|| session.has_noticed_losses() && session.is_whole()).await;
            }
            world.borrow_mut().is_at_rest = true;
            until(|| session.verifying.get() == 0 && session.has_noticed_losses() && session.is_whole()).await;
            session.check_keeper();
            *stage.borrow_mut() = "scrubbing";
            session.rot_somewhere();
            let undecided = loop {
                if let Some(undecided) = session.scrub().await {
                    break undecided;
                }
                sleep(&world, 20).await;
            };
            *stage.borrow_mut() = "looked at";
            let all: Vec<_> = (0..world.borrow().targets.len()).collect();
            while surveying::look(&world, &all).await != session.targets_in_use().into_iter().collect() {
                sleep(&world, 20).await;
            }
            *whole.borrow_mut() = (session.targets_in_use(), undecided);
            *stage.borrow_mut() = "closing";
            session.close().await;
        }
    });
    let last = world.borrow().step + FAULTLESS_STEPS;
    while !tasks.is_idle(writer_count) && world.borrow().step < last && world.borrow().truth.violation.is_none() {
        step(world, tasks);
    }
    let mut world = world.borrow_mut();
    if world.truth.violation.is_some() {
        return;
    }
    if !tasks.is_idle(writer_count) {
        let brief = |target: &target::Target| {
            let roster = target.roster.as_ref().map(|roster| world::brief_roster(roster));
            format!("{}: {}, {roster:?}", target.index, world::brief(&target.state))
        };
        let states: Vec<_> = world.targets.iter().filter(|target| target.is_there).map(brief).collect();
        let stage = *stage.borrow();
        world.truth.violate(|| format!("without faults the pool is not whole again; it is {stage}: {states:#?}"));
        return;
    }
    let (whole, undecided) = &*whole.borrow();
    check_at_rest(&mut world, whole, undecided);
}

/// The members are equal, but for pages of which nothing says which copy is right, and have all that was acknowledged.
fn check_at_rest(world: &mut World, whole: &[usize], undecided: &[usize]) {
    let committed = world.truth.committed();
    let contents: Vec<_> = whole.iter().map(|target| world.targets[*target].durable).collect();
    let lacks = |pages: &truth::Pages| {
        let found = truth::sound(pages);
        found.iter().flatten().zip(committed.iter().flatten()).any(|(found, committed)| found < committed)
    };
    let differs = |pages: &truth::Pages| {
        let is_equal = |page: &usize| pages[*page] == contents[0][*page];
        let is_sound = world.rotten == 0 && !undecided.is_empty();
        is_sound || (0..plan::PAGES).any(|page| !is_equal(&page) && !undecided.contains(&page))
    };
    if contents.iter().any(|pages| differs(pages) || lacks(pages)) {
        world.truth.violate(|| {
            format!("at rest the members hold {contents:?}, {undecided:?} undecided; {committed:?} was acknowledged")
        });
    }
}
