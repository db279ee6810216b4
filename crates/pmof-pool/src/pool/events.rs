//! What happens to the replicas of an open pool, for operators and programs.

use std::{
    collections::VecDeque,
    fmt,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_control::{ConsistencyPoint, Forced};
use pmof_locks::{Condvar, Mutex};
use pmof_mem::{causes, forks::Process};

use crate::{ChangeError, ReplicaError, ReplicaPlace, ScrubReport};

/// Events that are kept for those who have yet to ask for them; older ones are dropped.
const KEPT_EVENTS: usize = 1024;

/// Something that happened to a replica of an open pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A replica was lost: the pool goes on without it, as long as enough are left.
    Lost {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// Why.
        why: Arc<ReplicaError>,
    },
    /// A replica took longer than the pool [waits for it](crate::PoolOptions::slow_after): the pool goes on without it. It stays connected, and is
    /// sent what it lacks when it keeps up with the others again.
    Slow {
        /// The replica.
        replica: Arc<ReplicaPlace>,
    },
    /// A replica is connected again, or no longer slow, and is sent what it lacks.
    CatchingUp {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// Bytes that it may lack; all of the pool where that is not known.
        missing_bytes: u64,
    },
    /// A replica has all that was acknowledged, and counts again.
    InSync {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// Bytes that were copied to it.
        copied_bytes: u64,
        /// How long that took.
        took: Duration,
        /// It was compared as a whole. Else what it lacked was known, and it is compared from now on: [`Verified`](Self::Verified) or
        /// [`Differs`](Self::Differs) tells.
        is_verified: bool,
    },
    /// All of a replica that caught up is the same as on another one, by digests that both computed.
    Verified {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// Bytes that were compared: all but those that are zeros on both for want of any other.
        compared_bytes: u64,
        /// How long that took.
        took: Duration,
    },
    /// A replica that had caught up differs from another one: it is left behind, compared as a whole, and catches up once more.
    Differs {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// The first bytes that do, to the page.
        range: Range<u64>,
    },
    /// Pages of a replica that its medium had changed are again as they were written: copied from where another one has them.
    Healed {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// The pages, in bytes.
        range: Range<u64>,
    },
    /// Pages that the medium of a replica has changed, and that no other one has as the digest says.
    Damaged {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// The pages, in bytes.
        range: Range<u64>,
    },
    /// A replica cannot come back as it is: it belongs to another pool, or was written apart from this one.
    Rejected {
        /// The replica.
        replica: Arc<ReplicaPlace>,
        /// Why.
        why: Arc<ReplicaError>,
    },
    /// A replica became a member of the pool, and catches up.
    Added {
        /// The replica.
        replica: Arc<ReplicaPlace>,
    },
    /// A replica is no member of the pool any more.
    Removed {
        /// The replica, if its address was known.
        replica: Option<Arc<ReplicaPlace>>,
        /// Which of the pool's it was.
        index: u16,
    },
    /// A witness became a member of the pool.
    WitnessAdded {
        /// The witness.
        replica: Arc<ReplicaPlace>,
    },
    /// A witness is connected again, and knows of the pool's epoch.
    WitnessBack {
        /// The witness.
        replica: Arc<ReplicaPlace>,
    },
    /// A spare became a member, and catches up, in the place of one that was lost for [long](crate::PoolOptions::spare_after), which is none any more.
    SpareTaken {
        /// The new member.
        replica: Arc<ReplicaPlace>,
        /// The former one, if its address was known.
        lost: Option<Arc<ReplicaPlace>>,
        /// Which of the pool's replicas that was.
        index: u16,
    },
    /// A spare could not take the place of a member that has been lost for long. It is tried again; told again where there is another reason.
    SpareNotTaken {
        /// The spare.
        replica: Arc<ReplicaPlace>,
        /// Why.
        why: Arc<ChangeError>,
    },
    /// The pool was [scrubbed in the background](crate::PoolOptions::scrub_every).
    Scrubbed {
        /// What was found.
        report: Arc<ScrubReport>,
        /// How long that took, with the pauses for those who write.
        took: Duration,
    },
    /// An asynchronous member is at a point of this writer, and is sent what is written from now on.
    Following {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// Bytes of pages that were copied to it for that.
        copied_bytes: u64,
    },
    /// An asynchronous member could not be sent what was written as fast as the pool's [bound](crate::PoolOptions::lag_bound) asks for: it stays at its point
    /// while what it lacks is copied. Told again where as much is written meanwhile as is copied.
    FellBehind {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// Bytes of the pages that it lacks.
        lag_bytes: u64,
    },
    /// An asynchronous member is not connected. It stays at its point, and is tried again and again.
    NotFollowing {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// Why.
        why: Arc<ReplicaError>,
    },
    /// The pool was opened for writing with fewer members than are safe, now or before, and no operator has said since that this
    /// [is known](crate::Pool::clear_forced). It is the first event that whoever listens is told.
    Forced {
        /// The last such opening.
        forced: Forced,
    },
    /// An asynchronous member keeps a point no more, its oldest: what was overwritten since did not fit in the [space](crate::PoolOptions::points_space) for that.
    PointDropped {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// The point.
        point: ConsistencyPoint,
    },
    /// An asynchronous member is not known to keep a point that the program [named](crate::Pool::consistency_point): it did not follow then, or was lost or fell behind before
    /// it was at the point, and the pool was written again, or closed, before it followed.
    PointNotKept {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// The point; its number is none of the member's.
        point: ConsistencyPoint,
    },
    /// An asynchronous member keeps no points to go back to, or none any more. It follows all the same.
    KeepsNoPoints {
        /// The member.
        replica: Arc<ReplicaPlace>,
        /// Why: what failed where they are kept, such as a disk without room. `None`: what was there is damaged, or gone.
        why: Option<Arc<ReplicaError>>,
    },
    /// The caller's process was forked from the one that opened the pool: it hears of nothing else. Not an event of the pool.
    Forked,
    /// All replicas that were in sync are lost: nothing is acknowledged any more, also when they are back, and nothing happens to the pool here. It is
    /// to be [opened again](crate::PoolError::must_reopen).
    NoneLeft,
    /// Another writer has taken the pool over: nothing is acknowledged any more, and nothing happens to it here.
    Fenced {
        /// The other one.
        successor: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { replica, why } => write!(f, "{replica:#} is lost: {}", causes(why)),
            Self::Slow { replica } => {
                write!(f, "{replica:#} is too slow: the pool goes on without it until it keeps up")
            }
            Self::CatchingUp { replica, missing_bytes } => {
                write!(f, "{replica:#} is back and catches up: up to {missing_bytes} bytes are missing")
            }
            Self::InSync { replica, copied_bytes, took, .. } => {
                write!(f, "{replica:#} is in sync after {copied_bytes} bytes were copied in {took:.1?}")
            }
            Self::Verified { replica, compared_bytes, took } => {
                write!(f, "{replica:#} is the same as the others: {compared_bytes} bytes were compared in {took:.1?}")
            }
            Self::Differs { replica, range } => {
                write!(f, "{replica:#} caught up and differs at offset {}: all of it is compared", range.start)
            }
            Self::Healed { replica, range } => {
                write!(
                    f,
                    "{replica:#}: its medium had changed bytes {} to {}, which were repaired",
                    range.start, range.end
                )
            }
            Self::Damaged { replica, range } => write!(
                f,
                "{replica:#}: its medium has changed bytes {} to {}, and no replica has them as they were written",
                range.start, range.end
            ),
            Self::Rejected { replica, why } => write!(f, "{replica:#} cannot come back: {}", causes(why)),
            Self::Added { replica } => write!(f, "{replica:#} is a member of the pool now, and catches up"),
            Self::Removed { replica: Some(replica), .. } => write!(f, "{replica:#} is no member of the pool any more"),
            Self::Removed { replica: None, index } => write!(f, "replica {index} is no member of the pool any more"),
            Self::WitnessAdded { replica } => write!(f, "{replica:#} is a witness of the pool now"),
            Self::WitnessBack { replica } => write!(f, "{replica:#} is back: the pool has its witness again"),
            Self::SpareTaken { replica, lost: Some(lost), .. } => {
                write!(f, "the spare {replica} is a member of the pool now, in the place of {lost:#}, which was lost")
            }
            Self::SpareTaken { replica, lost: None, index } => {
                write!(
                    f,
                    "the spare {replica} is a member of the pool now, in the place of replica {index}, which was lost"
                )
            }
            Self::SpareNotTaken { replica, why } => {
                write!(f, "the spare {replica} did not take the place of a lost member: {}", causes(why))
            }
            Self::Scrubbed { report, took } => {
                let ScrubReport { compared_bytes, replica_count, repaired, undecided, damaged } = &**report;
                write!(f, "{replica_count} replicas were scrubbed: {compared_bytes} bytes compared in {took:.1?}")?;
                match repaired.len() + undecided.len() + damaged.len() {
                    0 => f.write_str(", no difference"),
                    _ => write!(
                        f,
                        ", {} pages repaired, {} pages differ and nothing says which replica is right, {} are damaged everywhere",
                        repaired.len(),
                        undecided.len(),
                        damaged.len()
                    ),
                }
            }
            Self::Following { replica, copied_bytes } => {
                write!(f, "{replica:#} follows asynchronously after {copied_bytes} bytes were copied")
            }
            Self::FellBehind { replica, lag_bytes } => {
                write!(
                    f,
                    "{replica:#} fell behind: {lag_bytes} bytes are copied to it, and it stays at its point until then"
                )
            }
            Self::NotFollowing { replica, why } => {
                write!(f, "{replica:#} does not follow, and stays at its point: {}", causes(why))
            }
            Self::Forced { forced } => write!(f, "{}", told(forced)),
            Self::PointDropped { replica, point: ConsistencyPoint { number, name, .. } } => {
                write!(f, "{replica:#} had no room to keep consistency point {number}, {name:?}")
            }
            Self::PointNotKept { replica, point: ConsistencyPoint { name, .. } } => write!(
                f,
                "{replica:#} is not known to keep consistency point {name:?}: it did not follow until the pool was written again or closed"
            ),
            Self::KeepsNoPoints { replica, why: Some(why) } => {
                write!(f, "{replica:#} keeps no consistency points: {}", causes(why))
            }
            Self::KeepsNoPoints { replica, why: None } => {
                write!(f, "{replica:#} keeps its consistency points no more: what it kept of them is damaged, or gone")
            }
            Self::Forked => {
                f.write_str("the pool was opened before fork(): only the process that opened it receives its events")
            }
            Self::NoneLeft => f.write_str("no replica is left that was in sync: open the pool again"),
            Self::Fenced { successor } => write!(f, "the pool was taken over by {successor}"),
        }
    }
}

