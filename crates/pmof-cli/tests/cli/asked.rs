//! `pmof status`, and `pmof pool ls -l`.

use std::{fs::File, os::unix::fs::FileExt as _};

use pmof::{Durability, Pool};
use serde_json::Value;

use crate::support::{Said, Target, pmof, text};

/// One pool that is open, one that is closed, one that was left open, and one whose header is damaged.
fn with_pools() -> (Target, Pool) {
    let target = Target::start();
    let create = |name: &str| {
        Pool::options().replica(target.url(name)).require(Durability::ProcessCrash).create(1 << 20).unwrap()
    };
    create("closed").close().unwrap();
    create("damaged").close().unwrap();
    let file = File::options().write(true).open(target.file("damaged")).unwrap();
    file.write_all_at(b"x", 20).unwrap();
    drop(create("left"));
    let open = create("open");
    (target, open)
}

fn pool<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == name).unwrap()
}

/// With `--json` an error is an object too, on standard error, however it came about.
#[test]
fn errors_are_objects_where_results_are() {
    let error = |said: &Said, code: i32| -> Value {
        assert_eq!((said.code, said.output.as_str(), said.errors.lines().count()), (Some(code), "", 1), "{said:?}");
        let mut object: Value = serde_json::from_str(&said.errors).unwrap();
        let error = object["error"].take();
        assert_eq!(error["exit_code"], code);
        error
    };
    let said = pmof(["pool", "info", "--json", "tcp://127.0.0.1:1/orders"]);
    let error_of = error(&said, 1);
    assert!(error_of["message"].as_str().unwrap().contains("tcp://127.0.0.1:1/orders"), "{error_of}");
    let causes = error_of["causes"].as_array().unwrap();
    assert!(causes.iter().any(|cause| cause.as_str().unwrap().contains("Connection refused")), "{error_of}");
    let error_of = error(&pmof(["pool", "info", "--json"]), 2);
    assert!(error_of["message"].as_str().unwrap().contains("required arguments were not provided"), "{error_of}");
    let error_of = error(&pmof(["pool", "info", "--jsn", "--json", "x"]), 2);
    assert!(error_of["message"].as_str().unwrap().starts_with("unexpected argument '--jsn' found"), "{error_of}");
    // Help is no error.
    assert!(pmof(["pool", "info", "--json", "--help"]).done().contains("Usage: pmof pool info"));
}

/// Each manual page ends with what the command exits with and where to read on.
#[test]
fn manual_pages_have_the_sections_of_manual_pages() {
    let pages = pmof(["man"]).done();
    let count = |section: &str| pages.matches(section).count();
    assert_eq!(count(".SH \"EXIT STATUS\""), count(".SH NAME"));
    assert_eq!(count(".SH \"SEE ALSO\""), count(".SH NAME"));
    assert_eq!(count(".SH FILES"), 1);
}

#[test]
fn a_target_says_how_it_is() {
    let (target, writer) = with_pools();
    let report = pmof(["status", "--json", &target.address]).json();
    assert_eq!(report["target"], target.address);
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["root"], text(target.root.path()));
    assert_eq!((&report["protocol_version"], &report["pool_format"]), (&1.into(), &3.into()));
    assert_eq!((&report["oldest_control_version"], &report["newest_control_version"]), (&4.into(), &5.into()));
    assert_eq!(report["is_draining"], false);
    // The writer, and whoever asks.
    assert!(report["connections"].as_u64().unwrap() >= 2, "{report}");
    assert_eq!(report["max_connections"], 10_000);
    let stat = rustix::fs::statvfs(target.root.path()).unwrap();
    assert_eq!(report["total_bytes"], stat.f_blocks * stat.f_frsize);
    assert!(report["free_bytes"].as_u64().unwrap() <= stat.f_blocks * stat.f_frsize);
    assert!(report["memory_bytes"].as_u64().unwrap() >= 2 * (48 << 10), "{report}");
    assert_eq!(report["pools"].as_array().unwrap().len(), 4);

    for (name, health) in [("open", "open"), ("closed", "closed"), ("left", "not_closed"), ("damaged", "damaged")] {
        assert_eq!(pool(&report, name)["health"], health, "{report}");
    }
    assert_eq!(pool(&report, "open")["len_bytes"], 1 << 20);
    assert!(pool(&report, "open")["open_by"].as_str().unwrap().starts_with("the initiator at 127.0.0.1:"), "{report}");
    assert!(pool(&report, "damaged")["reason"].as_str().unwrap().contains("was not touched"), "{report}");
    assert_eq!(pool(&report, "damaged")["len_bytes"], Value::Null);
    writer.close().unwrap();
    let report = pmof(["status", "--json", &target.address]).json();
    assert_eq!(pool(&report, "open")["health"], "closed");

    let said = pmof(["status", &target.address]).done();
    for words in [
        "version      0.1.0, protocol 1, control messages 4 to 5, pool format 3",
        "connections  1 of 10000",
        "pools        4",
        "\nNAME",
    ] {
        assert!(said.contains(words), "{words:?}: {said}");
    }
}

