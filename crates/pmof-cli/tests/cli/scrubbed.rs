//! `pmof pool scrub`.

use std::{fs::OpenOptions, os::unix::fs::FileExt};

use pmof::{Durability, Pool, PoolOptions};
use pmof_control::DATA_OFFSET;
use serde_json::Value;

use crate::support::{Target, pmof};

fn flip(target: &Target, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(target.root.path().join("orders")).unwrap();
    let mut byte = [0];
    // Data begins behind the header and the state.
    file.read_exact_at(&mut byte, DATA_OFFSET + offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], DATA_OFFSET + offset).unwrap();
}

#[test]
fn what_differs_is_repaired_where_most_replicas_agree() {
    let targets = [Target::start(), Target::start(), Target::start()];
    let urls = targets.each_ref().map(|target| target.url("orders"));
    let options = urls.iter().fold(Pool::options(), PoolOptions::replica).require(Durability::ProcessCrash);
    let pool = options.create(1 << 20).unwrap();
    pool.persist(0, b"kept").unwrap();
    pool.close().unwrap();
    let all = ["pool", "scrub"].into_iter().chain(urls.iter().map(String::as_str)).collect::<Vec<_>>();
    assert_eq!(pmof(&all).done(), "1048576 bytes compared on 3 of 3 replicas\nall replicas are equal\n");

    flip(&targets[1], 5000);
    let said = pmof(&all).done();
    assert!(said.ends_with(&format!("repaired bytes 4096..8192 of {}\n", urls[1])), "{said}");
    flip(&targets[0], 2);
    let json = pmof(all.iter().copied().chain(["--json"])).done();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["repaired"][0]["replica"], urls[0]);
    assert_eq!((&report["repaired"][0]["offset"], &report["repaired"][0]["len_bytes"]), (&0.into(), &4096.into()));
    assert_eq!(report["undecided"], Value::Array(Vec::new()));

    // Each of the three holds something else.
    flip(&targets[0], 9000);
    flip(&targets[1], 9001);
    let said = pmof(&all);
    assert_eq!(said.code, Some(1));
    assert!(said.output.ends_with("bytes 8192..12288 differ, and nothing says which replica is right\n"), "{said:?}");
    assert!(said.errors.contains("pages differ: 1; no content is on more than half of the replicas"), "{said:?}");
}

#[test]
fn what_cannot_be_compared_is_reported() {
    let target = Target::start();
    let url = target.url("orders");
    let options = Pool::options().replica(&url).require(Durability::ProcessCrash);
    let pool = options.create(4096).unwrap();
    pmof(["pool", "scrub", &url]).failed(&["cannot open the pool", "is open for writing"]);
    pool.close().unwrap();
    pmof(["pool", "scrub", &url]).failed(&["only 1 of 1 replicas is in sync"]);
    pmof(["pool", "scrub", &target.url("missing")]).failed(&["there is no pool missing"]);
    pmof(["pool", "scrub"]).wrong_use(&["URL"]);
    pmof(["pool", "scrub", "nonsense"]).wrong_use(&["nonsense"]);
}
