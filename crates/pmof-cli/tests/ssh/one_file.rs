//! One file under two names in a set, at least one of them on another machine: refused before anything is made, linked or removed.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::support::Stage;

const PART: &str = "9M";

/// A machine whose target keeps the sets `a.set` and `b.set`.
struct Fixture {
    stage: Stage,
}

impl Fixture {
    /// `first` and `other`: the part that each of the two sets names.
    fn new(first: &str, other: &str) -> Self {
        let fixture = Self { stage: Stage::local() };
        fs::create_dir(fixture.path("down")).unwrap();
        symlink("down", fixture.path("link")).unwrap();
        for (set, part) in [("a", first), ("b", other)] {
            fixture.write_set(&format!("root/{set}.set"), part, "");
        }
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.stage.directory.path().join(name)
    }

    fn write_set(&self, name: &str, part: &str, others: &str) -> String {
        let text = format!("PMEMPOOLSET\n{PART} {}\n{others}", self.path(part).display());
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// All that is there, but for set files.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let in_directory = |path: &Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        let found: [Vec<PathBuf>; 2] = [self.path(""), self.path("down")].map(|path| in_directory(&path));
        let files = found
            .into_iter()
            .flatten()
            .filter(|path| path.is_file() && path.extension().is_none() && !path.ends_with("ssh"));
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// Runs the command, which must name both files as one and change nothing.
    fn refused(&self, arguments: &[&str], [first, other]: [&str; 2]) {
        let before = self.contents();
        let text = self.stage.fail(arguments);
        let expected = [format!("{first} and "), other.to_owned(), "are one file".to_owned()];
        assert!(expected.iter().all(|expected| text.contains(expected)), "{arguments:?}: {text}");
        assert!(self.contents() == before, "{arguments:?} changed something: {text}");
    }
}

/// The parts of the two sets, and what the initiator's set calls them: two sets of one host, one set of two hosts, links, the local replica itself.
const WAYS: [(&str, &str, [&str; 2]); 4] = [
    ("far", "far", ["host-a a.set", "host-a b.set"]),
    ("far", "unused", ["host-a a.set", "host-b a.set"]),
    ("down/far", "link/far", ["host-a a.set", "host-b b.set"]),
    ("one", "unused", ["", "host-a a.set"]),
];

#[test]
fn one_remote_file_is_no_two_replicas() {
    for (first, other, named) in WAYS {
        let fixture = Fixture::new(first, other);
        let lines = named.iter().filter(|name| !name.is_empty()).map(|name| format!("REPLICA {name}\n"));
        let lines: String = lines.collect();
        let [alone, both] = [fixture.write_set("alone.set", "one", ""), fixture.write_set("both.set", "one", &lines)];
        let told = named.map(|name| match name.split_once(' ') {
            Some((host, set)) => format!("of {set} on {host}"),
            None => fixture.path("one").display().to_string(),
        });
        let told = [told[0].as_str(), told[1].as_str()];
        for dry_run in [&["--dry-run"][..], &[]] {
            fixture.refused(&[&["pool", "create", &both], dry_run].concat(), told);
        }
        assert!(fixture.contents().is_empty());
        fixture.stage.succeed(&["pool", "create", &alone]);
        for dry_run in [&["--dry-run"][..], &[]] {
            fixture.refused(&[&["pool", "sync", &both], dry_run].concat(), told);
            fixture.refused(&[&["pool", "transform", &alone, &both], dry_run].concat(), told);
        }
    }
}

/// Both sets have the file: the one that is added would be removed with the one that goes.
#[test]
fn a_remote_file_is_not_removed_under_another_name() {
    let fixture = Fixture::new("far", "far");
    let [from, to, both] = [
        ("from.set", "REPLICA host-a a.set\n"),
        ("to.set", "REPLICA host-a b.set\n"),
        ("both.set", "REPLICA host-a a.set\nREPLICA host-b b.set\n"),
    ]
    .map(|(name, lines)| fixture.write_set(name, "one", lines));
    fixture.stage.succeed(&["pool", "create", &from]);
    let told = ["of a.set on host-a", "of b.set on host-a"];
    for dry_run in [&["--dry-run"][..], &[]] {
        fixture.refused(&[&["pool", "transform", &from, &to], dry_run].concat(), told);
        fixture.refused(&[&["pool", "sync", &both], dry_run].concat(), [told[0], "of b.set on host-b"]);
    }
}
