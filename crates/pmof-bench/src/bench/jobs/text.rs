//! fio's text (fio(1), "INTERPRETING THE OUTPUT").

use std::{fmt::Write as _, time::Duration};

use super::{
    options::Job,
    result::{Direction, JobResult},
};
use crate::bench::engine::Reached;

/// Prefixes of powers of 1024 and of 1000.
const BINARY: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
const DECIMAL: [&str; 6] = ["", "k", "M", "G", "T", "P"];

/// What takes the place of fio's own version.
pub(super) fn version() -> String {
    format!("pmof-{}", env!("CARGO_PKG_VERSION"))
}

pub(super) fn print(jobs: &[Job], results: &[(usize, JobResult)], cpu: [Duration; 2]) -> String {
    let mut lines = Vec::new();
    for job in jobs {
        lines.push(head(job));
        if job.count > 1 {
            lines.push("...".to_owned());
        }
    }
    let threads: u32 = jobs.iter().map(|job| u32::from(job.count)).sum();
    lines.push(version());
    lines.push(format!("Starting {threads} thread{}\n", if threads == 1 { "" } else { "s" }));
    for (place, result) in results {
        describe(&jobs[*place], result, cpu, &mut lines);
    }
    lines.push("\nRun status group 0 (all jobs):".to_owned());
    for (name, is_read) in [("   READ", true), ("  WRITE", false)] {
        lines.extend(group(name, jobs, results, is_read));
    }
    for (place, result) in results {
        let reached = match &result.reached {
            Some(Reached::Connection(flushed)) => {
                format!(
                    "{} ({}, {}, {})",
                    flushed.durability, flushed.method, flushed.promise.mechanism, flushed.promise.evidence
                )
            }
            Some(Reached::Pool(receipt)) => receipt.to_string(),
            None => continue,
        };
        lines.push(format!("\n{}: flushes reached {reached}", jobs[*place].name));
    }
    lines.join("\n")
}

fn head(job: &Job) -> String {
    let size = job.block_bytes;
    format!(
        "{}: (g=0): rw={}, bs=(R) {size}B-{size}B, (W) {size}B-{size}B, (T) {size}B-{size}B, ioengine={}, iodepth={}",
        job.name,
        job.rw,
        job.engine.name(),
        job.depth
    )
}

fn describe(job: &Job, result: &JobResult, cpu: [Duration; 2], lines: &mut Vec<String>) {
    lines.push(format!("{}: (groupid=0, jobs={}): err= 0: pid={}", job.name, result.count, std::process::id()));
    let (reads, writes) = (result.reads(job), result.writes(job));
    for (name, direction, tail) in [("read", &reads, ""), ("write", &writes, "; 0 zone resets")] {
        if direction.operations > 0 {
            describe_direction(job, name, direction, tail, lines);
        }
    }
    let seconds = result.tally.elapsed.as_secs_f64();
    let [user, system] = cpu.map(|cpu| if seconds > 0.0 { cpu.as_secs_f64() / seconds * 100.0 } else { 0.0 });
    lines.push(format!("  cpu          : usr={user:.2}%, sys={system:.2}%, ctx=0, majf=0, minf=0"));
    lines.push(format!(
        "     issued rwts: total={},{},0,0 short=0,0,0,0 dropped=0,0,0,0",
        reads.operations, writes.operations
    ));
    lines.push(format!("     latency   : target=0, window=0, percentile=100.00%, depth={}", job.depth));
}

fn describe_direction(job: &Job, name: &str, direction: &Direction, tail: &str, lines: &mut Vec<String>) {
    let rate = direction.bytes_per_s();
    lines.push(format!(
        "  {name}: IOPS={}, BW={}B/s ({}B/s)({}B/{}msec){tail}",
        short(direction.operations_per_s(), 1000.0, &DECIMAL),
        short(rate as f64, 1024.0, &BINARY),
        short(rate as f64, 1000.0, &DECIMAL),
        short(direction.bytes as f64, 1024.0, &BINARY),
        direction.run_ms
    ));
    let shown = if job.disable_clat { &[" lat"][..] } else { &["clat", " lat"] };
    for what in shown {
        let (unit, divisor) = latency_unit(direction.min_ns, direction.max_ns);
        let scaled = |ns: f64| ns / divisor as f64;
        lines.push(format!(
            "    {what} ({unit}): min={}, max={}, avg={:5.2}, stdev={:5.2}",
            direction.min_ns / divisor,
            direction.max_ns / divisor,
            scaled(direction.mean_ns),
            scaled(direction.stddev_ns)
        ));
    }
    percentiles(job, direction, lines);
}

