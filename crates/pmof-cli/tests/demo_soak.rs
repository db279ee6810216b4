//! Runs the real binary: the demo, the soak, and the soak's positive control.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

mod names;

/// A directory in the build's, which lies on a disk where `/tmp` may not.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn pmof(directory: &TempDir, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pmof")).args(arguments).arg("--dir").arg(directory.path()).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    names::check(&text);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(text.lines().count(), 1, "one object and nothing else: {text}");
    serde_json::from_str(&text).unwrap()
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {path} in {value}"))
}

fn is_empty(directory: &TempDir) -> bool {
    std::fs::read_dir(directory.path()).unwrap().next().is_none()
}

#[test]
fn the_demo_recovers_every_acknowledged_write() {
    let directory = directory();
    let report = json(&pmof(&directory, &["demo", "--time", "1s", "--json"]));
    assert_eq!(report["durability"], "power-failure");
    assert_eq!(report["evidence"], "probed");
    let replicas = report["replicas"].as_array().unwrap();
    assert_eq!(replicas.len(), 3);
    for replica in replicas {
        assert!(number(replica, "/records_verified") > 0.0);
        assert!((number(replica, "/verified_bytes") - number(&report, "/len_bytes")).abs() < 0.5);
    }
    // The one that was killed first acknowledged less than the others.
    let (killed, other) = (&replicas[1], &replicas[0]);
    assert_eq!(killed["killed_first"], true);
    assert!(number(killed, "/batches_acknowledged") < number(other, "/batches_acknowledged"));
    assert!(number(&report, "/degraded/batches_acknowledged") > 0.0 && number(&report, "/complete/p50_us") > 0.0);
    assert!(!report["failure"].as_str().unwrap().is_empty());
    // It came back, with what it lacked, and acknowledged again.
    assert!(number(&report, "/catch_up/copied_bytes") > 0.0 && number(&report, "/catch_up/took_ms") > 0.0);
    assert!(number(&report, "/recovered/batches_acknowledged") > 0.0);
    assert!(
        number(killed, "/batches_acknowledged")
            >= number(&report, "/complete/batches_acknowledged") + number(&report, "/recovered/batches_acknowledged")
    );
    assert!(is_empty(&directory), "the demo cleans up");
}

#[test]
fn the_demo_tells_people_what_happens() {
    let directory = directory();
    let output = pmof(&directory, &["demo", "--time", "1s"]);
    let text = String::from_utf8_lossy(&output.stdout);
    names::check(&text);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for words in [
        "1. Three targets",
        "receipt: power-failure on 3 of 3",
        "receipt: power-failure on 2 of 3",
        "degraded, without tcp://127.0.0.1:",
        " is back and lacks up to ",
        " bytes were copied in ",
        "Every acknowledged write was recovered",
    ] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
}

