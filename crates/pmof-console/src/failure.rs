//! What a command prints to standard error with `--json`, where it fails.

use std::error::Error;

use pmof::{PoolError, ReplicaError, causes};
use serde::{Deserialize, Serialize};

use crate::output::{complain, json_object};

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
        let mut texts = std::iter::successors(Some(error), |&error| cause_of(error)).map(own_words);
        let message = texts.next().unwrap_or_default();
        Self { error: FailureReport { message, causes: texts.collect(), exit_code } }
    }

    /// Of something that has no cause to tell.
    pub fn of_message(message: String, exit_code: u8) -> Self {
        Self { error: FailureReport { message, causes: Vec::new(), exit_code } }
    }

    /// Prints it to standard error: standard output has the result, if there is one.
    pub fn print(&self) {
        // Strings and a number have a form in JSON.
        let object = json_object(self).unwrap_or_default();
        complain(&object);
    }
}

/// Why a replica failed, of an error of a pool: it has that in its text and is not its source.
fn replica_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e ReplicaError> {
    error.downcast_ref::<PoolError>()?.replica_error()
}

fn cause_of<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    replica_error(error).map(|why| why as &(dyn Error + 'static)).or_else(|| error.source())
}

/// The text of an error, without the causes that follow it on their own.
fn own_words(error: &(dyn Error + 'static)) -> String {
    let text = error.to_string();
    let causes = replica_error(error).map(|why| format!(": {}", causes(why)));
    causes.and_then(|causes| text.strip_suffix(&causes).map(str::to_owned)).unwrap_or(text)
}

impl FailureReport {
    /// The error and its causes, as people read them.
    pub fn text(&self) -> String {
        let all: Vec<_> = std::iter::once(&self.message).chain(&self.causes).map(String::as_str).collect();
        all.join(": ")
    }
}
