//! Performs what the engine has a target do, on files and devices.

use std::sync::Arc;

use pmof_control::{DATA_OFFSET, FailureDomain, PoolName, Reply, Request};
use pmof_mem::{Durability, Medium, MemError, Memory};

use super::{OpenPool, OpenTerms, PoolStore, StoreError, Unpublished, check_level, settle, state::perform};
use crate::engine::{Driver, Failure, Head, HeadReading, Machine, Output, Refusal, ShippedRules, run};

/// The strongest level that a medium reaches.
fn strongest(medium: &dyn Medium) -> Option<Durability> {
    Durability::ALL.into_iter().rfind(|level| medium.promise(*level).is_some())
}

/// A file or a device that is being opened.
pub(super) struct OnFile<'s> {
    pub(super) store: &'s PoolStore,
    pub(super) name: &'s PoolName,
    pub(super) memory: Arc<Memory>,
    pub(super) terms: OpenTerms,
    pub(super) end_readers: &'s dyn Fn(),
}

impl Driver<Output, Vec<u8>> for OnFile<'_> {
    type Error = StoreError;

    // Outside of all locks: it reads and writes as much as the caches hold.
    fn perform(&mut self, output: Output) -> Result<Vec<u8>, StoreError> {
        let (store, name, memory) = (self.store, self.name, &self.memory);
        let is_file = store.device(name).is_none();
        let performed = match output {
            Output::CheckLevel => return check_level(name, memory, self.terms.require).map(|()| Vec::new()),
            Output::LeaveToFormerWriters if is_file => {
                self.memory = store.leave_to_orphans(name, Arc::clone(memory), self.end_readers)?;
                Ok(())
            }
            // The process that renamed the file may have died before it made the name durable.
            Output::SyncName if is_file => return store.root.sync().map(|()| Vec::new()),
            // What the cache shows of the state may never have reached the disk.
            Output::SettleHead => memory.settle_range(0, DATA_OFFSET.min(memory.len_bytes())).map(drop),
            Output::SettleData(ranges) => settle::settle(memory, &ranges),
            Output::SettleForReader if store.is_being_written(name, memory)? => Ok(()),
            Output::SettleForReader => match memory.settle() {
                // Somebody else maps it, so that its pages cannot be dropped: a reader sees what a reader beside a writer does.
                Err(MemError::Unverified { .. }) => Ok(()),
                settled => settled.map(drop),
            },
            output => return perform(memory.as_ref(), &output).map_err(|error| store.memory_error(name, error)),
        };
        performed.map(|()| Vec::new()).map_err(|error| store.memory_error(name, error))
    }
}

/// A pool that is open. Without a store it counts as one that has its name.
struct OnPool<'p> {
    store: Option<&'p PoolStore>,
    name: &'p PoolName,
    memory: &'p Arc<Memory>,
    unpublished: &'p mut Option<Unpublished>,
    holder: String,
}

impl Driver<Output, Vec<u8>> for OnPool<'_> {
    type Error = StoreError;

    fn perform(&mut self, output: Output) -> Result<Vec<u8>, StoreError> {
        match (output, self.store) {
            (Output::CheckName, Some(store)) if self.unpublished.is_none() => {
                store.check_file_named(self.name, self.memory)?;
            }
            (Output::Publish, Some(store)) => {
                let holder = std::mem::take(&mut self.holder);
                store.publish_memory(self.name, self.memory, self.unpublished.take(), holder)?;
            }
            (output, _) => {
                let failed = |source| StoreError::Memory { name: self.name.clone(), source };
                return perform(self.memory.as_ref(), &output).map_err(failed);
            }
        }
        Ok(Vec::new())
    }
}

impl PoolStore {
    /// Carries out a request about what an open pool keeps beside its data, or a close. `holder`: of a pool that gets its name when it is closed.
    pub(crate) fn serve(&self, pool: &mut OpenPool, request: Request, holder: String) -> Result<Reply, StoreError> {
        pool.served(Some(self), request, holder)
    }

    /// What the head of a file says.
    pub(super) fn head(&self, name: &PoolName, memory: &Memory) -> Result<Head, StoreError> {
        run_on(name, HeadReading::new(ShippedRules), &mut OnMemory { store: self, name, memory })
    }
}

impl OpenPool {
    /// What tells its initiator that it is open. `domain`: of this target.
    pub(crate) fn told(&self, descriptor: Vec<u8>, domain: Option<FailureDomain>) -> Reply {
        // A map that cannot be read is asked for, and the error is the answer to that.
        let map = self.replica.map().and_then(|output| perform(self.memory.as_ref(), &output).ok());
        self.replica.told(descriptor, domain, map.as_deref())
    }

    pub(super) fn served(
        &mut self,
        store: Option<&PoolStore>,
        request: Request,
        holder: String,
    ) -> Result<Reply, StoreError> {
        let Self { name, replica, memory, unpublished } = self;
        let mut driver = OnPool { store, name, memory, unpublished, holder };
        if let Request::Pages(request) = request {
            return run_on(name, replica.serve_pages(request), &mut driver);
        }
        let serving = replica.serve(request, strongest(memory.as_ref()));
        run_on(name, serving, &mut driver)
    }
}

/// A file that is looked at only.
struct OnMemory<'m> {
    store: &'m PoolStore,
    name: &'m PoolName,
    memory: &'m Memory,
}

impl Driver<Output, Vec<u8>> for OnMemory<'_> {
    type Error = StoreError;

    fn perform(&mut self, output: Output) -> Result<Vec<u8>, StoreError> {
        perform(self.memory, &output).map_err(|error| self.store.memory_error(self.name, error))
    }
}

/// Runs a machine on the pool of this name.
pub(super) fn run_on<M: Machine>(
    name: &PoolName,
    machine: M,
    driver: &mut impl Driver<M::Output, M::Input, Error = StoreError>,
) -> Result<M::Outcome, StoreError> {
    run(machine, driver).map_err(|failure| match failure {
        Failure::Refused(refusal) => StoreError::of_refusal(name, refusal),
        Failure::Failed(error) => error,
    })
}

impl StoreError {
    /// What the engine's refusal is of the pool of this name.
    pub fn of_refusal(name: &PoolName, refusal: Refusal) -> Self {
        let name = name.clone();
        match refusal {
            Refusal::ReadOnly => Self::ReadOnly { name },
            Refusal::NotTheEpoch { epoch, found } => Self::NotTheEpoch { name, epoch, found },
            Refusal::Roster(source) => Self::Roster { name, source },
            Refusal::Header(source) => Self::Header { name, source },
            Refusal::OldFormat(found) => Self::OldFormat { name, found },
            Refusal::NoDigests => Self::NoDigests { name },
            Refusal::NoSuchPage { page, count } => Self::NoSuchPage { name, page, count },
            Refusal::NotItsDigest { page } => Self::NotItsDigest { name, page },
        }
    }
}
