//! How replicas come back: those that are lost are connected to again, catch up while the pool is written, and count again.
//!
//! One thread of the pool looks for losses; each replica that is out of use has a thread of its own until it is back. What has to be copied
//! is decided in `catch_up.rs`, who is in sync in `epochs.rs`.

use std::{
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock, RwLockWriteGuard};
use pmof_access::Durability;
use pmof_control::{OpenFor, Reply, Request};
use smallvec::SmallVec;
use uuid::Uuid;

use super::{
    Open, Shared,
    acknowledge::LEAST_PATIENCE,
    domains::number_domains,
    events::{Event, Log},
    halt::{Halt, ask_within},
    opened::{Checked, Identity, check_opened},
};
use crate::{
    PoolUrl, ReplicaError, ReplicaPlace,
    catch_up::{CatchUp, Limit},
    intent::SWEEP_INTERVAL,
    lineage::{Apart, Found, of_returning},
    member::{Control, Flush, FlushLevel, Member, UNKNOWN_SUCCESSOR},
    older_pages::OlderPages,
    pages::PageMap,
    peers::Peers,
    reach::Reach,
    view::Positions,
};

mod copy;
mod copy_flush;
mod held;
mod lost;
mod pace;
mod places;
mod scrubbing;
mod signal;
mod spares;
#[cfg(test)]
mod tests;
mod verify;

pub(super) use copy::differing_pages;
use copy_flush::CopyFlush;
use lost::Spares;
use pace::Pace;
pub(super) use signal::Signal;

/// How often it is looked for losses of which no persist told, and for writes that all replicas have.
const TICK: Duration = Duration::from_secs(1);

/// Time between two tries to connect to a lost replica: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The same of a replica that answers, and not as it should.
const MISBEHAVED_PAUSE: Duration = Duration::from_secs(1);
/// The same of a replica that cannot come back as it is.
const REJECTED_PAUSE: Duration = Duration::from_secs(30);
/// The longest time between two tries to have a replica keep up that was too slow.
const LONGEST_SLOW_PAUSE: Duration = Duration::from_secs(30);
/// How often it is looked in a pause whether a replica that is slow is needed.
const NEED_LOOK: Duration = Duration::from_millis(100);
/// A replica that is lost again within this time has not recovered: its pauses go on where they were.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// What is copied at once, and what is compared at once where it is not known what differs.
const COPIED: Limit = Limit { ranges: 256, bytes: 4 << 20 };
const COMPARED: Limit = Limit { ranges: 64, bytes: 16 << 20 };

/// Bytes compared between two flushes of the replica: what comes after the last of them is compared again if it is lost.
const FLUSHED_BYTES: u64 = 256 << 20;

/// Bytes copied between two flushes of the replica. A flush is given the loss timeout: after more than a disk takes in that time, the replica
/// would be lost again and again.
const SYNC_BYTES: u64 = 4 << 20;

/// Bytes that may be missing when the pool is held for the last of them: little more than one window brings. Fewer where a replica that is slow is
/// waited for by nobody.
pub(super) const LAST_BYTES: u64 = 256 << 10;
const LAST_PROMPT_BYTES: u64 = 64 << 10;

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
    /// Before the next try.
    pause: Duration,
    back_since: Option<Instant>,
}

/// How far a replica is believed to lack nothing but what was written while it was away.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    /// The boot of its machine in which it was in sync. A later one has lost what was not durable.
    boot: Option<Uuid>,
    /// That of its last connection.
    seen: Option<Uuid>,
    /// It was asked for that, and has answered.
    is_asked: bool,
    /// It differed when it had caught up.
    is_distrusted: bool,
}

