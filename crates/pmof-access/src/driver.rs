//! Drives the connections of one queue or listener: moves their bytes, tells them the time, parks when nothing moves.

use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pmof_locks::Mutex;
use pmof_proto::{Completion as ProtoCompletion, Ticket};

use crate::{
    Completion, ConnectionId, SetupError,
    clock::{Clock, Driven},
    error::system,
    link::{Collector, Link, LinkCore},
    progress::{
        Callers, FlushOwner, FlushRoute, InlineFlush, Interest, Leader, Poller, ReadyFlag, ReadySignal, Registration,
        Sleepers, Wakers,
    },
};

mod appender;
mod assisted;
mod fast_path;
mod flushes;
mod ready;
mod requests;
mod sleeping;
mod watching;

pub(crate) use appender::DrivenAppender;
pub(crate) use fast_path::FastPath;
use flushes::Flushes;
use ready::Ready;
use requests::Requests;

/// Up to this many connections are simply tried in turn; asking epoll first costs a system call more.
const DIRECT_MAX: usize = 4;

/// Whose outcome a thread waits for; `None` for the next one, whichever it is.
pub(crate) type Wanted = Option<(ConnectionId, Ticket)>;

/// How often a queue with one connection tries it in one turn.
const SINGLE_TRIES: usize = 4;

/// Longest time between two looks at the clock on behalf of the connections while someone polls: little against every
/// limit of time, and so seldom that thousands of connections cost nothing.
const TICK_PERIOD: Duration = Duration::from_millis(20);

/// Longest sleep in the kernel: an operation that another thread posts meanwhile has a limit of time that the sleeper
/// does not know, and it is told at most so much later.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Gives every connection of the process a number of its own.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_link_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Turns in which nothing moves, after which a device is asked for a notification of what happens next instead of being looked at
/// in every turn.
const IDLE_TURNS_MAX: u32 = 64;

/// A connection whose device was not asked for a notification, and for how many turns nothing has moved on it.
#[derive(Debug)]
struct Polled {
    link: Arc<Link>,
    idle_turns: u32,
}

#[derive(Debug, Default)]
struct Links {
    /// In the order of their numbers.
    all: Vec<Arc<Link>>,
    /// Of them, where there are too many to look at all of them: those that epoll does not report.
    polled: Vec<Polled>,
    /// Of them, those that come here only for their receives.
    received: Vec<u64>,
    /// The assistant watches them.
    is_assisted: bool,
    ticked_at: Duration,
    /// When a thread went to sleep last, as the one that leads.
    led_at: Duration,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) clock: Clock,
    /// There is none as long as there are few connections, and the file descriptor was not given out.
    poller: OnceLock<Arc<Poller>>,
    /// What wakes those who sleep without one.
    wakers: Arc<Wakers>,
    links: Mutex<Links>,
    /// The file descriptor was given out.
    is_watched: AtomicBool,
    ready: Ready,
    /// Outcomes that only whoever waits for just them may take, and whether there are any.
    reserved: Mutex<Vec<(ConnectionId, Ticket)>>,
    has_reserved: AtomicBool,
    /// Connections whose messages may take a receive that was posted while they were locked.
    woken: Mutex<Vec<Arc<Link>>>,
    has_woken: AtomicBool,
    /// Connection requests that await a decision.
    requests: Requests,
    /// Someone wants the thread that waits to look up.
    interrupted: AtomicBool,
    /// The processor's count when a poll last looked at the clock.
    clocked_at: AtomicU64,
    /// Others than whoever waits for the descriptor drive, so that it shows outcomes.
    announces: bool,
    /// Set while there are outcomes, where that is so: what the application has given for it, and the descriptor that it was given.
    flag: OnceLock<Arc<dyn ReadyFlag>>,
    signal: OnceLock<ReadySignal>,
    /// That thread drives only while nobody else does, who says so here.
    callers: Option<Callers>,
    /// Else set while there are outcomes that someone else delivered, where there is someone else: watched by the poller,
    /// since what they were made of shows there no more.
    delivered: OnceLock<ReadySignal>,
    /// Those whose connections' receives come here.
    sources: Mutex<Vec<Weak<Driver>>>,
    pub(crate) flushes: Flushes,
    sleepers: Sleepers,
    /// How the one that leads is woken.
    leader: Mutex<Leader>,
    /// Where it is assisted, if it is.
    registration: OnceLock<Arc<Registration>>,
}

