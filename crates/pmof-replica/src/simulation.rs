//! Writers, targets and a network that fail in every way a seed gives, around the decisions that the library ships: who belongs together
//! (`lineage.rs`), epochs and marks (`view.rs`), what is copied (`catch_up.rs`, `pages.rs`), and a target's change of its state
//! (`PoolState`). What drives these decisions, in `pool.rs` and below, is written once more here, step by step.
//!
//! One seed is one run. `cargo xtask simulate` runs many of them.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use plan::Control;
use session::Session;
use tasks::{Shared, Tasks, sleep, until};
use world::{Fault, World};

mod farm;
mod names;
mod plan;
mod random;
mod reading;
mod returning;
mod session;
mod tasks;
mod truth;
mod world;

/// Steps within which a pool without faults is whole again.
const FAULTLESS_STEPS: u64 = 20_000;

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
    let mut random = random::Random::new(!seed);
    let (target_count, writer_count) = ([2, 3, 3, 5][random.below(4)], 1 + random.below(2));
    let chaos_steps = 200 + random.below(1500) as u64;
    let fault_rate = [15, 30, 60][random.below(3)];
    let chaos_steps = limit.map_or(chaos_steps, |limit| limit.min(chaos_steps));
    let mut world = World::new(seed, target_count, writer_count + 1, control);
    world.trace = is_traced.then(Vec::new);
    let world: Shared = Rc::new(RefCell::new(world));
    let tasks = Rc::new(Tasks::default());
    for writer in 0..writer_count {
        tasks.start(writer, write_again_and_again(Rc::clone(&world), Rc::clone(&tasks), writer));
    }
    let mut readers = random::Random::new(seed.rotate_left(32));
    while world.borrow().step < chaos_steps && world.borrow().truth.violation.is_none() {
        step(&world, &tasks);
        if control.is_none() && readers.once_in(8) {
            reading::read_somewhere(&mut world.borrow_mut(), &mut readers);
        }
        if world.borrow_mut().random.once_in(fault_rate) {
            fail_something(&world, &tasks, writer_count);
        }
    }
    let chaos_steps = world.borrow().step;
    if world.borrow().truth.violation.is_none() {
        come_to_rest(&world, &tasks, writer_count);
    }
    let mut world = world.borrow_mut();
    let trace = world.trace.take().unwrap_or_default();
    let (violation, faults) = (world.truth.violation.take(), std::mem::take(&mut world.faults));
    Outcome { violation, chaos_steps, faults, acknowledged: world.truth.acknowledged, readers: world.readers, trace }
}

fn step(world: &Shared, tasks: &Tasks) {
    let first = {
        let mut world = world.borrow_mut();
        world.step += 1;
        world.advance();
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
        0 => {
            crash(world, tasks, writer);
            tasks.start(writer, write_again_and_again(Rc::clone(world), Rc::clone(tasks), writer));
        }
        1 => {
            world.borrow_mut().count(Fault::WriterPaused);
            tasks.pause(writer);
        }
        2 => tasks.resume(writer),
        _ => world.borrow_mut().fail_something(),
    }
}

fn crash(world: &Shared, tasks: &Tasks, writer: usize) {
    tasks.kill(writer);
    let mut world = world.borrow_mut();
    world.count(Fault::WriterCrashed);
    world.note(|| format!("w{writer} crashes"));
    for connection in world.connections.iter_mut().filter(|connection| connection.writer == writer) {
        connection.is_open_here = false;
    }
}

/// A writer's process: it opens the pool, writes from one or two threads, and closes it.
async fn write_again_and_again(world: Shared, tasks: Rc<Tasks>, writer: usize) {
    loop {
        let pause = world.borrow_mut().random.below(60);
        sleep(&world, pause).await;
        let Some(session) = session::open(&world, &tasks, writer).await else { continue };
        start_threads(&session);
        let length = 20 + world.borrow_mut().random.below(400);
        sleep(&world, length).await;
        session.close().await;
    }
}

fn start_threads(session: &Rc<Session>) {
    session.tasks.start(session.writer, Rc::clone(session).watch());
    let lanes = 1 + session.world.borrow_mut().random.below(2);
    for _ in 0..lanes {
        let session = Rc::clone(session);
        session.tasks.clone().start(session.writer, async move { session.write_on().await });
    }
}

/// Nothing goes wrong any more: one writer opens the pool, all members come back, and they are equal.
fn come_to_rest(world: &Shared, tasks: &Rc<Tasks>, writer_count: usize) {
    world.borrow_mut().heal();
    for writer in 0..writer_count {
        crash(world, tasks, writer);
    }
    let stage = Rc::new(RefCell::new("opening"));
    tasks.start(writer_count, {
        let (world, tasks, stage) = (Rc::clone(world), Rc::clone(tasks), Rc::clone(&stage));
        async move {
            let session = loop {
                if let Some(session) = session::open(&world, &tasks, writer_count).await {
                    break session;
                }
                sleep(&world, 20).await;
            };
            *stage.borrow_mut() = "catching up";
            start_threads(&session);
            until(|| session.is_whole()).await;
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
        let states: Vec<_> = world.targets.iter().map(|target| world::brief(&target.state)).collect();
        let stage = *stage.borrow();
        world.truth.violate(|| format!("without faults the pool is not whole again; it is {stage}: {states:#?}"));
        return;
    }
    let committed = world.truth.committed();
    let contents: Vec<_> = world.targets.iter().map(|target| target.durable).collect();
    let lacks = |pages: &truth::Pages| {
        let mut words = pages.iter().flatten().zip(committed.iter().flatten());
        words.any(|(found, committed)| found < committed)
    };
    if contents.iter().any(|pages| *pages != contents[0] || lacks(pages)) {
        world.truth.violate(|| format!("at rest the members hold {contents:?}; {committed:?} was acknowledged"));
    }
}
