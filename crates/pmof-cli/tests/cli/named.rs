//! Replicas that are named and not used, and replicas that differ.

use std::{fs::File, os::unix::fs::FileExt};

use pmof::{Durability, Pool, PoolOptions};
use serde_json::Value;

use crate::support::{Said, Target, directory, pmof, text};

fn options(urls: &[String]) -> PoolOptions {
    urls.iter().fold(Pool::options(), PoolOptions::replica).require(Durability::ProcessCrash)
}

fn made(urls: &[String], bytes: &[u8]) {
    let pool = options(urls).create(3_000_000).unwrap();
    pool.persist(0, bytes).unwrap();
    pool.close().unwrap();
}

/// One bit of a closed pool's file, as a bad disk changes it.
fn flip(target: &Target, name: &str, offset: u64) {
    let file = File::options().read(true).write(true).open(target.file(name)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, pmof_control::DATA_OFFSET + offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], pmof_control::DATA_OFFSET + offset).unwrap();
}

/// A command, then replicas, then options.
fn run(command: &[&str], urls: &[&String], options: &[&str]) -> Said {
    let urls: Vec<_> = urls.iter().map(|url| url.as_str()).collect();
    pmof([command, &urls[..], options].concat())
}

/// It is told of this replica that it was not compared, and not that all are equal.
#[track_caller]
fn not_compared(said: &Said, url: &str) {
    assert!(said.code == Some(1) && said.errors.contains(&format!("not compared: {url}: ")), "{said:?}");
    assert!(!said.output.contains("all replicas are equal"), "{said:?}");
}

#[test]
fn an_import_of_the_pool_among_those_named_is_told() {
    let [a, b] = std::array::from_fn(|_| Target::start());
    let urls = [a.url("y"), b.url("y")];
    made(&urls, b"compared");
    let (other, place) = (b.url("x"), directory());
    let export = place.path().join("export");
    run(&["pool", "export"], &[&urls[0]], &[text(&export)]).done();
    pmof(["pool", "import", text(&export), &other]);
    for command in [["pool", "check"], ["pool", "scrub"]] {
        assert!(run(&command, &[&urls[0], &urls[1]], &[]).done().ends_with("all replicas are equal\n"));
        not_compared(&run(&command, &[&other, &urls[0]], &[]), &other);
        let said = run(&command, &[&other, &urls[0]], &["--json"]);
        let report: Value = serde_json::from_str(&said.output).unwrap();
        assert_eq!((said.code, &report["not_compared"][0]["url"]), (Some(1), &other.as_str().into()), "{report}");
        // One of the two is somebody's pool: neither is to be removed for that.
        let why = report["not_compared"][0]["reason"].as_str().unwrap_or_default();
        assert!(why.contains("same identity") && !why.contains("pmof pool rm"), "{report}");
    }
    // A scrub opens them for writing, and has told neither who the members are.
    for (url, made) in [(&urls[0], 2), (&other, 1)] {
        let report = pmof(["pool", "status", "--json", url]).json();
        assert_eq!((&report["made_count"], &report["in_sync_count"]), (&made.into(), &made.into()), "{report}");
    }
    let copy = place.path().join("copy");
    for command in [&["cp"][..], &["pool", "export"]] {
        let said = run(command, &[&other], &[text(&copy), "--replica", &urls[0]]);
        said.failed(&[&format!("not compared: {other}: ")]);
        assert!(!copy.exists());
    }
    // Where something differs that is told, and the others, too.
    flip(&b, "y", 5000);
    let said = run(&["pool", "check"], &[&other, &urls[0]], &[]);
    said.differs(&["pages differ: 1", &format!("not compared: {other}: ")]);
}

#[test]
fn former_members_among_those_named_are_told() {
    let [a, far] = std::array::from_fn(|_| Target::start());
    let (former, promoted) = (a.url("q"), far.url("q"));
    made(std::slice::from_ref(&former), b"promoted");
    pmof(["pool", "add", "--async", &former, &promoted]).done();
    not_compared(&run(&["pool", "check"], &[&former, &promoted], &[]), &promoted);
    pmof(["pool", "promote", "--force", &promoted]).done();
    for named in [[&former, &promoted], [&promoted, &former]] {
        not_compared(&run(&["pool", "check"], &named, &[]), &former);
    }
}

#[test]
fn a_copy_or_an_export_of_replicas_that_differ_says_where() {
    let targets: [Target; 3] = std::array::from_fn(|_| Target::start());
    let urls = targets.each_ref().map(|target| target.url("orders"));
    made(&urls, b"orders");
    let place = directory();
    let copy = place.path().join("copy");
    let commands = [&["cp"][..], &["pool", "export"]];
    let report = run(&["pool", "export"], &[&urls[0]], &[text(&copy), "--json"]).json();
    assert_eq!(report["replicas_compared"], 3, "{report}");
    std::fs::remove_file(&copy).unwrap();
    for damaged in 0..3 {
        flip(&targets[damaged], "orders", 2_500_123);
        for command in commands {
            let said = run(command, &[&urls[0]], &[text(&copy)]);
            let odd = format!("{} from what most replicas have", urls[damaged]);
            said.differs(&["replicas differ, at byte 2500123 first", &odd, "`pmof pool scrub`"]);
            assert!(!copy.exists());
        }
        flip(&targets[damaged], "orders", 2_500_123);
    }
    for (target, offset) in targets.iter().zip(4_100..) {
        flip(target, "orders", offset);
    }
    for command in commands {
        let said = run(command, &[&urls[0]], &[text(&copy)]);
        said.differs(&["replicas differ, at byte 4100 first", "nothing says which replica is right"]);
        run(command, &[&urls[0]], &[text(&copy), "--no-verify"]).done();
        std::fs::remove_file(&copy).unwrap();
    }
}
