//! A pool kept on N targets: written to all in parallel, durable on all with one flush each.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::Durability;
use uuid::Uuid;

use crate::{
    Epoch, OpenFor, PersistFailure, PoolError, PoolUrl, Receipt, ReplicaError, USER_FLAGS_BYTES,
    control::{Reply, Request},
    lineage::Base,
    replica::Replica,
};
use opening::{LeftOut, replica_error};

mod equalize;
mod opening;
mod options;

pub use options::PoolOptions;

/// Bytes of one write on the wire; longer ones are split, so that several replicas are fed in turn.
const WRITE_PIECE_BYTES: usize = 1 << 20;

/// How long a mark stands while the pool is written: a copy of a replica's file that is older by more is told from the replica.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

/// What becomes of a pool that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    /// It has its name.
    Published,
    /// It gets its name when it is closed.
    Unpublished,
}

/// What all replicas of a pool have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    uuid: Uuid,
    size_bytes: u64,
    user_flags: [u8; USER_FLAGS_BYTES],
    /// Replicas that it was made with.
    replica_count: u16,
}

/// A pool kept on one or more targets.
///
/// [`close`](Self::close) it: of a pool that is only dropped, nobody knows whether its replicas are equal, and the next opening for writing
/// compares them. Nor is it free at once: a target has to notice the end of the connection first, which takes milliseconds. An opening waits for
/// that, up to a second, before it fails with [`PoolRefusal::Busy`](crate::PoolRefusal::Busy). The same holds after a writer's death.
#[derive(Debug)]
pub struct Pool {
    replicas: Vec<Replica>,
    identity: Identity,
    /// What the epoch of the replicas in use descends from, itself included.
    base: Base,
    /// The highest mark of a replica in use.
    mark: u64,
    /// When it was raised, by this opening.
    marked_at: Option<Instant>,
    /// Replicas that failed and are no members of that epoch.
    left_behind: usize,
    left_out: LeftOut,
    copied_bytes: u64,
    was_closed: bool,
    /// The replica that is read first.
    first_read: usize,
    /// Nothing was written since the last flush of all replicas in use.
    is_flushed: bool,
    require: Durability,
    access: OpenFor,
    new: Option<New>,
}

impl Pool {
    fn new(
        replicas: Vec<Replica>,
        identity: Identity,
        base: Base,
        require: Durability,
        access: OpenFor,
        new: Option<New>,
    ) -> Self {
        Self {
            replicas,
            identity,
            base,
            mark: 0,
            marked_at: None,
            left_behind: 0,
            left_out: Vec::new(),
            copied_bytes: 0,
            was_closed: true,
            first_read: 0,
            is_flushed: true,
            require,
            access,
            new,
        }
    }

    /// How to reach a pool.
    pub fn options() -> PoolOptions {
        PoolOptions::default()
    }

