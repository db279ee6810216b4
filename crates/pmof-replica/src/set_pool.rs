//! A pool kept on all replicas that a pool set file names, local and remote, written in parallel.

use std::sync::Arc;

use pmof_access::{Medium as _, Memory};
use pmof_mem::{Declaration, MemError};
use pmof_pool::{
    Access, Attributes, HEADER_LEN_BYTES, LocalReplica, LocalSet, NewSet, PoolSet, PoolSetError, RemoteSpec,
    ReplicaSpec, digests_of,
};

use crate::{
    Atomicity, Draining, NameError, OpenFor, RemotePool, RemotePoolError, RemotePoolOptions, SetName, SshHostError,
    TargetUrl,
};

/// Blocks that are compared: small enough that little is copied for a changed byte, large enough that digests are few.
pub const COMPARED_BLOCK_BYTES: u64 = 64 << 10;

/// Bytes compared between two looks at what was found: what one request of digests covers.
const COMPARED_WINDOW_BYTES: u64 = 4 << 20;

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
    /// Nothing declared; replicas that differ are brought up to date.
    fn default() -> Self {
        Self { remote: RemotePoolOptions::default(), declaration: None, differing: Differing::Copy }
    }
}

/// What is done with replicas whose bytes differ from those of the first one, which has every write that any has. All are read whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differing {
    /// The blocks that differ are copied from the first replica.
    Copy,
    /// The pool is not opened.
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
    /// The host that the set's file names.
    #[error("replica {replica}: {source}")]
    Node {
        /// Which, from 0.
        replica: usize,
        /// The rule broken.
        source: SshHostError,
    },
    /// The set that the set's file names.
    #[error("replica {replica}: {source}")]
    Name {
        /// Which, from 0.
        replica: usize,
        /// The rule broken.
        source: NameError,
    },
    /// A remote replica is not the one that belongs there.
    #[error(
        "replica {replica} says another {what} than the set's other replicas: it is of another pool or place, or was left behind; sync it (pmof pool sync)"
    )]
    Differs {
        /// Which, from 0.
        replica: usize,
        /// What is not as it should be.
        what: &'static str,
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
}

/// Where a remote replica is.
///
/// # Errors
/// [`SetPoolError::Node`], [`SetPoolError::Name`].
pub fn remote_place(replica: usize, spec: &RemoteSpec) -> Result<(TargetUrl, SetName), SetPoolError> {
    let host = spec.node.parse().map_err(|source| SetPoolError::Node { replica, source })?;
    let set = SetName::new(spec.set.to_string_lossy()).map_err(|source| SetPoolError::Name { replica, source })?;
    Ok((TargetUrl::Ssh(host), set))
}

impl SetPool {
    /// Makes the pool on all replicas of `set`, all in parallel, and opens it. On an error nothing is left, as far as it can be
    /// reached.
    pub fn create(set: &PoolSet, new: &NewSet, options: &SetPoolOptions) -> Result<Self, SetPoolError> {
        let plan = new.plan(set)?;
        let local = LocalSet::create(set, new, &plan)?;
        let size_bytes = local.len_bytes();
        let made = each_remote(set, |replica, url, name| {
            let attributes = plan.get(replica).copied();
            RemotePool::create(url, name, size_bytes, attributes.as_ref(), &options.remote)
        });
        let failed = made.iter().position(Result::is_err);
        let pool = match failed {
            None => Self::assemble(local, made.into_iter().flatten().collect(), size_bytes),
            Some(at) => {
                drop(local);
                undo(set, options, made, at)
            }
        }?;
        // Remote parts are zero; a new pool is not.
        pool.make_same(Differing::Copy)?;
        Ok(pool)
    }

