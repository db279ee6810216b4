//! Writers' threads as futures that a run polls one after the other.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::world::World;

pub(super) type Shared = Rc<RefCell<World>>;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What a step of a run stands for in the engine's returns: the longest pause between two windows is two of them.
pub(super) const STEP: Duration = Duration::from_millis(50);

/// So many steps, for the engine.
pub(super) fn steps(count: u64) -> Duration {
    STEP * u32::try_from(count).expect("a run has fewer steps")
}

/// The steps that a time of the engine's takes.
pub(super) fn steps_of(time: Duration) -> u64 {
    (time.as_nanos() / STEP.as_nanos()) as u64
}

/// The threads of all writers.
#[derive(Default)]
pub(super) struct Tasks {
    running: RefCell<Vec<(usize, Task)>>,
    started: RefCell<Vec<(usize, Task)>>,
    paused: RefCell<Vec<usize>>,
}

impl Tasks {
    pub(super) fn start(&self, writer: usize, task: impl Future<Output = ()> + 'static) {
        self.started.borrow_mut().push((writer, Box::pin(task)));
    }

    /// The writer's process is gone.
    pub(super) fn kill(&self, writer: usize) {
        self.running.borrow_mut().retain(|(of, _)| *of != writer);
        self.started.borrow_mut().retain(|(of, _)| *of != writer);
        self.resume(writer);
    }

    /// The writer's process is stopped, until it is [resumed](Self::resume).
    pub(super) fn pause(&self, writer: usize) {
        self.paused.borrow_mut().push(writer);
    }

    pub(super) fn resume(&self, writer: usize) {
        self.paused.borrow_mut().retain(|paused| *paused != writer);
    }

    pub(super) fn is_idle(&self, writer: usize) -> bool {
        let is_of = |(of, _): &(usize, Task)| *of == writer;
        !self.running.borrow().iter().any(is_of) && !self.started.borrow().iter().any(is_of)
    }

    /// Lets each thread run until it waits; the first is the `first`-th.
    pub(super) fn poll(&self, first: usize) {
        self.running.borrow_mut().append(&mut self.started.borrow_mut());
        let mut running = std::mem::take(&mut *self.running.borrow_mut());
        let count = running.len();
        let mut is_done = vec![false; count];
        for offset in 0..count {
            let index = (first + offset) % count;
            let (writer, task) = &mut running[index];
            if self.paused.borrow().contains(writer) {
                continue;
            }
            is_done[index] = matches!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
        }
        let mut is_done = is_done.into_iter();
        running.retain(|_| !is_done.next().unwrap_or(false));
        self.running.borrow_mut().extend(running);
    }
}

/// Waits until a condition holds.
pub(super) async fn until(condition: impl Fn() -> bool) {
    poll_fn(|_| if condition() { Poll::Ready(()) } else { Poll::Pending }).await;
}

pub(super) async fn sleep(world: &Shared, steps: usize) {
    let until_step = world.borrow().step + steps as u64;
    until(|| world.borrow().step >= until_step).await;
}

/// A lock that one thread holds at a time.
#[derive(Debug, Default)]
pub(super) struct Lock(Cell<bool>);

pub(super) struct Guard<'l>(&'l Lock);

impl Lock {
    pub(super) async fn lock(&self) -> Guard<'_> {
        until(|| !self.0.get()).await;
        self.0.set(true);
        Guard(self)
    }

    pub(super) fn is_held(&self) -> bool {
        self.0.get()
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.0.set(false);
    }
}
