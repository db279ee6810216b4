//! `cargo xtask fio`: the unmodified engines of fio as a judge of librpma.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::vm::testbed::Testbed;

/// `cargo xtask fio`.
#[derive(Debug, Subcommand)]
pub(crate) enum Fio {
    /// Build fio with its librpma engines, where it is not there or its recipe has changed; print the path
    Build,
}

impl Fio {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let testbed = Testbed::new(|line| eprintln!("test bed: {line}"))?;
        match self {
            Self::Build => {
                let fio = testbed.fio()?;
                println!("{}", fio.binary.display());
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
