//! A replica on this machine.

use std::{ops::Range, sync::Arc, time::Duration};

use pmof_access::{Durability, Flushed, Mechanism, Medium, Memory, Method};
use pmof_control::{Reply, Request};
use pmof_mem::MemError;
use pmof_pool_set::Contents;

use super::{
    Atomicity, Control, Flush, FlushLevel, Flushing, Member, MemberContents, Source, Standing, Write, Written, hull,
};
use crate::{ReplicaError, ReplicaReceipt};

/// Bytes copied at a time from the mirror.
const COPY_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct LocalMember {
    held: Held,
    /// As peers have it: of a pool that keeps digests of its pages what is read is verified.
    memory: Arc<dyn Medium>,
    /// Where the pool lies in the memory.
    range: Range<u64>,
    /// Which level flushes must reach, and the strongest that the memory gives.
    level: Durability,
    strongest: Durability,
    /// The memory that the program writes to; `None` where that is this replica's.
    mirror: Option<Arc<dyn Medium>>,
}

/// Who has its files.
#[derive(Debug)]
enum Held {
    /// A pool of its own, with states and epochs.
    Native(Control),
    /// The pool set, which closes its replicas together; with the same memory.
    BySet(Standing, Arc<Memory>),
}

impl LocalMember {
    /// Of a pool set. `levels`: which flushes must reach, and the strongest that the memory gives.
    pub(crate) fn of_set(
        standing: Standing,
        memory: Arc<Memory>,
        levels: (Durability, Durability),
        mirror: Option<Arc<dyn Medium>>,
    ) -> Self {
        let range = 0..memory.len_bytes();
        Self::new(Held::BySet(standing, Arc::clone(&memory)), (memory, range), levels, mirror)
    }

    /// A native one, in a range of the memory. `levels`: the same, where it is open for writing.
    pub(crate) fn native(
        control: Control,
        place: (Arc<dyn Medium>, Range<u64>),
        levels: Option<(Durability, Durability)>,
        mirror: Option<Arc<dyn Medium>>,
    ) -> Self {
        Self::new(Held::Native(control), place, levels.unwrap_or((Durability::Visible, Durability::Visible)), mirror)
    }

    fn new(
        held: Held,
        (memory, range): (Arc<dyn Medium>, Range<u64>),
        (level, strongest): (Durability, Durability),
        mirror: Option<Arc<dyn Medium>>,
    ) -> Self {
        Self { held, memory, range, level, strongest, mirror }
    }

    fn try_write(&self, write: &Write<'_>) -> Result<(), MemError> {
        let Write { len_bytes, .. } = *write;
        let offset = self.range.start + write.offset;
        match (write.source, &self.mirror) {
            (Source::Bytes(bytes), _) => self.memory.store(offset, bytes)?,
            (Source::Atomic(value), _) => self.memory.atomic_store(offset, value)?,
            (Source::Mirror, None) => {}
            (Source::Mirror, Some(mirror)) => copy(&**mirror, write.offset, &*self.memory, offset, len_bytes)?,
        }
        self.memory.write_back(offset, len_bytes)
    }

    fn keep<T>(&self, done: Result<T, MemError>) -> Result<T, Arc<ReplicaError>> {
        done.map_err(|error| self.standing().fail(error.into()))
    }

    /// As [`start_flush`](Member::start_flush), of one that is behind too.
    fn prepare_flush(&self, flush: Flush, level: FlushLevel) -> Flushing {
        let Range { start, end } = self.range;
        let extent = match flush {
            Flush::Everything => {
                if self.state().is_connected() {
                    let _ = self.keep(self.memory.write_back(start, end - start));
                }
                (start, end)
            }
            // One fence does for both.
            Flush::Written(Written { relaxed, words }) => match relaxed.into_iter().chain(words).reduce(hull) {
                Some((first, last)) => (start + first, start + last),
                None => (start, end),
            },
        };
        let level = match level {
            FlushLevel::OfPool => self.level,
            FlushLevel::Strongest => self.strongest,
        };
        Flushing { here: Some((extent, level)), ..Flushing::default() }
    }
}

impl Member for LocalMember {
    fn standing(&self) -> &Standing {
        match &self.held {
            Held::Native(control) => &control.standing,
            Held::BySet(standing, _) => standing,
        }
    }

