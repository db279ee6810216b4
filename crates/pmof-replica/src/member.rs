//! One replica as a pool uses it: memory of this machine, or a connection to a target.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pmof_access::{Durability, Evidence, Flushed, Memory, Ticket};
use pmof_control::FailureDomain;
use pmof_pool::Contents;
use uuid::Uuid;

use crate::{PoolError, ReplicaDomain, ReplicaError, ReplicaPlace, ReplicaReceipt};

/// The methods of a [`Member`] that nothing is written to and nothing flushed on, so that no receipt is of it.
macro_rules! never_written {
    () => {
        fn write(&self, _: &$crate::member::Write<'_>) {}

        fn start_flush(&self, _: $crate::member::Flush, _: $crate::member::FlushLevel) -> $crate::member::Flushing {
            $crate::member::Flushing::default()
        }

        fn is_flushed(&self, _: &mut $crate::member::Flushing, _: std::time::Duration) -> bool {
            true
        }

        fn finish_flush(&self, _: &mut $crate::member::Flushing) -> Option<$crate::ReplicaReceipt> {
            None
        }

        fn strongest(&self) -> pmof_access::Durability {
            pmof_access::Durability::Visible
        }
    };
}
pub(crate) use never_written;

mod absent;
mod contents;
mod control;
mod local;
mod remote;
#[cfg(test)]
mod tests;
mod witness;

pub(crate) use absent::AbsentMember;
pub(crate) use contents::MemberContents;
pub(crate) use control::{Asking, Control, UNKNOWN_SUCCESSOR};
pub(crate) use local::LocalMember;
pub(crate) use remote::{RELAXED_BYTES, RemoteMember, Writing};
pub(crate) use witness::WitnessMember;

/// What a crash may leave of a write that was not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomicity {
    /// Aligned words of 8 bytes are old or new, however long the write is.
    Words,
    /// The same of writes of at most 4096 bytes; any bytes of longer ones. Takes less of the target's CPU, and none over RDMA.
    #[default]
    Relaxed,
}

/// A range of a pool: its first byte, and the one behind its last.
pub(crate) type Extent = (u64, u64);

/// The least extent that has both in it.
pub(crate) fn hull((first, last): Extent, (begin, end): Extent) -> Extent {
    (first.min(begin), last.max(end))
}

/// What a lane has written and not flushed, by the two ways that writes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) relaxed: Option<Extent>,
    pub(crate) words: Option<Extent>,
}

impl Written {
    pub(crate) fn add(&mut self, atomicity: Atomicity, (begin, end): Extent) {
        let written = match atomicity {
            Atomicity::Words => &mut self.words,
            Atomicity::Relaxed => &mut self.relaxed,
        };
        *written = Some(written.map_or((begin, end), |before| hull(before, (begin, end))));
    }

    pub(crate) fn with(mut self, other: Self) -> Self {
        other.relaxed.inspect(|extent| self.add(Atomicity::Relaxed, *extent));
        other.words.inspect(|extent| self.add(Atomicity::Words, *extent));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One write, inside of the pool's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'b> {
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
    pub(crate) source: Source<'b>,
    pub(crate) atomicity: Atomicity,
    /// It is sent with the next flush; else at once, where nothing else is in flight.
    pub(crate) is_held: bool,
}

/// Where the bytes of a write come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'b> {
    Bytes(&'b [u8]),
    /// The same offset of the pool's mirror.
    Mirror,
    /// 8 bytes, whole or not at all.
    Atomic(u64),
}

impl<'b> Source<'b> {
    /// The part of a write's bytes, which begins at `offset` of the pool, that goes to `range`.
    pub(crate) fn part(bytes: &'b [u8], offset: u64, range: &Range<u64>) -> Self {
        let (begin, end) = (range.start - offset, range.end - offset);
        Self::Bytes(&bytes[begin as usize..end as usize])
    }
}

/// What a flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// What a lane has written.
    Written(Written),
    /// All that anybody has written.
    Everything,
}

impl Flush {
    /// Of what a lane has written; of everything where it has written nothing.
    pub(crate) fn of(written: Written) -> Self {
        if written.is_empty() { Self::Everything } else { Self::Written(written) }
    }

