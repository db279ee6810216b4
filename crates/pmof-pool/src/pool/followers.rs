//! Asynchronous members: they follow the pool from afar, at consistency points of its writer, and no persist waits for them.
//!
//! Each has a thread of its own, which drives the engine (`following.rs` in `pmof-replication`): it connects to the member, makes it equal to the members in sync at some point, and then
//! sends it what is written up to each next point. What the member keeps is decided in `follower.rs`.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pmof_access::{Durability, Medium};
use pmof_control::{ConsistencyPoint, RosterMember};
use pmof_locks::{Condvar, Mutex, RwLock};
use pmof_replication::following::{Followed, Known, Lag, LagBound, Outbox, WriteCount, Writing};
use smallvec::SmallVec;

use super::opened::Identity;
use crate::{
    PoolUrl, ReplicaError, ReplicaPlace,
    member::{Atomicity, Source},
    peers::Peers,
    reach::Reach,
};

mod areas;
mod driver;
mod outbox;
mod running;

pub(super) use areas::{
    Attached, Reading, check_staging_name, fresh_area, is_definite, open_points, open_staging, points_options,
    staging_options,
};
use outbox::{Room, SharedOutbox};

/// Where an asynchronous member is in its life.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AsynchronousState {
    /// It is sent what is written up to each consistency point.
    Following,
    /// It is at its point while what it lacks is copied beside its data; that is applied as a whole. One that is at none yet is copied to.
    Copying,
    /// It is not connected: it is tried again and again. It is at its point meanwhile.
    Lost(Arc<ReplicaError>),
    /// It is being connected to for the first time.
    Connecting,
}

/// An asynchronous member of an open pool.
#[derive(Clone, Debug)]
pub struct AsynchronousStatus {
    /// Which of the pool's replicas it is.
    pub index: u16,
    /// Where it lies.
    pub replica: Arc<ReplicaPlace>,
    /// Where it is in its life.
    pub state: AsynchronousState,
    /// The point that it is at, where this writer knows it. Of a new one there is none.
    pub point: Option<ConsistencyPoint>,
    /// Bytes that were written and that it does not have, at most. `None`: it is not connected, and was at no point of this writer yet.
    pub lag_bytes: Option<u64>,
    /// How long ago the oldest of them was written, at most. `None`: as above.
    pub lag: Option<Duration>,
    /// Of a lost one: how long it has been lost.
    pub lost_for: Option<Duration>,
}

/// Which consistency points asynchronous members are to keep.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeepPoints {
    /// How many. `None`: as each does.
    pub(crate) count: Option<u16>,
    /// Bytes of the log of what was overwritten since the oldest. `None`: as many as the pool has, or more of a small one.
    pub(crate) space_bytes: Option<u64>,
}

/// The asynchronous members of an open pool.
#[derive(Debug)]
pub(super) struct Followers {
    bound: LagBound,
    keep: KeepPoints,
    /// Bytes a second that are copied to a member, at most.
    bytes_per_second: Option<u64>,
    reach: Reach,
    peers: Mutex<Peers>,
    identity: Identity,
    require: Durability,
    /// The opening in which the pool is written here.
    opening: u64,
    list: RwLock<Vec<Arc<Following>>>,
    is_any: AtomicBool,
    /// Bytes written since the pool was opened.
    written_bytes: AtomicU64,
    writes: Arc<WriteCount>,
    /// Held while a point is made.
    pointing: Mutex<()>,
    /// What times are counted from.
    began: Instant,
    stopping: Mutex<bool>,
    stopped: Condvar,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Following {
    index: u16,
    of_roster: RosterMember,
    url: Arc<PoolUrl>,
    place: Arc<ReplicaPlace>,
    outbox: Arc<SharedOutbox>,
    told: Mutex<Told>,
    known: Mutex<Known>,
    /// It is open here, or about to be.
    is_open: AtomicBool,
}

#[derive(Debug)]
struct Told {
    state: AsynchronousState,
    /// When it was lost, until it is connected again.
    lost_since: Option<Instant>,
    point: Option<ConsistencyPoint>,
}

/// Room for a write at each member that those who write wait for.
pub(super) type Rooms = SmallVec<[Room; 2]>;

impl Followed for Following {
    fn with_outbox<T>(&self, look: impl FnOnce(&mut Outbox) -> T) -> T {
        self.outbox.with(look)
    }

    fn is_lost(&self) -> bool {
        matches!(self.told.lock().state, AsynchronousState::Lost(_))
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }
}

impl Followers {
    /// `opening`: that in which the pool is written here.
    pub(super) fn new(
        (bound, keep, bytes_per_second): (LagBound, KeepPoints, Option<u64>),
        reach: Reach,
        identity: Identity,
        require: Durability,
        opening: u64,
    ) -> Self {
        Self {
            bound,
            keep,
            bytes_per_second,
            peers: Mutex::new(reach.peers()),
            reach,
            identity,
            require,
            opening,
            list: RwLock::default(),
            is_any: AtomicBool::new(false),
            written_bytes: AtomicU64::new(0),
            writes: Arc::default(),
            pointing: Mutex::default(),
            began: Instant::now(),
            stopping: Mutex::new(false),
            stopped: Condvar::new(),
        }
    }

