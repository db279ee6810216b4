//! What a target does when its operator sends it a signal.

use std::{
    fs,
    process::ExitStatus,
    time::{Duration, Instant},
};

use pmof::{Durability, Pool};
use pmof_control::{OpenFor, PoolName, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    hungry::Hungry,
    logs::Logged,
    support::{LONG, directory, file_with, files, pmof, text, wait_until},
};

impl Logged {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// How it ends, and when, from now on.
    fn end(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        wait_until("ended", || self.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap(), start.elapsed())
    }

    /// It is refused to connect: nobody listens any more.
    fn nobody_listens(&self) {
        wait_until("nobody listens", || pmof(["pool", "ls", &self.address]).errors.contains("Connection refused"));
    }
}

fn bytes_of(pool: &Pool) -> [u8; 4] {
    let mut bytes = [0; 4];
    pool.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_target_without_open_pools_stops_at_once_and_leaves_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = directory();
        let socket = place.path().join("socket");
        let mut target = Logged::start(&["--drain-timeout", "1min", "--listen", &format!("shm://{}", text(&socket))]);
        wait_until("listening", || socket.exists());
        target.create("orders").close().unwrap();
        let _idle = std::net::TcpStream::connect(target.address.trim_start_matches("tcp://")).unwrap();
        target.signal(signal);
        let (status, took) = target.end();
        assert_eq!(status.code(), Some(0));
        assert!(took < LONG, "it waits for pools, not for connections");
        assert!(!socket.exists());
        assert_eq!(files(target.root.path()), ["orders"]);
        target.line(&[" info draining: told to stop", "open pool: 0"]);
        target.line(&[" info stopped: "]);
    }
}

#[test]
fn a_writer_is_waited_for_and_nobody_else_comes() {
    let mut target = Logged::start(&["--drain-timeout", "1min"]);
    let pool = target.create("orders");
    target.signal(Signal::TERM);
    target.line(&[" info draining: ", "open pool: 1"]);
    target.nobody_listens();
    pool.persist(0, b"kept").unwrap();
    assert_eq!(target.child.try_wait().unwrap(), None);
    pool.close().unwrap();
    assert_eq!(target.end().0.code(), Some(0));
    target.line(&[" info pool_closed: ", "pool=orders"]);
    let next = Logged::start_at(target.root_again(), &[]);
    let options = Pool::options().replica(next.url("orders")).require(Durability::ProcessCrash);
    let pool = options.open().unwrap();
    assert!(pool.was_closed());
    assert_eq!(&bytes_of(&pool), b"kept");
}

