//! The examples of pools, with targets in this process.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpStream},
    os::unix::fs::FileExt,
};

use pmof::{Service, ServiceOptions};
use tempfile::TempDir;

use crate::support::{Said, program, wait};

/// Two targets, and the URLs of a pool on both.
pub(crate) struct Two {
    urls: Vec<String>,
    _targets: Vec<(Service, TempDir)>,
}

impl Two {
    pub(crate) fn start() -> Self {
        let start = |_| {
            let root = tempfile::tempdir().unwrap();
            let address = "tcp://127.0.0.1:0".parse().unwrap();
            (Service::start(root.path(), &[address], ServiceOptions::default()).unwrap(), root)
        };
        let targets: Vec<_> = (0..2).map(start).collect();
        let urls = targets.iter().map(|(target, _)| format!("{}/example", target.addresses()[0])).collect();
        Self { urls, _targets: targets }
    }

    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    fn run(&self, name: &str) -> Said {
        wait(program(name).args(&self.urls).spawn().unwrap())
    }
}

#[test]
fn a_counter_counts_over_its_runs() {
    let two = Two::start();
    for count in 1..=3 {
        let said = two.run("counter").done();
        assert!(said.starts_with(&format!("{count}: process-crash on 2/2: ")), "{said}");
    }
}

#[test]
fn a_log_keeps_its_lines_over_its_runs() {
    let two = Two::start();
    let append = |line| wait(program("log").args(&two.urls).arg(line).spawn().unwrap()).done();
    for line in ["one", "a longer one"] {
        let said = append(line);
        assert!(said.starts_with("process-crash on 2/2: "), "{said}");
    }
    assert_eq!(two.run("log").done(), "one\na longer one\n");
}

#[test]
fn a_standby_takes_the_pool_over() {
    let said = wait(program("take_over").spawn().unwrap()).done();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[0].starts_with("an opening as usual: "), "{said}");
    assert_eq!(lines[1], "the standby has it, and reads: by the first");
    assert!(lines[2].starts_with("the first one: ") && lines[2].contains("initiator"), "{said}");
    assert_eq!(lines[3], "the pool: by the standby");
}

#[test]
fn an_async_server_answers_what_is_durable() {
    let two = Two::start();
    let mut server = program("async_server").arg("127.0.0.1:0").args(&two.urls).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let address = ready.trim_end().strip_prefix("ready ").expect("its address");
    let mut clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    // All of them at once, on one thread of the server.
    for client in &mut clients {
        client.write_all(b"one\ntwo\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    }
    let answers = clients.into_iter().flat_map(|client| BufReader::new(client).lines().map(Result::unwrap));
    let mut answers: Vec<_> = answers.collect();
    answers.sort();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(answers, (0..6).map(|slot| format!("{slot} on 2/2")).collect::<Vec<_>>());
}

#[test]
fn many_threads_write_one_pool() {
    let two = Two::start();
    assert_eq!(two.run("many_threads").done(), "1600 records of 64 bytes on 2 replicas\n");
}

#[test]
fn flushes_are_awaited() {
    let two = Two::start();
    let said = two.run("awaited").done();
    let starts = (0..4).map(|request| format!("request {request}: process-crash on 2/2"));
    assert!(
        said.lines().zip(starts).all(|(line, start)| line.starts_with(&start)) && said.lines().count() == 4,
        "{said}"
    );
}

#[test]
fn a_replica_is_lost_and_comes_back() {
    let said = wait(program("lost_replica").spawn().unwrap()).done();
    let lines: Vec<_> = said.lines().collect();
    let starts = |line: &str, start: &str| assert!(line.starts_with(start), "{start:?} in:\n{said}");
    starts(lines[0], "process-crash on 3/3: ");
    starts(lines[1], "process-crash on 2/3: ");
    assert!(lines[1].contains("; degraded, without tcp://127.0.0.1:"), "{said}");
    let events = &lines[2..lines.len() - 2];
    assert!(events[0].contains(" is lost: "), "{said}");
    assert!(events.iter().any(|event| event.contains(" is back and catches up: ")), "{said}");
    assert!(events.last().unwrap().contains(" is in sync after "), "{said}");
    starts(lines[lines.len() - 2], "the third has what was written without it: on the two that are left");
    starts(lines[lines.len() - 1], "process-crash on 3/3: ");
}

#[test]
fn visits_are_counted_in_both_files_of_a_set() {
    const VISITS_OFFSET: u64 = 8 << 20;
    let directory = tempfile::tempdir().unwrap();
    let [set, one, other] = ["visits.set", "one", "other"].map(|name| directory.path().join(name));
    let lines = format!("PMEMPOOLSET\n9M {}\nREPLICA\n9M {}\n", one.display(), other.display());
    fs::write(&set, lines).unwrap();
    for visit in 1..=3_u64 {
        let said = wait(program("pool_set").arg(&set).spawn().unwrap()).done();
        assert!(said.starts_with(&format!("visit {visit}: ")) && said.contains(" on 2/2: "), "{said}");
        for replica in [&one, &other] {
            let mut found = [0; 8];
            File::open(replica).unwrap().read_exact_at(&mut found, VISITS_OFFSET).unwrap();
            assert_eq!(u64::from_le_bytes(found), visit, "{}", replica.display());
        }
    }
    wait(program("pool_set").spawn().unwrap()).failed(1, &["usage: pool_set SET-FILE"]);
}

#[test]
fn without_a_replica_it_is_said_what_is_missing() {
    for name in ["awaited", "counter", "log", "many_threads"] {
        wait(program(name).spawn().unwrap()).failed(1, &["Error: a pool needs at least one replica: name one"]);
        wait(program(name).arg("tcp://127.0.0.1:1/x").spawn().unwrap()).failed(1, &["127.0.0.1:1"]);
    }
}
