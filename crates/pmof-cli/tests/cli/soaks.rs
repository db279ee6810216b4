//! The halves of `pmof soak`, called wrongly or with what is left of a run; and writers that are stopped and go on beside their successors.

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

#[test]
fn a_stopped_writer_goes_on_for_nothing() {
    // What a failure keeps is removed with it.
    let place = directory();
    for transport in ["tcp", "shm"] {
        let common = ["soak", "takeover", "--count", "3", "--seed", "5", "--dir", text(place.path())];
        let soak = [&common[..], &["--transport", transport]].concat();
        let found = pmof([&soak[..], &["--json"]].concat()).json();
        assert_eq!(
            (&found["takeovers"], &found["words_verified"]),
            (&3.into(), &(3 * 3 * (1 << 17)).into()),
            "{found}"
        );
        // The control: a batch that it had not issued when it was stopped.
        let said = pmof([&soak[..], &["--json", "--break-fence"]].concat());
        let words = ["is wrong after takeover 0", "of round 0", "to repeat: --seed 5"];
        assert!(said.code == Some(1) && words.iter().all(|word| said.errors.contains(word)), "{said:?}");
    }
}
