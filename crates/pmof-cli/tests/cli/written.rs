//! `pmof cp` of pools that are written meanwhile: a copy, and never word of damage.

use std::{
    fs,
    process::Child,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use pmof::{AsynchronousState, Durability, Pool, PoolOptions};
use serde_json::Value;

use crate::support::{Said, Target, directory, files, pmof, serve_with, text, wait_until};

const MIB: usize = 1 << 20;
const POOL_BYTES: usize = 5 * MIB + 4096;
/// Copies of each kind of pool.
const ROUNDS: usize = 6;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn options(urls: &[String]) -> PoolOptions {
    urls.iter().fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica)
}

fn copy(urls: &[String], to: &std::path::Path) -> Said {
    let others = urls[1..].iter().flat_map(|url| ["--replica", url]);
    pmof(["cp", "--json", "--force", &urls[0], text(to)].into_iter().chain(others))
}

/// It copied all of the pool and warned of the writer: what is in the file.
#[track_caller]
fn warned(said: &Said, to: &std::path::Path) -> Value {
    let words = ["{\"schema_version\":1,\"warning\":\"", "open", "for writing", "no moment of the pool"];
    assert!(said.code == Some(0) && words.iter().all(|word| said.errors.contains(word)), "{said:?}");
    assert!(!said.errors.contains("differ") && !said.errors.contains("disk of its machine"), "{said:?}");
    let report: Value = serde_json::from_str(&said.output).unwrap();
    assert_eq!((&report["replicas_compared"], &report["verified"]), (&0.into(), &false.into()), "{report}");
    assert_eq!(fs::metadata(to).unwrap().len(), POOL_BYTES as u64);
    report
}

/// Writes whole pages all over a pool until stopped, and counts them.
fn write_pages(pool: &Pool, is_enough: &AtomicBool, written: &AtomicU64) {
    let mut lane = pool.lane();
    let pages = POOL_BYTES as u64 / 4096;
    for number in 1.. {
        if is_enough.load(Ordering::Relaxed) {
            return;
        }
        // Each page again and again, in an order that no reader follows.
        let page = number * 0x9e37 % pages;
        lane.write(page * 4096, &[number as u8; 4096]).unwrap();
        if number % 16 == 0 {
            lane.persist().unwrap();
            written.fetch_add(16, Ordering::Relaxed);
        }
    }
}

#[track_caller]
fn copies_are_made(urls: &[String]) {
    let place = directory();
    let to = place.path().join("copy");
    let pool = options(urls).create(POOL_BYTES as u64).unwrap();
    let (is_enough, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _guard = SetOnDrop(&is_enough);
        scope.spawn(|| write_pages(&pool, &is_enough, &written));
        for _ in 0..ROUNDS {
            let before = written.load(Ordering::Relaxed);
            wait_until("written", || written.load(Ordering::Relaxed) > before);
            let report = warned(&copy(urls, &to), &to);
            assert!(report["written"].as_str().unwrap().contains("has the pool open for writing"), "{report}");
            assert!(fs::read(&to).unwrap().iter().any(|byte| *byte != 0));
            assert_eq!(files(place.path()), ["copy"]);
        }
    });
    pool.close().unwrap();
    let report = copy(urls, &to).json();
    let compared = if urls.len() > 1 { urls.len() } else { 0 };
    assert_eq!((&report["written"], &report["replicas_compared"]), (&Value::Null, &compared.into()), "{report}");
}

#[test]
fn a_written_pool_is_copied_over_tcp() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    copies_are_made(&[three[0].url("alone")]);
    copies_are_made(&three.each_ref().map(|target| target.url("three")));
}

#[test]
fn a_written_pool_is_copied_over_shm() {
    let place = directory();
    let serve = |name: &str| {
        let root = place.path().join(name);
        fs::create_dir(&root).unwrap();
        let address = format!("shm://{}", text(&place.path().join(format!("{name}.socket"))));
        (Killed(serve_with(&root, &["--listen", &address]).0), format!("{address}?pool=orders"))
    };
    let three = ["a", "b", "c"].map(serve);
    copies_are_made(&three.each_ref().map(|(_, url)| url.clone()));
    copies_are_made(&[three[0].1.replace("=orders", "=alone")]);
}

