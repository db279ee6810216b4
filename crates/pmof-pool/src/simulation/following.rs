//! What a writer sends to an asynchronous member, as `pool/followers.rs` and below have it, with its own decisions.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_control::{Claim, ConsistencyPoint, PoolState, Role, Roster, RosterMember};
use uuid::Uuid;

use super::{
    areas::{KEPT_POINTS, SIZE_BYTES, WRITE_BYTES, bytes_of_words, lag_bytes, pages_of, staging_len_bytes},
    attached::{Attached, Cut},
    faults::Fault,
    plan::{Control, PAGES},
    session::{Member, Session, ask, bytes_of, fail, give_roster, read, tell_all},
    target::{Answer, Message},
    tasks::sleep,
    truth::Page,
    world::World,
};
use crate::{
    AtLagBound,
    follower::{ChangeSet, Follower, FollowerBytes, Keep},
    lineage::{Found, of_returning},
    member::Atomicity,
    outbox::{Due, Entry, LagBound, Outbox, Room},
    pages::{PAGE_BYTES, PageMap},
    pool::LeftAt,
    view::Introduction,
};

/// How long a write may lag, in steps of the clock.
const LAG_AGE: Duration = Duration::from_millis(120);

/// Bytes of pages that are read at once, and sent with the writes behind them.
const HELD_BYTES: u64 = 2 * PAGE_BYTES;

/// How often a member is told how far the writer is.
const HEARD_STEPS: u64 = 20;

/// Steps that a closing waits for the members to be sent everything.
const SENT_STEPS: u64 = 60;

thread_local! {
    static NOW: Cell<(Option<Instant>, u64)> = const { Cell::new((None, 0)) };
}

/// The clock of the writer that runs.
fn now() -> Instant {
    let (start, passed_ms) = NOW.get();
    let start = start.unwrap_or_else(Instant::now);
    NOW.set((Some(start), passed_ms));
    start + Duration::from_millis(passed_ms)
}

/// So many milliseconds have passed for whoever runs.
pub(super) fn set_clock(passed_ms: u64) {
    NOW.set((NOW.get().0, passed_ms));
}

/// An asynchronous member of an open pool.
pub(super) struct Following {
    of_roster: RosterMember,
    target: usize,
    pub(super) outbox: Arc<Outbox>,
    epoch: Cell<Option<Uuid>>,
    left_at: RefCell<Option<LeftAt>>,
}

/// Why a member is not followed up any more.
enum Stop {
    Ended,
    Later,
    Rejected,
}

/// What ended a copy or the sending.
enum Interrupted {
    Overtaken,
    Stopped(Stop),
}

impl From<Cut> for Stop {
    fn from(_: Cut) -> Self {
        Self::Later
    }
}

impl From<Stop> for Interrupted {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

impl From<Cut> for Interrupted {
    fn from(_: Cut) -> Self {
        Self::Stopped(Stop::Later)
    }
}

/// A member that is being sent something.
struct Sending<'s> {
    session: &'s Session,
    following: &'s Following,
    follower: Follower<Attached>,
    taken: PageMap,
    next: Option<ConsistencyPoint>,
    heard_at: Option<u64>,
    is_known: bool,
}

impl Session {
    /// As `Shared::start_followers`.
    pub(super) fn start_followers(self: &Rc<Self>) {
        let members = self.membership().settled(&self.view()).map(|roster| roster.members);
        let asynchronous = members.into_iter().flatten().filter(|member| member.role == Role::Asynchronous);
        for of_roster in asynchronous {
            let world = self.world.borrow();
            let Some(target) = world.urls.iter().position(|url| url.to_string() == of_roster.url) else { continue };
            let drifts = world.clocks[self.writer].rate != 100;
            let then = if world.plan.waits_at_bound { AtLagBound::Wait } else { AtLagBound::FallBehind };
            let interval = Some(LAG_AGE / 4);
            let bytes = lag_bytes(&world.plan);
            let bound = LagBound { bytes, age: LAG_AGE, then, interval };
            let outbox = Arc::new(Outbox::new(bound, SIZE_BYTES, Arc::clone(&self.writes)).with_clock(now));
            let (epoch, left_at) = (Cell::new(None), RefCell::new(None));
            let following = Rc::new(Following { of_roster, target, outbox, epoch, left_at });
            self.followings.borrow_mut().push(Rc::clone(&following));
            let session = Rc::clone(self);
            drop(world);
            if drifts {
                self.world.borrow_mut().count(Fault::ClockDrifted);
            }
            self.tasks.start(self.writer, async move { session.follow_up(&following).await });
        }
    }

