//! Writes to a pool while some of its targets are killed and one comes back.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pmof::{Durability, PersistFailure, Pool, PoolError, PoolUrl, Receipt};
use pmof_bench::bench::statistics::{LatencyHistogram, LatencySummary};
use pmof_console::children::Target;
use serde::Serialize;

use super::records::{Book, Record, Source};

/// Limit for noticing a kill and for the return of a replica. The kernel reports the death of a process at once.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(20);

/// The writer: the records to come, and a ledger for each replica.
#[derive(Debug)]
pub(super) struct Desk {
    source: Source,
    urls: Vec<PoolUrl>,
    pub(super) books: Vec<Book>,
    standings: Vec<Standing>,
    batches: u64,
}

/// What is expected of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Its receipts.
    InSync,
    /// None: its target was killed.
    Lost,
    /// Its receipts, once it has caught up.
    Returning,
}

/// When a phase of writing ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// After this time.
    Elapsed(Duration),
    /// At the first receipt from at most this many replicas.
    AtMost(usize),
    /// At the first receipt from all replicas.
    Whole,
}

/// What was written in one phase.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadReport {
    pub(super) elapsed_s: f64,
    pub(super) batches_acknowledged: u64,
    pub(super) records_acknowledged: u64,
    pub(super) acknowledged_bytes: u64,
    pub(super) records_per_s: f64,
    pub(super) mib_per_s: f64,
    /// Of one batch: writes, flush, receipt.
    #[serde(flatten)]
    pub(super) latency: LatencySummary,
}

/// The results of a phase of writing.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) report: LoadReport,
    /// The last receipt of all replicas that were in sync.
    pub(super) receipt: Receipt,
    /// The receipt that ended it.
    pub(super) last: Receipt,
    /// The duration of that persist.
    pub(super) last_took: Duration,
}

impl Until {
    fn is_reached(self, receipt: &Receipt, elapsed: Duration) -> bool {
        match self {
            Self::Elapsed(limit) => elapsed >= limit,
            Self::AtMost(replicas) => receipt.replicas.len() <= replicas,
            Self::Whole => !receipt.is_degraded(),
        }
    }

    /// Whether the pool may lose its quorum, so that nothing is acknowledged.
    fn may_fail(self) -> bool {
        self == Self::AtMost(0)
    }
}

impl Desk {
    pub(super) fn new(seed: u64, urls: Vec<PoolUrl>) -> Self {
        let count = urls.len();
        let books = (0..count).map(|_| Book::new()).collect();
        Self { source: Source::new(seed), urls, books, standings: vec![Standing::InSync; count], batches: 0 }
    }

    /// The target of a lost replica was started again.
    pub(super) fn expect_back(&mut self, index: usize) {
        self.standings[index] = Standing::Returning;
    }

