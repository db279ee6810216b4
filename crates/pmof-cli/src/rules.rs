//! The rules of the command line, which CONTRIBUTING.md has, held against every command and every option.

use std::collections::BTreeMap;

use clap::{Arg, Command, CommandFactory as _, error::ErrorKind};

use crate::Cli;

/// Words that no text has: first those of older English.
const NO_WORDS: [&str; 10] = [
    "shall",
    "so many",
    "so much",
    "so long",
    "in bytes",
    "in seconds",
    "in milliseconds",
    "in microseconds",
    "replica set",
    "e.g.",
];
/// Ends of names that say a unit: the value says it.
const NO_ENDS: [&str; 7] = ["-us", "-ms", "-s", "-secs", "-seconds", "-bytes", "-mb"];

/// Every command that is shown, with the words that call it.
fn commands() -> Vec<(Vec<String>, Command)> {
    let mut all = Cli::command();
    all.build();
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), all)];
    while let Some((path, command)) = open.pop() {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
            open.push(([&path[..], &[below.get_name().to_owned()]].concat(), below.clone()));
        }
        found.push((path, command));
    }
    found
}

fn options(command: &Command) -> impl Iterator<Item = (&Arg, &str)> {
    command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| Some((arg, arg.get_long()?)))
}

fn value_name(arg: &Arg) -> Option<&str> {
    arg.get_value_names()?.first().map(clap::builder::Str::as_str)
}

/// Whether the option takes this value, whatever else the command lacks.
fn takes(path: &[String], option: &str, value: &str) -> bool {
    let arguments = ["pmof".to_owned()].into_iter().chain(path.iter().cloned());
    match Cli::command().try_get_matches_from(arguments.chain([format!("--{option}={value}")])) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue),
    }
}

#[test]
fn commands_say_what_to_do() {
    let mut wrong = Vec::new();
    for (path, command) in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let first = about.split_whitespace().next().unwrap_or_default();
        let is_imperative = path.is_empty() || !first.ends_with('s');
        if !is_imperative || !first.starts_with(char::is_uppercase) || about.ends_with('.') {
            wrong.push(format!("{path:?}: {about}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn texts_are_in_plain_words() {
    let mut wrong = Vec::new();
    for (path, command) in commands() {
        let texts = command.get_arguments().flat_map(|arg| [arg.get_help(), arg.get_long_help()]);
        let texts = texts.chain([command.get_about(), command.get_long_about()]).flatten().map(ToString::to_string);
        wrong.extend(texts.filter_map(|text| {
            let word = NO_WORDS.iter().find(|word| text.to_lowercase().contains(**word))?;
            Some(format!("{path:?}: {word:?}: {text}"))
        }));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn values_have_units_and_names_have_none() {
    let (mut wrong, mut sizes, mut times) = (Vec::new(), 0, 0);
    for (path, command) in commands() {
        for (arg, name) in options(&command) {
            let takes = |value: &str| takes(&path, name, value);
            let any = |values: [&str; 3]| values.iter().any(|value| takes(value));
            let is_right = match value_name(arg) {
                Some("SIZE") => {
                    sizes += 1;
                    any(["4K", "1M", "1G"]) && !takes("4X")
                }
                Some("TIME") => {
                    times += 1;
                    any(["1s", "100ms", "1min"]) && !takes("1X")
                }
                Some("BYTES" | "SECONDS" | "MS" | "US" | "N" | "NUMBER") => false,
                _ => true,
            };
            if !is_right || NO_ENDS.iter().any(|end| name.ends_with(end)) {
                wrong.push(format!("{path:?}: --{name} <{}>", value_name(arg).unwrap_or_default()));
            }
        }
    }
    assert!(wrong.is_empty(), "SIZE, TIME or COUNT, whose unit the value has: {wrong:#?}");
    assert!(sizes > 5 && times > 5, "{sizes} sizes, {times} times");
}

/// Options whose values differ by command: a report is a directory, and a target names the pool on a device.
const DIFFERENT: [&str; 2] = ["output", "device"];

/// `--json`, and what else several commands have, is the same everywhere.
#[test]
fn the_same_option_has_the_same_value_everywhere() {
    let mut known: BTreeMap<String, (Vec<String>, Option<String>)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (path, command) in commands() {
        for (arg, name) in options(&command) {
            let here = arg.get_action().takes_values().then(|| value_name(arg).unwrap_or_default().to_owned());
            let (first, there) = known.entry(name.to_owned()).or_insert_with(|| (path.clone(), here.clone()));
            if *there != here && !DIFFERENT.contains(&name) {
                wrong.push(format!("--{name}: {here:?} of {path:?}, {there:?} of {first:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a transcript has of one command.
#[derive(Debug, Default)]
struct Shown {
    help: bool,
    /// Runs that end with 0 and that do not, as text and as JSON.
    right: [bool; 2],
    wrong: [bool; 2],
}

/// What the file of `tests/transcripts` for a command shows of it.
fn shown(path: &[String]) -> Shown {
    let file = format!("{}/tests/transcripts/{}.txt", env!("CARGO_MANIFEST_DIR"), path.join("-"));
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let call = format!("pmof {} ", path.join(" "));
    let mut shown = Shown::default();
    for block in text.split("\n$ ").map(|block| block.strip_prefix("$ ").unwrap_or(block)) {
        let line = block.lines().next().unwrap_or_default();
        if !format!("{line} ").contains(&call) {
            continue;
        }
        let options: Vec<_> = line.split(' ').collect();
        let format = usize::from(options.contains(&"--json"));
        if options.contains(&"--help") {
            shown.help = true;
        } else if block.contains("\n[exit ") {
            shown.wrong[format] = true;
        } else {
            shown.right[format] = true;
        }
    }
    shown
}

/// Its help, a run that is right and one that is wrong: as text, and as JSON where it has that. Of a command that only has others below it, what is right is theirs.
#[test]
fn every_command_has_a_transcript() {
    let mut wrong = Vec::new();
    for (path, command) in commands().into_iter().filter(|(path, _)| !path.is_empty()) {
        let has_json = options(&command).any(|(_, name)| name == "json");
        let shown = shown(&path);
        let formats = 0..=usize::from(has_json);
        let has_right = command.is_subcommand_required_set() || formats.clone().all(|format| shown.right[format]);
        if !(shown.help && has_right && formats.clone().all(|format| shown.wrong[format])) {
            wrong.push(format!("{path:?}: {shown:?}"));
        }
    }
    assert!(wrong.is_empty(), "tests/transcripts lacks: {wrong:#?}");
}
