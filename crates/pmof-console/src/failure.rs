//! What a command prints to standard error with `--json`, where it fails.

use std::error::Error;

use serde::{Deserialize, Serialize};

use crate::output::complain;

/// An error, as one JSON object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The error.
    pub error: FailureReport,
}

/// What is in the object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// What failed, and on what.
    pub message: String,
    /// Why, from the outermost cause to the innermost.
    pub causes: Vec<String>,
    /// What the process ends with.
    pub exit_code: u8,
}

impl Failure {
    /// Of an error and its causes.
    pub fn new(error: &(dyn Error + 'static), exit_code: u8) -> Self {
        let causes = std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string).collect();
        Self { error: FailureReport { message: error.to_string(), causes, exit_code } }
    }

    /// Of something that has no cause to tell.
    pub fn of_message(message: String, exit_code: u8) -> Self {
        Self { error: FailureReport { message, causes: Vec::new(), exit_code } }
    }

    /// Prints it to standard error: standard output has the result, if there is one.
    pub fn print(&self) {
        // Strings and a number have a form in JSON.
        let object = serde_json::to_string(self).unwrap_or_default();
        complain(&object);
    }
}

impl FailureReport {
    /// The error and its causes, as people read them.
    pub fn text(&self) -> String {
        let all: Vec<_> = std::iter::once(&self.message).chain(&self.causes).map(String::as_str).collect();
        all.join(": ")
    }
}
