//! The halves of `pmof soak`, called wrongly or with what is left of a run.

use std::{fs, path::Path};

use crate::support::{Target, directory, file_with, pmof, text};

fn write(url: &str, ledger: &Path, more: &[&str]) -> crate::support::Said {
    let common = ["soak", "write", "--pool", url, "--durability", "process-crash", "--seed", "4", "--time", "1s"];
    pmof([&common[..], &["--ledger", text(ledger)], more].concat())
}

#[test]
fn a_ledger_is_of_one_run_and_says_something() {
    let (target, place) = (Target::start(), directory());
    let (url, ledger) = (target.url("pool"), place.path().join("ledger"));
    write(&url, &ledger, &["--create", "200000"]).done();
    let told = fs::read(&ledger).unwrap();
    let check = |ledger: &Path| pmof(["soak", "check", "--pool", &url, "--seed", "4", "--ledger", text(ledger)]);
    check(&ledger).done();
    // Another run would make it one that nobody can read, and write over what it is about.
    write(&url, &ledger, &[]).failed(&["ledger holds something already", "name a new file"]);
    assert_eq!(fs::read(&ledger).unwrap(), told);
    check(&ledger).done();
    check(&file_with(&place, "empty", b"")).failed(&["empty is empty", "nothing can be compared"]);
    check(&file_with(&place, "cut", b"issu")).failed(&["cut is empty", "nothing can be compared"]);
    let second = place.path().join("second");
    write(&target.url("other"), &second, &["--create", "200000"]).done();
    check(&second).failed(&["is pool ", "is of pool ", "nothing was compared"]);
    let run = told.split_inclusive(|byte| *byte == b'\n').next().unwrap();
    let said = check(&file_with(&place, "issued", &[run, b"issue 0\n"].concat()));
    assert!(said.code == Some(1) && said.errors.contains("acknowledges nothing"), "{said:?}");
}

#[test]
fn a_pool_that_was_truncated_is_reported_as_such() {
    let (mut target, place) = (Target::start(), directory());
    let (url, ledger) = (target.url("pool"), place.path().join("ledger"));
    write(&url, &ledger, &["--create", "200000"]).done();
    let file = target.file("pool");
    fs::File::options().write(true).open(&file).unwrap().set_len(4096).unwrap();
    let said = pmof(["soak", "check", "--pool", &url, "--seed", "4", "--ledger", text(&ledger)]);
    said.failed(&["pool has 4096 bytes where its header says"]);
    assert!(!said.errors.contains("min-replicas"), "{said:?}");
    target.kill();
    let said = pmof(["soak", "check", "--file", text(&file), "--seed", "4", "--ledger", text(&ledger)]);
    said.failed(&["it has 4096 bytes where its header says", "was truncated"]);
}
