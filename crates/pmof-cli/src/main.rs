//! The `pmof` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    pmof_cli::pmof()
}
