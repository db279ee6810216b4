//! A target that serves for hours: pools come and go, writers write, its log is rotated, its metrics are scraped. For
//! some seconds here, and for as long as `PMOF_SERVE_SECONDS` says.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use pmof::{Durability, Pool};
use pmof_locks::RwLock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    logs::Logged,
    metrics::{measured, scrape},
    support::{files, pmof, wait_until},
};

/// Each persist and each read.
const RECORD_BYTES: usize = 512;
const POOL_BYTES: u64 = 1 << 20;
/// More anonymous memory than this between the first look and the last is a leak.
const GROWTH_KIB: u64 = 4 << 10;
/// So are more descriptors than this: a scrape's may be about to be closed.
const GROWTH_DESCRIPTORS: usize = 4;
/// Metrics of what came to the target, which must be those of the load.
const COUNTS: [&str; 5] = [
    "pmof_operations_total{operation=\"write\"}",
    "pmof_written_bytes_total",
    "pmof_operations_total{operation=\"read\"}",
    "pmof_read_bytes_total",
    "pmof_flushes_total{level=\"process_crash\"}",
];

/// What the writers did, and the moments at which they do nothing.
#[derive(Default)]
struct Load {
    /// Taken for reading around each operation.
    moment: RwLock<()>,
    ended: AtomicBool,
    persists: AtomicI64,
    reads: AtomicI64,
    /// Pools that came and went.
    cycles: AtomicI64,
}

