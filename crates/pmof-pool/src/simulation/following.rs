//! Asynchronous members of a writer: the engine follows them up, on simulated targets.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ops::Range,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use pmof_access::Durability;
use pmof_control::{
    ConsistencyPoint, PoolName, PoolState, Reply, Request, Role, Roster, RosterMember, USER_FLAGS_BYTES,
};
use pmof_replication::{
    asking::Reason,
    following::{
        self as engine, AtLagBound, Due, Followed, Follows, HasRoom, Known, LagBound, Limits, Outbox, Points, Progress,
        Replica as _, Stop, Stopped, Terms, make_point,
    },
    opening::{Identity, OpenedReply},
    survey::promoted_at,
};
use uuid::Uuid;

use super::{
    areas::{KEPT_POINTS, SIZE_BYTES, WRITE_BYTES, bytes_of_words, lag_bytes, staging_len_bytes},
    asking::drive,
    attached::{Attached, Cut},
    faults::Fault,
    plan::Control,
    serving::POOL_UUID,
    session::{Member, Session, fail, read},
    site::Site,
    tasks::{Guard, sleep},
    truth::{Page, sound},
    world::World,
};
use crate::{
    follower::{Follower, FollowerBytes, Keep},
    lineage::Apart,
    member::{Atomicity, Written},
    pages::PAGE_BYTES,
    view::View,
};

/// How long a write may lag.
const LAG_AGE: Duration = Duration::from_millis(120);

/// The time of a step, for the engine.
const STEP: Duration = Duration::from_millis(1);

/// Steps that a closing waits for the members.
const CLOSING_STEPS: u32 = 60;

fn steps_of(time: Duration) -> usize {
    (time.as_nanos() / STEP.as_nanos()) as usize
}

/// An asynchronous member of an open pool.
pub(super) struct Following {
    of_roster: RosterMember,
    target: usize,
    outbox: RefCell<Outbox>,
    known: RefCell<Known>,
    is_lost: Cell<bool>,
    is_open: Cell<bool>,
}

impl Followed for Following {
    fn with_outbox<T>(&self, look: impl FnOnce(&mut Outbox) -> T) -> T {
        look(&mut self.outbox.borrow_mut())
    }

    fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    fn is_open(&self) -> bool {
        self.is_open.get()
    }
}

/// Room for a write, which is given back when this is dropped.
pub(super) struct Room(Rc<Following>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.outbox.borrow_mut().give_back(WRITE_BYTES);
    }
}

/// The rules, of which a control breaks one.
pub(super) struct Broken(Option<Control>);

impl engine::Rules for Broken {
    fn is_left_at(
        &self,
        left_at: Option<&engine::LeftAt>,
        point: Option<&ConsistencyPoint>,
        boot: Option<Uuid>,
    ) -> bool {
        self.0 == Some(Control::LeftAtNotCompared) || engine::ShippedRules.is_left_at(left_at, point, boot)
    }

    fn apart(&self, view: &View, index: u16, state: &PoolState) -> Option<Apart> {
        let is_broken = self.0 == Some(Control::FormerFollows);
        if is_broken { None } else { engine::ShippedRules.apart(view, index, state) }
    }

    fn is_dropped_copied(&self) -> bool {
        self.0 != Some(Control::DroppedForgotten)
    }

    fn is_durable_before_sent(&self) -> bool {
        self.0 != Some(Control::PointBeforeFlush)
    }

    fn is_staged_durably(&self) -> bool {
        self.0 != Some(Control::StagingNotFlushed)
    }
}

impl Session {
    /// Has the asynchronous members be followed up that the roster names.
    pub(super) fn start_followers(self: &Rc<Self>) {
        let members = self.membership().settled(&self.view()).map(|roster| roster.members);
        let asynchronous = members.into_iter().flatten().filter(|member| member.role == Role::Asynchronous);
        for of_roster in asynchronous {
            let mut world = self.world.borrow_mut();
            let Some(target) = world.urls.iter().position(|url| url.to_string() == of_roster.url) else { continue };
            if world.clocks[self.writer].rate != 100 {
                world.count(Fault::ClockDrifted);
            }
            let then = if world.plan.waits_at_bound { AtLagBound::Wait } else { AtLagBound::FallBehind };
            let bound = LagBound { bytes: lag_bytes(&world.plan), age: LAG_AGE, then, interval: Some(LAG_AGE / 4) };
            let outbox = RefCell::new(Outbox::new(bound, SIZE_BYTES, Arc::clone(&self.writes)));
            let (is_lost, is_open) = (Cell::new(false), Cell::new(false));
            let following =
                Rc::new(Following { of_roster, target, outbox, known: RefCell::default(), is_lost, is_open });
            self.followings.borrow_mut().push(Rc::clone(&following));
            let one = One { session: Rc::clone(self), following, rules: Broken(world.control) };
            self.tasks.start(self.writer, async move { engine::follow_up(&one).await });
        }
    }