/// A replica that is connected again.
struct Returning {
    member: Arc<dyn Member>,
    /// Nobody knows what it lacks.
    is_compared: bool,
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
                    pause: FIRST_PAUSE,
                    back_since: None
                };
                urls.len()
            ]),
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
            self.forget_written(&shared, open);
            if swept.elapsed() >= SWEEP_INTERVAL {
                swept = Instant::now();
                shared.sweep_intent();
            }
            drop(shared);
            self.losses.wait(TICK);
        }
    }

    /// Whether no member is left that has everything: none can catch up any more. Then nobody is brought back from now on.
    fn has_ended(&self, shared: &Shared) -> bool {
        // Whoever joins does so while it holds this.
        let Ok(guard) = self.hold_all(shared) else { return true };
        let Some(open) = guard.as_ref() else { return true };
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
            if !member.state().is_in_sync() || self.trust.lock()[position].is_asked {
                continue;
            }
            let Some(control) = member.control() else { continue };
            // One that does not answer in time is asked again.
            let Ok(boot) = control.boot_within(limit) else { continue };
            let trust = &mut self.trust.lock()[position];
            (trust.boot, trust.seen, trust.is_asked) = (boot, boot, true);
        }
    }

    /// Whether a member that is connected again has what it had when it was in sync, and whether it has what it had when it was connected last.
    fn has_kept(&self, position: usize, member: &dyn Member) -> (bool, bool) {
        if self.require == Durability::PowerFailure {
            return (!self.trust.lock()[position].is_distrusted, true);
        }
        let boot = member.control().and_then(Control::boot);
        let trust = &mut self.trust.lock()[position];
        let seen = std::mem::replace(&mut trust.seen, boot);
        trust.is_asked = true;
        (boot.is_some() && boot == trust.boot && !trust.is_distrusted, boot.is_some() && boot == seen)
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
                if attended.back_since.is_none_or(|since| since.elapsed() > RECOVERED_AFTER) {
                    attended.pause = FIRST_PAUSE;
                }
                if standing.failure().is_some_and(|why| !why.is_out_of_reach()) {
                    attended.pause = attended.pause.max(MISBEHAVED_PAUSE);
                }
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

    /// Forgets pages that were written and that all replicas have.
    fn forget_written(&self, shared: &Shared, open: Arc<Open>) {
        if let Some(open) = self.set_aside(shared, open) {
            self.forget_flushed(&open);
        }
    }

    /// Begins a new map of the pages that are written, if all replicas may have those of the map before. Returns the pool with the new one.
    fn set_aside(&self, shared: &Shared, open: Arc<Open>) -> Option<Arc<Open>> {
        let written = open.written.clone()?;
        let are_all_in_use = open.in_use().count() == open.member_count() && open.catching_up.is_empty();
        if !are_all_in_use || written.is_empty() {
            return None;
        }
        drop(open);
        // Whoever has marked its pages has posted its writes when this is held.
        let mut guard = shared.open.try_write_for(HOLD)?;
        let open = guard.as_ref()?;
        let mut fresh = open.with_members(open.members.clone(), open.catching_up.clone());
        fresh.written = Some(Arc::new(PageMap::new(fresh.facts.size_bytes)));
        // A witness has no pages.
        let members = open.members.iter().enumerate().filter(|(_, member)| member.state().has_data());
        let members = members.fold(0, |members, (position, _)| members | 1 << position);
        self.older.lock().set_aside(written, members);
        let fresh = Arc::new(fresh);
        *guard = Some(Arc::clone(&fresh));
        Some(fresh)
    }

    /// Has all replicas in use flush what was posted before pages were set aside, which are forgotten if those are all.
    fn forget_flushed(&self, open: &Open) {
        let in_use = open.members.iter().enumerate().filter(|(_, member)| member.state().is_in_sync());
        let start = |(position, member): (usize, &'_ Arc<dyn Member>)| {
            (position, Arc::clone(member), member.start_flush(Flush::Everything, FlushLevel::OfPool))
        };
        let flushing: SmallVec<[_; 4]> = in_use.map(start).collect();
        let flushed = flushing
            .into_iter()
            .filter_map(|(position, member, mut flushing)| member.finish_flush(&mut flushing).map(|_| 1 << position));
        let flushed = flushed.fold(0, |flushed, position: Positions| flushed | position);
        self.older.lock().note_flushed(flushed);
    }

    fn bring_back(&self, pool: &Weak<Shared>, events: &Log, position: usize) {
        let (mut is_rejected, mut left) = (false, None);
        let mut pause = self.attended.lock()[position].pause;
        let mut longest_pause = LONGEST_PAUSE;
        // One that is behind from the opening on needs no connection.
        if !hold(pool).is_ok_and(|open| open.members[position].state().is_prompt())
            && !self.pause_for(pool, position, pause)
        {
            return;
        }
        let caught_up = loop {
            match self.try_to_bring_back(pool, events, position, &mut left) {
                Ok(caught_up) => break caught_up,
                // One that is slow goes on when it keeps up, as any other.
                Err(halt) if !matches!(halt, Halt::Slow) && self.gives_up_learner(pool, position) => return,
                Err(Halt::Ended) => return,
                Err(Halt::Later) => pause = (pause * 2).min(LONGEST_PAUSE),
                Err(Halt::Slow) => {
                    longest_pause = LONGEST_SLOW_PAUSE;
                    pause = (pause * 2).min(longest_pause);
                }
                Err(Halt::Rejected(why)) => {
                    let why = Arc::new(why);
                    if let Ok(open) = hold(pool) {
                        open.members[position].standing().still_fails(Arc::clone(&why));
                    }
                    if !std::mem::replace(&mut is_rejected, true) {
                        let replica = Arc::new(ReplicaPlace::Pool(PoolUrl::clone(&self.url(position))));
                        events.add(Event::Rejected { replica, why });
                    }
                    pause = REJECTED_PAUSE;
                }
            }
            if !self.pause_for(pool, position, pause) {
                return;
            }
        };
        let back_since = Some(Instant::now());
        self.attended.lock()[position] =
            Attended { has_thread: false, is_running: true, pause: (pause * 2).min(longest_pause), back_since };
        // It may have been lost again since.
        self.losses.raise();
        if !caught_up.is_compared {
            self.verify(pool, events, position, &caught_up.member);
        }
    }

    /// Pauses before a replica is tried again; shorter where it is slow, and needed all the same. False: the pool is being closed.
    fn pause_for(&self, pool: &Weak<Shared>, position: usize, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !self.pause(left.min(NEED_LOOK)) {
                return false;
            }
            let Ok(open) = hold(pool) else { return false };
            if left <= NEED_LOOK || (open.members[position].state().is_slow() && open.is_needed()) {
                return true;
            }
        }
    }

    /// `left`: what was missing when the last try was interrupted.
    fn try_to_bring_back(
        &self,
        pool: &Weak<Shared>,
        events: &Log,
        position: usize,
        left: &mut Option<PageMap>,
    ) -> Result<Returning, Halt> {
        let began = Instant::now();
        let Returning { member, is_compared } = self.returning(pool, position, left)?;
        if member.state().is_witness() {
            return self.admit_witness(pool, position, member).inspect(|back| {
                events.add(Event::WitnessBack { replica: Arc::clone(&back.member.standing().place) });
            });
        }
        let control = member.control().ok_or(Halt::Later)?;
        let catch_up = self.admit(pool, position, &member, is_compared, left)?;
        let replica = || Arc::clone(&member.standing().place);
        events.add(Event::CatchingUp { replica: replica(), missing_bytes: catch_up.missing_bytes() });
        let mut copied_bytes = 0;
        let done = loop {
            let copied = self.copy(pool, (position, &*member), &catch_up, is_compared);
            match copied.and_then(|bytes| {
                copied_bytes += bytes;
                let is_learner = self.wait_as_learner(position, &*member)?;
                if is_learner { Ok(None) } else { self.join(pool, position, &*member, &catch_up) }
            }) {
                Ok(Some(bytes)) => {
                    copied_bytes += bytes;
                    break Ok(());
                }
                Ok(None) => {}
                Err(halt) => break Err(halt),
            }
        };
        if let Err(halt) = done {
            // Whoever writes goes on without it.
            if matches!(halt, Halt::Slow) {
                member.standing().leave_behind();
            } else {
                control.fail(ReplicaError::Behind);
            }
            if is_compared {
                let missing = PageMap::new(self.identity.size_bytes);
                missing.add(catch_up.interrupted(&[]));
                *left = Some(missing);
            }
            return Err(halt);
        }
        {
            let trust = &mut self.trust.lock()[position];
            trust.boot = trust.seen;
            trust.is_distrusted &= !is_compared;
        }
        events.add(Event::InSync { replica: replica(), copied_bytes, took: began.elapsed(), is_verified: is_compared });
        Ok(Returning { member, is_compared })
    }

    /// The member that is to catch up: connected already when the pool was opened, or now.
    fn returning(&self, pool: &Weak<Shared>, position: usize, left: &mut Option<PageMap>) -> Result<Returning, Halt> {
        let open = hold(pool)?;
        let member = &open.members[position];
        if member.state().is_slow() {
            return Self::no_longer_slow(&open, position, left.is_some());
        }
        if member.state().is_connected() {
            return Ok(Returning { member: Arc::clone(member), is_compared: true });
        }
        if member.remote().is_none() && member.control().is_some() {
            drop(open);
            self.let_go(pool, position)?;
            return self.returning(pool, position, left);
        }
        if member.state().is_removed() {
            return Err(Halt::Ended);
        }
        let epochs = open.epochs.as_ref().ok_or(Halt::Ended)?;
        let url = self.url(position);
        let peers = self.peers.lock().clone();
        let still_fails = |why| member.standing().still_fails(Arc::new(why));
        let site = self.reach.site(&peers, &url).map_err(still_fails).map_err(|()| Halt::Later)?;
        let reply = self.ask_for(&open, epochs, (&site, &url), position)?;
        let mut identity = Some(self.identity);
        let checked = check_opened(reply, &site, self.require, OpenFor::Write, &mut identity);
        let Checked { index, replica_uuid, size_bytes, state, reached } = checked.map_err(rejected)?;
        if !epochs.may_return(index, replica_uuid) {
            return Err(Halt::Rejected(ReplicaError::NotAMember { index }));
        }
        let is_witness = epochs.is_witness(index, replica_uuid);
        self.identity.check_size(size_bytes, is_witness).map_err(|why| rejected(why.into()))?;
        let domain = site.failure_domain(site.send(&Request::Domain));
        let standing = member.standing().reconnected(is_witness).with_failure_domain(domain);
        let member = reached.member(standing, site, self.identity.size_bytes, open.mirror.as_ref());
        let member = member.map_err(|_| Halt::Later)?;
        let state_now = epochs.lock();
        if state_now.has_ended() {
            return Err(Halt::Ended);
        }
        let known = state_now.view().index(position);
        if state_now.view().has_other(index, position) || known.is_some_and(|known| known != index) {
            return Err(Halt::Rejected(ReplicaError::Unexpected));
        }
        if state_now.view().is_superseded_by(&state) {
            // Its connections to the others may be cut, so that it was told by none of them.
            drop(state_now);
            open.fence(UNKNOWN_SUCCESSOR);
            return Err(Halt::Ended);
        }
        let found = Found { index, state: &state };
        let apart = of_returning(&found, state_now.view().line(), state_now.view().opening());
        drop(state_now);
        if let Some(apart) = apart.filter(|apart| !apart.may_catch_up()) {
            return Err(Halt::Rejected(ReplicaError::of(apart, open.member_count() as u16)));
        }
        let is_own = apart.as_ref().is_none_or(Apart::votes);
        let (is_trusted, has_kept) = self.has_kept(position, &*member);
        // An older copy that it was put back to may lack what was copied.
        let has_kept = has_kept && epochs.lock().view().has_kept(position, state.mark);
        if !is_own || !state.is_behind || !has_kept {
            *left = None;
        }
        if !epochs.introduce(position, (index, Some(replica_uuid), Some(&state)), &member) {
            // Taken over there, before the pool knows of this connection.
            if let ReplicaError::Fenced { successor } = &*member.standing().fail(ReplicaError::Behind) {
                open.fence(successor);
            }
            return Err(Halt::Later);
        }
        // Of one that was in sync while the pool was open, all that was written since is known.
        let is_known = is_own && is_trusted && epochs.lock().view().knows_what_lacks(position, state.mark);
        Ok(Returning { member, is_compared: !is_known })
    }

    /// One that was left behind because it was slow, if it keeps up now. `is_compared`: it was to be compared before it was slow.
    fn no_longer_slow(open: &Open, position: usize, is_compared: bool) -> Result<Returning, Halt> {
        let member = Arc::clone(&open.members[position]);
        let epochs = open.epochs.as_ref().ok_or(Halt::Ended)?;
        // What it lacks is known from the epoch on that it is left behind by.
        if !epochs.settle() {
            return Err(Halt::Slow);
        }
        if !member.state().is_witness() {
            open.keeps_up(&*member)?;
        }
        let (index, is_known) = {
            let state = epochs.lock();
            (state.view().index(position), state.view().knows_what_lacks(position, u64::MAX))
        };
        if !epochs.introduce(position, (index.ok_or(Halt::Later)?, None, None), &member) {
            return Err(Halt::Later);
        }
        Ok(Returning { member, is_compared: is_compared || !is_known })
    }

    /// Has the member be sent what is written from now on.
    fn admit(
        &self,
        pool: &Weak<Shared>,
        position: usize,
        member: &Arc<dyn Member>,
        is_compared: bool,
        left: &mut Option<PageMap>,
    ) -> Result<Arc<CatchUp>, Halt> {
        let shared = pool.upgrade().ok_or(Halt::Ended)?;
        let mut guard = self.hold_all(&shared)?;
        let open = guard.as_ref().ok_or(Halt::Ended)?;
        let size_bytes = open.facts.size_bytes;
        let missing = match left.take() {
            None if is_compared => PageMap::full(size_bytes),
            left => {
                let missing = left.unwrap_or_else(|| PageMap::new(size_bytes));
                open.written.iter().for_each(|written| missing.add(written));
                self.older.lock().add_to(&missing);
                missing
            }
        };
        let catch_up = Arc::new(CatchUp::new(missing));
        let mut members = open.members.clone();
        members[position] = Arc::clone(member);
        member.standing().is_admitted();
        number_domains(&members);
        let others = open.catching_up.iter().filter(|(of, _)| *of != position).cloned();
        let catching_up = others.chain([(position, Arc::clone(&catch_up))]).collect();
        *guard = Some(Arc::new(open.with_members(members, catching_up)));
        Ok(catch_up)
    }

    /// Copies what is missing, once through the pool, and flushes it; the last of it is flushed by whoever joins. Returns the bytes copied.
    fn copy(
        &self,
        pool: &Weak<Shared>,
        (position, member): (usize, &dyn Member),
        catch_up: &CatchUp,
        is_compared: bool,
    ) -> Result<u64, Halt> {
        let (mut from, mut flushed, mut copied_bytes, mut synced_bytes) = (0, 0, 0, 0);
        let (limit, mut pace) =
            (if is_compared { COMPARED } else { COPIED }, Pace::new(self.bytes_per_second, catch_up));
        let mut flush = CopyFlush { catch_up, member, under_way: None };
        mark(pool, position, member)?;
        while let Some(window) = catch_up.open_window(from, pace.window(limit)) {
            let copied = hold(pool).and_then(|open| open.copy_window(member, &window, is_compared));
            catch_up.close_window(&window);
            from = window.last().map_or(u64::MAX, |last| last.end);
            match copied {
                Ok(bytes) => copied_bytes += bytes,
                Err(halt) => {
                    catch_up.interrupted(&window);
                    return Err(halt);
                }
            }
            if copied_bytes - synced_bytes >= SYNC_BYTES || (is_compared && from - flushed >= FLUSHED_BYTES) {
                (flushed, synced_bytes) = (from, copied_bytes);
                if flush.finish()? {
                    mark(pool, position, member)?;
                }
                flush.start();
            }
            let pause = pace.pause(copied_bytes);
            if self.is_stopping() || !pause.is_zero() && !self.pause(pause) {
                return Err(Halt::Ended);
            }
            pace.go_on();
        }
        flush.finish()?;
        Ok(copied_bytes)
    }

    /// Has the member count as in sync, if little is missing: `None` where it is too much. Returns the bytes copied.
    fn join(
        &self,
        pool: &Weak<Shared>,
        position: usize,
        member: &dyn Member,
        catch_up: &CatchUp,
    ) -> Result<Option<u64>, Halt> {
        // All that can be is done before anybody is kept waiting: most of the flush, the mark, and the first half of the new epoch.
        catch_up.begin_flush();
        if !member.flush_everything(FlushLevel::OfPool) {
            return Err(Halt::Later);
        }
        catch_up.note_flushed();
        let last_bytes = match hold(pool)?.terms.slow_after {
            Some(_) => LAST_PROMPT_BYTES,
            None => LAST_BYTES,
        };
        if catch_up.missing_bytes() > last_bytes {
            return Ok(None);
        }
        let mark = hold(pool)?.epochs.as_ref().map(|epochs| epochs.lock().view().mark()).ok_or(Halt::Ended)?;
        // Told before anybody is kept waiting, it need not be written to its disk meanwhile.
        let control = member.control().ok_or(Halt::Later)?;
        ask_within(control, &mark, &Reply::Marked, None)?;
        let limit = hold(pool)?.keeps_up(member)?;
        let shared = pool.upgrade().ok_or(Halt::Ended)?;
        let epochs = shared.hold().ok().and_then(|open| open.epochs.clone()).ok_or(Halt::Ended)?;
        let joining = epochs.announce_with(position, control, limit)?;
        let mut guard = self.hold_all(&shared)?;
        let open = guard.as_ref().ok_or(Halt::Ended)?;
        if catch_up.missing_bytes() > last_bytes {
            return Ok(None);
        }
        let mut copied_bytes = 0;
        while let Some(window) = catch_up.open_window(0, COPIED) {
            let copied = open.copy_window(member, &window, false);
            catch_up.close_window(&window);
            copied_bytes += copied?;
        }
        open.flush_last(position, member, limit)?;
        // Before it is a member: its map lacks nothing that the others' have.
        open.give_intent(control, limit)?;
        epochs.join(&joining, member, limit)?;
        let others = open.catching_up.iter().filter(|(of, _)| *of != position).cloned().collect();
        *guard = Some(Arc::new(open.with_members(open.members.clone(), others)));
        Ok(Some(copied_bytes))
    }

    /// Waits until nobody posts. Those who wait for a target that does not answer are waited for in between only.
    pub(super) fn hold_all<'s>(&self, shared: &'s Shared) -> Result<RwLockWriteGuard<'s, Option<Arc<Open>>>, Halt> {
        let mut limit = HOLD;
        while !self.is_stopping() {
            if let Some(guard) = shared.open.try_write_for(limit).filter(|_| !self.is_stopping()) {
                return Ok(guard);
            }
            if !self.pause(limit) {
                break;
            }
            limit = (limit * 2).min(LONGEST_HOLD);
        }
        Err(Halt::Ended)
    }
}

/// The pool as it is now.
fn hold(pool: &Weak<Shared>) -> Result<Arc<Open>, Halt> {
    pool.upgrade().and_then(|shared| shared.hold().ok()).ok_or(Halt::Ended)
}

/// Tells a member that catches up the mark; nothing is asked of one that has become too slow meanwhile.
fn mark(pool: &Weak<Shared>, position: usize, member: &dyn Member) -> Result<(), Halt> {
    if member.state().is_slow() {
        return Err(Halt::Slow);
    }
    let open = hold(pool)?;
    let control = member.control().ok_or(Halt::Ended)?;
    let epochs = open.epochs.as_ref().ok_or(Halt::Ended)?;
    epochs.mark_behind(position, control).map_err(|_| Halt::Later)
}

/// What was found at a replica that comes back.
fn rejected(error: ReplicaError) -> Halt {
    match error {
        error @ (ReplicaError::Mismatch { .. } | ReplicaError::NotDurable { .. }) => Halt::Rejected(error),
        _ => Halt::Later,
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
