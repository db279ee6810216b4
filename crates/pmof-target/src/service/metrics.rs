//! What a target counts, and how it shows it.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use pmof_access::{DurationCounters, DurationCounts, OperationCounts};
use pmof_control::{PoolRefusal, TargetStatus};
use pmof_locks::Mutex;

use super::{
    Observer, Shared,
    health::{PoolCounts, PoolHealth, look_at_pools},
    session::Host as _,
};
use crate::events::REQUESTS;

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
    /// Pools whose file another process removed or replaced while they were open for writing.
    pub files_lost: u64,
    /// Requests on pools, by their name.
    pub requests: BTreeMap<&'static str, RequestCounts>,
    /// Reads, writes and flushes that came to the target. Those of RDMA devices and of initiators that share the memory do not.
    pub operations: OperationCounts,
    /// How long media took that flushes had to wait for.
    pub waits: DurationCounts,
    /// Pools, as they are now.
    pub pools: PoolCounts,
    /// The health of each pool, the worst first: pools whose next loss loses bytes, pools that lack a member, pools with a writer, then the rest.
    pub health: Vec<PoolHealth>,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RequestCounts {
    /// How long they took. Its failures are those that were refused.
    pub durations: DurationCounts,
    /// Refused requests by reason; every reason is listed from the start.
    pub refused: Vec<(PoolRefusal, u64)>,
}

/// What the threads of a service count.
#[derive(Debug)]
pub(super) struct Counters {
    started: SystemTime,
    accepted: Mutex<BTreeMap<&'static str, u64>>,
    turned_away: Mutex<BTreeMap<&'static str, u64>>,
    left_open: AtomicU64,
    files_lost: AtomicU64,
    requests: Mutex<BTreeMap<&'static str, RequestCounters>>,
}

/// Why connections are turned away.
const TURNED_AWAY: [&str; 4] = ["foreign_user", "memory_budget", "session_used", "too_many"];

#[derive(Debug)]
struct RequestCounters {
    durations: DurationCounters,
    refused: Vec<(PoolRefusal, u64)>,
}

impl Default for RequestCounters {
    fn default() -> Self {
        Self { durations: DurationCounters::default(), refused: PoolRefusal::ALL.map(|reason| (reason, 0)).to_vec() }
    }
}

impl Counters {
    pub(super) fn new() -> Self {
        // Who counts increases has to see the count before the first one.
        let requests = REQUESTS.iter().map(|request| (*request, RequestCounters::default())).collect();
        let turned_away = TURNED_AWAY.iter().map(|reason| (*reason, 0)).collect();
        let (accepted, left_open, files_lost) = Default::default();
        Self {
            started: SystemTime::now(),
            accepted,
            turned_away: Mutex::new(turned_away),
            left_open,
            files_lost,
            requests: Mutex::new(requests),
        }
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

    pub(super) fn lost_file(&self) {
        self.files_lost.fetch_add(1, Relaxed);
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
        (pools, health): (PoolCounts, Vec<PoolHealth>),
    ) -> TargetMetrics {
        TargetMetrics {
            started: self.started,
            status,
            accepted: self.accepted.lock().clone(),
            turned_away: self.turned_away.lock().clone(),
            left_open: self.left_open.load(Relaxed),
            files_lost: self.files_lost.load(Relaxed),
            requests: self.requests(),
            operations,
            waits,
            pools,
            health,
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

impl Observer {
    /// What the target has done until now. It looks at the header, the state and the members of each pool.
    pub fn metrics(&self) -> TargetMetrics {
        let Shared { counters, workers, flushes, stores, scrubs, .. } = &*self.shared;
        let mut operations = OperationCounts::default();
        for worker in workers {
            worker.operations.add_to(&mut operations);
        }
        let status = self.shared.status().map_err(|refused| refused.text);
        counters.shown(status, operations, flushes.waits(), look_at_pools(&stores.pools, &stores.leases, scrubs))
    }
}
