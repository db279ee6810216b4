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
    assert_eq!(report["repaired"][0]["url"], urls[0]);
    assert_eq!((&report["repaired"][0]["offset"], &report["repaired"][0]["len_bytes"]), (&0.into(), &4096.into()));
    assert_eq!(report["undecided"], Value::Array(Vec::new()));

    // Each of the three holds something else.
    flip(&targets[0], 9000);
    flip(&targets[1], 9001);
    let said = pmof(&all);
    assert_eq!(said.code, Some(3));
    assert!(said.output.ends_with("bytes 8192..12288 differ, and nothing says which replica is right\n"), "{said:?}");
    assert!(said.errors.contains("pages differ: 1; no content is on more than half of the replicas"), "{said:?}");
}

/// `pmof pool check` changes nothing.
#[test]
fn replicas_at_urls_are_checked() {
    let mut targets = [Target::start(), Target::start(), Target::start()];
    let urls = targets.each_ref().map(|target| target.url("orders"));
    let options = urls.iter().fold(Pool::options(), PoolOptions::replica).require(Durability::ProcessCrash);
    let pool = options.create(1 << 20).unwrap();
    pool.persist(0, b"kept").unwrap();
    pmof(["pool", "check", &urls[0]]).failed(&["has the pool open for writing", "when it is closed"]);
    pool.close().unwrap();
    let check = || pmof(["pool", "check", &urls[0]]);
    assert_eq!(check().done(), "1048576 bytes read of 3 of 3 replicas\nall replicas are equal\n");
    flip(&targets[1], 5000);
    flip(&targets[1], 9000);
    for _ in 0..2 {
        let said = check();
        said.differs(&["pages differ: 2", "pmof pool scrub"]);
        assert!(said.output.contains(&format!("bytes 4096..12288 differ on {} from", urls[1])), "{said:?}");
    }
    flip(&targets[0], 5001);
    let said = pmof(["pool", "check", "--json", &urls[0]]);
    assert_eq!(said.code, Some(3), "{said:?}");
    let report: Value = serde_json::from_str(&said.output).unwrap();
    assert!(report["differing"][0]["replicas"].is_null(), "{report}");
    assert_eq!(report["differing"][1]["replicas"][0], urls[1], "{report}");
    flip(&targets[0], 5001);
    pmof(["pool", "scrub", &urls[0]]).done();
    check().done();
    targets[2].kill();
    let said = check();
    assert!(said.code == Some(1) && said.errors.contains("orders"), "{said:?}");
    targets[1].kill();
    let said = check();
    assert!(said.code == Some(1) && said.errors.contains("cannot check the pool"), "{said:?}");
    pmof(["pool", "check", &urls[0], "here.set"]).wrong_use(&["name one pool set file"]);
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

/// Of several replicas that are named, it is told which the others went on without.
#[test]
fn a_replica_that_was_left_behind_is_told() {
    let mut targets = [Target::start(), Target::start(), Target::start()];
    let urls = targets.each_ref().map(|target| target.url("orders"));
    let options = |urls: &[String]| urls.iter().fold(Pool::options(), PoolOptions::replica);
    options(&urls).require(Durability::ProcessCrash).create(4096).unwrap().close().unwrap();
    let info =
        |urls: &[String]| pmof(["pool", "info", "--json"].map(str::to_owned).iter().chain(urls).map(String::as_str));
    assert_eq!(info(&urls).json()["apart"].as_array().unwrap().len(), 0);
    targets[2].kill();
    let pool = options(&urls[..2]).require(Durability::ProcessCrash).open().unwrap();
    pool.persist(0, b"without it").unwrap();
    pool.close().unwrap();
    targets[2].restart();
    let third = targets[2].url("orders");
    let said = info(&[urls[0].clone(), third.clone()]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.errors.contains("is not used with the others") && said.errors.contains("\"exit_code\":3"), "{said:?}");
    let report: Value = serde_json::from_str(&said.output).unwrap();
    assert_eq!(report["apart"][0]["url"], third, "{report}");
    // What does not answer is no difference.
    targets[1].kill();
    assert_eq!(info(&urls).code, Some(1));
}
