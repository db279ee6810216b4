//! `referee-probe`: stores of which a power cut must lose some and keep others, to be run in a guest under the test bed's
//! referees. `write` does them and says `ready`; `report` says, one line a row, what it finds: `new`, `old`, `zero`,
//! `none` (no such file) or `other`.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the referees follow x86-64 machines only");

mod cpu;
mod devdax;
mod disk;
mod fsdax;

use std::{io::Write as _, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

/// Bytes of a row's value.
const VALUE_BYTES: usize = 64;
const NEW: [u8; VALUE_BYTES] = [0x4e; VALUE_BYTES];
const OLD: [u8; VALUE_BYTES] = [0x4f; VALUE_BYTES];

#[derive(Debug, Parser)]
#[command(about = "Stores of which a power cut must lose some and keep others")]
struct Arguments {
    /// A device-DAX character device
    #[arg(long, value_name = "DEVICE")]
    devdax: Option<PathBuf>,
    /// A directory on a file system with dax
    #[arg(long, value_name = "DIRECTORY")]
    fsdax: Option<PathBuf>,
    /// A block device, which is overwritten
    #[arg(long, value_name = "DEVICE")]
    disk: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Do all stores, print `ready` and wait for the power cut
    Write,
    /// Print what is there of each
    Report,
    /// On the device-DAX: mark 1, a store, clwb, a fence, mark 2, print `ready` and wait for the power cut
    Step {
        /// The fence is a locked instruction, not sfence
        #[arg(long)]
        locked: bool,
    },
    /// Mark 1, then a number to the port, a line each, and the same number to the device-DAX, until the power cut
    Tell {
        /// A virtio-serial port
        port: PathBuf,
    },
    /// Execute a clwb that is relative to the instruction, which the model cannot follow
    Unfollowed,
    /// Five times: mark 1, two thousand instructions, mark 2, a system call, mark 3
    Count,
    /// Mark 1
    MarkBegin,
    /// Mark 2
    MarkEnd,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.command {
        Command::Write => {
            if let Some(device) = &arguments.devdax {
                devdax::write(device)?;
            }
            if let Some(device) = &arguments.disk {
                disk::write(device)?;
            }
            // Last: the journal must not be written once more after the file that it does not know.
            if let Some(directory) = &arguments.fsdax {
                fsdax::write(directory)?;
            }
            wait_for_the_cut()
        }
        Command::Report => {
            if let Some(device) = &arguments.devdax {
                devdax::report(device)?;
            }
            if let Some(device) = &arguments.disk {
                disk::report(device)?;
            }
            if let Some(directory) = &arguments.fsdax {
                fsdax::report(directory)?;
            }
            Ok(())
        }
        Command::Tell { port } => devdax::tell(arguments.devdax.as_deref().context("tell needs --devdax")?, &port),
        Command::Step { locked } => {
            devdax::step(arguments.devdax.as_deref().context("step needs --devdax")?, locked)?;
            wait_for_the_cut()
        }
        Command::Unfollowed => {
            cpu::clwb_relative();
            Ok(())
        }
        Command::Count => {
            (0..5).for_each(|_| cpu::count());
            Ok(())
        }
        Command::MarkBegin => {
            instruction_counter::mark!(1);
            Ok(())
        }
        Command::MarkEnd => {
            instruction_counter::mark!(2);
            Ok(())
        }
    }
}

fn wait_for_the_cut() -> Result<()> {
    println!("ready");
    std::io::stdout().flush()?;
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Prints a row: what the bytes are.
fn row(name: &str, found: &[u8]) {
    let all = |value: u8| found.iter().all(|byte| *byte == value);
    let what = match found {
        _ if all(NEW[0]) => "new",
        _ if all(OLD[0]) => "old",
        _ if all(0) => "zero",
        _ => "other",
    };
    println!("{name} {what}");
}
