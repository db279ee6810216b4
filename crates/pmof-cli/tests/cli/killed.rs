//! Processes killed, and bytes changed, in the middle of a copy.

use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Child, Stdio},
    time::Instant,
};

use tempfile::TempDir;

use crate::support::{Said, Target, command, directory, file_with, files, pattern, pmof, text, wait_until};

/// Takes longer to copy than to see that copying has begun.
const LARGE_BYTES: usize = 256 << 20;

/// A file that is cheap to make; its bytes are compared elsewhere.
fn large_file(place: &TempDir) -> PathBuf {
    file_with(place, "source", &pattern(1 << 20).repeat(LARGE_BYTES >> 20))
}

fn start_copy(source: &str, destination: &str) -> Child {
    command(["cp", source, destination]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_target_killed_during_an_upload() {
    let (mut target, place) = (Target::start(), directory());
    let source = large_file(&place);
    let url = target.url("orders");
    let copy = start_copy(text(&source), &url);
    wait_until("begun", || target.files().iter().any(|file| file.starts_with(".pmof.")));
    target.kill();
    let said = Said::new(Instant::now(), copy.wait_with_output().unwrap());
    said.failed(&["cannot copy", &url]);
    // Its kernel says so; nobody waits for an answer.
    assert!(!said.errors.contains("within"), "{said:?}");

    // What the dead target left is gone when it is back, and the copy can be made.
    assert!(!target.files().is_empty(), "positive control");
    target.restart();
    assert!(target.files().is_empty());
    pmof(["cp", text(&source), &target.url("orders")]).done();
}

#[test]
fn one_of_two_targets_killed_during_an_upload() {
    let (mut a, b, place) = (Target::start(), Target::start(), directory());
    let source = large_file(&place);
    let (first, second) = (a.url("orders"), b.url("orders"));
    let copy = command(["cp", text(&source), &second, "--replica", &first])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("begun", || !a.files().is_empty() && !b.files().is_empty());
    a.kill();
    let said = Said::new(Instant::now(), copy.wait_with_output().unwrap());
    said.failed(&["cannot copy", &first]);
    wait_until("undone at the other", || b.files().is_empty());
}

#[test]
fn a_target_killed_during_a_download() {
    let (mut target, place) = (Target::start(), directory());
    let source = large_file(&place);
    let url = target.url("orders");
    pmof(["cp", text(&source), &url, "--no-verify"]).done();
    let into = directory();
    let back = into.path().join("back");
    let copy = start_copy(&url, text(&back));
    wait_until("begun", || !files(into.path()).is_empty());
    target.kill();
    let said = Said::new(Instant::now(), copy.wait_with_output().unwrap());
    said.failed(&["cannot copy", &url]);
    // Its kernel says so; nobody waits for an answer.
    assert!(!said.errors.contains("within"), "{said:?}");
    assert!(files(into.path()).is_empty());
}

#[test]
fn a_copy_that_is_killed_itself() {
    let (target, place) = (Target::start(), directory());
    let source = large_file(&place);
    let mut copy = start_copy(text(&source), &target.url("orders"));
    wait_until("begun", || !target.files().is_empty());
    assert_eq!(pmof(["pool", "ls", &target.address]).done(), "", "not seen before it is whole");
    copy.kill().unwrap();
    copy.wait().unwrap();
    wait_until("undone", || target.files().is_empty());
}

#[test]
fn a_replica_that_is_damaged_before_the_look() {
    let (target, place) = (Target::start(), directory());
    let source = large_file(&place);
    let mut copy = start_copy(text(&source), &target.url("orders"));
    wait_until("begun", || !target.files().is_empty());
    let file = File::options().write(true).open(target.file(&target.files()[0])).unwrap();
    // Again and again, so that it lies between the copy's write of these bytes and its look at them.
    while copy.try_wait().unwrap().is_none() {
        file.write_all_at(b"bit rot", pmof_control::DATA_OFFSET + 1000).unwrap();
    }
    let said = Said::new(Instant::now(), copy.wait_with_output().unwrap());
    said.differs(&["/orders does not read back as it was copied", "at offset 0", "copy again"]);
    wait_until("undone", || target.files().is_empty());
}

#[test]
fn a_source_that_grows_meanwhile() {
    let (target, place) = (Target::start(), directory());
    let source = large_file(&place);
    let copy = start_copy(text(&source), &target.url("orders"));
    wait_until("begun", || !target.files().is_empty());
    File::options().append(true).open(&source).unwrap().write_all(b"more").unwrap();
    let said = Said::new(Instant::now(), copy.wait_with_output().unwrap());
    said.failed(&["changed its length from 268435456 to 268435460", "while no program writes it"]);
    wait_until("undone", || target.files().is_empty());
}
