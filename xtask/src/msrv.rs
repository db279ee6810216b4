//! `cargo xtask msrv`: whether pmof compiles with the least Rust that Cargo.toml names, Debian's own.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};

use crate::vm::{
    testbed::Testbed,
    tools::{self, missing_to_fetch},
};

/// Cargo.toml's `rust-version`.
const LEAST: &str = env!("CARGO_PKG_RUST_VERSION");

/// What tests alone use, over shuttle, which asks for a newer Rust.
const LEFT_OUT: &str = "shuttle-locks";

/// Where the build goes: two compilers do not share one.
const TARGET: &str = "target/msrv";

/// Debian's compiler, unpacked.
struct Toolchain {
    workspace: PathBuf,
    tree: PathBuf,
}

/// Why Debian's compiler cannot be had here, if so. Fetches it where it is not there yet.
pub(crate) fn missing() -> Option<String> {
    missing_to_fetch().or_else(|| {
        let error = Toolchain::get().err()?;
        Some(format!("{error:#}").lines().collect::<Vec<_>>().join("; "))
    })
}

pub(crate) fn run() -> Result<ExitCode> {
    let toolchain = Toolchain::get()?;
    let version = tools::run(toolchain.rustc().arg("--version"))?;
    print!("{version}");
    ensure!(
        is_of(&version, LEAST),
        "rust-version in Cargo.toml is {LEAST}, and Debian's compiler is {version}: nothing checks {LEAST}"
    );
    // Debian's cargo needs no network then, and no certificates.
    let mut fetch = Command::new("cargo");
    fetch.args(["fetch", "--locked", "--target", "x86_64-unknown-linux-gnu"]).current_dir(&toolchain.workspace);
    tools::run(&mut fetch)?;
    let status = toolchain.check().status().context("starting Debian's cargo")?;
    ensure!(status.success(), "pmof does not compile with Rust {LEAST}: {status}");
    Ok(ExitCode::SUCCESS)
}

impl Toolchain {
    fn get() -> Result<Self> {
        let testbed = Testbed::new(|line| eprintln!("msrv: {line}"))?;
        let tree = testbed.unpacked("rust", &testbed.workspace().join("testbed/rust"), "packages", missing_to_fetch)?;
        Ok(Self { workspace: testbed.workspace().to_owned(), tree })
    }

    fn rustc(&self) -> Command {
        let mut command = Command::new(self.workspace.join("testbed/rust/rustc"));
        command.env("PMOF_RUST", &self.tree);
        command
    }

    fn check(&self) -> Command {
        let mut command = tools::of_tree(&self.tree, Path::new("usr/bin/cargo"), "cargo");
        command.args(["check", "--workspace", "--exclude", LEFT_OUT, "--locked", "--offline", "--target-dir", TARGET]);
        command.env("RUSTC", self.rustc().get_program()).env("PMOF_RUST", &self.tree).current_dir(&self.workspace);
        // A lint of a newer compiler, or a wrapper, is not what is asked.
        for variable in ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO"] {
            command.env_remove(variable);
        }
        command
    }
}

/// Whether `rustc VERSION ...` is a release of this minor version.
fn is_of(said: &str, minor: &str) -> bool {
    let version = said.split_whitespace().nth(1).and_then(|version| version.strip_prefix(minor));
    version.is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_of_the_minor_version_that_it_says() {
        assert!(is_of("rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)\n", "1.85"));
        assert!(!is_of("rustc 1.86.0 (05f9846f8 2025-03-31)\n", "1.85"));
        assert!(!is_of("rustc 1.850.0\n", "1.85"));
        assert!(!is_of("", "1.85"));
    }
}
