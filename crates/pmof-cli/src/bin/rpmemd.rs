//! The `rpmemd` command: a target for programs written for librpmem.

use std::process::ExitCode;

fn main() -> ExitCode {
    pmof_cli::rpmemd()
}
