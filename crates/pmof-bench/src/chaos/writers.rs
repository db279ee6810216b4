//! The writers, and how long their persists take in each phase of the run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use pmof::{Pool, causes};

use super::records::Region;
use crate::{bench::statistics::LatencyHistogram, soak::Random};

/// Faults of one run.
pub(super) const FAULT_LIMIT: u64 = 1 << 16;

/// A writer whose persist failed tries the same record again after this time.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Tries at the end of the run, when all members are in sync; then the error stays.
const LAST_TRIES: u32 = 100;

/// Errors that are kept for the report; all are counted.
const KEPT_ERRORS: usize = 5;

/// A part of the run: every fault has three, which follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// All members are in sync, before the fault of this number.
    Faultless(u64),
    /// From just before the fault until what it took away is given back.
    Fault(u64),
    /// From there until all members are in sync.
    Return(u64),
}

impl Phase {
    fn index(self) -> u64 {
        match self {
            Self::Faultless(fault) => fault * 3,
            Self::Fault(fault) => fault * 3 + 1,
            Self::Return(fault) => fault * 3 + 2,
        }
    }
}

/// The longest persist of each phase.
#[derive(Debug)]
pub(super) struct Stalls {
    phase: AtomicU64,
    longest_ns: Box<[AtomicU64]>,
}

impl Stalls {
    pub(super) fn new() -> Self {
        let longest_ns = (0..(FAULT_LIMIT + 1) * 3).map(|_| AtomicU64::new(0)).collect();
        Self { phase: AtomicU64::new(Phase::Faultless(0).index()), longest_ns }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase.index(), Ordering::SeqCst);
    }

    pub(super) fn longest(&self, phase: Phase) -> Duration {
        Duration::from_nanos(self.longest_ns[phase.index() as usize].load(Ordering::Relaxed))
    }

    /// Counts a persist where it belongs: to the phase that it began in, but one that a fault meets is the fault's.
    fn count(&self, began_in: u64, latency: Duration) {
        let is_faultless = began_in % 3 == 0;
        let phase = if is_faultless { self.phase.load(Ordering::SeqCst) } else { began_in };
        self.longest_ns[phase as usize].fetch_max(latency.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// What all writers share.
#[derive(Debug)]
struct Shared {
    pool: Pool,
    stalls: Arc<Stalls>,
    is_over: AtomicBool,
    persists: AtomicU64,
}

/// Threads that write as fast as they can.
#[derive(Debug)]
pub(super) struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Written>>,
}

/// What one writer did.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) region: Region,
    pub(super) latencies: LatencyHistogram,
    pub(super) degraded: u64,
    pub(super) errors: u64,
    /// The first of them.
    pub(super) texts: Vec<String>,
}

impl Writers {
    pub(super) fn start(pool: &Pool, stalls: &Arc<Stalls>, seed: u64, count: u64) -> Result<Self> {
        let shared = Arc::new(Shared {
            pool: pool.clone(),
            stalls: Arc::clone(stalls),
            is_over: AtomicBool::new(false),
            persists: AtomicU64::new(0),
        });
        let start = |index| {
            let (shared, region) = (Arc::clone(&shared), Region::of_writer(seed, index, count));
            let random = Random::new(seed ^ (index + 1) << 48);
            let named = thread::Builder::new().name(format!("pmof-chaos-{index}"));
            named.spawn(move || write(&shared, region, random)).context("cannot start a writer")
        };
        let threads = (0..count).map(start).collect::<Result<_>>()?;
        Ok(Self { shared, threads })
    }

    pub(super) fn persists(&self) -> u64 {
        self.shared.persists.load(Ordering::Relaxed)
    }

    /// Has them end when what they have begun is acknowledged.
    pub(super) fn finish(self) -> Result<Vec<Written>> {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let ended = self.threads.into_iter().map(|thread| thread.join().ok().context("a writer panicked"));
        ended.collect()
    }
}

fn write(shared: &Shared, region: Region, mut random: Random) -> Written {
    let latencies = LatencyHistogram::default();
    let mut done = Written { region, latencies, degraded: 0, errors: 0, texts: Vec::new() };
    let mut bytes = Vec::new();
    let mut version = 0;
    while !shared.is_over.load(Ordering::Relaxed) {
        version += 1;
        let record = random.below(done.region.record_count());
        let offset = done.region.write(record, version, &mut bytes);
        let mut last_tries = 0;
        while last_tries < LAST_TRIES {
            let phase = shared.stalls.phase.load(Ordering::SeqCst);
            let began = Instant::now();
            let outcome = shared.pool.persist(offset, &bytes);
            let latency = began.elapsed();
            shared.stalls.count(phase, latency);
            done.latencies.record(latency);
            match outcome {
                Ok(receipt) => {
                    done.degraded += u64::from(receipt.is_degraded());
                    done.region.acknowledge(record, version);
                    shared.persists.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(error) => {
                    done.errors += 1;
                    if done.texts.len() < KEPT_ERRORS {
                        done.texts.push(causes(&error).to_string());
                    }
                    last_tries += u32::from(shared.is_over.load(Ordering::Relaxed));
                    sleep(RETRY_PAUSE);
                }
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_persist_that_a_fault_meets_is_counted_there() {
        let stalls = Stalls::new();
        let ms = Duration::from_millis;
        stalls.count(Phase::Faultless(0).index(), ms(1));
        stalls.enter(Phase::Fault(0));
        stalls.count(Phase::Faultless(0).index(), ms(7));
        stalls.count(Phase::Fault(0).index(), ms(3));
        stalls.enter(Phase::Return(0));
        stalls.count(Phase::Fault(0).index(), ms(9));
        stalls.count(Phase::Return(0).index(), ms(2));
        let longest = [Phase::Faultless(0), Phase::Fault(0), Phase::Return(0), Phase::Faultless(1)];
        assert_eq!(longest.map(|phase| stalls.longest(phase)), [1, 9, 2, 0].map(ms));
    }
}
