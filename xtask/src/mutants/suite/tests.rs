use std::os::unix::process::ExitStatusExt as _;

use super::*;

fn judge(command: &str, code: i32, output: &str) -> Verdict {
    SuiteCommand::parse(command).unwrap().judge(Some(ExitStatus::from_raw(code << 8)), output)
}

#[test]
fn only_a_failing_test_counts_as_one() {
    let nextest = "cargo nextest run -p x";
    let failed = "        FAIL [   0.004s] ( 1/14) pmof-mem flush::tests::a\n   Canceling due to test failure\n     \
                  Summary [ 0.1s] 14/20 tests run: 13 passed, 1 failed, 6 skipped\n        \
                  FAIL [   0.004s] ( 1/14) pmof-mem flush::tests::a\n";
    let names = vec!["flush::tests::a".to_owned()];
    assert_eq!(judge(nextest, 100, failed), Verdict::TestsFailed { count: 1, names });
    let passed = "     Summary [ 0.1s] 14 tests run: 14 passed, 0 skipped\n";
    assert_eq!(judge(nextest, 0, passed), Verdict::Passed);
    // As where the linker has no space, or a filter finds nothing.
    assert!(matches!(judge(nextest, 100, passed), Verdict::Unclear(_)));
    assert!(matches!(judge(nextest, 101, ""), Verdict::Unclear(_)));
    assert!(matches!(judge(nextest, 0, "     Summary [ 0.0s] 0 tests run: 0 passed, 9 skipped"), Verdict::Unclear(_)));
}

#[test]
fn the_other_runners_are_read_too() {
    let output = "test a::b ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
    let names = vec!["a::b".to_owned()];
    assert_eq!(judge("cargo test -p x", 101, output), Verdict::TestsFailed { count: 1, names });
    let closing = "1 passed, 2 failed, 0 skipped\n";
    assert_eq!(judge("cargo xtask vm test", 1, closing), Verdict::TestsFailed { count: 2, names: Vec::new() });
}

#[test]
fn a_suite_that_does_not_end_is_unclear() {
    let suite = SuiteCommand::parse("cargo test -p x").unwrap();
    assert!(matches!(suite.judge(None, "test result: FAILED. 0 passed; 1 failed"), Verdict::Unclear(_)));
    let mut child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
    assert_eq!(wait(&mut child, Some(Duration::from_millis(50))).unwrap(), None);
}

#[test]
fn what_is_run_is_built_first() {
    let building = |command: &str| SuiteCommand::parse(command).unwrap().building("pmof-mem").join(" ");
    assert_eq!(building("cargo nextest run -p x -E 'test(a b)'"), "cargo nextest run -p x -E test(a b) --no-run");
    assert_eq!(building("cargo test -p x --test y -- --ignored"), "cargo test -p x --test y --no-run");
    assert_eq!(building("cargo xtask vm test"), "cargo check --quiet --package pmof-mem --package xtask");
}

#[test]
fn a_suite_is_one_whose_tests_are_counted() {
    for wrong in ["", "cargo", "cargo build -p x", "sh -c 'cargo test'", "cargo nextest", "cargo test 'x"] {
        assert!(SuiteCommand::parse(wrong).is_err(), "{wrong}");
    }
}