/// A writer that comes and goes: each copy meets another part of that.
#[test]
fn a_pool_that_is_opened_meanwhile_is_copied() {
    let (two, place): ([Target; 2], _) = (std::array::from_fn(|_| Target::start()), directory());
    let (urls, to) = (two.each_ref().map(|target| target.url("orders")), place.path().join("copy"));
    options(&urls).create(POOL_BYTES as u64).unwrap().close().unwrap();
    let (is_enough, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _guard = SetOnDrop(&is_enough);
        scope.spawn(|| {
            while !is_enough.load(Ordering::Relaxed) {
                let pool = options(&urls).open().unwrap();
                let number = written.fetch_add(1, Ordering::Relaxed);
                let mut lane = pool.lane();
                for page in 0..64 {
                    lane.write(page * 64 * 1024, &[number as u8; 4096]).unwrap();
                }
                lane.persist().unwrap();
                pool.close().unwrap();
            }
        });
        for _ in 0..2 * ROUNDS {
            let said = copy(&urls, &to);
            // It may have come to an end between two openings.
            if said.errors.is_empty() {
                assert_eq!(said.json()["replicas_compared"], 2);
            } else {
                warned(&said, &to);
            }
        }
    });
}

/// What a dead writer left may differ between replicas in what was not acknowledged: one of them is copied.
#[test]
fn what_a_dead_writer_left_is_copied_from_one_replica() {
    let (two, place): ([Target; 2], _) = (std::array::from_fn(|_| Target::start()), directory());
    let (urls, to) = (two.each_ref().map(|target| target.url("orders")), place.path().join("copy"));
    let pool = options(&urls).create(POOL_BYTES as u64).unwrap();
    pool.persist(0, b"acknowledged").unwrap();
    drop(pool);
    wait_until("left", || pmof(["pool", "info", "--json", &urls[0]]).json()["pools"][0]["open_by"].is_null());
    // As a write that had come to one of them only.
    let file = fs::File::options().write(true).open(two[1].file("orders")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"not", pmof_control::DATA_OFFSET + 4 * MIB as u64).unwrap();
    let report = copy(&urls, &to).json();
    assert_eq!((&report["moment"], &report["replicas_compared"]), (&"not_closed".into(), &0.into()), "{report}");
    let bytes = fs::read(&to).unwrap();
    assert!(&bytes[..12] == b"acknowledged" && bytes[12..].iter().all(|byte| *byte == 0));
}

/// An asynchronous member that keeps points has a moment of it.
#[test]
fn a_written_pool_is_copied_at_a_point() {
    let (two, place): ([Target; 2], _) = (std::array::from_fn(|_| Target::start()), directory());
    let ([here, far], to) = (two.each_ref().map(|target| target.url("orders")), place.path().join("copy"));
    let here = [here];
    options(&here).create(POOL_BYTES as u64).unwrap().close().unwrap();
    pmof(["pool", "add", "--async", "--keep-points", "3", &here[0], &far]).done();
    let pool = options(&here).open().unwrap();
    wait_until("following", || matches!(pool.status().unwrap().asynchronous[0].state, AsynchronousState::Following));
    warned(&copy(&here, &to), &to);
    let (is_enough, named) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _guard = SetOnDrop(&is_enough);
        scope.spawn(|| {
            for number in 1..POOL_BYTES as u64 / 8 {
                pool.persist((number - 1) * 8, &number.to_le_bytes()).unwrap();
                if number % 500 == 0 {
                    pool.consistency_point(&format!("record {number}")).unwrap();
                    named.store(number, Ordering::Relaxed);
                }
                if is_enough.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let points = || pmof(["pool", "points", "--json", &here[0]]).json()["members"][0]["points"].clone();
        wait_until("a point", || points().as_array().is_some_and(|points| !points.is_empty()));
        let mut at_a_point = 0;
        for _ in 0..ROUNDS {
            let said = copy(&here, &to);
            let report: Value = serde_json::from_str(&said.output).unwrap();
            // A point that the writer pushed out while it was read is no error either.
            let Some(name) = report["point"]["name"].as_str() else {
                warned(&said, &to);
                continue;
            };
            at_a_point += 1;
            let words = ["has the pool open for writing", "as it was at consistency point", name];
            assert!(said.code == Some(0) && words.iter().all(|word| said.errors.contains(word)), "{said:?}");
            assert!(report["written"].is_null() && report["point"]["number"].is_u64(), "{report}");
            assert!(report["point"]["unix_ms"].as_u64() > Some(1_700_000_000_000), "{report}");
            let bytes = fs::read(&to).unwrap();
            let records = bytes.chunks_exact(8).map(|record| u64::from_le_bytes(record.try_into().unwrap()));
            let count = records.clone().take_while(|number| *number != 0).count();
            assert_eq!(name, format!("record {count}"));
            assert!(records.enumerate().all(|(at, number)| number == if at < count { at as u64 + 1 } else { 0 }));
        }
        assert!(at_a_point > 0);
    });
    pool.close().unwrap();
    // Closed, it is copied as it is.
    assert!(copy(&here, &to).json()["point"].is_null());
}
