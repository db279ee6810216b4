//! Completion queues: where the outcomes of many connections are collected.

use std::{
    fmt, mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use pmof_mem::order;
use pmof_proto::{Completion as ProtoCompletion, OperationError, OperationKind, Outcome, Ticket};
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    Background, SetupError, SharedReceives,
    clock::Clock,
    driver::{Assisted, Driver, FastPath, ReadySignal, Wanted},
    error::system,
    flusher::Flusher,
    link::Link,
};

/// Spinning before parking, by default: about what a persist over loopback takes, so that a lone operation is seldom
/// slowed by going to sleep, and an idle queue costs nothing.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// Spinning before the processor is offered to others in each turn: what an exchange over loopback takes, which they must not delay.
pub(crate) const YIELD_AFTER: Duration = Duration::from_micros(10);

/// Time without a caller's turn after which the thread of an assisted queue drives.
const ASSIST_AFTER: Duration = Duration::from_millis(1);

/// How soon the thread looks again while callers drive, where that may go on for long or nobody else waits for it, and how soon
/// at last when they go on driving: each look costs them a change of threads, if there is no other processor.
const LOOK_AFTER: Duration = Duration::from_millis(5);
const LOOK_AFTER_AT_LAST: Duration = Duration::from_millis(40);

/// How often a poll looks again because something came while it asked devices to announce what comes next.
const WATCHED_TURNS_MAX: u32 = 64;

/// Names a connection of this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// The number, from 1 on.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The number, as the log has it.
impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The outcome of an operation or receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The connection that it was posted on.
    pub connection: ConnectionId,
    /// What posting returned.
    pub ticket: Ticket,
    /// The number given when posting.
    pub context: u64,
    /// What was posted.
    pub kind: OperationKind,
    /// How it ended.
    pub outcome: Result<Outcome, OperationError>,
}

impl Completion {
    pub(crate) fn new(connection: ConnectionId, inner: ProtoCompletion) -> Self {
        let ProtoCompletion { ticket, context, kind, outcome } = inner;
        Self { connection, ticket, context, kind, outcome }
    }
}

/// How long a wait spins before it parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Spins so long after the last byte moved, then sleeps until the kernel reports something.
    Adaptive {
        /// Time without any progress before sleeping.
        spin: Duration,
    },
    /// Never sleeps: the lowest latency for a core of its own.
    BusyPoll,
}

/// Who moves the bytes of a queue's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Whoever polls or waits on the queue. Remote operations on this side's regions are served only then.
    Caller,
    /// A thread of the queue: remote operations are served whatever the application does.
    Thread,
    /// Whoever polls or waits on the queue; and, after a millisecond in which nobody did, a thread of the queue. Where callers
    /// waited, or all connections are devices', that thread comes as late as after twice the time that they were at it, from 10 to
    /// 80 milliseconds. Polls that find nothing for ten microseconds without a break offer the processor to others, but where all
    /// connections are devices'. That thread alone once the queue's descriptor was asked for. As
    /// quick as [`Caller`](Self::Caller) for a caller who polls, and as reliable as [`Thread`](Self::Thread) for the other side.
    Assisted,
    /// For a queue of receives alone: whoever polls or waits on it, and, once its descriptor was asked for, the threads of the queues
    /// that its connections' operations come to, which are to have one. So the descriptor shows receives and nothing else, where
    /// that of a queue that its caller drives shows whatever arrives.
    OfOperations,
}

/// Settings of a completion queue.
#[derive(Clone, Copy, Debug)]
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

/// Carries out flushes that wait for a device on [`Background`] threads. Clones are the same one.
#[derive(Clone, Debug)]
pub struct BackgroundFlushes(Flusher);

impl BackgroundFlushes {
    /// On the threads of `background`; each device has its [share](Background::run) under its `st_dev`. At most
    /// `inline_max` queues at once that serve a single connection have its flushes carried out by whoever drives them, which is sooner done.
    pub fn new(background: &Background, inline_max: usize) -> Self {
        Self(Flusher::new(background.clone(), inline_max))
    }
}

/// Collects the outcomes of any number of connections. Handles are cheap to clone; all methods may be called from several
/// threads.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<QueueShared>,
}

#[derive(Debug)]
pub(crate) struct QueueShared {
    pub(crate) driver: Arc<Driver>,
    waiting: Waiting,
    thread: Option<ProgressThread>,
}

impl CompletionQueue {
    pub(crate) fn new(clock: &Clock, options: QueueOptions) -> Result<Self, SetupError> {
        let is_real = matches!(clock, Clock::Real(_));
        let threaded = matches!(options.progress, Progress::Thread | Progress::Assisted) && is_real;
        let has_signal = threaded || (options.progress == Progress::OfOperations && is_real);
        let signal = has_signal.then(ReadySignal::new).transpose()?;
        let assisted = (threaded && options.progress == Progress::Assisted).then(Assisted::default);
        let driver = Driver::new(clock, signal, assisted)?;
        let thread = threaded.then(|| ProgressThread::start(&driver, options.waiting)).transpose()?;
        Ok(Self { shared: Arc::new(QueueShared { driver, waiting: options.waiting, thread }) })
    }

