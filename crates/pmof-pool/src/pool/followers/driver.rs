//! One asynchronous member, as the engine drives it: with connections, memory and a thread that blocks.

use std::{
    ops::Range,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use pmof_control::{ConsistencyPoint, OpenFor, PoolName, Reply, Request, Roster};
use pmof_replication::{
    asking::Reason,
    comparing,
    following::{Due, Follows, Known, Limits, Progress, ShippedRules, Stop, Stopped, Terms},
    opening::OpenedReply,
    survey::promoted_at,
};
use uuid::Uuid;

use super::{
    AsynchronousState, Followers, Following,
    areas::{Attached, fresh_area, is_definite, open_points, open_staging, remove_points},
    running::tell_unkept,
};
use crate::{
    PoolUrl, ReplicaError,
    follower::{Follower, Keep, PointNews, points_space_of_all},
    member::{Control, Member, Standing, Written},
    pool::{Open, Shared, asking::ask, epochs::Epochs, events::Event, opened::Reached},
    site::Site,
};

/// Bytes of the log of overwritten pages unless told otherwise, at least: a small pool's is mostly headers.
const LEAST_POINTS_SPACE: u64 = 1 << 20;

/// One member.
pub(super) struct One<'f> {
    pub(super) followers: &'f Followers,
    pub(super) pool: &'f Weak<Shared>,
    pub(super) following: &'f Following,
}

type Failed = Arc<ReplicaError>;

impl One<'_> {
    fn open(&self) -> Result<Arc<Open>, Stop<Failed>> {
        let shared = self.pool.upgrade().ok_or(Stop::Ended)?;
        shared.hold().map_err(|_| Stop::Ended)
    }

    fn url(&self) -> &Arc<PoolUrl> {
        &self.following.url
    }

    fn event(&self, event: Event) {
        if let Some(shared) = self.pool.upgrade() {
            shared.events.add(event);
        }
    }

    fn tell_status(&self) {
        if let (Some(shared), Ok(open)) = (self.pool.upgrade(), self.open()) {
            shared.tell_status(&open);
        }
    }

    /// Tells what happened to the points that a member keeps.
    fn tell_points(&self, news: Vec<PointNews<Failed>>) {
        for news in news {
            let replica = Arc::clone(&self.following.place);
            self.event(match news {
                PointNews::NoRoom(point) => Event::PointDropped { replica, point },
                PointNews::Stopped(why) => Event::KeepsNoPoints { replica, why },
            });
        }
    }

    fn set_state(&self, state: AsynchronousState) {
        let mut told = self.following.told.lock();
        if matches!(state, AsynchronousState::Copying) {
            told.lost_since = None;
        }
        told.state = state;
    }
}

fn unexpected() -> Failed {
    Arc::new(ReplicaError::Unexpected)
}

