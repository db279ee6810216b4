//! A pool kept on all replicas that a pool set file names, local and remote, written in parallel.

use std::sync::Arc;

use pmof_access::{Durability, Medium as _, Memory};
use pmof_mem::{Declaration, MemError};
use pmof_pool::{
    Access, AccessError, Attributes, Comparison, ComparisonError, Contents, ContentsState, DIGEST_BLOCK_LEN_BYTES,
    EMPTY, HEADER_LEN_BYTES, LocalReplica, LocalSet, NewSet, PoolKind, PoolSet, PoolSetError, RemoteSpec, ReplicaSpec,
    data_ranges, first_misfit, memory_state, state_of,
};

use crate::{
    Atomicity, Draining, OpenFor, PlaceError, RemotePool, RemotePoolError, RemotePoolOptions, SetName, TargetUrl,
    remote_place,
};

mod removal;
mod upkeep;

pub use removal::{ReplicaRemovalError, SetRemoval, SetRemovalError};

/// Blocks that are compared: small enough that little is copied for a changed byte, large enough that digests are few.
pub const COMPARED_BLOCK_BYTES: u64 = DIGEST_BLOCK_LEN_BYTES;

/// How the replicas of a set are reached.
#[derive(Clone, Debug)]
pub struct SetPoolOptions {
    /// The remote ones.
    pub remote: RemotePoolOptions,
    /// What the operator vouches for of the local ones.
    pub declaration: Option<Declaration>,
    /// What is done at opening with replicas that differ from the first one: they may lack writes that were under way in a crash,
    /// or all since they failed.
    pub differing: Differing,
}

impl Default for SetPoolOptions {
    /// Nothing declared; replicas that differ are refused, since the format cannot tell which one is newer.
    fn default() -> Self {
        Self { remote: RemotePoolOptions::default(), declaration: None, differing: Differing::Refuse }
    }
}

/// What is done with replicas whose bytes differ from those of the first one. All are read, but for what is a hole in both, and
/// what libpmemobj keeps for itself while it runs (bytes 6688 to 8191 of its pools), which no two replicas have in common.
/// Differences in space that its heap does not use are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differing {
    /// The blocks that differ are copied from the first replica. It has every write that any has, as long as it is the one that was
    /// written last: not where it was brought back from a backup.
    Copy,
    /// The pool is not opened; `pmof pool sync` brings the replicas in line.
    Refuse,
}

/// What went wrong with a set or one of its replicas.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetPoolError {
    /// The local replicas.
    #[error(transparent)]
    Local(#[from] PoolSetError),
    /// A local replica's memory.
    #[error("replica {replica}: {source}")]
    Memory {
        /// Which, from 0.
        replica: usize,
        /// What went wrong.
        source: MemError,
    },
    /// A remote replica.
    #[error("replica {replica}: {source}")]
    Remote {
        /// Which, from 0.
        replica: usize,
        /// What went wrong.
        source: RemotePoolError,
    },
    /// What the set's file says of a remote replica.
    #[error("replica {replica}: {source}")]
    Place {
        /// Which, from 0.
        replica: usize,
        /// The rule broken.
        source: PlaceError,
    },
    /// What a replica answers cannot be.
    #[error("replica {replica} could not be compared with the first: {source}")]
    Comparison {
        /// Which, from 0.
        replica: usize,
        /// What it answered.
        source: AccessError,
    },
    /// A local replica cannot give the durability that was required.
    #[error("replica {replica}: {source}")]
    NotDurable {
        /// Which, from 0.
        replica: usize,
        /// What it can give, and what would help.
        source: MemError,
    },
    /// A replica is not the one that belongs there, or does not hold the same.
    #[error(
        "replica {replica} has another {what} than the set's other replicas: it is of another pool or place, was left behind, or lacks what was under way in a crash; `pmof pool check` shows the difference, `pmof pool sync` mends it"
    )]
    Differs {
        /// Which, from 0.
        replica: usize,
        /// What is not as it should be.
        what: &'static str,
    },
    /// The first replica cannot be copied from.
    #[error(
        "the first replica is not copied to the others: {reason}, and replica {replica} is sound; `pmof pool sync` copies from that one"
    )]
    BadSource {
        /// What is wrong with the first one.
        reason: &'static str,
        /// One that is sound.
        replica: usize,
    },
    /// The first replica must be local.
    #[error("the pool set has no local replica: the first one must be local, and is where the program's memory is")]
    NoMaster,
    /// A range outside the pool, or in its header.
    #[error(
        "range of {len_bytes} bytes at offset {offset} lies outside the pool's data, {HEADER_LEN_BYTES} to {size_bytes}"
    )]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// Size of the pool, header included.
        size_bytes: u64,
    },
}

