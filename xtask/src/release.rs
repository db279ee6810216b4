//! The release build: one choice of packages for all suites that need one of them.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

/// What is named in every release build of a suite. Of another choice of packages cargo compiles what they depend on once more: with other
/// features (the whole workspace has the default ones of each crate), or, where no static library is among them, without machine code
/// beside what link-time optimization reads.
pub(crate) const PACKAGES: [&str; 9] = [
    "pmof-cli",
    "pmof-rpma",
    "pmof-rpmem",
    "cache-model-plugin",
    "instruction-counter-plugin",
    "referee-probe",
    "persist-bench",
    "cut-load",
    "cut-judge",
];

/// Builds all of them where they are not up to date.
pub(crate) fn build(workspace: &Path) -> Result<()> {
    build_these(workspace, &PACKAGES)
}

/// Builds these packages.
pub(crate) fn build_these(workspace: &Path, packages: &[&str]) -> Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet"])
        .args(packages.iter().flat_map(|package| ["--package", *package]))
        .current_dir(workspace)
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "building {} for release: {status}", packages.join(", "));
    Ok(())
}
