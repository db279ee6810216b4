//! Runs the engine's questions: a thread for each address connects, asks and waits there.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use pmof_access::Durability;
use pmof_control::{OpenFor, Reply, Request};
use pmof_replication::{
    asking::{Action, Answer, Asking, CallId, Failure, Question, SiteId},
    keeper::KeeperError,
    opening::{self, Identity, OpenedReplica},
};

use crate::{PoolUrl, ReplicaError, error::told, peers::Peers, pool::opened::Reached, reach::Reach, site::Site};

impl Failure for ReplicaError {
    fn may_be_lost(&self) -> bool {
        self.may_be_lost()
    }

    fn refusal(&self) -> Option<pmof_control::PoolRefusal> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            _ => None,
        }
    }
}

/// What a driver has of the world.
pub(super) struct Driver<'d> {
    pub(super) reach: &'d Reach,
    pub(super) peers: &'d Peers,
    /// The level that flushes are to reach.
    pub(super) require: Durability,
    /// No thread is started for the first address: it is the only one.
    pub(super) is_alone: bool,
}

/// Connections by their names in the engine, and the memory that is mapped through them.
#[derive(Debug, Default)]
pub(super) struct Sites(BTreeMap<SiteId, (Site, Option<Reached>)>);

/// Connections that the outcome does not name end, also where a worker is still waiting for an answer there.
impl Drop for Sites {
    fn drop(&mut self) {
        for (site, _) in self.0.values() {
            site.disconnect();
        }
    }
}

impl Sites {
    pub(super) fn take(&mut self, site: SiteId) -> Option<(Site, Option<Reached>)> {
        self.0.remove(&site)
    }

    fn connected(&self, site: SiteId) -> Option<Site> {
        self.0.get(&site).map(|(site, _)| site.clone())
    }
}

/// What a worker does next.
#[derive(Debug)]
enum Order {
    Connect { url: Arc<PoolUrl>, limit: Option<Duration> },
    Send { site: Site, request: Request },
    Map { site: Site, access: OpenFor, size_bytes: u64 },
}

/// What has come of it.
#[derive(Debug)]
enum Carried {
    Connected(Site),
    Replied(Box<Reply>),
    Mapped(Box<Reached>),
}

type Report = (SiteId, CallId, Result<Carried, ReplicaError>);

/// Connects to one address, and asks there, one order after the other.
struct Worker {
    site: SiteId,
    reach: Reach,
    peers: Peers,
    require: Durability,
    /// Of the replica that was opened there last.
    descriptor: Vec<u8>,
    reports: Sender<Report>,
}

/// An order that has to be reported on, also by a worker that panics.
struct Owed<'w>(&'w Sender<Report>, Option<(SiteId, CallId)>);

impl Owed<'_> {
    fn report(mut self, carried: Result<Carried, ReplicaError>) {
        if let Some((site, call)) = self.1.take() {
            // The questions may have ended.
            let _ = self.0.send((site, call, carried));
        }
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        if let Some((site, call)) = self.1.take() {
            let _ = self.0.send((site, call, Err(ReplicaError::Unexpected)));
        }
    }
}

impl Worker {
    fn work(mut self, orders: &Receiver<(CallId, Order)>) {
        while let Ok((call, order)) = orders.recv() {
            self.report(call, order);
        }
    }

