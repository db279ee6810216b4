//! `pmof doctor` on stacks of media that are built here, by the script that builds more of them in the test bed's machine
//! (`testbed/guest/media.sh`): loop devices, file systems, overlays. What this machine cannot build is skipped by name.

use std::{path::Path, process::Command};

#[test]
fn no_claim_goes_beyond_what_a_stack_keeps() {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        return skip_report::skipped!("stacks of media are built by root");
    }
    if !Path::new("/dev/loop-control").exists() {
        return skip_report::skipped!("no loop devices");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/guest/media.sh");
    // On the disk of the build: /tmp may be memory.
    let base = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = Command::new("bash")
        .arg(script)
        .env("PMOF", env!("CARGO_BIN_EXE_pmof"))
        .env("PMOF_MEDIA_BASE", base.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| line.strip_prefix("skipped "))
        .for_each(|stack| skip_report::skipped!("in part: {stack}"));
    let failed: Vec<_> = text.lines().filter(|line| line.starts_with("not ok ")).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let passed = text.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(text.contains(&format!("checks {passed}")), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}
