//! A target that runs: what its operator tells it by signals.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use pmof::Service;
use signal_hook::{consts::SIGHUP, iterator::Signals};

use super::{config::Configuration, logger::Logger, manager};

/// How often a target that drains looks whether its pools are closed.
const LOOK: Duration = Duration::from_millis(10);

/// Options that a target takes over without a restart.
const LIVE: [&str; 3] = ["drain-timeout", "log-level", "max-connections"];

/// A target, its log, and what it was started with.
pub(super) struct Operated {
    service: Service,
    logger: Logger,
    started: Configuration,
    /// As it was read last.
    current: Configuration,
    drain_timeout: Duration,
}

impl Operated {
    pub(super) fn new(service: Service, logger: Logger, configuration: Configuration, drain_timeout: Duration) -> Self {
        Self { service, logger, started: configuration.clone(), current: configuration, drain_timeout }
    }

    /// Returns when the target has stopped.
    pub(super) fn until_stopped(mut self, mut signals: Signals) {
        for signal in signals.forever() {
            if signal != SIGHUP {
                break;
            }
            manager::reloading();
            self.reopen_log();
            self.reload();
            manager::ready();
        }
        manager::stopping();
        self.service.drain();
        let start = Instant::now();
        let is_told_again = |signals: &mut Signals| signals.pending().any(|signal| signal != SIGHUP);
        while !self.service.is_drained() && start.elapsed() < self.drain_timeout && !is_told_again(&mut signals) {
            sleep(LOOK);
        }
    }

    fn reopen_log(&self) {
        match self.logger.reopen() {
            Ok(()) => log::info!(event = "log_reopened"; "the log was opened anew"),
            Err(error) => {
                log::error!(event = "log_not_reopened", reason:% = format!("{error:#}"); "the former log file stays in use: {error:#}");
            }
        }
    }

    /// Takes over what has changed in the configuration files. With one that is wrong all stays as it was.
    fn reload(&mut self) {
        let read = self.current.read_again().and_then(|now| Ok((now.args()?, now)));
        let (args, now) = match read {
            Ok(read) => read,
            Err(error) => {
                let reason = format!("{error:#}");
                log::error!(event = "configuration_refused", reason:%; "the former configuration stays in use: {reason}");
                return;
            }
        };
        Logger::set_level(args.log_level());
        self.service.set_max_connections(args.max_connections);
        self.drain_timeout = args.drain_timeout;
        let is_live = |name: &String| LIVE.contains(&name.as_str());
        let options = self.current.changes(&now).into_iter().filter(is_live).collect::<Vec<_>>().join(", ");
        let what = if options.is_empty() { "nothing" } else { &options };
        log::info!(event = "configuration_reloaded", options:%; "the configuration was read again; changed: {what}");
        let options =
            self.started.changes(&now).into_iter().filter(|name| !is_live(name)).collect::<Vec<_>>().join(", ");
        if !options.is_empty() {
            log::warn!(event = "configuration_needs_restart", options:%; "these take effect when the target is started again: {options}");
        }
        self.current = now;
    }
}
