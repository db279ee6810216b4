//! The system call that flushes pools: measured, kept, and named by the operator.

use std::{fs, path::Path, time::Instant};

use pmof::{Durability, Pool};

use crate::{
    logs::Logged,
    names::fault,
    support::{Said, command, directory, file_with, files, pmof, text},
};

/// The strongest level that pools under the target's root have.
fn level(target: &Logged) -> Durability {
    pmof_mem::probe(target.root.path()).unwrap().strongest
}

/// Persists a record, and reads it back from a target that was killed and started again.
#[track_caller]
fn persists(mut target: Logged, options: &[&str]) {
    let level = level(&target);
    let pool = Pool::options().replica(target.url("notes")).require(level).create(1 << 20).unwrap();
    for (offset, len_bytes) in [(0, 8), (4096, 512), (512 << 10, 100_000)] {
        pool.persist(offset, &vec![7; len_bytes]).unwrap();
    }
    pool.close().unwrap();
    target.child.kill().unwrap();
    target.child.wait().unwrap();
    let target = Logged::start_at(target.root_again(), options);
    let pool = Pool::options().replica(target.url("notes")).require(level).open().unwrap();
    for (offset, len_bytes) in [(0, 8), (4096, 512), (512 << 10, 100_000)] {
        let mut bytes = vec![0; len_bytes];
        pool.read(offset, &mut bytes).unwrap();
        assert_eq!(bytes, vec![7; len_bytes]);
    }
}

#[test]
fn an_operator_names_the_call() {
    for (method, said) in [
        ("fdatasync", "flushed by fdatasync, as the option says"),
        ("msync", "flushed by msync for 512 x 1, 512 x 16, 4096 x 1, 4096 x 16, 65536 x 1, 65536 x 16, else fdatasync"),
    ] {
        let options = ["--flush-method", method];
        let target = Logged::start(&options);
        target.line(&[" info flush_method: ", said]);
        persists(target, &options);
    }
    let place = directory();
    let config = file_with(&place, "pmof.conf", b"flush-method = msync\n");
    let target = Logged::start(&["--config", text(&config)]);
    target.line(&["flush_method", "as the option says"]);
    let config = file_with(&place, "bad.conf", b"flush-method = sync_file_range\n");
    let root = text(place.path());
    pmof(["serve", "--root", root, "--config", text(&config)]).failed(&["bad.conf:1"]);
    pmof(["serve", "--root", root, "--flush-method", "none"]).wrong_use(&["auto", "fdatasync", "msync"]);
}

#[test]
fn a_target_measures_its_disk_and_keeps_the_result() {
    let options = ["--log-level", "debug"];
    let target = Logged::start(&options);
    let told = target.line(&["flush_method: "]);
    if !told.contains("as measured") {
        // The disk of the build is none, or another test measures it at this moment.
        assert!(told.contains("are flushed by fdatasync: "), "{told}");
        skip_report::skipped!("{told}");
    }
    persists(target, &options);
}

/// A run of the doctor with a cache of its own.
fn measure(cache: &Path, more: &[&str]) -> Said {
    let mut doctor = command([&["doctor", "--measure", "--measure-time", "400ms"], more].concat());
    let start = Instant::now();
    Said::new(start, doctor.env("XDG_CACHE_HOME", cache).output().unwrap())
}

#[test]
fn the_doctor_measures_what_flushes_take() {
    let (place, cache) = (directory(), directory());
    let path = text(place.path());
    if pmof_mem::probe(place.path()).unwrap().kind != pmof_mem::MediumKind::PageCache {
        return skip_report::skipped!("the build directory lies on no disk");
    }
    let said = measure(cache.path(), &["--json", path]);
    assert_eq!(fault(said.output.trim()), None);
    let report = said.json();
    let times = report["flush_times"].as_array().unwrap();
    assert_eq!((times.len(), times[0]["path"].as_str()), (1, Some(path)), "{report}");
    let cells = times[0]["cells"].as_array().unwrap();
    if cells.is_empty() {
        return skip_report::skipped!("the disk is too slow to be measured in 400 ms");
    }
    assert_eq!(cells.len(), 6);
    for cell in cells {
        let named: Vec<_> = cell["calls"].as_array().unwrap().iter().filter_map(|call| call["call"].as_str()).collect();
        assert!(named.contains(&"fdatasync") && named.contains(&"RWF_DSYNC") && named.contains(&"O_DSYNC"), "{cell}");
        assert!(named.contains(&cell["chosen"].as_str().unwrap()), "{cell}");
    }
    assert!(files(place.path()).is_empty(), "measuring leaves nothing");
    assert_eq!(fs::read_dir(cache.path().join("pmof")).unwrap().count(), 1, "it is kept for the target");
    let text = measure(cache.path(), &[path]).done();
    assert!(text.contains(&format!("Time of a write and its flush in {path}")) && text.contains("to usable"), "{text}");
}

#[test]
fn memory_cannot_be_measured_and_time_needs_a_measurement() {
    let (place, cache) = (tempfile::tempdir_in("/dev/shm").unwrap(), directory());
    let said = measure(cache.path(), &[text(place.path())]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.errors.contains("cannot measure"), "{said:?}");
    pmof(["doctor", "--measure-time", "1s"]).wrong_use(&["--measure"]);
}
