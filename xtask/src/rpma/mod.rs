//! `cargo xtask rpma`: a C program as a judge of librpma.

use std::{env, fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};

use crate::{capi, judge, vm::testbed::Testbed};

mod races;
mod symbols;

/// `cargo xtask rpma`.
#[derive(Debug, Subcommand)]
pub(crate) enum Rpma {
    /// Compile testbed/rpma and run it with a librpma: each of the 84 functions, used and misused
    ///
    /// The output is the program's, the last line `N passed, N failed, N skipped`; so is the exit code.
    Check(Check),
    /// Threads of a program for librpma under valgrind's helgrind and drd: with librpma.supp nothing is reported but races of the
    /// program itself
    Races(races::Races),
    /// Compare what ours exports with Debian's libraries, by abidiff
    Abi,
    /// Write docs/librpma-functions.md: which function is used by fio and by librpma's examples, and which is checked
    Matrix {
        /// Fail where the document says something else
        #[arg(long)]
        check: bool,
    },
}

/// Options of `rpma check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The directory with the librpma.so.0 that is judged; ours, where cargo xtask capi puts it, otherwise
    #[arg(long, value_name = "DIRECTORY")]
    library: Option<PathBuf>,
    /// What the library is told to use (`PMOF_TRANSPORT`)
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "shm", "verbs"])]
    transport: String,
    /// A local address; both ends of all connections are there
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
    /// The first of the 16 ports that are used
    #[arg(long, default_value_t = 7400)]
    port: u16,
    /// A device-DAX or a file for what is flushed persistently
    #[arg(long, value_name = "PATH")]
    pmem: Option<PathBuf>,
    /// The library is Debian's: what it is known to do wrong is skipped
    #[arg(long)]
    reference: bool,
    /// Under valgrind: errors and leaks fail too
    #[arg(long)]
    valgrind: bool,
}

impl Rpma {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Check(check) => check.run(),
            Self::Races(races) => races.run(),
            Self::Abi => symbols::compare(),
            Self::Matrix { check } => symbols::matrix(check),
        }
    }
}

impl Check {
    fn run(&self) -> Result<ExitCode> {
        let here = env::current_dir().context("finding the current directory")?;
        let library = here.join(self.library.clone().unwrap_or_else(capi::directory));
        ensure!(
            library.join("librpma.so.0").exists(),
            "no librpma.so.0 in {}: cargo xtask capi builds ours",
            library.display()
        );
        let testbed = Testbed::new(|line| eprintln!("test bed: {line}"))?;
        let directory = here.join("target/rpma");
        fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let program = testbed.build_rpma_check(&directory)?;
        let mut command = judge::command(&program, self.valgrind);
        command.args(self.arguments()).env("LD_LIBRARY_PATH", &library).env("PMOF_TRANSPORT", &self.transport);
        judge::run(&mut command)
    }

    fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments = vec!["--port".into(), self.port.to_string().into()];
        if let Some(pmem) = &self.pmem {
            arguments.extend(["--pmem".into(), pmem.into()]);
        }
        if self.reference {
            arguments.push("--reference".into());
        }
        arguments.push((&self.address).into());
        arguments
    }
}