    /// One flush for both.
    pub(crate) fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Written(one), Self::Written(other)) => Self::Written(one.with(other)),
            _ => Self::Everything,
        }
    }
}

/// The flushes that one replica was asked for, which may be in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flushing {
    tickets: [Option<Ticket>; 2],
    /// Of a replica on this machine: what is to be flushed, and to which level.
    here: Option<(Extent, Durability)>,
    /// What those that are done have reached, and how.
    reached: [Option<Flushed>; 2],
}

impl Flushing {
    /// Whether answers are owed, or something on this machine has yet to be flushed.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.here.is_some() || self.tickets.iter().any(Option::is_some)
    }
}

/// It is written, and lacks what was written before.
const BEHIND: u8 = 1;
/// It is too slow to be waited for: it is behind, and nothing is sent to it.
const SLOW: u8 = 2;

/// Which replica it is, and whether it is in use.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) place: Arc<ReplicaPlace>,
    /// Why it is out of use, and since when.
    failure: OnceLock<(Arc<ReplicaError>, Instant)>,
    /// Why it is out of use still, as far as it was tried since.
    still: Mutex<Option<Arc<ReplicaError>>>,
    /// The program knows of the failure.
    is_told: AtomicBool,
    /// Whoever brings replicas back knows of the failure.
    is_noted: AtomicBool,
    /// [`BEHIND`] and [`SLOW`], as far as they hold.
    lag: AtomicU8,
    /// It is told of epochs, and has no data.
    is_witness: bool,
    /// It is no member yet.
    is_candidate: AtomicBool,
    /// Which replica it is, where that was found when the pool was opened.
    replica_uuid: Option<Uuid>,
    /// What its target says of its failure domain, if it does.
    failure_domain: Option<FailureDomain>,
    /// Which of the pool's domains that is, in one number; 0 where it is not known.
    domain: AtomicU32,
}

impl Standing {
    pub(crate) fn new(place: Arc<ReplicaPlace>) -> Self {
        let [is_told, is_noted, is_candidate] = [false; 3].map(AtomicBool::new);
        Self {
            place,
            failure: OnceLock::new(),
            still: Mutex::default(),
            is_told,
            is_noted,
            lag: AtomicU8::new(0),
            is_witness: false,
            is_candidate,
            replica_uuid: None,
            failure_domain: None,
            domain: AtomicU32::new(0),
        }
    }

    pub(crate) fn with_failure_domain(self, failure_domain: Option<FailureDomain>) -> Self {
        Self { failure_domain, ..self }
    }

    pub(crate) fn of_replica(self, replica_uuid: Uuid) -> Self {
        Self { replica_uuid: Some(replica_uuid), ..self }
    }

    pub(crate) fn replica_uuid(&self) -> Option<Uuid> {
        self.replica_uuid
    }

    pub(crate) fn failure_domain(&self) -> Option<&FailureDomain> {
        self.failure_domain.as_ref()
    }

    /// Which of the pool's failure domains it is in.
    pub(crate) fn domain(&self) -> Option<ReplicaDomain> {
        let domain = self.domain.load(Ordering::Relaxed).checked_sub(1)?;
        let evidence = if domain & 1 == 0 { Evidence::Probed } else { Evidence::Declared };
        Some(ReplicaDomain { number: (domain >> 1) as u16, evidence })
    }

    pub(crate) fn set_domain(&self, domain: Option<ReplicaDomain>) {
        let known =
            |domain: ReplicaDomain| 1 + 2 * u32::from(domain.number) + u32::from(domain.evidence == Evidence::Declared);
        self.domain.store(domain.map_or(0, known), Ordering::Relaxed);
    }

    /// Whether the failure is news to whoever brings replicas back.
    pub(crate) fn note_failure(&self) -> bool {
        !self.is_noted.load(Ordering::Relaxed) && !self.is_noted.swap(true, Ordering::Relaxed)
    }

    /// Of a replica that the pool is opened without; the program finds it among [`Pool::left_out`](crate::Pool::left_out).
    pub(crate) fn failed(place: Arc<ReplicaPlace>, why: Arc<ReplicaError>) -> Self {
        Self { failure: OnceLock::from((why, Instant::now())), is_told: AtomicBool::new(true), ..Self::new(place) }
    }

