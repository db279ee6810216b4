//! `pmof serve --metrics`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::{
        fs::symlink,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Child, Command, Stdio},
};

use pmof::{Durability, Pool};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skip_report::skipped;

use crate::{
    logs::Logged,
    support::{command, directory, pmof, text, wait_until},
};

/// What a GET of `path` is answered with, by a version of HTTP that neither keeps connections nor cuts answers into chunks.
fn get(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: target\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A target that serves metrics on a port of its own, and where.
pub(crate) fn measured(options: &[&str]) -> (Logged, String) {
    let target = Logged::start(&[&["--metrics", "127.0.0.1:0"], options].concat());
    let line = target.line(&["metrics_listening"]);
    let at = line.split("metrics are served at http://").nth(1).unwrap().split("/metrics").next().unwrap().to_owned();
    (target, at)
}

/// The values by their names, labels included, in whole numbers.
fn values(answer: &str) -> BTreeMap<String, i64> {
    assert!(answer.lines().next().is_some_and(|line| line.ends_with("200 OK")), "{answer}");
    let lines = answer.lines().filter(|line| line.starts_with("pmof_"));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse::<f64>().unwrap().round() as i64))
        .collect()
}

pub(crate) fn scrape(at: &str) -> BTreeMap<String, i64> {
    values(&get(TcpStream::connect(at).unwrap(), "/metrics"))
}

#[test]
fn counts_are_those_of_the_run() {
    let (target, at) = measured(&[]);
    let pool = Pool::options().require(Durability::ProcessCrash).replica(format!("{}/orders", target.address));
    let open = pool.create(1 << 20).unwrap();
    let before = scrape(&at);
    for index in 0..100 {
        open.persist(index * 512, &[7; 512]).unwrap();
    }
    let mut bytes = [0; 4096];
    for index in 0..10 {
        open.read(index * 4096, &mut bytes).unwrap();
    }
    let after = scrape(&at);
    for (name, more) in [
        ("pmof_operations_total{operation=\"write\"}", 100),
        ("pmof_written_bytes_total", 51_200),
        ("pmof_operations_total{operation=\"read\"}", 10),
        ("pmof_read_bytes_total", 40_960),
        ("pmof_flushes_total{level=\"process_crash\"}", 100),
        ("pmof_flushes_total{level=\"power_failure\"}", 0),
    ] {
        assert_eq!(after[name] - before[name], more, "{name}");
    }
    assert_eq!(after["pmof_pools{state=\"being_written\"}"], 1);
    open.close().unwrap();
    assert_eq!(scrape(&at)["pmof_pools{state=\"idle\"}"], 1);

    pmof(["pool", "info", &format!("{}/missing", target.address)]).failed(&["there is no pool missing"]);
    let after = scrape(&at);
    assert_eq!(after["pmof_requests_refused_total{request=\"info\",reason=\"not_found\"}"], 1);
    assert_eq!(after["pmof_request_seconds_count{request=\"create\"}"], 1);
    assert!(after["pmof_connections_accepted_total{transport=\"tcp\"}"] >= 2);
    assert_eq!(after["pmof_build_info{version=\"0.1.0\",protocol=\"1\",pool_format=\"3\"}"], 1);
}

#[test]
fn waits_for_the_medium_and_damaged_pools_show() {
    let (target, at) = measured(&[]);
    let pool = Pool::options().require(Durability::PowerFailure).replica(format!("{}/orders", target.address));
    let open = pool.create(1 << 20).unwrap();
    for _ in 0..5 {
        open.persist(0, b"kept").unwrap();
    }
    let now = scrape(&at);
    assert!(now["pmof_medium_wait_seconds_count"] >= 5, "{now:?}");
    assert_eq!(now["pmof_medium_wait_seconds_bucket{le=\"+Inf\"}"], now["pmof_medium_wait_seconds_count"]);
    assert_eq!(now["pmof_medium_wait_failures_total"], 0);
    open.close().unwrap();
    let file = target.root.path().join("orders");
    fs::write(&file, &fs::read(&file).unwrap()[..8192]).unwrap();
    assert_eq!(scrape(&at)["pmof_pools{state=\"unusable\"}"], 1);
}

