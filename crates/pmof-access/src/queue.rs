//! Completion queues: where the outcomes of many connections are collected.

use std::{
    mem,
    os::fd::BorrowedFd,
    sync::{Arc, Weak},
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_mem::forks::Own;
use pmof_proto::Ticket;

use crate::{
    Completion, ConnectionId, DurationCounts, SetupError, SharedReceives,
    clock::Clock,
    driver::{Driver, FastPath, Waits, Wanted},
    link::{Collector, Link},
    progress::{
        Assistance, Assistants, Assisted, BackgroundThreads, Backoff, Callers, DEFAULT_SPIN, Flusher, Progress,
        ProgressThread, ReadyFlag, Waiting, Wakers,
    },
};

/// Waits of at least this time begin without looking at the clock, which makes them up to a tick of 20 ms longer.
const UNCLOCKED_MIN: Duration = Duration::from_secs(1);

/// How often a poll looks again because something came while it asked devices to announce what comes next.
const WATCHED_TURNS_MAX: u32 = 64;

/// Settings of a completion queue.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QueueOptions {
    /// How to wait.
    pub waiting: Waiting,
    /// Who makes progress.
    pub progress: Progress,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { waiting: Waiting::Adaptive { spin: DEFAULT_SPIN }, progress: Progress::Caller }
    }
}

pmof_mem::setters!(QueueOptions { waiting: Waiting, progress: Progress });

/// Carries out flushes that wait for a device on [`BackgroundThreads`]. Clones are the same one.
#[derive(Clone, Debug)]
pub struct BackgroundFlushes(Flusher);

impl BackgroundFlushes {
    /// On the threads of `background`; each device has its [share](BackgroundThreads::run) under its `st_dev`. At most
    /// `inline_max` queues at once that serve a single connection have its flushes carried out by whoever drives them, which is sooner done.
    pub fn new(background: &BackgroundThreads, inline_max: usize) -> Self {
        Self(Flusher::new(background.clone(), inline_max))
    }

    /// How long the media took, each time that flushes waited for one.
    pub fn waits(&self) -> DurationCounts {
        self.0.waits()
    }
}

/// Collects the outcomes of any number of connections. Handles are cheap to clone; all methods may be called from several
/// threads.
///
/// In a child of `fork()` its parent's queue has no outcomes, and no wait lasts; [`Connection::ended`](crate::Connection::ended) says why.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<QueueShared>,
}

#[derive(Debug)]
pub(crate) struct QueueShared {
    pub(crate) driver: Own<Arc<Driver>>,
    waiting: Waiting,
    thread: Own<Option<OwnThread>>,
}

/// What the queues of a peer share.
#[derive(Debug, Default)]
pub(crate) struct QueuesShared {
    /// They go with the last queue.
    wakers: Mutex<Weak<Wakers>>,
    assistants: Assistants,
}

impl QueuesShared {
    fn wakers(&self) -> Arc<Wakers> {
        let mut wakers = self.wakers.lock();
        wakers.upgrade().unwrap_or_else(|| {
            let made = Arc::default();
            *wakers = Arc::downgrade(&made);
            made
        })
    }
}

