//! Drives the connections of one queue or listener: moves their bytes, tells them the time, parks when nothing moves.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pmof_proto::Ticket;

use crate::{
    Completion, ConnectionId, SetupError,
    clock::Clock,
    error::system,
    link::{Link, LinkCore},
    poller::Poller,
    rest::Rest,
};

/// Up to this many connections are simply tried in turn; asking epoll first costs a system call more.
const DIRECT_MAX: usize = 4;

/// How often a queue with one connection tries it in one turn.
const LONE_TRIES: usize = 4;

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

#[derive(Debug, Default)]
struct Links {
    by_id: BTreeMap<u64, Arc<Link>>,
    ticked_at: Duration,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) clock: Clock,
    poller: Option<Arc<Poller>>,
    links: Mutex<Links>,
    ready: Mutex<VecDeque<Completion>>,
    /// Connection requests that await a decision, with their private data.
    requests: Mutex<VecDeque<(u64, Vec<u8>)>>,
    /// Someone wants the thread that waits to look up.
    interrupted: AtomicBool,
    /// Set while there are outcomes, where a thread of its own drives.
    signal: Option<ReadySignal>,
    rest: Rest,
}

/// Readable while outcomes are there.
#[derive(Debug)]
pub(crate) struct ReadySignal {
    pub(crate) fd: OwnedFd,
}

impl Driver {
    pub(crate) fn new(clock: &Clock, signal: Option<ReadySignal>) -> Result<Arc<Self>, SetupError> {
        let poller = match clock {
            Clock::Real(_) => Some(Arc::new(Poller::new()?)),
            Clock::Virtual(_) => None,
        };
        let driver = Arc::new(Self {
            clock: clock.clone(),
            poller,
            links: Mutex::default(),
            ready: Mutex::default(),
            requests: Mutex::default(),
            interrupted: AtomicBool::new(false),
            signal,
            rest: Rest::default(),
        });
        if let Clock::Virtual(network) = clock {
            network.add_driver(&driver);
        }
        Ok(driver)
    }

    pub(crate) fn poller(&self) -> Option<&Arc<Poller>> {
        self.poller.as_ref()
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Takes a connection over.
    pub(crate) fn add(&self, link: &Arc<Link>) -> Result<(), SetupError> {
        link.watch(self.poller.as_ref()).map_err(system("epoll_ctl"))?;
        self.lock_links().by_id.insert(link.id, Arc::clone(link));
        self.tell();
        Ok(())
    }

    /// Gives up the connection that was added first.
    pub(crate) fn remove_oldest(&self) {
        let oldest = self.lock_links().by_id.keys().next().copied();
        if let Some(id) = oldest {
            self.remove(id);
        }
    }

    /// Gives a connection up, for another driver.
    pub(crate) fn remove(&self, id: u64) -> Option<Arc<Link>> {
        let link = self.lock_links().by_id.remove(&id)?;
        link.lock().unwatch();
        Some(link)
    }

    /// Connections there are.
    pub(crate) fn len(&self) -> usize {
        self.lock_links().by_id.len()
    }

    /// True if connections that epoll does not report are not looked at (or if that is not known just now).
    pub(crate) fn asks_epoll(&self) -> bool {
        self.links.try_lock().map_or(true, |links| links.by_id.len() > DIRECT_MAX)
    }

    /// The next finished operation that is known already.
    pub(crate) fn take_ready(&self) -> Option<Completion> {
        let mut ready = self.lock_ready();
        let taken = ready.pop_front()?;
        self.show_ready(&ready);
        Some(taken)
    }

    /// The outcome of this operation, if it is known already.
    pub(crate) fn take_ready_where(&self, connection: ConnectionId, ticket: Ticket) -> Option<Completion> {
        let mut ready = self.lock_ready();
        let at = ready.iter().position(|done| done.connection == connection && done.ticket == ticket)?;
        let taken = ready.remove(at);
        self.show_ready(&ready);
        taken
    }

    pub(crate) fn discard_ready(&self, connection: ConnectionId) {
        let mut ready = self.lock_ready();
        ready.retain(|done| done.connection != connection);
        self.show_ready(&ready);
    }

    /// Where outcomes are announced, if a thread of its own drives.
    pub(crate) fn signal(&self) -> Option<&ReadySignal> {
        self.signal.as_ref()
    }

    fn show_ready(&self, ready: &VecDeque<Completion>) {
        if ready.is_empty()
            && let Some(signal) = &self.signal
        {
            signal.clear();
        }
    }

    /// The next connection request that awaits a decision, which nobody drives until it has one: only the decision
    /// moves it on.
    pub(crate) fn take_request(&self) -> Option<(Arc<Link>, Vec<u8>)> {
        loop {
            let (id, private_data) = self.requests.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
            // One that was given up meanwhile is gone.
            if let Some(link) = self.remove(id) {
                return Some((link, private_data));
            }
        }
    }

    /// Moves what can be moved without waiting. True if anything moved.
    pub(crate) fn drive(&self) -> bool {
        self.drive_at(self.now())
    }

    /// As [`drive`](Self::drive), for a caller who has just looked at the clock: doing it again would take a third of a
    /// turn in which nothing moves.
    pub(crate) fn drive_at(&self, now: Duration) -> bool {
        // Another thread that drives does this thread's work too.
        let Ok(mut links) = self.links.try_lock() else { return false };
        let mut moved = false;
        let mut closed = Vec::new();
        match &self.poller {
            Some(poller) if links.by_id.len() > DIRECT_MAX => poller.ready(|id| {
                if let Some(link) = links.by_id.get(&id) {
                    moved |= self.drive_link(link, &mut closed);
                }
            }),
            _ => {
                // A lone connection is tried several times: what it waits for is seen sooner than after a whole turn.
                let tries = if links.by_id.len() == 1 { LONE_TRIES } else { 1 };
                for _ in 0..tries {
                    for link in links.by_id.values() {
                        moved |= self.drive_link(link, &mut closed);
                    }
                    if moved {
                        break;
                    }
                }
            }
        }
        for id in closed {
            links.by_id.remove(&id);
        }
        if now.saturating_sub(links.ticked_at) >= TICK_PERIOD {
            moved |= self.tick(&mut links).1;
        }
        drop(links);
        if moved {
            self.tell();
        }
        moved
    }

    /// Sleeps until something may have changed, at most until `until`. `is_done` is asked once more before the sleep, from
    /// when on every change ends it.
    pub(crate) fn rest(&self, until: Duration, is_done: &mut dyn FnMut() -> bool) {
        match (&self.clock, &self.poller) {
            (Clock::Virtual(network), _) => {
                let (due, changed) = self.tick(&mut self.lock_links());
                if !changed {
                    network.advance([Some(until), due].into_iter().flatten().min());
                }
            }
            (_, Some(_)) if self.rest.try_lead() => {
                self.lead(until, is_done);
                self.rest.stop_leading();
            }
            _ => self.rest.follow(until.saturating_sub(self.now()), is_done),
        }
    }

    /// Sleeps in the kernel, as the thread that leads.
    pub(crate) fn lead(&self, until: Duration, is_done: &mut dyn FnMut() -> bool) {
        let Some(poller) = &self.poller else { return };
        let (due, changed) = self.tick(&mut self.lock_links());
        if changed {
            return self.tell();
        }
        let now = self.now();
        let until = due.map_or(until, |due| until.min(due));
        self.rest.lead(poller, until.saturating_sub(now).min(SLEEP_MAX), is_done);
    }

    /// Ends the present wait, or else the next one.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        self.tell();
    }

