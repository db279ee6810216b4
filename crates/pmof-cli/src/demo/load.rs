//! Writing to a pool while some of its targets are killed.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pmof::{Durability, PersistFailure, Pool, PoolError, PoolUrl, Receipt};
use pmof_bench::bench::statistics::{LatencyHistogram, LatencySummary};
use pmof_console::children::Target;
use serde::Serialize;

use super::records::{Book, Record, Source};

/// After a kill the pool's owner learns of it within this time; the kernel tells at once.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(20);

/// Who writes: the records to come, and a book for each replica.
#[derive(Debug)]
pub(super) struct Desk {
    source: Source,
    urls: Vec<PoolUrl>,
    pub(super) books: Vec<Book>,
    alive: Vec<bool>,
    batches: u64,
}

/// What was written in one stretch.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadReport {
    pub(super) elapsed_seconds: f64,
    pub(super) batches: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) records_per_s: f64,
    pub(super) mib_per_s: f64,
    /// Of one batch: writes, flush, receipt.
    #[serde(flatten)]
    pub(super) latency: LatencySummary,
}

/// How a stretch of writing went and ended.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) report: LoadReport,
    /// The last receipt of all replicas that were alive.
    pub(super) receipt: Receipt,
    /// What the persist said that met the kill.
    pub(super) failure: PersistFailure,
    /// How long that persist took.
    pub(super) noticed: Duration,
}

impl Desk {
    pub(super) fn new(seed: u64, urls: Vec<PoolUrl>) -> Self {
        let count = urls.len();
        let books = (0..count).map(|_| Book::new()).collect();
        Self { source: Source::new(seed), urls, books, alive: vec![true; count], batches: 0 }
    }

    /// Writes batch after batch; kills the victims with SIGKILL after some time, and ends once only `survivors` replicas
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
            let load = self.write(pool, survivors, after + NOTICE_TIMEOUT);
            match killer.join() {
                Ok(outcome) => outcome.and(load),
                Err(_) => bail!("the thread that kills failed"),
            }
        })
    }

    fn write(&mut self, pool: &Pool, survivors: usize, limit: Duration) -> anyhow::Result<Load> {
        let began = Instant::now();
        let mut latencies = LatencyHistogram::default();
        let (mut batches, mut records_written, mut bytes, mut last_receipt) = (0, 0, 0, None);
        loop {
            let records = self.source.batch();
            let before = Instant::now();
            let (receipt, failure) = self.persist(pool, &records)?;
            let took = before.elapsed();
            if let Some(failure) = failure.filter(|_| receipt.replicas.len() <= survivors) {
                let report = LoadReport::new(began.elapsed(), batches, records_written, bytes, &latencies);
                let receipt = last_receipt.context("the target died before the first receipt")?;
                return Ok(Load { report, receipt, failure, noticed: took });
            }
            ensure!(began.elapsed() < limit, "no error within {limit:?} though targets were killed");
            latencies.record(took);
            batches += 1;
            records_written += records.len() as u64;
            bytes += records.iter().map(|record| record.bytes.len() as u64).sum::<u64>();
            last_receipt = Some(receipt);
        }
    }

    /// Persists one batch and enters what the receipt says of each replica.
    fn persist(&mut self, pool: &Pool, records: &[Record]) -> anyhow::Result<(Receipt, Option<PersistFailure>)> {
        let number = self.batches;
        self.batches += 1;
        for (book, _) in self.books.iter_mut().zip(&self.alive).filter(|(_, alive)| **alive) {
            book.issue(number, records);
        }
        let mut batch = pool.lane();
        for record in records {
            batch.write(record.offset, &record.bytes)?;
        }
        let (receipt, failure) = match batch.persist() {
            Ok(receipt) => (receipt, None),
            Err(PoolError::Persist(failure)) => (failure.receipt.clone(), Some(*failure)),
            Err(other) => return Err(other.into()),
        };
        for (index, url) in self.urls.iter().enumerate() {
            let acknowledged = receipt
                .replicas
                .iter()
                .any(|replica| replica.replica.url() == Some(url) && replica.durability >= Durability::PowerFailure);
            ensure!(self.alive[index] || !acknowledged, "{url} answered after it had failed");
            if acknowledged {
                self.books[index].acknowledge(number, records)?;
            }
            self.alive[index] = acknowledged;
        }
        Ok((receipt, failure))
    }
}

impl LoadReport {
    fn new(elapsed: Duration, batches: u64, records: u64, bytes: u64, latencies: &LatencyHistogram) -> Self {
        let elapsed_seconds = elapsed.as_secs_f64();
        Self {
            elapsed_seconds,
            batches,
            records,
            bytes,
            records_per_s: records as f64 / elapsed_seconds,
            mib_per_s: bytes as f64 / f64::from(1 << 20) / elapsed_seconds,
            latency: latencies.summary(),
        }
    }
}