    fn passed(&self) -> Duration {
        Duration::from_millis(self.world.borrow().passed_ms(self.writer))
    }

    /// Waits for room for a write, where writers wait for a member.
    pub(super) async fn wait_for_room(&self) -> Vec<Room> {
        let mut rooms = Vec::new();
        let followings = self.followings.borrow().clone();
        for following in followings {
            loop {
                let has_room = following.outbox.borrow_mut().try_room(WRITE_BYTES, self.passed());
                match has_room {
                    HasRoom::NotNeeded => break,
                    HasRoom::Given => break rooms.push(Room(following)),
                    HasRoom::NotYet => {
                        self.world.borrow_mut().count(Fault::WriterWaitsForFollower);
                        sleep(&self.world, 1).await;
                    }
                }
            }
        }
        rooms
    }

    /// Keeps a write that was posted for the members.
    pub(super) fn keep(&self, page: usize, words: Page) {
        let followings = self.followings.borrow();
        if followings.is_empty() {
            return;
        }
        self.written_bytes.set(self.written_bytes.get() + WRITE_BYTES);
        self.kept_pages.borrow_mut()[page] = words;
        let (bytes, now): (Arc<[u8]>, _) = (bytes_of_words(&words).into(), self.passed());
        for following in followings.iter() {
            let outbox = &mut *following.outbox.borrow_mut();
            // A simulated member looks by itself whether anything is due.
            let _ = outbox.keep(page as u64 * PAGE_BYTES, &bytes, Atomicity::Relaxed, now);
            let most = lag_bytes(&self.world.borrow().plan);
            if let Some(lag) = outbox.lag(now).filter(|lag| !lag.is_behind && lag.bytes > most + SIZE_BYTES) {
                let text = format!("an asynchronous member lags by {} bytes, of {most} at most", lag.bytes);
                self.world.borrow_mut().truth.violate(|| text);
            }
        }
    }

    fn far_now(&self) -> ConsistencyPoint {
        let (opening, written_bytes) = (self.first_opening.get(), self.written_bytes.get());
        let unix_ms = self.world.borrow().unix_ms(self.writer);
        ConsistencyPoint { number: 0, opening, written_bytes, unix_ms, name: String::new() }
    }

    /// A program that names points.
    pub(super) async fn name_points(self: Rc<Self>) {
        while !self.is_stopping.get() {
            let pause = 20 + self.world.borrow_mut().random.below(80);
            sleep(&self.world, pause).await;
            if !self.is_stopping.get() {
                let name = format!("at step {}", self.world.borrow().step);
                let _ = make_point(&*self, &name).await;
            }
        }
    }
}

impl Points for Session {
    type Followed = Rc<Following>;
    type Rules = Broken;
    type Pointing<'p> = Guard<'p>;
    type Receipt = ();
    type Error = ();

    fn rules(&self) -> Broken {
        Broken(self.world.borrow().control)
    }

    fn followed(&self) -> Vec<Rc<Following>> {
        self.followings.borrow().clone()
    }

    async fn lock(&self) -> Guard<'_> {
        self.pointing.lock().await
    }

    fn far(&self) -> ConsistencyPoint {
        *self.at_point.borrow_mut() = (*self.kept_pages.borrow(), self.under_way.borrow().clone());
        self.far_now()
    }

    async fn persist(&self, _: Written) -> Result<(), ()> {
        if self.persist_all().await { Ok(()) } else { Err(()) }
    }

    fn note_point(&self, point: &ConsistencyPoint) {
        let mut world = self.world.borrow_mut();
        let (pages, under_way) = &*self.at_point.borrow();
        world.truth.reach(self.number, point, (pages, under_way.clone()));
        world.count(if point.name.is_empty() { Fault::PointMade } else { Fault::NamedPointMade });
    }

    fn note_unsent(&self, _: &Rc<Following>, _: VecDeque<ConsistencyPoint>) {}

    fn stop(&self) {
        self.has_stopped_following.set(true);
        self.followings.borrow().iter().for_each(|following| following.outbox.borrow_mut().end());
    }

    fn closing_limits(&self) -> (Duration, Duration) {
        (STEP * CLOSING_STEPS, STEP)
    }

    async fn sleep(&self, pause: Duration) {
        sleep(&self.world, steps_of(pause)).await;
    }

    fn now(&self) -> Duration {
        self.passed()
    }
}

