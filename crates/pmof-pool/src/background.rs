//! Operations that block, as futures: each runs on a thread of the library, and wakes whoever awaits it.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use pmof_locks::{Condvar, Mutex};
use pmof_mem::forks::{PerProcess, Process};

#[cfg(test)]
mod tests;

/// Threads at most; what comes beyond waits until one is free. As many as tokio has for such work.
const THREADS_MAX: usize = 512;

/// How long a thread waits for more to do before it ends.
const IDLE: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// An operation that blocks, on a thread of the library, as a future for any runtime. It begins when this is made, whether or not it is awaited.
///
/// A future that is dropped, as a task that is cancelled or a runtime that is shut down drops it, takes nothing back: the operation goes
/// on, and its outcome is dropped. So a pool that is opened and that nobody takes is dropped without being closed, as after a crash.
#[must_use = "nobody is told how it ends"]
pub struct Background<T> {
    progress: Arc<Mutex<Progress<T>>>,
    process: Process,
    /// The error for a child, where the type has one.
    forked: Option<fn() -> T>,
}

struct Progress<T> {
    outcome: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Background<T> {
    /// Does something on a thread of the library, which may block: what the library has no future for.
    pub fn run(act: impl FnOnce() -> T + Send + 'static) -> Self {
        static WORKERS: PerProcess<Workers> = PerProcess::new();
        Self::on(WORKERS.get_or_make(|| Workers::new(THREADS_MAX, IDLE)), act)
    }

    /// The same; `forked` is the outcome in a child of `fork()` that awaits what its parent began.
    pub(crate) fn run_or(forked: fn() -> T, act: impl FnOnce() -> T + Send + 'static) -> Self {
        Self { forked: Some(forked), ..Self::run(act) }
    }

    fn on(workers: &'static Workers, act: impl FnOnce() -> T + Send + 'static) -> Self {
        let progress = Arc::new(Mutex::new(Progress { outcome: None, waker: None }));
        let done = Arc::clone(&progress);
        workers.add(Box::new(move || {
            let outcome = panic::catch_unwind(AssertUnwindSafe(act));
            let waker = {
                let mut progress = done.lock();
                progress.outcome = Some(outcome);
                progress.waker.take()
            };
            // Before whoever is woken looks: of a future that was dropped the outcome goes now.
            drop(done);
            if let Some(waker) = waker {
                waker.wake();
            }
        }));
        Self { progress, process: Process::current(), forked: None }
    }
}

impl<T> Future for Background<T> {
    type Output = T;

    /// # Panics
    /// Where the operation did, after it has given the outcome, and in a child of `fork()` that awaits what its parent [began](Self::run): futures of pools give
    /// [`PoolError::Forked`](crate::PoolError::Forked) there.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if !self.process.is_current() {
            return Poll::Ready(
                self.forked
                    .map(|outcome| outcome())
                    .expect("it was begun before fork(): only the process that began it learns of its outcome"),
            );
        }
        let mut progress = self.progress.lock();
        match progress.outcome.take() {
            Some(Ok(outcome)) => Poll::Ready(outcome),
            Some(Err(panicked)) => {
                drop(progress);
                panic::resume_unwind(panicked)
            }
            None => {
                progress.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Background<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_done = self.process.is_current().then(|| self.progress.lock().outcome.is_some());
        f.debug_struct("Background").field("is_done", &is_done).finish_non_exhaustive()
    }
}

/// Threads that do what is handed to them, in order; each ends when it has had nothing to do for a while.
struct Workers {
    queue: Mutex<Queue>,
    has_more: Condvar,
    threads_max: usize,
    idle: Duration,
}

struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    waiting: usize,
}

impl Workers {
    const fn new(threads_max: usize, idle: Duration) -> Self {
        let queue = Queue { jobs: VecDeque::new(), threads: 0, waiting: 0 };
        Self { queue: Mutex::new(queue), has_more: Condvar::new(), threads_max, idle }
    }

    fn add(&'static self, job: Job) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if queue.jobs.len() <= queue.waiting {
            self.has_more.notify_one();
            return;
        }
        if queue.threads == self.threads_max {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let started = thread::Builder::new().name("pmof-background".to_owned()).spawn(|| self.work());
        if let Err(error) = started {
            let mut queue = self.queue.lock();
            queue.threads -= 1;
            let has_nobody = queue.threads == 0;
            drop(queue);
            log::error!("no thread for what blocks could be started: {error}");
            if has_nobody {
                self.work_off();
            }
        }
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                run(job);
                queue = self.queue.lock();
                continue;
            }
            queue.waiting += 1;
            let is_late = self.has_more.wait_for(&mut queue, self.idle).timed_out();
            queue.waiting -= 1;
            if is_late && queue.jobs.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }

    /// On the thread that asked, where there is no other.
    fn work_off(&self) {
        loop {
            let job = self.queue.lock().jobs.pop_front();
            let Some(job) = job else { return };
            run(job);
        }
    }
}

/// What panics is the waker of a future, or what drops an outcome.
fn run(job: Job) {
    if panic::catch_unwind(AssertUnwindSafe(job)).is_err() {
        log::error!("the waker of a future panicked");
    }
}