#[test]
fn pools_are_listed_with_their_health() {
    let (target, _writer) = with_pools();
    let said = pmof(["pool", "ls", "-l", &target.address]).done();
    let lines: Vec<_> = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "NAME SIZE HEALTH EPOCH WRITER");
    assert!(lines[1].starts_with("closed 1.0 MiB closed ") && lines[1].ends_with(" -"), "{said}");
    assert!(lines[2].starts_with("damaged - damaged - damaged was not touched"), "{said}");
    assert!(lines[3].starts_with("left 1.0 MiB not closed "), "{said}");
    assert!(lines[4].contains(" open ") && lines[4].contains("the initiator at 127.0.0.1"), "{said}");
    assert_eq!(lines.len(), 5);
    let report = pmof(["pool", "ls", "-l", "--json", &target.address]).json();
    assert_eq!(pool(&report, "left")["health"], "not_closed");
    // Names alone, as before.
    let report = pmof(["pool", "ls", "--json", &target.address]).json();
    assert_eq!(report["pools"], serde_json::json!(["closed", "damaged", "left", "open"]));
    let here = pmof(["pool", "ls", "-l", &format!("file://{}", text(target.root.path()))]).done();
    assert!(here.contains("closed") && here.contains("damaged"), "{here}");
}

#[test]
fn what_is_no_target_has_no_status() {
    let mut target = Target::start();
    pmof(["status"]).wrong_use(&["ADDRESS"]);
    pmof(["status", "nonsense"]).wrong_use(&["nonsense"]);
    pmof(["status", "--watch=0", &target.address]).wrong_use(&["--watch"]);
    pmof(["status", &format!("file://{}", text(target.root.path()))]).failed(&["no target serves", "pmof pool ls -l"]);
    target.kill();
    pmof(["status", &target.address]).failed(&["cannot tell how the target is", &target.address, "Connection refused"]);
    let said = pmof(["status", "--json", &target.address]);
    assert!(said.errors.contains("\"message\":\"cannot tell how the target is\""), "{said:?}");
}

#[test]
fn a_damaged_pool_is_removed_by_force_and_what_is_no_pool_stays() {
    let (target, _writer) = with_pools();
    std::fs::write(target.file("letter"), [b'x'; 8192]).unwrap();
    let (damaged, letter) = (target.url("damaged"), target.url("letter"));
    pmof(["pool", "rm", &damaged]).failed(&["cannot remove", "header is damaged"]);
    let said = pmof(["pool", "rm", "--force", "--dry-run", &damaged]).done();
    assert_eq!(said, format!("would remove {damaged}\n"));
    assert!(target.file("damaged").exists());
    assert_eq!(pmof(["pool", "rm", "--force", &damaged]).done(), format!("removed {damaged}\n"));
    assert!(!target.file("damaged").exists());

    for options in [&["--force"][..], &["--force", "--dry-run"]] {
        let said = pmof([&["pool", "rm", &letter], options].concat());
        said.failed(&["cannot remove", "it is not a pool"]);
    }
    assert!(target.file("letter").exists());
    pmof(["pool", "rm", "--force", &target.url("open")]).failed(&["is open for writing by"]);
    assert!(target.file("open").exists());
    assert_eq!(
        pmof(["pool", "rm", "--force", &target.url("closed")]).done(),
        format!("removed {}\n", target.url("closed"))
    );
    pmof(["pool", "rm", "--force", &target.url("missing")]).failed(&["there is no pool missing"]);
}

#[test]
fn options_that_nothing_can_follow_are_refused() {
    let target = Target::start();
    let root = text(target.root.path());
    let serve = |option, value| pmof(["serve", "--root", root, "--listen", "tcp://127.0.0.1:0", option, value]);
    serve("--max-connections", "0").wrong_use(&["--max-connections", "at least 1"]);
    serve("--workers", "99999").wrong_use(&["--workers", "4096"]);
    serve("--drain-timeout", "soon").wrong_use(&["--drain-timeout", "such as 10s"]);
    let url = format!("{}?source=127.0.0.1", target.url("orders"));
    pmof(["pool", "info", &url]).wrong_use(&["source=127.0.0.1", "is not understood", "tcp://HOST[:PORT]/POOL"]);
}

/// It says at once what it cannot do and why, and does not wait.
#[test]
fn a_target_without_a_free_connection_says_so() {
    let root = crate::support::directory();
    let (mut child, address) = crate::support::serve_with(root.path(), &["--max-connections", "1"]);
    let options = Pool::options().replica(format!("{address}/orders")).require(Durability::ProcessCrash);
    let pool = options.create(1 << 20).unwrap();
    let words = ["cannot tell how the target is", "as many connections as it may have", "--max-connections"];
    let said = pmof(["status", &address]);
    said.failed(&words);
    assert!(said.elapsed.as_secs() < 4, "it waits for the connect timeout: {said:?}");
    let said = pmof(["status", "--json", &address]);
    assert!(said.code == Some(1) && said.errors.contains(words[1]), "{said:?}");
    pool.close().unwrap();
    crate::support::wait_until("served", || pmof(["status", &address]).code == Some(0));
    child.kill().unwrap();
    child.wait().unwrap();
}