    /// As `Followers::wait_for_room`.
    pub(super) async fn wait_for_room(&self) -> Vec<Room> {
        let mut rooms = Vec::new();
        let followings = self.followings.borrow().clone();
        for following in followings {
            let room = loop {
                if let Ok(room) = following.outbox.try_room(WRITE_BYTES) {
                    break room;
                }
                self.world.borrow_mut().count(Fault::WriterWaitsForFollower);
                sleep(&self.world, 1).await;
            };
            rooms.extend(room);
        }
        rooms
    }

    /// As `Followers::keep`.
    pub(super) fn keep(&self, page: usize, words: Page) {
        let followings = self.followings.borrow();
        if followings.is_empty() {
            return;
        }
        self.written_bytes.set(self.written_bytes.get() + WRITE_BYTES);
        self.kept_pages.borrow_mut()[page] = words;
        let bytes: Arc<[u8]> = bytes_of_words(&words).into();
        for following in followings.iter() {
            following.outbox.keep(page as u64 * PAGE_BYTES, &bytes, Atomicity::Relaxed);
            let lag = following.outbox.lag();
            let most = lag_bytes(&self.world.borrow().plan);
            if let Some(lag) = lag.filter(|lag| !lag.is_behind && lag.bytes > most + SIZE_BYTES) {
                let text = format!("an asynchronous member lags by {} bytes, of {most} at most", lag.bytes);
                self.world.borrow_mut().truth.violate(|| text);
            }
        }
    }

    /// As `Followers::far`.
    fn far(&self) -> ConsistencyPoint {
        let (opening, written_bytes) = (self.first_opening.get(), self.written_bytes.get());
        let unix_ms = self.world.borrow().unix_ms(self.writer);
        ConsistencyPoint { number: 0, opening, written_bytes, unix_ms, name: String::new() }
    }

    /// As `Shared::make_point`.
    pub(super) async fn make_point(&self, name: &str) -> bool {
        let _pointing = self.pointing.lock().await;
        let far = self.far();
        let (kept_pages, under_way) = (*self.kept_pages.borrow(), self.under_way.borrow().clone());
        let followings = self.followings.borrow().clone();
        let boundaries: Vec<_> = followings.iter().map(|following| (following, following.outbox.boundary())).collect();
        let is_early = self.world.borrow().control == Some(Control::PointBeforeFlush);
        if !is_early && !self.persist_all().await {
            return false;
        }
        let point = ConsistencyPoint { name: name.to_owned(), ..far };
        {
            let mut world = self.world.borrow_mut();
            world.truth.reach(self.number, &point, (&kept_pages, under_way));
            world.count(if name.is_empty() { Fault::PointMade } else { Fault::NamedPointMade });
        }
        for (following, boundary) in boundaries {
            following.outbox.reach(boundary, &point);
        }
        true
    }

