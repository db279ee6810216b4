//! Commands that a signal ends leave nothing of what they made for their own use.

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::{BuildHasher as _, Hasher as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread::{self, sleep},
    time::Duration,
};

use pmof::{Durability, Pool};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Target, command, directory, file_with, files, pattern, pmof, serve_with, text, wait_until};

/// A command that makes its files in `place`, and its sockets there too.
fn start(place: &Path, arguments: &[&str]) -> Child {
    let mut command = command(arguments);
    command.env("TMPDIR", place).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Sends the signal: how it ends.
fn end(child: &mut Child, signal: Signal) -> ExitStatus {
    kill_process(Pid::from_child(child), signal).unwrap();
    wait_until("ended", || child.try_wait().unwrap().is_some());
    child.wait().unwrap()
}

/// Moments of a command's work, and what comes then: `PMOF_INTERRUPTIONS` at random, or some.
fn moments() -> Vec<(u64, Signal)> {
    let some = vec![(0, Signal::INT), (20, Signal::TERM), (150, Signal::INT), (600, Signal::HUP)];
    let Ok(count) = std::env::var("PMOF_INTERRUPTIONS") else { return some };
    let count = count.parse().expect("a number of interruptions");
    let random = || RandomState::new().build_hasher().finish();
    (0..count).map(|_| (random() % 2000, [Signal::INT, Signal::TERM, Signal::HUP][random() as usize % 3])).collect()
}

/// Processes that were given the directory for their files.
fn processes_of(place: &Path) -> Vec<String> {
    let given = format!("TMPDIR={}", text(place)).into_bytes();
    let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let is_given = |path: &PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == given)
    };
    let command =
        |path: PathBuf| String::from_utf8_lossy(&fs::read(path.join("cmdline")).unwrap_or_default()).into_owned();
    all.filter(is_given).map(command).collect()
}

/// Ends it at several moments of its work: with `how`, and nothing is left but `kept`.
fn interrupt_and(how: impl Fn(ExitStatus, Signal) -> bool, kept: &[&str], arguments: impl Fn(&TempDir) -> Vec<String>) {
    for (delay_ms, signal) in moments() {
        let place = directory();
        let arguments = arguments(&place);
        let mut child = start(place.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        wait_until("at work", || files(place.path()).iter().any(|name| !kept.contains(&name.as_str())));
        // Where in its work it is does not matter.
        sleep(Duration::from_millis(delay_ms));
        let status = end(&mut child, signal);
        assert!(how(status, signal), "after {delay_ms} ms, {signal:?}: {status}");
        let left: Vec<_> = files(place.path()).into_iter().filter(|name| !kept.contains(&name.as_str())).collect();
        assert_eq!(left, [""; 0], "after {delay_ms} ms, {signal:?}");
        wait_until("no process is left", || processes_of(place.path()).is_empty());
    }
}

/// The same of what ends by the signal and keeps nothing.
fn interrupt(arguments: impl Fn(&TempDir) -> Vec<String>) {
    interrupt_and(|status, signal| status.signal() == Some(signal.as_raw()), &[], arguments);
}

#[test]
fn a_demo_leaves_nothing() {
    interrupt(|place| ["demo", "--time", "20s", "--dir", text(place.path())].map(str::to_owned).to_vec());
}

#[test]
fn a_soak_leaves_nothing() {
    interrupt(|place| ["soak", "--kills", "1000", "--dir", text(place.path())].map(str::to_owned).to_vec());
}

#[test]
fn a_benchmark_leaves_nothing() {
    interrupt(|place| {
        let path = text(place.path());
        ["bench", "latency", "--transport", "tcp", "--medium", "file", "--dir", path].map(str::to_owned).to_vec()
    });
}

#[test]
fn chaos_leaves_nothing() {
    interrupt(|place| ["chaos", "--kills", "1000", "--dir", text(place.path())].map(str::to_owned).to_vec());
}

/// It keeps what it has measured, to go on with.
#[test]
fn a_report_leaves_what_it_goes_on_with() {
    interrupt_and(
        |status, _| status.code() == Some(1),
        &["report"],
        |place| {
            let output = place.path().join("report");
            ["report", "--quick", "--transports", "tcp", "--output", text(&output)].map(str::to_owned).to_vec()
        },
    );
}

#[test]
fn a_target_that_is_told_to_stop_leaves_its_pools() {
    let moments = moments().into_iter().filter(|(_, signal)| *signal != Signal::HUP);
    for (delay_ms, signal) in moments {
        let place = directory();
        let [socket, metrics] = ["socket", "metrics"].map(|name| place.path().join(name));
        let options = ["--drain-timeout", "100ms", "--metrics", text(&metrics), "--listen"];
        let (mut child, address) =
            serve_with(place.path(), &[&options[..], &[&format!("shm://{}", text(&socket))]].concat());
        let writer = thread::spawn(move || {
            let options = Pool::options().require(Durability::ProcessCrash).replica(format!("{address}/orders"));
            let Ok(pool) = options.create(1 << 20) else { return 0 };
            let mut acknowledged = 0_u64;
            while pool.persist(0, &acknowledged.to_le_bytes()).is_ok() {
                acknowledged += 1;
            }
            acknowledged
        });
        sleep(Duration::from_millis(delay_ms));
        let status = end(&mut child, signal);
        assert_eq!(status.code(), Some(0), "after {delay_ms} ms, {signal:?}: {status}");
        let acknowledged = writer.join().unwrap();
        let left = files(place.path());
        assert!(left.is_empty() || left == ["orders"], "after {delay_ms} ms, {signal:?}: {left:?}");
        let (mut again, address) = serve_with(place.path(), &[]);
        if acknowledged > 0 {
            let options = Pool::options().require(Durability::ProcessCrash).replica(format!("{address}/orders"));
            let mut bytes = [0; 8];
            options.open().unwrap().read(0, &mut bytes).unwrap();
            assert!(u64::from_le_bytes(bytes) + 1 >= acknowledged);
        }
        assert_eq!(end(&mut again, Signal::TERM).code(), Some(0));
    }
}

#[test]
fn a_copy_leaves_no_part_and_the_old_file() {
    let (target, place) = (Target::start(), directory());
    let source = file_with(&place, "source", &pattern(64 << 20));
    pmof(["cp", text(&source), &target.url("large")]).done();
    let mut was_interrupted = false;
    // A machine may be quick enough to finish.
    for _ in 0..20 {
        let copies = directory();
        let copy = copies.path().join("copy");
        let mut child = start(copies.path(), &["cp", &target.url("large"), text(&copy)]);
        let has_part = || files(copies.path()).iter().any(|name| name.contains(".part"));
        wait_until("at work", || has_part() || child.try_wait().unwrap().is_some());
        let _ = kill_process(Pid::from_child(&child), Signal::INT);
        wait_until("ended", || child.try_wait().unwrap().is_some());
        assert!(!has_part(), "{:?}", files(copies.path()));
        was_interrupted |= child.wait().unwrap().signal() == Some(Signal::INT.as_raw()) && !copy.exists();
        if was_interrupted {
            break;
        }
    }
    assert!(was_interrupted, "never in the middle of the copy");
}
