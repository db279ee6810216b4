//! fio's JSON, as fio 3.33 writes it: <https://fio.readthedocs.io/en/latest/fio_doc.html#json-output>.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{
    options::Job,
    result::{Direction, JobResult},
    text::version,
};

pub(super) fn print(
    jobs: &[Job],
    results: &[(usize, JobResult)],
    cpu: [Duration; 2],
    with_bins: bool,
) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let listed: Vec<Value> = results.iter().map(|(place, result)| job(&jobs[*place], result, cpu, with_bins)).collect();
    let global = jobs.first().map_or_else(Map::new, |job| options(&job.global));
    let whole = json!({
        "fio version": version(),
        "timestamp": now.as_secs(),
        "timestamp_ms": now.as_millis() as u64,
        "global options": global,
        "jobs": listed,
    });
    Ok(serde_json::to_string_pretty(&whole)?)
}

fn job(job: &Job, result: &JobResult, cpu: [Duration; 2], with_bins: bool) -> Value {
    let (reads, writes) = (result.reads(job), result.writes(job));
    let seconds = result.tally.elapsed.as_secs_f64();
    let share = |cpu: Duration| if seconds > 0.0 { cpu.as_secs_f64() / seconds * 100.0 } else { 0.0 };
    let nothing = JobResult::default().reads(job);
    json!({
        "jobname": job.name,
        "groupid": 0,
        "error": 0,
        "eta": 0,
        "elapsed": (result.tally.elapsed + result.ramp).as_secs() + 1,
        "job options": options(&job.own),
        "read": direction(job, &reads, with_bins),
        "write": direction(job, &writes, with_bins),
        "trim": direction(job, &nothing, with_bins),
        "sync": { "total_ios": 0, "lat_ns": latency(&nothing, &[], false) },
        "job_runtime": reads.run_ms.max(writes.run_ms) * u64::from(result.count),
        "usr_cpu": share(cpu[0]),
        "sys_cpu": share(cpu[1]),
        "ctx": 0,
        "majf": 0,
        "minf": 0,
        "latency_depth": job.slots() as u32 * job.writes_per_flush(),
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
    })
}

fn options(written: &[(String, String)]) -> Map<String, Value> {
    written.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect()
}

fn direction(job: &Job, direction: &Direction, with_bins: bool) -> Value {
    let bytes_per_s = if direction.operations == 0 { 0 } else { direction.bytes_per_s() };
    let iops = if direction.operations == 0 { 0.0 } else { direction.operations_per_s() };
    // fio has percentiles and bins of one of the two.
    let of = |is_shown: bool| if is_shown { &job.percentiles[..] } else { &[] };
    let clat = if job.disable_clat {
        latency(&JobResult::default().reads(job), &[], false)
    } else {
        latency(direction, of(!job.lat_percentiles), with_bins)
    };
    json!({
        "io_bytes": direction.bytes,
        "io_kbytes": direction.bytes / 1024,
        "bw_bytes": bytes_per_s,
        "bw": bytes_per_s / 1024,
        "iops": iops,
        "runtime": direction.run_ms,
        "total_ios": direction.operations,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": { "min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0 },
        "clat_ns": clat,
        "lat_ns": latency(direction, of(job.lat_percentiles), with_bins),
        "bw_min": bytes_per_s / 1024,
        "bw_max": bytes_per_s / 1024,
        "bw_agg": if direction.operations == 0 { 0.0 } else { 100.0 },
        "bw_mean": bytes_per_s as f64 / 1024.0,
        "bw_dev": 0.0,
        "bw_samples": 0,
        "iops_min": iops as i64,
        "iops_max": iops as i64,
        "iops_mean": iops,
        "iops_stddev": 0.0,
        "iops_samples": 0,
    })
}

/// An operation is timed from when it is posted: the latency of its submission is in it, so `clat` and `lat` are the same.
fn latency(direction: &Direction, percentiles: &[f64], with_bins: bool) -> Value {
    let mut value = json!({
        "min": direction.min_ns,
        "max": direction.max_ns,
        "mean": direction.mean_ns,
        "stddev": direction.stddev_ns,
        "N": direction.operations,
    });
    if direction.operations > 0 && !percentiles.is_empty() {
        let percentiles: Map<String, Value> = percentiles
            .iter()
            .map(|percent| (format!("{percent:.6}"), Value::from(direction.percentile(*percent))))
            .collect();
        value["percentile"] = percentiles.into();
        if with_bins {
            let bins: Map<String, Value> =
                direction.bins.iter().map(|(ns, count)| (ns.to_string(), Value::from(*count))).collect();
            value["bins"] = bins.into();
        }
    }
    value
}
