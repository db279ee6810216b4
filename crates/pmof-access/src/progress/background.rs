//! Threads for work that waits for a device, so that those who serve connections do not.
//!
//! Each device has a share of its own: work for a disk that is slow, or has stopped answering, waits behind other work of that disk
//! and never keeps another from its threads.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use pmof_mem::{forks::Process, order};

use crate::{
    SetupError,
    sync::{
        Condvar, Mutex, MutexGuard,
        thread::{self, JoinHandle},
    },
};

/// Pieces of work for one device that are under way at once. The device joins the flushes that wait for it: on a virtio disk and two
/// processors, 16 raw threads get 38,000 to 47,000 fdatasyncs a second, 64 get 45,000.
pub(super) const SHARE_MAX: usize = 16;

/// How long a thread without work stays: over the pauses of a load, at little cost, since it sleeps.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// A piece of work.
type Job = Box<dyn FnOnce() + Send>;

/// Threads that carry out what is handed over, in order for each share, at most 16 pieces of a share at once. One thread always stays;
/// others come as they are needed and go after ten seconds without work.
///
/// Handles are cheap to clone. When the last one is dropped, what was handed over is carried out still, and that drop waits for it. In a child of
/// `fork()` there are no threads: nothing is carried out, and nothing waits.
#[derive(Clone)]
pub struct BackgroundThreads {
    owner: Arc<Owner>,
}

/// Joins the threads when the last handle goes.
struct Owner(Arc<Shared>, Process);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Work is there, or the end is.
    news: Condvar,
    /// Nothing is left to do.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Work that a thread may take.
    ready: VecDeque<(u64, Job)>,
    shares: HashMap<u64, Share>,
    threads: HashMap<u64, JoinHandle<()>>,
    /// Those that have ended by themselves, to be joined.
    ended: Vec<JoinHandle<()>>,
    next_thread: u64,
    idle: usize,
    /// Idle threads that were told of work and have not looked yet.
    told: usize,
    is_over: bool,
}

/// What is under way for one device, and what waits until less is.
#[derive(Default)]
struct Share {
    under_way: usize,
    waiting: VecDeque<Job>,
}

impl BackgroundThreads {
    /// Starts the first thread.
    pub fn start() -> Result<Self, SetupError> {
        let shared = Arc::<Shared>::default();
        let owner = Arc::new(Owner(Arc::clone(&shared), Process::current()));
        let mut state = shared.state.lock();
        state.spawn(&shared).map_err(|source| SetupError::System { call: "clone", source })?;
        drop(state);
        Ok(Self { owner })
    }

    /// Hands work over; `share` is the device that it waits for, or any other number for what else has a share. Never waits.
    pub fn run(&self, share: u64, job: impl FnOnce() + Send + 'static) {
        if !self.owner.1.is_current() {
            return;
        }
        let shared = &self.owner.0;
        let mut state = shared.state.lock();
        state.admit(share, Box::new(job));
        shared.wake(&mut state);
    }

    /// Waits until all that was handed over is carried out. Not from a piece of work, which would wait for itself.
    pub fn finish(&self) {
        if !self.owner.1.is_current() {
            return;
        }
        let shared = &self.owner.0;
        let mut state = shared.state.lock();
        shared.done.wait_while(&mut state, |state| !state.shares.is_empty());
    }

    /// Threads there are, and those of them that have nothing to do.
    #[cfg(test)]
    pub(super) fn threads(&self) -> (usize, usize) {
        let state = self.owner.0.state.lock();
        (state.threads.len(), state.idle)
    }

    /// As [`run`](Self::run), from a piece of work that is about to end: its thread takes it next.
    pub(crate) fn run_next(&self, share: u64, job: impl FnOnce() + Send + 'static) {
        self.owner.0.state.lock().admit(share, Box::new(job));
    }
}

impl fmt::Debug for BackgroundThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.owner.0.state.lock();
        let (threads, ready) = (state.threads.len(), state.ready.len());
        f.debug_struct("BackgroundThreads").field("threads", &threads).field("ready", &ready).finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.1.is_current() {
            return;
        }
        let mut state = self.0.state.lock();
        state.is_over = true;
        self.0.news.notify_all();
        let mut threads: Vec<_> = state.ended.drain(..).collect();
        threads.extend(state.threads.drain().map(|(_, thread)| thread));
        drop(state);
        let own = thread::current().id();
        for thread in threads.into_iter().filter(|handle| handle.thread().id() != own) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Finds a thread for work that was just admitted.
    fn wake(self: &Arc<Self>, state: &mut State) {
        if state.ready.len() <= state.told {
            return;
        }
        if state.idle > state.told {
            state.told += 1;
            self.news.notify_one();
        } else if let Err(error) = state.spawn(self) {
            log::warn!(event = "thread_failed", reason:% = error; "no further thread for flushes: {error}; those that are there carry them out, later");
        }
    }

    /// What a thread does.
    fn work(&self, number: u64) {
        order::mark_own_thread();
        let mut state = self.state.lock();
        loop {
            if let Some((share, job)) = state.ready.pop_front() {
                // The thread goes on with other work after a panic, which was reported when it happened.
                drop(state);
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                state.done(share);
                if state.shares.is_empty() {
                    self.done.notify_all();
                }
            } else if state.is_over {
                return;
            } else if !self.sleep(&mut state) && state.threads.len() > 1 {
                let thread = state.threads.remove(&number);
                state.ended.extend(thread);
                return;
            }
        }
    }

    /// False: nobody told of work for long.
    fn sleep(&self, state: &mut MutexGuard<'_, State>) -> bool {
        state.idle += 1;
        let timed_out = self.news.wait_for(state, IDLE_MAX).timed_out();
        state.idle -= 1;
        state.told = state.told.saturating_sub(1);
        !timed_out || !state.ready.is_empty()
    }
}

impl State {
    fn admit(&mut self, share: u64, job: Job) {
        let of = self.shares.entry(share).or_default();
        if of.under_way < SHARE_MAX {
            of.under_way += 1;
            self.ready.push_back((share, job));
        } else {
            of.waiting.push_back(job);
        }
    }

    fn done(&mut self, share: u64) {
        let Some(of) = self.shares.get_mut(&share) else { return };
        match of.waiting.pop_front() {
            Some(next) => self.ready.push_back((share, next)),
            None => of.under_way -= 1,
        }
        if of.under_way == 0 {
            self.shares.remove(&share);
        }
    }

    fn spawn(&mut self, shared: &Arc<Shared>) -> std::io::Result<()> {
        let number = self.next_thread;
        let there = Arc::clone(shared);
        let thread = thread::Builder::new().name("pmof-background".to_owned()).spawn(move || there.work(number))?;
        self.next_thread += 1;
        self.threads.insert(number, thread);
        // Those that went meanwhile have nothing left to do but to end.
        self.ended.clear();
        Ok(())
    }
}