/// What a forced opening was.
fn told(forced: &Forced) -> String {
    let named = |bits: u64| {
        let indexes: Vec<_> =
            (0..64_u16).filter(|index| bits & (1 << index) != 0).map(|index| index.to_string()).collect();
        if indexes.is_empty() { "none".to_owned() } else { indexes.join(", ") }
    };
    format!(
        "the pool was forced: opening {} went on with too few members ({}) and without others ({}), and what only those had is lost",
        forced.opening,
        named(forced.went_on),
        named(forced.left_out)
    )
}

/// The events of a pool, as far as they are kept.
#[derive(Debug, Default)]
pub(super) struct Log {
    kept: Mutex<Kept>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<(Event, Instant)>,
    /// The number of the first one kept.
    first: u64,
    is_closed: bool,
}

impl Log {
    pub(super) fn add(&self, event: Event) {
        match &event {
            Event::Scrubbed { report, .. } if report.found_nothing() => log::info!("{event}"),
            Event::Lost { .. }
            | Event::Slow { .. }
            | Event::Differs { .. }
            | Event::Healed { .. }
            | Event::Damaged { .. }
            | Event::Rejected { .. }
            | Event::FellBehind { .. }
            | Event::NotFollowing { .. }
            | Event::SpareTaken { .. }
            | Event::SpareNotTaken { .. }
            | Event::Forced { .. }
            | Event::PointDropped { .. }
            | Event::PointNotKept { .. }
            | Event::KeepsNoPoints { .. }
            | Event::Scrubbed { .. }
            | Event::NoneLeft
            | Event::Fenced { .. } => log::warn!("{event}"),
            Event::Forked
            | Event::CatchingUp { .. }
            | Event::InSync { .. }
            | Event::Verified { .. }
            | Event::Added { .. }
            | Event::WitnessAdded { .. }
            | Event::WitnessBack { .. }
            | Event::Following { .. }
            | Event::Removed { .. } => log::info!("{event}"),
        }
        let mut kept = self.kept.lock();
        if kept.events.len() == KEPT_EVENTS {
            kept.events.pop_front();
            kept.first += 1;
        }
        kept.events.push_back((event, Instant::now()));
        self.added.notify_all();
    }