/// Who was connected already and asks to open a pool is told why not; who connects finds nobody, and may guess why.
#[test]
fn a_target_that_drains_says_so_to_those_who_ask() {
    let mut target = Logged::start(&["--drain-timeout", "1min"]);
    let pool = target.create("orders");
    target.create("other").close().unwrap();
    let mut connected = Hungry::connect(target.address.trim_start_matches("tcp://").parse().unwrap());
    target.signal(Signal::TERM);
    target.line(&[" info draining: ", "open pool: 1"]);
    let name = PoolName::new("other").unwrap();
    connected.send(&Request::Open {
        name,
        access: OpenFor::Write,
        require: Durability::ProcessCrash,
        may_be_older: false,
    });
    let (_, reply) = connected.answer();
    let Reply::Refused { text: told, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(told, "this target was told to stop; connect again when it is back");
    target.line(&[" info pool_refused: ", "told to stop", "pool=other", "request=open"]);
    target.nobody_listens();
    for call in [["status", &target.address], ["cp", &target.url("other")]] {
        let copy = target.place.path().join("copy");
        let arguments = if call[0] == "cp" { vec![call[0], call[1], text(&copy)] } else { call.to_vec() };
        pmof(arguments).failed(&["Connection refused", "One that was told to stop takes no new connections"]);
    }
    pool.close().unwrap();
    assert_eq!(target.end().0.code(), Some(0));
}

#[test]
fn a_writer_that_stays_is_told_and_keeps_what_was_acknowledged() {
    let mut target = Logged::start(&["--drain-timeout", "100ms"]);
    let pool = target.create("orders");
    pool.persist(0, b"kept").unwrap();
    target.signal(Signal::TERM);
    assert_eq!(target.end().0.code(), Some(0));
    let error = pool.persist(0, b"late").unwrap_err();
    assert!(format!("{:#}", pmof::causes(&error)).contains("the target was told to stop"), "{}", pmof::causes(&error));
    target.line(&[" warn pool_left_open: ", "pool=orders"]);
    let next = Logged::start_at(target.root_again(), &[]);
    let pool = Pool::options().replica(next.url("orders")).require(Durability::ProcessCrash).open().unwrap();
    assert_eq!(&bytes_of(&pool), b"kept");
}

#[test]
fn a_second_signal_waits_for_nobody() {
    let mut target = Logged::start(&["--drain-timeout", "60min"]);
    let _pool = target.create("orders");
    target.signal(Signal::TERM);
    target.line(&[" info draining: "]);
    target.signal(Signal::INT);
    assert_eq!(target.end().0.code(), Some(0));
}

#[test]
fn a_rotated_log_goes_on_in_a_new_file() {
    let target = Logged::start(&[]);
    let old = target.place.path().join("log.1");
    fs::rename(&target.log, &old).unwrap();
    target.create("before").close().unwrap();
    wait_until("in the old file", || fs::read_to_string(&old).unwrap().contains("pool=before"));
    target.signal(Signal::HUP);
    wait_until("reopened", || target.log.exists());
    target.line(&[" info log_reopened: "]);
    target.create("after").close().unwrap();
    target.line(&["pool_created", "pool=after"]);
    assert!(!target.text().contains("before") && !fs::read_to_string(&old).unwrap().contains("after"));

    // The directory of the log is gone: the file that is open stays in use.
    let place = target.place.path().with_extension("gone");
    fs::rename(target.place.path(), &place).unwrap();
    target.signal(Signal::HUP);
    let log = place.join("log");
    wait_until("said", || fs::read_to_string(&log).unwrap().contains(" error log_not_reopened: "));
    fs::rename(&place, target.place.path()).unwrap();
}

#[test]
fn a_configuration_is_read_again_and_a_wrong_one_is_not_taken() {
    let place = directory();
    let config = file_with(&place, "pmof.conf", b"log-level = warn\n");
    let target = Logged::start(&["--config", text(&config)]);
    target.create("quiet").close().unwrap();
    let reload = |text: &str| {
        fs::write(&config, text).unwrap();
        target.signal(Signal::HUP);
    };
    reload("log-level = info\n");
    target.line(&[" info configuration_reloaded: ", "changed: log-level"]);
    target.create("heard").close().unwrap();
    target.line(&["pool_created", "pool=heard"]);
    assert!(!target.text().contains("quiet"));

    reload("log-level = info\nmax-connections = none\n");
    target.line(&[" error configuration_refused: the former configuration stays in use: ", "pmof.conf:2"]);
    target.create("still").close().unwrap();
    target.line(&["pool_created", "pool=still"]);

    reload("log-level = info\nworkers = 3\nmax-connections = 1\n");
    target.line(&[" warn configuration_needs_restart: ", "started again: workers"]);
    target.line(&[" info configuration_reloaded: ", "changed: max-connections"]);
    // The connection before it may have yet to end.
    let mut one = None;
    wait_until("there is room for one", || {
        one = one.take().or_else(|| target.try_to_create("one").ok());
        one.is_some()
    });
    pmof(["pool", "ls", &target.address]).failed(&["as many connections as it may have"]);
    target.line(&[" warn connection_refused: ", "--max-connections"]);
}