    fn write(&self, write: &Write<'_>) {
        if self.state().is_connected() {
            let _ = self.keep(self.try_write(write));
        }
    }

    fn start_flush(&self, flush: Flush, level: FlushLevel) -> Flushing {
        if self.state().is_in_sync() { self.prepare_flush(flush, level) } else { Flushing::default() }
    }

    fn start_persist(&self, range: &Range<u64>, level: FlushLevel) -> Flushing {
        let (start, len_bytes) = (self.range.start + range.start, range.end - range.start);
        if self.state().is_in_sync() {
            // A flush of what was written leaves this out: those who write do it themselves.
            let _ = self.keep(self.memory.write_back(start, len_bytes));
        }
        let mut written = Written::default();
        written.add(Atomicity::Words, (range.start, range.end));
        self.start_flush(Flush::Written(written), level)
    }

    fn is_flushed(&self, flushing: &mut Flushing, _limit: Duration) -> bool {
        let Some(((begin, end), durability)) = flushing.here.take() else { return true };
        if self.state().is_connected() {
            let promise = self.keep(self.memory.flush(durability, begin, end - begin)).ok().flatten();
            let method = Method::LocalWriteBack;
            flushing.reached[0] = promise.map(|promise| Flushed { durability, method, promise });
        }
        true
    }

    fn finish_flush(&self, flushing: &mut Flushing) -> Option<ReplicaReceipt> {
        self.is_flushed(flushing, Duration::ZERO);
        let receipt =
            ReplicaReceipt::of(Arc::clone(&self.standing().place), flushing.reached, self.standing().domain());
        receipt.filter(|_| self.state().is_in_sync())
    }

    fn start_flush_everything(&self, level: FlushLevel) -> Flushing {
        self.prepare_flush(Flush::Everything, level)
    }

    fn has_flushed(&self, flushing: &mut Flushing, _limit: Option<Duration>) -> bool {
        self.is_flushed(flushing, Duration::ZERO);
        self.state().is_connected() && flushing.reached[0].is_some()
    }

    fn shares_flushes(&self) -> bool {
        let promise = self.memory.promise(self.level);
        self.control().is_some() && promise.is_some_and(|promise| promise.mechanism == Mechanism::FileSync)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        if !self.state().is_in_sync() {
            return Err(self.standing().why_not_read());
        }
        match self.memory.read(self.range.start + offset, into) {
            // All else of it can be read.
            Err(MemError::Damaged { offset, .. }) => {
                Err(Arc::new(ReplicaError::Damaged { offset: offset.saturating_sub(self.range.start) }))
            }
            read => self.keep(read),
        }
    }

    fn strongest(&self) -> Durability {
        self.strongest
    }

    fn contents(&self) -> Option<Box<dyn Contents + '_>> {
        match &self.held {
            Held::Native(control) => Some(Box::new(MemberContents::new(self, control))),
            Held::BySet(_, memory) => Some(Box::new(Arc::clone(memory))),
        }
    }

    fn memory(&self) -> Option<&Arc<Memory>> {
        match &self.held {
            Held::Native(_) => None,
            Held::BySet(_, memory) => Some(memory),
        }
    }

    fn control(&self) -> Option<&Control> {
        match &self.held {
            Held::Native(control) => Some(control),
            Held::BySet(..) => None,
        }
    }

    fn close(&self) -> Result<(), Arc<ReplicaError>> {
        match &self.held {
            Held::Native(control) => control.ask_for(&Request::Close { in_order: true }, &Reply::Closed),
            // Its header is written when all of the set is closed.
            Held::BySet(standing, _) => standing.failure().map_or(Ok(()), |failure| Err(Arc::clone(failure))),
        }
    }
}

fn copy(from: &dyn Medium, offset: u64, to: &dyn Medium, to_offset: u64, len_bytes: u64) -> Result<(), MemError> {
    let mut chunk = vec![0; len_bytes.min(COPY_BYTES) as usize];
    let mut done = 0;
    while done < len_bytes {
        let part = (len_bytes - done).min(chunk.len() as u64) as usize;
        from.read(offset + done, &mut chunk[..part])?;
        to.store(to_offset + done, &chunk[..part])?;
        done += part as u64;
    }
    Ok(())
}
