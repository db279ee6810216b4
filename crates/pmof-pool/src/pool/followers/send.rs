//! What an asynchronous member is sent: first what it lacks, then what is written.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pmof_control::{ConsistencyPoint, Request};

use super::{
    AsynchronousState, Followers, Following, LeftAt, Stop,
    attach::{Attached, tell_points, tell_unkept},
};
use crate::{
    ReplicaError,
    follower::{ChangeSet, Follower},
    member::{Control, Written},
    outbox::{Due, Entry},
    pages::PageMap,
    pool::{Open, Shared, events::Event},
};

/// How often a member is told how far the writer is: while it writes, and while it does not.
const HEARD_INTERVAL: Duration = Duration::from_secs(1);
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// Before a point is tried again that too few members in sync were left for, and before a copy goes on that writes have overtaken.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// What ended the sending.
enum Interrupted {
    /// More was written meanwhile than is kept.
    Overtaken,
    Stopped(Stop),
}

impl From<Stop> for Interrupted {
    fn from(stop: Stop) -> Self {
        Self::Stopped(stop)
    }
}

impl From<Arc<ReplicaError>> for Interrupted {
    fn from(why: Arc<ReplicaError>) -> Self {
        Self::Stopped(Stop::Lost(why))
    }
}

/// A member that is being sent something.
pub(super) struct Sending<'f> {
    pub(super) followers: &'f Followers,
    pool: &'f Weak<Shared>,
    pub(super) following: &'f Following,
    pub(super) follower: Follower<Attached>,
    /// Pages of the writes that were taken for it and are not applied.
    taken: PageMap,
    /// The point that it is being sent what leads to.
    next: Option<ConsistencyPoint>,
    heard_at: Option<Instant>,
    /// All that it lacks is known: it need not be compared.
    pub(super) is_known: bool,
}

impl Followers {
    /// Follows a member up until it is lost. `has_followed`: whether it was at a point of this writer. `tell` is told why it is not followed up any more.
    pub(super) fn follow(
        &self,
        pool: &Weak<Shared>,
        following: &Following,
        has_followed: &AtomicBool,
        tell: impl FnOnce(&Stop),
    ) -> Stop {
        let follower = match self.attach(pool, following) {
            Ok(follower) => follower,
            // What it lacks is remembered still, if it was.
            Err(stop) => {
                tell(&stop);
                return stop;
            }
        };
        let size_bytes = self.identity.size_bytes;
        let boot = follower.memory().data.control().and_then(Control::boot);
        let left_at = following.left_at.lock().take();
        let is_known = left_at.is_some_and(|left| left.is_left_at(follower.point(), boot));
        following.told.lock().point = follower.point().cloned();
        following.outbox.stop_at_names(follower.keeps_points(), follower.point());
        // Nobody knows what was written since it was here last, unless it is where it was.
        let missing = if is_known { PageMap::new(size_bytes) } else { PageMap::full(size_bytes) };
        let taken = PageMap::new(size_bytes);
        let mut sending =
            Sending { followers: self, pool, following, follower, taken, next: None, heard_at: None, is_known };
        let stop = sending.run(&missing, has_followed);
        // Before those who write are let go, and before the member is let go of, which waits for one that hangs.
        tell(&stop);
        let point = sending.follower.point().cloned().filter(|_| sending.is_known);
        missing.add(&sending.taken);
        following.outbox.switch_off(point.is_some().then_some(&missing));
        *following.left_at.lock() = point.map(|point| LeftAt { point, next: sending.next.take(), boot });
        stop
    }
}