    /// Opens all replicas of `set`, the remote ones in parallel, and checks that they are of one pool and hold the same.
    pub fn open(set: &PoolSet, options: &SetPoolOptions) -> Result<Self, SetPoolError> {
        let local = LocalSet::open(set, Access::ReadWrite, options.declaration)?;
        let size_bytes = local.len_bytes();
        let remotes =
            each_remote(set, |_, url, name| RemotePool::open(url, name, size_bytes, OpenFor::Write, &options.remote));
        let remotes = remotes.into_iter().collect::<Result<Vec<_>, _>>()?;
        let expected = ring(&local, &remotes);
        for (replica, (_, found)) in &remotes {
            check_attributes(*replica, &expected, found.as_ref())?;
        }
        let remotes = remotes.into_iter().map(|(replica, (remote, _))| (replica, remote)).collect();
        let mut pool = Self::assemble(local, remotes, size_bytes)?;
        pool.resynced_bytes = pool.make_same(options.differing)?;
        Ok(pool)
    }

    /// Bytes that were copied at opening to replicas that differed.
    pub fn resynced_bytes(&self) -> u64 {
        self.resynced_bytes
    }

    /// Compares all replicas with the first, at once, and does with those that differ what is to be done; gives the bytes copied.
    fn make_same(&self, differing: Differing) -> Result<u64, SetPoolError> {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (replica, remote) in &self.remotes {
                threads.push(scope.spawn(|| match differing {
                    Differing::Copy => copy_differences(&self.master, remote, *replica, |_| {}),
                    Differing::Refuse => match differences(&self.master, remote, *replica, |_| {})?.first() {
                        Some(_) => Err(SetPoolError::Differs { replica: *replica, what: "bytes" }),
                        None => Ok(0),
                    },
                }));
            }
            for (replica, local) in self.locals().skip(1) {
                threads.push(scope.spawn(move || {
                    let made = make_local_same(&self.master, &local.memory(), self.size_bytes, differing);
                    match made.map_err(|source| SetPoolError::Memory { replica, source })? {
                        Some(copied) => Ok(copied),
                        None => Err(SetPoolError::Differs { replica, what: "bytes" }),
                    }
                }));
            }
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).sum()
        })
    }

    fn assemble(local: LocalSet, mut remotes: Vec<(usize, RemotePool)>, size_bytes: u64) -> Result<Self, SetPoolError> {
        let master = local.replicas().first().and_then(Option::as_ref).map(LocalReplica::memory);
        let master = master.ok_or(SetPoolError::NoMaster)?;
        for (replica, remote) in &mut remotes {
            let replica = *replica;
            let used = remote.use_memory(Arc::clone(&master) as _);
            used.map_err(|source| SetPoolError::Remote { replica, source })?;
        }
        Ok(Self { local, master, remotes, size_bytes, resynced_bytes: 0 })
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
        let (url, name) = remote_place(replica, spec)?;
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

/// Removes what was made of a set of which one replica failed; gives that failure.
fn undo(
    set: &PoolSet,
    options: &SetPoolOptions,
    made: Vec<Result<(usize, RemotePool), SetPoolError>>,
    failed: usize,
) -> Result<SetPool, SetPoolError> {
    for spec in set.replicas.iter().filter_map(ReplicaSpec::local) {
        // The failure that led here is the one to report.
        let _ = pmof_pool::remove(spec, true);
    }
    let mut failure = None;
    for (at, made) in made.into_iter().enumerate() {
        match made {
            Ok((replica, remote)) => {
                drop(remote);
                if let Some(ReplicaSpec::Remote(spec)) = set.replicas.get(replica)
                    && let Ok((url, name)) = remote_place(replica, spec)
                {
                    let _ = RemotePool::remove(&url, &name, true, false, &options.remote);
                }
            }
            Err(error) if at == failed => failure = Some(error),
            Err(_) => {}
        }
    }
    Err(failure.unwrap_or(SetPoolError::NoMaster))
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

/// Whether a remote replica is the one that belongs at its place of the ring.
fn check_attributes(
    replica: usize,
    ring: &[Option<Attributes>],
    found: Option<&Attributes>,
) -> Result<(), SetPoolError> {
    let differs = |what| Err(SetPoolError::Differs { replica, what });
    let Some(found) = found else { return differs("use of headers") };
    let count = ring.len();
    let (first, next, previous) = (ring[0], ring[(replica + 1) % count], ring[(replica + count - 1) % count]);
    let is_of = |other: Option<Attributes>, uuid: [u8; 16]| other.is_none_or(|other| other.uuid == uuid);
    let Some(first) = first else { return Err(SetPoolError::NoMaster) };
    if found.poolset_uuid != first.poolset_uuid {
        return differs("pool set UUID");
    }
    if (found.signature, found.major, found.features()) != (first.signature, first.major, first.features()) {
        return differs("kind, version or features");
    }
    if !is_of(next, found.next_uuid) || !is_of(previous, found.prev_uuid) {
        return differs("neighbour");
    }
    Ok(())
}

/// Copies the blocks behind the header in which `to` differs, durably; gives how many bytes were. `None`: they differ and are to be
/// refused.
fn make_local_same(from: &Memory, to: &Memory, size_bytes: u64, differing: Differing) -> Result<Option<u64>, MemError> {
    let (mut ours, mut theirs) = (vec![0; COMPARED_BLOCK_BYTES as usize], vec![0; COMPARED_BLOCK_BYTES as usize]);
    let (mut at, mut copied) = (HEADER_LEN_BYTES as u64, 0);
    while at < size_bytes {
        let len_bytes = COMPARED_BLOCK_BYTES.min(size_bytes - at);
        let (ours, theirs) = (&mut ours[..len_bytes as usize], &mut theirs[..len_bytes as usize]);
        from.read(at, ours)?;
        to.read(at, theirs)?;
        if ours != theirs {
            if differing == Differing::Refuse {
                return Ok(None);
            }
            to.store(at, ours)?;
            to.write_back(at, len_bytes)?;
            copied += len_bytes;
        }
        at += len_bytes;
    }
    to.fence()?;
    Ok(Some(copied))
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

/// Ranges of blocks in which a remote replica differs from `master`, behind the headers, in order. Both sides compute digests, nothing
/// else goes over the network. `progress` is told how many bytes were compared.
///
/// # Errors
/// Those of either side.
pub fn differences(
    master: &Memory,
    remote: &RemotePool,
    replica: usize,
    mut progress: impl FnMut(u64),
) -> Result<Vec<(u64, u64)>, SetPoolError> {
    let mut found = Vec::new();
    let end = master.len_bytes().min(remote.len_bytes());
    let mut at = remote.header_bytes();
    while at < end {
        let len_bytes = COMPARED_WINDOW_BYTES.min(end - at);
        let theirs = remote.digests(at, len_bytes, COMPARED_BLOCK_BYTES);
        let theirs = theirs.map_err(|source| SetPoolError::Remote { replica, source })?;
        let ours = digests_of(master, at, len_bytes, COMPARED_BLOCK_BYTES);
        let ours = ours.map_err(|source| SetPoolError::Memory { replica: 0, source })?;
        for (index, _) in ours.iter().zip(&theirs).enumerate().filter(|(_, (ours, theirs))| ours != theirs) {
            let begin = at + index as u64 * COMPARED_BLOCK_BYTES;
            found.push((begin, COMPARED_BLOCK_BYTES.min(at + len_bytes - begin)));
        }
        at += len_bytes;
        progress(len_bytes);
    }
    Ok(found)
}

/// Copies the blocks of `master` in which a remote replica differs, and makes them durable there; gives how many bytes were copied.
/// What was copied before a failure need not be copied again.
///
/// # Errors
/// Those of either side.
pub fn copy_differences(
    master: &Arc<Memory>,
    remote: &RemotePool,
    replica: usize,
    progress: impl FnMut(u64),
) -> Result<u64, SetPoolError> {
    /// The lane that copies; nobody else uses the pool.
    const LANE: u32 = 0;
    let mut copied = 0;
    let mut block = vec![0; COMPARED_BLOCK_BYTES as usize];
    let failed = |source| SetPoolError::Remote { replica, source };
    for (offset, len_bytes) in differences(master, remote, replica, progress)? {
        let block = &mut block[..len_bytes as usize];
        master.read(offset, block).map_err(|source| SetPoolError::Memory { replica: 0, source })?;
        remote.flush_bytes(LANE, offset, block, Atomicity::Relaxed).map_err(failed)?;
        copied += len_bytes;
    }
    remote.drain(LANE).map_err(failed)?;
    Ok(copied)
}
