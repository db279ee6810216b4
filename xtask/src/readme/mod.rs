//! `cargo xtask readme`: the commands that README.md and the guide's pages tell a newcomer to run, run as written, in a clean clone.

use std::{env, fs, path::Path, process::ExitCode, time::Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;

use crate::counts::Counts;
use commands::PageCommand;
use shell::Shell;
use stage::Stage;

pub(crate) mod commands;
mod shell;
mod stage;

#[cfg(test)]
mod tests;

/// Pages, and what the headings of their sections begin with. Each section has a shell of its own.
const SECTIONS: [(&str, &str); 4] = [
    ("README.md", "Try it"),
    ("docs/pool-sets.md", "Pool sets"),
    ("docs/operating.md", "From installation to an upgrade"),
    ("docs/backup.md", "Back up and restore"),
];

/// Commands that are not run, word for word, and why. Each must be in a page, and be one that xtask takes.
const NOT_RUN: [(&str, &str); 2] = [
    ("cargo xtask test --quick", "what it runs, the run that this is a suite of has run on the same commit"),
    ("cargo xtask test", "it is the run that this is a suite of"),
];

/// A section's commands, each with the reason why it is not run, if there is one.
type Section = Vec<(PageCommand, Option<&'static str>)>;

/// Runs all sections, and closes with the line of counts.
pub(crate) fn run() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace's root")?;
    let stage = Stage::set(root)?;
    let clone = stage.clone();
    let read =
        |page: &str| fs::read_to_string(clone.join(page)).with_context(|| format!("reading {page} of the clone"));
    let sections = sections(read)?;
    let mut counts = Counts::default();
    for ((page, name), section) in SECTIONS.iter().zip(sections) {
        println!("== {page}, {name}");
        let mut shell = Shell::start(&mut stage.bash(), &stage.outputs(name))?;
        counts += run_section(&mut shell, &section);
    }
    println!("{counts}");
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The commands of all sections.
///
/// # Errors
/// Where a section is gone, or an entry of [`NOT_RUN`] is in none of them or no command of xtask.
fn sections(read: impl Fn(&str) -> Result<String>) -> Result<Vec<Section>> {
    let mut left: Vec<_> = NOT_RUN.iter().map(|(text, _)| *text).collect();
    let mut sections = Vec::new();
    for (page, heading) in SECTIONS {
        let commands = commands::of_section(&read(page)?, heading)?.into_iter().map(|command| {
            let reason = NOT_RUN.iter().find(|(text, _)| *text == command.text).map(|(_, reason)| *reason);
            left.retain(|text| *text != command.text);
            (command, reason)
        });
        sections.push(commands.collect());
    }
    if let Some(text) = left.first() {
        bail!("no page shows the command {text:?} any more: take it out of NOT_RUN in xtask/src/readme/mod.rs");
    }
    for (text, _) in NOT_RUN {
        crate::Cli::try_parse_from(text.split_whitespace().skip(1))
            .with_context(|| format!("a page shows {text:?}, which xtask does not take"))?;
    }
    Ok(sections)
}

/// Runs a section until a command fails: the rest may need what it would have done.
fn run_section(shell: &mut Shell, section: &Section) -> Counts {
    let mut counts = Counts::default();
    for (command, reason) in section {
        let name = command.text.lines().next().unwrap_or_default();
        if let Some(reason) = reason {
            println!("skipped: {name}: {reason}");
            counts += Counts::ONE_SKIPPED;
            continue;
        }
        let start = Instant::now();
        let outcome = shell.run(command);
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                println!("ok ({seconds:.1} s): {name}");
                counts += Counts::ONE_PASSED;
            }
            Err(error) => {
                println!("FAILED ({seconds:.1} s): {name}: {error:#}");
                counts += Counts::ONE_FAILED;
                break;
            }
        }
    }
    counts
}
