//! `pmof completions` and `pmof man`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use pmof_console::output;

use crate::Cli;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual pages of all commands.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write one file per command into this directory instead, which is created if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible_commands(), "pmof", &mut script);
    Ok(output::print(&String::from_utf8(script)?)?)
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let mut command = visible_commands().disable_help_subcommand(true);
    command.build();
    let pages = pages(&command);
    let Some(directory) = &args.dir else {
        let text = pages.iter().map(render).collect::<anyhow::Result<String>>()?;
        return Ok(output::print(&text)?);
    };
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for page in &pages {
        let path = directory.join(page.get_filename());
        std::fs::write(&path, render(page)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The command without its internal parts.
fn visible_commands() -> Command {
    let command = Cli::command();
    let visible: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let mut shown = Command::new("pmof").version(env!("CARGO_PKG_VERSION")).subcommand_required(true);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown.subcommands(visible)
}

fn pages(command: &Command) -> Vec<Man> {
    let below = command.get_subcommands().flat_map(pages);
    std::iter::once(Man::new(command.clone())).chain(below).collect()
}

fn render(page: &Man) -> anyhow::Result<String> {
    let mut text = Vec::new();
    page.render(&mut text).context("cannot generate a manual page")?;
    Ok(String::from_utf8(text)?)
}
