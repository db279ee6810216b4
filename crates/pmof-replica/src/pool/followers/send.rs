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
    AsynchronousState, Followers, Following, Stop,
    attach::{Attached, tell_points},
};
use crate::{
    ReplicaError,
    follower::{ChangeSet, Follower, TooLong},
    member::Written,
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

/// What ended a copy or the sending.
enum Interrupted {
    /// More was written meanwhile than is kept: these pages of what was taken are not on the member.
    Overtaken(PageMap),
    Stopped(Stop),
}

impl Interrupted {
    fn overtaken(taken: &PageMap) -> Self {
        let pages = PageMap::new(taken.size_bytes());
        pages.add(taken);
        Self::Overtaken(pages)
    }
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
    heard_at: Option<Instant>,
}

impl Followers {
    /// Follows a member up until it is lost. `has_followed`: whether it was at a point of this writer.
    pub(super) fn follow(&self, pool: &Weak<Shared>, following: &Following, has_followed: &AtomicBool) -> Stop {
        let follower = match self.attach(pool, following) {
            Ok(follower) => follower,
            Err(stop) => return stop,
        };
        following.told.lock().point = follower.point().cloned();
        following.outbox.stop_at_names(follower.keeps_points());
        let mut sending = Sending { followers: self, pool, following, follower, heard_at: None };
        // Nobody knows what was written since it was here last.
        let (missing, mut is_compared) = (PageMap::full(self.identity.size_bytes), true);
        loop {
            following.told.lock().state = AsynchronousState::Copying;
            match sending.copy(&missing, is_compared) {
                Ok(copied_bytes) => {
                    has_followed.store(true, Ordering::Relaxed);
                    missing.clear();
                    is_compared = false;
                    if let Err(stop) = sending.note_following(copied_bytes) {
                        return stop;
                    }
                }
                Err(Interrupted::Stopped(stop)) => return stop,
                Err(Interrupted::Overtaken(taken)) => {
                    missing.add(&taken);
                    if !self.pause(PAUSE) {
                        return Stop::Ended;
                    }
                    continue;
                }
            }
            match sending.send() {
                Interrupted::Stopped(stop) => return stop,
                Interrupted::Overtaken(taken) => missing.add(&taken),
            }
        }
    }
}

impl Sending<'_> {
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
    fn copy(&mut self, missing: &PageMap, is_compared: bool) -> Result<u64, Interrupted> {
        let (size_bytes, outbox) = (self.followers.identity.size_bytes, &self.following.outbox);
        missing.add(&outbox.begin());
        let (left, taken) = (PageMap::new(size_bytes), PageMap::new(size_bytes));
        left.add(missing);
        outbox.copies(if is_compared { 0 } else { left.count_bytes() });
        // What was posted before the beginning can be read from now on.
        self.flush_all()?;
        let (mut set, mut from, mut copied_bytes) = (ChangeSet::new(), 0, 0);
        while let Some(window) = left.take(from, WINDOW_BYTES) {
            from = window.end;
            let ranges = if is_compared { self.differing(&window)? } else { vec![window] };
            for range in ranges {
                copied_bytes += range.end - range.start;
                for begin in (range.start..range.end).step_by(READ_BYTES as usize) {
                    self.take_all(&mut set, &taken)?;
                    self.read_into(&mut set, &(begin..(begin + READ_BYTES).min(range.end)), &taken)?;
                }
            }
            self.take_all(&mut set, &taken)?;
        }
        self.shared()?.make_point("").map_err(|_| self.later())?;
        let Some((entries, point)) = self.following.outbox.take_to_point() else {
            return Err(Interrupted::Overtaken(taken));
        };
        self.add(&mut set, &entries, &taken)?;
        self.commit(set, &point)?;
        self.hear()?;
        Ok(copied_bytes)
    }

    fn commit(&mut self, set: ChangeSet, point: &ConsistencyPoint) -> Result<(), Arc<ReplicaError>> {
        let committed = self.follower.commit(set, point);
        tell_points(self.pool, self.following, self.follower.take_news());
        committed?;
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

    /// Takes what was written by now into a change set.
    fn take_all(&self, set: &mut ChangeSet, taken: &PageMap) -> Result<(), Interrupted> {
        let Some(entries) = self.following.outbox.take_all() else { return Err(Interrupted::overtaken(taken)) };
        self.add(set, &entries, taken)
    }

    fn add(&self, set: &mut ChangeSet, entries: &[Entry], taken: &PageMap) -> Result<(), Interrupted> {
        // All of them are taken, whichever of them fit.
        for entry in entries {
            taken.mark(entry.range());
        }
        for entry in entries {
            self.add_bytes(set, entry.offset, &entry.bytes, taken)?;
        }
        Ok(())
    }

    fn add_bytes(&self, set: &mut ChangeSet, offset: u64, bytes: &[u8], taken: &PageMap) -> Result<(), Interrupted> {
        let added = self.follower.add(set, offset, bytes)?;
        added.map_err(|TooLong| Interrupted::overtaken(taken))
    }

    fn read_into(&self, set: &mut ChangeSet, range: &Range<u64>, taken: &PageMap) -> Result<(), Interrupted> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.open()?.read(range.start, &mut bytes).map_err(|_| self.later())?;
        self.add_bytes(set, range.start, &bytes, taken)
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
        let size_bytes = self.followers.identity.size_bytes;
        match self.following.outbox.wait(HEARD_INTERVAL) {
            Due::Ended => return Err(Stop::Ended.into()),
            Due::Copy => {
                let lag_bytes = self.following.outbox.lag().map_or(0, |lag| lag.bytes);
                self.event(Event::FellBehind { replica: Arc::clone(&self.following.place), lag_bytes })?;
                return Err(Interrupted::Overtaken(PageMap::new(size_bytes)));
            }
            Due::Point => {
                // A failure is told to those who write.
                if self.shared()?.make_point("").is_err() && !self.followers.pause(PAUSE) {
                    return Err(Stop::Ended.into());
                }
            }
            Due::Send(entries, point) => {
                let (mut set, taken) = (ChangeSet::new(), PageMap::new(size_bytes));
                self.add(&mut set, &entries, &taken)?;
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
