//! How replicas come back: those that are lost are connected to again, catch up while the pool is written, and count again.
//!
//! One thread of the pool looks for losses; each replica that is out of use has a thread of its own until it is back. What has to be copied
//! and in which order a replica returns is decided by the engine (`returning.rs` in `pmof-replication`), which a `Return` drives.

use std::{
    io,
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pmof_access::Durability;
use pmof_locks::{Condvar, Mutex, RwLock, RwLockWriteGuard};
use pmof_replication::{
    posting::{Forgetting, LEAST_PATIENCE, forget_written},
    returning::{Backoff, Limits, Pauses, Trust},
};

use super::{
    Open, Shared,
    epochs::done,
    events::{Event, Log},
    halt::Halt,
    opened::Identity,
};
use crate::{
    PoolUrl, ReplicaError,
    catch_up::CatchUp,
    intent::SWEEP_INTERVAL,
    member::{Control, Flush, FlushLevel, Flushing, Member},
    older_pages::OlderPages,
    pages::PageMap,
    peers::Peers,
    reach::Reach,
};

mod driver;
mod lost;
mod places;
mod scrubbing;
mod signal;
mod spares;
#[cfg(test)]
mod tests;

pub(super) use spares::Learning;

use lost::Spares;
pub(super) use signal::Signal;

/// How often it is looked for losses of which no persist told, and for writes that all replicas have.
const TICK: Duration = Duration::from_secs(1);

/// Bytes that may be missing when the pool is held for the last of them.
pub(super) const LAST_BYTES: u64 = Limits::SHIPPED.last_bytes;

/// How long those who write are kept waiting for those who posted before them, so that the pool's members may change; then it is tried again, and
/// twice as long each time.
const HOLD: Duration = Duration::from_millis(5);
const LONGEST_HOLD: Duration = Duration::from_millis(80);

/// What whoever opens a pool asks of those that come back, and of those that stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnTerms {
    pub(super) require: Durability,
    /// Bytes that are copied in a second, at most.
    pub(super) bytes_per_second: Option<u64>,
    /// How long a member is lost before a spare takes its place.
    pub(super) spare_after: Duration,
    /// How long after an opening, or the last scrub, the pool is scrubbed in the background.
    pub(super) scrub_every: Option<Duration>,
    /// The pool was opened with a number of replicas that was asked for.
    pub(super) is_forced: bool,
}

/// What it takes to bring the replicas of an open pool back.
#[derive(Debug)]
pub(super) struct Returns {
    reach: Reach,
    peers: Mutex<Peers>,
    /// Of all members, in their order; more come with new members.
    urls: RwLock<Vec<Arc<PoolUrl>>>,
    identity: Identity,
    require: Durability,
    bytes_per_second: Option<u64>,
    losses: Arc<Signal>,
    attended: Mutex<Vec<Attended>>,
    trust: Mutex<Vec<Trust>>,
    /// The moment that times are counted from.
    began: Instant,
    /// Pages written before those of the pool's map.
    older: Mutex<OlderPages>,
    stopping: Mutex<bool>,
    stopped: Condvar,
    is_started: AtomicBool,
    /// Positions that nobody has, and nobody had who has been a member.
    free_places: Mutex<Vec<usize>>,
    spares: Spares,
    scrub_every: Option<Duration>,
    /// The pool was opened with a number of replicas that was asked for.
    pub(super) is_forced: bool,
    /// Held by whoever changes the members.
    pub(super) changing: Mutex<()>,
}

/// What is done for a replica that was lost.
#[derive(Clone, Copy, Debug)]
struct Attended {
    /// A thread brings it back, or nobody is to.
    has_thread: bool,
    /// That thread has yet to end.
    is_running: bool,
    backoff: Backoff,
}

impl Returns {
    /// `urls`: of the members of `open`, in their order.
    pub(super) fn new(
        (reach, peers): (Reach, Peers),
        urls: Vec<Arc<PoolUrl>>,
        identity: Identity,
        terms: ReturnTerms,
        open: &Open,
    ) -> Self {
        let ReturnTerms { require, bytes_per_second, spare_after, scrub_every, is_forced } = terms;
        Self {
            reach,
            peers: Mutex::new(peers),
            attended: Mutex::new(vec![
                Attended {
                    has_thread: false,
                    is_running: false,
                    backoff: Backoff::new(&Pauses::default())
                };
                urls.len()
            ]),
            began: Instant::now(),
            trust: Mutex::new(vec![Trust::default(); urls.len()]),
            urls: RwLock::new(urls),
            identity,
            require,
            bytes_per_second,
            losses: Arc::clone(&open.losses),
            older: Mutex::default(),
            stopping: Mutex::new(false),
            stopped: Condvar::new(),
            is_started: AtomicBool::new(false),
            free_places: Mutex::default(),
            spares: Spares::new(spare_after),
            scrub_every,
            is_forced,
            changing: Mutex::default(),
        }
    }