    /// Writes batch after batch, kills the victims with SIGKILL after some time, and ends once only `survivors` replicas
    /// answer.
    pub(super) fn write_and_kill(
        &mut self,
        pool: &Pool,
        victims: &mut [Target],
        after: Duration,
        survivors: usize,
    ) -> anyhow::Result<Load> {
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                std::thread::sleep(after);
                victims.iter_mut().try_for_each(Target::kill)
            });
            let load = self.write(pool, Until::AtMost(survivors), after + NOTICE_TIMEOUT);
            match killer.join() {
                Ok(outcome) => outcome.and(load),
                Err(_) => bail!("the thread that kills failed"),
            }
        })
    }

    /// Writes batch after batch for some time.
    pub(super) fn write_for(&mut self, pool: &Pool, time: Duration) -> anyhow::Result<Load> {
        self.write(pool, Until::Elapsed(time), time + NOTICE_TIMEOUT)
    }

    /// Writes batch after batch until all replicas acknowledge one.
    pub(super) fn write_until_whole(&mut self, pool: &Pool) -> anyhow::Result<Load> {
        self.write(pool, Until::Whole, NOTICE_TIMEOUT)
    }

    fn write(&mut self, pool: &Pool, until: Until, limit: Duration) -> anyhow::Result<Load> {
        let began = Instant::now();
        let mut latencies = LatencyHistogram::default();
        let (mut batches, mut records_written, mut bytes, mut last_receipt) = (0, 0, 0, None);
        loop {
            let records = self.source.batch();
            let before = Instant::now();
            let (receipt, failure) = self.persist(pool, &records)?;
            let took = before.elapsed();
            let failure = match failure {
                Some(failure) if !until.may_fail() => return Err(PoolError::Persist(failure).into()),
                failure => failure,
            };
            if until.is_reached(&receipt, began.elapsed()) {
                let report = LoadReport::new(began.elapsed(), batches, records_written, bytes, &latencies);
                let before = last_receipt.unwrap_or_else(|| receipt.clone());
                return Ok(Load { report, receipt: before, last: receipt, last_took: took });
            }
            ensure!(began.elapsed() < limit, "within {limit:?} no receipt showed that replicas were lost or came back");
            if failure.is_some() {
                // Targets are killed one after the other: the quorum is lost before the last one dies.
                continue;
            }
            latencies.record(took);
            batches += 1;
            records_written += records.len() as u64;
            bytes += records.iter().map(|record| record.bytes.len() as u64).sum::<u64>();
            let is_less = |last: &Receipt| receipt.replicas.len() < last.replicas.len();
            if !last_receipt.as_ref().is_some_and(is_less) {
                last_receipt = Some(receipt);
            }
        }
    }

    /// Persists one batch and records the receipt of each replica.
    fn persist(&mut self, pool: &Pool, records: &[Record]) -> anyhow::Result<(Receipt, Option<Box<PersistFailure>>)> {
        let number = self.batches;
        self.batches += 1;
        for (book, _) in self.books.iter_mut().zip(&self.standings).filter(|(_, of)| **of == Standing::InSync) {
            book.issue(number, records);
        }
        let mut batch = pool.lane();
        for record in records {
            batch.write(record.offset, &record.bytes)?;
        }
        let (receipt, failure) = match batch.persist() {
            Ok(receipt) => (receipt, None),
            Err(PoolError::Persist(failure)) => (failure.receipt.clone(), Some(failure)),
            Err(other) => return Err(other.into()),
        };
        let mut returned = Vec::new();
        for (index, url) in self.urls.iter().enumerate() {
            let acknowledged = receipt
                .replicas
                .iter()
                .any(|replica| replica.replica.url() == Some(url) && replica.durability >= Durability::PowerFailure);
            match (self.standings[index], acknowledged) {
                (Standing::InSync, true) => self.books[index].acknowledge(number, records)?,
                (Standing::InSync, false) => self.standings[index] = Standing::Lost,
                (Standing::Lost, true) => bail!("{url} answered after it had been killed"),
                (Standing::Returning, true) => returned.push(index),
                (_, false) => {}
            }
        }
        for index in returned {
            self.note_return(index, records)?;
        }
        Ok((receipt, failure))
    }

    /// The replica has acknowledged a batch for the first time since it was lost.
    fn note_return(&mut self, index: usize, records: &[Record]) -> anyhow::Result<()> {
        let other = self.standings.iter().position(|standing| *standing == Standing::InSync);
        let other = other.context("a replica came back, but no other had stayed")?;
        let mut book = std::mem::replace(&mut self.books[index], Book::new());
        book.catch_up_with(&self.books[other], records);
        self.books[index] = book;
        self.standings[index] = Standing::InSync;
        Ok(())
    }
}

impl LoadReport {
    fn new(elapsed: Duration, batches: u64, records: u64, bytes: u64, latencies: &LatencyHistogram) -> Self {
        let elapsed_s = elapsed.as_secs_f64();
        Self {
            elapsed_s,
            batches_acknowledged: batches,
            records_acknowledged: records,
            acknowledged_bytes: bytes,
            records_per_s: records as f64 / elapsed_s,
            mib_per_s: bytes as f64 / f64::from(1 << 20) / elapsed_s,
            latency: latencies.summary(),
        }
    }
}
