//! A line on standard error that the next one replaces, where somebody looks.

use std::io::{IsTerminal as _, Write as _, stderr};

/// The line, which is cleared when this is dropped.
#[derive(Debug)]
pub(super) struct Live {
    /// What every line begins with.
    head: String,
    is_seen: bool,
}

impl Live {
    pub(super) fn new(head: &str) -> Self {
        Self { head: head.to_owned(), is_seen: stderr().is_terminal() }
    }

    /// Shows it, unless nobody looks.
    pub(super) fn show(&self, text: impl FnOnce() -> String) {
        if self.is_seen {
            self.write(&format!("{}{}", self.head, text()));
        }
    }

    fn write(&self, line: &str) {
        if self.is_seen {
            // Whoever closed standard error wants no line.
            let _ = write!(stderr(), "\r\x1b[K{line}").and_then(|()| stderr().flush());
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.write("");
    }
}