    /// Size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.identity.size_bytes
    }

    /// The pool's identity, the same on every replica.
    pub fn uuid(&self) -> Uuid {
        self.identity.uuid
    }

    /// What the pool's maker says of its contents; see [`PoolOptions::user_flags`].
    pub fn user_flags(&self) -> [u8; USER_FLAGS_BYTES] {
        self.identity.user_flags
    }

    /// The failure that persisted bytes survive.
    pub fn durability(&self) -> Durability {
        self.require
    }

    /// Replicas that it was opened with.
    pub fn replica_count(&self) -> usize {
        self.replicas.len()
    }

    /// Replicas that it was made with.
    pub fn made_count(&self) -> usize {
        usize::from(self.identity.replica_count)
    }

    /// Replicas that were named and that the pool was opened without, as [`PoolOptions::min_replicas`] allows, and why.
    pub fn left_out(&self) -> &[(Arc<PoolUrl>, Arc<ReplicaError>)] {
        &self.left_out
    }

    /// Bytes that the opening copied from one replica to others, because the writer before did not close the pool.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Whether the replicas were closed in order before this opening, so that they were equal. If not, they may differ in what was not
    /// acknowledged: an opening for writing has made them equal, an opening for reading has not. Also `false` for a reader while a writer
    /// has the pool.
    pub fn was_closed(&self) -> bool {
        self.was_closed
    }

    /// Starts a batch of writes that one flush per replica makes durable.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch { pool: self }
    }

    /// Writes one range and makes it durable on all replicas: the short form of a batch of one write.
    pub fn persist(&mut self, offset: u64, bytes: &[u8]) -> Result<Receipt, PoolError> {
        let mut batch = self.batch();
        batch.write(offset, bytes)?;
        batch.persist()
    }

    /// Copies bytes at `offset` out, from the first replica that is alive; of a pool opened for reading, from one that was closed in
    /// order, if there is one. Writes posted before are seen.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.check(offset, into.len() as u64)?;
        if into.is_empty() {
            return Ok(());
        }
        let mut last = PoolError::NoReplicas;
        let (before, rest) = self.replicas.split_at_mut(self.first_read);
        for replica in rest.iter_mut().chain(before) {
            match replica.read(offset, into) {
                Ok(()) => return Ok(()),
                Err(source) => last = PoolError::NoneLeft { replica: Arc::clone(&replica.url), source },
            }
        }
        Err(last)
    }

    /// Reads from one replica, the `index`-th of the options, and from no other.
    pub fn read_replica(&mut self, index: usize, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.check(offset, into.len() as u64)?;
        let replica_count = self.replicas.len();
        let Some(replica) = self.replicas.get_mut(index) else {
            return Err(PoolError::NoSuchReplica { index, replica_count });
        };
        let url = Arc::clone(&replica.url);
        replica.read(offset, into).map_err(|source| PoolError::Replica { replica: url, source })
    }

    /// Closes the pool on every replica, and says which could not be told. Everything that was written is made durable first, so
    /// that the replicas are equal, and the next opening need not compare them.
    ///
    /// A pool made with [`PoolOptions::publish_on_close`] gets its name now. If a replica refuses or is dead, the pool is
    /// removed again from the others.
    pub fn close(mut self) -> Result<(), PoolError> {
        if self.access == OpenFor::Write {
            self.flush_to_close();
        }
        let mut failed = None;
        let mut closed = Vec::with_capacity(self.replicas.len());
        for replica in self.replicas {
            // A pool that one replica lacks is not published on the next.
            if failed.is_some() && self.new == Some(New::Unpublished) {
                break;
            }
            let url = Arc::clone(&replica.url);
            match replica.close() {
                Ok(target) => closed.push((url, target)),
                Err(error) => {
                    failed.get_or_insert_with(|| replica_error(&url, error));
                }
            }
        }
        let Some(error) = failed else { return Ok(()) };
        if self.new == Some(New::Unpublished) {
            for (url, target) in closed {
                // What cannot be undone stays with the target; the first failure is reported.
                let _ = target.ask(&Request::Remove { name: url.name.clone() });
            }
        }
        Err(error)
    }

    fn check(&self, offset: u64, len_bytes: u64) -> Result<(), PoolError> {
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes());
        let size_bytes = self.len_bytes();
        if inside { Ok(()) } else { Err(PoolError::OutOfBounds { offset, len_bytes, size_bytes }) }
    }

    fn check_write(&self, offset: u64, len_bytes: u64) -> Result<(), PoolError> {
        if self.access == OpenFor::Read {
            return Err(PoolError::ReadOnly);
        }
        self.check(offset, len_bytes)
    }

    /// Begins the opening's epoch, then makes replicas equal that need not be so.
    fn begin(&mut self, min_replicas: Option<usize>, is_clean: bool, source: usize) -> Result<(), PoolError> {
        // An epoch of fewer than the caller allows would leave the others behind, for an opening that fails.
        self.begin_epoch(min_replicas.unwrap_or(self.replicas.len()));
        if min_replicas.is_none_or(|least| self.replicas.len() - self.lost() < least) {
            self.check_none_lost()?;
        }
        if is_clean || self.replicas.len() == 1 {
            return Ok(());
        }
        self.check_none_lost()?;
        self.equalize(source)
    }

    /// Has the replicas in use know that those which failed since the last time are left behind.
    fn leave_lost_behind(&mut self) {
        if self.lost() > self.left_behind {
            self.begin_epoch(1);
        }
    }

    /// Gives the replicas in use an epoch of their own, durably. One that does not take it is lost.
    ///
    /// First all are told, then all are told that all were: until then nothing was written under the epoch, and a replica that was
    /// not reached lacks nothing. With fewer than `least` replicas in use none is begun.
    fn begin_epoch(&mut self, least: usize) {
        while self.replicas.len() - self.lost() >= least.max(1) {
            self.left_behind = self.lost();
            let in_use = self.replicas.iter().filter(|replica| replica.failure().is_none());
            let epoch = Epoch::new(in_use.map(|replica| replica.index));
            let opening = self.base.opening.saturating_add(1);
            let ancestors = self.base.ancestors.clone();
            self.tell_all(&Request::Begin { opening, epoch, ancestors }, &Reply::Begun);
            if self.lost() > self.left_behind {
                continue;
            }
            self.tell_all(&Request::Confirm { epoch: epoch.id }, &Reply::Confirmed);
            self.base = Base::after(epoch, opening, &self.base.ancestors);
            if self.lost() == self.left_behind {
                break;
            }
        }
    }

    /// Raises the mark on all replicas in use, durably, if it is due: after the flush and before the persist is acknowledged, so that a copy
    /// made an interval before the acknowledgement lacks the mark. The target takes the occasion to see that the file still has its name.
    fn raise_mark(&mut self) {
        let is_due = self.marked_at.is_none_or(|marked_at| marked_at.elapsed() >= MARK_INTERVAL);
        if is_due {
            self.marked_at = Some(Instant::now());
            self.mark = self.mark.saturating_add(1);
            self.tell_mark();
        }
    }

    fn tell_mark(&mut self) {
        self.tell_all(&Request::Mark { mark: self.mark }, &Reply::Marked);
    }

    /// Asks the same of all replicas in use, in parallel. One that answers anything else is lost.
    fn tell_all(&mut self, request: &Request, expected: &Reply) {
        let pending: Vec<_> = self.replicas.iter_mut().map(|replica| replica.start_asking(request)).collect();
        for (replica, pending) in self.replicas.iter_mut().zip(pending) {
            let reply = pending.and_then(|pending| replica.finish_asking(&pending));
            if reply.is_some_and(|reply| reply != *expected) {
                replica.fail(ReplicaError::Unexpected);
            }
        }
    }

    /// Makes everything that was written as durable as each replica can, so that the replicas stay equal.
    fn flush_to_close(&mut self) {
        let is_flushed = self.is_flushed;
        for replica in &mut self.replicas {
            if let Some(level) = replica.closing_level().filter(|level| !is_flushed || *level > self.require) {
                replica.start_flush(level);
            }
        }
        for replica in &mut self.replicas {
            // A failure is kept by the replica.
            let _ = replica.finish_flush();
        }
    }

    fn check_none_lost(&self) -> Result<(), PoolError> {
        let lost = self.replicas.iter().find_map(|replica| Some((replica, replica.failure()?)));
        match lost {
            Some((replica, why)) => {
                Err(PoolError::Replica { replica: Arc::clone(&replica.url), source: Arc::clone(why) })
            }
            None => Ok(()),
        }
    }

    fn lost(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.failure().is_some()).count()
    }

    fn flush_all(&mut self) -> Result<Receipt, PoolError> {
        if self.access == OpenFor::Read {
            return Err(PoolError::ReadOnly);
        }
        for replica in &mut self.replicas {
            replica.start_flush(self.require);
        }
        let mut receipts: Vec<_> = self.replicas.iter_mut().filter_map(Replica::finish_flush).collect();
        self.raise_mark();
        // Before anyone hears of writes that a lost replica lacks, it must be known by its header to lack them.
        self.leave_lost_behind();
        let mut failed = Vec::new();
        for replica in &self.replicas {
            if let Some(why) = replica.failure() {
                receipts.retain(|receipt| receipt.replica != replica.url);
                failed.push((Arc::clone(&replica.url), Arc::clone(why)));
            }
        }
        self.is_flushed = true;
        let (replica_count, made_count) = (self.replicas.len(), self.made_count());
        let receipt = Receipt { durability: self.require, replicas: receipts, replica_count, made_count };
        if receipt.replicas.len() == receipt.replica_count {
            return Ok(receipt);
        }
        Err(PoolError::Persist(Box::new(PersistFailure { receipt, failed })))
    }
}