impl Follows for One<'_> {
    type Failure = Failed;
    type Member = Arc<dyn Member>;
    type Epochs = Epochs;
    type EpochsRef = Arc<Epochs>;
    type Site = Site;
    type Replica = Follower<Attached>;
    type Followed = Following;
    type Rules = ShippedRules;

    fn rules(&self) -> &ShippedRules {
        &ShippedRules
    }

    fn terms(&self) -> Terms {
        let Followers { identity, require, .. } = *self.followers;
        Terms { identity, require, of_roster: self.following.of_roster.clone() }
    }

    fn limits(&self) -> Limits {
        Limits { bytes_per_second: self.followers.bytes_per_second, ..Limits::SHIPPED }
    }

    fn name(&self) -> PoolName {
        self.url().name.clone()
    }

    fn followed(&self) -> &Following {
        self.following
    }

    fn with_known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.following.known.lock())
    }

    fn epochs(&self) -> Stopped<Arc<Epochs>, Self> {
        self.open()?.epochs.clone().ok_or(Stop::Ended)
    }

    async fn connect(&self) -> Result<Site, Failed> {
        let peers = self.followers.peers.lock().clone();
        self.followers.reach.site(&peers, self.url()).map_err(Arc::new)
    }

    async fn ask(&self, site: &Site, request: &Request) -> Result<Reply, Failed> {
        site.ask(request).map_err(Arc::new)
    }

    async fn open(&self, site: &Site, request: &Request) -> Result<Reply, Failed> {
        site.ask_when_free(request).map_err(Arc::new)
    }

    fn unfit(&self, why: Reason) -> Failed {
        Arc::new(why.into())
    }

    fn begin_opening(&self) -> bool {
        self.following.is_open.store(true, Ordering::Release);
        !*self.followers.stopping.lock()
    }

    fn note_closed(&self) {
        self.following.is_open.store(false, Ordering::Release);
    }

    fn adopt(&self, site: Site, opened: &OpenedReply) -> Result<Arc<dyn Member>, Failed> {
        let (size_bytes, descriptor) = (self.followers.identity.size_bytes, &opened.descriptor);
        let terms = (self.followers.require, OpenFor::Write);
        let reached = Reached::check(&site, descriptor)
            .and_then(|()| Reached::open(&site, descriptor, opened.identity.size_bytes, terms))?;
        let standing = Standing::new(Arc::clone(&self.following.place));
        Ok(reached.member(standing, site, size_bytes, None)?)
    }

    async fn open_areas(&self, data: &Arc<dyn Member>, mark: u64) -> Result<Follower<Attached>, Failed> {
        let Followers { reach, identity, require, keep, .. } = self.followers;
        let (uuid, size_bytes, require) = (identity.uuid, identity.size_bytes, *require);
        let staging = open_staging(reach, self.url(), require, uuid)?;
        let space_bytes = keep.space_bytes.unwrap_or(LEAST_POINTS_SPACE.max(points_space_of_all(size_bytes)));
        let points = match open_points(reach, self.url(), require, uuid, (keep.count, space_bytes)) {
            Err(why) if is_definite(&why) => {
                self.tell_points(vec![PointNews::Stopped(Some(why))]);
                None
            }
            points => points?,
        };
        let attached = Attached::new((Arc::clone(data), mark), staging, points);
        let staging_bytes = attached.staging_bytes();
        let of_points = Keep { count: keep.count, fresh: fresh_area() };
        let mut follower = Follower::open(attached, staging_bytes, size_bytes, of_points)?;
        self.tell_points(follower.take_news());
        if keep.count == Some(0) {
            remove_points(reach, self.url(), require, uuid);
        }
        Ok(follower)
    }

    fn failure(&self, member: &Arc<dyn Member>) -> Failed {
        member.standing().failure().map_or_else(unexpected, Arc::clone)
    }

    async fn close(&self, member: &Arc<dyn Member>) {
        // What cannot be closed ends with the connection.
        if let Some(control) = member.control() {
            let _ = control.ask(&Request::Close { in_order: false });
        }
    }

    async fn boot(&self, member: &Arc<dyn Member>) -> Option<Uuid> {
        member.control().and_then(Control::boot)
    }

    async fn promoted(&self) -> Option<Roster> {
        let (uuid, member) = (self.followers.identity.uuid, self.following.of_roster.clone());
        let at = |_| promoted_at(Arc::clone(self.url()), uuid, member);
        ask(&self.followers.reach, vec![Arc::clone(self.url())], at).ok().flatten()
    }

    fn fence(&self) {
        if let Ok(open) = self.open() {
            open.fence(&format!("whoever made a pool of its asynchronous member {} (pmof pool promote)", self.url()));
        }
    }

    async fn due(&self, limit: Duration) -> Due {
        self.following.outbox.wait(limit)
    }

    async fn check_in_use(&self, follower: &Follower<Attached>) -> Result<(), Failed> {
        let Some(control) = follower.memory().data.control() else { return Ok(()) };
        let _ = control.ask(&Request::Domain);
        control.check_in_use()
    }

    fn far(&self) -> ConsistencyPoint {
        self.followers.far()
    }

    async fn flush_all(&self) -> bool {
        let Some(shared) = self.pool.upgrade() else { return false };
        shared.writable().is_ok_and(|open| open.persist(Written::default()).is_ok())
    }

    async fn make_point(&self) -> bool {
        self.pool.upgrade().is_some_and(|shared| shared.make_point("").is_ok())
    }

    async fn read(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.open().ok()?.read(range.start, &mut bytes).ok().map(|()| bytes)
    }

    async fn differing(&self, follower: &Follower<Attached>, range: &Range<u64>) -> Stopped<Vec<Range<u64>>, Self> {
        let (open, data) = (self.open()?, &follower.memory().data);
        let source = comparing::in_sync(&*open).next().ok_or(Stop::Later)?;
        let both = [source, data].map(Arc::clone);
        let differing = comparing::differing(&*open, &both, range).await;
        differing.ok_or_else(|| data.standing().failure().map_or(Stop::Later, |why| Stop::Lost(Arc::clone(why))))
    }

    fn note_lost(&self, why: &Failed, is_first: bool) {
        self.set_state(AsynchronousState::Lost(Arc::clone(why)));
        self.following.told.lock().lost_since.get_or_insert_with(Instant::now);
        if is_first {
            self.event(Event::NotFollowing { replica: Arc::clone(&self.following.place), why: Arc::clone(why) });
            self.tell_status();
        }
    }

    fn note(&self, progress: Progress<'_>) {
        let replica = Arc::clone(&self.following.place);
        match progress {
            Progress::Connected { point, .. } | Progress::Committed { point } => {
                self.following.told.lock().point = point.cloned();
            }
            Progress::Copying => self.set_state(AsynchronousState::Copying),
            Progress::Following { copied_bytes } => {
                self.set_state(AsynchronousState::Following);
                self.event(Event::Following { replica, copied_bytes });
            }
            Progress::FellBehind { lag_bytes } | Progress::Overtaken { left_bytes: lag_bytes } => {
                self.event(Event::FellBehind { replica, lag_bytes });
            }
            Progress::PointsGone(points) => {
                if let Some(shared) = self.pool.upgrade() {
                    tell_unkept(&shared, self.following, points);
                }
            }
            Progress::Heard => self.tell_status(),
        }
    }

    fn note_kept_points(&self, follower: &mut Follower<Attached>) {
        self.tell_points(follower.take_news());
    }

    fn is_member(&self) -> bool {
        self.followers.has(self.following)
    }

    async fn pause(&self, pause: Duration) -> bool {
        self.followers.pause(pause)
    }

    fn now(&self) -> Duration {
        self.followers.began.elapsed()
    }
}