/// The pool of a set. The program writes to [`memory`](Self::memory), the first replica, and persists ranges of it.
#[derive(Debug)]
pub struct SetPool {
    local: LocalSet,
    master: Arc<Memory>,
    remotes: Vec<(usize, RemotePool)>,
    size_bytes: u64,
    resynced_bytes: u64,
    durability: Durability,
}

impl SetPool {
    /// Makes the pool on all replicas of `set`, all in parallel, and opens it. On an error nothing is left, as far as it can be
    /// reached.
    pub fn create(set: &PoolSet, new: &NewSet, options: &SetPoolOptions) -> Result<Self, SetPoolError> {
        let plan = new.plan(set)?;
        let local = LocalSet::create(set, new, &plan)?;
        let size_bytes = local.len_bytes();
        if let Err(error) = check_durability(&local, options) {
            return Err(undo(local, set, options, &[], error));
        }
        let made = each_remote(set, |replica, url, name| {
            let attributes = plan.get(replica).copied();
            RemotePool::create(url, name, size_bytes, attributes.as_ref(), &options.remote)
        });
        let (made, failed): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let mut made: Vec<_> = made.into_iter().flatten().collect();
        let places: Vec<_> = made.iter().map(|(replica, _)| *replica).collect();
        if let Some(error) = failed.into_iter().find_map(Result::err) {
            drop(made);
            return Err(undo(local, set, options, &places, error));
        }
        let master = match Self::master(&local, &mut made) {
            Ok(master) => master,
            Err(error) => {
                drop(made);
                return Err(undo(local, set, options, &places, error));
            }
        };
        let mut pool = Self::assemble(local, master, made, size_bytes, options);
        // Remote parts are zero, or what was there before; a new pool is neither.
        match pool.make_same(Differing::Copy) {
            Ok(_) => Ok(pool),
            Err(error) => {
                drop((pool.master, pool.remotes));
                Err(undo(pool.local, set, options, &places, error))
            }
        }
    }

