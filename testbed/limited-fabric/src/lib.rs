//! This machine's libfabric, made to look older or poorer to the programs of a test: `limited.c`, compiled and loaded in its place.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// The library's name for the dynamic loader.
const LIBRARY: &str = "libfabric.so.1";

/// Debian's package libfabric-dev.
const HEADER: &str = "/usr/include/rdma/fabric.h";

/// A limit: `limited.c` says what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The library says that it is version 1.N.
    Minor(u16),
    /// No provider has RMA.
    NoRma,
    /// So many regions can be registered at a time in one process.
    Regions(u32),
}

/// A library that stands in front of the real one, and goes with this value.
#[derive(Debug)]
pub struct LimitedFabric {
    directory: TempDir,
    real: PathBuf,
}

impl LimitedFabric {
    /// Compiles the library. Where this machine lacks libfabric or its headers, the error says so.
    ///
    /// # Panics
    ///
    /// Where the compiler does not run or reports an error.
    pub fn build() -> Result<Self, String> {
        if !Path::new(HEADER).exists() {
            return Err(format!("no {HEADER} (apt install libfabric-dev)"));
        }
        let compiler = || Command::new("cc");
        let found = compiler().arg(format!("-print-file-name={LIBRARY}")).output().expect("cc, which Rust links with");
        let real = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
        if !real.is_absolute() {
            return Err(format!("no {LIBRARY} (apt install libfabric1)"));
        }
        let directory = tempfile::tempdir().expect("a directory");
        let source = directory.path().join("limited.c");
        std::fs::write(&source, include_str!("limited.c")).expect("the source");
        let mut command = compiler();
        command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        let output =
            command.arg(directory.path().join(LIBRARY)).arg(&source).output().expect("cc, which Rust links with");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(Self { directory, real })
    }

    /// Has a program load this library, with a limit.
    pub fn limit<'a>(&self, program: &'a mut Command, limit: Limit) -> &'a mut Command {
        program.env("LD_LIBRARY_PATH", self.directory.path()).env("LIMITED_REAL", &self.real);
        match limit {
            Limit::Minor(minor) => program.env("LIMITED_VERSION", minor.to_string()),
            Limit::NoRma => program.env("LIMITED_RMA", "0"),
            Limit::Regions(count) => program.env("LIMITED_REGIONS", count.to_string()),
        }
    }
}