    /// A program that names points.
    pub(super) async fn name_points(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let pause = 20 + self.world.borrow_mut().random.below(80);
            sleep(&self.world, pause).await;
            if !self.is_stopping.get() {
                let name = format!("at step {}", self.world.borrow().step);
                let _ = self.make_point(&name).await;
            }
        }
    }

    /// As `Followers::finish`.
    pub(super) async fn finish_followers(&self) {
        let followings = self.followings.borrow().clone();
        let is_on = |following: &Rc<Following>| following.outbox.lag().is_some() || following.outbox.has_name_wait();
        if followings.iter().any(is_on) && self.make_point("").await {
            let until = self.world.borrow().step + SENT_STEPS;
            let is_sent = || followings.iter().all(|following| following.outbox.is_sent());
            while !is_sent() && self.world.borrow().step < until {
                sleep(&self.world, 1).await;
            }
        }
        for following in &followings {
            following.outbox.end();
        }
    }

    /// As `Followers::run`.
    async fn follow_up(&self, following: &Following) {
        while !self.is_stopping.get() {
            let pause = match self.follow(following).await {
                Stop::Ended => return,
                Stop::Later => 2 + self.world.borrow_mut().random.below(20),
                Stop::Rejected => 60,
            };
            sleep(&self.world, pause).await;
        }
    }

    /// As `Followers::follow`.
    async fn follow(&self, following: &Following) -> Stop {
        let follower = match self.attach(following).await {
            Ok(follower) => follower,
            Err(stop) => return stop,
        };
        let boot = Some(Uuid::from_u128(1 + u128::from(self.world.borrow().targets[following.target].boots)));
        let left_at = following.left_at.borrow_mut().take();
        let is_known = left_at.is_some_and(|left| left.is_left_at(follower.point(), boot));
        if is_known {
            self.world.borrow_mut().count(Fault::FollowerBackWhereItWas);
        }
        following.outbox.stop_at_names(follower.keeps_points(), follower.point());
        let missing = if is_known { PageMap::new(SIZE_BYTES) } else { PageMap::full(SIZE_BYTES) };
        let taken = PageMap::new(SIZE_BYTES);
        let mut sending = Sending { session: self, following, follower, taken, next: None, heard_at: None, is_known };
        let stop = sending.run(&missing).await;
        let point = sending.follower.point().cloned().filter(|_| sending.is_known);
        missing.add(&sending.taken);
        following.outbox.switch_off(point.is_some().then_some(&missing));
        *following.left_at.borrow_mut() = point.map(|point| LeftAt { point, next: sending.next.take(), boot });
        stop
    }

    /// As `Followers::attach`.
    async fn attach(&self, following: &Following) -> Result<Follower<Attached>, Stop> {
        let target = following.target;
        let connection = self.world.borrow_mut().connect(self.writer, target).ok_or(Stop::Later)?;
        let member = Member::new(target, Some(connection), true);
        let lost = || {
            fail(&self.world, &member);
            Stop::Later
        };
        let Some(Answer::Info { replica, .. }) = ask(&self.world, &member, Message::Info).await else {
            return Err(lost());
        };
        if !following.of_roster.is(replica.index, replica.uuid) || !self.is_own(following, &replica.state) {
            let _ = lost();
            return Err(Stop::Rejected);
        }
        let own = following.epoch.get().filter(|epoch| *epoch == replica.state.epoch.id);
        let claim = own.or_else(|| self.view().epoch()).map_or(Claim::None, Claim::Own);
        let open = Message::Open { takes_over: own.is_none(), claim };
        let Some(Answer::Opened(replica)) = ask(&self.world, &member, open).await else { return Err(lost()) };
        if !self.is_own(following, &replica.state) {
            let _ = lost();
            return Err(Stop::Rejected);
        }
        following.epoch.set(Some(self.tell_asynchronous(&member, replica.index).await.ok_or_else(lost)?));
        let memory = Attached { world: Rc::clone(&self.world), connection };
        let keep = Keep { count: Some(KEPT_POINTS), fresh: 1 + self.world.borrow().step };
        let opened = Follower::open(memory, staging_len_bytes(), SIZE_BYTES, keep).map_err(|Cut| lost())?;
        self.world.borrow_mut().check_follower(target, "opened");
        Ok(opened)
    }

    /// As `Followers::check_own`.
    fn is_own(&self, following: &Following, state: &PoolState) -> bool {
        let view = self.view();
        let (index, opening) = (following.of_roster.index, view.opening());
        let apart = of_returning(&Found { index, state }, view.line(), opening);
        let is_own = apart.is_none_or(|apart| state.opening <= opening && apart.may_catch_up());
        if !is_own {
            self.world.borrow_mut().count(Fault::FollowerOfAnother);
        }
        is_own
    }

    /// As `Epochs::tell_asynchronous`.
    async fn tell_asynchronous(&self, member: &Member, index: u16) -> Option<Uuid> {
        let (roster, epoch, introduction): (Option<Roster>, _, _) = {
            let _guard = self.view_lock.lock().await;
            let known = &mut *self.epochs.borrow_mut();
            (known.membership.roster().cloned(), known.view.epoch()?, known.view.introduction(index, None)?)
        };
        let Introduction::Tell(to_tell) = introduction else { return None };
        if let Some(roster) = &roster {
            if !give_roster(&self.world, member, roster).await {
                return None;
            }
        }
        if !tell_all(&self.world, member, &to_tell).await {
            return None;
        }
        Some(epoch)
    }
}