    /// Tells a connection where its outcomes go and where its messages find their receives. Before it stands, and before
    /// [`take_over`](Self::take_over).
    pub(crate) fn attach(
        &self,
        link: &Arc<Link>,
        receive_queue: Option<&CompletionQueue>,
        shared_receives: Option<&SharedReceives>,
    ) -> Result<(), SetupError> {
        let driver = &self.shared.driver;
        let receiver = self.receiver(receive_queue);
        if receiver.is_some() || shared_receives.is_some() {
            driver.show_brought()?;
        }
        if let Some(receiver) = receiver {
            receiver.show_brought()?;
            receiver.receives_for(driver);
            link.lock().set_drivers(driver, receiver);
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
        self.shared.driver.flushes.carried_out_by(flushes.0.clone());
    }

    /// For how long whoever drives the queue has been waiting for a disk, if it is: what comes meanwhile waits too.
    pub fn is_flushing_for(&self) -> Option<Duration> {
        let driver = &self.shared.driver;
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
        let driver = &*self.shared.driver;
        if !driver.is_watched() && !driver.has_ready() && !self.shared.thread_drives() {
            driver.assisted().inspect(|assisted| assisted.note_turn());
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
        let driver = &*self.shared.driver;
        if let Some(completion) = take(driver) {
            return Some(completion);
        }
        if self.shared.thread_drives() {
            return take(driver);
        }
        driver.assisted().inspect(|assisted| assisted.note_turn());
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
        let driver = &*self.shared.driver;
        let Some(assisted) = driver.assisted() else { return };
        if assisted.has_polled_idle(now, found) && driver.has_devices_alone() == Some(false) {
            std::thread::yield_now();
            assisted.has_polled_idle(driver.now(), false);
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

    /// The next outcome, waiting for it at most `timeout`.
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
        self.wait_until(timeout, or_over(|| self.shared.driver.next_is_receive(), is_over))?
    }

    /// Waits for the outcome of one operation. Outcomes of others that come meanwhile stay for the next poll, in order.
    pub fn wait_for(&self, connection: ConnectionId, ticket: Ticket, timeout: Duration) -> Option<Completion> {
        self.wait_wanted(timeout, Some((connection, ticket)), || false)
    }

    /// Ends the present wait on this queue as if its time were up, or else the next one. For stopping a waiting thread.
    pub fn interrupt(&self) {
        self.shared.driver.interrupt();
    }

    /// Forgets the outcomes of one connection that were not collected yet.
    pub fn discard(&self, connection: ConnectionId) {
        self.shared.driver.discard_ready(connection);
    }

    fn wait_wanted(&self, timeout: Duration, wanted: Wanted, is_over: impl Fn() -> bool) -> Option<Completion> {
        let driver = &self.shared.driver;
        if driver.has_ready()
            && let Some(found) = driver.take_wanted(wanted)
        {
            return Some(found);
        }
        let thread_drives = self.shared.thread_drives();
        let _waiting = driver.assisted().filter(|_| !thread_drives).map(Assisted::wait);
        let from = driver.now();
        let deadline = from.saturating_add(timeout);
        let mut found = None;
        let outcome = if thread_drives {
            FastPath::Closed
        } else {
            driver.wait_on_fast_path((from, deadline), self.shared.waiting, wanted, &mut found)
        };
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
        let thread_drives = self.shared.thread_drives();
        let _waiting = driver.assisted().filter(|_| !thread_drives).map(Assisted::wait);
        let now = driver.now();
        self.wait_from(now, now, now.saturating_add(timeout), thread_drives, done)
    }

    /// Goes on waiting `now`, when nothing has moved since `moved_at`.
    fn wait_from<T>(
        &self,
        mut now: Duration,
        mut moved_at: Duration,
        deadline: Duration,
        thread_drives: bool,
        mut done: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let driver = &self.shared.driver;
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
                moved_at = now;
            } else if must_rest(self.shared.waiting, now.saturating_sub(moved_at), &driver.clock) {
                let mut found = None;
                let mut is_done = || {
                    found = done();
                    found.is_some() || driver.is_interrupted()
                };
                if thread_drives {
                    driver.follow(now, deadline, &mut is_done);
                } else {
                    driver.rest(now, deadline, &mut is_done);
                }
                if found.is_some() {
                    return found;
                }
            } else {
                spin(self.shared.waiting, now.saturating_sub(moved_at), driver.flushes.are_under_way());
            }
        }
    }
}

/// What `find` finds; or that nothing is left to find, once it is over.
fn or_over<T>(mut find: impl FnMut() -> Option<T>, is_over: impl Fn() -> bool) -> impl FnMut() -> Option<Option<T>> {
    // What came before the end is found after it.
    move || find().map(Some).or_else(|| is_over().then(&mut find))
}

/// Readable while there are outcomes, where a thread makes progress. Where the caller does, it is readable when a poll may find something:
/// poll until `None` before waiting for it, since what was collected already does not show, nor what finished when it was posted, as over
/// shm; and limits of time are noticed by polling alone, so wait for no longer than a loss may go unnoticed.
impl AsFd for CompletionQueue {
    /// # Panics
    /// On the simulated network, which the kernel does not know.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.driver.note_watched();
        match (self.shared.driver.signal(), self.shared.driver.poller()) {
            (Some(signal), _) => signal.as_fd(),
            (None, Some(poller)) => poller.as_fd(),
            (None, None) => panic!("a simulated network has no file descriptors"),
        }
    }
}