    /// Opens all replicas of `set`, the remote ones in parallel, and checks that they are of one pool and hold the same.
    pub fn open(set: &PoolSet, options: &SetPoolOptions) -> Result<Self, SetPoolError> {
        let local = LocalSet::open(set, Access::ReadWrite, options.declaration)?;
        let size_bytes = local.len_bytes();
        let opened = Self::open_remotes(set, &local, options).and_then(|mut remotes| {
            let master = Self::master(&local, &mut remotes)?;
            Ok((master, remotes))
        });
        let (master, remotes) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // Closed as they were; why the pool is not opened is the failure to report.
                let _ = local.close();
                return Err(error);
            }
        };
        let mut pool = Self::assemble(local, master, remotes, size_bytes, options);
        let checked = if options.differing == Differing::Copy { pool.check_source() } else { Ok(()) };
        match checked.and_then(|()| pool.make_same(options.differing)) {
            Ok(copied) => {
                pool.resynced_bytes = copied;
                Ok(pool)
            }
            Err(error) => {
                let _ = pool.close();
                Err(error)
            }
        }
    }

    fn open_remotes(
        set: &PoolSet,
        local: &LocalSet,
        options: &SetPoolOptions,
    ) -> Result<Vec<(usize, RemotePool)>, SetPoolError> {
        check_durability(local, options)?;
        let size_bytes = local.len_bytes();
        let remotes =
            each_remote(set, |_, url, name| RemotePool::open(url, name, size_bytes, OpenFor::Write, &options.remote));
        let remotes = remotes.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some((replica, _)) = remotes.iter().find(|(_, (_, found))| found.is_none()) {
            return Err(SetPoolError::Differs { replica: *replica, what: "use of headers" });
        }
        if let Some((replica, misfit)) = first_misfit(&ring(local, &remotes)) {
            return Err(SetPoolError::Differs { replica, what: misfit.what() });
        }
        Ok(remotes.into_iter().map(|(replica, (remote, _))| (replica, remote)).collect())
    }

    /// The failure that persisted bytes survive on every replica: what was required, else what the weakest can give.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Bytes that were copied at opening to replicas that differed.
    pub fn resynced_bytes(&self) -> u64 {
        self.resynced_bytes
    }

    /// Fails where the first replica is empty or damaged, and another one is not.
    fn check_source(&mut self) -> Result<(), SetPoolError> {
        let kind = self.kind();
        let first = memory_state(kind, &self.master).map_err(|source| failure(0, source))?;
        let reason = match first {
            ContentsState::Sound => return Ok(()),
            ContentsState::Empty => EMPTY,
            ContentsState::Damaged(reason) => reason,
        };
        let sound = |replica: usize, other: Result<ContentsState, AccessError>| match other {
            Ok(ContentsState::Sound) => Err(SetPoolError::BadSource { reason, replica }),
            // A program may keep its bytes as it likes, the same way in all replicas.
            Ok(ContentsState::Damaged(_)) if first == ContentsState::Empty => {
                Err(SetPoolError::BadSource { reason, replica })
            }
            Ok(_) => Ok(()),
            Err(source) => Err(failure(replica, source)),
        };
        for (replica, local) in self.locals().skip(1) {
            sound(replica, memory_state(kind, &local.memory()))?;
        }
        for (replica, remote) in &mut self.remotes {
            let len_bytes = self.size_bytes;
            sound(*replica, state_of(kind, remote, len_bytes))?;
        }
        Ok(())
    }

    fn kind(&self) -> Option<PoolKind> {
        let first = self.local.replicas().first().and_then(Option::as_ref).and_then(LocalReplica::attributes);
        first.and_then(|first| PoolKind::of_signature(&first.signature))
    }

    /// Compares all replicas with the first, at once, and does with those that differ what is to be done; gives the bytes copied. All
    /// of every replica is durable after that: the program acts on what it reads, whoever stored it.
    fn make_same(&mut self, differing: Differing) -> Result<u64, SetPoolError> {
        make_durable(&self.master).map_err(|source| SetPoolError::Memory { replica: 0, source })?;
        let kind = self.kind();
        let comparison = &match differing {
            Differing::Copy => Comparison::of_kind(kind, self.size_bytes),
            // Where no heap is found all counts: the program may keep its bytes as it likes.
            Differing::Refuse => Comparison::of_pool(kind, &*self.master, self.size_bytes)?,
        };
        let locals = self.locals().skip(1).map(|(replica, local)| (replica, local.memory())).collect::<Vec<_>>();
        let master = &self.master;
        let make_same = |other: &mut dyn Contents| {
            let mut first = Arc::clone(master);
            match differing {
                Differing::Copy => comparison.copy(&mut first, other, &mut |_| {}).map(|copied| Some(copied.bytes)),
                Differing::Refuse => comparison.confirm(&mut first, other).map(|is_same| is_same.then_some(0)),
            }
        };
        let make_same = |replica, other: &mut dyn Contents| match make_same(other) {
            Ok(copied) => copied.ok_or(SetPoolError::Differs { replica, what: "contents" }),
            Err(ComparisonError { is_first, source }) => Err(failure(if is_first { 0 } else { replica }, source)),
        };
        std::thread::scope(|scope| {
            let remotes = self.remotes.iter_mut();
            let mut threads: Vec<_> =
                remotes.map(|(replica, remote)| scope.spawn(move || make_same(*replica, remote))).collect();
            let locals = locals.into_iter();
            threads.extend(locals.map(|(replica, mut memory)| scope.spawn(move || make_same(replica, &mut memory))));
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).sum()
        })
    }

    /// The memory of the first replica, which the remote ones are written from.
    fn master(local: &LocalSet, remotes: &mut [(usize, RemotePool)]) -> Result<Arc<Memory>, SetPoolError> {
        let master = local.replicas().first().and_then(Option::as_ref).map(LocalReplica::memory);
        let master = master.ok_or(SetPoolError::NoMaster)?;
        for (replica, remote) in remotes {
            let replica = *replica;
            let used = remote.use_memory(Arc::clone(&master) as _);
            used.map_err(|source| SetPoolError::Remote { replica, source })?;
        }
        Ok(master)
    }

    fn assemble(
        local: LocalSet,
        master: Arc<Memory>,
        remotes: Vec<(usize, RemotePool)>,
        size_bytes: u64,
        options: &SetPoolOptions,
    ) -> Self {
        let strongest = |memory: &Memory| Durability::ALL.into_iter().rfind(|level| memory.promise(*level).is_some());
        let locals = local.replicas().iter().flatten().filter_map(|replica| strongest(&replica.memory()));
        let all = locals.chain(remotes.iter().map(|(_, remote)| remote.durability()));
        let durability = options.remote.require.or_else(|| all.min()).unwrap_or(Durability::Visible);
        Self { local, master, remotes, size_bytes, resynced_bytes: 0, durability }
    }

    /// The first replica: the program reads and writes it, behind its header.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.master)
    }

    /// Bytes of the pool, header included: those of its shortest replica.
    pub fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Replicas, the first included.
    pub fn replica_count(&self) -> usize {
        self.local.replicas().len()
    }

    /// Makes a range of the first replica durable on all of them at once. `lane` is the caller's, see [`RemotePool`].
    ///
    /// # Errors
    /// The first replica that failed; the others have the range all the same, and go on being written.
    pub fn persist(&self, lane: u32, offset: u64, len_bytes: u64, atomicity: Atomicity) -> Result<(), SetPoolError> {
        let flushed = self.flush(lane, offset, len_bytes, atomicity);
        let drained = self.drain(lane);
        flushed.and(drained)
    }

    /// Starts to make a range durable on all replicas; it is after this lane's next [`drain`](Self::drain).
    ///
    /// # Errors
    /// As for [`persist`](Self::persist).
    pub fn flush(&self, lane: u32, offset: u64, len_bytes: u64, atomicity: Atomicity) -> Result<(), SetPoolError> {
        let is_inside = offset >= HEADER_LEN_BYTES as u64
            && offset.checked_add(len_bytes).is_some_and(|end| end <= self.size_bytes);
        if !is_inside {
            return Err(SetPoolError::OutOfBounds { offset, len_bytes, size_bytes: self.size_bytes });
        }
        let mut done = Ok(());
        // What takes longest begins first.
        for (replica, remote) in &self.remotes {
            let started = remote.flush(lane, offset, len_bytes, atomicity);
            done = done.and(started.map_err(|source| SetPoolError::Remote { replica: *replica, source }));
        }
        for (replica, local) in self.locals() {
            let memory = local.memory();
            let stored = if replica == 0 { Ok(()) } else { copy(&self.master, &memory, offset, len_bytes) };
            let stored = stored.and_then(|()| memory.write_back(offset, len_bytes));
            done = done.and(stored.map_err(|source| SetPoolError::Memory { replica, source }));
        }
        done
    }

    /// Returns when all that this lane flushed is durable on every replica.
    ///
    /// # Errors
    /// As for [`persist`](Self::persist).
    pub fn drain(&self, lane: u32) -> Result<(), SetPoolError> {
        let drains: Vec<_> =
            self.remotes.iter().map(|(replica, remote)| (*replica, remote.start_drain(lane))).collect();
        let mut done = Ok(());
        for (replica, local) in self.locals() {
            let fenced = local.memory().fence();
            done = done.and(fenced.map_err(|source| SetPoolError::Memory { replica, source }));
        }
        for (replica, drain) in drains {
            let drained = drain.and_then(Draining::wait);
            done = done.and(drained.map_err(|source| SetPoolError::Remote { replica, source }));
        }
        done
    }

    /// Closes all replicas in order, also where one fails; the first failure is told.
    pub fn close(self) -> Result<(), SetPoolError> {
        let Self { local, master, remotes, .. } = self;
        let mut done = Ok(());
        for (replica, remote) in remotes {
            let closed = remote.close();
            done = done.and(closed.map_err(|source| SetPoolError::Remote { replica, source }));
        }
        drop(master);
        done.and(local.close().map_err(Into::into))
    }

    fn locals(&self) -> impl Iterator<Item = (usize, &LocalReplica)> {
        self.local.replicas().iter().enumerate().filter_map(|(index, replica)| Some((index, replica.as_ref()?)))
    }
}

