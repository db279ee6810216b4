//! What the asynchronous members of an open pool are up to: a thread for each, and the points that the pool makes.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pmof_control::{ConsistencyPoint, Role, RosterMember};
use pmof_locks::{Mutex, MutexGuard};
use pmof_replication::following::{self as engine, Outbox, Points, ShippedRules};

use super::{AsynchronousState, Followers, Following, Rooms, SharedOutbox, Told, driver::One};
use crate::{
    PoolError, PoolUrl, Receipt,
    member::Written,
    pool::{Pool, Shared, epochs::done, events::Event, opened::place},
};

/// How often it is looked whether all was sent, when the pool is closed.
const SENT_LOOK: Duration = Duration::from_millis(2);

impl Followers {
    /// Has a member be followed up from now on.
    pub(in crate::pool) fn start(self: &Arc<Self>, pool: &Arc<Shared>, of_roster: &RosterMember) {
        let Ok(url) = of_roster.url.parse::<PoolUrl>() else {
            log::error!("the address of asynchronous member {} is not understood: {}", of_roster.index, of_roster.url);
            return;
        };
        let url = Arc::new(url);
        let following = Arc::new(Following {
            index: of_roster.index,
            of_roster: of_roster.clone(),
            place: place(&url),
            url,
            outbox: Arc::new(self.outbox()),
            known: Mutex::default(),
            is_open: AtomicBool::new(false),
            told: Mutex::new(Told { state: AsynchronousState::Connecting, lost_since: None, point: None }),
        });
        self.list.write().push(Arc::clone(&following));
        self.is_any.store(true, Ordering::Release);
        let (followers, pool) = (Arc::clone(self), Arc::downgrade(pool));
        let run = move || followers.run(&pool, &following);
        if let Err(error) = thread::Builder::new().name("pmof-pool-follow".to_owned()).spawn(run) {
            log::error!("no thread for asynchronous member {} could be started: {error}", of_roster.index);
        }
    }

    fn outbox(&self) -> SharedOutbox {
        let mut outbox = Outbox::new(self.bound, self.identity.size_bytes, Arc::clone(&self.writes));
        if self.keep.count == Some(0) {
            outbox.stop_at_names(false, None);
        }
        SharedOutbox::new(self.bound, self.began, outbox)
    }

    fn run(&self, pool: &Weak<Shared>, following: &Following) {
        done(engine::follow_up(&One { followers: self, pool, following }));
    }
}

/// Tells of points that the program named and that a member does not keep.
pub(super) fn tell_unkept(pool: &Shared, following: &Following, points: impl IntoIterator<Item = ConsistencyPoint>) {
    for point in points {
        pool.events.add(Event::PointNotKept { replica: Arc::clone(&following.place), point });
    }
}

/// A pool, whether it has asynchronous members or not.
impl Points for Shared {
    type Followed = Arc<Following>;
    type Rules = ShippedRules;
    type Pointing<'p> = Option<MutexGuard<'p, ()>>;
    type Receipt = Receipt;
    type Error = PoolError;

    fn rules(&self) -> ShippedRules {
        ShippedRules
    }

    fn followed(&self) -> Vec<Arc<Following>> {
        self.followers.as_ref().map(|followers| followers.list.read().clone()).unwrap_or_default()
    }

    async fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.followers.as_ref().map(|followers| followers.pointing.lock())
    }

    fn far(&self) -> ConsistencyPoint {
        self.followers.as_ref().map(|followers| followers.far()).unwrap_or_default()
    }

    async fn persist(&self, written: Written) -> Result<Receipt, PoolError> {
        self.writable()?.persist(written)
    }

    fn note_unsent(&self, following: &Arc<Following>, points: VecDeque<ConsistencyPoint>) {
        tell_unkept(self, following, points);
    }

    fn stop(&self) {
        self.stop_followers();
    }

    fn closing_limits(&self) -> (Duration, Duration) {
        (self.followers.as_ref().map_or(Duration::ZERO, |followers| followers.reach.loss_timeout), SENT_LOOK)
    }

    async fn sleep(&self, pause: Duration) {
        thread::sleep(pause);
    }

    fn now(&self) -> Duration {
        self.followers.as_ref().map_or(Duration::ZERO, |followers| followers.began.elapsed())
    }
}

impl Pool {
    /// Makes all that was written before durable on all replicas in sync, as a [flush](crate::Lane::flush) of everything does, and names this moment: an asynchronous member
    /// will be at this point, or at a later one, or at an earlier one, and never between. Of a longer name 255 bytes are kept.
    ///
    /// The pool makes points by itself, too, unless told [otherwise](crate::PoolOptions::point_interval): moments at which it could have crashed.
    /// What other threads write while this is called is behind the point or before it.
    ///
    /// A member that [keeps](crate::PoolOptions::keep_points) points keeps this one if it follows, or if nothing is written until it does: an opening connects to it and compares it first.
    /// Else [`Event::PointNotKept`](crate::Event::PointNotKept) tells so.
    ///
    /// # Errors
    /// [`PoolError::PointName`] for a name of digits only, which would be taken for a point's number; those of [`Pending::wait`](crate::Pending::wait). No point was made then.
    pub fn consistency_point(&self, name: &str) -> Result<Receipt, PoolError> {
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(PoolError::PointName { name: name.to_owned() });
        }
        self.0.make_point(name)
    }
}

impl Shared {
    /// Waits for room for a write, where those who write wait for an asynchronous member. Nothing of the pool is held meanwhile.
    pub(in crate::pool) fn wait_for_room(&self, len_bytes: u64) -> Rooms {
        let followers = self.followers.as_ref().filter(|_| self.process.is_current());
        followers.map(|followers| followers.wait_for_room(len_bytes)).unwrap_or_default()
    }

    pub(in crate::pool) fn make_point(&self, name: &str) -> Result<Receipt, PoolError> {
        self.check_process()?;
        done(engine::make_point(self, name))
    }

    /// Has the asynchronous members be sent what they lack, for as long as one may be silent, and nothing any more after that.
    pub(in crate::pool) fn finish_followers(&self) {
        if self.followers.is_some() {
            done(engine::finish(self));
        }
    }

    /// Has nothing be sent to them any more.
    pub(in crate::pool) fn stop_followers(&self) {
        if let Some(followers) = &self.followers {
            followers.stop();
        }
    }

    /// Has the asynchronous members be followed up that the pool's roster names.
    pub(in crate::pool) fn start_followers(self: &Arc<Self>) {
        let Some(followers) = &self.followers else { return };
        let Ok(open) = self.hold() else { return };
        let roster = open.epochs.as_ref().and_then(|epochs| epochs.roster());
        let members = roster.map(|roster| roster.members).unwrap_or_default();
        members
            .iter()
            .filter(|member| member.role == Role::Asynchronous)
            .for_each(|member| followers.start(self, member));
    }
}
