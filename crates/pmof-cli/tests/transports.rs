//! Runs the real binary over shared memory and on devices, and the halves of the soak with their ledger.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

mod names;

const DEVICE_BYTES: usize = 20 << 20;

/// A directory in the build's, which lies on a disk where `/tmp` may not.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn pmof(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pmof")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The one object that it prints, and whether it succeeded.
#[track_caller]
fn object(output: &Output) -> (Value, bool) {
    let text = String::from_utf8_lossy(&output.stdout);
    names::check(&text);
    assert_eq!(text.lines().count(), 1, "{output:?}");
    (serde_json::from_str(&text).unwrap(), output.status.success())
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let (value, is_good) = object(&pmof(arguments));
    assert!(is_good, "{value}");
    value
}

/// A file with all its blocks.
fn device(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, vec![0; DEVICE_BYTES]).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A target on TCP and on a socket. Killed when dropped.
struct Target {
    child: Child,
    tcp: String,
    shm: String,
    _socket: TempDir,
}

impl Target {
    fn start(root: &Path, more: &[&str]) -> Self {
        // Paths of sockets are short.
        let socket = tempfile::tempdir().unwrap();
        let listen = format!("shm://{}", socket.path().join("s").display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_pmof"))
            .args(["serve", "--listen", "tcp://127.0.0.1:0", "--listen", &listen, "--root", text(root)])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut address = || lines.next().unwrap().strip_prefix("ready ").unwrap().to_owned();
        Self { tcp: address(), shm: address(), child, _socket: socket }
    }

    fn kill(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn the_demo_runs_over_shared_memory_and_on_a_device() {
    let directory = directory();
    let device = device(directory.path(), "device");
    let dir = directory.path().join("dir");
    fs::create_dir(&dir).unwrap();
    let report =
        json(&["demo", "--transport", "shm", "--time", "1s", "--json", "--dir", text(&dir), "--device", text(&device)]);
    assert_eq!((&report["transport"], &report["durability"]), (&"shm".into(), &"power-failure".into()));
    assert!(report["replicas"].as_array().unwrap().iter().all(|replica| replica["records_verified"] != 0));
    assert!(fs::read(&device).unwrap()[..4096].iter().all(|byte| *byte == 0), "the device is free again");
    assert!(fs::read_dir(&dir).unwrap().next().is_none());
}

#[test]
fn the_soak_kills_over_shared_memory() {
    let directory = directory();
    let summary = json(&["soak", "--transport", "shm", "--kills", "6", "--json", "--dir", text(directory.path())]);
    assert_eq!((&summary["kills"], &summary["transport"]), (&6.into(), &"shm".into()));
}

#[test]
fn latency_over_shared_memory_is_compared_with_stores() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let arguments = ["--transport", "shm", "--size", "512", "--count", "20", "--rounds", "2", "--json", "--dir"];
    let report = json(&[&["bench", "latency"], &arguments[..], &[text(directory.path())]].concat());
    assert_eq!(report["method"], "local-write-back");
    for name in ["p50_us", "floor_p50_us", "ratio_p50"] {
        assert!(report[name].as_f64().is_some_and(|number| number > 0.0), "{name} of {report}");
    }
    let arguments = ["--transport", "shm", "--size", "4096", "--count", "20", "--rounds", "2", "--json", "--dir"];
    let report = json(&[&["bench", "bandwidth"], &arguments[..], &[text(directory.path())]].concat());
    assert!(report["ratio_bandwidth"].as_f64().is_some_and(|number| number > 0.0), "{report}");
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
}

#[test]
fn a_ledger_tells_what_a_pool_must_hold() {
    let directory = directory();
    let (root, device) = (directory.path().join("root"), device(directory.path(), "device"));
    fs::create_dir(&root).unwrap();
    let mut target = Target::start(&root, &["--device", &format!("b={}", device.display())]);
    let (a, b) = (format!("{}/a", target.tcp), format!("{}?pool=b", target.shm));
    let ledger = directory.path().join("ledger");
    let ledger = text(&ledger);
    let wrote = json(&[
        "soak",
        "write",
        "--pool",
        &a,
        "--pool",
        &b,
        "--create",
        "300000",
        "--durability",
        "power-failure",
        "--ledger",
        ledger,
        "--seed",
        "5",
        "--time",
        "1s",
    ]);
    assert!(wrote["batches_acknowledged"].as_u64().unwrap() > 2, "{wrote}");
    let checked = json(&["soak", "check", "--pool", &a, "--pool", &b, "--ledger", ledger, "--seed", "5"]);
    assert_eq!(
        (&checked["batches_acknowledged"], &checked["words_wrong"], &checked["batches_lost"]),
        (&wrote["batches_acknowledged"], &0.into(), &0.into())
    );
    assert_eq!(checked["verified_bytes"], 600_000);
    target.kill();
    let file = root.join("a");
    let check = |ledger: &str, seed: &str| {
        let files = ["--file", text(&file), "--file", text(&device)];
        object(&pmof(&[&["soak", "check", "--ledger", ledger, "--seed", seed], &files[..]].concat()))
    };
    let (stopped, is_good) = check(ledger, "5");
    assert!(is_good && stopped["verified_bytes"] == 600_000, "{stopped}");

    // The controls. Another seed; a byte that changed; acknowledgements of what was never written.
    let other = pmof(&["soak", "check", "--ledger", ledger, "--seed", "6", "--file", text(&file)]);
    let error = String::from_utf8_lossy(&other.stderr);
    assert!(error.contains("is of a run with seed 5, and --seed is 6: nothing was compared"), "{error}");
    let mut bytes = fs::read(&device).unwrap();
    bytes[pmof_control::DATA_OFFSET as usize + 100] ^= 1;
    fs::write(&device, &bytes).unwrap();
    let (report, is_good) = check(ledger, "5");
    assert!(!is_good && report["words_wrong"] == 1 && report["batches_lost"] == 1, "{report}");
    bytes[pmof_control::DATA_OFFSET as usize + 100] ^= 1;
    fs::write(&device, &bytes).unwrap();
    let told = fs::read_to_string(ledger).unwrap();
    let more = wrote["batches_acknowledged"].as_u64().unwrap();
    let longer = |lines: String| {
        let path = directory.path().join("longer");
        fs::write(&path, format!("{told}{lines}")).unwrap();
        path
    };
    let issued = longer(format!("issue {more}\n"));
    assert!(check(text(&issued), "5").1, "what was issued need not be there");
    let claimed = longer(format!("issue {more}\nack {more}\nissue {}\nack {}\n", more + 1, more + 1));
    let (report, is_good) = check(text(&claimed), "5");
    assert!(!is_good && report["batches_lost"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn writes_that_were_not_flushed_are_acknowledged_only_on_request() {
    let directory = directory();
    let target = Target::start(directory.path(), &[]);
    let url = format!("{}?pool=a", target.shm);
    let ledger = directory.path().join(".ledger");
    let write = |more: &[&str]| {
        let common = ["soak", "write", "--pool", &url, "--ledger", text(&ledger), "--seed", "1", "--time", "1s"];
        pmof(&[&common[..], more].concat())
    };
    let (report, is_good) = object(&write(&["--create", "200000", "--durability", "visible", "--skip-flush"]));
    assert!(is_good && report["durability"] == "visible", "{report}");
    fs::remove_file(&ledger).unwrap();
    let refused = write(&["--durability", "power-failure", "--method", "native-flush"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("native-flush") && error.contains(&url), "{error}");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for (arguments, word) in [
        (&["demo", "--transport", "verbs"][..], "--address"),
        (&["demo", "--source", "127.0.0.1"], "--source"),
        (&["soak", "--transport", "shm", "--address", "127.0.0.1"], "--address"),
        (&["bench", "latency", "--transport", "shm", "--delay", "5us"], "--delay"),
    ] {
        let output = pmof(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(word), "{arguments:?}: {error}");
    }
    for wrong in ["orders", "a/b=/dev/null", "=/dev/null"] {
        assert_eq!(pmof(&["serve", "--root", ".", "--device", wrong]).status.code(), Some(2), "{wrong}");
    }
}
