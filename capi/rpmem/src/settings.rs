//! Settings from librpmem's environment variables.

use std::{
    env,
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pmof_access::Waiting;
use pmof_bootstrap::{SshOptions, provider_named};
use pmof_pool::TargetOptions;

/// The command that starts a target on the other machine, unless `RPMEM_CMD` is set.
const COMMAND: &str = "rpmemd";

/// Maximum lanes of a pool: as many as libpmemobj asks for.
const LANES_MAX: u32 = 1024;

/// The number of lanes of a pool for a requested number.
pub(crate) fn lanes(wanted: u32) -> u32 {
    let most = number("RPMEM_MAX_NLANES").filter(|most| *most > 0).unwrap_or(LANES_MAX);
    wanted.min(most).min(LANES_MAX)
}

/// How the next target is reached.
pub(crate) fn target_options() -> TargetOptions {
    tell_replaced();
    let mut options = TargetOptions::default().ssh(ssh());
    if let Some(seconds) = number("PMOF_LOSS_TIMEOUT").filter(|seconds| *seconds > 0) {
        options = options.loss_timeout(Duration::from_secs(seconds.into()));
    }
    if number("PMOF_BUSY_POLL") == Some(1) {
        options = options.waiting(Waiting::BusyPoll);
    }
    options
}

/// How the next target is started.
pub(crate) fn ssh() -> SshOptions {
    let mut options = SshOptions::from_env().command(COMMAND.to_owned());
    if let Some(program) = env::var_os("RPMEM_SSH").filter(|program| !program.is_empty()) {
        options = options.program(program.into());
    }
    if let Ok(commands) = env::var("RPMEM_CMD") {
        if let Some(command) = next_command(&commands) {
            options = options.command(command);
        }
    }
    if number("RPMEM_ENABLE_VERBS") == Some(0) {
        options = options.verbs(false);
    }
    if let Some(name) = env::var("RPMEM_PROVIDER").ok().filter(|name| !name.is_empty()) {
        options = options.fabric(provider_named(&name, "RPMEM_PROVIDER"));
    }
    options
}

/// Each connection takes the next of several commands separated by `|`.
fn next_command(commands: &str) -> Option<String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let commands: Vec<_> = commands.split('|').map(str::trim).filter(|command| !command.is_empty()).collect();
    let at = NEXT.fetch_add(1, Ordering::Relaxed);
    commands.get(at % commands.len().max(1)).map(|command| (*command).to_owned())
}

fn number(name: &str) -> Option<u32> {
    env::var(name).ok()?.trim().parse().ok()
}

/// Logs once which variables are ignored.
fn tell_replaced() {
    static TELL: Once = Once::new();
    TELL.call_once(|| {
        for (name, instead) in [
            (
                "RPMEM_ENABLE_SOCKETS",
                "TCP is used wherever both sides have no RDMA device; RPMEM_ENABLE_VERBS=0 asks for it, and RPMEM_PROVIDER for libfabric",
            ),
            ("RPMEM_WORK_QUEUE_SIZE", "queues are as long as they need to be"),
        ] {
            if env::var_os(name).is_some() {
                log::info!(target: "librpmem", "{name} is ignored: {instead}");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_take_turns() {
        let taken: Vec<_> = (0..4).map(|_| next_command("a -x | b").unwrap()).collect();
        assert!(taken[0] == taken[2] && taken[1] == taken[3] && taken[0] != taken[1], "{taken:?}");
        assert_eq!(next_command(" | "), None);
    }
}
