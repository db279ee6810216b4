//! The corpus of pool set files: each good one is read, each bad one is refused for its reason, at its line.

use std::{collections::BTreeMap, fs, path::PathBuf};

use pmof_mem::causes;
use pmof_pool_set::{PoolSet, ReplicaSpec, SetError};

fn corpus(name: &str) -> BTreeMap<String, PathBuf> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sets").join(name);
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let sets = paths.filter(|path| path.extension().is_some_and(|extension| extension == "set"));
    sets.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

#[test]
fn every_bad_set_is_refused_for_its_reason_and_at_its_line() {
    let mut files = corpus("bad");
    assert!(files.len() >= 100, "{}", files.len());
    let mut wrong = Vec::new();
    for row in include_str!("sets/bad/expected.txt").lines().filter(|row| !row.starts_with('#')) {
        let [name, line, kind] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let path = files.remove(name).unwrap_or_else(|| panic!("{name}.set is missing"));
        match PoolSet::read(&path) {
            Err(SetError::Line { path: told, line: found, problem }) => {
                let text = format!("{problem:?}");
                let found_kind = text.split([' ', '{']).next().unwrap();
                if (found.to_string().as_str(), found_kind) != (line, kind) || told != path {
                    wrong.push(format!("{row}: {found}: {problem}"));
                }
                // What is wrong, and what to do.
                let text = problem.to_string();
                assert!(text.len() > 20 && text.is_char_boundary(text.len()), "{row}: {text}");
            }
            other => wrong.push(format!("{row}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(files.is_empty(), "not in expected.txt: {files:?}");
}

#[test]
fn every_good_set_is_read_and_written_again() {
    let files = corpus("good");
    assert!(files.len() >= 10, "{}", files.len());
    for path in files.values() {
        let set = PoolSet::read(path).unwrap_or_else(|error| panic!("{error}"));
        let again = PoolSet::parse(path, &set.to_bytes()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.to_bytes(), set.to_bytes());
        assert_eq!(again.options, set.options);
    }
}

#[test]
fn a_remote_set_below_the_directory_itself_is_named_plainly() {
    let set = PoolSet::read(&corpus("good")["remote-dot"]).unwrap();
    let names = set.replicas.iter().filter_map(|replica| match replica {
        ReplicaSpec::Remote(remote) => Some(remote.set.as_os_str()),
        ReplicaSpec::Local(_) => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["a.set", "x/b.set"]);
}

/// As PMDK does; the CR is part of no path, set or option.
#[test]
fn a_return_before_a_newline_counts_for_nothing() {
    let files = corpus("good");
    let mut with_returns = 0;
    for (name, path) in &files {
        let set = PoolSet::read(path).unwrap_or_else(|error| panic!("{error}"));
        if set.to_bytes().contains(&b'\r') {
            with_returns += 1;
            continue;
        }
        let bytes = fs::read(path).unwrap();
        let lines = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let [plain, returns] = [&b"\n"[..], b"\r\n"].map(|end| lines.clone().collect::<Vec<_>>().join(end));
        for bytes in [plain, returns] {
            let again = PoolSet::parse(path, &bytes).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(again, set, "{name}");
        }
    }
    assert_eq!(with_returns, 3);
    assert!(PoolSet::is_set_file(&files["crlf-everywhere"]).unwrap());
}

/// As PMDK does: it is part of the path, and stays so when the set is written again.
#[test]
fn a_return_without_a_newline_is_part_of_the_path() {
    let files = corpus("good");
    for (name, path) in [
        ("crlf-last-line", "/mnt/a\r"),
        ("control-carriage-return-twice", "/mnt/a\r"),
        ("control-carriage-return-inside", "/mnt/a\rb"),
    ] {
        let set = PoolSet::read(&files[name]).unwrap();
        let again = PoolSet::parse(&files[name], &set.to_bytes()).unwrap();
        for set in [set, again] {
            assert_eq!(set.replicas[0].local().unwrap()[0].path.to_str(), Some(path), "{name}");
        }
    }
}

#[test]
fn a_file_that_is_no_set_is_distinguished() {
    for (name, is_set) in [("empty", false), ("signature-of-a-pool", false), ("no-parts", true)] {
        assert_eq!(PoolSet::is_set_file(&corpus("bad")[name]).unwrap(), is_set, "{name}");
    }
    assert!(matches!(PoolSet::read("/no/such/set".as_ref()), Err(SetError::Io { .. })));
    let told = causes(&PoolSet::read("/dev/zero".as_ref()).unwrap_err()).to_string();
    assert!(told.contains("it is a device: name a regular file"), "{told}");
    // An empty file.
    assert!(matches!(PoolSet::read("/dev/null".as_ref()), Err(SetError::Line { line: 1, .. })));
}