/// How the outcomes of a driver are waited for.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// By others than those who drive.
    pub(crate) announces: bool,
    /// Where callers say that they drive, if a thread of its own does only while nobody else does.
    pub(crate) callers: Option<Callers>,
    /// Those of the peer.
    pub(crate) wakers: Arc<Wakers>,
}

/// Has a device's connection looked at in every turn.
fn poll_again(polled: &mut Vec<Polled>, link: &Arc<Link>) {
    match polled.iter_mut().find(|polled| polled.link.id == link.id) {
        Some(polled) => polled.idle_turns = 0,
        None => polled.push(Polled { link: Arc::clone(link), idle_turns: 0 }),
    }
}

impl Links {
    fn place_of(&self, id: u64) -> Result<usize, usize> {
        self.all.binary_search_by_key(&id, |link| link.id)
    }

    fn forget(&mut self, closed: &[u64]) {
        if !closed.is_empty() {
            self.all.retain(|link| !closed.contains(&link.id));
            self.polled.retain(|polled| !closed.contains(&polled.link.id));
            self.received.retain(|id| !closed.contains(id));
        }
    }
}

impl Driven for Driver {
    fn drive(&self) -> bool {
        Self::drive(self)
    }

    fn tick_all(&self) -> (Option<Duration>, bool) {
        self.links.try_lock().map_or((None, false), |mut links| self.tick(&mut links))
    }
}

impl Driver {
    pub(crate) fn new(clock: &Clock, waits: Waits) -> Arc<Self> {
        Self::with_requests(clock, waits, Requests::default())
    }

    /// One of a listener: its descriptor is readable while connections are `incoming`, and while requests wait.
    pub(crate) fn of_listener(incoming: BorrowedFd<'_>) -> Result<Arc<Self>, SetupError> {
        let requests = Requests::shown_by(ReadySignal::new()?);
        let driver = Self::with_requests(&Clock::real(), Waits::default(), requests);
        let poller = driver.own_poller()?;
        let interest = Interest { input: true, output: false };
        for watched in [Some(incoming), driver.requests.as_fd()].into_iter().flatten() {
            // No connection has the number 0.
            poller.add(watched, 0, interest).map_err(system("epoll_ctl"))?;
        }
        Ok(driver)
    }

    fn with_requests(clock: &Clock, waits: Waits, requests: Requests) -> Arc<Self> {
        let Waits { announces, callers, wakers } = waits;
        let driver = Arc::new(Self {
            clock: clock.clone(),
            poller: OnceLock::new(),
            wakers,
            links: Mutex::default(),
            is_watched: AtomicBool::new(false),
            ready: Ready::default(),
            reserved: Mutex::default(),
            has_reserved: AtomicBool::new(false),
            woken: Mutex::default(),
            has_woken: AtomicBool::new(false),
            requests,
            interrupted: AtomicBool::new(false),
            clocked_at: AtomicU64::new(0),
            announces,
            flag: OnceLock::new(),
            signal: OnceLock::new(),
            callers,
            delivered: OnceLock::new(),
            sources: Mutex::default(),
            flushes: Flushes::default(),
            sleepers: Sleepers::default(),
            leader: Mutex::default(),
            registration: OnceLock::new(),
        });
        if let Clock::Virtual(time) = clock {
            let weak = Arc::downgrade(&driver);
            time.add_driver(weak);
        }
        driver
    }

