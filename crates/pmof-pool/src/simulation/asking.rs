//! Drives the engine's questions in the simulated world.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pmof_access::ConnectionError;
use pmof_control::{ControlVersion, MessageHead, Reply, Request};
use pmof_replication::{
    asking::{Action, Answer as Done, Asking, CallId, Question, SiteId},
    keeper::{Keeper, ReadKept},
};

use super::{
    faults::Fault,
    keeping::Asked,
    target::{Answer, Message},
    tasks::Shared,
    versions::{REQUEST_ID, Version, is_left_out},
    world::World,
};
use crate::{PoolUrl, ReplicaError, target::read_reply};

/// Steps after which an attempt to connect is given up.
const CONNECT_STEPS: u64 = 600;

type Answered = Result<Done, ReplicaError>;

/// What is done at one site, one after the other.
#[derive(Default)]
struct Site {
    target: usize,
    connection: Option<usize>,
    /// That of its messages, from when it is connected.
    version: Option<ControlVersion>,
    orders: VecDeque<(CallId, Order)>,
}

enum Order {
    /// Until this step.
    Connect(u64),
    Send(Box<Request>),
    /// Its answer is awaited.
    Await(u64),
    Map,
}

/// The driver's state, as `pool/asking.rs` has it.
struct Driver {
    world: Shared,
    process: usize,
    named: Vec<usize>,
    sites: BTreeMap<SiteId, Site>,
    answered: VecDeque<(CallId, Answered)>,
    /// The keeper is read.
    reading: Option<(CallId, Reading)>,
}

type Reading = Pin<Box<dyn Future<Output = ReadKept>>>;

async fn read(keeper: Asked) -> ReadKept {
    keeper.read().await.map(Box::new)
}

