//! What the asynchronous members of an open pool are up to: a thread for each, and the points that the pool makes.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pmof_control::{ConsistencyPoint, Role, RosterMember};

use super::{AsynchronousState, Followers, Following, Rooms, Stop, Told, attach::tell_unkept};
use crate::{
    PoolError, PoolUrl, Receipt, ReplicaError,
    member::Written,
    outbox::Outbox,
    pool::{Pool, Shared, events::Event, opened::place},
};

/// Time between two tries to connect to a member: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The same of one that is not the member that it was.
const REJECTED_PAUSE: Duration = Duration::from_secs(30);

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
            left_at: Mutex::default(),
            is_open: AtomicBool::new(false),
            told: Mutex::new(Told { state: AsynchronousState::Connecting, lost_since: None, epoch: None, point: None }),
        });
        self.list.write().push(Arc::clone(&following));
        self.is_any.store(true, Ordering::Release);
        let (followers, pool) = (Arc::clone(self), Arc::downgrade(pool));
        let run = move || followers.run(&pool, &following);
        if let Err(error) = thread::Builder::new().name("pmof-pool-follow".to_owned()).spawn(run) {
            log::error!("no thread for asynchronous member {} could be started: {error}", of_roster.index);
        }
    }

    fn outbox(&self) -> Outbox {
        let outbox = Outbox::new(self.bound, self.identity.size_bytes, Arc::clone(&self.writes));
        if self.keep.count == Some(0) {
            outbox.stop_at_names(false, None);
        }
        outbox
    }

    /// Has the members that are connected be at the end of what was written, and those that are being connected to at a point with a name that is the end, and ends.
    fn finish(&self, shared: &Shared) {
        let list = self.list.read().clone();
        let is_any_on = list.iter().any(|following| following.outbox.lag().is_some() || following.awaits_name());
        if is_any_on && shared.make_point("").is_ok() {
            let began = Instant::now();
            let is_sent = |following: &Arc<Following>| following.outbox.is_sent() && !following.awaits_name();
            while !list.iter().all(is_sent) && began.elapsed() < self.reach.loss_timeout {
                thread::sleep(SENT_LOOK);
            }
        }
        self.stop();
        for following in &list {
            tell_unkept(shared, following, following.outbox.take_unsent());
        }
        // Their targets take it for a writer's death where this process ends before they are closed.
        let (began, is_open) = (Instant::now(), |following: &Arc<Following>| following.is_open.load(Ordering::Acquire));
        while list.iter().any(is_open) && began.elapsed() < self.reach.loss_timeout {
            thread::sleep(SENT_LOOK);
        }
    }

    fn run(&self, pool: &Weak<Shared>, following: &Following) {
        let (mut pause, mut is_told) = (FIRST_PAUSE, false);
        loop {
            let has_followed = AtomicBool::new(false);
            let stop = self.follow(pool, following, &has_followed, |stop| {
                if has_followed.load(Ordering::Relaxed) {
                    (pause, is_told) = (FIRST_PAUSE, false);
                }
                if let Stop::Lost(why) | Stop::Rejected(why) = stop {
                    following.note_lost(pool, why, std::mem::replace(&mut is_told, true));
                }
            });
            following.is_open.store(false, Ordering::Release);
            match stop {
                Stop::Ended => return,
                Stop::Rejected(_) => pause = REJECTED_PAUSE,
                Stop::Later | Stop::Lost(_) => {}
            }
            if !self.pause(pause) || !self.has(following) {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE.max(pause));
        }
    }
}

impl Following {
    /// The member is not followed up any more, which the program is told unless it was before.
    fn note_lost(&self, pool: &Weak<Shared>, why: &Arc<ReplicaError>, is_told: bool) {
        let mut told = self.told.lock();
        told.state = AsynchronousState::Lost(Arc::clone(why));
        told.lost_since.get_or_insert_with(Instant::now);
        drop(told);
        let Some(shared) = pool.upgrade().filter(|_| !is_told) else { return };
        shared.events.add(Event::NotFollowing { replica: Arc::clone(&self.place), why: Arc::clone(why) });
        if let Ok(open) = shared.hold() {
            shared.tell_status(&open);
        }
    }

    /// Whether a point with a name waits for the member, which is being connected to or copied to.
    fn awaits_name(&self) -> bool {
        let is_lost = matches!(self.told.lock().state, AsynchronousState::Lost(_));
        !is_lost && self.outbox.has_name_wait()
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
        let followers = self.followers.as_deref();
        let _pointing = followers.map(|followers| followers.pointing.lock());
        let list = followers.map(|followers| followers.list.read().clone()).unwrap_or_default();
        let far = followers.map(Followers::far).unwrap_or_default();
        // Before the flush is posted: it covers what is before them, on all members that are in sync by then.
        let boundaries: Vec<_> = list.iter().map(|following| (following, following.outbox.boundary())).collect();
        let unsettled: Option<Vec<Written>> =
            boundaries.iter().filter_map(|(_, boundary)| boundary.kept()).map(|kept| kept.written).collect();
        let written = unsettled.and_then(|all| all.into_iter().reduce(Written::with)).unwrap_or_default();
        let receipt = self.writable()?.persist(written)?;
        let point = ConsistencyPoint { name: name.to_owned(), ..far };
        for (following, boundary) in boundaries {
            following.outbox.reach(boundary, &point);
        }
        Ok(receipt)
    }

    /// Has the asynchronous members be sent what they lack, for as long as one may be silent, and nothing any more after that.
    pub(in crate::pool) fn finish_followers(&self) {
        if let Some(followers) = &self.followers {
            followers.finish(self);
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
