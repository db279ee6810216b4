//! Configuration files: lines of `key = value`, where each key is a long option of the command.
//!
//! `#` begins a comment. An option without a value takes `yes` or `no`. The command line takes precedence over every file, and a
//! later file over an earlier one; for options that may be given several times, all lines of one file count.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
};

use clap::{ArgAction, ArgMatches, Args as _, Command, FromArgMatches as _, parser::ValueSource};
use pmof_mem::open_to_read;

use super::ServeArgs;

/// Options that a file cannot set.
const NOT_IN_FILES: [&str; 9] =
    ["config", "help", "version", "cpu", "exit-with-parent", "stdio", "remove", "force", "pool-set"];

/// Why a configuration file was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A line is invalid.
    #[error("{}:{line}: {why}", path.display())]
    Line { path: PathBuf, line: usize, why: String },
}

/// A configuration file, and whether it must exist.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    pub(crate) is_required: bool,
}

impl ConfigFile {
    /// The named file, or else the system's and then the user's, which is below the home directory.
    pub(crate) fn named_or_usual(named: Option<&PathBuf>, system: &str, user: &str) -> Vec<Self> {
        if let Some(path) = named {
            return vec![Self { path: path.clone(), is_required: true }];
        }
        let below_home = super::home().map(|home| home.join(user)).ok();
        let paths = std::iter::once(PathBuf::from(system)).chain(below_home);
        paths.map(|path| Self { path, is_required: false }).collect()
    }
}

/// What the command line and the files say together, which may be read again.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    files: Vec<ConfigFile>,
    matches: ArgMatches,
}

impl Configuration {
    /// Of `pmof serve`, as it was started.
    pub(crate) fn read(files: Vec<ConfigFile>) -> anyhow::Result<Self> {
        let given: Vec<OsString> = std::env::args_os().skip_while(|argument| argument != "serve").skip(1).collect();
        let matches = arguments(&serve_command(), &given, &files)?;
        Ok(Self { files, matches })
    }

    /// As it is now.
    pub(crate) fn read_again(&self) -> anyhow::Result<Self> {
        Self::read(self.files.clone())
    }

    /// The names of the options that have other values in `now`.
    pub(crate) fn changes(&self, now: &Self) -> Vec<String> {
        let command = serve_command();
        let values = |matches: &ArgMatches, id: &str| {
            matches.get_raw(id).map(|values| values.map(OsStr::to_owned).collect::<Vec<_>>())
        };
        let changed = command.get_arguments().filter(|argument| {
            let id = argument.get_id().as_str();
            values(&self.matches, id) != values(&now.matches, id)
        });
        changed.filter_map(|argument| argument.get_long().map(str::to_owned)).collect()
    }

    pub(crate) fn args(&self) -> anyhow::Result<ServeArgs> {
        Ok(ServeArgs::from_arg_matches(&self.matches)?)
    }
}

fn serve_command() -> Command {
    ServeArgs::augment_args(Command::new("pmof serve"))
}

/// Merges the files and `given`, the command line without the command's name, into arguments for `command`.
pub(crate) fn arguments(
    command: &Command,
    given: &[OsString],
    files: &[ConfigFile],
) -> Result<ArgMatches, anyhow::Error> {
    let command = command.clone().no_binary_name(true).args_override_self(true);
    let on_command_line = command.clone().ignore_errors(true).try_get_matches_from(given)?;
    let mut arguments = Vec::new();
    let mut later_keys = BTreeSet::new();
    for file in files.iter().rev() {
        let text = match open_to_read(&file.path).and_then(io::read_to_string) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !file.is_required => continue,
            Err(source) => return Err(ConfigError::Read { path: file.path.clone(), source }.into()),
        };
        let mut keys = BTreeSet::new();
        for (line, key, argument) in lines(&command, &file.path, &text)? {
            let id = command.get_arguments().find(|option| option.get_long() == Some(&key));
            let is_given = id.is_some_and(|option| {
                on_command_line.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)
            });
            let is_repeatable = id.is_some_and(|option| matches!(option.get_action(), ArgAction::Append));
            if !is_repeatable && keys.contains(&key) {
                let why = format!("{key} was set above already; it may be set once in a file");
                return Err(ConfigError::Line { path: file.path.clone(), line, why }.into());
            }
            // Each line is checked by itself, so that the error can name it.
            if let Some(argument) = argument {
                check(&command, &argument).map_err(|why| ConfigError::Line { path: file.path.clone(), line, why })?;
                if !is_given && !later_keys.contains(&key) {
                    arguments.push(OsString::from(argument));
                }
            }
            keys.insert(key);
        }
        later_keys.append(&mut keys);
    }
    arguments.extend_from_slice(given);
    Ok(command.try_get_matches_from(arguments)?)
}