    /// Of a replica that is to catch up with the others.
    pub(crate) fn behind(place: Arc<ReplicaPlace>) -> Self {
        Self { lag: AtomicU8::new(BEHIND), ..Self::new(place) }
    }

    /// The same of a witness, which is behind for ever: it has nothing that the others wrote.
    pub(crate) fn of_witness(self, is_witness: bool) -> Self {
        if is_witness {
            self.lag.fetch_or(BEHIND, Ordering::Release);
        }
        Self { is_witness, ..self }
    }

    /// Of one that is no member yet: it counts for nothing.
    pub(crate) fn of_candidate(self) -> Self {
        Self { is_candidate: AtomicBool::new(true), ..self }
    }

    pub(crate) fn is_candidate(&self) -> bool {
        self.is_candidate.load(Ordering::Acquire)
    }

    /// It is a member from now on, or may be.
    pub(crate) fn is_made_a_member(&self) {
        self.is_candidate.store(false, Ordering::Release);
    }

    /// Whether it keeps the pool's epochs and no data: nothing is written to it, read from it or copied to it.
    pub(crate) fn is_witness(&self) -> bool {
        self.is_witness
    }

    /// Whether nobody has to bring it back.
    pub(crate) fn is_well(&self) -> bool {
        self.is_in_use() || (self.is_witness && self.failure().is_none() && !self.is_slow())
    }

    /// Whether it catches up with the others, or is yet to begin.
    pub(crate) fn is_behind(&self) -> bool {
        self.lag.load(Ordering::Acquire) & BEHIND != 0
    }

    /// The others go on without it. Before anything that it lacks is acknowledged, enough of them know durably that it is behind.
    pub(crate) fn leave_behind(&self) {
        // At once: one that is slow counts no more, and whoever sees that it does not count sees why.
        self.lag.fetch_or(BEHIND | SLOW, Ordering::AcqRel);
    }

    /// Whether nobody waits for it, because it is too slow.
    pub(crate) fn is_slow(&self) -> bool {
        self.lag.load(Ordering::Acquire) & SLOW != 0
    }

    /// It is written again.
    pub(crate) fn is_admitted(&self) {
        self.is_noted.store(false, Ordering::Relaxed);
        self.lag.fetch_and(!SLOW, Ordering::AcqRel);
    }

    /// It has all that the others have.
    pub(crate) fn has_caught_up(&self) {
        self.lag.fetch_and(!BEHIND, Ordering::AcqRel);
    }

    /// Whether it has all that was acknowledged, and is asked for the next.
    pub(crate) fn is_in_use(&self) -> bool {
        self.failure.get().is_none() && !self.is_behind()
    }

    /// Whether it is no member of the pool any more, or never was: nobody waits for it, and it does not come back.
    pub(crate) fn is_removed(&self) -> bool {
        let is_none = |why: &ReplicaError| why.is_of_no_member() || matches!(why, ReplicaError::Asynchronous { .. });
        self.failure().is_some_and(|why| is_none(why))
    }

    /// Why it is out of use, if it is.
    pub(crate) fn failure(&self) -> Option<&Arc<ReplicaError>> {
        self.failure.get().map(|(why, _)| why)
    }

    /// The same, as it was found when it was tried last.
    pub(crate) fn latest_failure(&self) -> Option<Arc<ReplicaError>> {
        let still = self.still.lock().clone();
        self.failure().map(|why| still.unwrap_or_else(|| Arc::clone(why)))
    }

    /// One that is out of use was tried again, and this is why it stays so.
    pub(crate) fn still_fails(&self, why: Arc<ReplicaError>) {
        *self.still.lock() = Some(why);
    }

    /// How long it has been out of use, if it is.
    pub(crate) fn failed_for(&self) -> Option<Duration> {
        self.failure.get().map(|(_, since)| since.elapsed())
    }

    /// Why it is out of use, for the program to know: closing the pool need not tell it again.
    pub(crate) fn tell_failure(&self) -> Option<&Arc<ReplicaError>> {
        let failure = self.failure()?;
        self.is_told.store(true, Ordering::Relaxed);
        Some(failure)
    }

    /// Whether the program knows that it is out of use.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    /// Takes it out of use. What failed first stays the reason.
    pub(crate) fn fail(&self, error: ReplicaError) -> Arc<ReplicaError> {
        self.fail_for(Arc::new(error))
    }