impl Sending<'_> {
    /// As `Sending::run` there.
    async fn run(&mut self, missing: &PageMap) -> Stop {
        loop {
            match self.copy(missing).await {
                Ok(()) => {
                    missing.clear();
                    self.is_known = true;
                }
                Err(stop) => return stop,
            }
            loop {
                match self.send_next().await {
                    Ok(()) => {}
                    Err(Interrupted::Stopped(stop)) => return stop,
                    Err(Interrupted::Overtaken) => break missing.add(&self.taken),
                }
            }
        }
    }

    /// As `Sending::copy` there, in `copy.rs`.
    async fn copy(&mut self, missing: &PageMap) -> Result<(), Stop> {
        let outbox = Arc::clone(&self.following.outbox);
        let (mut set, left) = (ChangeSet::new(), PageMap::new(SIZE_BYTES));
        left.add(missing);
        let (mut is_compared, mut before_bytes) = (!self.is_known, u64::MAX);
        let note = |written: &PageMap, forgets: bool| {
            missing.add(written);
            if !forgets {
                left.add(written);
            }
        };
        loop {
            let forgets = self.session.world.borrow().control == Some(Control::DroppedForgotten);
            note(&outbox.remember(), forgets);
            let left_bytes = left.count_bytes();
            let is_held = left_bytes <= HELD_BYTES;
            let is_last = is_held || outbox.has_writers_wait();
            if left_bytes >= before_bytes {
                self.session.world.borrow_mut().count(Fault::FollowerOvertaken);
                sleep(&self.session.world, 5).await;
            }
            before_bytes = left_bytes;
            if is_last {
                note(&outbox.begin(), forgets);
            }
            outbox.copies(if is_compared { 0 } else { left_bytes });
            if !self.session.persist_all().await {
                return Err(self.later());
            }
            let held = self.copy_left(&mut set, &left, (std::mem::replace(&mut is_compared, false), is_held)).await?;
            if is_last {
                outbox.all_is_read();
                if !self.session.make_point("").await {
                    return Err(self.later());
                }
            }
            let taken = if is_last { outbox.take_to_point() } else { None };
            for (offset, bytes) in held {
                self.place(&mut set, offset, &bytes)?;
            }
            let Some((entries, point)) = taken else { continue };
            if self.add(&mut set, &entries)? {
                self.commit(set, &point)?;
                self.session.world.borrow_mut().count(Fault::FollowerCopied);
                return self.hear().map_err(Into::into);
            }
            entries.iter().map(Entry::range).for_each(|range| left.mark(range));
            missing.add(&left);
        }
    }

    /// As `Sending::copy_left` there.
    async fn copy_left(
        &self,
        set: &mut ChangeSet,
        left: &PageMap,
        (is_compared, is_held): (bool, bool),
    ) -> Result<Vec<(u64, Vec<u8>)>, Stop> {
        let (mut held, mut from) = (Vec::new(), 0);
        while let Some(window) = left.take(from, PAGE_BYTES) {
            from = window.end;
            let page = (window.start / PAGE_BYTES) as usize;
            if !is_compared || self.page_of_member(page)? != self.read_page(page).await? {
                let bytes = bytes_of_words(&self.read_page(page).await?);
                if is_held {
                    held.push((window.start, bytes));
                } else {
                    self.place(set, window.start, &bytes)?;
                }
            }
            if !self.follower.is_at_point() {
                self.follower.flush_unstaged()?;
            }
            if self.session.is_stopping.get() {
                return Err(Stop::Ended);
            }
        }
        Ok(held)
    }

    /// As `Sending::place` there.
    fn place(&self, set: &mut ChangeSet, offset: u64, bytes: &[u8]) -> Result<(), Stop> {
        if self.follower.is_at_point() {
            return self.follower.put(set, offset, bytes)?.map_err(|_| Stop::Later);
        }
        self.follower.write_unstaged(offset, bytes).map_err(Into::into)
    }

    fn later(&self) -> Stop {
        if self.session.is_stopping.get() { Stop::Ended } else { Stop::Later }
    }

    /// A page as a member in sync has it.
    async fn read_page(&self, page: usize) -> Result<Page, Stop> {
        debug_assert!(page < PAGES && bytes_of(page).end <= SIZE_BYTES);
        let open = Rc::clone(&self.session.open.borrow());
        for source in open.members.iter().filter(|source| source.state().is_in_sync()) {
            if let Some(pages) = read(&self.session.world, source).await {
                return Ok(pages[page]);
            }
        }
        Err(self.later())
    }

    fn page_of_member(&self, page: usize) -> Result<Page, Cut> {
        let mut outcome = Ok(());
        let pages = pages_of(|at, into| {
            if at / PAGE_BYTES == page as u64 {
                outcome = self.follower.memory().read_data(at, into);
            }
        });
        outcome.map(|()| pages[page])
    }

    fn add(&self, set: &mut ChangeSet, entries: &[Entry]) -> Result<bool, Stop> {
        for entry in entries {
            self.taken.mark(entry.range());
        }
        Ok(self.follower.add_all(set, entries)?)
    }

    fn commit(&mut self, set: ChangeSet, point: &ConsistencyPoint) -> Result<(), Stop> {
        let mark = self.session.view().newest_mark();
        self.follower.date_copies(mark)?;
        self.next = Some(self.follower.numbered(point));
        self.follower.commit(set, point)?;
        self.next = None;
        self.taken.clear();
        self.following.outbox.applied();
        self.session.world.borrow_mut().check_follower(self.following.target, "committed");
        Ok(())
    }

    /// As `Sending::send_next` there.
    async fn send_next(&mut self) -> Result<(), Interrupted> {
        if !self.following.outbox.take_gone().is_empty() {
            self.session.world.borrow_mut().count(Fault::PointNotKept);
        }
        match self.following.outbox.wait(Duration::ZERO) {
            Due::Ended => return Err(Interrupted::Stopped(Stop::Ended)),
            Due::Copy => {
                self.session.world.borrow_mut().count(Fault::FollowerFellBehind);
                return Err(Interrupted::Overtaken);
            }
            Due::Point => {
                if !self.session.make_point("").await {
                    sleep(&self.session.world, 5).await;
                }
            }
            Due::Send(entries, point) => {
                let pause = self.session.world.borrow_mut().network_time();
                let mut set = ChangeSet::new();
                if !self.add(&mut set, &entries)? {
                    return Err(Interrupted::Overtaken);
                }
                // The network takes its time.
                sleep(&self.session.world, pause).await;
                self.commit(set, &point)?;
            }
            Due::Nothing => {
                sleep(&self.session.world, 2).await;
                // One that is lost is noticed though nothing is written.
                let mut number = [0; 8];
                self.follower.memory().read_staging(0, &mut number)?;
            }
        }
        self.hear().map_err(Into::into)
    }

    fn hear(&mut self) -> Result<(), Cut> {
        let step = self.session.world.borrow().step;
        if self.heard_at.is_none_or(|at| step >= at + HEARD_STEPS) {
            let far = self.session.far();
            self.session.world.borrow_mut().truth.hear(&far);
            self.follower.hear(&far)?;
            self.heard_at = Some(step);
        }
        Ok(())
    }
}

impl World {
    /// Steps that a change set takes to an asynchronous member.
    fn network_time(&mut self) -> usize {
        let is_long = self.plan.is_far && !self.is_faultless && self.random.once_in(2);
        self.random.below(if is_long { 400 } else { 30 })
    }
}
