//! `--trust-host`: given to a command, it holds for every target that the process reaches, and the commands that messages advise repeat it.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicBool, Ordering},
};

use pmof::{Pool, PoolOptions, TargetOptions};
use pmof_access::ConnectOptions;

/// The option.
pub const OPTION: &str = "--trust-host";

/// The commands that have the option, of those that messages advise.
const ADVISED: [&str; 3] = ["pool", "cp", "status"];

/// Whether this process trusts targets of all users of its machine.
static IS_HOST_TRUSTED: AtomicBool = AtomicBool::new(false);

/// Which users' targets are trusted.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct TrustArgs {
    /// On loopback addresses, trust targets of every user of this machine, not only your own and root's
    #[arg(long, global = true)]
    trust_host: bool,
}

impl TrustArgs {
    /// Makes the choice for the whole process. Call it before targets are reached.
    pub fn apply(self) {
        IS_HOST_TRUSTED.store(self.trust_host, Ordering::Relaxed);
    }
}

/// Whether this process trusts targets of all users of its machine.
pub fn is_host_trusted() -> bool {
    IS_HOST_TRUSTED.load(Ordering::Relaxed)
}

/// The option for a child process, if this process has it.
pub fn option() -> Option<&'static str> {
    is_host_trusted().then_some(OPTION)
}

/// Options of pools that trust what this process trusts.
pub fn pool_options() -> PoolOptions {
    Pool::options().trust_host(is_host_trusted())
}

/// The same of replicas of pool sets.
pub fn target_options() -> TargetOptions {
    TargetOptions::default().trust_host(is_host_trusted())
}

/// The same of connections.
pub fn connect_options() -> ConnectOptions {
    ConnectOptions::default().trust_host(is_host_trusted())
}

/// `text`, in which every advised command has the option if this process has it: without it the command would fail.
pub(crate) fn repeated_in(text: &str) -> Cow<'_, str> {
    if is_host_trusted() { Cow::Owned(with_option(text)) } else { Cow::Borrowed(text) }
}

/// Adds the option to each `pmof COMMAND` in backticks or parentheses.
fn with_option(text: &str) -> String {
    let mut parts = text.split("pmof ");
    let mut done = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_advised = done.ends_with(['`', '(']);
        done += "pmof ";
        let command = ADVISED
            .iter()
            .find(|&&command| part.strip_prefix(command).is_some_and(|behind| behind.starts_with([' ', '`', ')'])));
        match command {
            Some(command) if is_advised => {
                done += command;
                done.push(' ');
                done += OPTION;
                done += &part[command.len()..];
            }
            _ => done += part,
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advised_commands_repeat_the_option() {
        for (text, expected) in [
            ("`pmof pool rm URL` removes it", "`pmof pool --trust-host rm URL` removes it"),
            ("alone (pmof cp --min-replicas 1), and", "alone (pmof cp --trust-host --min-replicas 1), and"),
            ("`pmof status`, (pmof cp)", "`pmof status --trust-host`, (pmof cp --trust-host)"),
            // It has no such option, or is not advised.
            ("`pmof serve --root`, `pmof pools`, pmof pool", "`pmof serve --root`, `pmof pools`, pmof pool"),
            ("pmof: `pmof pool ls` and `pmof pool`", "pmof: `pmof pool --trust-host ls` and `pmof pool --trust-host`"),
        ] {
            assert_eq!(with_option(text), expected);
        }
    }
}
