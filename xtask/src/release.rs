//! Release builds of packages, in the way in which all of them share what they have in common.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

/// Named in every release build. Of another choice of packages cargo compiles what they depend on once more: with other features, or,
/// where no static library is among them, without machine code beside what link-time optimization reads.
const ALWAYS: [&str; 3] = ["pmof-cli", "pmof-rpma", "pmof-rpmem"];

/// Builds these packages, pmof and the drop-in libraries where they are not up to date.
pub(crate) fn build(workspace: &Path, packages: &[&str]) -> Result<()> {
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet"])
        .args(ALWAYS.iter().chain(packages).flat_map(|package| ["--package", *package]))
        .current_dir(workspace)
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "building {} for release: {status}", [&ALWAYS, packages].concat().join(", "));
    Ok(())
}
