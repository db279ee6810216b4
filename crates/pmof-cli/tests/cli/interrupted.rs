//! Commands that a signal ends leave nothing of what they made for their own use.

use std::{
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Stdio},
    thread::sleep,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Target, command, directory, file_with, files, pattern, pmof, text, wait_until};

/// A command that makes its files in `place`, and its sockets there too.
fn start(place: &Path, arguments: &[&str]) -> Child {
    let mut command = command(arguments);
    command.env("TMPDIR", place).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// It ends by the signal.
#[track_caller]
fn end(child: &mut Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
    wait_until("ended", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().signal(), Some(signal.as_raw()));
}

/// Ends it after some milliseconds of its work, at several moments.
fn interrupt(arguments: impl Fn(&TempDir) -> Vec<String>) {
    for (delay_ms, signal) in [(0, Signal::INT), (20, Signal::TERM), (150, Signal::INT), (600, Signal::HUP)] {
        let place = directory();
        let arguments = arguments(&place);
        let mut child = start(place.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        wait_until("at work", || !files(place.path()).is_empty());
        // Where in its work it is does not matter.
        sleep(Duration::from_millis(delay_ms));
        end(&mut child, signal);
        assert_eq!(files(place.path()), [""; 0], "after {delay_ms} ms, {signal:?}");
    }
}

#[test]
fn a_demo_leaves_nothing() {
    interrupt(|place| ["demo", "--seconds", "20", "--dir", text(place.path())].map(str::to_owned).to_vec());
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