impl Load {
    /// Works until the end, with breaks that leave the machine to others.
    fn each(&self, mut work: impl FnMut()) {
        while !self.ended.load(Relaxed) {
            {
                let _moment = self.moment.read();
                work();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes numbered records around a pool, and reads some of them again.
    fn write(&self, pool: &Pool) {
        let records = POOL_BYTES / RECORD_BYTES as u64;
        let mut number = 0_u64;
        self.each(|| {
            let record = record(number);
            pool.persist(number % records * RECORD_BYTES as u64, &record).unwrap();
            self.persists.fetch_add(1, Relaxed);
            if number % 16 == 0 {
                let mut bytes = [0; RECORD_BYTES];
                pool.read(number % records * RECORD_BYTES as u64, &mut bytes).unwrap();
                self.reads.fetch_add(1, Relaxed);
                assert_eq!(bytes, record);
            }
            number += 1;
        });
        let first = number.saturating_sub(records);
        for number in first..number {
            let mut bytes = [0; RECORD_BYTES];
            pool.read(number % records * RECORD_BYTES as u64, &mut bytes).unwrap();
            assert_eq!(bytes, record(number), "record {number}");
        }
    }

    /// A pool that is made, written, closed and removed, and a question about one that is not there.
    fn come_and_go(&self, target: &Logged) {
        let name = format!("passing-{}", self.cycles.load(Relaxed));
        let pool = target.create(&name);
        pool.persist(0, &record(1)).unwrap();
        pool.close().unwrap();
        let options = Pool::options().require(Durability::ProcessCrash).replica(target.url(&name));
        options.remove().unwrap();
        options.info().unwrap_err();
        self.cycles.fetch_add(1, Relaxed);
    }
}

/// Ends the load when it is dropped.
struct Ends<'l>(&'l AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn record(number: u64) -> [u8; RECORD_BYTES] {
    let mut record = [number as u8; RECORD_BYTES];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record
}

/// The process's anonymous memory, in KiB: pages of pools' files are none.
fn anonymous_kib(target: &Logged) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", target.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn descriptors(target: &Logged) -> usize {
    fs::read_dir(format!("/proc/{}/fd", target.child.id())).unwrap().count()
}

fn counts(at: &str) -> [i64; COUNTS.len()] {
    let values = scrape(at);
    COUNTS.map(|name| values[name])
}

/// Ends the log that is written, and counts its events.
fn rotate(target: &Logged, events: &mut BTreeMap<String, i64>) {
    let old = target.place.path().join("log.1");
    fs::rename(&target.log, &old).unwrap();
    kill_process(Pid::from_child(&target.child), Signal::HUP).unwrap();
    wait_until("a new log", || target.log.exists());
    target.line(&["log_reopened"]);
    count_events(&fs::read_to_string(&old).unwrap(), events);
    fs::remove_file(&old).unwrap();
}

fn count_events(log: &str, events: &mut BTreeMap<String, i64>) {
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(line["level"], "info", "{line}");
        *events.entry(line["event"].as_str().unwrap().to_owned()).or_default() += 1;
    }
}

#[test]
fn a_target_serves_for_hours() {
    let seconds =
        std::env::var("PMOF_SERVE_SECONDS").map_or(4, |seconds| seconds.parse().expect("a number of seconds"));
    let (all, period) = (Duration::from_secs(seconds), Duration::from_secs(if seconds < 600 { 1 } else { 60 }));
    let (mut target, at) = measured(&["--log-format", "json"]);
    let pools = ["one", "two"].map(|name| target.create(name));
    let load = Load::default();
    // What one pool that comes and goes adds to the counts.
    let first = counts(&at);
    load.come_and_go(&target);
    let second = counts(&at);
    let cycle: Vec<_> = first.iter().zip(second).map(|(first, second)| second - first).collect();
    let mut events = BTreeMap::new();
    let mut looks = Vec::new();
    let start = Instant::now();
    thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(|| load.write(pool));
        }
        scope.spawn(|| load.each(|| load.come_and_go(&target)));
        // Also where a comparison fails: else the others would go on for ever.
        let _end = Ends(&load.ended);
        while start.elapsed() < all {
            thread::sleep(period);
            let _moment = load.moment.write();
            rotate(&target, &mut events);
            wait_until("only writers are connected", || scrape(&at)["pmof_connections"] == 2);
            let [persists, reads, cycles] =
                [&load.persists, &load.reads, &load.cycles].map(|count| count.load(Relaxed));
            let bytes = i64::try_from(RECORD_BYTES).unwrap();
            let own = [persists, persists * bytes, reads, reads * bytes, persists];
            let wanted: Vec<_> =
                (0..COUNTS.len()).map(|index| first[index] + own[index] + cycles * cycle[index]).collect();
            assert_eq!(counts(&at)[..], wanted, "{COUNTS:?} after {:?}", start.elapsed());
            looks.push((anonymous_kib(&target), descriptors(&target)));
        }
    });
    let (early, late) = (looks[looks.len() / 10], looks[looks.len() - 1]);
    let cycles = load.cycles.load(Relaxed);
    println!(
        "{seconds} s: {cycles} pools came and went, {:?} persists, {} looks; KiB and descriptors {early:?}, then {late:?}",
        load.persists,
        looks.len()
    );
    assert!(
        late.0 < early.0 + GROWTH_KIB && late.1 < early.1 + GROWTH_DESCRIPTORS,
        "KiB and descriptors, in order: {looks:?}"
    );

    for pool in pools {
        pool.close().unwrap();
    }
    let accepted = scrape(&at)["pmof_connections_accepted_total{transport=\"tcp\"}"];
    kill_process(Pid::from_child(&target.child), Signal::TERM).unwrap();
    assert!(target.child.wait().unwrap().success());
    assert_eq!(files(target.root.path()), ["one", "two"]);
    count_events(&target.text(), &mut events);
    for (event, count) in [
        ("pool_created", cycles + 2),
        ("pool_closed", cycles + 2),
        ("pool_removed", cycles),
        ("pool_refused", cycles),
        ("connection_opened", accepted),
        ("connection_closed", accepted),
        ("log_reopened", i64::try_from(looks.len()).unwrap()),
    ] {
        assert_eq!(events.get(event), Some(&count), "{event}: {events:?}");
    }
    assert!(pmof(["pool", "ls", "-l", &format!("file://{}", target.root.path().display())]).done().contains("closed"));
}