/// A thread that drives a queue. The queue is given up by it when this is dropped.
#[derive(Debug)]
enum OwnThread {
    Own(#[expect(dead_code, reason = "it ends when it is dropped")] ProgressThread),
    Shared(#[expect(dead_code, reason = "it ends when it is dropped")] Assistance),
}

impl CompletionQueue {
    pub(crate) fn new(clock: &Clock, options: QueueOptions, shared: &QueuesShared) -> Result<Self, SetupError> {
        let QueueOptions { waiting, progress } = options;
        let is_real = matches!(clock, Clock::Real(_));
        let callers = (is_real && progress == Progress::Assisted).then(Callers::default);
        let waits = Waits { announces: is_real && progress != Progress::Caller, callers, wakers: shared.wakers() };
        let driver = Driver::new(clock, waits);
        let thread = match progress {
            Progress::Thread if is_real => Some(OwnThread::Own(ProgressThread::start(&driver, waiting)?)),
            Progress::Assisted if is_real => {
                let assisted: Arc<dyn Assisted> = Arc::<Driver>::clone(&driver);
                Some(OwnThread::Shared(shared.assistants.assist(&assisted, waiting)?))
            }
            _ => None,
        };
        let (driver, thread) = (Own::new(driver), Own::new(thread));
        Ok(Self { shared: Arc::new(QueueShared { driver, waiting, thread }) })
    }

    /// Tells a connection where its outcomes go and where its messages find their receives. Before it is established, and before
    /// [`take_over`](Self::take_over).
    pub(crate) fn attach(
        &self,
        link: &Arc<Link>,
        receive_queue: Option<&CompletionQueue>,
        shared_receives: Option<&SharedReceives>,
    ) -> Result<(), SetupError> {
        let driver = &self.shared.driver;
        if !self.shared.is_here() {
            return Err(SetupError::Forked);
        }
        let receiver = self.receiver(receive_queue);
        if receiver.is_some() || shared_receives.is_some() {
            driver.show_deliveries()?;
        }
        if let Some(receiver) = receiver {
            receiver.show_deliveries()?;
            receiver.receives_for(driver);
            let collector = |driver: &Arc<Driver>| -> Weak<dyn Collector> { Arc::<Driver>::downgrade(driver) };
            link.lock().set_collectors(collector(driver), collector(receiver));
        }
        if let Some(shared) = shared_receives {
            shared.give_to(link, driver);
        }
        Ok(())
    }

    /// Drives a connection from now on, as the queue of its receives does, if that is another one.
    pub(crate) fn take_over(
        &self,
        link: &Arc<Link>,
        receive_queue: Option<&CompletionQueue>,
    ) -> Result<(), SetupError> {
        self.shared.driver.route_flushes(link);
        self.shared.driver.add(link)?;
        let Some(receiver) = self.receiver(receive_queue) else { return Ok(()) };
        receiver.add_too(link).inspect_err(|_| {
            self.shared.driver.remove(link.id);
        })
    }

    fn receiver<'q>(&self, receive_queue: Option<&'q CompletionQueue>) -> Option<&'q Arc<Driver>> {
        let receiver = &receive_queue?.shared.driver;
        (!Arc::ptr_eq(receiver, &self.shared.driver)).then_some(receiver)
    }

    /// Has flushes of this side's regions that wait for a device carried out by `flushes`, on all connections that come to this queue from
    /// now on; those of one medium that meet there share a fence. Without it, whoever drives the queue waits for the device.
    pub fn flush_in_background(&self, flushes: &BackgroundFlushes) {
        if !self.shared.is_here() {
            return;
        }
        self.shared.driver.flushes.carried_out_by(flushes.0.clone());
    }

    /// For how long whoever drives the queue has been waiting for a disk, if it is: what comes meanwhile waits too.
    pub fn is_flushing_for(&self) -> Option<Duration> {
        let driver = &self.shared.driver;
        if !self.shared.is_here() {
            return None;
        }
        driver.flushes.inline_since().map(|since| driver.now().saturating_sub(since))
    }

    /// The next outcome that is there now. Never waits.
    pub fn poll(&self) -> Option<Completion> {
        self.poll_with(Driver::take_ready, Driver::poll_on_fast_path)
    }

    /// The next outcome that is there now of a receive, or else of anything but a receive; the others stay, in order. Never
    /// waits.
    pub fn poll_receives(&self, receives: bool) -> Option<Completion> {
        self.poll_with(|driver| driver.take_ready_of(receives), |_, _| FastPath::Closed)
    }

    /// `look` is the short way.
    #[inline]
    fn poll_with(
        &self,
        take: impl Fn(&Driver) -> Option<Completion>,
        look: impl FnOnce(&Driver, &mut Option<Completion>) -> FastPath,
    ) -> Option<Completion> {
        let driver = &**self.shared.driver;
        if !self.shared.is_here() {
            return None;
        }
        if !driver.is_watched() && !driver.has_ready() && !self.shared.thread_drives() {
            driver.callers().inspect(|callers| callers.note_turn());
            let mut found = None;
            if let FastPath::Found | FastPath::Nothing = look(driver, &mut found) {
                return found;
            }
        }
        self.poll_all(take)
    }