    /// Watches over a pool of several members from now on.
    pub(super) fn start(pool: &Arc<Shared>) {
        let Some(returns) = &pool.returns else { return };
        if returns.urls.read().len() < 2 || returns.is_started.swap(true, Ordering::AcqRel) {
            return;
        }
        returns.start_scrubbing(pool);
        let (returns, pool) = (Arc::clone(returns), Arc::downgrade(pool));
        let started = spawn("pmof-pool-watch", move || returns.watch(&pool));
        if let Err(error) = started {
            log::error!("no thread to bring lost replicas back could be started: {error}");
        }
    }

    /// Has all threads end that bring replicas back.
    pub(super) fn stop(&self) {
        *self.stopping.lock() = true;
        self.stopped.notify_all();
        self.losses.raise();
    }

    fn url(&self, position: usize) -> Arc<PoolUrl> {
        Arc::clone(&self.urls.read()[position])
    }

    pub(in crate::pool) fn is_stopping(&self) -> bool {
        *self.stopping.lock()
    }

    /// The time since this began.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// False: the threads are to end.
    fn pause(&self, limit: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stopped.wait_for(&mut stopping, limit);
        }
        !*stopping
    }

    fn watch(self: &Arc<Self>, pool: &Weak<Shared>) {
        let mut swept = Instant::now();
        while !self.is_stopping() {
            let Some(shared) = pool.upgrade() else { return };
            let Ok(open) = shared.hold() else { return };
            self.learn_boots(&open);
            open.members.iter().filter_map(|member| member.control()).for_each(Control::look);
            self.attend(pool, &shared.events, &open);
            self.look_for_spares(&shared, &open);
            shared.tell_status(&open);
            if open.in_use().next().is_none() && self.has_ended(&shared) {
                return;
            }
            drop(open);
            done(forget_written(&Forget { returns: self, shared: &shared }));
            if swept.elapsed() >= SWEEP_INTERVAL {
                swept = Instant::now();
                shared.sweep_intent();
                shared.protect_more();
            }
            drop(shared);
            self.losses.wait(TICK);
        }
    }

    /// Whether no member is left that has everything: none can catch up any more. Then nobody is brought back from now on.
    fn has_ended(&self, shared: &Shared) -> bool {
        // Whoever joins does so while it holds this.
        let Ok(open) = self.hold_all(shared) else { return true };
        if open.in_use().next().is_some() {
            return false;
        }
        let failures = open.members.iter().filter_map(|member| member.standing().failure());
        if failures.clone().any(|why| why.is_fenced()) {
            return false;
        }
        shared.events.add(Event::NoneLeft);
        self.stop();
        true
    }

    /// Asks when the members' machines were started, where bytes that are acknowledged need not outlive them.
    fn learn_boots(&self, open: &Open) {
        if self.require == Durability::PowerFailure {
            return;
        }
        let limit = open.terms.slow_after.map(|limit| limit.max(LEAST_PATIENCE));
        for (position, member) in open.members.iter().enumerate() {
            if !member.state().is_in_sync() || self.trust.lock()[position].is_asked() {
                continue;
            }
            let Some(control) = member.control() else { continue };
            // One that does not answer in time is asked again.
            let Ok(boot) = control.boot_within(limit) else { continue };
            self.trust.lock()[position].note_boot(boot);
        }
    }

    /// Sees to it that somebody brings back each member that is out of use.
    fn attend(self: &Arc<Self>, pool: &Weak<Shared>, events: &Arc<Log>, open: &Open) {
        for (position, member) in open.members.iter().enumerate() {
            let (standing, state) = (member.standing(), member.state());
            if state.is_well() || state.is_removed() {
                continue;
            }
            if let Some(ReplicaError::Fenced { successor }) = standing.failure().map(|why| &**why) {
                events.add(Event::Fenced { successor: successor.clone() });
                self.stop();
                return;
            }
            {
                let mut attended = self.attended.lock();
                let attended = &mut attended[position];
                if std::mem::replace(&mut attended.has_thread, true) {
                    continue;
                }
                let has_misbehaved = standing.failure().is_some_and(|why| !why.is_out_of_reach());
                attended.backoff.begin(&Pauses::default(), self.now(), has_misbehaved);
                attended.is_running = true;
            }
            if let Some(why) = standing.failure() {
                events.add(Event::Lost { replica: Arc::clone(&standing.place), why: Arc::clone(why) });
            } else if state.is_slow() {
                events.add(Event::Slow { replica: Arc::clone(&standing.place) });
            }
            let (returns, pool, events) = (Arc::clone(self), Weak::clone(pool), Arc::clone(events));
            let started = spawn("pmof-pool-return", move || {
                returns.bring_back(&pool, &events, position);
                returns.attended.lock()[position].is_running = false;
            });
            if let Err(error) = started {
                log::error!("no thread to bring {:#} back could be started: {error}", standing.place);
                let attended = &mut self.attended.lock()[position];
                (attended.has_thread, attended.is_running) = (false, false);
            }
        }
    }

    /// Waits until nobody posts. Those who wait for a target that does not answer are waited for in between only.
    pub(super) fn hold_all<'s>(&self, shared: &'s Shared) -> Result<Held<'s>, Halt> {
        let mut limit = HOLD;
        while !self.is_stopping() {
            if let Some(guard) = shared.open.try_write_for(limit).filter(|_| !self.is_stopping()) {
                return Held::of(guard).ok_or(Halt::Ended);
            }
            if !self.pause(limit) {
                break;
            }
            limit = (limit * 2).min(LONGEST_HOLD);
        }
        Err(Halt::Ended)
    }
}

