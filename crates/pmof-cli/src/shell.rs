//! `pmof completions` and `pmof man`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use pmof_console::output;

use crate::Cli;

/// The end of every manual page, but for what it refers to.
const EXIT_STATUS: &str = r#".SH "EXIT STATUS"
.TP
.B 0
All was done as asked.
.TP
.B 1
Something failed, or could not be looked at. Standard error has one line that says what, why, and what to do; with \fB\-\-json\fR one JSON object with "error" and in it "message", "causes" and "exit_code".
.TP
.B 2
The command was called wrongly.
.TP
.B 3
What was compared differs, or is not sound: by \fBcp\fR, \fBpool check\fR, \fBpool scrub\fR, \fBpool info\fR and \fBpool import\fR. Standard error has the same line.
.TP
.B 128 and more
It was ended by the signal of that number less 128.
"#;

/// What only a target reads.
const OF_SERVE: &str = r#".SH FILES
.TP
.I /etc/pmof/pmof.conf, ~/.config/pmof/pmof.conf
Configuration that \fB\-\-stdio\fR reads where there is one: lines of "option = value". Other targets read the file that \fB\-\-config\fR names.
.SH ENVIRONMENT
.TP
.B JOURNAL_STREAM
Where it names standard error, lines of the log have the priority of the journal and no time.
.TP
.B NOTIFY_SOCKET, WATCHDOG_USEC
The service manager is told when the target is ready, reloads, stops, and is alive.
"#;

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
    let name = page.get_filename();
    let (mut text, name) = (String::from_utf8(text)?, name.trim_end_matches(".1"));
    text.push_str(EXIT_STATUS);
    if name == "pmof-serve" {
        text.push_str(OF_SERVE);
    }
    let others = if name == "pmof" { ".BR pmof-serve (1),\n.BR pmof-pool (1)\n" } else { ".BR pmof (1)\n" };
    Ok(text + ".SH \"SEE ALSO\"\n" + others)
}