    /// The same without it.
    #[inline(never)]
    fn poll_all(&self, take: impl Fn(&Driver) -> Option<Completion>) -> Option<Completion> {
        let driver = &**self.shared.driver;
        if let Some(completion) = take(driver) {
            return Some(completion);
        }
        if self.shared.thread_drives() {
            return take(driver);
        }
        driver.callers().inspect(|callers| callers.note_turn());
        for _ in 0..WATCHED_TURNS_MAX {
            let now = driver.now();
            driver.drive_at(now);
            let ready = take(driver);
            // Whoever waits for the descriptor next is to be woken by whatever comes from here on.
            if ready.is_some() || !driver.is_watched() || !driver.arm() {
                self.note_polled(now, ready.is_some());
                return ready;
            }
        }
        None
    }

    /// A caller who polls without a break may need a processor that the other side's process is waiting for.
    fn note_polled(&self, now: Duration, found: bool) {
        let driver = &**self.shared.driver;
        let Some(callers) = driver.callers() else { return };
        if callers.has_polled_idle(now, found) && driver.has_only_devices() == Some(false) {
            std::thread::yield_now();
            callers.has_polled_idle(driver.now(), false);
        }
    }

    /// Appends up to `max` outcomes that are there now; returns how many. Never waits.
    pub fn poll_many(&self, max: usize, into: &mut Vec<Completion>) -> usize {
        let before = into.len();
        while into.len() - before < max {
            match self.poll() {
                Some(completion) => into.push(completion),
                None => break,
            }
        }
        into.len() - before
    }

    /// The next outcome, waiting for it at most `timeout`; a wait of a second or more may last 20 ms longer.
    pub fn wait(&self, timeout: Duration) -> Option<Completion> {
        self.wait_wanted(timeout, None, || false)
    }

    /// The next outcome, waiting for it at most `timeout`, and no longer once `is_over`: asked before every sleep, and whenever something
    /// has changed. It is called under locks of the queue: of those it may take a connection's, in
    /// [`Connection::is_drained`](crate::Connection::is_drained).
    pub fn wait_unless(&self, timeout: Duration, is_over: impl Fn() -> bool) -> Option<Completion> {
        self.wait_wanted(timeout, None, is_over)
    }

    /// Waits, at most `timeout`, until there is an outcome, which stays; tells whether the next one is a receive's.
    pub fn wait_next_is_receive(&self, timeout: Duration) -> Option<bool> {
        self.wait_next_is_receive_unless(timeout, || false)
    }

    /// The same, and no longer than [`wait_unless`](Self::wait_unless).
    pub fn wait_next_is_receive_unless(&self, timeout: Duration, is_over: impl Fn() -> bool) -> Option<bool> {
        if !self.shared.is_here() {
            return None;
        }
        self.wait_until(timeout, or_over(|| self.shared.driver.next_is_receive(), is_over))?
    }

    /// Waits for the outcome of one operation. Outcomes of others that come meanwhile stay for the next poll, in order.
    pub fn wait_for(&self, connection: ConnectionId, ticket: Ticket, timeout: Duration) -> Option<Completion> {
        self.wait_wanted(timeout, Some((connection, ticket)), || false)
    }

    /// Ends the present wait on this queue as if its time were up, or else the next one. For stopping a waiting thread.
    pub fn interrupt(&self) {
        if !self.shared.is_here() {
            return;
        }
        self.shared.driver.interrupt();
    }