    /// The same, for a reason that somebody was told.
    pub(crate) fn fail_for(&self, why: Arc<ReplicaError>) -> Arc<ReplicaError> {
        Arc::clone(&self.failure.get_or_init(|| (why, Instant::now())).0)
    }
}

/// One replica in use, by any number of threads. What fails takes it out of use, and is kept: the others go on.
pub(crate) trait Member: fmt::Debug + Send + Sync {
    fn standing(&self) -> &Standing;

    /// Posts a write, or does it. Waits for room.
    fn write(&self, write: &Write<'_>);

    /// The same, and waits for room for so long at most. False: there was none, and a part of it may be posted.
    fn write_within(&self, write: &Write<'_>, _limit: Duration) -> bool {
        self.write(write);
        true
    }

    /// Starts to make durable what was written. Nothing of it need be done before [`finish_flush`](Self::finish_flush).
    fn start_flush(&self, flush: Flush, level: FlushLevel) -> Flushing;

    /// Starts to make a range durable, whoever wrote it.
    fn start_persist(&self, _range: &Range<u64>, _level: FlushLevel) -> Flushing {
        Flushing::default()
    }

    /// Waits for a flush, for so long at most. Whether [`finish_flush`](Self::finish_flush) would return at once. On this machine the flush is
    /// done now.
    fn is_flushed(&self, flushing: &mut Flushing, limit: Duration) -> bool;

    /// Returns when a flush is done: with what was reached, or `None` where the replica failed.
    fn finish_flush(&self, flushing: &mut Flushing) -> Option<ReplicaReceipt>;

    /// Whether several threads do better to share a flush than to have one each: it takes much longer than to wake a thread.
    fn shares_flushes(&self) -> bool {
        false
    }

    /// Copies bytes out. Writes posted before are seen.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>>;

    /// Reads ranges, of a native replica, and shows each piece when it has arrived, in their order.
    fn read_ranges(&self, ranges: &[Range<u64>], arrived: &mut dyn FnMut(u64, &[u8])) -> Result<(), Arc<ReplicaError>> {
        let mut bytes = Vec::new();
        for range in ranges {
            bytes.resize((range.end - range.start) as usize, 0);
            self.read(range.start, &mut bytes)?;
            arrived(range.start, &bytes);
        }
        Ok(())
    }

    /// The strongest level that a flush of this replica reaches, the pool's included.
    fn strongest(&self) -> Durability;

    /// Notes durably that the pool was closed; all was flushed before.
    fn close(&self) -> Result<(), Arc<ReplicaError>>;

    /// Makes everything durable that was written, of a replica that is behind too. False: it failed.
    fn flush_everything(&self, level: FlushLevel) -> bool {
        let mut flushing = self.start_flush_everything(level);
        self.has_flushed(&mut flushing, None)
    }

    /// Starts the same.
    fn start_flush_everything(&self, _level: FlushLevel) -> Flushing {
        Flushing::default()
    }

    /// Waits for [all to be durable](Self::start_flush_everything), for so long at most where there is a limit. False: it is not; the flush may be
    /// in flight still.
    fn has_flushed(&self, _flushing: &mut Flushing, _limit: Option<Duration>) -> bool {
        false
    }

    /// Its bytes, for a comparison with others.
    fn contents(&self) -> Option<Box<dyn Contents + '_>> {
        None
    }

    /// The memory, of a pool set's replica on this machine.
    fn memory(&self) -> Option<&Arc<Memory>> {
        None
    }

    /// What it answers besides its bytes, of a native replica and of one on a target.
    fn control(&self) -> Option<&Control> {
        None
    }

    /// The connection, of a replica that is not on this machine.
    fn remote(&self) -> Option<&RemoteMember> {
        None
    }
}

/// To which level a flush goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushLevel {
    /// The one that the replica was opened for.
    OfPool,
    /// The strongest that the replica can give: what a closed pool's replicas have in common must last.
    Strongest,
}

/// What went wrong with a replica, as an error that names it.
pub(crate) fn replica_error(member: &dyn Member, source: Arc<ReplicaError>) -> PoolError {
    PoolError::Replica { replica: Arc::clone(&member.standing().place), source }
}
