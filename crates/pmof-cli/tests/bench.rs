//! Runs `pmof bench` with tiny counts: what it prints and what it leaves behind, not how fast it is.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A directory on tmpfs.
fn tmpfs() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A directory in the build's, which lies on a disk where `/tmp` may not.
fn disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a measurement whose pools lie in `directory`.
fn bench(directory: &TempDir, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmof"));
    command.arg("bench").args(arguments.split(' ')).arg("--dir").arg(directory.path());
    command.output().unwrap()
}

/// The one object that it prints; nothing may be left in the directory.
fn json(directory: &TempDir, arguments: &str) -> Value {
    let output = bench(directory, &format!("{arguments} --json"));
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(text.lines().count(), 1, "one object and nothing else: {text}");
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn assert_positive(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value[name].as_f64().is_some_and(|number| number > 0.0), "{name} of {value}");
    }
}

#[test]
fn latency_on_tmpfs_beside_its_floor() {
    let report = json(&tmpfs(), "latency --transport tcp --size 512 --count 50 --rounds 2");
    let latencies = ["p50_us", "p90_us", "p99_us", "p999_us", "floor_p50_us", "floor_p999_us"];
    assert_positive(&report, &latencies);
    assert_positive(&report, &["ratio_p50", "ratio_p50_min", "ratio_p50_max"]);
    assert_eq!(report["samples"], 100);
    assert_eq!(report["floor_samples"], 100);
    assert_eq!(report["durability"], "ProcessCrash");
    assert_eq!(report["method"], "send-after-write");
    assert_eq!(report["evidence"], "probed");
    assert!(report.get("ratio_replicas_p50").is_none(), "{report}");
}

#[test]
fn latency_to_a_file_survives_loss_of_power() {
    let report = json(&disk(), "latency --medium file --size 4096 --count 5 --rounds 2 --adaptive");
    assert_positive(&report, &["p50_us", "floor_p50_us", "ratio_p50"]);
    assert_eq!(report["durability"], "PowerFailure");
    assert_eq!(report["mechanism"], "file sync");
    assert_eq!(report["waiting"], "adaptive");
}

#[test]
fn a_pool_with_a_slow_replica_is_compared_with_one_without() {
    let report = json(&tmpfs(), "latency --replicas 3 --slow-us 20000 --slow-after-us 5000 --count 5 --rounds 2");
    assert_positive(&report, &["ratio_slow_p50", "ratio_slow_p99", "prompt_p50_us", "p50_us"]);
}

#[test]
fn replicas_behind_a_delay_are_compared_with_one() {
    let report = json(&tmpfs(), "latency --delay-us 1000 --replicas 3 --count 5 --rounds 2");
    assert_positive(&report, &["ratio_replicas_p50", "ratio_replicas_p50_min", "ratio_replicas_p50_max"]);
    // Every byte is delayed, in both directions: less than 2 ms would mean that the relay was not there.
    for name in ["p50_us", "single_p50_us", "floor_p50_us"] {
        assert!(report[name].as_f64().is_some_and(|us| us >= 2000.0), "{name} of {report}");
    }
}

#[test]
fn bandwidth_beside_its_floor() {
    let report = json(&tmpfs(), "bandwidth --size 4096 --depth 4 --count 50 --rounds 2");
    assert_positive(&report, &["mib_per_s", "floor_mib_per_s", "ratio_bandwidth", "ratio_bandwidth_min"]);
    assert_eq!(report["durability"], "ProcessCrash");
    assert_eq!(report["depth"], 4);
}

#[test]
fn a_batch_beside_as_many_persists() {
    let report = json(&tmpfs(), "batch --count 20 --size 64 --rounds 2");
    assert_positive(&report, &["persists_us", "batch_us", "speedup"]);
    assert_eq!(report["durability"], "ProcessCrash");
}

#[test]
fn idle_connections_are_counted() {
    let report = json(&tmpfs(), "idle --connections 10 --duration-ms 50");
    assert_eq!(report["connections"], 10);
    assert_eq!(report["threads"], report["empty_threads"]);
    for name in ["cpu_percent", "memory_mib"] {
        assert!(report[name].as_f64().is_some_and(|number| number >= 0.0), "{name} of {report}");
    }
}

#[test]
fn many_clients_beside_as_many_raw_threads() {
    let report = json(&disk(), "scale --clients 1 --clients 6 --rounds 2 --round-ms 20");
    assert_eq!((&report["medium"], &report["durability"]), (&"file".into(), &"PowerFailure".into()));
    let counts = report["counts"].as_array().unwrap();
    assert_eq!(counts.iter().map(|count| count["clients"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(6)]);
    for count in counts {
        assert_positive(
            count,
            &["persists_per_s", "raw_per_s", "ratio_rate", "ratio_rate_min", "p99_us", "raw_p99_us"],
        );
        assert_positive(count, &["exchange_per_s", "ratio_exchange", "exchange_p99_us"]);
        // Counted in ticks of the clock, of which short rounds may see none.
        for name in ["initiators_cpu_us", "target_cpu_us", "raw_cpu_us", "exchange_cpu_us"] {
            assert!(count[name].as_f64().is_some_and(|time| time >= 0.0), "{name} of {count}");
        }
        // Everyone gets a turn in each round.
        assert!(count["samples"].as_u64() >= count["clients"].as_u64().map(|clients| 2 * clients), "{count}");
    }
    let report = json(&tmpfs(), "scale --medium tmpfs --transport shm --clients 3 --rounds 1 --round-ms 20");
    assert_eq!(report["durability"], "ProcessCrash");
    assert!(report["counts"][0].get("exchange_per_s").is_none(), "nothing compares over shm: {report}");
}

#[test]
fn clients_of_one_pool_have_a_table_without_exchanges() {
    let output = bench(&disk(), "scale --one-pool --clients 3 --rounds 1 --round-ms 20");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in ["one pool", "CPU us", "3  pmof", "raw", "PowerFailure on 1/1"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("exchange"), "{text}");
}

#[test]
fn people_get_a_table() {
    let output = bench(&tmpfs(), "latency --count 10 --rounds 1");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in ["p50 us", "pmof", "floor", "ProcessCrash on 1/1"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_directory_on_another_medium_is_refused() {
    let directory = tmpfs();
    let output = bench(&directory, "latency --medium file --count 5 --rounds 1");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("tmpfs") && error.contains("--dir"), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn wrong_use_is_distinguished() {
    for arguments in [
        "latency --size 0",
        "latency --replicas 0",
        "bandwidth --depth 0",
        "scale --clients 0",
        "latency --transport x",
    ] {
        assert_eq!(bench(&tmpfs(), arguments).status.code(), Some(2), "{arguments}");
    }
    // Options that are each in range but not together fail while running.
    let output = bench(&tmpfs(), "bandwidth --size 1048576 --depth 1000");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in flight"));
}