    /// A descriptor that is readable while there are outcomes, where a thread makes progress. Where the caller does, it is readable when a
    /// poll may find something: poll until `None` before waiting for it, since what was collected already does not show, nor what finished
    /// when it was posted, as over shm; and limits of time are noticed only by polling, so wait for no longer than a loss may go unnoticed.
    ///
    /// # Errors
    /// [`SetupError::System`] when the process is out of file descriptors; [`SetupError::Forked`].
    ///
    /// # Panics
    /// On the simulated network, which the kernel does not know.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, SetupError> {
        if !self.shared.is_here() {
            return Err(SetupError::Forked);
        }
        self.shared.driver.descriptor()
    }

    /// Has this show whether there are outcomes, beside the [descriptor](Self::fd), where the caller is not the one who makes progress;
    /// the first that is given, as long as the queue is there.
    pub fn show_on(&self, flag: Arc<dyn ReadyFlag>) {
        if self.shared.is_here() {
            self.shared.driver.show_on(flag);
        }
    }

    /// Forgets the outcomes of one connection that were not collected yet.
    pub fn discard(&self, connection: ConnectionId) {
        if self.shared.is_here() {
            self.shared.driver.discard_ready(connection);
        }
    }

    fn wait_wanted(&self, timeout: Duration, wanted: Wanted, is_over: impl Fn() -> bool) -> Option<Completion> {
        let driver = &self.shared.driver;
        if !self.shared.is_here() {
            return None;
        }
        if driver.has_ready() {
            if let Some(found) = driver.take_wanted(wanted) {
                return Some(found);
            }
        }
        let thread_drives = self.shared.thread_drives();
        let _waiting = driver.callers().filter(|_| !thread_drives).map(Callers::wait);
        let mut found = None;
        let mut outcome = FastPath::Closed;
        if !thread_drives && timeout >= UNCLOCKED_MIN {
            outcome = driver.wait_on_fast_path(None, self.shared.waiting, wanted, &mut found);
            if let FastPath::Found = outcome {
                return found;
            }
        }
        let from = driver.now();
        let deadline = from.saturating_add(timeout);
        if !thread_drives && matches!(outcome, FastPath::Closed | FastPath::Nothing) {
            outcome = driver.wait_on_fast_path(Some((from, deadline)), self.shared.waiting, wanted, &mut found);
        }
        let (now, moved_at) = match outcome {
            FastPath::Found => return found,
            FastPath::Moved => (driver.now(), None),
            FastPath::Nothing => (driver.now(), Some(from)),
            FastPath::Closed => (from, None),
        };
        self.wait_from(
            now,
            moved_at.unwrap_or(now),
            deadline,
            thread_drives,
            or_over(|| driver.take_wanted(wanted), is_over),
        )?
    }

    /// Drives the connections until `done` gives something or the time is up.
    pub(crate) fn wait_until<T>(&self, timeout: Duration, mut done: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(found) = done() {
            return Some(found);
        }
        let driver = &self.shared.driver;
        if !self.shared.is_here() {
            return None;
        }
        let thread_drives = self.shared.thread_drives();
        let _waiting = driver.callers().filter(|_| !thread_drives).map(Callers::wait);
        let now = driver.now();
        self.wait_from(now, now, now.saturating_add(timeout), thread_drives, done)
    }

    /// Goes on waiting `now`, when nothing has moved since `moved_at`.
    fn wait_from<T>(
        &self,
        mut now: Duration,
        moved_at: Duration,
        deadline: Duration,
        thread_drives: bool,
        mut done: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let driver = &self.shared.driver;
        let mut backoff = Backoff::since(moved_at, self.shared.waiting);
        let mut is_now = true;
        loop {
            let moved = !thread_drives && driver.drive_at(now);
            // The clock is read only after that: an outcome does not wait for it.
            if let Some(found) = done() {
                return Some(found);
            }
            if !mem::take(&mut is_now) {
                now = driver.now();
            }
            if now >= deadline || driver.take_interrupt() {
                return None;
            }
            if moved {
                backoff.reset(now);
            } else if backoff.next(now, &driver.clock, driver.flushes.are_under_way()).is_park() {
                let mut found = None;
                let mut is_done = || {
                    found = done();
                    found.is_some() || driver.is_interrupted()
                };
                if thread_drives {
                    driver.park_as_follower(now, deadline, &mut is_done);
                } else {
                    driver.park(now, deadline, &mut is_done);
                }
                if found.is_some() {
                    return found;
                }
            }
        }
    }
}

/// What `find` finds; or that nothing is left to find, once it is over.
fn or_over<T>(mut find: impl FnMut() -> Option<T>, is_over: impl Fn() -> bool) -> impl FnMut() -> Option<Option<T>> {
    // What came before the end is found after it.
    move || find().map(Some).or_else(|| is_over().then(&mut find))
}

impl QueueShared {
    /// Whether this is the process that made the queue.
    #[inline]
    fn is_here(&self) -> bool {
        self.driver.is_here()
    }

    /// True if the queue's own thread drives whatever callers do.
    fn thread_drives(&self) -> bool {
        self.thread.is_some() && (self.driver.callers().is_none() || self.driver.is_watched())
    }
}
