//! Runs `pmof bench` with tiny counts: what it prints and what it leaves behind, not how fast it is.

use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

mod names;

/// A directory on tmpfs.
fn tmpfs() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A directory in the build's, which lies on a disk where `/tmp` may not.
fn disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A measurement whose pools lie in `directory`.
fn command(directory: &TempDir, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmof"));
    command.arg("bench").args(arguments.split(' ')).arg("--dir").arg(directory.path());
    command
}

/// Runs it.
fn bench(directory: &TempDir, arguments: &str) -> Output {
    checked(command(directory, arguments).output().unwrap())
}

/// With names of `docs/json.md` only.
#[track_caller]
fn checked(output: Output) -> Output {
    names::check(&String::from_utf8_lossy(&output.stdout));
    names::check(&String::from_utf8_lossy(&output.stderr));
    output
}

/// The one object that it prints; nothing may be left in the directory.
fn json(directory: &TempDir, arguments: &str) -> Value {
    object(directory, &mut command(directory, &format!("{arguments} --json")))
}

fn object(directory: &TempDir, command: &mut Command) -> Value {
    let output = checked(command.output().unwrap());
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
    assert_eq!(report["durability"], "process-crash");
    assert_eq!(report["method"], "send-after-write");
    assert_eq!(report["evidence"], "probed");
    assert!(report.get("ratio_replicas_p50").is_none(), "{report}");
}

/// What goes to the transport and comes from it at the initiator, headers included: of pmof, of its floor and of peers.
#[test]
fn bytes_on_the_wire_are_counted_for_each_operation() {
    for layer in ["pool", "access"] {
        let tcp = json(&tmpfs(), &format!("latency --size 512 --layer {layer} --count 100 --rounds 2"));
        let of = |name: &str| tcp[name].as_f64().unwrap();
        assert!((513.0..700.0).contains(&of("sent_bytes")), "{layer}: {tcp}");
        assert!((8.0..200.0).contains(&of("received_bytes")), "{layer}: {tcp}");
        assert_eq!((of("floor_sent_bytes"), of("floor_received_bytes")), (512.0, 8.0));
        let shm = json(&tmpfs(), &format!("latency --size 512 --layer {layer} --transport shm --count 100 --rounds 2"));
        assert!(shm["sent_bytes"].as_f64().is_some_and(|bytes| (512.0..700.0).contains(&bytes)), "{layer}: {shm}");
        assert!(shm["floor_sent_bytes"].is_null(), "{shm}");
    }
    let reads = json(&tmpfs(), "latency --rw read --size 512 --count 100 --rounds 2");
    assert!(reads["received_bytes"].as_f64().is_some_and(|bytes| (513.0..700.0).contains(&bytes)), "{reads}");
    let stream = json(&tmpfs(), "bandwidth --size 65536 --depth 4 --count 50 --rounds 2");
    assert!(stream["sent_bytes"].as_f64().is_some_and(|bytes| (65_537.0..66_500.0).contains(&bytes)), "{stream}");
    let threads = json(&tmpfs(), "bandwidth --size 4096 --depth 4 --threads 2 --count 50 --rounds 2");
    assert_eq!(threads["floor_sent_bytes"], 4096.0, "{threads}");
}

