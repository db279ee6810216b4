//! Reports that are shown once, or again and again.

use std::{thread, time::Duration};

use pmof_console::{output, words};

use crate::failure;

#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// Show it again every second, or with `--watch=TIME` at that interval, until interrupted
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = words::times(Duration::from_millis(100)..=Duration::MAX))]
    watch: Option<Duration>,
    /// Print one JSON object; with --watch, one on each line
    #[arg(long)]
    pub(crate) json: bool,
}

impl WatchArgs {
    /// Shows it once, or until interrupted; what is out of reach now may be there the next time. Ends where the output takes no more, and where nobody reads it.
    pub(crate) fn show<T>(&self, show: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let Some(interval) = self.watch else { return show() };
        loop {
            let shown = show();
            if let Err(error) = &shown {
                failure::tell("pmof", error, 1);
            }
            if !self.json {
                output::print("\n")?;
            }
            output::check_printed()?;
            if output::is_unread() {
                return shown;
            }
            thread::sleep(interval);
        }
    }
}
