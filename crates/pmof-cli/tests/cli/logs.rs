//! What a target logs, as its operator reads it.

use std::{fs, fs::File, os::unix::fs::FileExt as _, path::PathBuf, process::Child};

use pmof::{Durability, Pool, PoolError};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{command, directory, file_with, pmof, serve_with, text, wait_until};

/// A target whose log is a file. Killed when dropped.
pub(crate) struct Logged {
    pub(crate) root: TempDir,
    pub(crate) log: PathBuf,
    pub(crate) place: TempDir,
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Logged {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_at(directory(), options)
    }

    pub(crate) fn start_at(root: TempDir, options: &[&str]) -> Self {
        let place = directory();
        let log = place.path().join("log");
        let (child, address) = serve_with(root.path(), &[&["--log-file", text(&log)], options].concat());
        Self { root, log, place, child, address }
    }

    /// Its root, for the target that comes after it.
    pub(crate) fn root_again(&mut self) -> TempDir {
        std::mem::replace(&mut self.root, directory())
    }

    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a line with all of these words.
    #[track_caller]
    pub(crate) fn line(&self, words: &[&str]) -> String {
        let find = || self.text().lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned);
        wait_until(&format!("{words:?} in the log"), || find().is_some());
        find().unwrap()
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    pub(crate) fn create(&self, name: &str) -> Pool {
        self.try_to_create(name).unwrap()
    }

    pub(crate) fn try_to_create(&self, name: &str) -> Result<Pool, PoolError> {
        Pool::options().replica(self.url(name)).require(Durability::ProcessCrash).create(1 << 20)
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        // Some tests have ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_life_of_a_pool_is_a_line_each() {
    let target = Logged::start(&[]);
    target.line(&[" info listening: ", &target.address]);
    let pool = target.create("orders");
    target.line(&[" info connection_opened: ", "transport=tcp", "peer=127.0.0.1:"]);
    let created =
        target.line(&[" info pool_created: pool orders was created by the initiator at 127.0.0.1:", "pool=orders"]);
    assert!(created.contains("connection=1 ") && created.contains("peer=127.0.0.1:"), "{created}");
    // Who it is.
    let process = format!("process {} of user {})", std::process::id(), rustix::process::geteuid().as_raw());
    assert!(created.contains(&process), "{created}");
    pool.close().unwrap();
    target.line(&[" info pool_closed: ", "pool=orders"]);
    target.line(&[" info connection_closed: "]);
    pmof(["pool", "info", &target.url("orders")]).done();
    pmof(["pool", "rm", &target.url("orders")]).done();
    target.line(&[" info pool_removed: ", "pool=orders"]);
    pmof(["pool", "info", &target.url("orders")]).failed(&["there is no pool orders"]);
    target.line(&[" info pool_refused: ", "there is no pool orders", "request=info"]);
    for line in target.text().lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(humantime::parse_rfc3339(time).is_ok(), "{line}");
        assert!(rest.starts_with("info "), "{line}");
    }
}

#[test]
fn a_writer_that_is_killed_and_one_that_is_fenced_are_warnings() {
    let target = Logged::start(&[]);
    let pool = target.create("orders");
    pmof(["pool", "release", &target.url("orders"), "--silent-for", "0s"]).done();
    target.line(&[
        " warn writer_fenced: pool orders, which the initiator at 127.0.0.1",
        "pool=orders",
        "from=\"the init",
    ]);
    drop(pool);
    let pool = Pool::options().replica(target.url("orders")).require(Durability::ProcessCrash).open().unwrap();
    drop(pool);
    target.line(&[" warn pool_left_open: pool orders was not closed by ", "pool=orders"]);
}

#[test]
fn who_asks_again_and_again_is_refused_in_two_lines() {
    let target = Logged::start(&[]);
    let pool = target.create("orders");
    pmof(["pool", "release", &target.url("orders")]).failed(&["is open for writing by", "after 10000 ms"]);
    let again = target.line(&[" info pool_refused_again: ", "pool=orders", "request=take_over"]);
    let count: u32 = again.split_once("again=").unwrap().1.split([' ', ')']).next().unwrap().parse().unwrap();
    // For a second.
    assert!((1..=20).contains(&count), "{again}");
    assert_eq!(target.text().matches("pool_refused: ").count(), 1, "{}", target.text());
    pool.close().unwrap();
}

#[test]
fn damaged_and_cut_pools_are_errors() {
    let target = Logged::start(&[]);
    for name in ["damaged", "cut"] {
        target.create(name).close().unwrap();
    }
    let file = |name: &str| File::options().write(true).open(target.root.path().join(name)).unwrap();
    file("damaged").write_all_at(b"x", 20).unwrap();
    file("cut").set_len(1 << 19).unwrap();
    for (name, words) in [("damaged", "was not touched"), ("cut", "where its header says")] {
        pmof(["pool", "info", &target.url(name)]).failed(&[words]);
        target.line(&[" error pool_refused: ", words, &format!("pool={name}"), "request=info"]);
    }
}