/// One member, as its writer follows it up.
struct One {
    session: Rc<Session>,
    following: Rc<Following>,
    rules: Broken,
}

impl One {
    fn count(&self, fault: Fault) {
        self.session.world.borrow_mut().count(fault);
    }

    fn check(&self, when: &str) {
        self.session.world.borrow_mut().check_follower(self.following.target, when);
    }

    fn cut_soon(&self) {
        self.session.world.borrow_mut().cut_follower_soon(self.following.target);
    }

    /// Whether all that a member lacks is remembered, if it counts as where it was left when it is back.
    fn check_left_at(&self) {
        let world = &mut *self.session.world.borrow_mut();
        let target = &world.targets[self.following.target];
        let Some(image) = target.areas.as_ref().map(|areas| areas.whole()) else { return };
        let (known, outbox) = (self.following.known.borrow(), self.following.outbox.borrow());
        let (follower, boot) = (image.clone().open(), Some(boot_of(target.boots)));
        let Some(lacks) =
            outbox.lacks().filter(|_| engine::Rules::is_left_at(&self.rules, known.left_at(), follower.point(), boot))
        else {
            return;
        };
        let (held, kept) = (sound(&image.pages()), *self.session.kept_pages.borrow());
        for (page, (held, kept)) in held.iter().zip(&kept).enumerate() {
            let begin = page as u64 * PAGE_BYTES;
            if held != kept && !lacks.meets(&(begin..begin + PAGE_BYTES)) {
                world.truth.violate(|| {
                    format!(
                        "the lost asynchronous member lacks page {page}, which no one remembers: {held:?}, {kept:?}"
                    )
                });
            }
        }
    }

    fn below(&self, limit: usize) -> u64 {
        self.session.world.borrow_mut().random.below(limit) as u64
    }
}

impl Follows for One {
    type Failure = Cut;
    type Member = Rc<Member>;
    type Epochs = Session;
    type EpochsRef = Rc<Session>;
    type Site = Site;
    type Replica = Follower<Attached>;
    type Followed = Following;
    type Rules = Broken;

    fn rules(&self) -> &Broken {
        &self.rules
    }

    fn terms(&self) -> Terms {
        let (user_flags, replica_count) = ([0; USER_FLAGS_BYTES], self.session.world.borrow().plan.made as u16);
        let identity = Identity { uuid: POOL_UUID, size_bytes: SIZE_BYTES, user_flags, replica_count };
        Terms { identity, require: Durability::PowerFailure, of_roster: self.following.of_roster.clone() }
    }

    fn limits(&self) -> Limits {
        Limits {
            first_pause: STEP * 2,
            longest_pause: STEP * (2 + self.below(20) as u32),
            rejected_pause: STEP * 60,
            retry_pause: STEP * 5,
            heard_interval: STEP * 20,
            idle_interval: STEP * 40,
            window_bytes: PAGE_BYTES,
            read_bytes: PAGE_BYTES,
            held_bytes: 2 * PAGE_BYTES,
            bytes_per_second: None,
        }
    }

    fn name(&self) -> PoolName {
        self.session.world.borrow().urls[self.following.target].name.clone()
    }

    fn followed(&self) -> &Following {
        &self.following
    }

