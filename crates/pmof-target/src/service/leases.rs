//! Which connection has which pool open, so that another one can take it over.

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::AtomicBool},
    time::Duration,
};

use pmof_access::{Connection, PeerProcess, Region};
use pmof_control::{OpenFor, PoolName, WriterStatus};
use pmof_locks::{Mutex, MutexGuard};

use crate::{OpenPool, events::Client};

/// A pool that a connection has open, until it is closed, its session ends, or another one takes it over.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) name: PoolName,
    pub(super) access: OpenFor,
    /// It is the pool of that name; one that gets the name when it is closed is not.
    is_named: bool,
    /// Who has it, for people.
    pub(super) holder: String,
    pub(super) connection: Arc<Connection>,
    /// Of a writer: the process at the other end, which may have the memory mapped.
    pub(super) process: Option<PeerProcess>,
    held: Mutex<Option<Held>>,
    /// What a writer has told of its members last.
    pub(super) told: Mutex<Option<WriterStatus>>,
    /// The file has lost its name to another process: no writer is lost when this ends.
    pub(super) has_lost_file: AtomicBool,
}

/// The registration comes before the pool, so that no peer can reach the memory when its lock is released.
#[derive(Debug)]
pub(super) struct Held {
    /// `None` once it was fenced.
    pub(super) region: Option<Region>,
    pub(super) pool: OpenPool,
}

impl Lease {
    pub(super) fn new(connection: &Arc<Connection>, holder: String, region: Region, pool: OpenPool) -> Arc<Self> {
        Arc::new(Self {
            name: pool.name().clone(),
            access: pool.access(),
            is_named: pool.is_published(),
            holder,
            connection: Arc::clone(connection),
            process: if pool.access() == OpenFor::Write { connection.peer_process() } else { None },
            held: Mutex::new(Some(Held { region: Some(region), pool })),
            told: Mutex::default(),
            has_lost_file: AtomicBool::new(false),
        })
    }

    /// Who has it, for the log.
    pub(super) fn client(&self) -> Client {
        Client::of(&self.connection, self.process.as_ref(), self.holder.clone())
    }

    /// What it holds; `None` where it was closed or taken over. Waits while a request of its connection is carried out on it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock()
    }

    /// The same without waiting.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Held>>> {
        self.held.try_lock()
    }

    /// How long nothing was heard of the holder; for ever where its connection or its process has ended.
    pub(super) fn silent_for(&self) -> Duration {
        let has_ended = !self.connection.is_established() || self.process.as_ref().is_some_and(PeerProcess::has_ended);
        if has_ended { Duration::MAX } else { self.connection.silent_for() }
    }

    /// Whether the process that got the memory to be mapped lives, so that it may still change it.
    pub(super) fn may_store(&self) -> bool {
        self.process.as_ref().is_none_or(|process| !process.has_ended())
    }
}

/// All leases of a target's pools.
#[derive(Debug, Default)]
pub(super) struct Leases {
    live: Mutex<Vec<Weak<Lease>>>,
    /// Those whose holder was fenced, and whose pool could not be handed over: it may still store to the file, so that stays locked until it is
    /// handed over, or that process ends.
    stranded: Mutex<HashMap<PoolName, Arc<Lease>>>,
}

impl Leases {
    pub(super) fn add(&self, lease: &Arc<Lease>) {
        let mut live = self.live.lock();
        live.retain(|lease| lease.strong_count() > 0);
        live.push(Arc::downgrade(lease));
    }

    /// Who has the pool open for writing.
    pub(super) fn writer_of(&self, name: &PoolName) -> Option<Arc<Lease>> {
        self.release_stranded();
        let stranded = self.stranded.lock().get(name).cloned();
        let is_writer = |lease: &Lease| lease.access == OpenFor::Write && lease.is_named && lease.name == *name;
        stranded.or_else(|| self.find(is_writer).into_iter().next())
    }

    /// What the writers of pools have told of their members last.
    pub(super) fn told(&self) -> HashMap<PoolName, WriterStatus> {
        let writers = self.find(|lease| lease.access == OpenFor::Write && lease.is_named);
        writers.into_iter().filter_map(|lease| Some((lease.name.clone(), lease.told.lock().clone()?))).collect()
    }

    /// Ends all that have the pool open for reading, since its file is about to be cut.
    pub(super) fn end_readers(&self, name: &PoolName) {
        for reader in self.find(|lease| lease.access == OpenFor::Read && lease.name == *name) {
            reader.connection.fence();
            if let Some(Held { region: Some(region), .. }) = reader.lock().take() {
                region.fence();
            }
        }
    }

    /// Keeps the pool of a lease from everybody but those who take it over.
    pub(super) fn strand(&self, lease: &Arc<Lease>) {
        self.stranded.lock().insert(lease.name.clone(), Arc::clone(lease));
    }

    pub(super) fn no_longer_stranded(&self, lease: &Lease) {
        self.stranded.lock().remove(&lease.name);
    }

    /// Lets go of pools that no former holder has mapped any more.
    pub(super) fn release_stranded(&self) {
        let is_mapped = |held: &Held, lease: &Lease| held.pool.is_mapped_elsewhere(|| lease.may_store());
        // One that is locked is being taken over.
        let may_store = |lease: &Lease| {
            lease.try_lock().is_none_or(|held| held.as_ref().is_some_and(|held| is_mapped(held, lease)))
        };
        self.stranded.lock().retain(|_, lease| may_store(lease));
    }

    fn find(&self, is_wanted: impl Fn(&Lease) -> bool) -> Vec<Arc<Lease>> {
        let found: Vec<_> =
            self.live.lock().iter().filter_map(Weak::upgrade).filter(|lease| is_wanted(lease)).collect();
        // Of leases that are on their way out another may have the name by now.
        found.into_iter().filter(|lease| lease.try_lock().is_none_or(|held| held.is_some())).collect()
    }
}