/// A limit of file sizes stands for a full disk: the kernel refuses both alike to a file that is made.
#[test]
fn no_room_is_an_error() {
    let (root, place) = (directory(), directory());
    let (log, address) = (place.path().join("log"), place.path().join("address"));
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", "ulimit -f 4096 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_pmof"), "serve"]);
    shell.args(["--listen", "tcp://127.0.0.1:0", "--root", text(root.path()), "--log-file", text(&log)]);
    let mut child = shell.stdout(File::create(&address).unwrap()).spawn().unwrap();
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    wait_until("ready", || read(&address).ends_with('\n'));
    let url = format!("{}/large", read(&address).trim_start_matches("ready ").trim_end());
    let source = file_with(&place, "source", &vec![7; 5 << 20]);
    pmof(["cp", text(&source), &url]).failed(&["files of 4194304 bytes at most"]);
    wait_until("logged", || read(&log).contains(" error pool_refused: "));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(read(&log).contains("request=create"), "{}", read(&log));
}

#[test]
fn json_has_the_same_and_the_reason() {
    let target = Logged::start(&["--log-format", "json"]);
    pmof(["pool", "info", &target.url("missing")]).failed(&["there is no pool missing"]);
    let line = target.line(&["pool_refused"]);
    let json: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&json["level"], &json["event"], &json["pool"]),
        (&"info".into(), &"pool_refused".into(), &"missing".into())
    );
    assert!(json["connection"].is_u64() && json["time"].as_str().unwrap().ends_with('Z'), "{line}");
    assert!(json["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert!(json["reason"].as_str().unwrap().starts_with("there is no pool missing"), "{line}");
    for line in target.text().lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

#[test]
fn each_level_tells_more() {
    let mut known = 0;
    for (level, first) in
        [("error", None), ("warn", Some("pool_left_open")), ("info", Some("listening")), ("debug", Some(" request: "))]
    {
        let target = Logged::start(&["--log-level", level]);
        let pool = target.create("orders");
        pool.persist(0, b"bytes").unwrap();
        drop(pool);
        if let Some(first) = first {
            target.line(&[first]);
        }
        let lines = target.text().lines().count();
        assert!(lines > known || level == "error", "{level}: {}", target.text());
        known = lines;
    }
    assert!(known > 0);
}

#[test]
fn a_log_that_cannot_be_written_is_refused_before_ready() {
    let place = directory();
    let root = text(place.path());
    let serve =
        |options: &[&str]| pmof([&["serve", "--root", root, "--listen", "tcp://127.0.0.1:0"], options].concat());
    serve(&["--log-file", "/nonexistent/log"]).failed(&["cannot open the log file /nonexistent/log"]);
    serve(&["--log-level", "loud"]).wrong_use(&["loud", "error, warn, info, debug"]);
    serve(&["--log-format", "xml"]).wrong_use(&["xml", "text, json"]);
    serve(&["--log-syslog", "--log-file", "a"]).wrong_use(&["cannot be used with"]);
}

#[test]
fn the_log_is_on_standard_error_unless_told_otherwise() {
    let place = directory();
    let errors = place.path().join("errors");
    let mut serve = command(["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(place.path())]);
    let mut child = serve.stdout(std::process::Stdio::null()).stderr(File::create(&errors).unwrap()).spawn().unwrap();
    wait_until("logged", || fs::read_to_string(&errors).unwrap().contains(" info listening: "));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A limit of file sizes cuts a line in the middle, as a full disk does, and can be raised again.
#[test]
fn a_full_disk_cuts_no_line_and_what_was_lost_is_told_when_there_is_room() {
    let target = Logged::start(&["--log-format", "json"]);
    target.line(&["listening"]);
    let limit = |len_bytes: Option<u64>| {
        let limit = Rlimit { current: len_bytes, maximum: None };
        prlimit(Some(Pid::from_child(&target.child)), Resource::Fsize, limit).unwrap();
    };
    let miss = |name: &str| pmof(["pool", "info", &target.url(name)]).failed(&["there is no pool"]);
    miss("before");
    target.line(&["connection_closed"]);
    let before = target.text();
    limit(Some(before.len() as u64 + 50));
    for _ in 0..3 {
        miss("lost");
    }
    assert_eq!(target.text(), before, "no part of a line is left");
    limit(None);
    miss("after");
    target.line(&["pool_refused", "\"pool\":\"after\""]);
    let text = target.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(text.starts_with(&before) && !text.contains("\"pool\":\"lost\""), "{text}");
    let told = lines.iter().find(|line| line["event"] == "log_lines_lost").unwrap();
    // The connection, the refusal and the end of each; that of the last may have come after the room.
    let (count, level) = (told["count"].as_u64().unwrap(), &told["level"]);
    assert!((8..=9).contains(&count) && level == "error", "{told}");
}

/// Stopped, a target's kernel takes connections on; those of clients that have given up meanwhile are of no user.
#[test]
fn a_client_that_is_gone_is_no_foreign_user() {
    let (target, at) = crate::metrics::measured(&[]);
    let process = Pid::from_child(&target.child);
    kill_process(process, Signal::STOP).unwrap();
    for _ in 0..3 {
        pmof(["status", "--connect-timeout", "300ms", &target.address]).failed(&["did not answer within 300 ms"]);
    }
    kill_process(process, Signal::CONT).unwrap();
    // Connections are taken in the order in which they came.
    pmof(["status", &target.address]).done();
    let log = target.text();
    assert!(!log.contains("connection_refused"), "{log}");
    let refused = "pmof_connections_refused_total{reason=\"foreign_user\"}";
    assert_eq!(crate::metrics::scrape(&at)[refused], 0);
}
