//! `cargo xtask tsan`: tests of many threads under the thread sanitizer.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

/// Packages and their tests in which threads meet on connections, queues, memory and lanes.
const TESTS: [(&str, &[&str]); 2] =
    [("pmof-rpma", &["--test", "life", "--test", "deregistering"]), ("pmof-pool", &["--test", "remote"])];

/// The sanitizer knows the standard library only if that is built with it, which takes a nightly toolchain and its sources.
const TARGET: &str = "x86_64-unknown-linux-gnu";

const SUPPRESSIONS: &str = "testbed/tsan.suppressions";

pub(crate) fn run() -> Result<ExitCode> {
    let suppressions = std::fs::canonicalize(SUPPRESSIONS).with_context(|| format!("looking for {SUPPRESSIONS}"))?;
    for (package, tests) in TESTS {
        let status = Command::new("cargo")
            .args(["+nightly", "test", "-Zbuild-std", "--target", TARGET, "--target-dir", "target/tsan"])
            .args(["--package", package])
            .args(tests)
            .env("RUSTFLAGS", "-Zsanitizer=thread")
            .env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()))
            .status()
            .context("starting cargo")?;
        ensure!(
            status.success(),
            "{package}: {status}; where the toolchain is what is missing: rustup toolchain install nightly --component rust-src"
        );
    }
    Ok(ExitCode::SUCCESS)
}