impl Sending<'_> {
    /// Copies to the member what is missing, then sends it what is written, again and again until it is lost. `missing` has then what it lacked of that.
    fn run(&mut self, missing: &PageMap, has_followed: &AtomicBool) -> Stop {
        loop {
            let mut told = self.following.told.lock();
            (told.state, told.lost_since) = (AsynchronousState::Copying, None);
            drop(told);
            match self.copy(missing) {
                Ok(copied_bytes) => {
                    has_followed.store(true, Ordering::Relaxed);
                    missing.clear();
                    self.is_known = true;
                    if let Err(stop) = self.note_following(copied_bytes) {
                        return stop;
                    }
                }
                Err(stop) => return stop,
            }
            match self.send() {
                Interrupted::Stopped(stop) => return stop,
                Interrupted::Overtaken => missing.add(&self.taken),
            }
        }
    }

    pub(super) fn shared(&self) -> Result<Arc<Shared>, Stop> {
        self.pool.upgrade().ok_or(Stop::Ended)
    }

    pub(super) fn open(&self) -> Result<Arc<Open>, Stop> {
        self.shared()?.hold().map_err(|_| Stop::Ended)
    }

    pub(super) fn event(&self, event: Event) -> Result<(), Stop> {
        self.shared()?.events.add(event);
        Ok(())
    }

    fn note_following(&self, copied_bytes: u64) -> Result<(), Stop> {
        tell_unkept(&*self.shared()?, self.following, self.following.outbox.take_gone());
        self.following.told.lock().state = AsynchronousState::Following;
        self.event(Event::Following { replica: Arc::clone(&self.following.place), copied_bytes })
    }

    pub(super) fn commit(&mut self, set: ChangeSet, point: &ConsistencyPoint) -> Result<(), Arc<ReplicaError>> {
        if let Some(mark) = self.open().ok().and_then(|open| Some(open.epochs.as_ref()?.lock().view().newest_mark())) {
            self.follower.date_copies(mark)?;
        }
        self.next = Some(self.follower.numbered(point));
        let committed = self.follower.commit(set, point);
        tell_points(self.pool, self.following, self.follower.take_news());
        committed?;
        self.next = None;
        self.taken.clear();
        self.following.outbox.applied();
        self.following.told.lock().point = self.follower.point().cloned();
        Ok(())
    }

    /// The pool is closed, or too few of its members are left.
    pub(super) fn later(&self) -> Stop {
        match self.open() {
            Ok(_) => Stop::Later,
            Err(stop) => stop,
        }
    }

    pub(super) fn flush_all(&self) -> Result<(), Stop> {
        let shared = self.shared()?;
        let open = shared.writable().map_err(|_| Stop::Ended)?;
        let flushed = open.persist(Written::default());
        drop(open);
        flushed.map(drop).map_err(|_| self.later())
    }

    /// Adds what was taken to a change set. False: it does not fit, and nothing was added.
    pub(super) fn add(&self, set: &mut ChangeSet, entries: &[Entry]) -> Result<bool, Stop> {
        for entry in entries {
            self.taken.mark(entry.range());
        }
        Ok(self.follower.add_all(set, entries)?)
    }

    /// Sends what is written, up to each point.
    fn send(&mut self) -> Interrupted {
        loop {
            if let Err(interrupted) = self.send_next() {
                return interrupted;
            }
        }
    }

    fn send_next(&mut self) -> Result<(), Interrupted> {
        tell_unkept(&*self.shared()?, self.following, self.following.outbox.take_gone());
        match self.following.outbox.wait(HEARD_INTERVAL) {
            Due::Ended => return Err(Stop::Ended.into()),
            Due::Copy => {
                let lag_bytes = self.following.outbox.lag().map_or(0, |lag| lag.bytes);
                self.event(Event::FellBehind { replica: Arc::clone(&self.following.place), lag_bytes })?;
                return Err(Interrupted::Overtaken);
            }
            Due::Point => {
                // A failure is told to those who write.
                if self.shared()?.make_point("").is_err() && !self.followers.pause(PAUSE) {
                    return Err(Stop::Ended.into());
                }
            }
            Due::Send(entries, point) => {
                let mut set = ChangeSet::new();
                if !self.add(&mut set, &entries)? {
                    return Err(Interrupted::Overtaken);
                }
                drop(entries);
                self.commit(set, &point)?;
            }
            // One that is lost is told of though nothing is written.
            Due::Nothing => {
                if let Some(control) = self.follower.memory().data.control() {
                    let _ = control.ask(&Request::Domain);
                    control.check_in_use()?;
                }
            }
        }
        self.hear().map_err(Into::into)
    }

    /// Tells the member how far the writer is, now and then.
    pub(super) fn hear(&mut self) -> Result<(), Stop> {
        let far = self.followers.far();
        let heard = self.follower.heard().filter(|heard| heard.opening == far.opening);
        let is_idle = heard.is_some_and(|heard| heard.written_bytes == far.written_bytes);
        let interval = if is_idle { IDLE_INTERVAL } else { HEARD_INTERVAL };
        if self.heard_at.is_none_or(|at| at.elapsed() >= interval) {
            self.follower.hear(&far)?;
            self.heard_at = Some(Instant::now());
            self.shared()?.tell_status(&*self.open()?);
        }
        Ok(())
    }
}
