//! `pmof report` as a command: what it leaves when it is stopped, and what it says to bad input. How fast anything is, is not asked.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// Three cells, one of them of a mode that tcp does not have, each as short as can be.
const TINY: [&str; 14] = [
    "report",
    "--quick",
    "--transports",
    "tcp",
    "--only",
    "latency-write/tcp/auto/4096",
    "--only",
    "latency-write/tcp/auto/65536",
    "--only",
    "latency-write/tcp/apm/64",
    "--rounds",
    "2",
    "--time",
    "0.02",
];

mod names;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmof"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A tiny report at `output`, with more options.
fn report(output: &Path, more: &[&str]) -> Output {
    command(&TINY).args(more).arg("--output").arg(output).output().unwrap()
}

#[track_caller]
fn assert_failed(output: &Output, words: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The names of a report's cells, in its order.
fn places(report: &Value) -> Vec<String> {
    let name = |cell: &Value| {
        format!("{}/{}/{}/{}", cell["chart"], cell["transport"], cell["series"], cell["x"]).replace('"', "")
    };
    report["cells"].as_array().unwrap().iter().map(name).collect()
}

fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A report of every kind of cell, as version 1 was first written.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pmof-report/tests/golden/report-1.json");

/// The names of an object within another one.
fn keys(value: &Value, part: &str) -> Vec<String> {
    value.pointer(part).unwrap().as_object().unwrap().keys().cloned().collect()
}

/// Some process has its temporary files there, as all have that a report starts.
fn is_used_by_a_process(temporary: &Path) -> bool {
    let needle = temporary.to_str().unwrap().as_bytes();
    let uses = |path: std::path::PathBuf| {
        fs::read(path.join("environ")).is_ok_and(|text| text.windows(needle.len()).any(|part| part == needle))
    };
    fs::read_dir("/proc").unwrap().any(|process| uses(process.unwrap().path()))
}

const CELLS: [&str; 3] = ["latency-write/tcp/auto/4096", "latency-write/tcp/auto/65536", "latency-write/tcp/apm/64"];

#[test]
fn a_report_has_its_page_its_table_and_its_numbers() {
    let place = directory();
    let output = place.path().join("monday.html");
    let done = report(&output, &["--json"]);
    let error = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{error}");
    assert!(error.contains("[1/3]") && error.contains(" left"), "{error}");
    names::check(&String::from_utf8_lossy(&done.stdout));
    let printed: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&printed["measured"], &printed["skipped"]), (&2.into(), &1.into()));
    assert_eq!(files(place.path()), ["monday.csv", "monday.html", "monday.json"]);
    let numbers = json(&place.path().join("monday.json"));
    assert_eq!(places(&numbers), CELLS);
    for cell in &numbers["cells"].as_array().unwrap()[..2] {
        let result = &cell["result"];
        for name in ["p50_us", "floor_p50_us", "ratio_p50", "mib_per_s_low", "floor_mib_per_s_high"] {
            assert!(result[name].as_f64().is_some_and(|number| number > 0.0), "{name} of {result}");
        }
        assert_eq!(result["durability"], "process-crash");
        assert!(!result["histogram_ns"].as_array().unwrap().is_empty());
    }
    // The golden report of the page's tests has the names of today.
    let golden = json(Path::new(GOLDEN));
    for part in ["", "/plan", "/machine", "/machine/media/0", "/cells/0", "/cells/0/result"] {
        assert_eq!(keys(&numbers, part), keys(&golden, part), "{part}");
    }
    let why = numbers["cells"][2]["skipped"].as_str().unwrap();
    assert!(why.starts_with("read-after-write cannot give"), "{why}");
    let page = fs::read_to_string(&output).unwrap();
    assert!(page.contains(why) && page.contains("data-points=\"4\""), "two points and their floors");
    assert_eq!(fs::read_to_string(place.path().join("monday.csv")).unwrap().lines().count(), 4);
    // A report that is there is not written over.
    assert_failed(&report(&output, &[]), &["monday.html exists", "--output"]);
}