#[test]
fn a_connection_that_is_turned_away_or_left_open_is_counted() {
    let (target, at) = measured(&["--max-connections", "1"]);
    let pool = target.create("orders");
    pmof(["pool", "ls", &target.address]).failed(&["as many connections"]);
    assert_eq!(scrape(&at)["pmof_connections_refused_total{reason=\"too_many\"}"], 1);
    // Dropped without being closed.
    drop(pool);
    wait_until("counted", || scrape(&at)["pmof_connections"] == 0);
    assert_eq!(scrape(&at)["pmof_pools_left_open_total"], 1);
}

/// Commands and readers end without a word, and no alarm is raised.
#[test]
fn only_a_writer_that_is_lost_is_counted_as_one() {
    let ((here, at), (far, far_at)) = (measured(&[]), measured(&[]));
    here.create("orders").close().unwrap();
    let [here, far] = [here, far].map(|target| (format!("{}/orders", target.address), target));
    let count = || [&at, &far_at].map(|at| scrape(at)["pmof_pools_left_open_total"]);
    pmof(["pool", "add", "--async", "--keep-points", "2", &here.0, &far.0]).done();
    pmof(["pool", "clear", &here.0]).done();
    for command in [["pool", "status"], ["pool", "points"]] {
        pmof(command.into_iter().chain([&*here.0])).done();
    }
    pmof(["pool", "remove", &here.0, "77"]).failed(&["has no member 77"]);
    let pool = Pool::options().require(Durability::ProcessCrash).replica(&here.0).open().unwrap();
    pool.persist(0, b"far").unwrap();
    pool.close().unwrap();
    drop(Pool::options().require(Durability::ProcessCrash).replica(&here.0).open_read_only().unwrap());
    wait_until("all are gone", || [&at, &far_at].iter().all(|at| scrape(at)["pmof_connections"] == 0));
    assert_eq!(count(), [0, 0]);
    drop(Pool::options().require(Durability::ProcessCrash).replica(&here.0).open().unwrap());
    wait_until("a writer that is lost", || count()[0] == 1);
}