    /// What happens from now on.
    pub(super) fn listen(self: &Arc<Self>, process: Process, first: Option<Event>) -> Events {
        let next = {
            let kept = self.kept.lock();
            kept.first + kept.events.len() as u64
        };
        Events { log: Arc::clone(self), first, next, process, has_told_fork: false }
    }

    /// In a child, whose pool this is not.
    pub(super) fn of_parent(self: &Arc<Self>, process: Process) -> Events {
        Events { log: Arc::clone(self), first: None, next: 0, process, has_told_fork: false }
    }

    /// What happened last, and how long ago.
    pub(super) fn last(&self, count: usize) -> Vec<(Event, Duration)> {
        let kept = self.kept.lock();
        let first = kept.events.len().saturating_sub(count);
        kept.events.iter().skip(first).map(|(event, at)| (event.clone(), at.elapsed())).collect()
    }

    /// Nothing will happen any more.
    pub(super) fn close(&self) {
        self.kept.lock().is_closed = true;
        self.added.notify_all();
    }
}

/// The events of a pool from the time of [`Pool::events`](crate::Pool::events) on. Of more than 1024 that nobody asked for, the oldest are dropped.
#[derive(Debug)]
pub struct Events {
    log: Arc<Log>,
    first: Option<Event>,
    next: u64,
    process: Process,
    has_told_fork: bool,
}

impl Events {
    /// The next event, for which this waits for up to `limit`. `None`: there was none, or the pool was closed.
    ///
    /// In a child of `fork()` the only event is [`Event::Forked`], and nothing waits.
    pub fn next_for(&mut self, limit: Duration) -> Option<Event> {
        if !self.process.is_current() {
            return (!std::mem::replace(&mut self.has_told_fork, true)).then_some(Event::Forked);
        }
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let until = Instant::now() + limit;
        let mut kept = self.log.kept.lock();
        loop {
            self.next = self.next.max(kept.first);
            if let Some((event, _)) = kept.events.get((self.next - kept.first) as usize) {
                self.next += 1;
                return Some(event.clone());
            }
            if kept.is_closed || self.log.added.wait_until(&mut kept, until).timed_out() {
                return None;
            }
        }
    }
}