    /// The receives of another driver's connections come here: once the descriptor was given out, that one's thread brings them.
    pub(crate) fn receives_for(&self, source: &Arc<Self>) {
        let mut sources = self.sources.lock();
        sources.retain(|source| source.strong_count() > 0);
        sources.push(Arc::downgrade(source));
        drop(sources);
        if self.is_watched() && self.announces {
            source.note_watched();
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Whether every connection is a device's; `None` while the list is in use.
    pub(crate) fn has_only_devices(&self) -> Option<bool> {
        self.links.try_lock().map(|links| links.all.iter().all(|link| link.notifies_on_request))
    }

    /// Its own poller, if it has one.
    pub(crate) fn poller(&self) -> Option<&Arc<Poller>> {
        self.poller.get()
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Has whoever drives look at a connection on which something happened that shows nowhere.
    pub(crate) fn see_to(&self, link: &Arc<Link>) {
        self.woken.lock().push(Arc::clone(link));
        self.has_woken.store(true, Ordering::SeqCst);
        let ready = self.ready.lock();
        self.show();
        drop(ready);
        self.wake();
    }

    /// Connections there are.
    pub(crate) fn len(&self) -> usize {
        self.links.lock().all.len()
    }

    /// True if connections that epoll does not report are not looked at (or if that is not known just now).
    pub(crate) fn asks_epoll(&self) -> bool {
        self.links.try_lock().is_none_or(|links| links.all.len() > DIRECT_MAX)
    }

    /// True if finished operations are known that nobody has taken.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.has_some()
    }

    /// The outcome that is waited for, if it is known already.
    pub(crate) fn take_wanted(&self, wanted: Wanted) -> Option<Completion> {
        match wanted {
            None => self.take_ready(),
            Some((connection, ticket)) => self.take_ready_where(connection, ticket),
        }
    }

    /// The next finished operation that is known already.
    pub(crate) fn take_ready(&self) -> Option<Completion> {
        let mut ready = self.ready.lock();
        let taken = if self.has_reserved.load(Ordering::SeqCst) {
            let at = ready.iter().position(|done| !self.is_reserved((done.connection, done.ticket)));
            at.and_then(|at| ready.remove(at))
        } else {
            ready.pop_front()
        };
        self.ready.observe();
        self.show_ready(&ready);
        taken
    }

    /// The next finished operation of one kind that is known already.
    pub(crate) fn take_ready_of(&self, receives: bool) -> Option<Completion> {
        let mut ready = self.ready.lock();
        let is_next =
            |done: &Completion| done.kind.is_receive() == receives && !self.is_reserved((done.connection, done.ticket));
        let at = ready.iter().position(is_next)?;
        let taken = ready.remove(at);
        self.ready.observe();
        self.show_ready(&ready);
        taken
    }

    /// Whether the next finished operation that is known is a receive.
    pub(crate) fn next_is_receive(&self) -> Option<bool> {
        let ready = self.ready.lock();
        let next = ready.iter().find(|done| !self.is_reserved((done.connection, done.ticket)))?;
        Some(next.kind.is_receive())
    }

    /// Keeps an outcome that there is not yet from all but whoever waits for just it.
    pub(crate) fn reserve(&self, connection: ConnectionId, ticket: Ticket) {
        self.reserved.lock().push((connection, ticket));
        self.has_reserved.store(true, Ordering::SeqCst);
    }

    /// True for an outcome that was reserved.
    fn is_reserved(&self, of: (ConnectionId, Ticket)) -> bool {
        self.has_reserved.load(Ordering::SeqCst) && self.reserved.lock().contains(&of)
    }

    pub(crate) fn release(&self, connection: ConnectionId, ticket: Ticket) {
        let mut reserved = self.reserved.lock();
        reserved.retain(|kept| *kept != (connection, ticket));
        self.has_reserved.store(!reserved.is_empty(), Ordering::SeqCst);
    }

    /// The outcome of this operation, if it is known already.
    fn take_ready_where(&self, connection: ConnectionId, ticket: Ticket) -> Option<Completion> {
        let mut ready = self.ready.lock();
        let at = ready.iter().position(|done| done.connection == connection && done.ticket == ticket)?;
        let taken = ready.remove(at);
        self.ready.observe();
        self.show_ready(&ready);
        taken
    }

    pub(crate) fn discard_ready(&self, connection: ConnectionId) {
        let mut ready = self.ready.lock();
        ready.retain(|done| done.connection != connection);
        self.show_ready(&ready);
    }

    /// Tells a connection who carries out its flushes, if not whoever drives.
    pub(crate) fn route_flushes(self: &Arc<Self>, link: &Arc<Link>) {
        if let Some(flusher) = self.flushes.flusher() {
            let driver = Arc::<Self>::downgrade(self);
            link.lock().route_flushes(Box::new(FlushRoute::new(flusher.clone(), link, driver)));
        }
    }

    /// Whether others than whoever waits for the descriptor drive.
    pub(crate) fn announces(&self) -> bool {
        self.announces
    }

    /// Where callers say that they drive, if a thread of its own does only while nobody else does.
    pub(crate) fn callers(&self) -> Option<&Callers> {
        self.callers.as_ref()
    }

    /// There are outcomes. The ready list is locked.
    fn announce(&self) {
        self.flag.get().inspect(|flag| flag.set());
        self.signal.get().inspect(|signal| signal.set());
    }

    fn show_ready(&self, ready: &VecDeque<Completion>) {
        if ready.is_empty() {
            self.flag.get().inspect(|flag| flag.clear());
            self.signal.get().inspect(|signal| signal.clear());
            self.delivered.get().inspect(|signal| signal.clear());
        }
    }

    /// Makes the file descriptor readable. The ready list is locked.
    fn show(&self) {
        self.announce();
        self.delivered.get().inspect(|signal| signal.set());
    }

    /// The next connection request that awaits a decision, which nobody drives until it has one: only the decision
    /// moves it on. One whose client has gone meanwhile is told too: whoever saw that one waits would otherwise wait for the next.
    pub(crate) fn take_request(&self) -> Option<(Arc<Link>, Vec<u8>)> {
        let (link, private_data) = self.requests.take()?;
        self.remove(link.id);
        Some((link, private_data))
    }

    /// A receive was posted that a waiting message of the connection may take.
    pub(crate) fn match_shared(&self, link: &Arc<Link>) {
        if let Some(mut core) = link.try_lock() {
            self.match_locked(link, &mut core);
        } else {
            // Someone posts on it, perhaps this very thread in a batch, or drives it: whoever drives it next sees to it.
            return self.see_to(link);
        }
        self.wake();
    }

    fn match_locked(&self, link: &Link, core: &mut LinkCore) {
        core.match_shared(|| self.now());
        core.tell_both();
        self.deliver_all(link.id, core, None, true);
    }

    /// Sees to the connections that were locked when a receive was posted. True if there were any.
    fn take_woken(&self) -> bool {
        let mut any = false;
        let mut woken = {
            let mut list = self.woken.lock();
            // Before they are taken: whoever adds one from here on says so after this.
            self.has_woken.store(false, Ordering::SeqCst);
            std::mem::take(&mut *list)
        };
        woken.retain(|link| {
            let Some(mut core) = link.try_lock() else { return true };
            self.match_locked(link, &mut core);
            any = true;
            false
        });
        if !woken.is_empty() {
            self.woken.lock().append(&mut woken);
            self.has_woken.store(true, Ordering::SeqCst);
        }
        self.show_ready(&self.ready.lock());
        any
    }

    /// Moves what can be moved without waiting. True if anything moved.
    pub(crate) fn drive(&self) -> bool {
        self.drive_at(self.now())
    }

    /// As [`drive`](Self::drive), for a caller who has just looked at the clock: doing it again would take a third of a
    /// turn in which nothing moves.
    pub(crate) fn drive_at(&self, now: Duration) -> bool {
        let mut moved = self.has_woken.load(Ordering::SeqCst) && self.take_woken();
        // Another thread that drives does this thread's work too.
        let Some(mut links) = self.links.try_lock() else { return moved };
        self.flushes.note_connections(links.all.len());
        let mut closed = Vec::new();
        match self.poller.get() {
            Some(poller) if links.all.len() > DIRECT_MAX => moved |= self.drive_many(poller, &mut links, &mut closed),
            _ => {
                // A single connection is tried several times: what it waits for is seen sooner than after a whole turn.
                let tries = if links.all.len() == 1 { SINGLE_TRIES } else { 1 };
                for _ in 0..tries {
                    for link in &links.all {
                        moved |= self.drive_link(link, &mut closed);
                    }
                    if moved {
                        break;
                    }
                }
            }
        }
        links.forget(&closed);
        if now.saturating_sub(links.ticked_at) >= TICK_PERIOD {
            moved |= self.tick(&mut links).1;
        }
        drop(links);
        if moved {
            self.wake();
        }
        moved | (self.flushes.has_inline() && self.flushes.carry_out_inline(now))
    }

    /// Asks devices for a notification of what happens next. True if something happened already, or may have.
    pub(crate) fn arm(&self) -> bool {
        if self.has_woken.load(Ordering::SeqCst) || self.flushes.has_inline() {
            return true;
        }
        let Some(mut links) = self.links.try_lock() else { return true };
        let Links { all, polled, .. } = &mut *links;
        let mut happened = false;
        // Every one is armed, whatever the first of them says: only those that are can be trusted to wake a sleeper.
        for link in all.iter().filter(|link| link.notifies_on_request) {
            if link.try_lock().is_none_or(|mut core| core.arm()) {
                happened = true;
                // What it took in makes no event any more.
                poll_again(polled, link);
            }
        }
        happened
    }

    /// Ends the present wait, or else the next one.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// True from an interrupt until it is taken.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// True once after each interrupt.
    pub(crate) fn take_interrupt(&self) -> bool {
        self.is_interrupted() && self.interrupted.swap(false, Ordering::SeqCst)
    }

    fn tick(&self, links: &mut Links) -> (Option<Duration>, bool) {
        let now = self.now();
        links.ticked_at = now;
        let (mut due, mut changed) = (None, false);
        let mut closed = Vec::new();
        for link in &links.all {
            let Some(mut core) = link.try_lock() else { continue };
            let (link_due, link_changed) = core.tick(now);
            if link_changed {
                core.tell_both();
            }
            due = [due, link_due].into_iter().flatten().min();
            changed |= self.collect(link, &mut core) | link_changed;
            if core.is_closed() {
                closed.push(link.id);
            }
        }
        links.forget(&closed);
        (due, changed)
    }

    /// Drives the connections that epoll reports, and those that it knows nothing of.
    fn drive_many(&self, poller: &Poller, links: &mut Links, closed: &mut Vec<u64>) -> bool {
        let Links { all, polled, .. } = links;
        let mut moved = false;
        poller.ready(|id| {
            let Ok(place) = all.binary_search_by_key(&id, |link| link.id) else { return };
            let link = &all[place];
            moved |= self.drive_link(link, closed);
            if link.notifies_on_request {
                poll_again(polled, link);
            }
        });
        polled.retain_mut(|polled| {
            let moved_here = self.drive_link(&polled.link, closed);
            moved |= moved_here;
            polled.idle_turns = if moved_here { 0 } else { polled.idle_turns + 1 };
            // From when it is asked for a notification, epoll reports it.
            polled.idle_turns < IDLE_TURNS_MAX || polled.link.try_lock().is_none_or(|mut core| core.arm())
        });
        moved
    }

    fn drive_link(&self, link: &Arc<Link>, closed: &mut Vec<u64>) -> bool {
        let Some(mut core) = link.try_lock() else {
            if link.is_answering() {
                self.flushes.note_answering(link);
            }
            return false;
        };
        let moved = core.drive(|| self.now());
        if moved {
            core.tell_both();
        }
        self.tell_interest(&mut core);
        self.collect(link, &mut core);
        if core.is_closed() {
            closed.push(link.id);
        }
        moved
    }

    /// Moves what a connection has finished to where it is waited for. True if there was anything.
    pub(crate) fn collect(&self, link: &Arc<Link>, core: &mut LinkCore) -> bool {
        let id = link.id;
        if let Some(private_data) = core.take_request() {
            self.requests.push(Arc::clone(link), private_data);
        }
        let Some(first) = core.next_completion() else { return false };
        if core.has_receive_collector() {
            self.deliver_all(id, core, Some(first), false);
            return true;
        }
        let mut ready = self.ready.lock();
        let was_empty = ready.is_empty();
        ready.add(Completion::new(ConnectionId(id), first));
        while let Some(next) = core.next_completion() {
            ready.add(Completion::new(ConnectionId(id), next));
        }
        if was_empty {
            self.announce();
        }
        true
    }

    /// Moves what a connection has finished to the drivers that it is for. `is_from_elsewhere`: this driver's own threads did not
    /// take it in.
    fn deliver_all(&self, id: u64, core: &mut LinkCore, first: Option<ProtoCompletion>, is_from_elsewhere: bool) {
        let collectors = core.collectors();
        let mut next = first.or_else(|| core.next_completion());
        while let Some(done) = next {
            let is_receive = done.kind.is_receive();
            let to: Option<&dyn Collector> = match &collectors {
                None => Some(self),
                // Where that queue is gone nobody waits for it.
                Some([operations, receives]) => if is_receive { receives } else { operations }.as_deref(),
            };
            if let Some(to) = to {
                to.deliver(Completion::new(ConnectionId(id), done), is_from_elsewhere || !std::ptr::addr_eq(to, self));
            }
            next = core.next_completion();
        }
    }
}

impl FlushOwner for Driver {
    fn flush_begins(&self) {
        self.flushes.begin();
    }

    fn flush_ends(&self, link: &Arc<Link>, is_done: bool) {
        self.flushes.end();
        if !is_done {
            self.see_to(link);
        }
    }

    fn serves_one_connection(&self) -> bool {
        self.flushes.serves_one_connection()
    }

    fn flush_inline(&self, flush: InlineFlush) -> Result<(), InlineFlush> {
        self.flushes.put_inline(flush)?;
        // Whoever drives may be about to sleep.
        self.wake();
        Ok(())
    }

    fn tell_interest(&self, core: &mut LinkCore) {
        Self::tell_interest(self, core);
    }
}

impl Collector for Driver {
    fn deliver(&self, done: Completion, is_from_elsewhere: bool) {
        let mut ready = self.ready.lock();
        ready.add(done);
        let is_waited_for = self.is_watched() && self.delivered.get().is_some();
        if is_from_elsewhere || is_waited_for || self.announces {
            self.show();
        }
        drop(ready);
        if is_from_elsewhere {
            self.wake();
        }
    }

    fn wake(&self) {
        Self::wake(self);
    }
}