#[test]
fn only_metrics_are_served_and_only_read() {
    let (target, at) = measured(&[]);
    assert!(get(TcpStream::connect(&at).unwrap(), "/").contains("404 Not Found"));
    let mut stream = TcpStream::connect(&at).unwrap();
    write!(stream, "POST /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("405 Method Not Allowed"), "{answer}");
    // A body that was announced and never comes, however long, harms nobody.
    for length in ["9000000000000000000", "2000"] {
        let mut stream = TcpStream::connect(&at).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(values(&answer).contains_key("pmof_draining"));
    }
    // What is no request ends that connection, and nothing else.
    TcpStream::connect(&at).unwrap().write_all(&[0xff; 300]).unwrap();
    assert!(scrape(&at).contains_key("pmof_draining"));
    drop(target);
}

#[test]
fn a_port_in_use_and_an_address_that_is_none_are_errors_before_the_target_is_ready() {
    let (_target, at) = measured(&[]);
    let root = directory();
    let said = pmof(["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(root.path()), "--metrics", &at]);
    assert!(said.errors.contains(&format!("cannot serve metrics at http://{at}/metrics: ")), "{said:?}");
    assert_eq!((said.code, said.output.as_str()), (Some(1), ""));
    assert!(said.errors.contains("Address already in use"), "{said:?}");
    pmof(["serve", "--root", text(root.path()), "--metrics", "7205"]).wrong_use(&["HOST:PORT, such as 127.0.0.1:7205"]);
    let long = format!("/{}", "s".repeat(107));
    pmof(["serve", "--root", text(root.path()), "--metrics", &long])
        .wrong_use(&["the path of a Unix socket has at most 107 bytes, and this one has 108"]);
}

#[test]
fn a_socket_of_a_killed_target_is_replaced_and_one_of_a_stopped_target_is_gone() {
    let place = directory();
    let socket = place.path().join("metrics");
    drop(UnixListener::bind(&socket).unwrap());
    let mut target = Logged::start(&["--metrics", text(&socket)]);
    let now = values(&get(UnixStream::connect(&socket).unwrap(), "/metrics"));
    assert_eq!(now["pmof_draining"], 0);

    // One that is in use is not taken away.
    let root = directory();
    let said =
        pmof(["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(root.path()), "--metrics", text(&socket)]);
    assert!(said.errors.contains("Address already in use"), "{said:?}");

    kill_process(Pid::from_child(&target.child), Signal::TERM).unwrap();
    assert!(target.child.wait().unwrap().success());
    assert!(!socket.exists());
}

/// A connection to a file is refused like one to a socket that nobody listens on: the file of a pool was once taken for one.
#[test]
fn whatever_is_no_socket_is_left_alone() {
    let (root, place) = (directory(), directory());
    let (file, link) = (place.path().join("file"), place.path().join("link"));
    fs::write(&file, "bytes").unwrap();
    symlink(&file, &link).unwrap();
    for at in [&file, &link, &place.path().to_owned()] {
        let said = pmof(["serve", "--listen", "tcp://127.0.0.1:0", "--root", text(root.path()), "--metrics", text(at)]);
        assert!(said.errors.contains("there is a file that is no socket"), "{said:?}");
        assert_eq!((said.code, said.output.as_str()), (Some(1), ""));
    }
    assert_eq!(fs::read(&link).unwrap(), b"bytes");

    // What was put in the place of the target's own socket stays, too.
    let socket = place.path().join("metrics");
    let mut target = Logged::start(&["--metrics", text(&socket)]);
    fs::rename(&file, &socket).unwrap();
    kill_process(Pid::from_child(&target.child), Signal::TERM).unwrap();
    assert!(target.child.wait().unwrap().success());
    assert_eq!(fs::read(&socket).unwrap(), b"bytes");
}

/// Clients that say nothing, say too much, or read nothing keep nobody from scraping for long, nor the target from stopping.
#[test]
fn clients_that_misbehave_are_given_up() {
    let (mut target, at) = measured(&[]);
    let _silent = TcpStream::connect(&at).unwrap();
    let mut endless = TcpStream::connect(&at).unwrap();
    while endless.write_all(&[b'x'; 4096]).is_ok() {}
    assert!(scrape(&at).contains_key("pmof_draining"));
    let mut greedy = TcpStream::connect(&at).unwrap();
    for _ in 0..3000 {
        // It is cut off at some point, and told nothing that it would read.
        if greedy.write_all(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n").is_err() {
            break;
        }
    }
    assert!(scrape(&at).contains_key("pmof_draining"));
    // None of many is waited for: some are still there behind the answer, unless this takes longer than each of them has.
    assert!((0..5).any(|_| is_answered_before(&at)), "each client was waited for");
    kill_process(Pid::from_child(&target.child), Signal::TERM).unwrap();
    wait_until("it has stopped", || target.child.try_wait().unwrap().is_some());
    assert!(target.child.wait().unwrap().success());
}

/// Whether a scrape is answered before all of many clients are given up that came earlier and sent half a request.
fn is_answered_before(at: &str) -> bool {
    let half = |_| {
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(b"GET /met").unwrap();
        client
    };
    let half: Vec<_> = (0..100).map(half).collect();
    assert!(scrape(at).contains_key("pmof_draining"));
    let is_there = |mut client: &TcpStream| {
        client.set_nonblocking(true).unwrap();
        matches!(client.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    half.iter().any(is_there)
}

/// Killed when dropped.
struct Prometheus(Child);

impl Prometheus {
    /// `None` where it is not installed. It answers at `at`.
    fn start(place: &Path, scraped: &str, at: &str) -> Option<Self> {
        let config = place.join("prometheus.yml");
        let text_of = format!(
            "global: {{scrape_interval: 200ms}}\nscrape_configs:\n  - job_name: pmof\n    static_configs: [{{targets: ['{scraped}']}}]\n"
        );
        fs::write(&config, text_of).unwrap();
        let mut prometheus = Command::new("prometheus");
        prometheus.arg(format!("--config.file={}", text(&config)));
        prometheus.arg(format!("--storage.tsdb.path={}", text(&place.join("data"))));
        prometheus.arg(format!("--web.listen-address={at}")).stdout(Stdio::null()).stderr(Stdio::null());
        prometheus.spawn().ok().map(Self)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// What Prometheus says of a query that has one value.
fn queried(at: &str, query: &str) -> Option<i64> {
    let stream = TcpStream::connect(at).ok()?;
    let answer = get(stream, &format!("/api/v1/query?query={query}"));
    let body: Value = serde_json::from_str(&answer[answer.find('{')?..=answer.rfind('}')?]).ok()?;
    body["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}

#[test]
fn prometheus_scrapes_a_target() {
    let (target, scraped) = measured(&[]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap().to_string();
    drop(free);
    let place = directory();
    let Some(_prometheus) = Prometheus::start(place.path(), &scraped, &at) else {
        return skipped!("no prometheus here (Debian package prometheus)");
    };
    let pool = target.create("orders");
    for _ in 0..20 {
        pool.persist(0, b"kept").unwrap();
    }
    wait_until("scraped", || queried(&at, "up") == Some(1));
    let written = scrape(&scraped)["pmof_operations_total{operation=\"write\"}"];
    assert!(written >= 20);
    wait_until("counted there too", || {
        queried(&at, "pmof_operations_total{operation=\"write\"}".replace('"', "%22").as_str()) == Some(written)
    });
    assert_eq!(queried(&at, "count(pmof_request_seconds_bucket{request=%22create%22})"), Some(26));
    pool.close().unwrap();
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("pmof_")).map(str::to_owned).collect()
}

#[test]
fn alerts_and_the_dashboard_name_metrics_that_there_are() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let (_target, at) = measured(&[]);
    let page = get(TcpStream::connect(&at).unwrap(), "/metrics");
    let known = names(&page.lines().filter(|line| line.starts_with("# TYPE")).collect::<String>());
    assert!(known.len() > 20, "{known:?}");
    let family = |name: &str| {
        ["_total", "_bucket"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned()
    };
    for file in ["prometheus/pmof-alerts.yml", "grafana/pmof-targets.json", "../docs/operating.md"] {
        let named = names(&fs::read_to_string(packaging.join(file)).unwrap());
        assert!(named.len() >= 8, "{file}: {named:?}");
        for name in named {
            assert!(known.contains(&family(&name)), "{file} names {name}, which there is not");
        }
    }
    let dashboard = fs::read_to_string(packaging.join("grafana/pmof-targets.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&dashboard).unwrap()["panels"].as_array().unwrap().len() > 5);
    let alerts = packaging.join("prometheus/pmof-alerts.yml");
    match Command::new("promtool").args(["check", "rules"]).arg(&alerts).output() {
        Ok(said) => assert!(said.status.success(), "{said:?}"),
        Err(_) => skipped!("no promtool here (Debian package prometheus)"),
    }
}

#[test]
fn metrics_are_shown_in_the_help_and_not_offered_with_stdio() {
    assert!(pmof(["serve", "--help"]).done().contains("--metrics <ADDRESS>"));
    let said = command(["serve", "--stdio", "--metrics", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
}
