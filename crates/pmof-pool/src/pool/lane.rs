//! One caller's stream of writes.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use super::{Pending, Pool};
use crate::{
    PoolError, Receipt,
    member::{Atomicity, Flush, FlushLevel, Source, Written},
};

/// One caller's stream of writes to a pool, which take effect in their order. A [`flush`](Self::flush) makes durable what this lane has
/// written; lanes do not wait for each other.
///
/// Dropped without a flush, its writes are posted, and nothing is known of them.
///
/// It may move to another thread; two threads cannot write to it at once:
///
/// ```compile_fail,E0499
/// # fn two_threads(pool: pmof_pool::Pool) {
/// let mut lane = pool.lane();
/// std::thread::scope(|scope| {
///     scope.spawn(|| lane.write(0, b"one"));
///     scope.spawn(|| lane.write(64, b"two")); // a lane of its own would do
/// });
/// # }
/// ```
#[derive(Debug)]
pub struct Lane {
    pool: Pool,
    atomicity: Atomicity,
    written: Written,
}

impl Lane {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, atomicity: Atomicity::default(), written: Written::default() }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What a crash may leave of the writes that follow; [`Atomicity::Relaxed`] unless told otherwise.
    pub fn set_atomicity(&mut self, atomicity: Atomicity) {
        self.atomicity = atomicity;
    }

    /// Whether all that this lane has written was flushed; a flush may be in flight still.
    pub fn is_flushed(&self) -> bool {
        self.written.is_empty()
    }

    /// Writes bytes at `offset`; they are free again when this returns. They are sent with the next flush, or when some 256 KiB are
    /// together; no crash loses them once that flush is done. The first write in a while to a part of the pool (1 MiB, more of a pool above 96 GiB) waits for a question
    /// to each target, so that an opening after this writer's death knows where replicas may differ.
    ///
    /// # Errors
    /// [`PoolError::OutOfBounds`], [`PoolError::Header`], [`PoolError::ReadOnly`], [`PoolError::Closed`]. What goes wrong with a replica is
    /// told by the flush.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.post(offset, bytes.len() as u64, self.atomicity, true, |range| Source::part(bytes, offset, range))
    }

    /// Writes 8 bytes (`value` as little-endian) at an offset divisible by 8, which a crash cannot tear.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and [`PoolError::Misaligned`].
    pub fn atomic_write(&mut self, offset: u64, value: u64) -> Result<(), PoolError> {
        if offset % 8 != 0 {
            self.pool.0.facts.check(offset, 8)?;
            return Err(PoolError::Misaligned { offset });
        }
        self.post(offset, 8, Atomicity::Relaxed, true, |_| Source::Atomic(value))
    }

    /// Writes a range of the pool's [mirror](Pool::mirror), whose bytes must not change before the flush is done. It is sent at once where
    /// nothing else is in flight.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and [`PoolError::NoMirror`].
    pub fn write_range(&mut self, range: Range<u64>) -> Result<(), PoolError> {
        self.post_mirror(range, false)
    }

    fn post_mirror(&mut self, range: Range<u64>, is_held: bool) -> Result<(), PoolError> {
        let Range { start, end } = range;
        let len_bytes = end.checked_sub(start).ok_or(PoolError::Reversed { start, end })?;
        self.pool.0.writable()?.check_mirror(range.start, len_bytes)?;
        self.post(range.start, len_bytes, self.atomicity, is_held, |_| Source::Mirror)
    }

    /// Starts to make durable, on every replica at once, all that this lane has written. With nothing written, all that anybody has
    /// written to the pool.
    #[must_use = "nothing is known to be durable before it was waited for"]
    pub fn flush(&mut self) -> Pending {
        let open = match self.pool.0.writable() {
            Ok(open) => open,
            Err(error) => return Pending::failed(self.pool.clone(), error),
        };
        let written = std::mem::take(&mut self.written);
        let flushing = open.start_flush(Flush::of(written), FlushLevel::OfPool);
        Pending::posted(self.pool.clone(), Arc::clone(&open), flushing, !written.is_empty())
    }

    /// The same, and waits for it.
    ///
    /// # Errors
    /// Those of [`Pending::wait`].
    pub fn persist(&mut self) -> Result<Receipt, PoolError> {
        let shared = &self.pool.0;
        let open = shared.writable()?;
        let written = std::mem::take(&mut self.written);
        let receipt = open.persist(written);
        if !written.is_empty() {
            shared.note_end(receipt.is_ok());
        }
        receipt
    }

    /// Writes a range of the pool's [mirror](Pool::mirror) and makes it durable, with what this lane has written before.
    ///
    /// # Errors
    /// Those of [`write_range`](Self::write_range) and [`Pending::wait`].
    pub fn persist_range(&mut self, range: Range<u64>) -> Result<Receipt, PoolError> {
        self.post_mirror(range, true)?;
        self.persist()
    }

    /// Copies bytes at `offset` out, as [`Pool::read`] does. What this lane has written before is seen.
    ///
    /// # Errors
    /// Those of [`Pool::read`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        self.pool.read(offset, into)
    }

    fn post<'b>(
        &mut self,
        offset: u64,
        len_bytes: u64,
        atomicity: Atomicity,
        is_held: bool,
        source: impl Fn(&Range<u64>) -> Source<'b>,
    ) -> Result<(), PoolError> {
        let shared = &self.pool.0;
        let _room = shared.wait_for_room(len_bytes);
        let open = shared.writable()?;
        open.facts.check_data(offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        if self.written.is_empty() {
            shared.unflushed.fetch_add(1, Ordering::Relaxed);
        }
        self.written.add(atomicity, (offset, offset + len_bytes));
        open.write(offset..offset + len_bytes, atomicity, is_held, source)
    }
}