impl QueueShared {
    /// True if the queue's own thread drives whatever callers do.
    fn thread_drives(&self) -> bool {
        self.thread.is_some() && (self.driver.assisted().is_none() || self.driver.is_watched())
    }
}

/// Whether a thread that has seen nothing move for `idle` goes to sleep. A virtual clock goes on only then.
fn must_rest(waiting: Waiting, idle: Duration, clock: &Clock) -> bool {
    match (clock, waiting) {
        (Clock::Virtual(_), _) => true,
        (Clock::Real(_), Waiting::Adaptive { spin }) => idle >= spin,
        (Clock::Real(_), Waiting::BusyPoll) => false,
    }
}

#[derive(Debug)]
struct ProgressThread {
    driver: Arc<Driver>,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl ProgressThread {
    fn start(driver: &Arc<Driver>, waiting: Waiting) -> Result<Self, SetupError> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_assistant = driver.assisted().is_some();
        if !is_assistant {
            // Nobody else has the driver yet.
            driver.try_lead();
        }
        let (driver_there, stop_there) = (Arc::clone(driver), Arc::clone(&stop));
        let handle = std::thread::Builder::new()
            .name("pmof-progress".to_owned())
            .spawn(move || {
                order::mark_own_thread();
                match driver_there.assisted() {
                    Some(assisted) => assist(&driver_there, assisted, &stop_there, waiting),
                    None => make_progress(&driver_there, waiting, &|| stop_there.load(Ordering::SeqCst)),
                }
            })
            .map_err(|source| SetupError::System { call: "clone", source })?;
        Ok(Self { driver: Arc::clone(driver), stop, handle: Some(handle) })
    }
}

/// Drives as the thread that leads, until `is_over`.
fn make_progress(driver: &Driver, waiting: Waiting, is_over: &dyn Fn() -> bool) {
    let mut moved_at = driver.now();
    while !is_over() {
        let moved = driver.drive();
        let now = driver.now();
        if moved {
            moved_at = now;
        } else if must_rest(waiting, now.saturating_sub(moved_at), &driver.clock) {
            driver.lead(now, Duration::MAX, &mut || is_over());
        } else {
            spin(waiting, now.saturating_sub(moved_at), driver.flushes.are_under_way());
        }
    }
}

/// One turn of spinning, when nothing has moved for `idle`. Whoever is waited for may need this very processor: two that share
/// one would else each wait until the other goes to sleep.
fn spin(waiting: Waiting, idle: Duration, is_flushing: bool) {
    match waiting {
        // The thread that carries out a flush may need it too, and has nothing to do but that.
        _ if is_flushing => std::thread::yield_now(),
        Waiting::Adaptive { .. } if idle >= YIELD_AFTER => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}

/// Drives whenever no caller has for a while.
fn assist(driver: &Driver, assisted: &Assisted, stop: &AtomicBool, waiting: Waiting) {
    let (mut seen, mut time, mut of_devices) = (assisted.seen(), ASSIST_AFTER, false);
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(time);
        let now_seen = assisted.seen();
        let is_idle = now_seen.is_some() && now_seen == seen;
        seen = now_seen;
        // A caller who waits drives, often for long. What the other side does through devices needs no driving.
        of_devices = driver.has_devices_alone().unwrap_or(of_devices);
        let may_be_late = seen.is_none() || (!is_idle && of_devices);
        time = if may_be_late { (2 * time).clamp(LOOK_AFTER, LOOK_AFTER_AT_LAST) } else { ASSIST_AFTER };
        // A caller may have lost its processor in the middle of a turn: to spin beside it would only keep it waiting.
        if ((is_idle && !driver.is_in_use()) || driver.is_watched()) && driver.try_lead() {
            let is_back = || !driver.is_watched() && (assisted.seen() != now_seen || driver.is_in_use());
            make_progress(driver, waiting, &|| stop.load(Ordering::SeqCst) || is_back());
            driver.stop_leading();
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.driver.tell();
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            // A panic of the thread was reported when it happened; there is nothing to add while dropping.
            let _ = handle.join();
        }
    }
}

impl ReadySignal {
    pub(crate) fn new() -> Result<Self, SetupError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { fd: eventfd(0, flags).map_err(system("eventfd"))?, is_set: AtomicBool::new(false) })
    }

    pub(crate) fn set(&self) {
        if !self.is_set.load(Ordering::Relaxed) {
            self.is_set.store(true, Ordering::Relaxed);
            let _ = rustix::io::write(&self.fd, &[1; 8]);
        }
    }

    pub(crate) fn clear(&self) {
        if self.is_set.load(Ordering::Relaxed) {
            self.is_set.store(false, Ordering::Relaxed);
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        OwnedFd::as_fd(&self.fd)
    }
}
