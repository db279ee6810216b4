//! What a target counts, and how it shows it.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use pmof_access::{DurationCounters, DurationCounts, OperationCounts};
use pmof_control::{PoolRefusal, TargetStatus};

use crate::{PoolStore, StoreError};

/// How many pools are looked at for one page of their list.
const LISTED: usize = 1000;

/// What a target has done since it was started, and what it keeps now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetMetrics {
    /// When it was started.
    pub started: SystemTime,
    /// What `pmof status` says too; the reason where the root cannot be looked at.
    pub status: Result<TargetStatus, String>,
    /// Connections taken, by the name of their transport.
    pub accepted: BTreeMap<&'static str, u64>,
    /// Connections turned away, by the reason: `too_many`, `memory_budget`, `foreign_user` or `session_used`. One that breaks off meanwhile is not
    /// counted.
    pub turned_away: BTreeMap<&'static str, u64>,
    /// Connections that ended with a pool open.
    pub left_open: u64,
    /// Requests on pools, by their name.
    pub requests: BTreeMap<&'static str, RequestCounts>,
    /// Reads, writes and flushes that came to the target. Those of RDMA devices and of initiators that share the memory do not.
    pub operations: OperationCounts,
    /// How long media took that flushes had to wait for.
    pub waits: DurationCounts,
    /// Pools, as they are now.
    pub pools: PoolCounts,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RequestCounts {
    /// How long they took. Its failures are those that were refused.
    pub durations: DurationCounts,
    /// Those that were refused, by the reason.
    pub refused: Vec<(PoolRefusal, u64)>,
}

/// Pools by what they are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounts {
    /// Being written by an initiator of this target.
    pub being_written: u64,
    /// Whole, and written by nobody.
    pub idle: u64,
    /// Damaged, of another version, or unreadable.
    pub unusable: u64,
}

/// What the threads of a service count.
#[derive(Debug)]
pub(super) struct Counters {
    started: SystemTime,
    accepted: Mutex<BTreeMap<&'static str, u64>>,
    turned_away: Mutex<BTreeMap<&'static str, u64>>,
    left_open: AtomicU64,
    requests: Mutex<BTreeMap<&'static str, RequestCounters>>,
}

#[derive(Debug, Default)]
struct RequestCounters {
    durations: DurationCounters,
    refused: Vec<(PoolRefusal, u64)>,
}

impl Counters {
    pub(super) fn new() -> Self {
        let (accepted, turned_away, left_open, requests) = Default::default();
        Self { started: SystemTime::now(), accepted, turned_away, left_open, requests }
    }

    pub(super) fn accepted(&self, transport: &'static str) {
        *self.accepted.lock().entry(transport).or_default() += 1;
    }

    pub(super) fn turned_away(&self, reason: &'static str) {
        *self.turned_away.lock().entry(reason).or_default() += 1;
    }

    pub(super) fn left_open(&self) {
        self.left_open.fetch_add(1, Relaxed);
    }

    /// `refused`: the code by which it was.
    pub(super) fn answered(&self, request: &'static str, took: Duration, refused: Option<u16>) {
        let mut requests = self.requests.lock();
        let counters = requests.entry(request).or_default();
        counters.durations.add(took, refused.is_none());
        let Some(reason) = refused.map(PoolRefusal::from_code) else { return };
        match counters.refused.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => counters.refused.push((reason, 1)),
        }
    }

    /// Together with what others count.
    pub(super) fn shown(
        &self,
        status: Result<TargetStatus, String>,
        operations: OperationCounts,
        waits: DurationCounts,
        pools: PoolCounts,
    ) -> TargetMetrics {
        TargetMetrics {
            started: self.started,
            status,
            accepted: self.accepted.lock().clone(),
            turned_away: self.turned_away.lock().clone(),
            left_open: self.left_open.load(Relaxed),
            requests: self.requests(),
            operations,
            waits,
            pools,
        }
    }

    fn requests(&self) -> BTreeMap<&'static str, RequestCounts> {
        let requests = self.requests.lock();
        let counts = |counters: &RequestCounters| RequestCounts {
            durations: counters.durations.counts(),
            refused: counters.refused.clone(),
        };
        requests.iter().map(|(name, counters)| (*name, counts(counters))).collect()
    }
}

/// Pools that vanish meanwhile are not counted. Where the root cannot be read, none is: the status says so.
pub(super) fn count_pools(pools: &PoolStore) -> PoolCounts {
    let (mut counts, mut after) = (PoolCounts::default(), None);
    while let Ok(names) = pools.list(after.as_ref(), LISTED) {
        for name in &names {
            match pools.is_written(name) {
                Ok(true) => counts.being_written += 1,
                Ok(false) => counts.idle += 1,
                Err(StoreError::NotFound { .. }) => {}
                Err(_) => counts.unusable += 1,
            }
        }
        if names.len() < LISTED {
            break;
        }
        after = names.into_iter().next_back();
    }
    counts
}