/// fio's: the largest unit in which the least is above 2 and the greatest above 99,999 of the next smaller one.
fn latency_unit(min_ns: u64, max_ns: u64) -> (&'static str, u64) {
    if min_ns > 2_000_000 && max_ns > 99_999_999 {
        ("msec", 1_000_000)
    } else if min_ns > 2000 && max_ns > 99_999 {
        ("usec", 1000)
    } else {
        ("nsec", 1)
    }
}

fn percentiles(job: &Job, direction: &Direction, lines: &mut Vec<String>) {
    if job.disable_clat && !job.lat_percentiles {
        return;
    }
    let values: Vec<_> = job.percentiles.iter().map(|percent| direction.percentile(*percent)).collect();
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return };
    let (unit, divisor) = latency_unit(*first, *last);
    let values = values.into_iter().map(|ns| ns.div_ceil(divisor));
    let width = values.clone().map(|value| value.to_string().len()).max().unwrap_or(0).max(5);
    let digits = if job.percentiles.iter().all(|percent| is_short(*percent)) { 2 } else { 3 };
    let a_line = (80 - 7) / (10 + digits + width);
    lines.push(format!("    {} percentiles ({unit}):", if job.lat_percentiles { "lat" } else { "clat" }));
    let cells: Vec<String> = job
        .percentiles
        .iter()
        .zip(values)
        .map(|(percent, value)| format!(" {percent:5.digits$}th=[{value:width$}]"))
        .collect();
    let rows = cells.chunks(a_line).map(|row| format!("     |{}", row.join(",")));
    lines.push(rows.collect::<Vec<_>>().join(",\n"));
}

/// Two digits say it.
fn is_short(percent: f64) -> bool {
    (percent * 100.0 - (percent * 100.0).round()).abs() < 1e-9
}

fn group(name: &str, jobs: &[Job], results: &[(usize, JobResult)], is_read: bool) -> Option<String> {
    let of = |(place, result): &(usize, JobResult)| {
        let job = &jobs[*place];
        if is_read { result.reads(job) } else { result.writes(job) }
    };
    let directions: Vec<Direction> = results.iter().map(of).filter(|direction| direction.operations > 0).collect();
    let rates: Vec<f64> = directions.iter().map(|direction| direction.bytes_per_s() as f64).collect();
    let (least, most) = (rates.iter().copied().reduce(f64::min)?, rates.iter().copied().reduce(f64::max)?);
    let bytes: u64 = directions.iter().map(|direction| direction.bytes).sum();
    let runs = directions.iter().map(|direction| direction.run_ms);
    let (shortest, longest) = (runs.clone().min()?, runs.max()?);
    let total = bytes as f64 * 1000.0 / longest.max(1) as f64;
    let (binary, decimal) = (|rate: f64| short(rate, 1024.0, &BINARY), |rate: f64| short(rate, 1000.0, &DECIMAL));
    let mut line = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        line,
        "{name}: bw={}B/s ({}B/s), {}B/s-{}B/s ({}B/s-{}B/s), io={}B ({}B), run={shortest}-{longest}msec",
        binary(total),
        decimal(total),
        binary(least),
        binary(most),
        decimal(least),
        decimal(most),
        binary(bytes as f64),
        decimal(bytes as f64)
    );
    Some(line)
}

/// At most four digits, three of them significant where there is a point: `719Mi`, `14.0Gi`, `3657k`.
fn short(mut value: f64, base: f64, prefixes: &[&str; 6]) -> String {
    let mut index = 0;
    while value >= if base > 1000.0 { 1024.0 } else { 10_000.0 } && index + 1 < prefixes.len() {
        value /= base;
        index += 1;
    }
    let digits = match value {
        value if value >= 100.0 || index == 0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{}", prefixes[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let binary = |value: f64| short(value, 1024.0, &BINARY);
        let decimal = |value: f64| short(value, 1000.0, &DECIMAL);
        assert_eq!(
            ["512", "4.00Ki", "719Mi", "14.0Gi"].map(str::to_owned),
            [binary(512.0), binary(4096.0), binary(719.0 * 1_048_576.0), binary(14.0 * 1_073_741_824.0)]
        );
        assert_eq!(["7", "3657k", "72.0k"].map(str::to_owned), [decimal(7.0), decimal(3_657_000.0), decimal(72_000.0)]);
    }

    #[test]
    fn the_unit_of_a_latency_is_fios() {
        assert_eq!(latency_unit(193, 3620).0, "nsec");
        assert_eq!(latency_unit(2500, 100_000).0, "usec");
        assert_eq!(latency_unit(2_500_000, 100_000_000).0, "msec");
    }
}
