//! The progress bar: on a terminal only.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the progress of a copy. Disappears from the terminal when dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(verb: &'static str, len_bytes: u64, wanted: bool) -> Self {
        if !wanted || !stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(len_bytes);
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style);
        }
        bar.set_message(verb);
        Self(bar)
    }

    pub(crate) fn advance(&self, len_bytes: u64) {
        self.0.inc(len_bytes);
    }

    pub(crate) fn set(&self, position_bytes: u64) {
        self.0.set_position(position_bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
