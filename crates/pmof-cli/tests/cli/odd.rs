//! What is no file where a file is named: pipes above all, which a program that opens them waits on for ever.

use std::{
    fs,
    io::Read as _,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;

use crate::support::{LONG, Target, command, directory, file_with, text};

/// A directory with a pipe, a socket and a directory in it.
struct Odd {
    place: TempDir,
}

impl Odd {
    fn new() -> Self {
        // The directory of the build is too long a path for a socket.
        let place = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(CWD, place.path().join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::create_dir(place.path().join("directory")).unwrap();
        drop(UnixListener::bind(place.path().join("socket")).unwrap());
        Self { place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn all(&self) -> [PathBuf; 4] {
        [self.path("pipe"), self.path("directory"), self.path("socket"), "/dev/zero".into()]
    }
}

/// The call fails soon and says why, in one line.
#[track_caller]
fn refused(arguments: &[&str]) -> String {
    let mut child = command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LONG {
            child.kill().unwrap();
            panic!("{arguments:?} waits");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(!status.success() && status.code().is_some() && !errors.is_empty(), "{arguments:?}: {status}, {errors}");
    assert!(!errors.contains("panicked"), "{arguments:?}: {errors}");
    errors
}

fn refused_with(arguments: &[&str], path: &Path) {
    let errors = refused(arguments);
    assert!(errors.contains(text(path)), "{arguments:?}: {errors}");
}

#[test]
fn nothing_waits_for_what_is_no_file() {
    let odd = Odd::new();
    let set = file_with(&odd.place, "set", b"PMEMPOOLSET\n8M /nowhere/part\n");
    let ledger = file_with(&odd.place, "ledger", b"run 1 00000000-0000-0000-0000-000000000009\nissue 0\n");
    let new = odd.path("new");
    for path in odd.all() {
        let one = text(&path);
        for command in ["info", "check", "sync", "create", "dump", "feature", "rm"] {
            refused_with(&["pool", command, one], &path);
        }
        refused_with(&["pool", "transform", one, text(&set)], &path);
        refused_with(&["pool", "transform", text(&set), one], &path);
        refused_with(&["serve", "--config", one], &path);
        refused_with(&["soak", "check", "--file", text(&set), "--seed", "1", "--ledger", one], &path);
        refused_with(&["soak", "check", "--file", one, "--seed", "1", "--ledger", text(&ledger)], &path);
        refused_with(&["cp", one, "tcp://127.0.0.1:9/x"], &path);
        refused_with(&["cp", "tcp://127.0.0.1:9/x", one, "--force"], &path);
        if !path.is_dir() {
            refused(&["doctor", one]);
            refused_with(&["serve", "--root", one], &path);
            refused_with(&["demo", "--dir", one], &path);
        }
        let device = format!("x={one}");
        refused_with(
            &["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(odd.place.path()), "--device", &device],
            &path,
        );
        if !one.starts_with("/dev") {
            refused_with(&["serve", "--root", text(odd.place.path()), "--log-file", one], &path);
        }
    }
    assert!(!new.exists());
}

/// As a part of a pool set, and as a pool of a target.
#[test]
fn nothing_waits_for_a_part_or_a_pool_that_is_no_file() {
    let odd = Odd::new();
    for path in odd.all() {
        let set = file_with(&odd.place, "set", format!("PMEMPOOLSET\n8M {}\n", text(&path)).as_bytes());
        for command in ["info", "check", "sync", "create", "dump", "feature", "rm"] {
            refused_with(&["pool", command, text(&set)], &path);
        }
    }
    let place = directory();
    let target = Target::start_at(place);
    rustix::fs::mknodat(CWD, target.file("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::create_dir(target.file("directory")).unwrap();
    for name in ["pipe", "directory"] {
        let url = target.url(name);
        for command in ["info", "rm"] {
            assert!(refused(&["pool", command, &url]).contains("pipe") || name == "directory");
        }
        refused(&["cp", &url, text(&odd.path("new"))]);
        refused(&["cp", text(&file_with(&odd.place, "source", b"text")), &url]);
        refused(&[
            "soak",
            "check",
            "--file",
            text(&target.file(name)),
            "--seed",
            "1",
            "--ledger",
            text(&odd.path("set")),
        ]);
    }
}
