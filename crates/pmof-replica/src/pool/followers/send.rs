//! What an asynchronous member is sent: first what it lacks, then what is written.

use std::{
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pmof_control::{ConsistencyPoint, Request};

use super::{
    AsynchronousState, Followers, Following, LeftAt, Stop,
    attach::{Attached, tell_points},
};
use crate::{
    ReplicaError,
    follower::{ChangeSet, Follower, TooLong},
    member::{Control, Written},
    outbox::{Due, Entry},
    pages::PageMap,
    pool::{Open, Shared, events::Event, returns::differing_pages},
};

/// Bytes that are compared, or copied, between two looks at whether the pool is being closed.
const WINDOW_BYTES: u64 = 16 << 20;

/// Bytes that are read from a member in sync at a time.
const READ_BYTES: u64 = 1 << 20;

/// How often a member is told how far the writer is: while it writes, and while it does not.
const HEARD_INTERVAL: Duration = Duration::from_secs(1);
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// Before a point is tried again that too few members in sync were left for, and before a copy that writes have overtaken.
const PAUSE: Duration = Duration::from_millis(100);

/// Between two looks at what was written, while a copy waits for the pool's limit.
const THROTTLE_PAUSE: Duration = Duration::from_millis(20);

/// What ended a copy or the sending.
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
struct Sending<'f> {
    followers: &'f Followers,
    pool: &'f Weak<Shared>,
    following: &'f Following,
    follower: Follower<Attached>,
    /// Pages of the writes that were taken for it and are not applied.
    taken: PageMap,
    /// The point that it is being sent what leads to.
    next: Option<ConsistencyPoint>,
    heard_at: Option<Instant>,
    /// All that it lacks is known: it need not be compared.
    is_known: bool,
}