/// Does something with the place of each remote replica, all at once: most of it is waiting for ssh.
fn each_remote<T: Send>(
    set: &PoolSet,
    act: impl Fn(usize, &TargetUrl, &SetName) -> Result<T, RemotePoolError> + Sync,
) -> Vec<Result<(usize, T), SetPoolError>> {
    let one = |replica: usize, spec: &RemoteSpec| {
        let (url, name) = remote_place(spec).map_err(|source| SetPoolError::Place { replica, source })?;
        let done = act(replica, &url, &name).map_err(|source| SetPoolError::Remote { replica, source })?;
        Ok((replica, done))
    };
    std::thread::scope(|scope| {
        let remotes = set.replicas.iter().enumerate().filter_map(|(replica, spec)| match spec {
            ReplicaSpec::Remote(spec) => Some((replica, spec)),
            ReplicaSpec::Local(_) => None,
        });
        let threads: Vec<_> = remotes
            .map(|(replica, spec)| {
                let one = &one;
                scope.spawn(move || one(replica, spec))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Whether all local replicas give what is required; the remote ones are asked when they are opened.
fn check_durability(local: &LocalSet, options: &SetPoolOptions) -> Result<(), SetPoolError> {
    let Some(level) = options.remote.require else { return Ok(()) };
    for (replica, local) in local.replicas().iter().enumerate() {
        let Some(memory) = local.as_ref().map(LocalReplica::memory) else { continue };
        if memory.promise(level).is_none() {
            return Err(SetPoolError::NotDurable { replica, source: memory.not_durable(level) });
        }
    }
    Ok(())
}

/// Removes what was made of a set: its local replicas, and the remote ones at these places. Gives back the failure that led here.
fn undo(local: LocalSet, set: &PoolSet, options: &SetPoolOptions, made: &[usize], error: SetPoolError) -> SetPoolError {
    // The failure that led here is the one to report.
    let _ = local.discard();
    for replica in made {
        if let Some(ReplicaSpec::Remote(spec)) = set.replicas.get(*replica)
            && let Ok((url, name)) = remote_place(spec)
        {
            let _ = RemotePool::remove(&url, &name, true, false, &options.remote);
        }
    }
    error
}

/// What the header of each replica says of itself, as far as it is known.
fn ring(local: &LocalSet, remotes: &[(usize, (RemotePool, Option<Attributes>))]) -> Vec<Option<Attributes>> {
    let mut ring: Vec<_> =
        local.replicas().iter().map(|replica| replica.as_ref().and_then(LocalReplica::attributes)).collect();
    for (replica, (_, attributes)) in remotes {
        ring[*replica] = *attributes;
    }
    ring
}

/// Makes all of a local replica durable behind its header, but what is a hole.
fn make_durable(memory: &Memory) -> Result<(), MemError> {
    let (data, _) = data_ranges(memory, HEADER_LEN_BYTES as u64..memory.len_bytes(), usize::MAX)?;
    for range in data {
        memory.write_back(range.start, range.end - range.start)?;
    }
    memory.fence()
}

/// What went wrong with a replica when it was compared.
fn failure(replica: usize, source: AccessError) -> SetPoolError {
    let source = match source.downcast::<RemotePoolError>() {
        Ok(source) => return SetPoolError::Remote { replica, source: *source },
        Err(source) => source,
    };
    match source.downcast::<MemError>() {
        Ok(source) => SetPoolError::Memory { replica, source: *source },
        Err(source) => SetPoolError::Comparison { replica, source },
    }
}

fn copy(from: &Memory, to: &Memory, offset: u64, len_bytes: u64) -> Result<(), MemError> {
    let mut chunk = vec![0; len_bytes.min(64 << 10) as usize];
    let (mut at, end) = (offset, offset + len_bytes);
    while at < end {
        let part = (end - at).min(chunk.len() as u64) as usize;
        from.read(at, &mut chunk[..part])?;
        to.store(at, &chunk[..part])?;
        at += part as u64;
    }
    Ok(())
}