/// A read-after-send flushes a ring, which no pool is.
#[test]
fn read_after_send_is_refused_with_where_it_is_to_be_had() {
    for transport in ["tcp", "shm"] {
        let output = bench(&tmpfs(), &format!("latency --mode read-after-send --transport {transport}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(["rings", "verbs", "ring-cuts"].iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn latency_to_a_file_survives_loss_of_power() {
    let report = json(&disk(), "latency --medium file --size 4096 --count 5 --rounds 2 --waiting adaptive");
    assert_positive(&report, &["p50_us", "floor_p50_us", "ratio_p50"]);
    assert_eq!(report["durability"], "power-failure");
    assert_eq!(report["mechanism"], "file sync");
    assert_eq!(report["waiting"], "adaptive");
}

#[test]
fn a_pool_with_a_slow_replica_is_compared_with_one_without() {
    let report = json(&tmpfs(), "latency --replicas 3 --slow 20000us --slow-after 5000us --count 5 --rounds 2");
    assert_positive(&report, &["ratio_slow_p50", "ratio_slow_p99", "prompt_p50_us", "p50_us"]);
}

#[test]
fn replicas_behind_a_delay_are_compared_with_one() {
    let report = json(&tmpfs(), "latency --delay 1000us --replicas 3 --count 5 --rounds 2");
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
    assert_eq!(report["durability"], "process-crash");
    assert_eq!(report["depth"], 4);
}

#[test]
fn every_mode_says_what_its_flushes_reached() {
    for (mode, durability, method) in [
        ("auto", "process-crash", "send-after-write"),
        ("gpspm", "process-crash", "send-after-write"),
        ("visible", "visible", "send-after-write"),
    ] {
        for layer in ["pool", "access"] {
            let report = json(&tmpfs(), &format!("latency --mode {mode} --layer {layer} --count 20 --rounds 1"));
            assert_eq!((&report["mode"], &report["layer"]), (&mode.into(), &layer.into()), "{report}");
            assert_eq!((&report["durability"], &report["method"]), (&durability.into(), &method.into()), "{report}");
        }
    }
    // Nothing over tcp can do what these do, and they pretend nothing.
    for mode in ["apm", "native"] {
        for layer in ["pool", "access"] {
            let output = bench(&tmpfs(), &format!("latency --mode {mode} --layer {layer} --count 5 --rounds 1"));
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{mode} {layer}: {error}");
            assert!(error.contains(if mode == "apm" { "read-after-write" } else { "native-flush" }), "{error}");
        }
    }
}

#[test]
fn reads_and_mixes_are_measured_too() {
    let reads = json(&tmpfs(), "latency --rw randread --count 50 --rounds 2");
    assert_eq!((&reads["samples"], &reads["durability"]), (&100.into(), &Value::Null));
    assert_positive(&reads, &["p50_us", "floor_p50_us", "ratio_p50"]);
    let mix = json(&tmpfs(), "bandwidth --rw randrw --rwmixread 70 --size 512 --count 500 --rounds 2");
    let samples = |name: &str| mix[name].as_u64().unwrap();
    assert_eq!(samples("read_samples") + samples("write_samples"), 1000);
    assert!(samples("read_samples") > samples("write_samples"), "{mix}");
    assert!(mix["ratio_p50"].is_null() && mix["no_floor"].is_string(), "{mix}");
    let shm = json(&tmpfs(), "latency --rw read --transport shm --count 50 --rounds 1");
    assert_positive(&shm, &["p50_us", "floor_p50_us"]);
}

#[test]
fn threads_connections_and_batches_share_the_work() {
    let report =
        json(&tmpfs(), "bandwidth --size 512 --threads 2 --connections 4 --depth 4 --batch 8 --count 100 --rounds 2");
    assert_eq!((&report["samples"], &report["connections"]), (&200.into(), &4.into()), "{report}");
    assert_positive(&report, &["mib_per_s", "floor_mib_per_s", "ratio_bandwidth", "operations_per_s"]);
    let pools = json(
        &tmpfs(),
        "bandwidth --layer pool --size 512 --depth 4 --batch 2 --replicas 2 --at-least 2 --count 50 --rounds 1",
    );
    assert_positive(&pools, &["p50_us", "ratio_replicas_p50"]);
}

#[test]
fn statistics_are_whole_and_agree_with_the_raw_histogram() {
    let report = json(&tmpfs(), "latency --count 100 --rounds 6 --target-load 20");
    assert_positive(&report, &["p9999_us", "mean_us", "max_us", "stddev_us", "measuring_ns", "initiator_cpu_us"]);
    assert_positive(&report, &["p50_us_low", "p50_us_high", "p50_confidence_percent", "target_cpu_us"]);
    let pairs = report["histogram_ns"].as_array().unwrap();
    let number = |pair: &Value, at: usize| pair[at].as_u64().unwrap();
    assert_eq!(pairs.iter().map(|pair| number(pair, 1)).sum::<u64>(), 600);
    assert!(pairs.windows(2).all(|pair| number(&pair[0], 0) < number(&pair[1], 0)), "{report}");
    let longest_us = number(pairs.last().unwrap(), 0) as f64 / 1e3;
    assert!((report["max_us"].as_f64().unwrap() - longest_us).abs() < longest_us * 0.002, "{report}");
}

/// How many latencies of a report are longer than this.
fn longer_than(report: &Value, ms: u64) -> u64 {
    let pairs = report["histogram_ns"].as_array().unwrap().iter();
    let number = |value: &Value| value.as_u64().unwrap();
    pairs.filter(|pair| number(&pair[0]) > ms * 1_000_000).map(|pair| number(&pair[1])).sum()
}

/// The target is stopped (SIGSTOP) for 100 ms. In the closed loop one operation waits for it, and all that would have come meanwhile are
/// never made; in the open loop those count too.
#[test]
fn a_stopped_target_is_in_the_tail_of_an_open_loop_and_hides_in_a_closed_one() {
    let run = |pace: &str| {
        json(&tmpfs(), &format!("latency --waiting adaptive --rounds 1 --count 5000 --pause-target 100ms {pace}"))
    };
    let closed = run("--rw write");
    let open = run("--rate 2000");
    let (hidden, shown) = (longer_than(&closed, 50), longer_than(&open, 50));
    // Of the 200 that were due in 100 ms, half waited for more than 50.
    assert!(shown >= 90, "{shown} of 5000 in the open loop");
    assert!(hidden * 10 < shown, "{hidden} in the closed loop, {shown} in the open one");
    assert!(longer_than(&closed, 80) >= 1, "the target was not stopped: {closed}");
}

/// Each has numbers like pmof's own and says what it promises, or why it could not be measured.
#[test]
fn peers_are_measured_in_the_same_rounds() {
    for (directory, medium, durability) in [(tmpfs(), "tmpfs", "process-crash"), (disk(), "file", "power-failure")] {
        let report = json(&directory, &format!("latency --medium {medium} --count 5 --rounds 2 --peers"));
        let peers = report["peers"].as_array().unwrap();
        assert_eq!(peers.len(), 11, "{report}");
        for peer in peers {
            let name = peer["name"].as_str().unwrap();
            if let Some(why) = peer["skipped"].as_str() {
                assert!(!["file", "pmof-3"].contains(&name), "{peer}");
                if why.contains("is not installed") {
                    skip_report::skipped!("{name}: {why}");
                }
                continue;
            }
            assert_positive(peer, &["p50_us", "p99_us", "ratio_p50", "ratio_p50_max", "copies", "mib_per_s"]);
            assert_eq!((&peer["samples"], &peer["durability"]), (&10.into(), &durability.into()), "{peer}");
            if name.starts_with("nbdkit") || name.starts_with("qemu") {
                let requests = if name == "nbdkit-fua" { 1.0 } else { 2.0 };
                assert_eq!(peer["sent_bytes"].as_f64(), Some(512.0 + 28.0 * requests), "{peer}");
                assert_eq!(peer["received_bytes"].as_f64(), Some(16.0 * requests), "{peer}");
            }
            let is_three = ["redis-wait", "pmof-3"].contains(&name);
            assert_eq!(peer["copies"], if is_three { 3 } else { 1 }, "{peer}");
            assert_eq!(peer["evidence"], if name == "pmof-3" { "probed" } else { "documented" }, "{peer}");
        }
        let why = |name: &str| peers.iter().find(|peer| peer["name"] == name).unwrap()["skipped"].as_str();
        assert!(why("librpma").unwrap().contains("RDMA"), "{report}");
        assert_eq!(medium == "file", why("redis-wait").is_some_and(|why| why.contains("in memory")), "{report}");
    }
}

#[test]
fn several_sizes_beside_peers_make_a_table() {
    let arguments = "peers --peers file,pmof-3,librpma --size 64,4K --medium tmpfs --time 20ms --rounds 2";
    let report = json(&tmpfs(), arguments);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.iter().map(|cell| cell["size_bytes"].as_u64()).collect::<Vec<_>>(), [Some(64), Some(4096)]);
    for cell in cells {
        assert_positive(cell, &["p50_us", "floor_p50_us"]);
        assert_positive(&cell["peers"][0], &["p50_us", "ratio_p50"]);
    }
    let output = bench(&tmpfs(), arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in ["over tcp, tmpfs, adaptive", "pmof  ", "floor  ", "file  ", "3 copies", "skipped: librpma: it needs"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// Processes of this name whose parent is this one.
fn children(parent: u32, name: &str) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_one = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let Some((name_before, rest)) = stat.rsplit_once(") ") else { return false };
        name_before.ends_with(&format!("({name}")) && rest.split(' ').nth(1) == Some(&parent.to_string())
    };
    processes.filter_map(|name| name.parse().ok()).filter(is_one).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kill(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

fn is_installed(program: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|place| place.join(program).exists())
}

/// A program that is nowhere, and one that does not start: all others are measured.
#[test]
fn peers_that_cannot_start_are_named_with_their_reason() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("nbdkit");
    std::fs::write(&program, "#!/bin/sh\necho no room for blocks\nexit 3\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let directory = tmpfs();
    let mut command = command(&directory, "latency --count 5 --rounds 2 --peers=redis-aof,nbdkit-tcp,file --json");
    let report = object(&directory, command.env("PATH", place.path()));
    let [redis, nbdkit, file] = [0, 1, 2].map(|at| &report["peers"][at]);
    let why = redis["skipped"].as_str().unwrap();
    assert!(why.contains("redis-server is not installed") && why.contains("cargo xtask peers"), "{why}");
    let why = nbdkit["failed"].as_str().unwrap();
    assert!(why.contains("nbdkit ended with exit status: 3") && why.contains("no room for blocks"), "{why}");
    assert_positive(file, &["p50_us"]);
    assert_positive(&report, &["p50_us"]);
}

#[test]
fn a_peer_that_dies_in_the_middle_is_told_and_the_others_go_on() {
    if !is_installed("nbdkit") {
        skip_report::skipped!("no nbdkit here: cargo xtask peers");
        return;
    }
    let directory = tmpfs();
    let mut command = command(&directory, "latency --time 2s --rounds 20 --peers=nbdkit-unix,file --json");
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("nbdkit is started", || !children(child.id(), "nbdkit").is_empty());
    std::thread::sleep(Duration::from_millis(500));
    for process in children(child.id(), "nbdkit") {
        kill("-KILL", process);
    }
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = report["peers"][0]["failed"].as_str().unwrap();
    assert!(why.contains("closed the connection") || why.contains("reset") || why.contains("Broken pipe"), "{why}");
    assert_positive(&report["peers"][1], &["p50_us"]);
    assert_positive(&report, &["p50_us", "floor_p50_us"]);
}

#[test]
fn a_signal_ends_the_servers_of_peers_and_leaves_nothing() {
    if !is_installed("redis-server") {
        skip_report::skipped!("no redis-server here: cargo xtask peers");
        return;
    }
    let directory = tmpfs();
    let mut command = command(&directory, "latency --time 60s --rounds 60 --peers=redis-wait --json");
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("three servers run", || children(child.id(), "redis-server").len() == 3);
    let servers = children(child.id(), "redis-server");
    kill("-TERM", child.id());
    child.wait().unwrap();
    wait_until("the servers end", || servers.iter().all(|server| !is_alive(*server)));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// nbdkit asks the kernel for SIGTERM, which a stopped process does not see.
#[test]
fn a_command_that_is_killed_leaves_no_server_of_a_peer() {
    if !is_installed("nbdkit") || !is_installed("redis-server") {
        skip_report::skipped!("no nbdkit or redis-server here: cargo xtask peers");
        return;
    }
    let directory = tmpfs();
    let mut command = command(&directory, "latency --time 60s --rounds 60 --peers=nbdkit-tcp,nbdkit-unix,redis-aof");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let servers = || [children(child.id(), "nbdkit"), children(child.id(), "redis-server")].concat();
    wait_until("three servers run", || servers().len() == 3);
    let servers = servers();
    std::thread::sleep(Duration::from_millis(300));
    kill("-KILL", child.id());
    child.wait().unwrap();
    wait_until("the servers end", || servers.iter().all(|server| !is_alive(*server)));
}

/// A result that a full disk took is no success; nor is an error that nobody can read a crash.
#[test]
fn output_that_is_lost_is_a_failure_and_a_lost_error_no_crash() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for json in ["", " --json"] {
        let directory = tmpfs();
        let mut command = command(&directory, &format!("latency --count 5 --rounds 2{json}"));
        let output = command.stdout(full()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{error}");
        assert!(error.contains("all was done") && error.contains("no storage space"), "{error}");
    }
    for json in ["", " --json"] {
        let directory = tmpfs();
        let mut command = command(&directory, &format!("latency --device /no/such{json}"));
        assert_eq!(command.stderr(full()).stdout(Stdio::null()).status().unwrap().code(), Some(1));
    }
}

/// One object that names the address, and nothing beside it.
#[test]
fn a_target_that_cannot_start_is_told_with_its_reason() {
    let output = bench(&tmpfs(), "latency --address 203.0.113.7 --json");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    let error: Value = serde_json::from_str(&error).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    for part in ["did not start", "203.0.113.7:0", "`ip address`"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

/// The other operations wait for those that are late; a visible write to a file has no fdatasync in its floor.
#[test]
fn a_rate_that_is_not_kept_is_told_and_a_visible_write_has_a_visible_floor() {
    let report = json(&tmpfs(), "latency --rate 1000000 --count 200 --rounds 2");
    assert_eq!(report["rate_is_kept"], false);
    let report = json(&tmpfs(), "latency --rate 10 --count 6 --rounds 2");
    // On a busy machine even a low one may not be.
    let is_kept = report["operations_per_s"].as_f64().unwrap() >= 9.5;
    assert_eq!(report["rate_is_kept"], is_kept, "{}", report["operations_per_s"]);
    let output = bench(&tmpfs(), "latency --rate 1000000 --count 200 --rounds 2");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(" of 1000000 operations a second ended"), "{text}");
    let report = json(&disk(), "latency --medium file --mode visible --count 100 --rounds 2");
    assert!(report["ratio_p50"].as_f64().unwrap() > 0.3, "{}", report["ratio_p50"]);
}

fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_batch_beside_as_many_persists() {
    let report = json(&tmpfs(), "batch --count 20 --size 64 --rounds 2");
    assert_positive(&report, &["persists_us", "batch_us", "speedup"]);
    assert_eq!(report["durability"], "process-crash");
}

#[test]
fn idle_connections_are_counted() {
    let report = json(&tmpfs(), "idle --connections 10 --duration 50ms");
    assert_eq!(report["connections"], 10);
    assert_eq!(report["threads"], report["empty_threads"]);
    for name in ["cpu_percent", "memory_bytes"] {
        assert!(report[name].as_f64().is_some_and(|number| number >= 0.0), "{name} of {report}");
    }
}

#[test]
fn many_clients_beside_as_many_raw_threads() {
    let report = json(&disk(), "scale --clients 1 --clients 6 --rounds 2 --round 20ms");
    assert_eq!((&report["medium"], &report["durability"]), (&"file".into(), &"power-failure".into()));
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
    let report = json(&tmpfs(), "scale --medium tmpfs --transport shm --clients 3 --rounds 1 --round 20ms");
    assert_eq!(report["durability"], "process-crash");
    assert!(report["counts"][0].get("exchange_per_s").is_none(), "nothing compares over shm: {report}");
}

#[test]
fn clients_of_one_pool_have_a_table_without_exchanges() {
    let output = bench(&disk(), "scale --one-pool --clients 3 --rounds 1 --round 20ms");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in ["one pool", "CPU us", "3  pmof", "raw", "power-failure on 1/1"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("exchange"), "{text}");
}

/// On a terminal only, and gone at the end.
#[test]
fn a_line_says_how_far_it_is_where_somebody_looks() {
    if !is_installed("script") {
        skip_report::skipped!("no script here, which makes a terminal: apt-get install bsdutils");
        return;
    }
    let directory = tmpfs();
    let pmof = env!("CARGO_BIN_EXE_pmof");
    let words =
        format!("{pmof} bench latency --count 10 --rounds 2 --json --dir {} >/dev/null", directory.path().display());
    let output = Command::new("script").args(["-qec", &words, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{seen}");
    for part in ["starting", "round 1 of 2: p50 ", " us, floor ", "round 2 of 2: p50 "] {
        assert!(seen.contains(part), "{part}: {seen:?}");
    }
    assert!(seen.ends_with("\r\x1b[K"), "{seen:?}");
    let unseen = bench(&tmpfs(), "latency --count 10 --rounds 2 --json");
    assert!(unseen.stderr.is_empty(), "{}", String::from_utf8_lossy(&unseen.stderr));
}

#[test]
fn people_get_a_table() {
    let output = bench(&tmpfs(), "latency --count 10 --rounds 1");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in ["p50 us", "pmof", "floor", "process-crash on 1/1"] {
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
        "bandwidth --mode fast",
        "latency --mode apm --method send-after-write",
        "latency --rate 0",
        "latency --rate x",
        "latency --rwmixread 100",
        "latency --target-load 100",
        "latency --time 1 --count 5",
        "latency --ramp 10",
        "scale --clients 0",
        "latency --transport x",
        "latency --peers=mysql",
        "peers --size 0",
    ] {
        assert_eq!(bench(&tmpfs(), arguments).status.code(), Some(2), "{arguments}");
    }
    // Options that are each in range but not together fail while running.
    let output = bench(&tmpfs(), "bandwidth --size 1048576 --depth 1000");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in flight"));
    for (arguments, reason) in [
        ("latency --threads 2 --connections 3", "multiple"),
        ("bandwidth --layer access --replicas 2", "--replicas"),
        ("bandwidth --size 8 --depth 1000 --batch 100", "--batch"),
        ("latency --at-least 2", "--replicas"),
        ("latency --delay 5us --transport shm", "--delay"),
        ("latency --rw read --peers", "--peers"),
        ("bandwidth --peers=file", "--depth 1"),
        ("peers --peers file", "--dir lies on one medium"),
    ] {
        let output = bench(&tmpfs(), arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {error}");
        assert!(error.contains(reason), "{arguments}: {error}");
    }
}