    fn report(&mut self, call: CallId, order: Order) {
        let reports = self.reports.clone();
        let owed = Owed(&reports, Some((self.site, call)));
        // A panic is reported by its guard, and the next order carried out.
        let carried = catch_unwind(AssertUnwindSafe(|| self.carry_out(order)));
        if let Ok(carried) = carried {
            owed.report(carried);
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<Carried, ReplicaError> {
        // It keeps no connection: one that is not used any more ends with the call.
        match order {
            Order::Connect { url, limit } => Ok(Carried::Connected(self.limited(limit).site(&self.peers, &url)?)),
            Order::Send { site, request } => {
                let mut reply = site.ask(&request)?;
                if let Reply::Opened { descriptor, .. } = &mut reply {
                    // Before it is compared with others: what does not describe its memory is no target.
                    Reached::check(&site, descriptor)?;
                    self.descriptor = std::mem::take(descriptor);
                }
                Ok(Carried::Replied(Box::new(reply)))
            }
            Order::Map { site, access, size_bytes } => {
                let reached = Reached::open(&site, &self.descriptor, size_bytes, (self.require, access))?;
                Ok(Carried::Mapped(Box::new(reached)))
            }
        }
    }

    fn limited(&self, limit: Option<Duration>) -> Reach {
        let Reach { connect_timeout, loss_timeout, .. } = self.reach;
        let limit = limit.unwrap_or(Duration::MAX);
        Reach {
            connect_timeout: connect_timeout.min(limit),
            loss_timeout: loss_timeout.min(limit),
            ..self.reach.clone()
        }
    }
}

/// The driver's end of a worker.
struct Hand {
    /// Once it is set, the worker's attempt to connect ends.
    given_up: Arc<AtomicBool>,
    work: Work,
}

enum Work {
    Elsewhere(Sender<(CallId, Order)>),
    /// The driver does the work itself: for the only replica, or where no thread could be started.
    Here(Box<Worker>),
}

/// Opens one replica by itself. Returns it with its connection and its bytes.
pub(super) fn open_one(
    reach: &Reach,
    url: &Arc<PoolUrl>,
    (access, require): (OpenFor, Durability),
    take_over: Option<Duration>,
) -> Result<(Identity, OpenedReplica, Site, Reached), Arc<ReplicaError>> {
    let driver = Driver { reach, peers: &reach.peers(), require, is_alone: true };
    let (opened, mut sites) = driver.drive(opening::open_one(Arc::clone(url), (access, require), take_over));
    let (identity, replica) = opened.map_err(told)?;
    match sites.take(replica.site) {
        Some((site, Some(reached))) => Ok((identity, replica, site, reached)),
        _ => Err(Arc::new(ReplicaError::Unexpected)),
    }
}

/// Runs questions about the replicas at `places`, of which nothing is to be written and no connection is to stay.
pub(super) fn ask<T>(
    reach: &Reach,
    places: Vec<Arc<PoolUrl>>,
    asking: impl FnOnce(Vec<Arc<PoolUrl>>) -> Asking<PoolUrl, ReplicaError, T>,
) -> T {
    let is_alone = places.len() == 1;
    Driver { reach, peers: &reach.peers(), require: Durability::Visible, is_alone }.drive(asking(places)).0
}

impl Driver<'_> {
    /// Runs questions to their outcome. Returns it with the connections.
    pub(super) fn drive<T>(&self, mut asking: Asking<PoolUrl, ReplicaError, T>) -> (T, Sites) {
        let (began, mut run) = (Instant::now(), Running::new(self));
        let (mut answer, mut clock) = (None, Duration::ZERO);
        loop {
            // While there are answers no time is up, however late this thread comes to them.
            let due = asking.wakes_at().filter(|_| answer.is_some()).unwrap_or(Duration::MAX);
            clock = clock.max(began.elapsed().min(due.saturating_sub(Duration::from_nanos(1))));
            let outcome = asking.step(clock, answer.take());
            let questions: Vec<_> = std::iter::from_fn(|| asking.next_question()).collect();
            // What this thread does itself comes behind what others can begin.
            let (here, elsewhere): (Vec<_>, Vec<_>) = questions.into_iter().partition(|question| run.is_here(question));
            elsewhere.into_iter().chain(here).for_each(|question| run.carry_out(question));
            if let Some(outcome) = outcome {
                run.give_up();
                return (outcome, std::mem::take(&mut run.sites));
            }
            answer = run.next_answer(asking.wakes_at().map(|at| at.saturating_sub(began.elapsed())));
        }
    }
}

/// The driver's state.
struct Running<'d> {
    driver: &'d Driver<'d>,
    /// No thread is started for the first address.
    is_alone: bool,
    hands: BTreeMap<SiteId, Hand>,
    sites: Sites,
    /// What the driver has answered itself.
    answered: VecDeque<(CallId, Result<Answer, ReplicaError>)>,
    reports: Sender<Report>,
    reported: Receiver<Report>,
}

impl<'d> Running<'d> {
    fn new(driver: &'d Driver<'d>) -> Self {
        let (reports, reported) = mpsc::channel();
        Self {
            driver,
            is_alone: driver.is_alone,
            hands: BTreeMap::new(),
            sites: Sites::default(),
            answered: VecDeque::new(),
            reports,
            reported,
        }
    }