    pub(super) fn bound(&self) -> &LagBound {
        &self.bound
    }

    pub(super) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The member of this index is none any more.
    pub(super) fn remove(&self, index: u16) {
        let mut list = self.list.write();
        list.retain(|following| {
            let stays = following.index != index;
            if !stays {
                following.outbox.with(Outbox::end);
            }
            stays
        });
        self.is_any.store(!list.is_empty(), Ordering::Release);
    }

    /// Waits for room for a write, where those who write wait for a member.
    fn wait_for_room(&self, len_bytes: u64) -> Rooms {
        if !self.is_any.load(Ordering::Acquire) {
            return Rooms::new();
        }
        let list = self.list.read().clone();
        list.iter().filter_map(|following| following.outbox.wait_for_room(len_bytes)).collect()
    }

    /// Counts a write, before it is posted, and until it is kept.
    pub(super) fn begin_write(&self) -> Option<Writing<'_>> {
        self.is_any.load(Ordering::Acquire).then(|| self.writes.begin())
    }

    /// Keeps a write that was posted on the members in sync, before anybody is told so.
    pub(super) fn keep<'b>(
        &self,
        range: &Range<u64>,
        atomicity: Atomicity,
        mirror: Option<&Arc<dyn Medium>>,
        source: impl Fn(&Range<u64>) -> Source<'b>,
    ) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        let len_bytes = range.end - range.start;
        self.written_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        let list = self.list.read();
        if list.iter().all(|following| following.outbox.is_off()) {
            return;
        }
        let bytes: Option<Arc<[u8]>> = match source(range) {
            Source::Bytes(bytes) => Some(bytes.into()),
            Source::Atomic(value) => Some(value.to_le_bytes().to_vec().into()),
            Source::Mirror => mirror.and_then(|mirror| {
                let mut bytes = vec![0; len_bytes as usize];
                mirror.read(range.start, &mut bytes).is_ok().then(|| bytes.into())
            }),
        };
        for following in list.iter() {
            match &bytes {
                Some(bytes) => following.outbox.keep(range.start, bytes, atomicity),
                None => following.outbox.with(|outbox| outbox.lose_track(range)),
            }
        }
    }

    /// A part of a range may have been written.
    pub(super) fn lose_track(&self, range: &Range<u64>) {
        if self.is_any.load(Ordering::Acquire) {
            let list = self.list.read();
            list.iter().for_each(|following| following.outbox.with(|outbox| outbox.lose_track(range)));
        }
    }

    /// How far the pool is written now.
    fn far(&self) -> ConsistencyPoint {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ConsistencyPoint {
            number: 0,
            opening: self.opening,
            written_bytes: self.written_bytes.load(Ordering::Acquire),
            unix_ms: since.as_millis().try_into().unwrap_or(u64::MAX),
            name: String::new(),
        }
    }

    pub(super) fn status(&self) -> Vec<AsynchronousStatus> {
        let far = self.far();
        let of = |following: &Arc<Following>| {
            let told = following.told.lock();
            // What is not kept for one that is away is known by how far it came.
            let beyond = || {
                let point = told.point.as_ref().filter(|point| point.opening == far.opening)?;
                let bytes = far.written_bytes.saturating_sub(point.written_bytes);
                let age = if bytes == 0 { 0 } else { far.unix_ms.saturating_sub(point.unix_ms) };
                Some(Lag { bytes, age: Duration::from_millis(age), is_behind: false })
            };
            let lag = following.outbox.with(|outbox| outbox.lag(self.began.elapsed())).or_else(beyond);
            // Its thread may not have noticed yet.
            let has_fallen = lag.is_some_and(|lag| lag.is_behind) && matches!(told.state, AsynchronousState::Following);
            AsynchronousStatus {
                index: following.index,
                replica: Arc::clone(&following.place),
                state: if has_fallen { AsynchronousState::Copying } else { told.state.clone() },
                point: told.point.clone(),
                lag_bytes: lag.map(|lag: Lag| lag.bytes),
                lag: lag.map(|lag| lag.age),
                lost_for: told.lost_since.map(|since| since.elapsed()),
            }
        };
        self.list.read().iter().map(of).collect()
    }

    /// Has all threads end.
    fn stop(&self) {
        *self.stopping.lock() = true;
        self.stopped.notify_all();
        self.list.read().iter().for_each(|following| following.outbox.with(Outbox::end));
    }

    /// False: the threads are to end.
    fn pause(&self, limit: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stopped.wait_for(&mut stopping, limit);
        }
        !*stopping
    }

    fn has(&self, following: &Following) -> bool {
        self.list.read().iter().any(|other| other.index == following.index)
    }
}