/// Stopped by a signal after its first cell, it leaves what it takes to go on, and nothing else.
#[test]
fn a_report_that_was_stopped_goes_on_where_it_was() {
    let (place, temporary) = (directory(), directory());
    let output = place.path().join("report");
    let mut child = command(&TINY)
        .arg("--output")
        .arg(&output)
        .env("TMPDIR", temporary.path())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let journal = output.join("report.journal");
    let lines = || fs::read_to_string(&journal).map_or(0, |text| text.matches('\n').count());
    let until = Instant::now() + LONG;
    while lines() < 2 {
        assert!(Instant::now() < until, "no cell was saved");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = child.id().to_string();
    // Where the tests themselves run in the background, SIGINT is ignored.
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let status = child.wait().unwrap();
    // It may have been done by then: everything is there, and nothing is left to be resumed.
    if status.code() == Some(1) {
        assert_eq!(files(&output), ["report.journal"]);
        assert_eq!(files(temporary.path()), Vec::<String>::new());
        let until = Instant::now() + LONG;
        while is_used_by_a_process(temporary.path()) {
            assert!(Instant::now() < until, "a process that it started still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_failed(&report(&output, &[]), &["report.journal", "--resume"]);
        let resumed = command(&["report", "--resume", "--output"]).arg(&output).output().unwrap();
        let error = String::from_utf8_lossy(&resumed.stderr);
        assert_eq!(resumed.status.code(), Some(0), "{error}");
        assert!(!error.contains("[1/3]"), "a finished cell was measured again: {error}");
    }
    assert_eq!(files(&output), ["report.csv", "report.html", "report.json"]);
    assert_eq!(places(&json(&output.join("report.json"))), CELLS);
    let nothing = command(&["report", "--resume", "--output"]).arg(&output).output().unwrap();
    assert_failed(&nothing, &["nothing to resume"]);
}

#[test]
fn an_output_that_cannot_be_written_is_said_before_anything_is_measured() {
    let place = directory();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    assert_failed(&report(&file, &[]), &["cannot make", "--output"]);
    assert_failed(&report(&file.join("below.html"), &[]), &["cannot make"]);
    let odd = command(&["report", "--only", "no such cell", "--output"]).arg(place.path()).output().unwrap();
    assert_failed(&odd, &["--only"]);
    assert_eq!(files(place.path()), ["file"]);
}

/// Files may have 1 KiB: less than a cell takes, as on a disk that is full.
#[test]
fn cells_are_listed_and_a_part_of_no_name_is_refused_before_anything_is_made() {
    let directory = directory();
    let output = directory.path().join("report");
    let listed = report(&output, &["--list"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && text.lines().count() == 3, "{text}");
    assert!(text.starts_with("latency-write/tcp/auto/4096\n"), "{text}");
    assert_failed(&report(&output, &["--only", "peers-tmpfs"]), &["peers-tmpfs", "--list"]);
    assert!(!output.exists());
}

#[test]
fn a_full_disk_is_said_and_what_was_saved_stays() {
    let place = directory();
    let shell = format!("ulimit -f 4; exec {} \"$@\"", env!("CARGO_BIN_EXE_pmof"));
    let mut limited = Command::new("sh");
    limited.args(["-c", &shell, "sh"]).args(TINY).arg("--output").arg(place.path()).env("TMPDIR", place.path());
    let output = limited.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(files(place.path()), ["report.journal"], "{error}");
}

#[test]
fn reports_are_compared_and_what_is_none_is_refused() {
    let place = directory();
    let golden = GOLDEN;
    let same = command(&["report", "compare", golden, golden]).output().unwrap();
    assert_eq!(same.status.code(), Some(0), "{}", String::from_utf8_lossy(&same.stderr));
    let text = String::from_utf8_lossy(&same.stdout);
    assert!(text.contains("0 better, 0 worse, ") && text.contains("noise"), "{text}");
    let same = command(&["report", "compare", golden, golden, "--json"]).output().unwrap();
    let same: Value = serde_json::from_slice(&same.stdout).unwrap();
    assert!(same["cells"].as_array().unwrap().iter().all(|cell| cell["verdict"] == "noise"), "{same}");
    let whole = fs::read_to_string(golden).unwrap();
    let newer = whole.replacen("\"pmof_report\":1", "\"pmof_report\":2", 1);
    assert_ne!(newer, whole);
    let bad = place.path().join("bad.json");
    for (text, words) in [
        (&whole[..whole.len() / 2], ["cut short", "bad.json"]),
        ("", ["cut short", "bad.json"]),
        ("no JSON", ["it is no JSON", "report.json"]),
        ("[1, 2]", ["another kind", "report.json"]),
        (newer.as_str(), ["format 2", "newer"]),
        ("{\"pmof_report\": 1}", ["missing", "bad.json"]),
    ] {
        fs::write(&bad, text).unwrap();
        let output = command(&["report", "compare", golden]).arg(&bad).output().unwrap();
        assert_failed(&output, &words);
    }
    assert_failed(&command(&["report", "compare", golden, "/no/such/file"]).output().unwrap(), &["/no/such/file"]);
    let wrong = command(&["report", "compare", golden]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
