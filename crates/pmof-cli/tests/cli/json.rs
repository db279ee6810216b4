//! Every object that a command prints has a version, and names that `docs/json.md` lists. All that the other tests here print is held against the page, too.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;
use serde_json::json;

use crate::{
    logs::Logged,
    names::{DOCUMENTED, fault, is_documented, undocumented},
    support::{Said, Target, directory, file_with, pmof, text},
};

/// What it printed as JSON, on both outputs.
#[track_caller]
fn objects(said: &Said) -> usize {
    let lines: Vec<_> = [&said.output, &said.errors].into_iter().flat_map(|printed| printed.lines()).collect();
    for line in &lines {
        assert!(line.starts_with('{'), "{said:?}");
        assert_eq!(fault(line), None);
    }
    lines.len()
}

#[test]
fn what_commands_print_has_a_version_and_documented_names() {
    let (a, b, place) = (Target::start(), Target::start(), directory());
    let (first, second, third) = (a.url("notes"), b.url("notes"), b.url("spare"));
    let (note, back) = (file_with(&place, "note", b"a note"), place.path().join("back"));
    let (export, set) = (place.path().join("export"), place.path().join("set"));
    let parts = [place.path().join("one"), place.path().join("two")];
    fs::write(&set, format!("PMEMPOOLSET\n9M {}\nREPLICA\n9M {}\n", text(&parts[0]), text(&parts[1]))).unwrap();
    let (note, back, export, set) = (text(&note), text(&back), text(&export), text(&set));
    let calls: &[&[&str]] = &[
        &["cp", note, &first, "--replica", &second],
        &["cp", &first, back],
        &["pool", "info", &first, &second],
        &["pool", "status", &first],
        &["pool", "ls", "-l", &a.address],
        &["pool", "ls", &a.address],
        &["status", &a.address],
        &["pool", "check", &first, &second],
        &["pool", "scrub", &first, &second],
        &["pool", "export", &first, export],
        &["pool", "import", export, &a.url("restored")],
        &["pool", "add", "--async", "--keep-points", "2", &first, &third],
        &["pool", "points", &first],
        &["pool", "status", &first],
        &["pool", "promote", "--force", &third],
        &["pool", "clear", &third],
        &["pool", "remove", "--force", &first, "1"],
        &["pool", "release", &first],
        &["pool", "rm", &first],
        &["pool", "create", set],
        &["pool", "info", set],
        &["pool", "feature", set],
        &["pool", "check", set],
        &["pool", "sync", set],
        &["doctor"],
        // They fail, and say why.
        &["pool", "info", &first],
        &["pool", "rm", &first],
        &["pool", "status", "nonsense"],
        &["cp", "missing", &first],
    ];
    for call in calls {
        let said = pmof(call.iter().copied().chain(["--json"]));
        assert!(objects(&said) > 0, "{call:?}: {said:?}");
    }
}

#[test]
fn lines_of_the_log_have_them_too() {
    let logged = Logged::start(&["--log-format", "json", "--log-level", "debug"]);
    logged.create("notes").close().unwrap();
    pmof(["pool", "rm", &logged.url("missing")]).failed(&["there is no pool missing"]);
    logged.line(&["pool_refused"]);
    logged.line(&["pool_closed"]);
    for line in logged.text().lines() {
        assert_eq!(fault(line), None);
    }
}

/// The keys of an event are names of members.
#[test]
fn keys_of_events_are_documented() {
    let event = Regex::new(r#"\bevent(?: = "[a-z_]+")?((?:, \w+(?::%)?(?: = [\w.]+(?:\(\))?)?)*); ""#).unwrap();
    let mut keys = BTreeSet::new();
    for file in sources() {
        for found in event.captures_iter(&fs::read_to_string(file).unwrap()) {
            let listed = found.get(1).map_or("", |listed| listed.as_str());
            keys.extend(
                listed.split(',').map(|key| key.trim().split([':', ' ']).next().unwrap_or_default().to_owned()),
            );
        }
    }
    assert!(["connection", "peer", "pool", "reason", "open_count"].iter().all(|key| keys.contains(*key)), "{keys:?}");
    let unlisted: Vec<_> = keys.iter().filter(|key| !key.is_empty() && !is_documented(key)).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");
}

/// A name that no program has any more is not on the page.
#[test]
fn documented_names_are_in_the_programs() {
    let all: String = sources().into_iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let words: BTreeSet<&str> = all.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let is_there = |row: &str| match row.replace('*', "") {
        part if part != row => words.iter().any(|word| word.starts_with(&part) || word.ends_with(&part)),
        // Names of variants.
        _ => words.contains(row) || ["found", "unusable", "known", "unknown"].contains(&row),
    };
    let gone: Vec<_> = DOCUMENTED.iter().filter(|row| !is_there(row)).collect();
    assert!(gone.is_empty(), "{gone:?}");
}

/// The source files of all crates.
fn sources() -> Vec<PathBuf> {
    let (mut open, mut files) = (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")], Vec::new());
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 200, "{files:?}");
    files
}

/// The control: what is not on the page is found wherever it is.
#[test]
fn an_undocumented_name_is_found() {
    let nested = json!({ "members": [{ "url": "x", "shoe_size": 1 }], "floor_p50_us_low": 2, "hat": null });
    assert_eq!(undocumented(&nested).into_iter().collect::<Vec<_>>(), ["hat", "shoe_size"]);
    assert!(fault(r#"{"schema_version":1,"hat":1}"#).is_some_and(|fault| fault.contains("\"hat\"")));
    assert!(fault(r#"{"url":"x","schema_version":1}"#).is_some_and(|fault| fault.contains("first member")));
    assert_eq!(fault(r#"{"schema_version":1,"url":"x"}"#), None);
}