    fn carry_out(&mut self, Question { call, action }: Question<PoolUrl>) {
        match action {
            Action::Connect { site, place, limit } => {
                let hand = self.hand(site);
                self.hands.insert(site, hand);
                self.order(site, call, Order::Connect { url: place, limit });
            }
            Action::Send { site, request } => {
                let order = self.sites.connected(site).map(|site| Order::Send { site, request });
                self.order_there(site, call, order);
            }
            Action::Map { site, access, size_bytes } => {
                let order = self.sites.connected(site).map(|site| Order::Map { site, access, size_bytes });
                self.order_there(site, call, order);
            }
            Action::Unmap { site } => {
                self.sites.0.get_mut(&site).map(|(_, reached)| reached.take());
            }
            // The members of these pools are their own keeper.
            Action::ReadKeeper => self.answered.push_back((call, Ok(Answer::Kept(Err(KeeperError::Unreachable))))),
            Action::Drop { site } => {
                if let Some(hand) = self.hands.remove(&site) {
                    hand.given_up.store(true, Ordering::Relaxed);
                }
                // Its worker, which may be waiting there, lets go of it, too.
                if let Some((site, _)) = self.sites.take(site) {
                    site.disconnect();
                }
            }
        }
    }

    /// Whether this thread would carry it out.
    fn is_here(&self, question: &Question<PoolUrl>) -> bool {
        let site = match &question.action {
            Action::Connect { .. } => return self.is_alone,
            Action::Send { site, .. } | Action::Map { site, .. } | Action::Unmap { site } | Action::Drop { site } => {
                site
            }
            Action::ReadKeeper => return true,
        };
        self.hands.get(site).is_some_and(|hand| matches!(hand.work, Work::Here(_)))
    }

    /// Ends all attempts to connect.
    fn give_up(&self) {
        self.hands.values().for_each(|hand| hand.given_up.store(true, Ordering::Relaxed));
    }

    /// `None`: it is not connected, or not any more.
    fn order_there(&mut self, site: SiteId, call: CallId, order: Option<Order>) {
        match order {
            Some(order) => self.order(site, call, order),
            None => self.answered.push_back((call, Err(ReplicaError::Unexpected))),
        }
    }

    fn hand(&mut self, site: SiteId) -> Hand {
        let Driver { reach, peers, require, .. } = *self.driver;
        let given_up = Arc::new(AtomicBool::new(false));
        let worker = || Worker {
            site,
            reach: reach.until(&given_up),
            peers: peers.clone(),
            require,
            descriptor: Vec::new(),
            reports: self.reports.clone(),
        };
        let here = std::mem::take(&mut self.is_alone).then(|| Work::Here(Box::new(worker())));
        let work = here.unwrap_or_else(|| {
            let ((orders, ordered), elsewhere) = (mpsc::channel(), worker());
            let started =
                thread::Builder::new().name("pmof-pool-ask".to_owned()).spawn(move || elsewhere.work(&ordered));
            match started {
                Ok(_) => Work::Elsewhere(orders),
                Err(error) => {
                    log::warn!("no thread to ask a replica could be started: {error}");
                    Work::Here(Box::new(worker()))
                }
            }
        });
        Hand { given_up, work }
    }

    fn order(&mut self, site: SiteId, call: CallId, order: Order) {
        let is_taken = match self.hands.get_mut(&site).map(|hand| &mut hand.work) {
            Some(Work::Elsewhere(orders)) => orders.send((call, order)).is_ok(),
            Some(Work::Here(worker)) => {
                worker.report(call, order);
                true
            }
            None => false,
        };
        // Else it was dropped, or its worker has panicked.
        if !is_taken {
            self.answered.push_back((call, Err(ReplicaError::Unexpected)));
        }
    }

    /// The next answer, or `None` when the time is up.
    fn next_answer(&mut self, limit: Option<Duration>) -> Option<(CallId, Result<Answer, ReplicaError>)> {
        if let Some(answered) = self.answered.pop_front() {
            return Some(answered);
        }
        let (site, call, carried) = match limit {
            Some(limit) => self.reported.recv_timeout(limit).ok()?,
            None => self.reported.recv().ok()?,
        };
        let is_dropped = !self.hands.contains_key(&site);
        let answer = carried.map(|carried| match carried {
            Carried::Connected(connected) if is_dropped => {
                connected.disconnect();
                Answer::Done
            }
            Carried::Connected(connected) => {
                self.sites.0.insert(site, (connected, None));
                Answer::Done
            }
            Carried::Mapped(mapped) => {
                if let Some((_, reached)) = self.sites.0.get_mut(&site) {
                    *reached = Some(*mapped);
                }
                Answer::Done
            }
            Carried::Replied(reply) => Answer::Reply(reply),
        });
        Some((call, answer))
    }
}

impl fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("require", &self.require).finish_non_exhaustive()
    }
}