impl Followers {
    /// Follows a member up until it is lost. `has_followed`: whether it was at a point of this writer.
    pub(super) fn follow(&self, pool: &Weak<Shared>, following: &Following, has_followed: &AtomicBool) -> Stop {
        let follower = match self.attach(pool, following) {
            Ok(follower) => follower,
            // What it lacks is remembered still, if it was.
            Err(stop) => return stop,
        };
        let size_bytes = self.identity.size_bytes;
        let boot = follower.memory().data.control().and_then(Control::boot);
        let left_at = following.left_at.lock().take();
        let is_known = left_at.is_some_and(|left| left.is_left_at(follower.point(), boot));
        following.told.lock().point = follower.point().cloned();
        following.outbox.stop_at_names(follower.keeps_points());
        // Nobody knows what was written since it was here last, unless it is where it was.
        let missing = if is_known { PageMap::new(size_bytes) } else { PageMap::full(size_bytes) };
        let taken = PageMap::new(size_bytes);
        let mut sending =
            Sending { followers: self, pool, following, follower, taken, next: None, heard_at: None, is_known };
        let stop = sending.run(&missing, has_followed);
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
                Err(Interrupted::Stopped(stop)) => return stop,
                Err(Interrupted::Overtaken) => {
                    missing.add(&self.taken);
                    // Nothing of the copy was applied: it begins anew.
                    let (replica, lag_bytes) = (Arc::clone(&self.following.place), missing.count_bytes());
                    if let Err(stop) = self.event(Event::FellBehind { replica, lag_bytes }) {
                        return stop;
                    }
                    if !self.followers.pause(PAUSE) {
                        return Stop::Ended;
                    }
                    continue;
                }
            }
            match self.send() {
                Interrupted::Stopped(stop) => return stop,
                Interrupted::Overtaken => missing.add(&self.taken),
            }
        }
    }

    fn shared(&self) -> Result<Arc<Shared>, Stop> {
        self.pool.upgrade().ok_or(Stop::Ended)
    }

    fn open(&self) -> Result<Arc<Open>, Stop> {
        self.shared()?.hold().map_err(|_| Stop::Ended)
    }

    fn event(&self, event: Event) -> Result<(), Stop> {
        self.shared()?.events.add(event);
        Ok(())
    }

    fn note_following(&self, copied_bytes: u64) -> Result<(), Stop> {
        self.following.told.lock().state = AsynchronousState::Following;
        self.event(Event::Following { replica: Arc::clone(&self.following.place), copied_bytes })
    }

    /// Makes the member equal to those in sync at a point, as one change set: what is `missing`, and what is written meanwhile. Adds to `missing` what was
    /// dropped before. Returns the bytes of pages that were copied.
    ///
    /// A page may hold writes that come behind it in the change set. They do no harm: all writes from the beginning on are in it, in their order,
    /// and none before a page that was read before it was posted.
    fn copy(&mut self, missing: &PageMap) -> Result<u64, Interrupted> {
        let is_compared = !self.is_known;
        let (size_bytes, outbox) = (self.followers.identity.size_bytes, &self.following.outbox);
        missing.add(&outbox.begin());
        let left = PageMap::new(size_bytes);
        left.add(missing);
        outbox.copies(if is_compared { 0 } else { left.count_bytes() });
        // What was posted before the beginning can be read from now on.
        self.flush_all()?;
        let (mut set, mut from, mut copied_bytes, began) = (ChangeSet::new(), 0, 0, Instant::now());
        while let Some(window) = left.take(from, WINDOW_BYTES) {
            from = window.end;
            let ranges = if is_compared { self.differing(&window)? } else { vec![window] };
            for range in ranges {
                for begin in (range.start..range.end).step_by(READ_BYTES as usize) {
                    let part = begin..(begin + READ_BYTES).min(range.end);
                    self.take_all(&mut set)?;
                    self.read_into(&mut set, &part)?;
                    copied_bytes += part.end - part.start;
                    self.throttle(&mut set, began, copied_bytes)?;
                }
            }
            self.take_all(&mut set)?;
        }
        self.shared()?.make_point("").map_err(|_| self.later())?;
        let Some((entries, point)) = self.following.outbox.take_to_point() else {
            return Err(Interrupted::Overtaken);
        };
        self.add(&mut set, &entries)?;
        self.commit(set, &point)?;
        self.hear()?;
        Ok(copied_bytes)
    }

    fn commit(&mut self, set: ChangeSet, point: &ConsistencyPoint) -> Result<(), Arc<ReplicaError>> {
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
    fn later(&self) -> Stop {
        match self.open() {
            Ok(_) => Stop::Later,
            Err(stop) => stop,
        }
    }

    fn flush_all(&self) -> Result<(), Stop> {
        let shared = self.shared()?;
        let open = shared.writable().map_err(|_| Stop::Ended)?;
        let flushed = open.persist(Written::default());
        drop(open);
        flushed.map(drop).map_err(|_| self.later())
    }

    /// Waits while more was copied than the pool's limit lets through, and takes what is written meanwhile.
    fn throttle(&self, set: &mut ChangeSet, began: Instant, copied_bytes: u64) -> Result<(), Interrupted> {
        let Some(limit) = self.followers.bytes_per_second else { return Ok(()) };
        let due = Duration::from_secs_f64(copied_bytes as f64 / limit.max(1) as f64);
        while let Some(wait) = due.checked_sub(began.elapsed()).filter(|wait| !wait.is_zero()) {
            if !self.followers.pause(wait.min(THROTTLE_PAUSE)) {
                return Err(Stop::Ended.into());
            }
            self.take_all(set)?;
        }
        Ok(())
    }

    /// Takes what was written by now into a change set.
    fn take_all(&self, set: &mut ChangeSet) -> Result<(), Interrupted> {
        let Some(entries) = self.following.outbox.take_all() else { return Err(Interrupted::Overtaken) };
        self.add(set, &entries)
    }

    fn add(&self, set: &mut ChangeSet, entries: &[Entry]) -> Result<(), Interrupted> {
        // All of them are taken, whichever of them fit.
        for entry in entries {
            self.taken.mark(entry.range());
        }
        for entry in entries {
            self.add_bytes(set, entry.offset, &entry.bytes)?;
        }
        Ok(())
    }

    fn add_bytes(&self, set: &mut ChangeSet, offset: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        let added = self.follower.add(set, offset, bytes)?;
        added.map_err(|TooLong| Interrupted::Overtaken)
    }

    fn read_into(&self, set: &mut ChangeSet, range: &Range<u64>) -> Result<(), Interrupted> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.open()?.read(range.start, &mut bytes).map_err(|_| self.later())?;
        self.add_bytes(set, range.start, &bytes)
    }

    /// The pages of a range that differ between the member and one in sync.
    fn differing(&self, range: &Range<u64>) -> Result<Vec<Range<u64>>, Interrupted> {
        let (open, data) = (self.open()?, &self.follower.memory().data);
        let source = open.members_in_use().into_iter().find(|(_, member)| member.control().is_some());
        let source = source.ok_or_else(|| self.later())?;
        differing_pages([source, (open.members.len(), &**data)], range).map_err(|_| match data.standing().failure() {
            Some(why) => Stop::Lost(Arc::clone(why)).into(),
            None => self.later().into(),
        })
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
                self.add(&mut set, &entries)?;
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
    fn hear(&mut self) -> Result<(), Stop> {
        let far = self.followers.far();
        let heard = self.follower.heard().filter(|heard| heard.opening == far.opening);
        let is_idle = heard.is_some_and(|heard| heard.written_bytes == far.written_bytes);
        let interval = if is_idle { IDLE_INTERVAL } else { HEARD_INTERVAL };
        if self.heard_at.is_none_or(|at| at.elapsed() >= interval) {
            self.follower.hear(&far)?;
            self.heard_at = Some(Instant::now());
        }
        Ok(())
    }
}
