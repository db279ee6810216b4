//! `pmof pool status`.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use pmof::{Durability, Pool, PoolOptions};
use serde_json::Value;

use crate::support::{Target, command, pmof};

fn targets() -> [Target; 3] {
    std::array::from_fn(|_| Target::start())
}

fn options<'u>(urls: impl IntoIterator<Item = &'u String>) -> PoolOptions {
    urls.into_iter().fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica)
}

fn urls(targets: &[Target]) -> Vec<String> {
    targets.iter().map(|target| target.url("orders")).collect()
}

fn states(report: &Value) -> Vec<&str> {
    report["members"].as_array().unwrap().iter().map(|member| member["state"].as_str().unwrap()).collect()
}

/// As which process this one is known to a target.
fn this_process() -> String {
    let (program, user) = (fs::read_to_string("/proc/self/comm").unwrap(), rustix::process::geteuid());
    format!("({}, process {} of user {})", program.trim_end(), std::process::id(), user.as_raw())
}

#[test]
fn one_address_shows_all_members_while_the_pool_is_written() {
    let three = targets();
    let urls = urls(&three);
    let writer = options(&urls).create(1 << 20).unwrap();
    writer.persist(0, b"here").unwrap();
    let said = pmof(["pool", "status", &urls[1]]).done();
    for line in ["in sync    3 of 3, quorum 2\n", "survives   the loss of any one member\n"] {
        assert!(said.contains(line), "{said}");
    }
    for (index, url) in urls.iter().enumerate() {
        assert!(said.contains(&format!("member     {index} in sync  {url} in machine-")), "{said}");
    }
    let report = pmof(["pool", "status", &urls[0], "--json"]).json();
    let open_by = report["open_by"].as_str().unwrap();
    assert!(open_by.contains("the initiator at 127.0.0.1") && open_by.contains(&this_process()), "{report}");
    assert_eq!((&report["losses_survived"], &report["is_closed"]), (&1.into(), &false.into()));
    assert_eq!(states(&report), ["in_sync"; 3]);
    writer.persist(0, b"more").unwrap();
    writer.close().unwrap();
    let report = pmof(["pool", "status", &urls[0], "--json"]).json();
    assert_eq!((&report["open_by"], &report["is_closed"]), (&Value::Null, &true.into()));
    assert!(pmof(["pool", "status", &urls[0]]).done().contains("writer     none, closed in order\n"));
}

#[test]
fn members_that_are_lost_or_behind_are_told_apart_and_too_few_are_a_failure() {
    let mut three = targets();
    let all = urls(&three);
    let writer = options(&all).create(1 << 20).unwrap();
    three[2].kill();
    // The member is lost with the write that notices it.
    while !writer.persist(0, b"gone").unwrap().is_degraded() {}
    let report = pmof(["pool", "status", &all[0], "--json"]).json();
    assert_eq!((states(&report), &report["losses_survived"]), (vec!["in_sync", "in_sync", "lost"], &0.into()));
    assert_eq!((&report["members"][2]["url"], &report["members"][2]["index"]), (&all[2].as_str().into(), &2.into()));
    writer.close().unwrap();

    three[2].restart();
    let report = pmof(["pool", "status", &all[0], &three[2].url("orders"), "--json"]).json();
    assert_eq!((states(&report), &report["losses_survived"]), (vec!["in_sync", "in_sync", "behind"], &1.into()));
    assert!(report["members"][2]["reason"].as_str().unwrap().contains("without it"), "{report}");

    three[0].kill();
    three[1].kill();
    let said = pmof(["pool", "status", &three[2].url("orders"), "--json"]);
    assert!(said.errors.contains("the pool cannot be opened for writing now"), "{said:?}");
    let report: Value = serde_json::from_str(&said.output).unwrap();
    assert_eq!((said.code, &report["losses_survived"]), (Some(1), &Value::Null));
}

#[test]
fn what_is_no_member_is_named() {
    let three = targets();
    let all = urls(&three);
    options(&all).create(1 << 20).unwrap().close().unwrap();
    let theirs = three[1].url("theirs");
    options([&theirs]).create(1 << 20).unwrap().close().unwrap();
    let report = pmof(["pool", "status", &all[0], &theirs, "--json"]).json();
    assert_eq!(states(&report), ["in_sync", "in_sync", "in_sync", "foreign"]);
    assert!(report["members"][3]["reason"].as_str().unwrap().contains("it is of pool"), "{report}");

    // A copy of a member, under another name.
    fs::copy(three[0].file("orders"), three[1].file("copy")).unwrap();
    let said = pmof(["pool", "status", &all[0], &three[1].url("copy")]).done();
    assert!(said.contains(&format!("it is a copy of replica 0, which is at {}", all[0])), "{said}");
    assert!(said.contains("in sync    3 of 3"), "{said}");

    pmof(["pool", "status", &three[0].url("missing")]).failed(&["cannot tell the state", "there is no pool missing"]);
    pmof(["pool", "status"]).wrong_use(&["URL"]);
    pmof(["pool", "status", "nonsense"]).wrong_use(&["nonsense"]);
    pmof(["pool", "status", &all[0], "--watch=0"]).wrong_use(&["--watch"]);
    pmof(["pool", "status", &all[0], &all[0]]).failed(&["is named twice"]);
}

#[test]
fn watching_shows_it_again_and_again() {
    let target = Target::start();
    let url = target.url("orders");
    options([&url]).create(1 << 20).unwrap().close().unwrap();
    let mut watch = command(["pool", "status", "--watch", &url, "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let reports: Vec<Value> = lines.take(2).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| states(report) == ["in_sync"] && report["losses_survived"] == 0));
}

#[test]
fn watching_ends_where_its_output_is_lost_or_unread() {
    let target = Target::start();
    let url = target.url("orders");
    options([&url]).create(1 << 20).unwrap().close().unwrap();
    for of in [vec!["status", "--watch=100ms", &target.address], vec!["pool", "status", "--watch=100ms", &url]] {
        for json in [false, true] {
            let arguments = || of.iter().copied().chain(json.then_some("--json"));
            let full = fs::File::options().write(true).open("/dev/full").unwrap();
            let said = command(arguments()).stdout(full).output().unwrap();
            let errors = String::from_utf8(said.stderr).unwrap();
            assert!(said.status.code() == Some(4) && errors.contains("standard output took no more"), "{errors}");
            let mut watch = command(arguments()).stdout(Stdio::piped()).spawn().unwrap();
            BufReader::new(watch.stdout.take().unwrap()).lines().next().unwrap().unwrap();
            // As behind `| head -1`: its output is closed by now.
            assert!(watch.wait().unwrap().success());
        }
    }
}
