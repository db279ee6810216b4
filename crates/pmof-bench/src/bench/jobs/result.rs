//! What a job gave.

use std::time::Duration;

use super::options::Job;
use crate::bench::{engine::Reached, runner::Tally};

/// One job, or all clones of one together.
#[derive(Debug, Default)]
pub(super) struct JobResult {
    pub(super) tally: Tally,
    /// Writes that each operation of the tally stands for, which ended together.
    pub(super) writes_each: u64,
    pub(super) ramp: Duration,
    pub(super) reached: Option<Reached>,
    /// Clones in it.
    pub(super) count: u16,
}

/// One direction, as fio sees it.
#[derive(Debug)]
pub(super) struct Direction {
    pub(super) operations: u64,
    pub(super) bytes: u64,
    /// Nanoseconds and how many operations took so long.
    pub(super) bins: Vec<(u64, u64)>,
    pub(super) mean_ns: f64,
    pub(super) stddev_ns: f64,
    pub(super) min_ns: u64,
    pub(super) max_ns: u64,
    pub(super) run_ms: u64,
}

impl JobResult {
    /// What it read.
    pub(super) fn reads(&self, job: &Job) -> Direction {
        self.direction(&self.tally.reads, 1, job)
    }

    /// What it wrote.
    pub(super) fn writes(&self, job: &Job) -> Direction {
        self.direction(&self.tally.writes, self.writes_each, job)
    }

    fn direction(&self, histogram: &crate::bench::statistics::LatencyHistogram, each: u64, job: &Job) -> Direction {
        let bins: Vec<_> = histogram.counts().map(|(ns, count)| (ns, count * each)).collect();
        let (summary, operations) = (histogram.summary(), histogram.len() * each);
        Direction {
            operations,
            bytes: operations * job.block_bytes,
            min_ns: bins.first().map_or(0, |(ns, _)| *ns),
            max_ns: bins.last().map_or(0, |(ns, _)| *ns),
            bins,
            mean_ns: summary.mean_us * 1e3,
            stddev_ns: summary.stddev_us * 1e3,
            run_ms: if operations == 0 { 0 } else { (self.tally.elapsed.as_millis() as u64).max(1) },
        }
    }
}

impl Direction {
    pub(super) fn bytes_per_s(&self) -> u64 {
        self.bytes.saturating_mul(1000) / self.run_ms.max(1)
    }

    pub(super) fn operations_per_s(&self) -> f64 {
        self.operations as f64 * 1000.0 / self.run_ms.max(1) as f64
    }

    /// So many percent took no longer, in nanoseconds.
    pub(super) fn percentile(&self, percent: f64) -> u64 {
        let wanted = percent / 100.0 * self.operations as f64;
        let mut seen = 0;
        for (ns, count) in &self.bins {
            seen += count;
            if seen as f64 >= wanted {
                return *ns;
            }
        }
        self.max_ns
    }
}

/// Joins the clones of jobs with `group_reporting`; the number says which job it is of.
pub(super) fn group(jobs: &[Job], results: Vec<(usize, JobResult)>) -> Vec<(usize, JobResult)> {
    let mut grouped: Vec<(usize, JobResult)> = Vec::new();
    for (place, result) in results {
        match grouped.last_mut() {
            Some((last, into)) if *last == place && jobs[place].grouped => {
                into.tally.beside(&result.tally);
                into.count += 1;
            }
            _ => grouped.push((place, result)),
        }
    }
    grouped
}
