//! Clean clones of this repository.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

/// Makes `clone` what `git clone` and a checkout of `revision` make. Files that are right stay, with their times.
pub(crate) fn at(root: &Path, clone: &Path, revision: &str) -> Result<()> {
    let brought = clone.join(".git").exists() && bring(root, clone, revision).is_ok();
    if !brought {
        if clone.exists() {
            fs::remove_dir_all(clone).with_context(|| format!("removing {}", clone.display()))?;
        }
        git(root, &["clone", "--quiet", "--no-checkout", ".", &clone.to_string_lossy()])?;
        bring(root, clone, revision)?;
    }
    let left = git(clone, &["status", "--porcelain", "--ignored"])?;
    ensure!(left.is_empty(), "{} is no clean clone: {left}", clone.display());
    println!("a clone of {revision}");
    Ok(())
}

fn bring(root: &Path, clone: &Path, revision: &str) -> Result<()> {
    git(clone, &["fetch", "--quiet", &root.to_string_lossy(), revision])?;
    git(clone, &["checkout", "--quiet", "--force", "--detach", revision])?;
    git(clone, &["clean", "--quiet", "-ffdx"]).map(drop)
}

/// What git prints.
pub(crate) fn git(directory: &Path, arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(directory);
    let output = git.output().context("starting git")?;
    ensure!(output.status.success(), "{git:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
