//! Commands that a signal ends leave nothing of what they made for their own use.

use std::{
    collections::hash_map::RandomState,
    fs::{self, File},
    hash::{BuildHasher as _, Hasher as _},
    os::unix::{
        fs::{FileExt as _, PermissionsExt as _},
        process::ExitStatusExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use pmof::{Durability, Pool};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Said, Target, command, directory, file_with, files, pattern, pmof, serve_with, text, wait_until};

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
fn processes_of(place: &Path) -> Vec<(Pid, String)> {
    let given = format!("TMPDIR={}", text(place)).into_bytes();
    let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let is_given = |path: &PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == given)
    };
    let command = |path: PathBuf| {
        let process = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
        let command = fs::read(path.join("cmdline")).ok().filter(|command| !command.is_empty())?;
        Some((process, String::from_utf8_lossy(&command).into_owned()))
    };
    all.filter(is_given).filter_map(command).collect()
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

#[test]
fn damage_leaves_nothing() {
    interrupt(|place| ["damage", "--cases", "100000", "--dir", text(place.path())].map(str::to_owned).to_vec());
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

/// It goes on where it was: what it was making has its name by the set, and is not taken for whole.
#[test]
fn a_sync_leaves_the_set_and_can_be_made_again() {
    for (delay_ms, signal) in moments() {
        let place = directory();
        let part = |name: &str| place.path().join(name);
        let lines = ["one", "two"].map(|name| format!("64M {}\n", text(&part(name)))).join("REPLICA\n");
        let set = file_with(&place, "set", format!("PMEMPOOLSET\n{lines}").as_bytes());
        pmof(["pool", "create", text(&set)]).done();
        let byte = File::options().write(true).open(part("one")).unwrap();
        byte.write_all_at(b"x", 40 << 20).unwrap();
        fs::remove_file(part("two")).unwrap();
        let mut child = start(place.path(), &["pool", "sync", text(&set)]);
        wait_until("at work", || part("two").exists() || child.try_wait().unwrap().is_some());
        // The whole of it takes as long.
        sleep(Duration::from_millis(delay_ms / 10));
        let status = end(&mut child, signal);
        let is_as_told = status.signal() == Some(signal.as_raw()) || status.code() == Some(0);
        assert!(is_as_told, "after {delay_ms} ms, {signal:?}: {status}");
        let left = files(place.path());
        assert!(left == ["one", "set", "two"] || left == ["one", "set"], "after {delay_ms} ms, {signal:?}: {left:?}");
        pmof(["pool", "sync", text(&set)]).done();
        pmof(["pool", "check", text(&set)]).done();
        let mut byte = [0];
        File::open(part("two")).unwrap().read_exact_at(&mut byte, 40 << 20).unwrap();
        assert_eq!(&byte, b"x", "it is a copy of the other");
    }
}

/// Its initiator is told, and what it was making has no name.
#[test]
fn a_target_that_ssh_started_ends_its_session_and_leaves_pools_only() {
    let given = directory();
    let source = file_with(&given, "source", &pattern(32 << 20));
    let ssh = file_with(&given, "ssh", b"#!/bin/sh\nfor command; do :; done\nexec sh -c \"$command\"\n");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let mut was_ended = false;
    for (delay_ms, signal) in moments() {
        let (place, root) = (directory(), directory());
        let serve = format!("exec {} serve --stdio --root {}", env!("CARGO_BIN_EXE_pmof"), text(root.path()));
        let mut copy = command(["cp", text(&source), "ssh://some-host/orders", "--durability", "process-crash"]);
        copy.env("TMPDIR", place.path()).env("PMOF_SSH", &ssh).env("PMOF_SSH_COMMAND", serve);
        let mut copy = copy.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let target = || {
            let found = processes_of(place.path()).into_iter().find(|(_, command)| {
                let words: Vec<_> = command.split('\0').collect();
                words[0] == env!("CARGO_BIN_EXE_pmof") && words[1..].starts_with(&["serve", "--stdio"])
            });
            found.map(|(process, _)| process)
        };
        wait_until("at work", || target().is_some() || copy.try_wait().unwrap().is_some());
        sleep(Duration::from_millis(delay_ms));
        if let Some(target) = target() {
            let _ = kill_process(target, signal);
        }
        let said = Said::new(Instant::now(), copy.wait_with_output().unwrap());
        was_ended |= said.code == Some(1);
        assert!(matches!(said.code, Some(0 | 1)) && !said.errors.contains("panicked"), "{delay_ms} ms: {said:?}");
        wait_until("no process is left", || processes_of(place.path()).is_empty());
        assert_eq!(files(place.path()), [""; 0]);
        let left = files(root.path());
        assert!(left.is_empty() || left == ["orders"], "after {delay_ms} ms, {signal:?}: {left:?}");
    }
    assert!(was_ended, "never in the middle of the copy");
}