/// Runs questions of a process, which knows the addresses of the `named` targets. Returns the outcome, and the connections that are there.
pub(super) async fn drive<T>(
    world: &Shared,
    process: usize,
    named: &[usize],
    mut asking: Asking<PoolUrl, ReplicaError, T>,
) -> (T, BTreeMap<SiteId, usize>) {
    let (world, sites) = (Rc::clone(world), BTreeMap::new());
    let mut driver = Driver { world, process, named: named.to_vec(), sites, answered: VecDeque::new(), reading: None };
    let mut answer = None;
    loop {
        let outcome = asking.step(driver.now(), answer.take());
        while let Some(question) = asking.next_question() {
            driver.carry_out(question);
        }
        if let Some(outcome) = outcome {
            return (outcome, driver.connections());
        }
        let wakes_at = asking.wakes_at();
        answer = std::future::poll_fn(|_| {
            driver.work();
            match driver.answered.pop_front() {
                Some(answered) => Poll::Ready(Some(answered)),
                None if wakes_at.is_some_and(|at| driver.now() >= at) => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

impl Driver {
    fn now(&self) -> Duration {
        Duration::from_millis(self.world.borrow().passed_ms(self.process))
    }

    fn carry_out(&mut self, Question { call, action }: Question<PoolUrl>) {
        let (site, order) = match action {
            Action::Connect { site, place, .. } => {
                let mut world = self.world.borrow_mut();
                let target = world.urls.iter().position(|url| *url == place);
                let Some(target) = target else {
                    return world.truth.violate(|| format!("no target is at {place}"));
                };
                if self.process != world.looker() && !self.named.contains(&target) {
                    world.count(Fault::OpenedByFollowedAddress);
                }
                self.sites.insert(site, Site { target, ..Site::default() });
                (site, Order::Connect(world.step + CONNECT_STEPS))
            }
            Action::Send { site, request } => (site, Order::Send(Box::new(request))),
            Action::Map { site, .. } => (site, Order::Map),
            Action::Unmap { .. } => return,
            Action::ReadKeeper => {
                let keeper = Asked { world: Rc::clone(&self.world), writer: self.process };
                self.reading = Some((call, Box::pin(read(keeper))));
                return;
            }
            Action::Drop { site } => {
                let connection = self.sites.remove(&site).and_then(|site| site.connection);
                return connection.into_iter().for_each(|connection| self.world.borrow_mut().close_here(connection));
            }
        };
        match self.sites.get_mut(&site) {
            Some(site) => site.orders.push_back((call, order)),
            None => self.answered.push_back((call, Err(lost()))),
        }
    }

    /// Does what can be done now.
    fn work(&mut self) {
        let answer =
            self.reading.as_mut().map(|(_, reading)| reading.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        if let (Some(Poll::Ready(kept)), Some((call, _))) = (answer, &self.reading) {
            self.answered.push_back((*call, Ok(Done::Kept(kept))));
            self.reading = None;
        }
        let mut world = self.world.borrow_mut();
        for site in self.sites.values_mut() {
            while let Some((call, order)) = site.orders.pop_front() {
                match site.carry_out(&mut world, self.process, order) {
                    Ok(answer) => self.answered.push_back((call, answer)),
                    Err(order) => {
                        site.orders.push_front((call, order));
                        break;
                    }
                }
            }
        }
    }

    /// The connections that are there. The others end with their process.
    fn connections(self) -> BTreeMap<SiteId, usize> {
        self.sites.into_iter().filter_map(|(id, site)| Some((id, site.connection?))).collect()
    }
}

impl Site {
    /// `Err`: it is not done yet.
    fn carry_out(&mut self, world: &mut World, process: usize, order: Order) -> Result<Answered, Order> {
        let (connection, version) = match (&order, self.connection, self.version) {
            (Order::Connect(until), ..) => return self.connect(world, process, *until).ok_or(order),
            (_, Some(connection), Some(version)) => (connection, version),
            _ => return Ok(Err(lost())),
        };
        match order {
            Order::Send(request) => match request.encode(MessageHead { version, request_id: REQUEST_ID }) {
                Ok(encoded) => Err(Order::Await(world.send(connection, Message::Encoded(encoded)))),
                Err(error) => Ok(Err(error.into())),
            },
            Order::Await(question) => match world.answer(connection, question) {
                Poll::Pending => Err(order),
                Poll::Ready(answer) => Ok(replied(world, answer, version).map(|reply| Done::Reply(Box::new(reply)))),
            },
            Order::Map | Order::Connect(_) => Ok(Ok(Done::Done)),
        }
    }

    /// Packets that are lost are sent again, until the time is up. `None`: it is still tried.
    fn connect(&mut self, world: &mut World, process: usize, until: u64) -> Option<Answered> {
        let link = world.links[process][self.target];
        let target = &world.targets[self.target];
        let may_be_reached = target.is_up && (target.is_paused || link.requests_blocked || link.replies_blocked);
        if may_be_reached && world.step < until {
            return None;
        }
        self.connection = world.connect_to_open(process, self.target);
        if self.connection.is_none() {
            return Some(Err(lost()));
        }
        let other = world.targets[self.target].version;
        Some(match other.agreed() {
            Ok(version) => {
                self.version = Some(version);
                Ok(Done::Done)
            }
            Err(error) => Err(judged(world, other, error.into())),
        })
    }
}

/// What a target's answer to a message of this version is to an initiator.
pub(super) fn replied(
    world: &mut World,
    answer: Option<Answer>,
    version: ControlVersion,
) -> Result<Reply, ReplicaError> {
    match answer {
        Some(Answer::Encoded(reply)) => read_reply(&reply, version),
        Some(Answer::OtherVersion(other, reply)) => match read_reply(&reply, version) {
            Ok(_) => {
                world.truth.violate(|| format!("a target of {other:?} serves"));
                Err(lost())
            }
            Err(error) => Err(judged(world, other, error)),
        },
        _ => Err(lost()),
    }
}

/// The error of a target of another version, which has to name that.
pub(super) fn judged(world: &mut World, version: Version, error: ReplicaError) -> ReplicaError {
    match is_left_out(version, &error) {
        Ok(is_left_out) => world.count(if is_left_out { Fault::VersionLeftOut } else { Fault::VersionRefusedPool }),
        Err(text) => world.truth.violate(|| text),
    }
    error
}

pub(super) fn lost() -> ReplicaError {
    ReplicaError::Ended(ConnectionError::Closed)
}