/// The lines that set something: number, key, and the resulting argument, if any.
fn lines(command: &Command, path: &Path, text: &str) -> Result<Vec<(usize, String, Option<String>)>, ConfigError> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |why| ConfigError::Line { path: path.to_owned(), line: index + 1, why };
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let Some((key, value)) = line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
            return Err(wrong(format!("{line:?} is not of the form `key = value`")));
        };
        let option = command.get_arguments().find(|option| option.get_long() == Some(key));
        let Some(option) = option.filter(|_| !NOT_IN_FILES.contains(&key)) else {
            return Err(wrong(format!(
                "there is no key {key:?}; the keys are the long options of the command (--help)"
            )));
        };
        let argument = match (option.get_action(), value) {
            (ArgAction::SetTrue, "yes" | "true" | "on" | "1") => Some(format!("--{key}")),
            (ArgAction::SetTrue, "no" | "false" | "off" | "0") => None,
            (ArgAction::SetTrue, _) => return Err(wrong(format!("{key} must be yes or no, not {value:?}"))),
            (_, "") => return Err(wrong(format!("{key} has no value"))),
            _ => Some(format!("--{key}={value}")),
        };
        found.push((index + 1, key.to_owned(), argument));
    }
    Ok(found)
}

/// Checks one argument, without regard to other arguments that the command requires.
fn check(command: &Command, argument: &str) -> Result<(), String> {
    use clap::error::ErrorKind::{InvalidValue, ValueValidation};
    match command.clone().try_get_matches_from([argument]) {
        Err(error) if matches!(error.kind(), InvalidValue | ValueValidation) => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(first.strip_prefix("error: ").unwrap_or(first).to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(texts: &[&str], given: &[&str]) -> anyhow::Result<ServeArgs> {
        let directory = tempfile::tempdir()?;
        let mut files = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let path = directory.path().join(format!("{index}.conf"));
            std::fs::write(&path, text)?;
            files.push(ConfigFile { path, is_required: true });
        }
        let given: Vec<_> = given.iter().map(OsString::from).collect();
        Ok(ServeArgs::from_arg_matches(&arguments(&serve_command(), &given, &files)?)?)
    }

    #[test]
    fn the_command_line_wins_over_files_and_later_files_over_earlier() {
        let first = "root = /a # where\n\nworkers=3\nlisten = tcp://127.0.0.1:1\nlisten = tcp://127.0.0.1:2\nno-native-flush = yes\n";
        let args = parse(&[first], &[]).unwrap();
        assert_eq!(args.root.as_deref(), Some(Path::new("/a")));
        assert_eq!((args.workers, args.listen.len(), args.no_native_flush), (3, 2, true));

        let args =
            parse(&[first, "workers = 4\nno-native-flush = no"], &["--root", "/b", "--listen", "tcp://127.0.0.1:3"]);
        let args = args.unwrap();
        assert_eq!(args.root.as_deref(), Some(Path::new("/b")));
        assert_eq!((args.workers, args.listen.len()), (4, 1));
        assert!(!args.no_native_flush, "a later file takes it back");
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line, what) in [
            ("root = /a\nnonsense\n", 2, "key = value"),
            ("rot = /a\n", 1, "no key \"rot\""),
            ("config = /a\n", 1, "no key"),
            ("# fine\n\nworkers = many\n", 3, "many"),
            ("busy-poll = perhaps", 1, "yes or no"),
            ("root =", 1, "no value"),
            ("listen = quic://a", 1, "quic"),
            ("workers = 1\nroot = /a\nworkers = 1", 3, "set above"),
            ("busy-poll = yes\nbusy-poll = no", 2, "set above"),
        ] {
            let error = parse(&[text], &[]).unwrap_err().to_string();
            assert!(error.contains(&format!("0.conf:{line}: ")) && error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let missing = |is_required| {
            let file = ConfigFile { path: "/nonexistent/pmof.conf".into(), is_required };
            arguments(&serve_command(), &["--stdio".into()], &[file]).map(drop)
        };
        assert!(missing(true).unwrap_err().to_string().contains("/nonexistent/pmof.conf"));
        missing(false).unwrap();
    }
}