/// The open pool while nothing is posted.
pub(super) struct Held<'h>(RwLockWriteGuard<'h, Option<Arc<Open>>>);

impl<'h> Held<'h> {
    /// `None`: the pool is closed.
    pub(super) fn of(guard: RwLockWriteGuard<'h, Option<Arc<Open>>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }

    pub(super) fn open(&self) -> &Arc<Open> {
        self.0.as_ref().expect("it was open when it was held, and closing it takes the same lock")
    }

    /// Has the pool have other members, or fewer that catch up.
    pub(super) fn change(&mut self, members: Vec<Arc<dyn Member>>, catching_up: Vec<(usize, Arc<CatchUp>)>) {
        self.replace(self.with_members(members, catching_up));
    }

    /// Has the pool be this one from now on.
    pub(super) fn replace(&mut self, fresh: Open) {
        *self.0 = Some(Arc::new(fresh));
    }

    /// What all but the member at this position still lack.
    pub(super) fn others(&self, position: usize) -> impl Iterator<Item = (usize, Arc<CatchUp>)> {
        self.open().catching_up.iter().filter(move |(of, _)| *of != position).cloned()
    }
}

impl Deref for Held<'_> {
    type Target = Open;

    fn deref(&self) -> &Open {
        self.open()
    }
}

/// A pool whose watcher forgets which pages were written.
struct Forget<'r> {
    returns: &'r Returns,
    shared: &'r Shared,
}

impl Forgetting for Forget<'_> {
    type Contents = Open;
    type Open = Arc<Open>;
    type Held<'h>
        = Held<'h>
    where
        Self: 'h;
    type Flushing = Flushing;

    fn open(&self) -> Option<Arc<Open>> {
        self.shared.hold().ok()
    }

    fn written(&self, open: &Open) -> Option<Arc<PageMap>> {
        open.written.clone()
    }

    fn member_count(&self, open: &Open) -> usize {
        open.member_count()
    }

    fn is_catching_up(&self, open: &Open) -> bool {
        !open.catching_up.is_empty()
    }

    async fn try_hold(&self) -> Option<Held<'_>> {
        self.shared.open.try_write_for(HOLD).and_then(Held::of)
    }

    async fn begin_map<'h>(&'h self, mut held: Held<'h>) -> Arc<Open> {
        let mut fresh = held.with_members(held.members.clone(), held.catching_up.clone());
        fresh.written = Some(Arc::new(PageMap::new(fresh.facts.size_bytes)));
        held.replace(fresh);
        Arc::clone(held.open())
    }

    fn with_older<T>(&self, look: impl FnOnce(&mut OlderPages) -> T) -> T {
        look(&mut self.returns.older.lock())
    }

    fn start_flush(&self, member: &Arc<dyn Member>) -> Flushing {
        member.start_flush(Flush::Everything, FlushLevel::OfPool)
    }

    async fn finish_flush(&self, member: &Arc<dyn Member>, mut flushing: Flushing) -> bool {
        member.finish_flush(&mut flushing).is_some()
    }
}

/// The pool as it is now.
fn hold(pool: &Weak<Shared>) -> Result<Arc<Open>, Halt> {
    pool.upgrade().and_then(|shared| shared.hold().ok()).ok_or(Halt::Ended)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
