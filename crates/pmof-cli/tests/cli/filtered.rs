//! Where a filter answers the calls that flush files, and nothing is flushed.

use std::{fs, path::Path};

use syscall_recorder::{Silence, silenced};

use crate::support::{command, file_with, pmof, serve_with, text};

/// A directory on a disk whose files survive loss of power here; `None` where there is none.
fn durable_directory() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let found = strongest(&pmof(["doctor", "--json", text(directory.path())]).json(), directory.path());
    if found != "power-failure" {
        skip_report::skipped!("the disk gives {found}");
        return None;
    }
    Some(directory)
}

/// What the doctor says of a directory.
fn strongest(report: &serde_json::Value, directory: &Path) -> String {
    let memories = report["memories"].as_array().expect("the report lists memories");
    let is_it = |memory: &&serde_json::Value| memory["name"].as_str() == directory.to_str();
    let memory = memories.iter().find(is_it).unwrap_or_else(|| panic!("{report}"));
    memory["durability"].as_str().unwrap_or_else(|| panic!("{memory}")).to_owned()
}

/// Runs `act` under each filter.
fn under_filters(act: impl Fn() + Sync) {
    for silence in [Silence::All, Silence::Valid] {
        if let Err(error) = silenced(silence, &act) {
            skip_report::skipped!("{error}");
        }
    }
}

#[test]
fn the_doctor_does_not_believe_flushes_that_a_filter_answers() {
    let Some(directory) = durable_directory() else { return };
    under_filters(|| {
        let report = pmof(["doctor", "--json", text(directory.path())]).json();
        assert_eq!(strongest(&report, directory.path()), "process-crash");
        for memory in report["memories"].as_array().unwrap() {
            let is_synced = memory["mechanism"].as_str() == Some("file sync");
            assert!(!is_synced || memory["durability"] != "power-failure", "{memory}");
        }
        let said = pmof(["doctor", text(directory.path())]).done();
        assert!(said.contains("system call filter") && said.contains("run this where no filter answers"), "{said}");
    });
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the doctor left something behind");
}

#[test]
fn no_local_pool_is_called_durable_under_a_filter() {
    let Some(directory) = durable_directory() else { return };
    let source = file_with(&directory, "source", b"kept");
    let url = format!("file://{}/pool", text(directory.path()));
    under_filters(|| {
        let copied = pmof(["cp", "--durability", "process-crash", text(&source), &url]).done();
        assert!(copied.contains("process-crash on 1/1") && !copied.contains("power-failure"), "{copied}");
        pmof(["pool", "rm", &url]).done();
        pmof(["cp", "--durability", "power-failure", text(&source), &url])
            .failed(&["power-failure", "system call filter"]);
    });
    let copied = pmof(["cp", text(&source), &url]).done();
    assert!(copied.contains("power-failure on 1/1") && copied.contains("probed"), "{copied}");
}

#[test]
fn no_target_promises_what_a_filter_keeps_from_the_disk() {
    let Some(directory) = durable_directory() else { return };
    let source = file_with(&directory, "source", b"kept");
    let root = directory.path().join("root");
    fs::create_dir(&root).unwrap();
    for (options, level, evidence) in
        [(&[][..], "process-crash", "probed"), (&["--declare-battery-backed"], "power-failure", "declared")]
    {
        under_filters(|| {
            let (mut target, address) = serve_with(&root, options);
            let url = format!("{address}/pool");
            let copied = pmof(["cp", "--durability", level, text(&source), &url]).done();
            assert!(copied.contains(&format!("{level} on 1/1")) && copied.contains(evidence), "{copied}");
            pmof(["pool", "rm", &url]).done();
            if level != "power-failure" {
                let said = command(["cp", "--durability", "power-failure", text(&source), &url]).output().unwrap();
                let errors = String::from_utf8(said.stderr).unwrap();
                assert!(!said.status.success() && errors.contains("system call filter"), "{errors}");
            }
            target.kill().unwrap();
            target.wait().unwrap();
        });
    }
}