    /// True from an interrupt until it is taken.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// True once after each interrupt.
    pub(crate) fn take_interrupt(&self) -> bool {
        self.is_interrupted() && self.interrupted.swap(false, Ordering::SeqCst)
    }

    /// Ends the sleep of every thread: something changed.
    pub(crate) fn tell(&self) {
        self.rest.tell(self.poller.as_deref());
    }

    /// Makes the calling thread the one that sleeps in the kernel, until it ends. False if another one is.
    pub(crate) fn lead_for_good(&self) -> bool {
        self.rest.try_lead()
    }

    /// Tells every connection the time. Returns when that is due again, and whether it changed anything. Used by the
    /// simulated network too.
    pub(crate) fn tick_all(&self) -> (Option<Duration>, bool) {
        self.links.try_lock().map_or((None, false), |mut links| self.tick(&mut links))
    }

    fn tick(&self, links: &mut Links) -> (Option<Duration>, bool) {
        let now = self.now();
        links.ticked_at = now;
        let (mut due, mut changed) = (None, false);
        let mut closed = Vec::new();
        for link in links.by_id.values() {
            let Some(mut core) = link.try_lock() else { continue };
            let (link_due, link_changed) = core.tick(now);
            due = [due, link_due].into_iter().flatten().min();
            changed |= self.collect(link.id, &mut core) | link_changed;
            if core.is_closed() {
                closed.push(link.id);
            }
        }
        for id in closed {
            links.by_id.remove(&id);
        }
        (due, changed)
    }

    fn drive_link(&self, link: &Link, closed: &mut Vec<u64>) -> bool {
        let Some(mut core) = link.try_lock() else { return false };
        let moved = core.drive(|| self.now());
        self.collect(link.id, &mut core);
        if core.is_closed() {
            closed.push(link.id);
        }
        moved
    }

    /// Moves what a connection has finished to where it is waited for. True if there was anything.
    pub(crate) fn collect(&self, id: u64, core: &mut LinkCore) -> bool {
        if let Some(private_data) = core.take_request() {
            self.requests.lock().unwrap_or_else(PoisonError::into_inner).push_back((id, private_data));
        }
        let Some(first) = core.next_completion() else { return false };
        let mut ready = self.lock_ready();
        let was_empty = ready.is_empty();
        ready.push_back(Completion::new(ConnectionId(id), first));
        while let Some(next) = core.next_completion() {
            ready.push_back(Completion::new(ConnectionId(id), next));
        }
        if let Some(signal) = &self.signal
            && was_empty
        {
            signal.set();
        }
        true
    }

    fn lock_links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_ready(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