/// Writes that become durable together, with one flush per replica. Dropped without a persist, its writes are posted but
/// nothing is known of them.
#[derive(Debug)]
pub struct Batch<'p> {
    pool: &'p mut Pool,
}

impl Batch<'_> {
    /// Adds a write at `offset` (bytes). It is visible in the order written and not durable before
    /// [`persist`](Self::persist) says so; until then a crash may tear it: one of
    /// at most 4096 bytes at boundaries of 8 aligned bytes, a longer one at any byte.
    ///
    /// # Errors
    /// Only for a wrong range: what goes wrong with a replica is told by the persist.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.pool.check_write(offset, bytes.len() as u64)?;
        self.pool.is_flushed = false;
        let mut at = offset;
        for piece in bytes.chunks(WRITE_PIECE_BYTES) {
            for replica in &mut self.pool.replicas {
                replica.write(at, piece);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Adds a write of 8 bytes (`value` as little-endian) at an offset divisible by 8, which a crash cannot tear.
    pub fn atomic_write(&mut self, offset: u64, value: u64) -> Result<(), PoolError> {
        self.pool.check_write(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(PoolError::Misaligned { offset });
        }
        self.pool.is_flushed = false;
        for replica in &mut self.pool.replicas {
            replica.atomic_write(offset, value);
        }
        Ok(())
    }

    /// Makes all that was written before durable on every replica, in parallel.
    ///
    /// # Errors
    /// [`PoolError::Persist`] names the replicas that failed and holds the receipt of the others, which keep the data and
    /// go on being written.
    pub fn persist(self) -> Result<Receipt, PoolError> {
        self.pool.flush_all()
    }
}
