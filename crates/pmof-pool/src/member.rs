//! One replica as a pool uses it: memory of this machine, or a connection to a target.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use pmof_access::{Durability, Flushed, Memory, Ticket};
use pmof_pool_set::Contents;
use pmof_replication::member_state::MemberState;
pub use pmof_replication::written::Atomicity;
pub(crate) use pmof_replication::written::{Extent, Written, hull};

use crate::{PoolError, ReplicaError, ReplicaReceipt};

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
mod standing;
#[cfg(test)]
mod tests;
mod verified;
mod witness;

pub(crate) use absent::AbsentMember;
pub(crate) use contents::MemberContents;
pub(crate) use control::{Asking, Control, UNKNOWN_SUCCESSOR};
pub(crate) use local::LocalMember;
pub(crate) use remote::{RELAXED_BYTES, RemoteMember, Writing};
pub(crate) use standing::Standing;
pub(crate) use witness::WitnessMember;

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

/// One replica in use, by any number of threads. What fails takes it out of use, and is kept: the others go on.
pub(crate) trait Member: fmt::Debug + Send + Sync {
    fn standing(&self) -> &Standing;

    /// What it is to the pool: one load.
    #[inline]
    fn state(&self) -> MemberState {
        self.standing().state()
    }

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
