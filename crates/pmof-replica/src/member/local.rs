//! A replica on this machine.

use std::sync::Arc;

use pmof_access::{Durability, Flushed, Medium, Memory, Method};
use pmof_mem::MemError;
use pmof_pool::Contents;

use super::{Flush, FlushLevel, Flushing, Member, Source, Standing, Write, Written, hull};
use crate::{ReplicaError, ReplicaReceipt};

/// Bytes copied at a time from the mirror.
const COPY_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) struct LocalMember {
    standing: Standing,
    memory: Arc<Memory>,
    level: Durability,
    strongest: Durability,
    /// The memory that the program writes to; `None` where that is this replica's.
    mirror: Option<Arc<dyn Medium>>,
}

impl LocalMember {
    /// `level`: which flushes must reach; `strongest`: what the memory gives.
    pub(crate) fn new(
        standing: Standing,
        memory: Arc<Memory>,
        (level, strongest): (Durability, Durability),
        mirror: Option<Arc<dyn Medium>>,
    ) -> Self {
        Self { standing, memory, level, strongest, mirror }
    }

    fn try_write(&self, write: &Write<'_>) -> Result<(), MemError> {
        let Write { offset, len_bytes, .. } = *write;
        match (write.source, &self.mirror) {
            (Source::Bytes(bytes), _) => self.memory.store(offset, bytes)?,
            (Source::Atomic(value), _) => self.memory.atomic_store(offset, value)?,
            (Source::Mirror, None) => {}
            (Source::Mirror, Some(mirror)) => copy(&**mirror, &self.memory, offset, len_bytes)?,
        }
        self.memory.write_back(offset, len_bytes)
    }

    fn keep<T>(&self, done: Result<T, MemError>) -> Result<T, Arc<ReplicaError>> {
        done.map_err(|error| self.standing.fail(error.into()))
    }
}

impl Member for LocalMember {
    fn standing(&self) -> &Standing {
        &self.standing
    }

    fn write(&self, write: &Write<'_>) {
        if self.standing.failure().is_none() {
            let _ = self.keep(self.try_write(write));
        }
    }

    fn start_flush(&self, flush: Flush, level: FlushLevel) -> Flushing {
        let all = (0, self.memory.len_bytes());
        let extent = match flush {
            Flush::Everything => {
                if self.standing.failure().is_none() {
                    let _ = self.keep(self.memory.write_back(all.0, all.1));
                }
                all
            }
            // One fence does for both.
            Flush::Written(Written { relaxed, words }) => relaxed.into_iter().chain(words).reduce(hull).unwrap_or(all),
        };
        let level = match level {
            FlushLevel::OfPool => self.level,
            FlushLevel::Strongest => self.strongest,
        };
        Flushing { here: Some((extent, level)), ..Flushing::default() }
    }

    fn is_flushed(&self, flushing: &mut Flushing) -> bool {
        let Some(((begin, end), durability)) = flushing.here.take() else { return true };
        if self.standing.failure().is_none() {
            let promise = self.keep(self.memory.flush(durability, begin, end - begin)).ok().flatten();
            let method = Method::LocalWriteBack;
            flushing.reached[0] = promise.map(|promise| Flushed { durability, method, promise });
        }
        true
    }

    fn finish_flush(&self, flushing: &mut Flushing) -> Option<ReplicaReceipt> {
        self.is_flushed(flushing);
        ReplicaReceipt::of(Arc::clone(&self.standing.place), flushing.reached)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Arc<ReplicaError>> {
        match self.standing.failure() {
            Some(failure) => Err(Arc::clone(failure)),
            None => self.keep(self.memory.read(offset, into)),
        }
    }

    fn strongest(&self) -> Durability {
        self.strongest
    }

    fn contents(&self) -> Box<dyn Contents + '_> {
        Box::new(Arc::clone(&self.memory))
    }

    fn memory(&self) -> Option<&Arc<Memory>> {
        Some(&self.memory)
    }

    fn close(&self) -> Result<(), Arc<ReplicaError>> {
        // Its header is written when all of the set is closed.
        self.standing.failure().map_or(Ok(()), |failure| Err(Arc::clone(failure)))
    }
}

fn copy(from: &dyn Medium, to: &Memory, offset: u64, len_bytes: u64) -> Result<(), MemError> {
    let mut chunk = vec![0; len_bytes.min(COPY_BYTES) as usize];
    let (mut at, end) = (offset, offset + len_bytes);
    while at < end {
        let part = (end - at).min(chunk.len() as u64) as usize;
        from.read(at, &mut chunk[..part])?;
        to.store(at, &chunk[..part])?;
        at += part as u64;
    }
    Ok(())
}