#[test]
fn the_demo_refuses_a_directory_without_durability() {
    let output = Command::new(env!("CARGO_BIN_EXE_pmof")).args(["demo", "--dir", "/proc"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("/proc") && error.contains("--dir DIR"), "{error}");
    let output = Command::new(env!("CARGO_BIN_EXE_pmof")).args(["demo", "--time", "0s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn killed_with_its_demo_no_target_is_left() {
    let directory = directory();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_pmof"))
        .args(["demo", "--time", "20s", "--dir"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    let targets: Vec<u32> = lines
        .take_while(|line| !line.starts_with("3."))
        .filter_map(|line| line.split_once("process ")?.1.split(',').next()?.parse().ok())
        .collect();
    assert_eq!(targets.len(), 3);
    assert!(targets.iter().all(|process| is_running(*process)), "the control");
    // SIGKILL leaves the demo no say; SIGINT has the same end.
    demo.kill().unwrap();
    demo.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while targets.iter().any(|process| is_running(*process)) {
        assert!(Instant::now() < deadline, "targets outlive their demo");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the process is there and not a zombie that nobody reaped.
fn is_running(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
}

#[test]
fn acknowledged_writes_survive_the_soak() {
    let directory = directory();
    let summary = json(&pmof(&directory, &["soak", "--kills", "21", "--json"]));
    for (name, expected) in
        [("kills", 21.0), ("kills_of_target", 7.0), ("kills_of_initiator", 7.0), ("kills_of_both", 7.0)]
    {
        assert!((number(&summary, &format!("/{name}")) - expected).abs() < 0.5, "{name} in {summary}");
    }
    assert!(number(&summary, "/batches_acknowledged") > 0.0, "{summary}");
    assert!(
        number(&summary, "/batches_issued") > number(&summary, "/batches_acknowledged"),
        "kills cut nothing: {summary}"
    );
    assert!((number(&summary, "/words_verified") - 21.0 * 131_072.0).abs() < 0.5, "{summary}");
    assert!(is_empty(&directory), "the soak cleans up");
}

#[test]
fn the_soak_finds_acknowledgements_without_a_write() {
    let directory = directory();
    let output = pmof(&directory, &["soak", "--kills", "30", "--seed", "77", "--json", "--break-acknowledgement"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(output.stdout.is_empty());
    for words in ["is wrong after kill", "expected", "found", "--seed 77"] {
        assert!(error.contains(words), "{words:?} is missing in: {error}");
    }
}

#[test]
fn the_chaos_finds_a_byte_that_no_catch_up_copied() {
    let directory = directory();
    let chaos = ["chaos", "--kills", "1", "--pauses", "0", "--cuts", "0", "--seed", "5", "--json", "--break-catch-up"];
    // A member that is late on a busy machine would be lost, compared by digests, and repaired.
    let output = pmof(&directory, &[&chaos[..], &["--loss-timeout", "20000ms"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("are not what was acknowledged last") && error.contains("--seed 5"), "{error}");
    assert!(!is_empty(&directory), "the pool is kept to be looked into");
}

#[test]
fn a_pool_is_taken_from_writers_that_hang() {
    let directory = directory();
    for transport in ["tcp", "shm"] {
        let takeovers = ["bench", "takeover", "--count", "5", "--transport", transport, "--json"];
        let report = json(&pmof(&directory, &takeovers));
        assert_eq!(report["latency"]["samples"], 5, "{report}");
        assert!(is_empty(&directory), "the benchmark cleans up");
    }
}

#[test]
fn nobody_notices_kills_and_pauses_over_shared_memory() {
    let directory = directory();
    let chaos = ["chaos", "--transport", "shm", "--kills", "3", "--pauses", "1", "--json"];
    let report = json(&pmof(&directory, &[&chaos[..], &["--loss-timeout", "2000ms"]].concat()));
    assert!(number(&report, "/errors").abs() < 0.5 && number(&report, "/persists") > 0.0, "{report}");
    assert!(number(&report, "/catch_ups") >= 1.0 && number(&report, "/stall/kill/samples") > 2.0, "{report}");
    assert!(is_empty(&directory), "the chaos cleans up");
}

#[test]
fn nobody_notices_kills_pauses_and_cuts() {
    let directory = directory();
    let chaos = ["chaos", "--kills", "3", "--pauses", "1", "--cuts", "1", "--json"];
    // Targets of a machine that is busy with other tests are late too.
    let report = json(&pmof(&directory, &[&chaos[..], &["--loss-timeout", "2000ms"]].concat()));
    assert!(number(&report, "/errors").abs() < 0.5 && number(&report, "/persists") > 0.0, "{report}");
    for (kind, count) in [("/faults/kills", 3.0), ("/faults/pauses", 1.0), ("/faults/cuts", 1.0)] {
        assert!((number(&report, kind) - count).abs() < 0.5, "{kind} of {report}");
    }
    assert!(number(&report, "/catch_ups") >= 1.0 && number(&report, "/stall/kill/samples") > 2.0, "{report}");
    assert!(is_empty(&directory), "the chaos cleans up");
}
