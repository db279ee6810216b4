//! How a command says that it failed.

use std::process::ExitCode;

use pmof_console::{
    failure::Failure,
    output::{Unprinted, complain, json_object},
};

use crate::{backup::format::FormatError, copy::error::CopyError, unequal::Unequal};

/// The exit status of a command that compared, and found a difference or damage. All else that keeps a command from what was asked is 1.
pub(crate) const DIFFERS: u8 = 3;

/// The exit status of a command that has done all, and whose output was lost.
pub(crate) const UNPRINTED: u8 = 4;

/// What was compared differs, or what was looked at is not sound.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Differs(String);

impl Differs {
    /// With what is to be told.
    pub(crate) fn error(text: String) -> anyhow::Error {
        Self(text).into()
    }
}

/// The exit status of a failure; `other` of all that have none of their own.
pub(crate) fn exit_code(error: &anyhow::Error, other: u8) -> u8 {
    match error {
        error if is_difference(error) => DIFFERS,
        error if error.is::<Unprinted>() => UNPRINTED,
        _ => other,
    }
}

/// Whether a command failed because it found a difference, or damage.
fn is_difference(error: &anyhow::Error) -> bool {
    error.is::<Differs>()
        || error.downcast_ref::<CopyError>().is_some_and(CopyError::is_difference)
        || error.downcast_ref::<FormatError>().is_some_and(FormatError::is_damage)
        || error.downcast_ref::<Unequal>().is_some_and(|unequal| unequal.was_closed)
}

/// Says why something failed.
pub(crate) fn tell(name: &str, error: &anyhow::Error, exit_code: u8) {
    if wants_json() {
        Failure::new(error.as_ref(), exit_code).print();
    } else {
        complain(&format!("{name}: {error:#}"));
    }
}

/// Says what whoever operates a pool has to know of a command that succeeds.
pub(crate) fn warn(warning: &str) {
    warn_as(warning, &format!("pmof: warning: {warning}"));
}

/// The same, where people read another line.
pub(crate) fn warn_as(warning: &str, line: &str) {
    if wants_json() {
        // A string has a form in JSON.
        complain(&json_object(&serde_json::json!({ "warning": warning })).unwrap_or_default());
    } else {
        complain(line);
    }
}

/// What clap says of arguments, or help that was asked for.
pub(crate) fn called_wrongly(said: &clap::Error) -> ExitCode {
    let code = u8::try_from(said.exit_code()).unwrap_or(1);
    if code != 0 && wants_json() {
        let text = said.render().to_string();
        let message = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
        let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
        Failure::of_message(message, code).print();
    } else {
        // Whoever asked may be gone.
        let _ = said.print();
    }
    ExitCode::from(code)
}

/// Whether results are to be JSON, and errors too: `--json` stands for nothing else wherever it may stand.
fn wants_json() -> bool {
    std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json")
}