    fn with_known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.following.known.borrow_mut())
    }

    fn epochs(&self) -> Stopped<Rc<Session>, Self> {
        if self.session.has_stopped_following.get() { Err(Stop::Ended) } else { Ok(Rc::clone(&self.session)) }
    }

    async fn connect(&self) -> Result<Site, Cut> {
        Site::connect(&self.session.world, self.session.writer, self.following.target).ok_or(Cut)
    }

    async fn ask(&self, site: &Site, request: &Request) -> Result<Reply, Cut> {
        site.ask(request).await.map_err(|_| Cut)
    }

    async fn open(&self, site: &Site, request: &Request) -> Result<Reply, Cut> {
        self.ask(site, request).await
    }

    fn unfit(&self, why: Reason) -> Cut {
        if matches!(why, Reason::Apart { .. }) {
            self.count(Fault::FollowerOfAnother);
        }
        Cut
    }

    fn begin_opening(&self) -> bool {
        self.following.is_open.set(true);
        !self.session.has_stopped_following.get()
    }

    fn note_closed(&self) {
        self.following.is_open.set(false);
        self.check_left_at();
    }

    fn adopt(&self, mut site: Site, _: &OpenedReply) -> Result<Rc<Member>, Cut> {
        Ok(Rc::new(Member::new(site.target, Some(site.for_member()), true)))
    }

    async fn open_areas(&self, member: &Rc<Member>, _: u64) -> Result<Follower<Attached>, Cut> {
        let (world, connection) = (Rc::clone(&self.session.world), member.connection.ok_or(Cut)?);
        let memory = Attached { world, connection };
        let keep = Keep { count: Some(KEPT_POINTS), fresh: 1 + self.session.world.borrow().step };
        let opened = Follower::open(memory, staging_len_bytes(), SIZE_BYTES, keep)?;
        self.check("opened");
        Ok(opened)
    }

    fn failure(&self, _: &Rc<Member>) -> Cut {
        Cut
    }

    async fn close(&self, member: &Rc<Member>) {
        fail(&self.session.world, member);
    }

    async fn boot(&self, member: &Rc<Member>) -> Option<Uuid> {
        Some(boot_of(self.session.world.borrow().targets[member.target].boots))
    }

    async fn promoted(&self) -> Option<Roster> {
        let (world, writer, target) = (&self.session.world, self.session.writer, self.following.target);
        let url = Arc::clone(&world.borrow().urls[target]);
        let asked = promoted_at(url, POOL_UUID, self.following.of_roster.clone());
        drive(world, writer, &[target], asked).await.0.ok().flatten()
    }

    fn fence(&self) {
        self.count(Fault::PromotedMet);
        self.session.give_up();
    }

    async fn due(&self, _: Duration) -> Due {
        let now = self.session.passed();
        let due = self.following.outbox.borrow_mut().due(now);
        match &due {
            None => sleep(&self.session.world, 2).await,
            // The network takes its time.
            Some(Due::Send(..)) => {
                let pause = self.session.world.borrow_mut().network_time();
                sleep(&self.session.world, pause).await;
            }
            _ => {}
        }
        due.unwrap_or(Due::Nothing)
    }

    async fn check_in_use(&self, follower: &Follower<Attached>) -> Result<(), Cut> {
        follower.memory().read_staging(0, &mut [0; 8])
    }

    fn far(&self) -> ConsistencyPoint {
        let far = self.session.far_now();
        self.session.world.borrow_mut().truth.hear(&far);
        far
    }

    async fn flush_all(&self) -> bool {
        self.session.persist_all().await
    }

    async fn make_point(&self) -> bool {
        let is_made = make_point(&*self.session, "").await.is_ok();
        // The writes before it are about to be taken from the outbox.
        self.cut_soon();
        is_made
    }

    async fn read(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        let open = Rc::clone(&self.session.open.borrow());
        for source in open.members.iter().filter(|source| source.state().is_in_sync()) {
            if let Some(pages) = read(&self.session.world, source).await {
                return Some(bytes_of_words(&pages[(range.start / PAGE_BYTES) as usize]));
            }
        }
        None
    }

    async fn differing(&self, follower: &Follower<Attached>, range: &Range<u64>) -> Stopped<Vec<Range<u64>>, Self> {
        let right = self.read(range).await.ok_or(Stop::Later)?;
        let mut held = vec![0; right.len()];
        follower.memory().read_data(range.start, &mut held)?;
        Ok(if held == right { Vec::new() } else { vec![range.clone()] })
    }

    fn note_lost(&self, _: &Cut, _: bool) {
        self.following.is_lost.set(true);
    }

    fn note(&self, progress: Progress<'_>) {
        match progress {
            Progress::Connected { is_known, .. } => {
                self.following.is_lost.set(false);
                if is_known {
                    self.count(Fault::FollowerBackWhereItWas);
                }
            }
            Progress::Following { .. } => self.count(Fault::FollowerCopied),
            Progress::FellBehind { .. } => self.count(Fault::FollowerFellBehind),
            Progress::Overtaken { .. } => self.count(Fault::FollowerOvertaken),
            Progress::Committed { .. } => {
                self.check("committed");
                self.cut_soon();
            }
            Progress::PointsGone(_) => self.count(Fault::PointNotKept),
            Progress::Copying | Progress::Heard => {}
        }
    }

    fn note_kept_points(&self, follower: &mut Follower<Attached>) {
        follower.take_news();
    }

    fn is_member(&self) -> bool {
        true
    }

    async fn pause(&self, pause: Duration) -> bool {
        sleep(&self.session.world, steps_of(pause)).await;
        !self.session.has_stopped_following.get()
    }

    fn now(&self) -> Duration {
        self.session.passed()
    }
}

fn boot_of(boots: u64) -> Uuid {
    Uuid::from_u128(1 + u128::from(boots))
}

impl World {
    /// Steps that a change set takes to an asynchronous member.
    fn network_time(&mut self) -> usize {
        let is_long = self.plan.is_far && !self.is_faultless && self.random.once_in(2);
        self.random.below(if is_long { 400 } else { 30 })
    }
}
